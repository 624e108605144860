// Attention over a key–value cache: softmax(query · keys / √head_size) · values, for rows that share keys and values.
#pragma once
#include <type_traits>

#include "simd.h"

namespace regard {
namespace {

constexpr int64_t HEAD_GROUP = 4;  // heads scored while a key is in the cache

// Upper bounds of scores: `load(SCORE_BOUNDS + LANES - n)` masks all but the first n of sixteen keys.
constexpr float UNMASKED = 3e38f;
constexpr float MASKED = -1e30f;
constexpr float SCORE_BOUNDS[2 * LANES] = {
    UNMASKED, UNMASKED, UNMASKED, UNMASKED, UNMASKED, UNMASKED, UNMASKED, UNMASKED,
    UNMASKED, UNMASKED, UNMASKED, UNMASKED, UNMASKED, UNMASKED, UNMASKED, UNMASKED,
    MASKED,   MASKED,   MASKED,   MASKED,   MASKED,   MASKED,   MASKED,   MASKED,
    MASKED,   MASKED,   MASKED,   MASKED,   MASKED,   MASKED,   MASKED,   MASKED};

// Sixteen values of a head from `offset` on. IS_ALIGNED: heads consist of whole blocks (and are paired in bf16).
template <bool IS_ALIGNED, class Stored>
inline Floats load_head(const Stored* head, int64_t offset, int64_t head_size) {
  if constexpr (IS_ALIGNED && std::is_same_v<Stored, uint16_t>) return load_paired(head + offset);
  if (IS_ALIGNED || offset + LANES <= head_size) return load(head + offset);
  return load_partial(head + offset, head_size - offset);
}

// Prefetches entry t of the next call.
template <class Stored>
inline void prefetch_next(const DecodeAttention& attention, int64_t t) {
  constexpr int64_t CACHE_LINE = 64 / sizeof(Stored);
  if (t >= attention.num_next_entries) return;
  const Stored* entry = static_cast<const Stored*>(attention.next_entries[t]);
  for (int64_t i = 0; i < attention.num_heads * attention.head_size; i += CACHE_LINE) {
    __builtin_prefetch(entry + attention.key_offset + i, 0, 2);
    __builtin_prefetch(entry + attention.value_offset + i, 0, 2);
  }
}

template <bool IS_ALIGNED, class Stored>
inline Floats query_key_products(const float* query, const Stored* key, int64_t head_size) {
  Floats products = load_head<IS_ALIGNED>(query, 0, head_size) * load_head<IS_ALIGNED>(key, 0, head_size);
  for (int64_t i = LANES; i < head_size; i += LANES)
    products = products + load_head<IS_ALIGNED>(query, i, head_size) * load_head<IS_ALIGNED>(key, i, head_size);
  return products;
}

// Scores of one query, [num_heads, padded]: sixteen keys at a time, so that one transpose sums the products of all.
template <bool IS_ALIGNED, class Stored>
inline void query_key_scores(const DecodeAttention& attention, const float* query, int64_t padded, float* scores) {
  const int64_t head_size = attention.head_size;
  const Floats scale = broadcast(1.0f / __builtin_sqrtf(static_cast<float>(head_size)));
  for (int64_t first = 0; first < attention.num_entries; first += LANES) {
    const int64_t remaining = attention.num_entries - first;
    const int64_t num_keys = remaining < LANES ? remaining : LANES;
    for (int64_t group = 0; group < attention.num_heads; group += HEAD_GROUP) {
      const int64_t heads_left = attention.num_heads - group;
      const int64_t num_heads = heads_left < HEAD_GROUP ? heads_left : HEAD_GROUP;
      Floats products[HEAD_GROUP][LANES];
      for (int64_t t = 0; t < num_keys; t++) {
        const Stored* entry = static_cast<const Stored*>(attention.entries[first + t]);
        const Stored* key = entry + attention.key_offset + group * head_size;
        const float* q = query + group * head_size;
        for (int64_t head = 0; head < num_heads; head++, key += head_size, q += head_size)
          products[head][t] = query_key_products<IS_ALIGNED>(q, key, head_size);
      }
      const Floats bounds = load(SCORE_BOUNDS + LANES - num_keys);
      for (int64_t head = 0; head < num_heads; head++) {
        for (int64_t t = num_keys; t < LANES; t++) products[head][t] = products[head][0];
        store(scores + (group + head) * padded + first, min(horizontal_sums(products[head]) * scale, bounds));
      }
    }
    for (int64_t t = 0; t < num_keys; t++) prefetch_next<Stored>(attention, first + t);
  }
}

// Replaces scores by exp(score - max) and returns their sum, by which the weighted values are divided later.
inline float softmax(float* scores, int64_t padded) {
  Floats maxima = load(scores);
  for (int64_t t = LANES; t < padded; t += LANES) maxima = max(maxima, load(scores + t));
  const Floats score_max = broadcast(horizontal_max(maxima));
  Floats total = broadcast(0);
  for (int64_t t = 0; t < padded; t += LANES) {
    const Floats weights = exp(load(scores + t) - score_max);
    store(scores + t, weights);
    total = total + weights;
  }
  return horizontal_sum(total);
}

// Weighted sum of NUM_BLOCKS · 16 values per entry, `offset` on within the head that begins at `head_offset`.
template <int NUM_BLOCKS, bool IS_ALIGNED, class Stored>
inline void weighted_values(const DecodeAttention& attention, const float* weights, int64_t head_offset, int64_t offset,
                            float weight_sum, float* context) {
  const int64_t head_size = attention.head_size;
  Floats sums[NUM_BLOCKS];
  for (int j = 0; j < NUM_BLOCKS; j++) sums[j] = broadcast(0);
  for (int64_t t = 0; t < attention.num_entries; t++) {
    const Stored* value = static_cast<const Stored*>(attention.entries[t]) + attention.value_offset + head_offset;
    const Floats weight = broadcast(weights[t]);
    for (int j = 0; j < NUM_BLOCKS; j++)
      sums[j] = sums[j] + weight * load_head<IS_ALIGNED>(value, offset + j * LANES, head_size);
  }
  const Floats normalizer = broadcast(1.0f / weight_sum);
  for (int j = 0; j < NUM_BLOCKS; j++) {
    const int64_t begin = offset + j * LANES;
    float* out = context + head_offset + begin;
    if (IS_ALIGNED || begin + LANES <= head_size)
      store(out, sums[j] * normalizer);
    else
      store_partial(out, sums[j] * normalizer, head_size - begin);
  }
}

template <bool IS_ALIGNED, class Stored>
inline void attend_rows(const DecodeAttention& attention) {
  const int64_t head_size = attention.head_size;
  const int64_t padded = (attention.num_entries + LANES - 1) / LANES * LANES;
  for (int64_t row = 0; row < attention.num_rows; row++) {
    const float* query = attention.queries + row * attention.query_stride;
    float* context = attention.context + row * attention.context_stride;
    query_key_scores<IS_ALIGNED, Stored>(attention, query, padded, attention.scores);
    for (int64_t head = 0; head < attention.num_heads; head++) {
      float* weights = attention.scores + head * padded;
      const int64_t head_offset = head * head_size;
      const float weight_sum = softmax(weights, padded);
      int64_t i = 0;
      if (IS_ALIGNED) {
        for (; i + 4 * LANES <= head_size; i += 4 * LANES)
          weighted_values<4, true, Stored>(attention, weights, head_offset, i, weight_sum, context);
        for (; i + 2 * LANES <= head_size; i += 2 * LANES)
          weighted_values<2, true, Stored>(attention, weights, head_offset, i, weight_sum, context);
      }
      for (; i < head_size; i += LANES)
        weighted_values<1, IS_ALIGNED, Stored>(attention, weights, head_offset, i, weight_sum, context);
    }
  }
}

void decode_attention(const DecodeAttention& attention) {
  const bool is_aligned = attention.head_size % LANES == 0;
  if (attention.is_bf16) {
    if (is_aligned)
      attend_rows<true, uint16_t>(attention);
    else
      attend_rows<false, uint16_t>(attention);
  } else {
    if (is_aligned)
      attend_rows<true, float>(attention);
    else
      attend_rows<false, float>(attention);
  }
}

}  // namespace
}  // namespace regard
