#include "memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <new>
#include <tuple>

namespace regard {
namespace {

constexpr size_t BOUNDARY = 64, KEPT = 256;  // buffers that a pool keeps
constexpr size_t PAGE = size_t{2} << 20;     // large buffers are whole pages of this size: keys lie far apart

size_t rounded(size_t bytes) {
  const size_t unit = bytes >= PAGE / 2 ? PAGE : BOUNDARY;
  return (bytes + unit) / unit * unit;
}

void* aligned(size_t bytes) {
  void* data = std::aligned_alloc(bytes % PAGE ? BOUNDARY : PAGE, bytes);
  if (!data) throw std::bad_alloc();
#if defined(__linux__)
  if (bytes % PAGE == 0) madvise(data, bytes, MADV_HUGEPAGE);
#endif
  return data;
}

}  // namespace

Buffer::Buffer(Pool* pool, size_t bytes) : pool_(pool) {
  std::tie(data_, bytes_) = pool->take(rounded(bytes));
}

Buffer::~Buffer() {
  if (data_) pool_->give(data_, bytes_);
}

Pool::~Pool() {
  for (auto& one : free_) std::free(one.first);
}

std::pair<void*, size_t> Pool::take(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(busy_);
    size_t best = free_.size();
    for (size_t i = 0; i < free_.size(); i++)
      if (free_[i].second >= bytes && (best == free_.size() || free_[i].second < free_[best].second)) best = i;
    if (best < free_.size() && free_[best].second / 4 <= bytes) {
      auto found = free_[best];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(best));
      return found;
    }
  }
  return {aligned(bytes), bytes};
}

void Pool::give(void* data, size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(busy_);
    if (free_.size() < KEPT) {
      free_.emplace_back(data, bytes);
      return;
    }
  }
  std::free(data);
}

}  // namespace regard
