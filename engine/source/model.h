// Weights and settings of an encoder–decoder, an encoder alone, or a causal language model.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "../include/regard_engine.h"
#include "buffer_pool.h"
#include "layers.h"
#include "positions.h"

namespace regard {

struct EncoderBlock {
  SelfAttention self_attention;
  FeedForward feed_forward;
};

struct DecoderBlock {
  SelfAttention self_attention;
  CrossAttention cross_attention;  // of an encoder–decoder
  FeedForward feed_forward;
};

// Token embeddings: float32, or bf16 in the lower precisions.
struct Embedding {
  const void* table = nullptr;  // [vocabulary, hidden_size]
  bool is_bf16 = false;

  // row = embedding of the token · scale
  void copy_row(int32_t id, int64_t hidden_size, float scale, float* row) const;
};

struct Model {
  Model(const regard_shape& shape, const regard_array* arrays, int64_t num_arrays, const std::string& instruction_set);

  regard_shape shape;
  LayerOps ops;
  Embedding source_embedding;
  Embedding target_embedding;
  std::unique_ptr<Positions> source_positions;
  std::unique_ptr<Positions> target_positions;
  const float* token_type_embedding = nullptr;  // [num_token_types, hidden_size]
  LayerNorm embedding_norm;
  std::vector<EncoderBlock> encoder;
  std::vector<DecoderBlock> decoder;
  LayerNorm encoder_norm;  // of a pre-norm model
  LayerNorm decoder_norm;
  PackedLinear output;
  mutable BufferPool pool;

  bool has_encoder() const { return shape.encoder_layers > 0; }
  bool has_decoder() const { return shape.decoder_layers > 0; }
  // Values of a token's key and value in one layer.
  int64_t entry_size() const { return pad(2 * shape.hidden_size); }
  // Outputs of the widest linear layer but the output.
  int64_t max_projection_size() const;
};

}  // namespace regard
