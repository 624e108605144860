// Random values, the same in every run, and the assertion of the test program.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

inline std::mt19937 rng(7);

// Uniform from `low` to `high`, both included.
inline int random_int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); }

inline std::vector<float> random_normal(int64_t count, float mean, float deviation) {
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

inline int64_t pad_to_block(int64_t size) { return (size + 15) / 16 * 16; }

inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}
