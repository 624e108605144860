// Aligned memory that is reused: allocating and touching new pages costs more than most steps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace regard {

class BufferPool;

// Uninitialized memory aligned to 64 bytes; its destructor returns it to the pool.
class Buffer {
 public:
  Buffer() = default;
  Buffer(BufferPool* pool, int64_t num_bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~Buffer();

  template <class Value>
  Value* as() const {
    return static_cast<Value*>(data_);
  }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  BufferPool* pool_ = nullptr;
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

// Free memory blocks; safe to use by several threads and after a fork.
class BufferPool {
 public:
  ~BufferPool();

 private:
  friend class Buffer;

  struct Block {
    void* data;
    int64_t num_bytes;
  };

  Block acquire(int64_t num_bytes);
  void release(Block block);

  std::vector<Block> free_;
};

}  // namespace regard
