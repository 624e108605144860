// Norms of one row: layer norm (Ba et al. 2016) and RMS norm (Zhang & Sennrich 2019).
#pragma once
#include "simd.h"

namespace regard {
namespace {

// `in` and `out` are padded to whole blocks. Weight and bias are padded with zeros, and so the padding of `out` is
// zero.
void layer_norm(const float* in, int64_t size, const float* weight, const float* bias, float eps, float* out) {
  const int64_t full = size / LANES * LANES;
  const int64_t tail = size - full;
  Floats total = broadcast(0);
  for (int64_t i = 0; i < full; i += LANES) total = total + load(in + i);
  if (tail) total = total + load_partial(in + full, tail);
  const Floats mean = broadcast(horizontal_sum(total) / static_cast<float>(size));
  Floats squares = broadcast(0);
  for (int64_t i = 0; i < full; i += LANES) {
    const Floats deviation = load(in + i) - mean;
    squares = squares + deviation * deviation;
  }
  if (tail) {
    float deviations[LANES];
    store(deviations, load_partial(in + full, tail) - mean);
    const Floats deviation = load_partial(deviations, tail);  // 0, not -mean, in the padding
    squares = squares + deviation * deviation;
  }
  const float variance = horizontal_sum(squares) / static_cast<float>(size);
  const Floats inverse_std = broadcast(1.0f / __builtin_sqrtf(variance + eps));
  for (int64_t i = 0; i < size; i += LANES)
    store(out + i, (load(in + i) - mean) * inverse_std * load(weight + i) + load(bias + i));
}

// As `layer_norm`, without mean and bias.
void rms_norm(const float* in, int64_t size, const float* weight, float eps, float* out) {
  const int64_t full = size / LANES * LANES;
  const int64_t tail = size - full;
  Floats squares = broadcast(0);
  for (int64_t i = 0; i < full; i += LANES) squares = squares + load(in + i) * load(in + i);
  if (tail) {
    const Floats values = load_partial(in + full, tail);
    squares = squares + values * values;
  }
  const float mean_square = horizontal_sum(squares) / static_cast<float>(size);
  const Floats inverse_rms = broadcast(1.0f / __builtin_sqrtf(mean_square + eps));
  for (int64_t i = 0; i < size; i += LANES) store(out + i, load(in + i) * inverse_rms * load(weight + i));
}

}  // namespace
}  // namespace regard
