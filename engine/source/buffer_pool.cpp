#include "buffer_pool.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include <cstdlib>
#include <new>

#include "parallel.h"

namespace regard {
namespace {

constexpr int64_t ALIGNMENT = 64;
constexpr int64_t HUGE_PAGE = int64_t{2} << 20;  // keys of a cache lie far apart: fewer TLB misses
constexpr int64_t MAX_FREE_BLOCKS = 256;
constexpr int64_t MAX_WASTE = 4;  // a free block serves a request for at least a quarter of it

// One lock for all pools. A fork waits for it, so that no other thread holds it, half-way through a change, in the
// child; the child has none of its parent's helpers either.
std::mutex pools_mutex;
#if defined(__unix__) || defined(__APPLE__)
[[maybe_unused]] const int fork_handlers = pthread_atfork([] { pools_mutex.lock(); }, [] { pools_mutex.unlock(); },
                                                          [] {
                                                            num_helpers.store(0);
                                                            pools_mutex.unlock();
                                                          });
#endif

int64_t round_up(int64_t num_bytes) {
  const int64_t unit = num_bytes >= HUGE_PAGE / 2 ? HUGE_PAGE : ALIGNMENT;
  return (num_bytes + unit) / unit * unit;
}

void* allocate(int64_t num_bytes) {
  const bool uses_huge_pages = num_bytes % HUGE_PAGE == 0;
  void* data = std::aligned_alloc(uses_huge_pages ? HUGE_PAGE : ALIGNMENT, num_bytes);
  if (!data) throw std::bad_alloc();
#if defined(__linux__)
  if (uses_huge_pages) madvise(data, num_bytes, MADV_HUGEPAGE);
#endif
  return data;
}

}  // namespace

Buffer::Buffer(BufferPool* pool, int64_t num_bytes) : pool_(pool) {
  const BufferPool::Block block = pool->acquire(round_up(num_bytes));
  data_ = block.data;
  num_bytes_ = block.num_bytes;
}

Buffer::~Buffer() {
  if (data_) pool_->release({data_, num_bytes_});
}

BufferPool::~BufferPool() {
  for (const Block& block : free_) std::free(block.data);
}

BufferPool::Block BufferPool::acquire(int64_t num_bytes) {
  {
    std::lock_guard<std::mutex> lock(pools_mutex);
    auto best = free_.end();
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      if (block->num_bytes < num_bytes) continue;
      if (best == free_.end() || block->num_bytes < best->num_bytes) best = block;
    }
    if (best != free_.end() && best->num_bytes / MAX_WASTE <= num_bytes) {
      const Block block = *best;
      free_.erase(best);
      return block;
    }
  }
  return {allocate(num_bytes), num_bytes};
}

void BufferPool::release(Block block) {
  {
    std::lock_guard<std::mutex> lock(pools_mutex);
    if (std::ssize(free_) < MAX_FREE_BLOCKS) {
      free_.push_back(block);
      return;
    }
  }
  std::free(block.data);
}

}  // namespace regard
