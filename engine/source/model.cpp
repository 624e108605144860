#include "model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <tuple>

#include "instruction_sets.h"
#include "packing.h"

namespace regard {
namespace {

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw std::invalid_argument(std::string(name) + " must be from " + std::to_string(low) + " to " +
                                std::to_string(high) + ", not " + std::to_string(value));
}

void check_heads(const regard_shape& shape, int64_t num_heads) {
  check_range("heads", num_heads, 1, shape.hidden_size);
  const bool is_divisible = shape.hidden_size % num_heads == 0;
  const bool is_rotary = shape.positions == REGARD_POS_ROTARY;
  if (!is_divisible || (is_rotary && shape.hidden_size / num_heads % 2))
    throw std::invalid_argument("heads (" + std::to_string(num_heads) + ") do not fit hidden_size (" +
                                std::to_string(shape.hidden_size) + ")");
}

void check_shape(const regard_shape& shape) {
  constexpr int64_t MAX_LAYERS = 1024;
  constexpr int64_t MAX_VOCAB_SIZE = 1 << 24;
  check_range("precision", shape.precision, FLOAT32, INT8);
  check_range("hidden_size", shape.hidden_size, 1, MAX_INT8_INPUTS);
  check_range("encoder_layers", shape.encoder_layers, 0, MAX_LAYERS);
  const bool has_encoder = shape.encoder_layers > 0;
  check_range("decoder_layers", shape.decoder_layers, has_encoder ? 0 : 1, MAX_LAYERS);
  const bool has_decoder = shape.decoder_layers > 0;
  check_range("activation", shape.activation, RELU, QUICK_GELU);
  check_range("positions", shape.positions, REGARD_POS_SINUSOIDAL, REGARD_POS_NONE);
  check_range("max_positions", shape.max_positions, 1, 1 << 20);
  check_range("position_offset", shape.position_offset, 0, shape.max_positions - 1);
  check_range("num_token_types", shape.num_token_types, 0, 1 << 16);
  if (has_encoder) {
    check_range("encoder_feed_forward_size", shape.encoder_feed_forward_size, 1, MAX_INT8_INPUTS);
    check_range("source_vocab_size", shape.source_vocab_size, 1, MAX_VOCAB_SIZE);
    check_heads(shape, shape.encoder_heads);
  }
  if (has_decoder) {
    check_range("decoder_feed_forward_size", shape.decoder_feed_forward_size, 1, MAX_INT8_INPUTS);
    check_range("target_vocab_size", shape.target_vocab_size, 1, MAX_VOCAB_SIZE);
    check_range("eos_id", shape.eos_id, 0, shape.target_vocab_size - 1);
    check_heads(shape, shape.decoder_heads);
  }
  const bool shares_embeddings = has_encoder && has_decoder && shape.share_embeddings;
  if (shares_embeddings && shape.source_vocab_size != shape.target_vocab_size)
    throw std::invalid_argument("shared embeddings need equal vocabulary sizes");
}

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
    case REGARD_SLOT_ENCODER_SELF_NORM: return "encoder_self_norm";
    case REGARD_SLOT_ENCODER_SELF_QKV: return "encoder_self_qkv";
    case REGARD_SLOT_ENCODER_SELF_OUT: return "encoder_self_out";
    case REGARD_SLOT_ENCODER_FEED_FORWARD_NORM: return "encoder_feed_forward_norm";
    case REGARD_SLOT_ENCODER_FEED_FORWARD_UP: return "encoder_feed_forward_up";
    case REGARD_SLOT_ENCODER_FEED_FORWARD_DOWN: return "encoder_feed_forward_down";
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

// Slots of an encoder's or a decoder's blocks.
struct BlockSlots {
  int32_t self_norm;
  int32_t self_qkv;
  int32_t self_out;
  int32_t feed_forward_norm;
  int32_t feed_forward_up;
  int32_t feed_forward_down;
};

constexpr BlockSlots ENCODER_SLOTS{
    .self_norm = REGARD_SLOT_ENCODER_SELF_NORM,
    .self_qkv = REGARD_SLOT_ENCODER_SELF_QKV,
    .self_out = REGARD_SLOT_ENCODER_SELF_OUT,
    .feed_forward_norm = REGARD_SLOT_ENCODER_FEED_FORWARD_NORM,
    .feed_forward_up = REGARD_SLOT_ENCODER_FEED_FORWARD_UP,
    .feed_forward_down = REGARD_SLOT_ENCODER_FEED_FORWARD_DOWN,
};
constexpr BlockSlots DECODER_SLOTS{
    .self_norm = REGARD_SLOT_DECODER_SELF_NORM,
    .self_qkv = REGARD_SLOT_DECODER_SELF_QKV,
    .self_out = REGARD_SLOT_DECODER_SELF_OUT,
    .feed_forward_norm = REGARD_SLOT_DECODER_FEED_FORWARD_NORM,
    .feed_forward_up = REGARD_SLOT_DECODER_FEED_FORWARD_UP,
    .feed_forward_down = REGARD_SLOT_DECODER_FEED_FORWARD_DOWN,
};

// Finds arrays by slot, part and layer, and checks their sizes; each is taken once.
class ArrayReader {
 public:
  ArrayReader(const regard_shape& shape, const regard_array* arrays, int64_t num_arrays) : shape_(shape) {
    for (int64_t i = 0; i < num_arrays; i++) {
      const regard_array& array = arrays[i];
      const bool is_new = remaining_.emplace(Key{array.slot, array.part, array.layer}, &array).second;
      if (!is_new) throw std::invalid_argument(array_name(array.slot, array.part, array.layer) + " was given twice");
    }
  }

  const float* table(int32_t slot, int64_t rows) {
    return take_floats(slot, REGARD_PART_WEIGHT, 0, rows * shape_.hidden_size);
  }

  Embedding embedding(int32_t slot, int64_t vocab_size) {
    const bool is_bf16 = shape_.precision != FLOAT32;
    const int64_t num_bytes = vocab_size * shape_.hidden_size * (is_bf16 ? 2 : 4);
    return {.table = take(slot, REGARD_PART_WEIGHT, 0, num_bytes), .is_bf16 = is_bf16};
  }

  LayerNorm norm(int32_t slot, int64_t layer = 0) {
    const int64_t size = pad(shape_.hidden_size);
    return {
        .weight = take_floats(slot, REGARD_PART_WEIGHT, layer, size),
        .bias = take_floats(slot, REGARD_PART_BIAS, layer, size),
    };
  }

  PackedLinear linear(int32_t slot, int64_t layer, int64_t outputs, int64_t inputs) {
    const bool is_int8 = shape_.precision == INT8;
    const int64_t size = pad(outputs);
    const int64_t weight_bytes = packed_bytes(outputs, inputs, shape_.precision);
    PackedLinear linear{
        .precision = shape_.precision,
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

  SelfAttention self_attention(const BlockSlots& slots, int64_t layer) {
    const int64_t hidden_size = shape_.hidden_size;
    return {
        .norm = norm(slots.self_norm, layer),
        .qkv = linear(slots.self_qkv, layer, 3 * hidden_size, hidden_size),
        .out = linear(slots.self_out, layer, hidden_size, hidden_size),
    };
  }

  CrossAttention cross_attention(int64_t layer) {
    const int64_t hidden_size = shape_.hidden_size;
    return {
        .norm = norm(REGARD_SLOT_DECODER_CROSS_NORM, layer),
        .query = linear(REGARD_SLOT_DECODER_CROSS_QUERY, layer, hidden_size, hidden_size),
        .key_value = linear(REGARD_SLOT_DECODER_CROSS_KEY_VALUE, layer, 2 * hidden_size, hidden_size),
        .out = linear(REGARD_SLOT_DECODER_CROSS_OUT, layer, hidden_size, hidden_size),
    };
  }

  FeedForward feed_forward(const BlockSlots& slots, int64_t layer, int64_t feed_forward_size) {
    const int64_t hidden_size = shape_.hidden_size;
    return {
        .norm = norm(slots.feed_forward_norm, layer),
        .up = linear(slots.feed_forward_up, layer, feed_forward_size, hidden_size),
        .down = linear(slots.feed_forward_down, layer, hidden_size, feed_forward_size),
    };
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

  const regard_shape& shape_;
  std::map<Key, const regard_array*> remaining_;
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

int64_t Model::max_projection_size() const {
  return std::max({3 * shape.hidden_size, shape.encoder_feed_forward_size, shape.decoder_feed_forward_size});
}

Model::Model(const regard_shape& model_shape, const regard_array* arrays, int64_t num_arrays,
             const std::string& instruction_set)
    : shape(model_shape) {
  check_shape(shape);
  ops = {
      .kernels = &find_kernels(instruction_set),
      .pre_norm = shape.pre_norm != 0,
      .activation = shape.activation,
      .norm_eps = shape.norm_eps,
  };
  ArrayReader reader(shape, arrays, num_arrays);
  const auto read_positions = [&](int32_t slot) {
    const float* learned = nullptr;
    if (shape.positions == REGARD_POS_LEARNED) learned = reader.table(slot, shape.max_positions);
    return std::make_unique<Positions>(shape.positions, shape.max_positions, shape.hidden_size, learned);
  };
  if (has_encoder()) {
    source_embedding = reader.embedding(REGARD_SLOT_SOURCE_EMBEDDING, shape.source_vocab_size);
    source_positions = read_positions(REGARD_SLOT_SOURCE_POSITIONS);
    for (int64_t layer = 0; layer < shape.encoder_layers; layer++)
      encoder.push_back({
          .self_attention = reader.self_attention(ENCODER_SLOTS, layer),
          .feed_forward = reader.feed_forward(ENCODER_SLOTS, layer, shape.encoder_feed_forward_size),
      });
    if (ops.pre_norm) encoder_norm = reader.norm(REGARD_SLOT_ENCODER_NORM);
  }
  if (shape.num_token_types) token_type_embedding = reader.table(REGARD_SLOT_TOKEN_TYPES, shape.num_token_types);
  if (shape.embedding_norm) embedding_norm = reader.norm(REGARD_SLOT_EMBEDDING_NORM);
  if (has_decoder()) {
    if (has_encoder() && shape.share_embeddings)
      target_embedding = source_embedding;
    else
      target_embedding = reader.embedding(REGARD_SLOT_TARGET_EMBEDDING, shape.target_vocab_size);
    target_positions = read_positions(REGARD_SLOT_TARGET_POSITIONS);
    for (int64_t layer = 0; layer < shape.decoder_layers; layer++)
      decoder.push_back({
          .self_attention = reader.self_attention(DECODER_SLOTS, layer),
          .cross_attention = has_encoder() ? reader.cross_attention(layer) : CrossAttention{},
          .feed_forward = reader.feed_forward(DECODER_SLOTS, layer, shape.decoder_feed_forward_size),
      });
    if (ops.pre_norm) decoder_norm = reader.norm(REGARD_SLOT_DECODER_NORM);
    output = reader.linear(REGARD_SLOT_OUTPUT, 0, shape.target_vocab_size, shape.hidden_size);
  }
  reader.check_all_taken();
}

}  // namespace regard
