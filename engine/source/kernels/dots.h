// The 8-bit dot products that some processors with AVX2 have (AVX-VNNI): exact, and nothing saturates.
#pragma once
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if (defined(__AVXVNNI__) && !defined(__AVX512F__)) || defined(REGARD_EMULATED_DOTS)
#define REGARD_DOTS

namespace regard {
namespace {

// Eight sums, each of four more products: of bytes without signs and weights with signs.
inline __m256i add_dots(__m256i sums, __m256i bytes, __m256i weights) {
#if defined(REGARD_EMULATED_DOTS)
  int32_t made[8];
  uint8_t left[32];
  int8_t right[32];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(made), sums);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(left), bytes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(right), weights);
  for (int i = 0; i < 32; i++) made[i / 4] += left[i] * right[i];
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(made));
#else
  return _mm256_dpbusd_avx_epi32(sums, bytes, weights);
#endif
}

}  // namespace
}  // namespace regard

#endif
