// Rows as products read them: float32 as they are, bf16 rounded to even, bytes by the row's own scale and zero.
#pragma once
#include "vector.h"

namespace regard {
namespace {

inline uint16_t rounded_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t quiet = (bits >> 16) | 64u, rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline void halve_all(const float* in, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; i++) out[i] = rounded_half(in[i]);
}

// Of each sixteen numbers, each of the first eight beside its fellow of the last eight.
inline void halve_pairs(const float* in, size_t count, uint16_t* out) {
  for (size_t at = 0; at < count; at += LANES)
    for (size_t i = 0; i < 8; i++) {
      const uint32_t both = rounded_half(in[at + i]) | static_cast<uint32_t>(rounded_half(in[at + i + 8])) << 16;
      std::memcpy(out + at + 2 * i, &both, sizeof both);
    }
}

// Keys or values, the same bits on every instruction set.
void keep(const float* in, size_t count, bool paired, uint16_t* out) {
  paired ? halve_pairs(in, count, out) : halve_all(in, count, out);
}

inline void halve(const float* in, int padded, uint16_t* out) {
#if defined(__AVX512BF16__)
  for (int i = 0; i < padded; i += LANES)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), (__m256i)_mm512_cvtneps_pbh(load(in + i).v));
#else
  halve_all(in, static_cast<size_t>(padded), out);
#endif
}

// The row's numbers, and 0 among them, are spread over all bytes: activations that are never far below 0 waste none.
inline Bytes quantise(const float* in, int padded, uint8_t* out) {
  Floats most = spread(0), least = spread(0);
  for (int i = 0; i < padded; i += LANES) {
    const Floats x = load(in + i);
    most = larger(most, x), least = smaller(least, x);
  }
  const float low = -largest(spread(0) - least), size = largest(most) - low;
  const bool real = size > 1e-30f;  // smaller ones have no factor
  const float factor = real ? 254.0f / size : 0.0f;  // of 255, one is for rounding at both ends
  const float zero = ((SHIFT - low * factor) - SHIFT) - 128.0f;
  const Floats times = spread(factor), shift = spread(SHIFT + zero);
  for (int i = 0; i < padded; i += LANES) store_bytes(out + i, load(in + i) * times + shift);
  return {real ? size / 254.0f : 0.0f, zero / 128.0f};
}

// `in` is padded with zeros to whole blocks, and so is `out`.
Bytes prepare(const float* in, int width, int precision, void* out) {
  const int padded = (width + LANES - 1) / LANES * LANES;
  if (precision == INT8) return quantise(in, padded, static_cast<uint8_t*>(out));
  if (precision == BF16) {
    halve(in, padded, static_cast<uint16_t*>(out));
  } else {
    std::memcpy(out, in, sizeof(float) * static_cast<size_t>(padded));
  }
  return {1.0f, 0.0f};
}

}  // namespace
}  // namespace regard
