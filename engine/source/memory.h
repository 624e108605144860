// Memory for numbers: aligned, set to zero where asked, and given back to a pool so that it is not asked for again.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace regard {

class Pool;

// Bytes on a boundary of 64; those of a pool go back to it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Pool* pool, size_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  template <class Kind>
  Kind* as() const {
    return static_cast<Kind*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  Pool* pool_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// What was used before and is free; threads share it.
class Pool {
 public:
  ~Pool();

 private:
  friend class Buffer;
  std::pair<void*, size_t> take(size_t bytes);
  void give(void* data, size_t bytes);

  std::mutex busy_;
  std::vector<std::pair<void*, size_t>> free_;
};

}  // namespace regard
