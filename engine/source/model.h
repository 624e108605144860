// A translator, an encoder alone, or a decoder alone: what it is made of.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "../include/regard_engine.h"
#include "layers.h"
#include "memory.h"
#include "positions.h"

namespace regard {

struct EncoderBlock {
  SelfLook look;
  FeedForward feedforward;
};

struct DecoderBlock {
  SelfLook look;
  CrossLook cross;  // of a translator
  FeedForward feedforward;
};

// Words of one side: float32, or bf16 where products are finer than that no more.
struct Words {
  const void* table = nullptr;
  bool halves = false;
  int count = 0;

  void put(int32_t id, int width, float scale, float* row) const;
};

struct Model {
  Model(const regard_shape& shape, const regard_array* arrays, int count, const std::string& instructions);

  regard_shape shape;
  Arithmetic arithmetic;
  Words source, target;
  std::unique_ptr<Positions> source_positions, target_positions;
  std::vector<EncoderBlock> encoder;
  std::vector<DecoderBlock> decoder;
  const float* types = nullptr;     // [types, width]
  Norm embedding_norm;
  Norm encoder_norm, decoder_norm;  // where norms come first
  Matrix output;
  mutable Pool pool;

  bool reads() const { return shape.encoder_layers > 0; }
  bool writes() const { return shape.decoder_layers > 0; }
  size_t entry() const { return padded(2 * static_cast<size_t>(shape.width)); }  // numbers of a key and its value
  size_t widest() const;
};

}  // namespace regard
