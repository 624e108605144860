#include "encoder.h"

#include <algorithm>
#include <stdexcept>

#include "parallel.h"

namespace regard {
namespace {

constexpr int64_t MAX_TOKENS = 128;     // encoded together: they stay in the cache, and weights are used often
constexpr int64_t ROWS_PER_THREAD = 8;  // fewer are not worth another thread

// Texts that are encoded together. Each pass owns some of their rows and attends to the keys and values of all.
struct TextRange {
  const TokenBatch& texts;
  int64_t first_text;
  int64_t last_text;
  const DistanceBias* biases;  // of each layer
  const AttentionOptions& attention;
  RowView qkv[2];  // of all rows; two, because other passes may still read those of the previous layer

  int64_t first_token() const { return texts.offsets[first_text]; }
  int64_t num_tokens() const { return texts.offsets[last_text] - first_token(); }
};

// Rows of one text that belong to a pass.
struct TextRows {
  int64_t start;  // row of the text's first token within the range
  int64_t length;
  int64_t first;  // positions of the pass's rows within the text
  int64_t last;
};

// Encodes rows `first_row` to `last_row` of a range in a workspace of its own.
class EncoderPass {
 public:
  EncoderPass(const Model& model, const TextRange& range, int64_t first_row, int64_t last_row, Workspace& space)
      : model_(model),
        stack_(model.encoder),
        range_(range),
        first_row_(first_row),
        last_row_(last_row),
        space_(space) {}

  // One step per layer, and one more. A step reads the queries, keys and values that all passes over the range computed
  // in the previous step.
  void run_step(int64_t step, Needed needed) {
    const int64_t num_layers = std::ssize(stack_.layers);
    if (step == 0)
      embed();
    else
      finish_layer(step - 1, needed == Needed::first_tokens && step == num_layers);
    if (step < num_layers)
      project_qkv(step, range_.qkv[step % 2]);
    else if (stack_.final_norm)
      stack_.ops.normalize_rows(space_.hidden, num_rows(), model_.hidden_size(), stack_.final_norm);
  }

  // All steps of a range that has no other passes.
  void run(Needed needed) {
    for (int64_t step = 0; step <= std::ssize(stack_.layers); step++) run_step(step, needed);
  }

 private:
  int64_t num_rows() const { return last_row_ - first_row_; }

  template <class Function>
  void for_each_text(Function function) const {
    const TokenBatch& texts = range_.texts;
    for (int64_t text = range_.first_text; text < range_.last_text; text++) {
      const int64_t start = texts.offsets[text] - range_.first_token();
      const int64_t length = texts.length(text);
      const TextRows rows{
          .start = start,
          .length = length,
          .first = std::max(int64_t{0}, first_row_ - start),
          .last = std::min(length, last_row_ - start),
      };
      if (rows.first < rows.last) function(rows);
    }
  }

  void embed() {
    const bool is_projected = model_.shape.embedding_size > 0;
    const RowView embeddings = is_projected ? space_.projected : space_.hidden;
    for_each_text([&](const TextRows& rows) {
      for (int64_t position = rows.first; position < rows.last; position++)
        embed_token(range_.first_token() + rows.start + position, position,
                    embeddings.row(rows.start + position - first_row_));
    });
    const LayerOps& ops = stack_.ops;
    if (model_.embedding_norm)
      ops.normalize_rows(embeddings, num_rows(), model_.embedding_size(), model_.embedding_norm);
    if (is_projected) ops.linear(space_, embeddings, num_rows(), model_.embedding_projection, space_.hidden);
  }

  void embed_token(int64_t token, int64_t position, float* row) {
    const regard_shape& shape = model_.shape;
    const int64_t size = model_.embedding_size();
    const TokenBatch& texts = range_.texts;
    model_.source_embedding.copy_row(texts.ids[token], size, shape.embedding_scale, row);
    // norms of a damaged file may have filled the padding
    std::fill(row + size, row + pad(size) + LANES, 0.0f);
    model_.source_positions->add(row, shape.position_offset + position);
    if (!shape.num_token_types) return;
    const int64_t token_type = texts.token_types ? texts.token_types[token] : 0;
    const float* embedding = model_.token_type_embedding + token_type * size;
    for (int64_t i = 0; i < size; i++) row[i] += embedding[i];
  }

  void project_qkv(int64_t index, RowView qkv) {
    const LayerOps& ops = stack_.ops;
    const Layer& layer = stack_.layers[index];
    const SelfAttention& attention = layer.block->self_attention;
    const RowView own_rows{qkv.row(first_row_), qkv.stride};
    ops.linear(space_, space_.hidden, num_rows(), attention.qkv, own_rows, {.norm = attention.norms.input});
    if (attention.query_norm || layer.rotary) place_heads(layer, qkv);
    const SiteOptions& site = range_.attention.at(REGARD_SITE_ENCODER_SELF, index);
    if (!site.is_captured()) return;
    for (int64_t row = first_row_; row < last_row_; row++) site.capture_qkv(range_.first_token() + row, qkv.row(row));
  }

  // Normalizes queries and keys and rotates them to their positions.
  void place_heads(const Layer& layer, RowView qkv) {
    const LayerOps& ops = stack_.ops;
    const SelfAttention& attention = layer.block->self_attention;
    for_each_text([&](const TextRows& rows) {
      for (int64_t position = rows.first; position < rows.last; position++) {
        float* row = qkv.row(rows.start + position);
        ops.normalize_heads(space_, row, ops.heads.num_heads, attention.query_norm);
        ops.normalize_heads(space_, row + query_width(ops.heads), ops.heads.num_kv_heads, attention.key_norm);
        layer.rotary.rotate(row, ops.heads.num_heads + ops.heads.num_kv_heads, position);
      }
    });
  }

  // A layer after its projections.
  void finish_layer(int64_t layer, bool first_tokens_only) {
    const int64_t rows = self_attend(layer, range_.qkv[layer % 2], first_tokens_only);
    stack_.ops.feed_forward(space_, rows, stack_.layers[layer].block->feed_forward);
    if (first_tokens_only) restore_rows(rows);
  }

  // Every token attends to all tokens of its text, to those of a window, or to no later ones. If only the texts' first
  // tokens do, their hidden states are moved to the front. Returns the number of rows.
  int64_t self_attend(int64_t layer, RowView qkv, bool first_tokens_only) {
    const SelfAttention& attention = stack_.layers[layer].block->self_attention;
    const DistanceBias& bias = range_.biases[layer];
    int64_t num_moved = 0;
    for_each_text([&](const TextRows& rows) {
      if (first_tokens_only && rows.first > 0) return;
      const int64_t row = first_tokens_only ? num_moved++ : rows.start + rows.first - first_row_;
      stack_.ops.kernels->encode_attention({
          .qkv = qkv.row(rows.start),
          .qkv_stride = qkv.stride,
          .num_tokens = rows.length,
          .first_row = rows.first,
          .last_row = first_tokens_only ? 1 : rows.last,
          .heads = stack_.ops.heads,
          .window = stack_.layers[layer].settings.window,
          .bias = bias.center(),
          .bias_stride = bias.head_stride(),
          .scratch = space_.scores,
          .context = space_.context.row(row),
          .context_stride = space_.context.stride,
      });
      if (first_tokens_only) move_row(rows.start - first_row_, row);
    });
    const int64_t num_attending = first_tokens_only ? num_moved : num_rows();
    const SiteOptions& site = range_.attention.at(REGARD_SITE_ENCODER_SELF, layer);
    if (site.is_ablated())
      for (int64_t row = 0; row < num_attending; row++) site.ablate(space_.context.row(row));
    stack_.ops.add_attention(space_, num_attending, attention.out, attention.norms);
    return num_attending;
  }

  void move_row(int64_t from, int64_t to) {
    if (from != to) std::copy_n(space_.hidden.row(from), space_.hidden.stride, space_.hidden.row(to));
  }

  // Moves the hidden states at the front back to their texts' first tokens, the last one first.
  void restore_rows(int64_t num_moved) {
    std::vector<int64_t> first_tokens;
    for_each_text([&](const TextRows& rows) {
      if (rows.first == 0) first_tokens.push_back(rows.start - first_row_);
    });
    for (int64_t i = num_moved - 1; i >= 0; i--) move_row(i, first_tokens[i]);
  }

  const Model& model_;
  const Stack& stack_;
  const TextRange& range_;
  const int64_t first_row_;
  const int64_t last_row_;
  Workspace& space_;
};

// Boundaries of ranges of at most `max_tokens` tokens; a longer text is a range of its own.
std::vector<int64_t> split_texts(const TokenBatch& texts, int64_t max_tokens) {
  std::vector<int64_t> boundaries{0};
  for (int64_t text = 1; text < texts.num_texts; text++)
    if (texts.offsets[text + 1] - texts.offsets[boundaries.back()] > max_tokens) boundaries.push_back(text);
  boundaries.push_back(texts.num_texts);
  return boundaries;
}

// One call of `encode`. All memory belongs to the calling thread: helpers may outlive the call, and the model.
class BatchEncoder {
 public:
  BatchEncoder(const Model& model, const TokenBatch& texts, int64_t threads, Needed needed,
               const AttentionOptions& attention)
      : model_(model),
        texts_(texts),
        threads_(threads),
        needed_(needed),
        attention_(attention),
        max_length_(texts.max_length()) {
    const int64_t tokens_per_thread = (texts.num_tokens() + threads - 1) / threads;
    boundaries_ = split_texts(texts, std::min(MAX_TOKENS, std::max(tokens_per_thread, int64_t{1})));
    max_rows_ = std::min(texts.num_tokens(), std::max(MAX_TOKENS, max_length_));
    qkv_stride_ = row_stride(qkv_width(model.encoder.ops.heads));
    for (const Layer& layer : model.encoder.layers)
      biases_.push_back(layer.distance_bias(model.encoder.ops.heads.num_heads, false, max_length_));
  }

  void run(const HiddenCallback& callback) {
    if (num_ranges() >= threads_ || threads_ == 1)
      encode_ranges_in_parallel(callback);
    else
      encode_rows_in_parallel(callback);
  }

 private:
  int64_t num_ranges() const { return std::ssize(boundaries_) - 1; }

  Workspace make_workspace(int64_t num_rows) const {
    const HeadSizes& heads = model_.encoder.ops.heads;
    const WorkspaceSize size{
        .num_rows = num_rows,
        .hidden_size = model_.hidden_size(),
        .context_size = context_width(heads),
        .projection_size = model_.max_projection_size,
        .scores_size = (heads.head_size + 4) * pad(max_length_),  // EncodeAttention::scratch
    };
    return Workspace(model_.pool, size);
  }

  Buffer make_qkv() const {
    return Buffer(&model_.pool, max_rows_ * qkv_stride_ * static_cast<int64_t>(sizeof(float)));
  }

  RowView qkv_rows(const Buffer& buffer) const { return {buffer.as<float>(), qkv_stride_}; }

  TextRange make_range(int64_t index, RowView even_qkv, RowView odd_qkv) const {
    return {
        .texts = texts_,
        .first_text = boundaries_[index],
        .last_text = boundaries_[index + 1],
        .biases = biases_.data(),
        .attention = attention_,
        .qkv = {even_qkv, odd_qkv},
    };
  }

  // Each thread encodes ranges of its own.
  void encode_ranges_in_parallel(const HiddenCallback& callback) {
    const int64_t num_members = std::min(threads_, num_ranges());
    std::vector<Workspace> spaces;
    std::vector<Buffer> qkv;
    for (int64_t member = 0; member < num_members; member++) {
      spaces.push_back(make_workspace(max_rows_));
      qkv.push_back(make_qkv());
    }
    run_steps(num_members, 1, num_ranges(), [&](int64_t, int64_t index, int64_t member) {
      const RowView rows = qkv_rows(qkv[member]);
      const TextRange range = make_range(index, rows, rows);
      EncoderPass(model_, range, 0, range.num_tokens(), spaces[member]).run(needed_);
      callback(range.first_token(), range.num_tokens(), spaces[member]);
    });
  }

  // All threads encode rows of one range, then of the next.
  void encode_rows_in_parallel(const HiddenCallback& callback) {
    const Buffer even_qkv = make_qkv();
    const Buffer odd_qkv = make_qkv();
    Workspace result = make_workspace(max_rows_);
    const int64_t num_steps = model_.shape.num_encoder_layers + 1;
    for (int64_t index = 0; index < num_ranges(); index++) {
      const TextRange range = make_range(index, qkv_rows(even_qkv), qkv_rows(odd_qkv));
      const int64_t num_tokens = range.num_tokens();
      const int64_t num_parts = std::clamp(num_tokens / ROWS_PER_THREAD, int64_t{1}, threads_);
      std::vector<Workspace> spaces;
      for (int64_t part = 0; part < num_parts; part++) spaces.push_back(make_workspace(num_tokens / num_parts + 1));
      // any thread may compute any part's next step: hidden states are in the part's workspace, not in the thread's
      run_steps(num_parts, num_steps, num_parts, [&](int64_t step, int64_t part, int64_t) {
        const int64_t first_row = num_tokens * part / num_parts;
        const int64_t last_row = num_tokens * (part + 1) / num_parts;
        Workspace& space = spaces[part];
        EncoderPass(model_, range, first_row, last_row, space).run_step(step, needed_);
        if (step + 1 == num_steps) {
          const int64_t num_floats = (last_row - first_row) * space.hidden.stride;
          std::copy_n(space.hidden.data, num_floats, result.hidden.row(first_row));
        }
      });
      callback(range.first_token(), num_tokens, result);
    }
  }

  const Model& model_;
  const TokenBatch& texts_;
  const int64_t threads_;
  const Needed needed_;
  const AttentionOptions& attention_;
  const int64_t max_length_;
  std::vector<DistanceBias> biases_;
  std::vector<int64_t> boundaries_;
  int64_t max_rows_;
  int64_t qkv_stride_;
};

}  // namespace

int64_t TokenBatch::max_length() const {
  int64_t longest = 0;
  for (int64_t text = 0; text < num_texts; text++) longest = std::max(longest, length(text));
  return longest;
}

void TokenBatch::check_offsets() const {
  if (num_texts < 1 || !offsets || offsets[0] != 0) throw std::invalid_argument("offsets must start at 0");
  for (int64_t text = 0; text < num_texts; text++)
    if (length(text) < 0) throw std::invalid_argument("offsets must not decrease");
  if (num_tokens() && !ids) throw std::invalid_argument("ids are missing");
}

void TokenBatch::check(const Model& model) const {
  const regard_shape& shape = model.shape;
  if (!model.has_encoder()) throw std::invalid_argument("this model has no encoder: it generates and does not encode");
  check_offsets();
  for (int64_t text = 0; text < num_texts; text++) {
    if (!length(text)) throw std::invalid_argument("a source text has no tokens");
    model.source_positions->check_length(length(text) + shape.position_offset);
  }
  for (int64_t i = 0; i < num_tokens(); i++) {
    if (ids[i] < 0 || ids[i] >= shape.source_vocab_size)
      throw std::invalid_argument("token " + std::to_string(ids[i]) + " is outside the source vocabulary");
    if (token_types && shape.num_token_types && (token_types[i] < 0 || token_types[i] >= shape.num_token_types))
      throw std::invalid_argument("token type " + std::to_string(token_types[i]) + " is not one of " +
                                  std::to_string(shape.num_token_types));
  }
}

void encode(const Model& model, const TokenBatch& texts, int64_t threads, Needed needed,
            const AttentionOptions& attention, const HiddenCallback& callback) {
  texts.check(model);
  BatchEncoder(model, texts, threads, needed, attention).run(callback);
}

}  // namespace regard
