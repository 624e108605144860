#include "check_parallel.h"

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <dirent.h>
#endif

#include "../source/parallel.h"
#include "expect.h"

namespace {

// Every value depends on all values of the previous step: a part computed twice, too early or not at all shows.
std::vector<uint32_t> run(int64_t num_threads, int64_t num_steps, int64_t num_parts, int64_t late_member) {
  std::vector<uint32_t> values[2];
  values[0].assign(num_parts, 1);
  values[1] = values[0];
  regard::run_steps(num_threads, num_steps, num_parts, [&](int64_t step, int64_t part, int64_t member) {
    const std::vector<uint32_t>& previous = values[step % 2];
    uint32_t value = static_cast<uint32_t>(step * num_parts + part);
    for (int64_t i = 0; i < std::ssize(previous); i++) value = value * 31 + previous[i] * static_cast<uint32_t>(i + 1);
    if (member == late_member) std::this_thread::sleep_for(std::chrono::microseconds(200));  // the others fall asleep
    uint32_t& next = values[(step + 1) % 2][part];
    next = value + next * 7;
  });
  return values[num_steps % 2];
}

void check_results() {
  for (int i = 0; i < 40; i++) {
    const int num_steps = random_int(1, 12);
    const int num_parts = random_int(1, 70);
    const std::vector<uint32_t> expected = run(1, num_steps, num_parts, -1);
    for (int num_threads : {2, 3, more_than_cores()})
      for (int late_member : {-1, 0, 1})
        expect(run(num_threads, num_steps, num_parts, late_member) == expected,
               "threads change nothing, however late they are");
  }
}

void check_errors() {
  for (int num_threads : {1, 2, more_than_cores()}) {
    std::string message;
    try {
      regard::run_steps(num_threads, 5, 9, [](int64_t step, int64_t part, int64_t) {
        if (step == 2 && part == 3) throw std::runtime_error("part 3");
        if (step > 2) throw std::runtime_error("a step after one that failed");
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    expect(message == "part 3", "the exception of a part reaches the caller");
  }
}

}  // namespace

int more_than_cores() { return 4 * static_cast<int>(std::thread::hardware_concurrency()) + 1; }

void check_parallel() {
  check_results();
  check_errors();
}

void wait_for_helpers() {
#if defined(__linux__)
  // bounded: a sanitizer may have a thread of its own
  for (int milliseconds = 0; milliseconds < 10'000; milliseconds++) {
    int num_entries = 0;
    DIR* threads = opendir("/proc/self/task");
    if (!threads) return;
    while (readdir(threads)) num_entries++;
    closedir(threads);
    if (num_entries <= 3) return;  // ".", ".." and one thread
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
#endif
}
