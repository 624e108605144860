#include "model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <tuple>

#include "instruction_sets.h"
#include "packing.h"
#include "shape.h"

namespace regard {
namespace {

const char* slot_name(int32_t slot) {
  switch (slot) {
    case REGARD_SLOT_SOURCE_EMBEDDING: return "source_embedding";
    case REGARD_SLOT_TARGET_EMBEDDING: return "target_embedding";
    case REGARD_SLOT_SOURCE_POSITIONS: return "source_positions";
    case REGARD_SLOT_TARGET_POSITIONS: return "target_positions";
    case REGARD_SLOT_TOKEN_TYPES: return "token_types";
    case REGARD_SLOT_EMBEDDING_NORM: return "embedding_norm";
    case REGARD_SLOT_ENCODER_NORM: return "encoder_norm";
    case REGARD_SLOT_DECODER_NORM: return "decoder_norm";
    case REGARD_SLOT_OUTPUT: return "output";
    case REGARD_SLOT_EMBEDDING_PROJECTION: return "embedding_projection";
    case REGARD_SLOT_ENCODER_SELF_NORM: return "encoder_self_norm";
    case REGARD_SLOT_ENCODER_SELF_QKV: return "encoder_self_qkv";
    case REGARD_SLOT_ENCODER_SELF_OUT: return "encoder_self_out";
    case REGARD_SLOT_ENCODER_FEED_FORWARD_NORM: return "encoder_feed_forward_norm";
    case REGARD_SLOT_ENCODER_FEED_FORWARD_UP: return "encoder_feed_forward_up";
    case REGARD_SLOT_ENCODER_FEED_FORWARD_DOWN: return "encoder_feed_forward_down";
    case REGARD_SLOT_ENCODER_SELF_OUTPUT_NORM: return "encoder_self_output_norm";
    case REGARD_SLOT_ENCODER_SELF_QUERY_NORM: return "encoder_self_query_norm";
    case REGARD_SLOT_ENCODER_SELF_KEY_NORM: return "encoder_self_key_norm";
    case REGARD_SLOT_ENCODER_FEED_FORWARD_OUTPUT_NORM: return "encoder_feed_forward_output_norm";
    case REGARD_SLOT_ENCODER_RELATIVE_BIAS: return "encoder_relative_bias";
    case REGARD_SLOT_DECODER_SELF_NORM: return "decoder_self_norm";
    case REGARD_SLOT_DECODER_SELF_QKV: return "decoder_self_qkv";
    case REGARD_SLOT_DECODER_SELF_OUT: return "decoder_self_out";
    case REGARD_SLOT_DECODER_CROSS_NORM: return "decoder_cross_norm";
    case REGARD_SLOT_DECODER_CROSS_QUERY: return "decoder_cross_query";
    case REGARD_SLOT_DECODER_CROSS_KEY_VALUE: return "decoder_cross_key_value";
    case REGARD_SLOT_DECODER_CROSS_OUT: return "decoder_cross_out";
    case REGARD_SLOT_DECODER_FEED_FORWARD_NORM: return "decoder_feed_forward_norm";
    case REGARD_SLOT_DECODER_FEED_FORWARD_UP: return "decoder_feed_forward_up";
    case REGARD_SLOT_DECODER_FEED_FORWARD_DOWN: return "decoder_feed_forward_down";
    case REGARD_SLOT_DECODER_SELF_OUTPUT_NORM: return "decoder_self_output_norm";
    case REGARD_SLOT_DECODER_SELF_QUERY_NORM: return "decoder_self_query_norm";
    case REGARD_SLOT_DECODER_SELF_KEY_NORM: return "decoder_self_key_norm";
    case REGARD_SLOT_DECODER_CROSS_OUTPUT_NORM: return "decoder_cross_output_norm";
    case REGARD_SLOT_DECODER_CROSS_QUERY_NORM: return "decoder_cross_query_norm";
    case REGARD_SLOT_DECODER_CROSS_KEY_NORM: return "decoder_cross_key_norm";
    case REGARD_SLOT_DECODER_FEED_FORWARD_OUTPUT_NORM: return "decoder_feed_forward_output_norm";
    case REGARD_SLOT_DECODER_RELATIVE_BIAS: return "decoder_relative_bias";
    default: return "unknown";
  }
}

const char* part_name(int32_t part) {
  switch (part) {
    case REGARD_PART_WEIGHT: return "weight";
    case REGARD_PART_BIAS: return "bias";
    case REGARD_PART_SCALES: return "scales";
    case REGARD_PART_CORRECTIONS: return "corrections";
    default: return "unknown";
  }
}

std::string array_name(int32_t slot, int32_t part, int64_t layer) {
  return std::string("array ") + slot_name(slot) + "." + part_name(part) + " of layer " + std::to_string(layer);
}

// Slots of an encoder's or a decoder's blocks; cross-attention has its own.
struct StackSlots {
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

constexpr StackSlots ENCODER_SLOTS{
    .self_norm = REGARD_SLOT_ENCODER_SELF_NORM,
    .self_output_norm = REGARD_SLOT_ENCODER_SELF_OUTPUT_NORM,
    .self_query_norm = REGARD_SLOT_ENCODER_SELF_QUERY_NORM,
    .self_key_norm = REGARD_SLOT_ENCODER_SELF_KEY_NORM,
    .self_qkv = REGARD_SLOT_ENCODER_SELF_QKV,
    .self_out = REGARD_SLOT_ENCODER_SELF_OUT,
    .feed_forward_norm = REGARD_SLOT_ENCODER_FEED_FORWARD_NORM,
    .feed_forward_output_norm = REGARD_SLOT_ENCODER_FEED_FORWARD_OUTPUT_NORM,
    .feed_forward_up = REGARD_SLOT_ENCODER_FEED_FORWARD_UP,
    .feed_forward_down = REGARD_SLOT_ENCODER_FEED_FORWARD_DOWN,
    .relative_bias = REGARD_SLOT_ENCODER_RELATIVE_BIAS,
    .final_norm = REGARD_SLOT_ENCODER_NORM,
};
constexpr StackSlots DECODER_SLOTS{
    .self_norm = REGARD_SLOT_DECODER_SELF_NORM,
    .self_output_norm = REGARD_SLOT_DECODER_SELF_OUTPUT_NORM,
    .self_query_norm = REGARD_SLOT_DECODER_SELF_QUERY_NORM,
    .self_key_norm = REGARD_SLOT_DECODER_SELF_KEY_NORM,
    .self_qkv = REGARD_SLOT_DECODER_SELF_QKV,
    .self_out = REGARD_SLOT_DECODER_SELF_OUT,
    .feed_forward_norm = REGARD_SLOT_DECODER_FEED_FORWARD_NORM,
    .feed_forward_output_norm = REGARD_SLOT_DECODER_FEED_FORWARD_OUTPUT_NORM,
    .feed_forward_up = REGARD_SLOT_DECODER_FEED_FORWARD_UP,
    .feed_forward_down = REGARD_SLOT_DECODER_FEED_FORWARD_DOWN,
    .relative_bias = REGARD_SLOT_DECODER_RELATIVE_BIAS,
    .final_norm = REGARD_SLOT_DECODER_NORM,
};

// Finds arrays by slot, part and layer, and checks their sizes; each is taken once.
class ArrayReader {
 public:
  ArrayReader(int32_t precision, const regard_array* arrays, int64_t num_arrays) : precision_(precision) {
    for (int64_t i = 0; i < num_arrays; i++) {
      const regard_array& array = arrays[i];
      const bool is_new = remaining_.emplace(Key{array.slot, array.part, array.layer}, &array).second;
      if (!is_new) throw std::invalid_argument(array_name(array.slot, array.part, array.layer) + " was given twice");
    }
  }

  // [rows, columns]
  const float* table(int32_t slot, int64_t index, int64_t rows, int64_t columns) {
    return take_floats(slot, REGARD_PART_WEIGHT, index, rows * columns);
  }

  Embedding embedding(int32_t slot, int64_t vocab_size, int64_t hidden_size) {
    const bool is_bf16 = precision_ != FLOAT32;
    const int64_t num_bytes = vocab_size * hidden_size * (is_bf16 ? 2 : 4);
    return {.table = take(slot, REGARD_PART_WEIGHT, 0, num_bytes), .is_bf16 = is_bf16};
  }

  Norm norm(int32_t slot, int64_t layer, int64_t size) {
    return {
        .weight = take_floats(slot, REGARD_PART_WEIGHT, layer, pad(size)),
        .bias = take_floats(slot, REGARD_PART_BIAS, layer, pad(size)),
    };
  }

  PackedLinear linear(int32_t slot, int64_t layer, int64_t outputs, int64_t inputs) {
    const bool is_int8 = precision_ == INT8;
    const int64_t size = pad(outputs);
    const int64_t weight_bytes = packed_bytes(outputs, inputs, precision_);
    PackedLinear linear{
        .precision = precision_,
        .outputs = outputs,
        .inputs = inputs,
        .packed = take(slot, REGARD_PART_WEIGHT, layer, weight_bytes),
    };
    if (is_int8) {
      const int64_t corrections_bytes = size * static_cast<int64_t>(sizeof(int32_t));
      linear.scales = take_floats(slot, REGARD_PART_SCALES, layer, size);
      linear.corrections = static_cast<const int32_t*>(take(slot, REGARD_PART_CORRECTIONS, layer, corrections_bytes));
    }
    linear.bias = take_floats(slot, REGARD_PART_BIAS, layer, size);
    return linear;
  }

  void check_all_taken() const {
    if (remaining_.empty()) return;
    const auto& [slot, part, layer] = remaining_.begin()->first;
    throw std::invalid_argument(array_name(slot, part, layer) + " is not part of this model");
  }

 private:
  using Key = std::tuple<int32_t, int32_t, int64_t>;

  const void* take(int32_t slot, int32_t part, int64_t layer, int64_t num_bytes) {
    const std::string name = array_name(slot, part, layer);
    const auto entry = remaining_.find({slot, part, layer});
    if (entry == remaining_.end()) throw std::invalid_argument(name + " is missing");
    const regard_array& array = *entry->second;
    if (!array.data || array.num_bytes != num_bytes)
      throw std::invalid_argument(name + " has " + std::to_string(array.num_bytes) + " bytes instead of " +
                                  std::to_string(num_bytes));
    if (reinterpret_cast<uintptr_t>(array.data) % 4) throw std::invalid_argument(name + " is not aligned");
    remaining_.erase(entry);
    return array.data;
  }

  const float* take_floats(int32_t slot, int32_t part, int64_t layer, int64_t count) {
    return static_cast<const float*>(take(slot, part, layer, count * static_cast<int64_t>(sizeof(float))));
  }

  int32_t precision_;
  std::map<Key, const regard_array*> remaining_;
};

// Reads the blocks and layers of a stack.
class StackReader {
 public:
  StackReader(ArrayReader& arrays, const regard_block& block, const StackSlots& slots, const LayerOps& ops)
      : arrays_(arrays), block_(block), slots_(slots), ops_(ops) {}

  Stack read(const regard_layer* layers, int64_t num_layers) {
    Stack stack;
    stack.ops = ops_;
    int64_t num_blocks = 0;
    for (int64_t i = 0; i < num_layers; i++) num_blocks = std::max(num_blocks, layers[i].block + 1);
    for (int64_t index = 0; index < num_blocks; index++)
      stack.blocks.push_back({
          .self_attention = self_attention(index),
          .cross_attention = block_.cross_attention ? cross_attention(index) : CrossAttention{},
          .feed_forward = feed_forward(index),
      });
    for (int64_t i = 0; i < num_layers; i++)
      stack.layers.push_back({
          .block = &stack.blocks[layers[i].block],
          .settings = layers[i],
          .rotary = Rotary(layers[i], ops_.heads.head_size),
          .bias_table = bias_table(layers[i]),
      });
    if (has_input_norms()) stack.final_norm = norm(slots_.final_norm, 0);
    return stack;
  }

 private:
  bool has_input_norms() const {
    return block_.norm_placement == REGARD_PLACEMENT_PRE || block_.norm_placement == REGARD_PLACEMENT_BOTH;
  }

  Norm norm(int32_t slot, int64_t index) { return arrays_.norm(slot, index, block_.hidden_size); }

  Norm head_norm(int32_t slot, int64_t index) {
    return block_.qk_norm ? arrays_.norm(slot, index, ops_.heads.head_size) : Norm{};
  }

  SublayerNorms sublayer_norms(int32_t slot, int32_t output_slot, int64_t index) {
    SublayerNorms norms;
    if (block_.norm_placement == REGARD_PLACEMENT_NONE) return norms;
    const bool is_first_attention = slot == slots_.self_norm && index == 0;
    if (block_.first_attention_norm || !is_first_attention)
      (has_input_norms() ? norms.input : norms.sum) = norm(slot, index);
    if (block_.norm_placement == REGARD_PLACEMENT_BOTH) norms.output = norm(output_slot, index);
    return norms;
  }

  SelfAttention self_attention(int64_t index) {
    const HeadSizes& heads = ops_.heads;
    return {
        .norms = sublayer_norms(slots_.self_norm, slots_.self_output_norm, index),
        .query_norm = head_norm(slots_.self_query_norm, index),
        .key_norm = head_norm(slots_.self_key_norm, index),
        .qkv = arrays_.linear(slots_.self_qkv, index, qkv_width(heads), block_.hidden_size),
        .out = arrays_.linear(slots_.self_out, index, block_.hidden_size, context_width(heads)),
    };
  }

  CrossAttention cross_attention(int64_t index) {
    const HeadSizes& heads = ops_.heads;
    const int64_t hidden_size = block_.hidden_size;
    return {
        .norms = sublayer_norms(REGARD_SLOT_DECODER_CROSS_NORM, REGARD_SLOT_DECODER_CROSS_OUTPUT_NORM, index),
        .query_norm = head_norm(REGARD_SLOT_DECODER_CROSS_QUERY_NORM, index),
        .key_norm = head_norm(REGARD_SLOT_DECODER_CROSS_KEY_NORM, index),
        .query = arrays_.linear(REGARD_SLOT_DECODER_CROSS_QUERY, index, query_width(heads), hidden_size),
        .key_value = arrays_.linear(REGARD_SLOT_DECODER_CROSS_KEY_VALUE, index, key_value_width(heads), hidden_size),
        .out = arrays_.linear(REGARD_SLOT_DECODER_CROSS_OUT, index, hidden_size, context_width(heads)),
    };
  }

  FeedForward feed_forward(int64_t index) {
    const int64_t hidden_size = block_.hidden_size;
    const int64_t inner_size = block_.feed_forward_size;
    return {
        .norms = sublayer_norms(slots_.feed_forward_norm, slots_.feed_forward_output_norm, index),
        .up = arrays_.linear(slots_.feed_forward_up, index, block_.gated ? 2 * inner_size : inner_size, hidden_size),
        .down = arrays_.linear(slots_.feed_forward_down, index, hidden_size, inner_size),
    };
  }

  // Layers that share a table have equally many buckets.
  const float* bias_table(const regard_layer& layer) {
    if (layer.positions != REGARD_POS_RELATIVE) return nullptr;
    auto [entry, is_new] = bias_tables_.try_emplace(layer.bias_table, BiasTable{nullptr, layer.num_buckets});
    BiasTable& table = entry->second;
    if (is_new)
      table.values = arrays_.table(slots_.relative_bias, layer.bias_table, layer.num_buckets, block_.num_heads);
    if (table.num_buckets != layer.num_buckets)
      throw std::invalid_argument("layers that share a relative bias need equal num_buckets");
    return table.values;
  }

  struct BiasTable {
    const float* values;
    int64_t num_buckets;
  };

  ArrayReader& arrays_;
  const regard_block& block_;
  const StackSlots& slots_;
  const LayerOps ops_;
  std::map<int64_t, BiasTable> bias_tables_;
};

}  // namespace

void Embedding::copy_row(int32_t id, int64_t hidden_size, float scale, float* row) const {
  const int64_t offset = id * hidden_size;
  if (is_bf16) {
    const uint16_t* embedding = static_cast<const uint16_t*>(table) + offset;
    for (int64_t i = 0; i < hidden_size; i++) {
      const uint32_t bits = static_cast<uint32_t>(embedding[i]) << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      row[i] = value * scale;
    }
  } else {
    const float* embedding = static_cast<const float*>(table) + offset;
    for (int64_t i = 0; i < hidden_size; i++) row[i] = embedding[i] * scale;
  }
}

Model::Model(const regard_shape& model_shape, const regard_array* arrays, int64_t num_arrays,
             const std::string& instruction_set)
    : shape(model_shape) {
  check_shape(shape);
  const Kernels& kernels = find_kernels(instruction_set);
  ArrayReader reader(shape.precision, arrays, num_arrays);
  const auto read_stack = [&](const regard_block& block, const StackSlots& slots, const regard_layer* layers,
                              int64_t num_layers) {
    const LayerOps ops{
        .kernels = &kernels,
        .heads = head_sizes(block),
        .activation = block.activation,
        .is_gated = block.gated != 0,
        .is_rms_norm = block.norm != REGARD_NORM_LAYER,
        .has_residual = block.residual != 0,
        .norm_eps = block.norm_eps,
    };
    return StackReader(reader, block, slots, ops).read(layers, num_layers);
  };
  const auto read_positions = [&](int32_t slot) {
    const float* learned = nullptr;
    if (shape.positions == REGARD_POS_LEARNED) learned = reader.table(slot, 0, shape.max_positions, embedding_size());
    return std::make_unique<Positions>(shape.positions, shape.max_positions, embedding_size(), learned);
  };
  if (has_encoder()) {
    source_embedding = reader.embedding(REGARD_SLOT_SOURCE_EMBEDDING, shape.source_vocab_size, embedding_size());
    source_positions = read_positions(REGARD_SLOT_SOURCE_POSITIONS);
    encoder = read_stack(shape.encoder, ENCODER_SLOTS, shape.encoder_layers, shape.num_encoder_layers);
  }
  if (shape.num_token_types)
    token_type_embedding = reader.table(REGARD_SLOT_TOKEN_TYPES, 0, shape.num_token_types, embedding_size());
  if (shape.embedding_norm) embedding_norm = reader.norm(REGARD_SLOT_EMBEDDING_NORM, 0, embedding_size());
  if (shape.embedding_size)
    embedding_projection = reader.linear(REGARD_SLOT_EMBEDDING_PROJECTION, 0, hidden_size(), shape.embedding_size);
  if (has_decoder()) {
    if (has_encoder() && shape.share_embeddings)
      target_embedding = source_embedding;
    else
      target_embedding = reader.embedding(REGARD_SLOT_TARGET_EMBEDDING, shape.target_vocab_size, hidden_size());
    target_positions = read_positions(REGARD_SLOT_TARGET_POSITIONS);
    decoder = read_stack(shape.decoder, DECODER_SLOTS, shape.decoder_layers, shape.num_decoder_layers);
    output = reader.linear(REGARD_SLOT_OUTPUT, 0, shape.target_vocab_size, hidden_size());
  }
  reader.check_all_taken();
  max_projection_size = std::max(hidden_size(), embedding_size());
  for (const Stack* stack : {&encoder, &decoder})
    for (const Block& block : stack->blocks)
      max_projection_size = std::max({max_projection_size, block.self_attention.qkv.outputs,
                                      block.self_attention.out.inputs, block.cross_attention.key_value.outputs,
                                      block.feed_forward.up.outputs});
  shape.encoder_layers = nullptr;  // the caller's
  shape.decoder_layers = nullptr;
}

}  // namespace regard
