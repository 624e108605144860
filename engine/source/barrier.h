// Where threads that share a text wait for each other.
#pragma once
#include <atomic>
#include <thread>

#if defined(REGARD_X86)
#include <immintrin.h>
#endif

namespace regard {

// Waits a moment without sleep – the others are nearly there – and then gives its core away while it waits.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  void wait() {
    if (threads_ == 1) return;
    const int turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int tries = 0; turn_.load(std::memory_order_acquire) == turn; tries++) {
      if (tries > PATIENCE)
        std::this_thread::yield();
#if defined(REGARD_X86)
      else
        _mm_pause();
#endif
    }
  }

 private:
  static constexpr int PATIENCE = 2000;
  const int threads_;
  std::atomic<int> arrived_{0}, turn_{0};
};

}  // namespace regard
