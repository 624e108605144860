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

struct Block {
  SelfAttention self_attention;
  CrossAttention cross_attention;  // of an encoder–decoder's decoder
  FeedForward feed_forward;
};

struct Layer {
  const Block* block;
  regard_layer settings;
  Rotary rotary;
  const float* bias_table;  // of a relative bias

  DistanceBias distance_bias(int64_t num_heads, bool is_decoder, int64_t max_length) const {
    return DistanceBias(settings, bias_table, num_heads, is_decoder, max_length);
  }
};

// Blocks in sequence; layers may share them.
struct Stack {
  LayerOps ops;
  std::vector<Block> blocks;
  std::vector<Layer> layers;
  Norm final_norm;  // where blocks normalize their input
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

  // Blocks point into their stack.
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  regard_shape shape;  // its layers are in the stacks
  Embedding source_embedding;
  Embedding target_embedding;
  std::unique_ptr<Positions> source_positions;
  std::unique_ptr<Positions> target_positions;
  const float* token_type_embedding = nullptr;  // [num_token_types, hidden_size]
  Norm embedding_norm;
  PackedLinear embedding_projection;  // of an encoder with smaller embeddings
  Stack encoder;
  Stack decoder;
  PackedLinear output;
  int64_t max_projection_size;  // inputs or outputs of the widest linear layer but the output
  mutable BufferPool pool;

  bool has_encoder() const { return shape.num_encoder_layers > 0; }
  bool has_decoder() const { return shape.num_decoder_layers > 0; }
  int64_t hidden_size() const { return has_encoder() ? shape.encoder.hidden_size : shape.decoder.hidden_size; }
  int64_t embedding_size() const { return shape.embedding_size ? shape.embedding_size : hidden_size(); }
  // Values of a token's key and value in one layer of the decoder.
  int64_t entry_size() const { return pad(key_value_width(decoder.ops.heads)); }
};

}  // namespace regard
