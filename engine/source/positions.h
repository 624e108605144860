// Positional schemes: sinusoidal or learned embeddings added to the token embeddings, or rotary queries and keys.
#pragma once
#include <cstdint>
#include <vector>

#include "../include/regard_engine.h"

namespace regard {

class Positions {
 public:
  // `learned`: [max_positions, hidden_size]; null for the other kinds.
  Positions(int kind, int64_t max_positions, int64_t hidden_size, const float* learned);

  // Throws if a text is longer than the learned positions.
  void check_length(int64_t length) const;
  void add(float* row, int64_t position) const;
  bool is_rotary() const { return kind_ == REGARD_POS_ROTARY; }
  // Rotates the heads of a row (RoPE, Su et al. 2021).
  void rotate(float* row, int64_t num_heads, int64_t head_size, int64_t position) const;

 private:
  int kind_;
  int64_t max_positions_;
  int64_t hidden_size_;
  const float* learned_;
  std::vector<float> sinusoids_;
};

}  // namespace regard
