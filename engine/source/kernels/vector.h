// Sixteen numbers at a time, alike on every instruction set: nothing is fused unless it says so, and sums have one
// fixed order, so that all sets give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dots.h"

#define REGARD_UNROLL _Pragma("GCC unroll 8")
#define REGARD_UNROLL_16 _Pragma("GCC unroll 16")

namespace regard {
namespace {

constexpr float SHIFT = 12582912.0f;  // 1.5 · 2²³: adding it rounds to whole numbers, which then stand in the low bits

#if defined(__AVX512F__)

struct Floats {
  __m512 v;
};
inline Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline void store(float* to, Floats a) { _mm512_storeu_ps(to, a.v); }
inline Floats load(const uint16_t* halves) {  // bf16
  const __m256i read = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(read), 16))};
}
inline Floats load_paired(const uint16_t* halves) {
  const __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
  const __m512i up = _mm512_setr_epi32(16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_sllv_epi32(twice, up), high))};
}
inline Floats load_part(const float* from, int count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from)};
}
inline void store_part(float* to, Floats a, int count) {
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), a.v);
}
inline Floats spread(float value) { return {_mm512_set1_ps(value)}; }
struct Wholes {
  __m512i v;
};
inline Wholes load(const int32_t* from) { return {_mm512_loadu_si512(from)}; }
inline void store(int32_t* to, Wholes a) { _mm512_storeu_si512(to, a.v); }
inline Floats converted(Wholes a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats magnitude(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats with_sign(Floats a, Floats sign) {
  const __m512i bit = _mm512_set1_epi32(INT32_MIN);
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign.v), _mm512_castps_si512(a.v), 0xca))};
}
inline Floats fused(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline unsigned above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline Floats power_of_two(Floats shifted) {  // 2ⁿ for n + SHIFT
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(shifted.v), _mm512_castps_si512(_mm512_set1_ps(SHIFT)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23))};
}
inline void store_bytes(uint8_t* to, Floats shifted) {  // n + 128 for n + SHIFT
  const __m512i n = _mm512_add_epi32(_mm512_castps_si512(shifted.v), _mm512_set1_epi32(128));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(n));
}
inline __m256 half_sum(Floats a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
inline __m256 half_largest(Floats a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#elif defined(__AVX2__)

struct Floats {
  __m256 a, b;
};
inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline __m256 widened(const uint16_t* halves) {
  const __m128i read = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(read), 16));
}
inline Floats load(const uint16_t* halves) { return {widened(halves), widened(halves + 8)}; }
inline Floats load_paired(const uint16_t* halves) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(_mm256_and_si256(pairs, high))};
}
inline void store(float* to, Floats x) {
  _mm256_storeu_ps(to, x.a);
  _mm256_storeu_ps(to + 8, x.b);
}
inline Floats spread(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
struct Wholes {
  __m256i a, b;
};
inline Wholes load(const int32_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 8))};
}
inline void store(int32_t* to, Wholes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), x.b);
}
inline Floats converted(Wholes x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Floats operator+(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats operator-(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats operator*(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats operator/(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Floats larger(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats smaller(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Floats magnitude(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Floats with_sign(Floats x, Floats y) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, y.a)),
          _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, y.b))};
}
inline Floats fused(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline unsigned above(Floats x, Floats y) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ))) |
         static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))) << 8;
}
inline __m256 power_of_two(__m256 shifted) {
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(SHIFT)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline Floats power_of_two(Floats shifted) { return {power_of_two(shifted.a), power_of_two(shifted.b)}; }
inline void store_bytes(uint8_t* to, Floats shifted) {
  const __m256i byte = _mm256_set1_epi32(255), half = _mm256_set1_epi32(128);
  const __m256i a = _mm256_and_si256(_mm256_add_epi32(_mm256_castps_si256(shifted.a), half), byte);
  const __m256i b = _mm256_and_si256(_mm256_add_epi32(_mm256_castps_si256(shifted.b), half), byte);
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
inline __m256 half_sum(Floats x) { return _mm256_add_ps(x.a, x.b); }
inline __m256 half_largest(Floats x) { return _mm256_max_ps(x.a, x.b); }

#else

typedef float Quad __attribute__((vector_size(16)));
typedef int32_t QuadInts __attribute__((vector_size(16)));
struct Floats {
  Quad q[4];
};
#define REGARD_EACH(expression) \
  Floats made;                  \
  for (int i = 0; i < 4; i++) made.q[i] = (expression); \
  return made
inline Floats load(const float* from) {
  Floats made;
  std::memcpy(&made, from, sizeof made);
  return made;
}
inline Floats load(const uint16_t* halves) {
  uint32_t made[LANES];
  for (int i = 0; i < LANES; i++) made[i] = static_cast<uint32_t>(halves[i]) << 16;
  Floats numbers;
  std::memcpy(&numbers, made, sizeof numbers);
  return numbers;
}
inline Floats load_paired(const uint16_t* halves) {
  uint32_t made[LANES];
  for (int i = 0; i < LANES; i++) made[i] = static_cast<uint32_t>(halves[2 * (i % 8) + i / 8]) << 16;
  Floats numbers;
  std::memcpy(&numbers, made, sizeof numbers);
  return numbers;
}
inline void store(float* to, Floats a) { std::memcpy(to, &a, sizeof a); }
inline Floats spread(float value) { REGARD_EACH((Quad{value, value, value, value})); }
struct Wholes {
  int32_t n[LANES];
};
inline Wholes load(const int32_t* from) {
  Wholes made;
  std::memcpy(&made, from, sizeof made);
  return made;
}
inline void store(int32_t* to, Wholes a) { std::memcpy(to, &a, sizeof a); }
inline Floats converted(Wholes a) {
  float made[LANES];
  for (int i = 0; i < LANES; i++) made[i] = static_cast<float>(a.n[i]);
  return load(made);
}
inline Floats operator+(Floats a, Floats b) { REGARD_EACH(a.q[i] + b.q[i]); }
inline Floats operator-(Floats a, Floats b) { REGARD_EACH(a.q[i] - b.q[i]); }
inline Floats operator*(Floats a, Floats b) { REGARD_EACH(a.q[i] * b.q[i]); }
inline Floats operator/(Floats a, Floats b) { REGARD_EACH(a.q[i] / b.q[i]); }
inline Quad chosen(QuadInts where, Quad a, Quad b) { return (Quad)(((QuadInts)a & where) | ((QuadInts)b & ~where)); }
inline Floats larger(Floats a, Floats b) { REGARD_EACH(chosen(a.q[i] > b.q[i], a.q[i], b.q[i])); }
inline Floats smaller(Floats a, Floats b) { REGARD_EACH(chosen(a.q[i] < b.q[i], a.q[i], b.q[i])); }
inline Floats magnitude(Floats a) { REGARD_EACH((Quad)((QuadInts)a.q[i] & INT32_MAX)); }
inline Floats with_sign(Floats a, Floats b) {
  REGARD_EACH((Quad)(((QuadInts)a.q[i] & INT32_MAX) | ((QuadInts)b.q[i] & INT32_MIN)));
}
inline Floats fused(Floats a, Floats b, Floats c) { return a * b + c; }
inline unsigned above(Floats a, Floats b) {
  unsigned found = 0;
  for (int i = 0; i < 16; i++) found |= static_cast<unsigned>(a.q[i / 4][i % 4] > b.q[i / 4][i % 4]) << i;
  return found;
}
inline Floats power_of_two(Floats shifted) {
  const QuadInts none = (QuadInts)Quad{SHIFT, SHIFT, SHIFT, SHIFT};
  REGARD_EACH((Quad)(((QuadInts)shifted.q[i] - none + 127) << 23));
}
inline void store_bytes(uint8_t* to, Floats shifted) {
  for (int i = 0; i < 16; i++) to[i] = static_cast<uint8_t>(((QuadInts)shifted.q[i / 4])[i % 4] + 128);
}
inline float sum(Floats a) {
  const Quad s = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}
inline float largest(Floats a) {
  float found = a.q[0][0];
  for (int i = 1; i < 16; i++) found = a.q[i / 4][i % 4] > found ? a.q[i / 4][i % 4] : found;
  return found;
}

#endif

#if defined(__AVX2__)
inline float sum(Floats a) {  // lane i and i + 8, then i + 4, i + 2, i + 1
  const __m256 eight = half_sum(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Floats a) {
  const __m256 eight = half_largest(a);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#endif

// The sums of sixteen vectors, each in the order of `sum`.
#if defined(__AVX512F__)
inline __m512 added(__m512 a, __m512 b, int low) {  // halves of a and b: [a's sums, b's sums]
  return low ? _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd))
             : _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
inline Floats sums(const Floats* a) {
  __m512 four[4];
  for (int i = 0; i < 4; i++)  // a quarter of each: vectors 4i, 4i + 1, 4i + 2, 4i + 3
    four[i] = added(added(a[4 * i].v, a[4 * i + 1].v, 0), added(a[4 * i + 2].v, a[4 * i + 3].v, 0), 1);
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
  __m256 four[4], two[2];
  REGARD_UNROLL for (int i = 0; i < 4; i++) {  // halves of vectors i and i + 4
    const __m256 left = half_sum(a[i]), right = half_sum(a[i + 4]);
    four[i] = _mm256_add_ps(_mm256_permute2f128_ps(left, right, 0x20), _mm256_permute2f128_ps(left, right, 0x31));
  }
  REGARD_UNROLL for (int i = 0; i < 2; i++)
    two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                           _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
  return _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));
}
inline Floats sums(const Floats* a) { return {eight_sums(a), eight_sums(a + 8)}; }
#else
inline Floats sums(const Floats* a) {
  float made[LANES];
  for (int i = 0; i < LANES; i++) made[i] = sum(a[i]);
  return load(made);
}
#endif

#if !defined(__AVX512F__)
inline Floats load_part(const float* from, int count) {
  float room[LANES] = {};
  std::memcpy(room, from, sizeof(float) * static_cast<size_t>(count));
  return load(room);
}
inline void store_part(float* to, Floats a, int count) {
  float room[LANES];
  store(room, a);
  std::memcpy(to, room, sizeof(float) * static_cast<size_t>(count));
}
#endif

inline Floats load_part(const uint16_t* halves, int count) {
  uint16_t room[LANES] = {};
  std::memcpy(room, halves, sizeof(uint16_t) * static_cast<size_t>(count));
  return load(room);
}

// eˣ for x of at most 88, within a few units of the last place where it is not negligible; below -87 as good as nothing.
inline Floats exponential(Floats x) {
  const Floats t = larger(x * spread(1.44269504f), spread(-126.0f));
  const Floats shifted = t + spread(SHIFT);
  const Floats r = t - (shifted - spread(SHIFT));
  Floats p = spread(1.32647273e-3f);  // 2ʳ between -½ and ½ within 10⁻⁷
  p = p * r + spread(9.67151299e-3f);
  p = p * r + spread(5.55073358e-2f);
  p = p * r + spread(2.40222424e-1f);
  p = p * r + spread(6.93147004e-1f);
  p = p * r + spread(1.0f);
  return p * power_of_two(shifted);
}

}  // namespace
}  // namespace regard
