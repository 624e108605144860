// Attention over a key–value cache: softmax(query · keys · scale + bias) · values, for rows that share keys and values.
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
  const HeadSizes& heads = attention.heads;
  for (int64_t i = 0; i < heads.num_kv_heads * heads.head_size; i += CACHE_LINE)
    __builtin_prefetch(entry + attention.key_offset + i, 0, 2);
  for (int64_t i = 0; i < heads.num_kv_heads * heads.value_size; i += CACHE_LINE)
    __builtin_prefetch(entry + attention.value_offset + i, 0, 2);
}

template <bool IS_ALIGNED, class Stored>
inline Floats query_key_products(const float* query, const Stored* key, int64_t head_size) {
  Floats products = load_head<IS_ALIGNED>(query, 0, head_size) * load_head<IS_ALIGNED>(key, 0, head_size);
  for (int64_t i = LANES; i < head_size; i += LANES)
    products = products + load_head<IS_ALIGNED>(query, i, head_size) * load_head<IS_ALIGNED>(key, i, head_size);
  return products;
}

// Scores of one query, [num_heads, padded]: sixteen keys at a time, so that one transpose sums the products of all.
template <bool IS_ALIGNED, bool IS_GROUPED, class Stored>
inline void query_key_scores(const DecodeAttention& attention, const float* query, int64_t padded, float* scores) {
  const int64_t head_size = attention.heads.head_size;
  const int64_t queries_per_key = attention.heads.num_heads / attention.heads.num_kv_heads;
  const Floats scale = broadcast(attention.heads.scale);
  for (int64_t first = 0; first < attention.num_entries; first += LANES) {
    const int64_t remaining = attention.num_entries - first;
    const int64_t num_keys = remaining < LANES ? remaining : LANES;
    for (int64_t group = 0; group < attention.heads.num_heads; group += HEAD_GROUP) {
      const int64_t heads_left = attention.heads.num_heads - group;
      const int64_t num_heads = heads_left < HEAD_GROUP ? heads_left : HEAD_GROUP;
      Floats products[HEAD_GROUP][LANES];
      for (int64_t t = 0; t < num_keys; t++) {
        const Stored* entry = static_cast<const Stored*>(attention.entries[first + t]);
        const Stored* keys = entry + attention.key_offset;
        const Stored* key = keys + group * head_size;
        const float* q = query + group * head_size;
        for (int64_t head = 0; head < num_heads; head++, key += head_size, q += head_size) {
          if constexpr (IS_GROUPED) key = keys + (group + head) / queries_per_key * head_size;
          products[head][t] = query_key_products<IS_ALIGNED>(q, key, head_size);
        }
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

// Adds the bias of keys `begin` to `end`, whole blocks, to the scores; masked ones stay so.
inline void add_bias(const float* bias, int64_t begin, int64_t end, float* scores) {
  for (int64_t t = begin; t < end; t += LANES) store(scores + t, load(scores + t) + load(bias + t));
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

// Weighted sum of NUM_BLOCKS · 16 values per entry, `offset` on within the value that begins at `value_start`.
template <int NUM_BLOCKS, bool IS_ALIGNED, class Stored>
inline void weighted_values(const DecodeAttention& attention, const float* weights, int64_t value_start, int64_t offset,
                            float weight_sum, float* context) {
  const int64_t value_size = attention.heads.value_size;
  Floats sums[NUM_BLOCKS];
  for (int j = 0; j < NUM_BLOCKS; j++) sums[j] = broadcast(0);
  for (int64_t t = 0; t < attention.num_entries; t++) {
    const Stored* value = static_cast<const Stored*>(attention.entries[t]) + attention.value_offset + value_start;
    const Floats weight = broadcast(weights[t]);
    for (int j = 0; j < NUM_BLOCKS; j++)
      sums[j] = sums[j] + weight * load_head<IS_ALIGNED>(value, offset + j * LANES, value_size);
  }
  const Floats normalizer = broadcast(1.0f / weight_sum);
  for (int j = 0; j < NUM_BLOCKS; j++) {
    const int64_t begin = offset + j * LANES;
    float* out = context + begin;
    if (IS_ALIGNED || begin + LANES <= value_size)
      store(out, sums[j] * normalizer);
    else
      store_partial(out, sums[j] * normalizer, value_size - begin);
  }
}

template <bool IS_ALIGNED, bool IS_GROUPED, class Stored>
inline void attend_rows(const DecodeAttention& attention) {
  const HeadSizes& heads = attention.heads;
  const int64_t value_size = heads.value_size;
  const int64_t queries_per_key = heads.num_heads / heads.num_kv_heads;
  const int64_t padded = (attention.num_entries + LANES - 1) / LANES * LANES;
  for (int64_t row = 0; row < attention.num_rows; row++) {
    const float* query = attention.queries + row * attention.query_stride;
    float* row_context = attention.context + row * attention.context_stride;
    query_key_scores<IS_ALIGNED, IS_GROUPED, Stored>(attention, query, padded, attention.scores);
    for (int64_t head = 0; head < heads.num_heads; head++) {
      float* weights = attention.scores + head * padded;
      float* context = row_context + head * value_size;
      const int64_t value_start = (IS_GROUPED ? head / queries_per_key : head) * value_size;
      if (attention.bias)
        add_bias(attention.bias + head * attention.bias_stride - (attention.num_entries - 1), 0, padded, weights);
      const float weight_sum = softmax(weights, padded);
      int64_t i = 0;
      if (IS_ALIGNED) {
        for (; i + 4 * LANES <= value_size; i += 4 * LANES)
          weighted_values<4, true, Stored>(attention, weights, value_start, i, weight_sum, context);
        for (; i + 2 * LANES <= value_size; i += 2 * LANES)
          weighted_values<2, true, Stored>(attention, weights, value_start, i, weight_sum, context);
      }
      for (; i < value_size; i += LANES)
        weighted_values<1, IS_ALIGNED, Stored>(attention, weights, value_start, i, weight_sum, context);
    }
  }
}

template <bool IS_GROUPED>
inline void attend_stored(const DecodeAttention& attention) {
  const bool is_aligned = attention.heads.head_size % LANES == 0 && attention.heads.value_size % LANES == 0;
  if (attention.is_bf16) {
    if (is_aligned)
      attend_rows<true, IS_GROUPED, uint16_t>(attention);
    else
      attend_rows<false, IS_GROUPED, uint16_t>(attention);
  } else {
    if (is_aligned)
      attend_rows<true, IS_GROUPED, float>(attention);
    else
      attend_rows<false, IS_GROUPED, float>(attention);
  }
}

void decode_attention(const DecodeAttention& attention) {
  if (attention.heads.num_kv_heads == attention.heads.num_heads)
    attend_stored<false>(attention);
  else
    attend_stored<true>(attention);
}

}  // namespace
}  // namespace regard
