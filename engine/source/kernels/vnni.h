// 8-bit dot products of AVX-VNNI, beside AVX2: exact, nothing saturates.
#pragma once
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if (defined(__AVXVNNI__) && !defined(__AVX512F__)) || defined(REGARD_EMULATED_VNNI)
#define REGARD_HAS_VNNI

namespace regard {
namespace {

// Adds four products of unsigned bytes and signed weights to each of eight sums.
inline __m256i dot_bytes(__m256i sums, __m256i bytes, __m256i weights) {
#if defined(REGARD_EMULATED_VNNI)
  uint32_t totals[8];  // they wrap
  uint8_t left[32];
  int8_t right[32];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(totals), sums);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(left), bytes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(right), weights);
  for (int i = 0; i < 32; i++) totals[i / 4] += static_cast<uint32_t>(left[i] * right[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(totals));
#else
  return _mm256_dpbusd_avx_epi32(sums, bytes, weights);
#endif
}

}  // namespace
}  // namespace regard

#endif
