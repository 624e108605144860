// Text embeddings: mean, maximum or first of a text's hidden states.
#pragma once
#include "encoder.h"

namespace regard {

struct PoolingKinds {
  const int32_t* kinds = nullptr;  // regard_pooling
  int64_t count = 0;               // 0: hidden states, not pooled
};

// Encodes texts; `out` receives the hidden states of all tokens, or all poolings of a text side by side.
void pool_texts(const Model& model, const TokenBatch& texts, const PoolingKinds& poolings, int64_t threads,
                const AttentionOptions& attention, float* out);

}  // namespace regard
