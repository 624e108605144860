// Rows as a matmul reads them: float32 unchanged, bf16 rounded to nearest even, bytes with a scale and zero point per
// row.
#pragma once
#include "simd.h"

namespace regard {
namespace {

inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t quiet_nan = (bits >> 16) | 64u;  // rounding could turn a NaN into infinity
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? quiet_nan : rounded);
}

inline void floats_to_bf16(const float* in, int64_t size, uint16_t* out) {
  for (int64_t i = 0; i < size; i++) out[i] = float_to_bf16(in[i]);
}

// Of each sixteen values, pairs i with i + 8 (see DecodeAttention).
inline void floats_to_bf16_paired(const float* in, int64_t size, uint16_t* out) {
  for (int64_t block = 0; block < size; block += LANES)
    for (int64_t i = 0; i < 8; i++) {
      const uint32_t low = float_to_bf16(in[block + i]);
      const uint32_t high = float_to_bf16(in[block + i + 8]);
      const uint32_t pair = low | high << 16;
      std::memcpy(out + block + 2 * i, &pair, sizeof pair);
    }
}

// Keys and values: the same bits on every instruction set.
void store_bf16(const float* in, int64_t size, bool is_paired, uint16_t* out) {
  if (is_paired)
    floats_to_bf16_paired(in, size, out);
  else
    floats_to_bf16(in, size, out);
}

inline void row_to_bf16(const float* in, int64_t padded_size, uint16_t* out) {
#if defined(__AVX512BF16__)
  for (int64_t i = 0; i < padded_size; i += LANES)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), (__m256i)_mm512_cvtneps_pbh(load(in + i).v));
#else
  floats_to_bf16(in, padded_size, out);
#endif
}

// Asymmetric: the row's range, widened to contain 0, covers all bytes, so that ReLU-like activations waste none.
inline RowQuantization row_to_bytes(const float* in, int64_t padded_size, uint8_t* out) {
  constexpr float STEPS = 254.0f;  // of 255, one is left for rounding at both ends
  Floats highs = broadcast(0);
  Floats lows = broadcast(0);
  for (int64_t i = 0; i < padded_size; i += LANES) {
    const Floats x = load(in + i);
    highs = max(highs, x);
    lows = min(lows, x);
  }
  const float low = -horizontal_max(broadcast(0) - lows);
  const float range = horizontal_max(highs) - low;
  const bool has_range = range > 1e-30f;  // the inverse of less overflows
  const float factor = has_range ? STEPS / range : 0.0f;
  // zero point: a whole number, at most 128 from the middle of the bytes
  const float zero = ((ROUNDING_SHIFT - low * factor) - ROUNDING_SHIFT) - 128.0f;
  const Floats factors = broadcast(factor);
  const Floats shift = broadcast(ROUNDING_SHIFT + zero);
  for (int64_t i = 0; i < padded_size; i += LANES) store_bytes(out + i, load(in + i) * factors + shift);
  return {.scale = has_range ? range / STEPS : 0.0f, .offset = zero / 128.0f};
}

// `in` is padded with zeros to whole blocks, and so is `out`.
RowQuantization quantize_row(const float* in, int64_t size, int precision, void* out) {
  const int64_t padded_size = (size + LANES - 1) / LANES * LANES;
  if (precision == INT8) return row_to_bytes(in, padded_size, static_cast<uint8_t*>(out));
  if (precision == BF16)
    row_to_bf16(in, padded_size, static_cast<uint16_t*>(out));
  else
    std::memcpy(out, in, sizeof(float) * static_cast<size_t>(padded_size));
  return {.scale = 1.0f, .offset = 0.0f};
}

}  // namespace
}  // namespace regard
