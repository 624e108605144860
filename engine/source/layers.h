// Layers of a Transformer over rows of float32: layer norm, linear layers, feed-forward.
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

struct LayerNorm {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

struct SelfAttention {
  LayerNorm norm;
  PackedLinear qkv;
  PackedLinear out;
};

struct CrossAttention {
  LayerNorm norm;
  PackedLinear query;
  PackedLinear key_value;
  PackedLinear out;
};

struct FeedForward {
  LayerNorm norm;
  PackedLinear up;
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
  const LayerNorm* norm = nullptr;  // of the inputs
  int activation = IDENTITY;        // of the inputs, in place where there is no norm
  bool should_add = false;          // to the output: a residual connection
};

// Settings that all layers of a model share.
struct LayerOps {
  const Kernels* kernels = nullptr;
  bool pre_norm = false;
  int activation = IDENTITY;
  float norm_eps = 0;

  // out (+)= linear(activation(norm(rows)))
  void linear(Workspace& space, RowView rows, int64_t num_rows, const PackedLinear& linear, RowView out,
              const LinearOptions& options = {}) const;
  // Converts a row to input `index` of a matmul.
  void prepare_row(Workspace& space, int64_t index, const float* row, const PackedLinear& linear) const;
  void normalize_rows(RowView rows, int64_t num_rows, int64_t size, const LayerNorm& norm) const;
  // Adds the attention's projected context to the hidden states.
  void add_attention(Workspace& space, int64_t num_rows, const PackedLinear& out, const LayerNorm& norm) const;
  void feed_forward(Workspace& space, int64_t num_rows, const FeedForward& layer) const;
};

}  // namespace regard
