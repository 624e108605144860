#include "random_model.h"

#include <algorithm>
#include <set>

#include "expect.h"

namespace {

bool has_input_norms(const regard_block& block) {
  return block.norm_placement == REGARD_PLACEMENT_PRE || block.norm_placement == REGARD_PLACEMENT_BOTH;
}

int64_t key_size(const regard_block& block) {
  return block.head_size ? block.head_size : block.hidden_size / block.num_heads;
}

int64_t value_size(const regard_block& block) { return block.value_size ? block.value_size : key_size(block); }

int64_t key_value_width(const regard_block& block) {
  const int64_t num_kv_heads = block.num_kv_heads ? block.num_kv_heads : block.num_heads;
  return num_kv_heads * (key_size(block) + value_size(block));
}

}  // namespace

struct RandomModel::StackSlots {
  int32_t self_norm;
  int32_t self_output_norm;
  int32_t self_query_norm;
  int32_t self_key_norm;
  int32_t self_qkv;
  int32_t self_out;
  int32_t feed_forward_norm;
  int32_t feed_forward_output_norm;
  int32_t feed_forward_up;
  int32_t feed_forward_down;
  int32_t relative_bias;
  int32_t final_norm;
};

RandomModel::RandomModel(int32_t precision, bool has_encoder, bool has_decoder) {
  constexpr StackSlots ENCODER_SLOTS{
      REGARD_SLOT_ENCODER_SELF_NORM,         REGARD_SLOT_ENCODER_SELF_OUTPUT_NORM,
      REGARD_SLOT_ENCODER_SELF_QUERY_NORM,   REGARD_SLOT_ENCODER_SELF_KEY_NORM,
      REGARD_SLOT_ENCODER_SELF_QKV,          REGARD_SLOT_ENCODER_SELF_OUT,
      REGARD_SLOT_ENCODER_FEED_FORWARD_NORM, REGARD_SLOT_ENCODER_FEED_FORWARD_OUTPUT_NORM,
      REGARD_SLOT_ENCODER_FEED_FORWARD_UP,   REGARD_SLOT_ENCODER_FEED_FORWARD_DOWN,
      REGARD_SLOT_ENCODER_RELATIVE_BIAS,     REGARD_SLOT_ENCODER_NORM,
  };
  constexpr StackSlots DECODER_SLOTS{
      REGARD_SLOT_DECODER_SELF_NORM,         REGARD_SLOT_DECODER_SELF_OUTPUT_NORM,
      REGARD_SLOT_DECODER_SELF_QUERY_NORM,   REGARD_SLOT_DECODER_SELF_KEY_NORM,
      REGARD_SLOT_DECODER_SELF_QKV,          REGARD_SLOT_DECODER_SELF_OUT,
      REGARD_SLOT_DECODER_FEED_FORWARD_NORM, REGARD_SLOT_DECODER_FEED_FORWARD_OUTPUT_NORM,
      REGARD_SLOT_DECODER_FEED_FORWARD_UP,   REGARD_SLOT_DECODER_FEED_FORWARD_DOWN,
      REGARD_SLOT_DECODER_RELATIVE_BIAS,     REGARD_SLOT_DECODER_NORM,
  };
  draw_shape(precision, has_encoder, has_decoder);
  const bool has_learned_positions = shape.positions == REGARD_POS_LEARNED;
  if (has_encoder) {
    add_embedding(REGARD_SLOT_SOURCE_EMBEDDING, shape.source_vocab_size);
    if (has_learned_positions) add_table(REGARD_SLOT_SOURCE_POSITIONS, 0, shape.max_positions, embedding_size());
    if (shape.num_token_types) add_table(REGARD_SLOT_TOKEN_TYPES, 0, shape.num_token_types, embedding_size());
    if (shape.embedding_norm) add_norm(REGARD_SLOT_EMBEDDING_NORM, 0, embedding_size());
    if (shape.embedding_size) add_linear(REGARD_SLOT_EMBEDDING_PROJECTION, 0, hidden_size_, embedding_size());
    add_stack(shape.encoder, encoder_layers, ENCODER_SLOTS);
  }
  if (has_decoder) {
    const bool shares_embeddings = has_encoder && shape.share_embeddings;
    if (!shares_embeddings) add_embedding(REGARD_SLOT_TARGET_EMBEDDING, shape.target_vocab_size);
    if (has_learned_positions) add_table(REGARD_SLOT_TARGET_POSITIONS, 0, shape.max_positions, hidden_size_);
    add_stack(shape.decoder, decoder_layers, DECODER_SLOTS);
    add_linear(REGARD_SLOT_OUTPUT, 0, shape.target_vocab_size, hidden_size_);
  }
  std::shuffle(arrays.begin(), arrays.end(), rng);  // they are found by slot, not by order
}

void RandomModel::draw_shape(int32_t precision, bool has_encoder, bool has_decoder) {
  const bool is_encoder = !has_decoder;
  const int vocab_size = random_int(12, 300);
  hidden_size_ = 12 * random_int(1, random_int(0, 3) ? 4 : 12);  // 1, 2, 3 or 4 heads
  shape.encoder = draw_block(false);
  shape.decoder = draw_block(has_encoder);
  if (has_encoder) encoder_layers = draw_layers(shape.encoder, random_int(1, 3));
  if (has_decoder) decoder_layers = draw_layers(shape.decoder, random_int(1, 3));
  shape.encoder_layers = encoder_layers.data();
  shape.decoder_layers = decoder_layers.data();
  shape.num_encoder_layers = std::ssize(encoder_layers);
  shape.num_decoder_layers = std::ssize(decoder_layers);
  shape.source_vocab_size = vocab_size;
  shape.target_vocab_size = vocab_size;
  shape.max_positions = is_encoder ? 300 : 40;
  shape.position_offset = is_encoder ? random_int(0, 3) : 0;
  shape.num_token_types = is_encoder ? random_int(0, 3) : 0;
  shape.precision = precision;
  const int positions[] = {REGARD_POS_SINUSOIDAL, REGARD_POS_LEARNED, REGARD_POS_NONE};
  shape.positions = positions[random_int(0, 2)];
  shape.embedding_size = is_encoder && random_int(0, 1) ? random_int(1, 70) : 0;
  shape.embedding_norm = is_encoder ? random_int(0, 1) : 0;
  shape.share_embeddings = random_int(0, 1);
  shape.eos_id = EOS_ID;
  shape.embedding_scale = 1.5f;
}

// Half of the blocks are standard ones, whose heads are equal and have whole blocks of values now and then.
regard_block RandomModel::draw_block(bool has_cross_attention) const {
  const bool is_standard = random_int(0, 1);
  regard_block block{};
  block.hidden_size = hidden_size_;
  block.num_heads = random_int(1, 4);
  block.feed_forward_size = random_int(1, 70);
  block.activation = random_int(REGARD_ACT_RELU, REGARD_ACT_QUICK_GELU);
  block.norm_placement = random_int(REGARD_PLACEMENT_PRE, REGARD_PLACEMENT_POST);
  block.first_attention_norm = 1;
  block.residual = 1;
  block.cross_attention = has_cross_attention;
  block.norm_eps = 1e-5f;
  if (is_standard) return block;
  block.num_kv_heads = block.num_heads % 2 == 0 && random_int(0, 1) ? block.num_heads / 2 : 1;
  block.head_size = random_int(0, 1) ? 16 * random_int(1, 2) : 2 * random_int(1, 12);
  block.value_size = random_int(0, 1) ? 16 * random_int(1, 2) : random_int(0, 20);
  block.gated = random_int(0, 1);
  block.norm = random_int(REGARD_NORM_LAYER, REGARD_NORM_RMS_PLUS_ONE);
  block.norm_placement = random_int(REGARD_PLACEMENT_PRE, REGARD_PLACEMENT_NONE);
  block.first_attention_norm = random_int(0, 1);
  block.residual = random_int(0, 3) > 0;
  block.qk_norm = random_int(0, 1);
  block.attention_scale = random_int(0, 1) ? 0.3f : 0.0f;
  return block;
}

std::vector<regard_layer> RandomModel::draw_layers(const regard_block& block, int64_t num_layers) const {
  const bool has_even_heads = key_size(block) % 2 == 0;
  std::vector<regard_layer> layers;
  for (int64_t i = 0; i < num_layers; i++) {
    regard_layer layer{};
    layer.block = random_int(0, 3) ? i : 0;
    layer.window = random_int(0, 1) ? random_int(1, 40) : 0;
    layer.positions = random_int(REGARD_POS_ROTARY, REGARD_POS_RELATIVE);
    if (layer.positions == REGARD_POS_ROTARY && !has_even_heads) layer.positions = REGARD_POS_NONE;
    if (has_even_heads) layer.rotary_dim = 2 * random_int(0, static_cast<int>(key_size(block) / 2));
    layer.interleaved = random_int(0, 1);
    layer.is_causal = random_int(0, 1);
    layer.theta = 100.0f;
    layer.factor = random_int(0, 1) ? 2.0f : 1.0f;
    layer.bias_table = i / 2;  // shared by two
    layer.num_buckets = 8;
    layer.max_distance = 20;
    layers.push_back(layer);
  }
  layers.back().block = std::min<int64_t>(layers.back().block, num_layers - 1);
  return layers;
}

char* RandomModel::add_array(int32_t slot, int32_t part, int64_t layer, int64_t num_bytes) {
  memory.emplace_back(num_bytes);
  char* data = memory.back().data();
  arrays.push_back({.slot = slot, .part = part, .layer = layer, .data = data, .num_bytes = num_bytes});
  return data;
}

void RandomModel::add_embedding(int32_t slot, int64_t vocab_size) {
  const std::vector<float> values = random_normal(vocab_size * embedding_size(), 0, 0.3f);
  if (shape.precision == REGARD_PRECISION_FLOAT32) return add_values(slot, REGARD_PART_WEIGHT, 0, values);
  std::vector<uint16_t> bf16;
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bf16.push_back(static_cast<uint16_t>(bits >> 16));
  }
  add_values(slot, REGARD_PART_WEIGHT, 0, bf16);
}

void RandomModel::add_table(int32_t slot, int64_t index, int64_t rows, int64_t columns) {
  add_values(slot, REGARD_PART_WEIGHT, index, random_normal(rows * columns, 0, 0.3f));
}

void RandomModel::add_norm(int32_t slot, int64_t layer, int64_t size) {
  add_values(slot, REGARD_PART_WEIGHT, layer, random_normal(pad_to_block(size), 1, 0.1f));
  add_values(slot, REGARD_PART_BIAS, layer, random_normal(pad_to_block(size), 0, 0.1f));
}

void RandomModel::add_linear(int32_t slot, int64_t layer, int64_t outputs, int64_t inputs) {
  const int64_t size = pad_to_block(outputs);
  const std::vector<float> weights = random_normal(outputs * inputs, 0, 0.3f);
  std::vector<float> scales(size);
  std::vector<int32_t> corrections(size);
  const int64_t num_bytes = regard_packed_bytes(outputs, inputs, shape.precision);
  char* packed = add_array(slot, REGARD_PART_WEIGHT, layer, num_bytes);
  expect(regard_pack_weights(weights.data(), outputs, inputs, shape.precision, packed, scales.data(),
                             corrections.data()),
         "weights are packed");
  if (shape.precision == REGARD_PRECISION_INT8) {
    add_values(slot, REGARD_PART_SCALES, layer, scales);
    add_values(slot, REGARD_PART_CORRECTIONS, layer, corrections);
  }
  add_values(slot, REGARD_PART_BIAS, layer, random_normal(size, 0, 0.1f));
}

void RandomModel::add_sublayer_norms(const regard_block& block, int32_t slot, int32_t output_slot, int64_t index,
                                     bool is_first) {
  const bool is_absent = is_first && !block.first_attention_norm;
  if (block.norm_placement != REGARD_PLACEMENT_NONE && !is_absent) add_norm(slot, index, block.hidden_size);
  if (block.norm_placement == REGARD_PLACEMENT_BOTH) add_norm(output_slot, index, block.hidden_size);
}

void RandomModel::add_stack(const regard_block& block, const std::vector<regard_layer>& layers,
                            const StackSlots& slots) {
  int64_t num_blocks = 0;
  std::set<int64_t> tables;
  for (const regard_layer& layer : layers) {
    num_blocks = std::max(num_blocks, layer.block + 1);
    const bool is_relative = layer.positions == REGARD_POS_RELATIVE;
    if (is_relative && tables.insert(layer.bias_table).second)
      add_table(slots.relative_bias, layer.bias_table, layer.num_buckets, block.num_heads);
  }
  for (int64_t index = 0; index < num_blocks; index++) add_block(block, slots, index);
  if (has_input_norms(block)) add_norm(slots.final_norm, 0, block.hidden_size);
}

void RandomModel::add_block(const regard_block& block, const StackSlots& slots, int64_t index) {
  const int64_t qkv_width = block.num_heads * key_size(block) + key_value_width(block);
  add_sublayer_norms(block, slots.self_norm, slots.self_output_norm, index, index == 0);
  add_linear(slots.self_qkv, index, qkv_width, block.hidden_size);
  add_linear(slots.self_out, index, block.hidden_size, block.num_heads * value_size(block));
  if (block.qk_norm) {
    add_norm(slots.self_query_norm, index, key_size(block));
    add_norm(slots.self_key_norm, index, key_size(block));
  }
  if (block.cross_attention) add_cross_attention(block, index);
  add_sublayer_norms(block, slots.feed_forward_norm, slots.feed_forward_output_norm, index, false);
  add_linear(slots.feed_forward_up, index, block.feed_forward_size * (block.gated ? 2 : 1), block.hidden_size);
  add_linear(slots.feed_forward_down, index, block.hidden_size, block.feed_forward_size);
}

void RandomModel::add_cross_attention(const regard_block& block, int64_t index) {
  add_sublayer_norms(block, REGARD_SLOT_DECODER_CROSS_NORM, REGARD_SLOT_DECODER_CROSS_OUTPUT_NORM, index, false);
  add_linear(REGARD_SLOT_DECODER_CROSS_QUERY, index, block.num_heads * key_size(block), block.hidden_size);
  add_linear(REGARD_SLOT_DECODER_CROSS_KEY_VALUE, index, key_value_width(block), block.hidden_size);
  add_linear(REGARD_SLOT_DECODER_CROSS_OUT, index, block.hidden_size, block.num_heads * value_size(block));
  if (block.qk_norm) {
    add_norm(REGARD_SLOT_DECODER_CROSS_QUERY_NORM, index, key_size(block));
    add_norm(REGARD_SLOT_DECODER_CROSS_KEY_NORM, index, key_size(block));
  }
}
