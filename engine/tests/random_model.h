// A model with random settings and weights, for the test program.
#pragma once
#include <cstring>
#include <vector>

#include "../include/regard_engine.h"

constexpr int32_t BOS_ID = 3;
constexpr int32_t EOS_ID = 1;

// Each array is an allocation of exactly its size: an access beyond it is noticed.
struct RandomModel {
  regard_shape shape{};
  std::vector<regard_layer> encoder_layers;
  std::vector<regard_layer> decoder_layers;
  std::vector<std::vector<char>> memory;
  std::vector<regard_array> arrays;

  RandomModel(int32_t precision, bool has_encoder, bool has_decoder);

  int64_t num_arrays() const { return static_cast<int64_t>(arrays.size()); }
  int64_t hidden_size() const { return hidden_size_; }
  int64_t embedding_size() const { return shape.embedding_size ? shape.embedding_size : hidden_size_; }

 private:
  // First slots of a stack's arrays; those of cross-attention are the decoder's alone.
  struct StackSlots;

  void draw_shape(int32_t precision, bool has_encoder, bool has_decoder);
  regard_block draw_block(bool has_cross_attention) const;
  std::vector<regard_layer> draw_layers(const regard_block& block, int64_t num_layers) const;

  char* add_array(int32_t slot, int32_t part, int64_t layer, int64_t num_bytes);
  template <class Value>
  void add_values(int32_t slot, int32_t part, int64_t layer, const std::vector<Value>& values) {
    const int64_t num_bytes = values.size() * sizeof(Value);
    std::memcpy(add_array(slot, part, layer, num_bytes), values.data(), num_bytes);
  }
  void add_embedding(int32_t slot, int64_t vocab_size);
  void add_table(int32_t slot, int64_t index, int64_t rows, int64_t columns);
  void add_norm(int32_t slot, int64_t layer, int64_t size);
  void add_linear(int32_t slot, int64_t layer, int64_t outputs, int64_t inputs);
  void add_sublayer_norms(const regard_block& block, int32_t slot, int32_t output_slot, int64_t index, bool is_first);
  void add_stack(const regard_block& block, const std::vector<regard_layer>& layers, const StackSlots& slots);
  void add_block(const regard_block& block, const StackSlots& slots, int64_t index);
  void add_cross_attention(const regard_block& block, int64_t index);

  int64_t hidden_size_ = 0;
};
