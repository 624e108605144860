#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "checks.h"

namespace regard {
namespace {

constexpr int64_t MAX_ROWS = 128;         // of one forward pass
constexpr int64_t STEPS_PER_BUFFER = 8;   // whose keys and values share a buffer
constexpr int64_t INITIAL_CAPACITY = 32;  // tokens of a row
constexpr int64_t MAX_SELECTED_ROWS = 1 << 24;
// Of outputs that stand for no token. They come after all others, and by then `k` logits have been found: nothing is
// exceeded by minus infinity, so that none of them is ever among the best, whatever the weights of a file are.
constexpr float PADDING_LOGIT = -std::numeric_limits<float>::infinity();

// The inverse of Kernels::store_bf16.
void load_bf16(const uint16_t* in, int64_t size, bool is_paired, float* out) {
  for (int64_t i = 0; i < size; i++) {
    const int64_t lane = i % LANES;
    const int64_t stored = is_paired ? i - lane + 2 * (lane % 8) + lane / 8 : i;
    const uint32_t bits = static_cast<uint32_t>(in[stored]) << 16;
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

}  // namespace

DecoderState::DecoderState(const Model& model, const TokenBatch& source, const AttentionOptions& attention)
    : model_(model),
      stack_(model.decoder),
      is_bf16_(model.shape.precision != FLOAT32),
      capacity_(INITIAL_CAPACITY) {
  if (!model.has_decoder()) throw std::invalid_argument("this model has no decoder: it encodes and does not generate");
  source.check_offsets();
  for (int64_t text = 0; text < source.num_texts; text++) row_texts_.push_back(text);
  if (model.has_encoder())
    encode_source(source, attention);
  else
    prefill(source, attention);
}

void DecoderState::update_biases() {
  biases_.clear();
  for (const Layer& layer : stack_.layers)
    biases_.push_back(layer.distance_bias(stack_.ops.heads.num_heads, true, capacity_));
}

// Precomputes the cross keys and values of all layers.
void DecoderState::encode_source(const TokenBatch& source, const AttentionOptions& options) {
  source.check(model_);
  source_cache_ = Buffer(&model_.pool, source.num_tokens() * entry_bytes());
  for (int64_t token = 0; token < source.num_tokens(); token++)
    source_entries_.push_back(source_cache_.as<unsigned char>() + token * entry_bytes());
  encode(model_, source, 1, Needed::all_tokens, options, [&](int64_t first_token, int64_t num_tokens, Workspace& space) {
    for (int64_t layer = 0; layer < std::ssize(stack_.layers); layer++) {
      const CrossAttention& attention = stack_.layers[layer].block->cross_attention;
      const SiteOptions& site = options.at(REGARD_SITE_DECODER_CROSS, layer);
      stack_.ops.linear(space, space.hidden, num_tokens, attention.key_value, space.projected);
      for (int64_t i = 0; i < num_tokens; i++) {
        float* key_value = space.projected.row(i);
        stack_.ops.normalize_heads(space, key_value, stack_.ops.heads.num_kv_heads, attention.key_norm);
        const KeyValueEntry entry = source_entries_[first_token + i];
        store_key_value(key_value, layer, entry);
        if (site.is_captured()) capture_stored(site, first_token + i, layer, entry, key_value);
      }
    }
  });
  source_offsets_.assign(source.offsets, source.offsets + source.num_texts + 1);
  max_source_length_ = source.max_length();
  past_.resize(std::ssize(row_texts_) * capacity_);
  update_biases();
}

void DecoderState::check_prompt(const TokenBatch& prompt) const {
  const int64_t length = prompt.length(0);
  for (int64_t text = 0; text < prompt.num_texts; text++)
    if (prompt.length(text) != length)
      throw std::invalid_argument("texts that are continued together are equally long");
  for (int64_t i = 0; i < prompt.num_tokens(); i++) check_token(prompt.ids[i]);
  if (length) model_.target_positions->check_length(length);
}

void DecoderState::prefill(const TokenBatch& prompt, const AttentionOptions& attention) {
  check_prompt(prompt);
  past_.resize(std::ssize(row_texts_) * capacity_);
  update_biases();
  if (prompt.length(0)) append(prompt.ids, prompt.length(0), nullptr, attention);
}

// Tokens of a text may be rows of one pass: in every layer, each stores its key and value before the next one attends.
void DecoderState::append(const int32_t* tokens, int64_t num_tokens, const StepRequest* request,
                          const AttentionOptions& attention) {
  const int64_t num_rows = std::ssize(row_texts_) * num_tokens;
  const int64_t length = length_ + num_tokens;
  if (length > capacity_) {
    int64_t capacity = capacity_;
    while (capacity < length) capacity *= 2;
    grow_capacity(capacity);
  }
  const unsigned char* cache = reserve(num_rows, num_tokens == 1 ? STEPS_PER_BUFFER : 1);
  Workspace space = make_workspace(num_rows, length);
  Rows rows;
  for (int64_t i = 0; i < num_rows; i++) {
    const int64_t row = i / num_tokens;
    const int64_t position = length_ + i % num_tokens;
    KeyValueEntry* entries = past_.data() + row * capacity_;
    entries[position] = cache + i * entry_bytes();
    rows.push_back({.text = row_texts_[row], .entries = entries, .position = position});
    if (std::ssize(rows) < MAX_ROWS && i + 1 < num_rows) continue;
    const int64_t first_row = i + 1 - std::ssize(rows);
    forward(tokens + first_row, rows, first_row, space, attention);
    if (request) top_k(rows, first_row, space, *request);
    rows.clear();
  }
  length_ = length;
}

void DecoderState::check_token(int32_t token) const {
  if (token < 0 || token >= model_.shape.target_vocab_size)
    throw std::invalid_argument("token " + std::to_string(token) + " is outside the target vocabulary");
}

Workspace DecoderState::make_workspace(int64_t num_rows, int64_t length) const {
  const int64_t max_entries = std::max(max_source_length_, length);
  const WorkspaceSize size{
      .num_rows = std::min(num_rows, MAX_ROWS),
      .hidden_size = model_.hidden_size(),
      .context_size = context_width(stack_.ops.heads),
      .projection_size = model_.max_projection_size,
      .scores_size = stack_.ops.heads.num_heads * pad(max_entries),
  };
  return Workspace(model_.pool, size);
}

void DecoderState::select_rows(const int64_t* rows, int64_t num_rows) {
  check_range("num_rows", num_rows, 0, MAX_SELECTED_ROWS);
  std::vector<int64_t> row_texts(num_rows);
  std::vector<KeyValueEntry> past(num_rows * capacity_);
  for (int64_t i = 0; i < num_rows; i++) {
    const int64_t row = rows[i];
    if (row < 0 || row >= std::ssize(row_texts_))
      throw std::invalid_argument("there is no row " + std::to_string(row) + " to select");
    row_texts[i] = row_texts_[row];
    std::copy_n(past_.begin() + row * capacity_, length_, past.begin() + i * capacity_);
  }
  row_texts_.swap(row_texts);
  past_.swap(past);
  // shortlists of texts without rows are freed
  std::vector<bool> is_alive(shortlists_.size());
  for (int64_t text : row_texts_)
    if (!shortlists_.empty()) is_alive[text] = true;
  for (int64_t text = 0; text < std::ssize(shortlists_); text++)
    if (!is_alive[text]) shortlists_[text] = Shortlist{};
}

void DecoderState::check_step(const int32_t* tokens, int64_t num_rows, int64_t num_tokens,
                              const StepRequest& request) const {
  if (num_rows < 1 || num_rows != std::ssize(row_texts_))
    throw std::invalid_argument(std::to_string(num_rows) + " tokens for " + std::to_string(row_texts_.size()) +
                                " rows");
  check_range("num_tokens", num_tokens, 1, MAX_TEXT_LENGTH);
  for (int64_t i = 0; i < num_rows * num_tokens; i++) {
    check_token(tokens[i]);
    if (request.targets) check_token(request.targets[i]);
  }
  const int64_t vocab_size = model_.shape.target_vocab_size;
  if (request.k < 0 || request.k > vocab_size)
    throw std::invalid_argument("k must be from 0 to " + std::to_string(vocab_size) + ", not " +
                                std::to_string(request.k));
  model_.target_positions->check_length(length_ + num_tokens);
}

void DecoderState::step(const int32_t* tokens, int64_t num_rows, int64_t num_tokens, const StepRequest& request,
                        const AttentionOptions& attention) {
  check_step(tokens, num_rows, num_tokens, request);
  append(tokens, num_tokens, &request, attention);
}

void DecoderState::grow_capacity(int64_t capacity) {
  const int64_t num_rows = std::ssize(row_texts_);
  std::vector<KeyValueEntry> past(num_rows * capacity);
  for (int64_t row = 0; row < num_rows; row++)
    std::copy_n(past_.begin() + row * capacity_, capacity_, past.begin() + row * capacity);
  past_.swap(past);
  capacity_ = capacity;
  update_biases();
}

unsigned char* DecoderState::reserve(int64_t num_entries, int64_t num_steps) {
  const int64_t num_bytes = num_entries * entry_bytes();
  if (cache_.empty() || cache_.back().num_bytes() - cache_used_ < num_bytes) {
    cache_.emplace_back(&model_.pool, num_steps * num_bytes);
    cache_used_ = 0;
  }
  unsigned char* reserved = cache_.back().as<unsigned char>() + cache_used_;
  cache_used_ += num_bytes;
  return reserved;
}

void DecoderState::store_key_value(const float* key_value, int64_t layer, KeyValueEntry entry) const {
  const HeadSizes& heads = stack_.ops.heads;
  const int64_t size = key_value_width(heads);
  const int64_t layer_offset = layer * model_.entry_size() * value_bytes();
  unsigned char* to = static_cast<unsigned char*>(const_cast<void*>(entry)) + layer_offset;
  if (is_bf16_)
    stack_.ops.kernels->store_bf16(key_value, size, has_pairs(), reinterpret_cast<uint16_t*>(to));
  else
    std::memcpy(to, key_value, size * sizeof(float));
}

void DecoderState::capture_stored(const SiteOptions& site, int64_t token, int64_t layer, KeyValueEntry entry,
                                  float* key_value) const {
  const HeadSizes& heads = stack_.ops.heads;
  const int64_t layer_offset = layer * model_.entry_size() * value_bytes();
  const unsigned char* from = static_cast<const unsigned char*>(entry) + layer_offset;
  if (is_bf16_)  // float32 is stored as it is
    load_bf16(reinterpret_cast<const uint16_t*>(from), key_value_width(heads), has_pairs(), key_value);
  site.capture(token, nullptr, key_value, key_value + key_width(heads));
}

void DecoderState::forward(const int32_t* tokens, const Rows& rows, int64_t first_row, Workspace& space,
                           const AttentionOptions& options) {
  embed(tokens, rows, space);
  for (int64_t layer = 0; layer < std::ssize(stack_.layers); layer++) {
    self_attend(rows, first_row, layer, space, options.at(REGARD_SITE_DECODER_SELF, layer));
    if (model_.has_encoder())
      cross_attend(rows, first_row, layer, space, options.at(REGARD_SITE_DECODER_CROSS, layer));
    stack_.ops.feed_forward(space, std::ssize(rows), stack_.layers[layer].block->feed_forward);
  }
}

void DecoderState::embed(const int32_t* tokens, const Rows& rows, Workspace& space) const {
  const int64_t hidden_size = model_.hidden_size();
  for (int64_t i = 0; i < std::ssize(rows); i++) {
    float* hidden = space.hidden.row(i);
    model_.target_embedding.copy_row(tokens[i], hidden_size, model_.shape.embedding_scale, hidden);
    std::fill(hidden + hidden_size, hidden + space.hidden.stride, 0.0f);
    model_.target_positions->add(hidden, rows[i].position);
  }
}

void DecoderState::self_attend(const Rows& rows, int64_t first_row, int64_t layer, Workspace& space,
                               const SiteOptions& site) const {
  const LayerOps& ops = stack_.ops;
  const HeadSizes& heads = ops.heads;
  const SelfAttention& attention = stack_.layers[layer].block->self_attention;
  const int64_t num_rows = std::ssize(rows);
  const int64_t window = stack_.layers[layer].settings.window;
  const int64_t key_offset = layer * model_.entry_size();
  ops.linear(space, space.hidden, num_rows, attention.qkv, space.projected, {.norm = attention.norms.input});
  for (int64_t i = 0; i < num_rows; i++) {
    const auto [text, entries, position] = rows[i];
    const int64_t first_visible = window ? std::max(position - window, int64_t{0}) : 0;
    const bool has_next = i + 1 < num_rows;
    float* qkv = space.projected.row(i);
    ops.normalize_heads(space, qkv, heads.num_heads, attention.query_norm);
    ops.normalize_heads(space, qkv + query_width(heads), heads.num_kv_heads, attention.key_norm);
    stack_.layers[layer].rotary.rotate(qkv, heads.num_heads + heads.num_kv_heads, position);
    float* key_value = qkv + query_width(heads);
    store_key_value(key_value, layer, entries[position]);
    if (site.is_captured()) {
      site.capture(first_row + i, qkv, nullptr, nullptr);
      capture_stored(site, first_row + i, layer, entries[position], key_value);
    }
    ops.kernels->decode_attention({
        .queries = qkv,
        .query_stride = space.projected.stride,
        .num_rows = 1,
        .entries = entries + first_visible,
        .is_bf16 = is_bf16_,
        .num_entries = position + 1 - first_visible,
        .key_offset = key_offset,
        .value_offset = key_offset + key_width(heads),
        .heads = heads,
        .bias = biases_[layer].center(),
        .bias_stride = biases_[layer].head_stride(),
        .scores = space.scores,
        .context = space.context.row(i),
        .context_stride = space.context.stride,
        .next_entries = has_next ? rows[i + 1].entries : nullptr,
        .num_next_entries = has_next ? rows[i + 1].position : 0,
    });
    if (site.is_ablated()) site.ablate(space.context.row(i));
  }
  ops.add_attention(space, num_rows, attention.out, attention.norms);
}

int64_t DecoderState::end_of_text(const Rows& rows, int64_t first) {
  int64_t row = first + 1;
  while (row < std::ssize(rows) && rows[row].text == rows[first].text) row++;
  return row;
}

void DecoderState::cross_attend(const Rows& rows, int64_t first_row, int64_t layer, Workspace& space,
                                const SiteOptions& site) const {
  const LayerOps& ops = stack_.ops;
  const CrossAttention& attention = stack_.layers[layer].block->cross_attention;
  const int64_t key_offset = layer * model_.entry_size();
  const int64_t num_rows = std::ssize(rows);
  const auto source_start = [&](int64_t row) { return int64_t{source_offsets_[rows[row].text]}; };
  const auto source_length = [&](int64_t row) { return source_offsets_[rows[row].text + 1] - source_start(row); };
  ops.linear(space, space.hidden, num_rows, attention.query, space.projected, {.norm = attention.norms.input});
  for (int64_t i = 0; i < num_rows; i++) {
    ops.normalize_heads(space, space.projected.row(i), ops.heads.num_heads, attention.query_norm);
    if (site.is_captured()) site.capture(first_row + i, space.projected.row(i), nullptr, nullptr);
  }
  for (int64_t row = 0, next_row; row < num_rows; row = next_row) {  // rows of one text attend together
    next_row = end_of_text(rows, row);
    const bool has_next = next_row < num_rows;
    ops.kernels->decode_attention({
        .queries = space.projected.row(row),
        .query_stride = space.projected.stride,
        .num_rows = next_row - row,
        .entries = source_entries_.data() + source_start(row),
        .is_bf16 = is_bf16_,
        .num_entries = source_length(row),
        .key_offset = key_offset,
        .value_offset = key_offset + key_width(ops.heads),
        .heads = ops.heads,
        .bias = nullptr,
        .bias_stride = 0,
        .scores = space.scores,
        .context = space.context.row(row),
        .context_stride = space.context.stride,
        .next_entries = has_next ? source_entries_.data() + source_start(next_row) : nullptr,
        .num_next_entries = has_next ? source_length(next_row) : 0,
    });
  }
  if (site.is_ablated())
    for (int64_t i = 0; i < num_rows; i++) site.ablate(space.context.row(i));
  ops.add_attention(space, num_rows, attention.out, attention.norms);
}

void DecoderState::set_shortlist(const Lexicon& lexicon, const TokenBatch& source) {
  for (int64_t text = 0; text < source.num_texts; text++) {
    const int32_t* ids = source.ids + source.offsets[text];
    shortlists_.push_back(build_shortlist(model_.pool, model_.output, lexicon, ids, source.length(text)));
  }
}

TopK DecoderState::make_top(int64_t row, const StepRequest& request) const {
  TopK top{.k = request.k, .target = request.targets ? request.targets[row] : model_.shape.eos_id};
  if (request.k) {
    top.logits = request.logprobs + row * request.k;
    top.ids = request.ids + row * request.k;
  }
  return top;
}

void DecoderState::top_k(const Rows& rows, int64_t first_row, Workspace& space, const StepRequest& request) const {
  const int64_t num_rows = std::ssize(rows);
  const int64_t vocab_size = model_.shape.target_vocab_size;
  if (stack_.final_norm)
    stack_.ops.normalize_rows(space.hidden, num_rows, model_.hidden_size(), stack_.final_norm);
  std::vector<TopK> tops;
  for (int64_t i = 0; i < num_rows; i++) {
    stack_.ops.prepare_row(space, i, space.hidden.row(i), model_.output);
    tops.push_back(make_top(first_row + i, request));
  }
  if (shortlists_.empty()) {
    float* all_logits = request.k ? nullptr : request.logprobs + first_row * vocab_size;
    scan_logits(space, 0, num_rows, model_.output, tops.data(), all_logits);
  } else {
    scan_shortlists(rows, space, tops.data());
  }
  // logits → log-probabilities
  const int64_t row_size = request.k ? request.k : vocab_size;
  for (int64_t i = 0; i < num_rows; i++) {
    const TopK& top = tops[i];
    double exp_sum = 0;
    for (float partial_sum : top.exp_sums) exp_sum += static_cast<double>(partial_sum);
    const double log_normalizer = static_cast<double>(top.max_logit) + std::log(exp_sum);
    float* logprobs = request.logprobs + (first_row + i) * row_size;
    for (int64_t j = 0; j < row_size; j++)
      logprobs[j] = static_cast<float>(static_cast<double>(logprobs[j]) - log_normalizer);
    request.target_logprobs[first_row + i] = static_cast<float>(static_cast<double>(top.target_logit) - log_normalizer);
  }
}

// Scores only the tokens of each text's shortlist; indices within it become token ids afterwards.
void DecoderState::scan_shortlists(const Rows& rows, Workspace& space, TopK* tops) const {
  for (int64_t row = 0, next_row; row < std::ssize(rows); row = next_row) {
    next_row = end_of_text(rows, row);
    const Shortlist& shortlist = shortlists_[rows[row].text];
    const int64_t k = tops[0].k;
    if (!k || std::ssize(shortlist.ids) < k)
      throw std::invalid_argument("k = " + std::to_string(k) + " does not fit a shortlist of " +
                                  std::to_string(shortlist.ids.size()) + " tokens");
    TopK* text_tops = tops + row;
    const int64_t num_text_rows = next_row - row;
    for (int64_t i = 0; i < num_text_rows; i++) text_tops[i].target = shortlist.index_of(text_tops[i].target);
    scan_logits(space, row, num_text_rows, shortlist.output, text_tops, nullptr);
    for (int64_t i = 0; i < num_text_rows; i++)
      for (int64_t j = 0; j < k; j++) text_tops[i].ids[j] = shortlist.ids.at(text_tops[i].ids[j]);
  }
}

void DecoderState::scan_logits(Workspace& space, int64_t first, int64_t num_rows, const PackedLinear& output,
                               TopK* tops, float* all_logits) const {
  const Kernels& kernels = *stack_.ops.kernels;
  const int64_t stride = matmul_input_stride(output);
  const MatmulInput rows{
      .values = space.inputs + first * stride * regard::value_bytes(output.precision),
      .stride = stride,
      .scales = space.scales + first,
      .offsets = space.offsets + first,
  };
  for (int64_t block = 0; block < num_blocks(output); block += VOCABULARY_BLOCKS) {
    const int64_t blocks = std::min(VOCABULARY_BLOCKS, num_blocks(output) - block);
    const int64_t first_id = block * LANES;
    const int64_t num_tokens = std::min(blocks * LANES, output.outputs - first_id);
    kernels.matmul(rows, num_rows, output, block, blocks, space.logits.data, space.logits.stride, false);
    for (int64_t i = 0; i < num_rows; i++) {
      float* logits = space.logits.row(i);
      std::fill(logits + num_tokens, logits + blocks * LANES, PADDING_LOGIT);
      kernels.scan_logits(logits, first_id, blocks * LANES, tops[i]);
      if (all_logits) std::copy_n(logits, num_tokens, all_logits + i * output.outputs + first_id);
    }
  }
}

}  // namespace regard
