// Self-attention of a whole text: blocks of a few rows attend to all tokens.
//
// Keys are transposed so that sixteen are scored at once. Sums run over the head's values and over the keys in their
// order, whichever rows form a block: a row's result does not depend on the rows beside it.
#pragma once
#include "decode_attention.h"

namespace regard {
namespace {

// Rows, and blocks of sixteen keys, whose sums fit into the registers.
#if defined(__AVX512F__)
constexpr int ATTENTION_ROWS = 4;
constexpr int KEY_BLOCKS = 4;
#else
constexpr int ATTENTION_ROWS = 2;
constexpr int KEY_BLOCKS = 2;
#endif

#if defined(__AVX512F__)
// Transposes a block of 16 × 16 values.
inline void transpose_block(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m512 a[LANES];
  __m512 b[LANES];
  REGARD_UNROLL_16 for (int i = 0; i < LANES; i++) a[i] = _mm512_loadu_ps(from + i * from_stride);
  REGARD_UNROLL_16 for (int i = 0; i < LANES; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  REGARD_UNROLL_16 for (int i = 0; i < LANES; i += 4)
    REGARD_UNROLL_16 for (int j = 0; j < 2; j++) {
      const __m512d left = _mm512_castps_pd(b[i + j]);
      const __m512d right = _mm512_castps_pd(b[i + j + 2]);
      a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(left, right));
      a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(left, right));
    }
  REGARD_UNROLL_16 for (int i = 0; i < 4; i++)  // a[4g + i] has rows 4g … 4g + 3 of columns i, i + 4, i + 8, i + 12
    REGARD_UNROLL_16 for (int g = 0; g < 2; g++) {
      b[i + 8 * g] = _mm512_shuffle_f32x4(a[i + 8 * g], a[i + 8 * g + 4], 0x88);
      b[i + 8 * g + 4] = _mm512_shuffle_f32x4(a[i + 8 * g], a[i + 8 * g + 4], 0xdd);
    }
  REGARD_UNROLL_16 for (int column = 0; column < 8; column++) {
    _mm512_storeu_ps(to + column * to_stride, _mm512_shuffle_f32x4(b[column], b[column + 8], 0x88));
    _mm512_storeu_ps(to + (column + 8) * to_stride, _mm512_shuffle_f32x4(b[column], b[column + 8], 0xdd));
  }
}
#endif

// [head_size, padded]: value d of all keys side by side; the padding is 0.
inline void transpose_keys(const float* keys, int64_t stride, int64_t num_keys, int64_t padded, int64_t head_size,
                           float* transposed) {
  for (int64_t d = 0; d < head_size; d++)
    for (int64_t t = num_keys; t < padded; t++) transposed[d * padded + t] = 0;
  int64_t first = 0;
#if defined(__AVX512F__)
  for (; first + LANES <= num_keys && head_size % LANES == 0; first += LANES)
    for (int64_t d = 0; d < head_size; d += LANES)
      transpose_block(keys + first * stride + d, stride, transposed + d * padded + first, padded);
#endif
  for (int64_t t = first; t < num_keys; t++) {
    const float* key = keys + t * stride;
    for (int64_t d = 0; d < head_size; d++) transposed[d * padded + t] = key[d];
  }
}

// Scores of ROWS queries with BLOCKS · 16 keys.
template <int ROWS, int BLOCKS>
inline void score_rows(const float* queries, int64_t stride, const float* keys, int64_t padded, int64_t head_size,
                       Floats scale, float* scores) {
  Floats sums[ROWS][BLOCKS];
  REGARD_UNROLL for (int i = 0; i < ROWS; i++)
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = broadcast(0);
  for (int64_t d = 0; d < head_size; d++) {
    Floats key[BLOCKS];
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) key[j] = load(keys + d * padded + j * LANES);
    REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
      const Floats query = broadcast(queries[i * stride + d]);
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = sums[i][j] + query * key[j];
    }
  }
  REGARD_UNROLL for (int i = 0; i < ROWS; i++)
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) store(scores + i * padded + j * LANES, sums[i][j] * scale);
}

// Weighted sums of BLOCKS · 16 values of a head for ROWS rows; unless IS_ALIGNED, of the first `tail` values alone.
template <int ROWS, int BLOCKS, bool IS_ALIGNED>
inline void weight_rows(const float* values, int64_t stride, int64_t num_tokens, const float* weights, int64_t padded,
                        int64_t tail, const float* weight_sums, float* context, int64_t context_stride) {
  Floats sums[ROWS][BLOCKS];
  REGARD_UNROLL for (int i = 0; i < ROWS; i++)
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = broadcast(0);
  for (int64_t t = 0; t < num_tokens; t++) {
    const float* from = values + t * stride;
    Floats value[BLOCKS];
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++)
      value[j] = IS_ALIGNED ? load(from + j * LANES) : load_partial(from, tail);
    REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
      const Floats weight = broadcast(weights[i * padded + t]);
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = sums[i][j] + weight * value[j];
    }
  }
  REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
    const Floats normalizer = broadcast(1.0f / weight_sums[i]);
    float* out = context + i * context_stride;
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
      if (IS_ALIGNED)
        store(out + j * LANES, sums[i][j] * normalizer);
      else
        store_partial(out, sums[i][j] * normalizer, tail);
    }
  }
}

// Keys that some of the rows attend to, in whole blocks.
struct KeyRange {
  int64_t begin;
  int64_t end;
};

inline KeyRange visible_keys(const EncodeAttention& attention, int64_t row, int64_t num_rows, int64_t padded) {
  if (!attention.window) return {0, padded};
  const int64_t first = row - attention.window;
  const int64_t last = row + num_rows + attention.window;
  const int64_t end = (last + LANES - 1) / LANES * LANES;
  return {first > 0 ? first / LANES * LANES : 0, end < padded ? end : padded};
}

// Attention of ROWS rows in one head, whose transposed keys and whose values are given.
template <int ROWS>
inline void attend_block(const EncodeAttention& attention, int64_t head, int64_t row, int64_t padded, const float* keys,
                         const float* values, float* scores) {
  const HeadSizes& heads = attention.heads;
  const int64_t head_size = heads.head_size;
  const int64_t value_size = heads.value_size;
  const int64_t num_tokens = attention.num_tokens;
  const int64_t stride = attention.qkv_stride;
  const int64_t context_stride = attention.context_stride;
  const float* queries = attention.qkv + row * stride + head * head_size;
  const Floats scale = broadcast(heads.scale);
  const auto [begin, end] = visible_keys(attention, row, ROWS, padded);
  int64_t key = begin;
  for (; key + KEY_BLOCKS * LANES <= end; key += KEY_BLOCKS * LANES)
    score_rows<ROWS, KEY_BLOCKS>(queries, stride, keys + key, padded, head_size, scale, scores + key);
  for (; key + 2 * LANES <= end; key += 2 * LANES)
    score_rows<ROWS, 2>(queries, stride, keys + key, padded, head_size, scale, scores + key);
  for (; key < end; key += LANES)
    score_rows<ROWS, 1>(queries, stride, keys + key, padded, head_size, scale, scores + key);
  float weight_sums[ROWS];
  const Floats bounds = load(SCORE_BOUNDS + padded - num_tokens);
  for (int i = 0; i < ROWS; i++) {
    float* row_scores = scores + i * padded;
    if (attention.bias) add_bias(attention.bias + head * attention.bias_stride - (row + i), begin, end, row_scores);
    float* last_block = row_scores + padded - LANES;
    if (end == padded) store(last_block, min(load(last_block), bounds));
    weight_sums[i] = softmax(row_scores + begin, end - begin);
  }
  const int64_t num_keys = (end < num_tokens ? end : num_tokens) - begin;
  const float* weights = scores + begin;
  values += begin * stride;
  float* context = attention.context + (row - attention.first_row) * context_stride + head * value_size;
  int64_t d = 0;
  for (; d + 2 * LANES <= value_size; d += 2 * LANES)
    weight_rows<ROWS, 2, true>(values + d, stride, num_keys, weights, padded, 0, weight_sums, context + d,
                               context_stride);
  for (; d + LANES <= value_size; d += LANES)
    weight_rows<ROWS, 1, true>(values + d, stride, num_keys, weights, padded, 0, weight_sums, context + d,
                               context_stride);
  if (d < value_size)
    weight_rows<ROWS, 1, false>(values + d, stride, num_keys, weights, padded, value_size - d, weight_sums, context + d,
                                context_stride);
}

void encode_attention(const EncodeAttention& attention) {
  const HeadSizes& heads = attention.heads;
  const int64_t head_size = heads.head_size;
  const int64_t queries_per_key = heads.num_heads / heads.num_kv_heads;
  const int64_t padded = (attention.num_tokens + LANES - 1) / LANES * LANES;
  const int64_t first_value = (heads.num_heads + heads.num_kv_heads) * head_size;
  float* transposed_keys = attention.scratch;
  float* scores = transposed_keys + head_size * padded;
  for (int64_t head = 0; head < heads.num_heads; head++) {
    const int64_t kv_head = head / queries_per_key;
    const float* keys = attention.qkv + (heads.num_heads + kv_head) * head_size;
    const float* values = attention.qkv + first_value + kv_head * heads.value_size;
    if (head % queries_per_key == 0)
      transpose_keys(keys, attention.qkv_stride, attention.num_tokens, padded, head_size, transposed_keys);
    int64_t row = attention.first_row;
    for (; row + ATTENTION_ROWS <= attention.last_row; row += ATTENTION_ROWS)
      attend_block<ATTENTION_ROWS>(attention, head, row, padded, transposed_keys, values, scores);
    for (; row < attention.last_row; row++)
      attend_block<1>(attention, head, row, padded, transposed_keys, values, scores);
  }
}

}  // namespace
}  // namespace regard
