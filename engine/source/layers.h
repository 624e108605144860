// Layers of a Transformer over rows of float32: norms, linear layers, feed-forward.
#pragma once
#include "buffer_pool.h"
#include "types.h"

namespace regard {

inline int64_t pad(int64_t size) { return (size + LANES - 1) / LANES * LANES; }
inline int64_t num_blocks(const PackedLinear& linear) { return (linear.outputs + LANES - 1) / LANES; }

int64_t value_bytes(int precision);
// Strides are no powers of two: the rows of a tile would compete for the same cache sets.
int64_t matmul_input_stride(const PackedLinear& linear);  // in values
int64_t row_stride(int64_t size);                         // in floats

// A norm of hidden states or heads; without weight, the identity.
struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;  // of a layer norm

  explicit operator bool() const { return weight != nullptr; }
};

// Norms around a sublayer, of which the placement of norms leaves some absent.
struct SublayerNorms {
  Norm input;   // of the hidden states that the sublayer reads
  Norm output;  // of its output, before the residual sum
  Norm sum;     // of the residual sum
};

struct SelfAttention {
  SublayerNorms norms;
  Norm query_norm;  // of each head
  Norm key_norm;
  PackedLinear qkv;
  PackedLinear out;
};

struct CrossAttention {
  SublayerNorms norms;
  Norm query_norm;
  Norm key_norm;
  PackedLinear query;
  PackedLinear key_value;
  PackedLinear out;
};

struct FeedForward {
  SublayerNorms norms;
  PackedLinear up;  // of a gated layer, that of the gate below it
  PackedLinear down;
};

// Rows of floats at equal distances.
struct RowView {
  float* data = nullptr;
  int64_t stride = 0;

  float* row(int64_t index) const { return data + index * stride; }
};

constexpr int64_t VOCABULARY_BLOCKS = 16;  // blocks of 16 logits computed and scanned together
constexpr int64_t LOGIT_STRIDE = (VOCABULARY_BLOCKS + 1) * LANES;

// Sizes of a workspace.
struct WorkspaceSize {
  int64_t num_rows;
  int64_t hidden_size;
  int64_t context_size;     // of the values of all heads
  int64_t projection_size;  // of the widest linear layer but the output
  int64_t scores_size;
};

// Activations of one pass over at most `num_rows` rows.
struct Workspace {
  Workspace(BufferPool& pool, const WorkspaceSize& size);

  Buffer memory;
  RowView hidden;
  RowView context;     // of attention
  RowView projected;   // queries, keys and values, or the feed-forward's inner layer
  float* normed_row;   // one row
  float* scales;       // of quantized rows
  float* offsets;
  float* scores;       // of attention
  RowView logits;
  unsigned char* inputs;  // rows converted for a matmul
};

// What a linear layer does beside the matmul.
struct LinearOptions {
  Norm norm = {};             // of the inputs
  int activation = IDENTITY;  // of the inputs, in place where there is neither norm nor gate
  bool is_gated = false;      // activated inputs are multiplied by the values that follow them
  bool should_add = false;    // to the output: a residual connection
};

// Settings that all blocks of a stack share.
struct LayerOps {
  const Kernels* kernels = nullptr;
  HeadSizes heads;
  int activation = IDENTITY;
  bool is_gated = false;
  bool is_rms_norm = false;
  bool has_residual = true;
  float norm_eps = 0;

  // out (+)= linear(activation(norm(rows)))
  void linear(Workspace& space, RowView rows, int64_t num_rows, const PackedLinear& linear, RowView out,
              const LinearOptions& options = {}) const;
  // Converts a row to input `index` of a matmul.
  void prepare_row(Workspace& space, int64_t index, const float* row, const PackedLinear& linear) const;
  // Normalizes a row; `in` and `out` are padded, and may be the same.
  void normalize(const float* in, int64_t size, const Norm& norm, float* out) const;
  void normalize_rows(RowView rows, int64_t num_rows, int64_t size, const Norm& norm) const;
  // Normalizes adjacent queries or keys of one row, each on its own.
  void normalize_heads(Workspace& space, float* row, int64_t num_heads, const Norm& norm) const;
  // Adds the attention's projected context to the hidden states.
  void add_attention(Workspace& space, int64_t num_rows, const PackedLinear& out, const SublayerNorms& norms) const;
  void feed_forward(Workspace& space, int64_t num_rows, const FeedForward& layer) const;

 private:
  // Adds a sublayer's output, linear(rows), to the hidden states.
  void add_output(Workspace& space, RowView rows, int64_t num_rows, const PackedLinear& linear,
                  const SublayerNorms& norms, LinearOptions options) const;
};

inline int64_t query_width(const HeadSizes& heads) { return heads.num_heads * heads.head_size; }
inline int64_t key_width(const HeadSizes& heads) { return heads.num_kv_heads * heads.head_size; }
inline int64_t key_value_width(const HeadSizes& heads) {
  return heads.num_kv_heads * (heads.head_size + heads.value_size);
}
inline int64_t qkv_width(const HeadSizes& heads) { return query_width(heads) + key_value_width(heads); }
inline int64_t context_width(const HeadSizes& heads) { return heads.num_heads * heads.value_size; }

}  // namespace regard
