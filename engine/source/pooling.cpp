#include "pooling.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace regard {
namespace {

void pool_text(int32_t kind, RowView hidden, int64_t length, int64_t hidden_size, float* out) {
  std::copy_n(hidden.data, hidden_size, out);
  if (kind == REGARD_POOL_CLS) return;
  for (int64_t token = 1; token < length; token++) {
    const float* row = hidden.row(token);
    if (kind == REGARD_POOL_MEAN)
      for (int64_t i = 0; i < hidden_size; i++) out[i] += row[i];
    else
      for (int64_t i = 0; i < hidden_size; i++) out[i] = std::max(out[i], row[i]);
  }
  if (kind == REGARD_POOL_MAX) return;
  const float factor = 1.0f / static_cast<float>(length);
  for (int64_t i = 0; i < hidden_size; i++) out[i] *= factor;
}

}  // namespace

void pool_texts(const Model& model, const TokenBatch& texts, const PoolingKinds& poolings, int64_t threads,
                const AttentionOptions& attention, float* out) {
  for (int64_t i = 0; i < poolings.count; i++)
    if (poolings.kinds[i] < REGARD_POOL_MEAN || poolings.kinds[i] > REGARD_POOL_MAX)
      throw std::invalid_argument("no pooling " + std::to_string(poolings.kinds[i]));
  const int64_t hidden_size = model.hidden_size();
  const auto copy_hidden = [&](int64_t first_token, int64_t num_tokens, Workspace& space) {
    for (int64_t i = 0; i < num_tokens; i++)
      std::copy_n(space.hidden.row(i), hidden_size, out + (first_token + i) * hidden_size);
  };
  const auto pool_hidden = [&](int64_t first_token, int64_t num_tokens, Workspace& space) {
    int64_t text = std::lower_bound(texts.offsets, texts.offsets + texts.num_texts, first_token) - texts.offsets;
    for (; text < texts.num_texts && texts.offsets[text] < first_token + num_tokens; text++) {
      const RowView hidden{space.hidden.row(texts.offsets[text] - first_token), space.hidden.stride};
      for (int64_t i = 0; i < poolings.count; i++) {
        float* embedding = out + (text * poolings.count + i) * hidden_size;
        pool_text(poolings.kinds[i], hidden, texts.length(text), hidden_size, embedding);
      }
    }
  };
  if (!poolings.count) return encode(model, texts, threads, Needed::all_tokens, attention, copy_hidden);
  const bool needs_first_only = poolings.count == 1 && poolings.kinds[0] == REGARD_POOL_CLS;
  const Needed needed = needs_first_only ? Needed::first_tokens : Needed::all_tokens;
  encode(model, texts, threads, needed, attention, pool_hidden);
}

}  // namespace regard
