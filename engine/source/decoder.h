// Decoder: appends one token to each row and finds the likeliest next ones.
#pragma once
#include "attention_options.h"
#include "encoder.h"
#include "model.h"
#include "shortlist.h"

namespace regard {

// Arguments and results of one step, for each appended token.
struct StepRequest {
  int64_t k;
  int32_t* ids;            // [tokens, k]
  float* logprobs;         // [tokens, k], or [tokens, vocabulary] for k = 0
  const int32_t* targets;  // [tokens]; null: eos
  float* target_logprobs;  // [tokens]
};

// Key–value cache of texts being generated. Keys and values are written once; rows point at those of their tokens, so
// that rows are reordered without moving any.
class DecoderState {
 public:
  // Encoder–decoder: encodes the source. Causal language model: prefills the cache with texts of equal length.
  DecoderState(const Model& model, const TokenBatch& source, const AttentionOptions& attention);

  // Before the first step: restricts each text to the tokens that a lexicon has for its source.
  void set_shortlist(const Lexicon& lexicon, const TokenBatch& source);
  // Appends tokens [rows, num_tokens].
  void step(const int32_t* tokens, int64_t num_rows, int64_t num_tokens, const StepRequest& request,
            const AttentionOptions& attention);
  void select_rows(const int64_t* rows, int64_t num_rows);

 private:
  // A row of one forward pass: its text, that text's cache, and the position of its token.
  struct RowContext {
    int64_t text;
    const KeyValueEntry* entries;
    int64_t position;
  };
  using Rows = std::vector<RowContext>;

  void encode_source(const TokenBatch& source, const AttentionOptions& attention);
  void prefill(const TokenBatch& prompt, const AttentionOptions& attention);
  void check_prompt(const TokenBatch& prompt) const;
  void check_step(const int32_t* tokens, int64_t num_rows, int64_t num_tokens, const StepRequest& request) const;
  void check_token(int32_t token) const;

  // Appends tokens to the cache; without a request, predicts nothing.
  void append(const int32_t* tokens, int64_t num_tokens, const StepRequest* request, const AttentionOptions& attention);
  // `first_row`: index of the first of these rows among all of the call.
  void forward(const int32_t* tokens, const Rows& rows, int64_t first_row, Workspace& space,
               const AttentionOptions& options);
  void embed(const int32_t* tokens, const Rows& rows, Workspace& space) const;
  void self_attend(const Rows& rows, int64_t first_row, int64_t layer, Workspace& space, const SiteOptions& site) const;
  void cross_attend(const Rows& rows, int64_t first_row, int64_t layer, Workspace& space,
                    const SiteOptions& site) const;

  void top_k(const Rows& rows, int64_t first_row, Workspace& space, const StepRequest& request) const;
  TopK make_top(int64_t row, const StepRequest& request) const;
  void scan_shortlists(const Rows& rows, Workspace& space, TopK* tops) const;
  // Computes the logits of rows `first` on, block by block; with k = 0 they are stored to `all_logits`, too.
  void scan_logits(Workspace& space, int64_t first, int64_t num_rows, const PackedLinear& output, TopK* tops,
                   float* all_logits) const;

  unsigned char* reserve(int64_t num_entries, int64_t num_steps);
  void grow_capacity(int64_t capacity);
  void update_biases();
  // Stores a layer's key and value of a token.
  void store_key_value(const float* key_value, int64_t layer, KeyValueEntry entry) const;
  // Captures a layer's key and value of a token as they are stored; `key_value` receives them in float32.
  void capture_stored(const SiteOptions& site, int64_t token, int64_t layer, KeyValueEntry entry,
                      float* key_value) const;
  // First index after `first` whose row belongs to another text.
  static int64_t end_of_text(const Rows& rows, int64_t first);
  Workspace make_workspace(int64_t num_rows, int64_t length) const;
  // Whether stored bf16 are paired (see DecodeAttention).
  bool has_pairs() const { return stack_.ops.heads.head_size % LANES == 0 && stack_.ops.heads.value_size % LANES == 0; }
  int64_t value_bytes() const { return is_bf16_ ? sizeof(uint16_t) : sizeof(float); }
  int64_t entry_bytes() const { return std::ssize(stack_.layers) * model_.entry_size() * value_bytes(); }

  const Model& model_;
  const Stack& stack_;
  const bool is_bf16_;               // keys and values
  std::vector<int64_t> row_texts_;   // text of each row
  std::vector<KeyValueEntry> past_;  // [rows, capacity_]: cache entries of each row's tokens
  int64_t capacity_;
  std::vector<DistanceBias> biases_;  // of each layer, for `capacity_` tokens
  int64_t length_ = 0;
  std::vector<Buffer> cache_;  // keys and values, each buffer for several steps
  int64_t cache_used_ = 0;     // bytes of the last buffer

  Buffer source_cache_;  // cross keys and values, [tokens, layers]
  std::vector<KeyValueEntry> source_entries_;
  std::vector<int32_t> source_offsets_;
  int64_t max_source_length_ = 0;
  std::vector<Shortlist> shortlists_;  // of the texts; empty: whole vocabulary
};

}  // namespace regard
