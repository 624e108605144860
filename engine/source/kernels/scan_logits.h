// One pass over logits: top-k, the softmax's denominator and one target's logit, so that no row of logits is stored.
#pragma once
#include "simd.h"

namespace regard {
namespace {

inline bool is_full(const TopK& top) { return top.num_found == top.k; }

// Inserts a logit that belongs to the top k; equal ones keep the order of their ids.
inline void insert(TopK& top, float logit, int64_t id) {
  int64_t rank = top.num_found < top.k ? top.num_found++ : top.k - 1;
  for (; rank > 0 && top.logits[rank - 1] < logit; rank--) {
    top.logits[rank] = top.logits[rank - 1];
    top.ids[rank] = top.ids[rank - 1];
  }
  top.logits[rank] = logit;
  top.ids[rank] = static_cast<int32_t>(id);
}

// Adds exp(logit - max) to the running sums, which are rescaled where the maximum grows (online softmax).
inline void add_exponentials(const float* logits, int64_t num_logits, float block_max, TopK& top) {
  Floats sums = load(top.exp_sums);
  if (block_max > top.max_logit) {
    sums = sums * exp(broadcast(top.max_logit - block_max));
    top.max_logit = block_max;
  }
  const Floats base = broadcast(top.max_logit);
  for (int64_t i = 0; i < num_logits; i += LANES) sums = sums + exp(load(logits + i) - base);
  store(top.exp_sums, sums);
}

inline void find_top(const float* logits, int64_t first_id, int64_t num_logits, float block_max, TopK& top) {
  for (int64_t i = 0; i < num_logits; i += LANES) {
    if (is_full(top) && !(block_max > top.logits[top.k - 1])) return;
    unsigned candidates = is_full(top) ? greater_mask(load(logits + i), broadcast(top.logits[top.k - 1])) : 0xffffu;
    for (int64_t lane = 0; candidates; lane++, candidates >>= 1) {
      const float logit = logits[i + lane];
      const bool is_candidate = candidates & 1u;
      if (is_candidate && (!is_full(top) || logit > top.logits[top.k - 1])) insert(top, logit, first_id + i + lane);
    }
  }
}

// `num_logits` is a multiple of 16; the tokens are `first_id`, `first_id` + 1, …
void scan_logits(const float* logits, int64_t first_id, int64_t num_logits, TopK& top) {
  Floats maxima = load(logits);
  for (int64_t i = LANES; i < num_logits; i += LANES) maxima = max(maxima, load(logits + i));
  const float block_max = horizontal_max(maxima);
  add_exponentials(logits, num_logits, block_max, top);
  if (top.target >= first_id && top.target < first_id + num_logits) top.target_logit = logits[top.target - first_id];
  if (top.k > 0) find_top(logits, first_id, num_logits, block_max, top);
}

}  // namespace
}  // namespace regard
