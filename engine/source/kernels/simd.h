// Vectors of sixteen floats, one interface for every instruction set.
//
// Nothing is contracted to a fused multiply-add except `fma`, and horizontal sums have one fixed order: int8 and
// attention give the same bits on every set.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../types.h"
#include "vnni.h"

#define REGARD_UNROLL _Pragma("GCC unroll 8")
#define REGARD_UNROLL_16 _Pragma("GCC unroll 16")

namespace regard {
namespace {

// 1.5 · 2²³: a float of this size has no fraction bits. Adding it rounds to a whole number, held in the low mantissa
// bits.
constexpr float ROUNDING_SHIFT = 12582912.0f;

// Names: `Floats` and `Ints` are sixteen lanes; `a`, `b`, `x`, `y` vectors. `load_paired` reads bf16 of which lane i
// shares 32 bits with lane i + 8. `power_of_two` gives 2ⁿ and `store_bytes` stores n + 128, both for n +
// ROUNDING_SHIFT. `fold_sum` and `fold_max` combine lanes i and i + 8.

#if defined(__AVX512F__)

struct Floats {
  __m512 v;
};
inline Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a.v); }
inline Floats load(const uint16_t* bf16) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Floats load_paired(const uint16_t* bf16) {
  const __m512i pairs = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16)));
  const __m512i shifts = _mm512_setr_epi32(16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_sllv_epi32(pairs, shifts), high_half))};
}
inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
inline Floats load_partial(const float* from, int64_t count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), from)};
}
inline void store_partial(float* to, Floats a, int64_t count) { _mm512_mask_storeu_ps(to, first_lanes(count), a.v); }
inline Floats broadcast(float value) { return {_mm512_set1_ps(value)}; }
struct Ints {
  __m512i v;
};
inline Ints load(const int32_t* from) { return {_mm512_loadu_si512(from)}; }
inline void store(int32_t* to, Ints a) { _mm512_storeu_si512(to, a.v); }
inline Floats to_float(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats abs(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats copysign(Floats a, Floats sign) {
  const __m512i bit = _mm512_set1_epi32(INT32_MIN);
  constexpr int SELECT = 0xca;  // truth table of bit ? sign : a
  const __m512i signs = _mm512_castps_si512(sign.v);
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(bit, signs, _mm512_castps_si512(a.v), SELECT))};
}
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline unsigned greater_mask(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline Floats power_of_two(Floats shifted) {
  const __m512i zero = _mm512_castps_si512(_mm512_set1_ps(ROUNDING_SHIFT));
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(shifted.v), zero);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23))};
}
inline void store_bytes(uint8_t* to, Floats shifted) {
  const __m512i n = _mm512_add_epi32(_mm512_castps_si512(shifted.v), _mm512_set1_epi32(128));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(n));
}
inline __m256 fold_sum(Floats a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
inline __m256 fold_max(Floats a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#elif defined(__AVX2__)

struct Floats {
  __m256 a, b;
};
inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline __m256 load_eight(const uint16_t* bf16) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Floats load(const uint16_t* bf16) { return {load_eight(bf16), load_eight(bf16 + 8)}; }
inline Floats load_paired(const uint16_t* bf16) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16));
  const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(_mm256_and_si256(pairs, high_half))};
}
inline void store(float* to, Floats x) {
  _mm256_storeu_ps(to, x.a);
  _mm256_storeu_ps(to + 8, x.b);
}
inline Floats broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
struct Ints {
  __m256i a, b;
};
inline Ints load(const int32_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 8))};
}
inline void store(int32_t* to, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), x.b);
}
inline Floats to_float(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Floats operator+(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats operator-(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats operator*(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats operator/(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Floats abs(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Floats copysign(Floats x, Floats y) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, y.a)),
          _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, y.b))};
}
inline Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline unsigned greater_mask(Floats x, Floats y) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ))) |
         static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))) << 8;
}
inline __m256 power_of_two(__m256 shifted) {
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(ROUNDING_SHIFT)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline Floats power_of_two(Floats shifted) { return {power_of_two(shifted.a), power_of_two(shifted.b)}; }
inline void store_bytes(uint8_t* to, Floats shifted) {
  const __m256i low_byte = _mm256_set1_epi32(255);
  const __m256i offset = _mm256_set1_epi32(128);
  const __m256i a = _mm256_and_si256(_mm256_add_epi32(_mm256_castps_si256(shifted.a), offset), low_byte);
  const __m256i b = _mm256_and_si256(_mm256_add_epi32(_mm256_castps_si256(shifted.b), offset), low_byte);
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
inline __m256 fold_sum(Floats x) { return _mm256_add_ps(x.a, x.b); }
inline __m256 fold_max(Floats x) { return _mm256_max_ps(x.a, x.b); }

#else

typedef float Quad __attribute__((vector_size(16)));
typedef int32_t QuadInts __attribute__((vector_size(16)));
struct Floats {
  Quad q[4];
};
// Returns `expression`, computed for each quarter i.
#define REGARD_MAP_QUADS(expression)                       \
  Floats mapped;                                           \
  for (int i = 0; i < 4; i++) mapped.q[i] = (expression); \
  return mapped
inline Floats load(const float* from) {
  Floats a;
  std::memcpy(&a, from, sizeof a);
  return a;
}
inline Floats load(const uint16_t* bf16) {
  uint32_t bits[LANES];
  for (int i = 0; i < LANES; i++) bits[i] = static_cast<uint32_t>(bf16[i]) << 16;
  Floats a;
  std::memcpy(&a, bits, sizeof a);
  return a;
}
inline Floats load_paired(const uint16_t* bf16) {
  uint32_t bits[LANES];
  for (int i = 0; i < LANES; i++) bits[i] = static_cast<uint32_t>(bf16[2 * (i % 8) + i / 8]) << 16;
  Floats a;
  std::memcpy(&a, bits, sizeof a);
  return a;
}
inline void store(float* to, Floats a) { std::memcpy(to, &a, sizeof a); }
inline Floats broadcast(float value) { REGARD_MAP_QUADS((Quad{value, value, value, value})); }
struct Ints {
  int32_t n[LANES];
};
inline Ints load(const int32_t* from) {
  Ints a;
  std::memcpy(&a, from, sizeof a);
  return a;
}
inline void store(int32_t* to, Ints a) { std::memcpy(to, &a, sizeof a); }
inline Floats to_float(Ints a) {
  float lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = static_cast<float>(a.n[i]);
  return load(lanes);
}
inline Floats operator+(Floats a, Floats b) { REGARD_MAP_QUADS(a.q[i] + b.q[i]); }
inline Floats operator-(Floats a, Floats b) { REGARD_MAP_QUADS(a.q[i] - b.q[i]); }
inline Floats operator*(Floats a, Floats b) { REGARD_MAP_QUADS(a.q[i] * b.q[i]); }
inline Floats operator/(Floats a, Floats b) { REGARD_MAP_QUADS(a.q[i] / b.q[i]); }
inline Quad select(QuadInts where, Quad a, Quad b) { return (Quad)(((QuadInts)a & where) | ((QuadInts)b & ~where)); }
inline Floats max(Floats a, Floats b) { REGARD_MAP_QUADS(select(a.q[i] > b.q[i], a.q[i], b.q[i])); }
inline Floats min(Floats a, Floats b) { REGARD_MAP_QUADS(select(a.q[i] < b.q[i], a.q[i], b.q[i])); }
inline Floats abs(Floats a) { REGARD_MAP_QUADS((Quad)((QuadInts)a.q[i] & INT32_MAX)); }
inline Floats copysign(Floats a, Floats b) {
  REGARD_MAP_QUADS((Quad)(((QuadInts)a.q[i] & INT32_MAX) | ((QuadInts)b.q[i] & INT32_MIN)));
}
inline Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
inline unsigned greater_mask(Floats a, Floats b) {
  unsigned mask = 0;
  for (int i = 0; i < LANES; i++) mask |= static_cast<unsigned>(a.q[i / 4][i % 4] > b.q[i / 4][i % 4]) << i;
  return mask;
}
inline Floats power_of_two(Floats shifted) {
  const QuadInts zero = (QuadInts)Quad{ROUNDING_SHIFT, ROUNDING_SHIFT, ROUNDING_SHIFT, ROUNDING_SHIFT};
  REGARD_MAP_QUADS((Quad)(((QuadInts)shifted.q[i] - zero + 127) << 23));
}
inline void store_bytes(uint8_t* to, Floats shifted) {
  for (int i = 0; i < LANES; i++) {
    const uint32_t bits = static_cast<uint32_t>(((QuadInts)shifted.q[i / 4])[i % 4]);  // of a NaN, any
    to[i] = static_cast<uint8_t>(bits + 128u);
  }
}
inline float horizontal_sum(Floats a) {
  const Quad s = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}
inline float horizontal_max(Floats a) {
  float highest = a.q[0][0];
  for (int i = 1; i < LANES; i++) highest = a.q[i / 4][i % 4] > highest ? a.q[i / 4][i % 4] : highest;
  return highest;
}

#endif

#if defined(__AVX2__)
// Adds lanes i and i + 8, then i + 4, i + 2, i + 1.
inline float horizontal_sum(Floats a) {
  const __m256 eight = fold_sum(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float horizontal_max(Floats a) {
  const __m256 eight = fold_max(a);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#endif

// Horizontal sums of sixteen vectors, transposed on the way; each in the order of `horizontal_sum`.
#if defined(__AVX512F__)
// [sums of a, sums of b]: of their halves, or of the quarters of their halves.
inline __m512 add_halves(__m512 a, __m512 b, bool of_quarters) {
  return of_quarters ? _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd))
             : _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
inline Floats horizontal_sums(const Floats* a) {
  __m512 four[4];
  for (int i = 0; i < 4; i++) {  // a quarter of each: vectors 4i, 4i + 1, 4i + 2, 4i + 3
    const __m512 left = add_halves(a[4 * i].v, a[4 * i + 1].v, false);
    const __m512 right = add_halves(a[4 * i + 2].v, a[4 * i + 3].v, false);
    four[i] = add_halves(left, right, true);
  }
  __m512 two[2];
  for (int i = 0; i < 2; i++)
    two[i] = _mm512_add_ps(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                           _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
  const __m512 one = _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
  // lane 4q + i is now the sum of vector 4i + q
  return {_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), one)};
}
#elif defined(__AVX2__)
inline __m256 eight_sums(const Floats* a) {
  __m256 four[4];
  __m256 two[2];
  REGARD_UNROLL for (int i = 0; i < 4; i++) {  // halves of vectors i and i + 4
    const __m256 left = fold_sum(a[i]);
    const __m256 right = fold_sum(a[i + 4]);
    four[i] = _mm256_add_ps(_mm256_permute2f128_ps(left, right, 0x20), _mm256_permute2f128_ps(left, right, 0x31));
  }
  REGARD_UNROLL for (int i = 0; i < 2; i++)
    two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                           _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
  return _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));
}
inline Floats horizontal_sums(const Floats* a) { return {eight_sums(a), eight_sums(a + 8)}; }
#else
inline Floats horizontal_sums(const Floats* a) {
  float lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = horizontal_sum(a[i]);
  return load(lanes);
}
#endif

#if !defined(__AVX512F__)
inline Floats load_partial(const float* from, int64_t count) {
  float lanes[LANES] = {};
  std::memcpy(lanes, from, sizeof(float) * static_cast<size_t>(count));
  return load(lanes);
}
inline void store_partial(float* to, Floats a, int64_t count) {
  float lanes[LANES];
  store(lanes, a);
  std::memcpy(to, lanes, sizeof(float) * static_cast<size_t>(count));
}
#endif

inline Floats load_partial(const uint16_t* bf16, int64_t count) {
  uint16_t lanes[LANES] = {};
  std::memcpy(lanes, bf16, sizeof(uint16_t) * static_cast<size_t>(count));
  return load(lanes);
}

// eˣ for x up to 88, within a few units in the last place; inputs below -87 give about 2⁻¹²⁶.
// eˣ = 2ⁿ · 2ʳ with n + r = x · log₂e and |r| ≤ ½; 2ʳ by a polynomial with error below 1e-7.
inline Floats exp(Floats x) {
  const Floats t = max(x * broadcast(1.44269504f), broadcast(-126.0f));
  const Floats shifted = t + broadcast(ROUNDING_SHIFT);
  const Floats r = t - (shifted - broadcast(ROUNDING_SHIFT));
  Floats p = broadcast(1.32647273e-3f);
  p = p * r + broadcast(9.67151299e-3f);
  p = p * r + broadcast(5.55073358e-2f);
  p = p * r + broadcast(2.40222424e-1f);
  p = p * r + broadcast(6.93147004e-1f);
  p = p * r + broadcast(1.0f);
  return p * power_of_two(shifted);
}

}  // namespace
}  // namespace regard
