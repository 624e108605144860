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

// Every value is made of all values of the step before: a part that is computed twice, too early or not at all shows.
std::vector<uint32_t> run(int threads, int steps, int parts, int late_member) {
  std::vector<uint32_t> values[2];
  values[0].assign(static_cast<size_t>(parts), 1);
  values[1] = values[0];
  regard::run_steps(threads, steps, parts, [&](int step, int part, int member) {
    const std::vector<uint32_t>& before = values[step % 2];
    uint32_t value = static_cast<uint32_t>(step * parts + part);
    for (size_t i = 0; i < before.size(); i++) value = value * 31 + before[i] * static_cast<uint32_t>(i + 1);
    if (member == late_member) std::this_thread::sleep_for(std::chrono::microseconds(200));  // others fall asleep
    uint32_t& made = values[(step + 1) % 2][static_cast<size_t>(part)];
    made = value + made * 7;
  });
  return values[steps % 2];
}

}  // namespace

int more_than_cores() { return 4 * static_cast<int>(std::thread::hardware_concurrency()) + 1; }

void check_parallel() {
  for (int turn = 0; turn < 40; turn++) {
    const int steps = drawn(1, 12), parts = drawn(1, 70);
    const std::vector<uint32_t> expected = run(1, steps, parts, -1);
    for (int threads : {2, 3, more_than_cores()})
      for (int late_member : {-1, 0, 1})
        expect(run(threads, steps, parts, late_member) == expected, "threads change nothing, however late they are");
  }
  for (int threads : {1, 2, more_than_cores()}) {
    std::string told;
    try {
      regard::run_steps(threads, 5, 9, [](int step, int part, int) {
        if (step == 2 && part == 3) throw std::runtime_error("part 3");
        if (step > 2) throw std::runtime_error("a step after one that failed");
      });
    } catch (const std::runtime_error& error) {
      told = error.what();
    }
    expect(told == "part 3", "what a part throws reaches the caller");
  }
}

void wait_for_helpers() {
#if defined(__linux__)
  for (int milliseconds = 0; milliseconds < 10'000; milliseconds++) {  // a sanitizer may have a thread of its own
    int entries = 0;
    DIR* threads = opendir("/proc/self/task");
    if (!threads) return;
    while (readdir(threads)) entries++;
    closedir(threads);
    if (entries <= 3) return;  // itself, its parent folder and one thread
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
#endif
}
