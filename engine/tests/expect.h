// Chance, the same on every run, and the end of the test program where something is wrong.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <random>

inline std::mt19937 chance(7);

inline int drawn(int low, int high) { return std::uniform_int_distribution<int>(low, high)(chance); }

inline void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}
