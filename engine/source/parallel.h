// Threads that share a computation without depending on each other: a thread that gets no CPU time delays nobody.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#if defined(REGARD_X86)
#include <immintrin.h>
#endif

namespace regard {

// Computes part `part` of step `step`; threads that run at the same time have different values of `member`.
using PartFunction = std::function<void(int64_t step, int64_t part, int64_t member)>;

// Assigns the parts of one step after another to whichever thread is available. A step begins when all parts of the
// previous one are complete. Every member tries the part with its own index first, so that rows stay in its cache, then
// those that nobody has begun. Idle members spin briefly, then sleep.
class StepScheduler {
 public:
  StepScheduler(int64_t num_steps, int64_t num_parts, PartFunction compute)
      : num_steps_(num_steps),
        num_parts_(num_parts),
        compute_(std::move(compute)),
        claimed_(std::make_unique<std::atomic<int64_t>[]>(num_parts)) {
    for (int64_t part = 0; part < num_parts; part++) claimed_[part].store(0, std::memory_order_relaxed);
  }

  // Computes until nothing is left to claim. Only a claimed part may access what belongs to the caller: a helper that
  // arrives after the caller has returned finds none.
  void help(int64_t member) {
    for (int64_t step = current_step(); step < num_steps_; step = current_step()) {
      for (int64_t i = 0; i < num_parts_; i++) compute_if_unclaimed(step, (member + i) % num_parts_, member);
      if (step + 1 == num_steps_) return;
      wait_for(step);
    }
  }

  // Helps and waits until everything is complete; rethrows the exception of a part.
  void finish() {
    help(0);
    wait_for(num_steps_ - 1);
    // moved out: a late helper must not be the one to free the exception that the caller catches
    if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  static constexpr int NUM_SPINS = 2000;  // longer than members usually differ, far below a time slice

  int64_t current_step() const { return num_completed_.load(std::memory_order_acquire) / num_parts_; }
  bool is_complete(int64_t step) const { return num_completed_.load() >= (step + 1) * num_parts_; }

  void compute_if_unclaimed(int64_t step, int64_t part, int64_t member) {
    std::atomic<int64_t>& claimed = claimed_[part];
    int64_t expected = step;
    if (claimed.load(std::memory_order_relaxed) != step || !claimed.compare_exchange_strong(expected, step + 1)) return;
    if (!has_failed_.load(std::memory_order_relaxed)) {
      try {
        compute_(step, part, member);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        error_ = std::current_exception();
        has_failed_.store(true, std::memory_order_relaxed);
      }
    }
    // sequentially consistent with `num_sleepers_`: either a sleeper is seen here, or it sees the completed step
    if ((num_completed_.fetch_add(1) + 1) % num_parts_ == 0 && num_sleepers_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      step_completed_.notify_all();
    }
  }

  void wait_for(int64_t step) {
    for (int spin = 0; spin < NUM_SPINS; spin++) {
      if (is_complete(step)) return;
#if defined(REGARD_X86)
      _mm_pause();
#elif defined(__aarch64__)
      __asm__ volatile("yield");
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    num_sleepers_.fetch_add(1);
    step_completed_.wait(lock, [&] { return is_complete(step); });
    num_sleepers_.fetch_sub(1);
  }

  const int64_t num_steps_;
  const int64_t num_parts_;
  const PartFunction compute_;
  std::unique_ptr<std::atomic<int64_t>[]> claimed_;  // steps of each part that somebody has begun
  std::atomic<int64_t> num_completed_{0};            // parts of all steps
  std::atomic<int> num_sleepers_{0};
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  std::condition_variable step_completed_;
  std::exception_ptr error_;
};

constexpr int MAX_HELPERS = 256;  // of this process: more late ones would help nobody
inline std::atomic<int> num_helpers{0};

// Computes all parts of all steps with at most `num_threads` threads, the calling one included. Helpers own what they
// access before they claim a part, so nobody waits for one that has not started; where the system refuses to start one,
// the others do its work.
inline void run_steps(int64_t num_threads, int64_t num_steps, int64_t num_parts, PartFunction compute) {
  if (num_threads == 1) {
    for (int64_t step = 0; step < num_steps; step++)
      for (int64_t part = 0; part < num_parts; part++) compute(step, part, 0);
    return;
  }
  const auto scheduler = std::make_shared<StepScheduler>(num_steps, num_parts, std::move(compute));
  for (int64_t member = 1; member < num_threads; member++) {
    if (num_helpers.fetch_add(1) >= MAX_HELPERS) {
      num_helpers.fetch_sub(1);
      break;
    }
    try {
      std::thread([scheduler, member] {
        scheduler->help(member);
        num_helpers.fetch_sub(1);
      }).detach();
    } catch (const std::system_error&) {
      num_helpers.fetch_sub(1);
      break;
    }
  }
  scheduler->finish();
}

}  // namespace regard
