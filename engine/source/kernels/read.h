// Attention inside a whole text: some of its rows look at all of them, a few rows at a time.
//
// Keys are turned so that sixteen of them are compared at once. Sums go over a head's numbers and over the keys in their
// order, whatever rows look together: who looks beside a row changes nothing.
#pragma once
#include "attend.h"

namespace regard {
namespace {

#if defined(__AVX512F__)
constexpr int READ_ROWS = 4, READ_BLOCKS = 4;
#else
constexpr int READ_ROWS = 2, READ_BLOCKS = 2;
#endif

#if defined(__AVX512F__)
// Sixteen rows of sixteen numbers become columns.
inline void turn(const float* from, size_t stride, float* to, size_t to_stride) {
  __m512 a[LANES], b[LANES];
  REGARD_UNROLL_16 for (int i = 0; i < LANES; i++) a[i] = _mm512_loadu_ps(from + static_cast<size_t>(i) * stride);
  REGARD_UNROLL_16 for (int i = 0; i < LANES; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  REGARD_UNROLL_16 for (int i = 0; i < LANES; i += 4)
    REGARD_UNROLL_16 for (int j = 0; j < 2; j++) {
      const __m512d left = _mm512_castps_pd(b[i + j]), right = _mm512_castps_pd(b[i + j + 2]);
      a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(left, right));
      a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(left, right));
    }
  REGARD_UNROLL_16 for (int i = 0; i < 4; i++)  // a[4g + i] has rows 4g … 4g + 3 of columns i, i + 4, i + 8, i + 12
    REGARD_UNROLL_16 for (int g = 0; g < 2; g++) {
      b[i + 8 * g] = _mm512_shuffle_f32x4(a[i + 8 * g], a[i + 8 * g + 4], 0x88);
      b[i + 8 * g + 4] = _mm512_shuffle_f32x4(a[i + 8 * g], a[i + 8 * g + 4], 0xdd);
    }
  REGARD_UNROLL_16 for (int i = 0; i < 8; i++) {
    const int column = i % 4 + (i / 4) * 4;
    _mm512_storeu_ps(to + static_cast<size_t>(column) * to_stride, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
    _mm512_storeu_ps(to + static_cast<size_t>(column + 8) * to_stride, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
  }
}
#endif

// [width][padded]: number d of all keys side by side; those of keys that are not there are 0.
inline void turn_keys(const float* keys, size_t stride, int count, int padded, int width, float* turned) {
  for (int d = 0; d < width; d++)
    for (int t = count; t < padded; t++) turned[d * padded + t] = 0;
  int first = 0;
#if defined(__AVX512F__)
  for (; first + LANES <= count && width % LANES == 0; first += LANES)
    for (int d = 0; d < width; d += LANES)
      turn(keys + static_cast<size_t>(first) * stride + d, stride, turned + d * padded + first, static_cast<size_t>(padded));
#endif
  for (int t = first; t < count; t++) {
    const float* key = keys + static_cast<size_t>(t) * stride;
    for (int d = 0; d < width; d++) turned[d * padded + t] = key[d];
  }
}

// Scores of a few queries at BLOCKS · 16 keys.
template <int ROWS, int BLOCKS>
inline void compare_some(const float* queries, size_t stride, const float* turned, int padded, int width, Floats scale,
                         float* scores) {
  Floats dots[ROWS][BLOCKS];
  REGARD_UNROLL for (int i = 0; i < ROWS; i++)
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) dots[i][j] = spread(0);
  for (int d = 0; d < width; d++) {
    Floats keys[BLOCKS];
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) keys[j] = load(turned + d * padded + j * LANES);
    REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
      const Floats q = spread(queries[static_cast<size_t>(i) * stride + static_cast<size_t>(d)]);
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) dots[i][j] = dots[i][j] + q * keys[j];
    }
  }
  REGARD_UNROLL for (int i = 0; i < ROWS; i++)
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) store(scores + i * padded + j * LANES, dots[i][j] * scale);
}

// Mixes BLOCKS · 16 numbers of the values by the weights of a few rows; where EVEN is not, `part` numbers alone.
template <int ROWS, int BLOCKS, bool EVEN>
inline void mix_some(const float* values, size_t stride, int count, const float* weights, int padded, int part,
                     const float* totals, float* out, size_t out_stride) {
  Floats mixed[ROWS][BLOCKS];
  REGARD_UNROLL for (int i = 0; i < ROWS; i++)
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) mixed[i][j] = spread(0);
  for (int t = 0; t < count; t++) {
    const float* value = values + static_cast<size_t>(t) * stride;
    Floats numbers[BLOCKS];
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) numbers[j] = EVEN ? load(value + j * LANES) : load_part(value, part);
    REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
      const Floats weight = spread(weights[i * padded + t]);
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) mixed[i][j] = mixed[i][j] + weight * numbers[j];
    }
  }
  REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
    const Floats share = spread(1.0f / totals[i]);
    float* place = out + static_cast<size_t>(i) * out_stride;
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
      if (EVEN)
        store(place + j * LANES, mixed[i][j] * share);
      else
        store_part(place, mixed[i][j] * share, part);
    }
  }
}

// A few rows of one head, from their queries to their mixes.
template <int ROWS>
inline void read_rows(const Reading& given, int head, int row, int padded, const float* turned, float* scores) {
  const int width = given.width, count = given.count;
  const size_t from = static_cast<size_t>(head * width), wide = static_cast<size_t>(given.heads * width);
  const size_t stride = given.stride, out_stride = given.mixed_stride;
  const float* queries = given.rows + static_cast<size_t>(row) * stride + from;
  const Floats scale = spread(1.0f / __builtin_sqrtf(static_cast<float>(width)));
  int key = 0;
  for (; key + READ_BLOCKS * LANES <= padded; key += READ_BLOCKS * LANES)
    compare_some<ROWS, READ_BLOCKS>(queries, stride, turned + key, padded, width, scale, scores + key);
  for (; key + 2 * LANES <= padded; key += 2 * LANES)
    compare_some<ROWS, 2>(queries, stride, turned + key, padded, width, scale, scores + key);
  for (; key < padded; key += LANES)
    compare_some<ROWS, 1>(queries, stride, turned + key, padded, width, scale, scores + key);
  float totals[ROWS];
  for (int i = 0; i < ROWS; i++) {
    float* last = scores + (i + 1) * padded - LANES;
    store(last, smaller(load(last), load(BOUNDS + padded - count)));
    totals[i] = soften(scores + i * padded, padded);
  }
  const float* values = given.rows + 2 * wide + from;
  float* out = given.mixed + static_cast<size_t>(row - given.first) * out_stride + from;
  int at = 0;
  for (; at + 2 * LANES <= width; at += 2 * LANES)
    mix_some<ROWS, 2, true>(values + at, stride, count, scores, padded, 0, totals, out + at, out_stride);
  for (; at + LANES <= width; at += LANES)
    mix_some<ROWS, 1, true>(values + at, stride, count, scores, padded, 0, totals, out + at, out_stride);
  if (at < width)
    mix_some<ROWS, 1, false>(values + at, stride, count, scores, padded, width - at, totals, out + at, out_stride);
}

void read(const Reading& given) {
  const int padded = (given.count + LANES - 1) / LANES * LANES;
  float* turned = given.room;
  float* scores = turned + static_cast<size_t>(given.width) * static_cast<size_t>(padded);
  for (int head = 0; head < given.heads; head++) {
    const float* keys = given.rows + static_cast<size_t>((given.heads + head) * given.width);
    turn_keys(keys, given.stride, given.count, padded, given.width, turned);
    int row = given.first;
    for (; row + READ_ROWS <= given.last; row += READ_ROWS) read_rows<READ_ROWS>(given, head, row, padded, turned, scores);
    for (; row < given.last; row++) read_rows<1>(given, head, row, padded, turned, scores);
  }
}

}  // namespace
}  // namespace regard
