// Layer norm of one row (Ba et al. 2016).
#pragma once
#include "vector.h"

namespace regard {
namespace {

// `in` and `out` are padded to whole blocks; what is padded becomes zero.
void norm(const float* in, int width, const float* weight, const float* bias, float epsilon, float* out) {
  Floats total = spread(0);
  const int whole = width / LANES * LANES, rest = width - whole;
  for (int i = 0; i < whole; i += LANES) total = total + load(in + i);
  if (rest) total = total + load_part(in + whole, rest);
  const Floats mean = spread(sum(total) / static_cast<float>(width));
  Floats squares = spread(0);
  for (int i = 0; i < whole; i += LANES) {
    const Floats away = load(in + i) - mean;
    squares = squares + away * away;
  }
  if (rest) {
    float room[LANES];
    store(room, load_part(in + whole, rest) - mean);
    const Floats away = load_part(room, rest);
    squares = squares + away * away;
  }
  const Floats factor = spread(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(width) + epsilon));
  for (int i = 0; i < width; i += LANES)
    store(out + i, (load(in + i) - mean) * factor * load(weight + i) + load(bias + i));
}

}  // namespace
}  // namespace regard
