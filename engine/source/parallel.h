// Threads that share a computation without depending on each other: a thread that gets no processor delays nobody.
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

// Computes part `part` of step `step`; `member` tells apart the threads that compute at the same time.
using Part = std::function<void(int step, int part, int member)>;

// Deals the parts of one step after another to whichever thread is there. A step begins when all parts of the one before
// are complete. Every member prefers the part of its own number, so that rows stay in its cache, and then takes what
// nobody has begun. Whoever has nothing to do pauses for a moment, then sleeps.
class StepScheduler {
 public:
  StepScheduler(int steps, int parts, Part compute)
      : steps_(steps), parts_(parts), compute_(std::move(compute)), claimed_(new std::atomic<int>[static_cast<size_t>(parts)]) {
    for (int part = 0; part < parts; part++) claimed_[static_cast<size_t>(part)].store(0, std::memory_order_relaxed);
  }

  // Computes until nothing is left to claim. Only a claimed part may touch what belongs to the caller: a helper that
  // arrives after the caller has returned finds nothing.
  void help(int member) {
    for (int step = current_step(); step < steps_; step = current_step()) {
      for (int offset = 0; offset < parts_; offset++) compute_if_free(step, (member + offset) % parts_, member);
      if (step + 1 == steps_) return;
      wait_for(step);
    }
  }

  // Helps and waits until everything is complete; rethrows what a part has thrown.
  void finish() {
    help(0);
    wait_for(steps_ - 1);
    // taken out: a helper that is late must not be the one to free what the caller catches
    if (const std::exception_ptr problem = std::exchange(problem_, nullptr)) std::rethrow_exception(problem);
  }

 private:
  static constexpr int SPINS = 2000;  // pauses before sleep: longer than members usually differ, far below a time slice

  int current_step() const { return static_cast<int>(completed_.load(std::memory_order_acquire) / parts_); }
  bool is_complete(int step) const { return completed_.load() >= static_cast<int64_t>(step + 1) * parts_; }

  void compute_if_free(int step, int part, int member) {
    std::atomic<int>& claimed = claimed_[static_cast<size_t>(part)];
    int expected = step;
    if (claimed.load(std::memory_order_relaxed) != step || !claimed.compare_exchange_strong(expected, step + 1)) return;
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        compute_(step, part, member);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        problem_ = std::current_exception();
        failed_.store(true, std::memory_order_relaxed);
      }
    }
    // sequentially consistent with `sleepers_`: either a sleeper is seen here, or it sees what is complete
    if ((completed_.fetch_add(1) + 1) % parts_ == 0 && sleepers_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      step_completed_.notify_all();
    }
  }

  void wait_for(int step) {
    for (int spin = 0; spin < SPINS; spin++) {
      if (is_complete(step)) return;
#if defined(REGARD_X86)
      _mm_pause();
#elif defined(__aarch64__)
      __asm__ volatile("yield");
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    step_completed_.wait(lock, [&] { return is_complete(step); });
    sleepers_.fetch_sub(1);
  }

  const int steps_, parts_;
  const Part compute_;
  std::unique_ptr<std::atomic<int>[]> claimed_;  // steps of each part that somebody has begun
  std::atomic<int64_t> completed_{0};            // parts of all steps
  std::atomic<int> sleepers_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable step_completed_;
  std::exception_ptr problem_;
};

constexpr int MOST_HELPERS = 256;  // of this process: more that are late would help nobody
inline std::atomic<int> running_helpers{0};

// Computes all parts of all steps with at most `threads` threads, the calling one among them. Helpers own what they look
// at, so nobody waits for one that has not started yet; where the system refuses to start one, the others do its work.
inline void run_steps(int threads, int steps, int parts, Part compute) {
  if (threads == 1) {
    for (int step = 0; step < steps; step++)
      for (int part = 0; part < parts; part++) compute(step, part, 0);
    return;
  }
  const auto scheduler = std::make_shared<StepScheduler>(steps, parts, std::move(compute));
  for (int member = 1; member < threads; member++) {
    if (running_helpers.fetch_add(1) >= MOST_HELPERS) {
      running_helpers.fetch_sub(1);
      break;
    }
    try {
      std::thread([scheduler, member] {
        scheduler->help(member);
        running_helpers.fetch_sub(1);
      }).detach();
    } catch (const std::system_error&) {
      running_helpers.fetch_sub(1);
      break;
    }
  }
  scheduler->finish();
}

}  // namespace regard
