// Rows as products read them: float32 as they are, bf16 rounded to even, bytes by the row's own scale.
#pragma once
#include "vector.h"

namespace regard {
namespace {

inline uint16_t rounded_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 64u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float quantise(const float* in, int padded, uint8_t* out) {
  Floats most = spread(0);
  for (int i = 0; i < padded; i += LANES) most = larger(most, magnitude(load(in + i)));
  const float size = largest(most);
  const bool real = size > 1e-30f;  // smaller ones have no factor
  const Floats factor = spread(real ? 127.0f / size : 0.0f), shift = spread(SHIFT);
  for (int i = 0; i < padded; i += LANES) store_bytes(out + i, load(in + i) * factor + shift);
  return real ? size / 127.0f : 0.0f;
}

// `in` is padded with zeros to whole blocks, and so is `out`.
float prepare(const float* in, int width, int precision, void* out) {
  const int padded = (width + LANES - 1) / LANES * LANES;
  if (precision == INT8) return quantise(in, padded, static_cast<uint8_t*>(out));
  if (precision == BF16) {
    uint16_t* halves = static_cast<uint16_t*>(out);
    for (int i = 0; i < padded; i++) halves[i] = rounded_half(in[i]);
  } else {
    std::memcpy(out, in, sizeof(float) * static_cast<size_t>(padded));
  }
  return 1.0f;
}

}  // namespace
}  // namespace regard
