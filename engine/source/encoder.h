// Encoder: source texts, packed without padding, to hidden states.
#pragma once
#include <functional>

#include "attention_options.h"
#include "model.h"

namespace regard {

// Texts laid end to end; `check` before use.
struct TokenBatch {
  const int32_t* ids = nullptr;
  const int32_t* offsets = nullptr;  // [num_texts + 1]
  int64_t num_texts = 0;
  const int32_t* token_types = nullptr;  // per token; null: all 0

  int64_t num_tokens() const { return offsets[num_texts]; }
  int64_t length(int64_t text) const { return int64_t{offsets[text + 1]} - offsets[text]; }
  int64_t max_length() const;
  void check_offsets() const;
  void check(const Model& model) const;  // offsets, ids and lengths of source texts
};

// Whose hidden states are needed: those of first tokens alone make the last layer cheaper.
enum class Needed { all_tokens, first_tokens };

// Receives the hidden states of tokens `first_token` on, in a workspace. If only first tokens are needed, the others'
// are undefined. Threads may call it at the same time, for different tokens.
using HiddenCallback = std::function<void(int64_t first_token, int64_t num_tokens, Workspace& space)>;

// Encodes texts with several threads: each takes texts of its own or, where there are few, rows of the same texts.
void encode(const Model& model, const TokenBatch& texts, int64_t threads, Needed needed,
            const AttentionOptions& attention, const HiddenCallback& callback);

}  // namespace regard
