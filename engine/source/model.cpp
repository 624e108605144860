// Arrays come in this order; norms and biases are padded to whole blocks of 16, int8 layers have scales and
// corrections behind their packed weights, and every layer ends with its bias:
//
//   source words [V, D], target words (unless shared), source and target positions (learned ones)
//   types [types, D] and embedding norm, where there are such
//   each encoder block: attention norm (weight, bias), qkv, out, feed-forward norm, inner, outer
//   the encoder's norm (where norms come first)
//   each decoder block: attention norm, qkv, out, cross norm, query, key-value, out, feed-forward norm, inner, outer
//   the decoder's norm (where norms come first), the output
//
// A model without decoder layers has nothing of the target's, one without encoder layers nothing of the source's and no
// looks across.
#include "model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "instructions.h"
#include "packing.h"

namespace regard {
namespace {

void check(const regard_shape& shape) {
  const auto within = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      throw std::invalid_argument(std::string(name) + " must be from " + std::to_string(low) + " to " +
                                  std::to_string(high) + ", not " + std::to_string(value));
  };
  within("precision", shape.precision, FLOAT32, INT8);
  within("width", shape.width, 1, LONGEST_SUM);
  within("encoder layers", shape.encoder_layers, 0, 1024);
  const bool reads = shape.encoder_layers > 0, writes = shape.decoder_layers > 0;
  within("decoder layers", shape.decoder_layers, reads ? 0 : 1, 1024);
  if (reads) {
    within("encoder feed-forward", shape.encoder_feedforward, 1, LONGEST_SUM);
    within("source vocabulary", shape.source_vocabulary, 1, 1 << 24);
  }
  within("activation", shape.activation, RELU, QUICK_GELU);
  within("positions", shape.positions, REGARD_SINUSOIDAL, REGARD_NONE);
  within("places", shape.places, 1, 1 << 20);
  within("first place", shape.first_place, 0, shape.places - 1);
  within("types", shape.types, 0, 1 << 16);
  if (writes) {
    within("decoder feed-forward", shape.decoder_feedforward, 1, LONGEST_SUM);
    within("target vocabulary", shape.target_vocabulary, 1, 1 << 24);
    within("end", shape.end, 0, shape.target_vocabulary - 1);
  }
  for (int heads : {reads ? shape.encoder_heads : shape.decoder_heads, writes ? shape.decoder_heads : shape.encoder_heads}) {
    within("heads", heads, 1, shape.width);
    if (shape.width % heads || (shape.positions == REGARD_ROTARY && shape.width / heads % 2))
      throw std::invalid_argument("heads (" + std::to_string(heads) + ") do not fit width (" +
                                  std::to_string(shape.width) + ")");
  }
  if (reads && writes && shape.shared && shape.source_vocabulary != shape.target_vocabulary)
    throw std::invalid_argument("shared words need equal vocabularies");
}

// Hands out arrays one after another, each of the size that the shape asks for.
class Arrays {
 public:
  Arrays(const regard_shape& shape, const regard_array* arrays, int count)
      : shape_(shape), arrays_(arrays), count_(count) {}

  const void* next(const char* what, size_t bytes) {
    const std::string name = "array " + std::to_string(at_) + " (" + what + ")";
    if (at_ >= count_) throw std::invalid_argument(name + " is missing");
    const regard_array& array = arrays_[at_++];
    if (!array.data || array.bytes < 0 || static_cast<size_t>(array.bytes) != bytes)
      throw std::invalid_argument(name + " has " + std::to_string(array.bytes) + " bytes instead of " +
                                  std::to_string(bytes));
    if (reinterpret_cast<uintptr_t>(array.data) % 4) throw std::invalid_argument(name + " is not aligned");
    return array.data;
  }

  const float* floats(const char* what, size_t count) {
    return static_cast<const float*>(next(what, count * sizeof(float)));
  }

  Norm norm() {
    const size_t size = padded(static_cast<size_t>(shape_.width));
    const float* weight = floats("norm's weight", size);
    return {weight, floats("norm's bias", size)};
  }

  Matrix matrix(const char* what, int outputs, int inputs) {
    const size_t rows = padded(static_cast<size_t>(outputs));
    Matrix made{shape_.precision, outputs, inputs, nullptr, nullptr, nullptr, nullptr};
    made.packed = next(what, packed_bytes(static_cast<size_t>(outputs), static_cast<size_t>(inputs), shape_.precision));
    if (shape_.precision == INT8) {
      made.scales = floats("scales", rows);
      made.corrections = static_cast<const int32_t*>(next("corrections", rows * sizeof(int32_t)));
    }
    made.bias = floats("bias", rows);
    return made;
  }

  Words words(const char* what, int count) {
    const bool halves = shape_.precision != FLOAT32;
    const size_t size = static_cast<size_t>(count) * static_cast<size_t>(shape_.width) * (halves ? 2 : 4);
    return {next(what, size), halves, count};
  }

  SelfLook self_look() {
    SelfLook made;
    made.norm = norm();
    made.qkv = matrix("qkv", 3 * shape_.width, shape_.width);
    made.out = matrix("out", shape_.width, shape_.width);
    return made;
  }

  CrossLook cross_look() {
    CrossLook made;
    made.norm = norm();
    made.query = matrix("query", shape_.width, shape_.width);
    made.key_value = matrix("key-value", 2 * shape_.width, shape_.width);
    made.out = matrix("out", shape_.width, shape_.width);
    return made;
  }

  FeedForward feedforward(int inner) {
    FeedForward made;
    made.norm = norm();
    made.inner = matrix("inner", inner, shape_.width);
    made.outer = matrix("outer", shape_.width, inner);
    return made;
  }

  void finish() const {
    if (at_ != count_)
      throw std::invalid_argument(std::to_string(count_) + " arrays were given but the model has " + std::to_string(at_));
  }

 private:
  const regard_shape& shape_;
  const regard_array* arrays_;
  int count_, at_ = 0;
};

}  // namespace

void Words::put(int32_t id, int width, float scale, float* row) const {
  const size_t from = static_cast<size_t>(id) * static_cast<size_t>(width);
  for (int i = 0; i < width; i++) {
    float value;
    if (halves) {
      const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(table)[from + static_cast<size_t>(i)]) << 16;
      std::memcpy(&value, &bits, sizeof value);
    } else {
      value = static_cast<const float*>(table)[from + static_cast<size_t>(i)];
    }
    row[i] = value * scale;
  }
}

size_t Model::widest() const {
  return static_cast<size_t>(std::max({3 * shape.width, shape.encoder_feedforward, shape.decoder_feedforward}));
}

Model::Model(const regard_shape& given, const regard_array* arrays, int count, const std::string& instructions)
    : shape(given) {
  check(shape);
  arithmetic = {&operators_of(instructions), shape.width, shape.norm_before != 0, shape.activation, shape.epsilon};
  Arrays next(shape, arrays, count);
  if (reads()) source = next.words("source words", shape.source_vocabulary);
  if (writes()) target = reads() && shape.shared ? source : next.words("target words", shape.target_vocabulary);
  const bool learned = shape.positions == REGARD_LEARNED;
  const size_t table = static_cast<size_t>(shape.places) * static_cast<size_t>(shape.width);
  for (auto* positions : {&source_positions, &target_positions}) {
    if (!(positions == &source_positions ? reads() : writes())) continue;
    const float* places = learned ? next.floats("positions", table) : nullptr;
    *positions = std::make_unique<Positions>(shape.positions, shape.places, shape.width, places);
  }
  if (shape.types) types = next.floats("types", static_cast<size_t>(shape.types) * static_cast<size_t>(shape.width));
  if (shape.embedding_norm) embedding_norm = next.norm();
  for (int layer = 0; layer < shape.encoder_layers; layer++) {
    EncoderBlock block;
    block.look = next.self_look();
    block.feedforward = next.feedforward(shape.encoder_feedforward);
    encoder.push_back(block);
  }
  if (reads() && shape.norm_before) encoder_norm = next.norm();
  for (int layer = 0; layer < shape.decoder_layers; layer++) {
    DecoderBlock block;
    block.look = next.self_look();
    if (reads()) block.cross = next.cross_look();
    block.feedforward = next.feedforward(shape.decoder_feedforward);
    decoder.push_back(block);
  }
  if (writes() && shape.norm_before) decoder_norm = next.norm();
  if (writes()) output = next.matrix("output", shape.target_vocabulary, shape.width);
  next.finish();
}

}  // namespace regard
