#include "positions.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace regard {
namespace {

// Sines, then cosines (Vaswani et al. 2017, section 3.5); an odd size has one more sine.
void compute_sinusoids(int64_t position, int64_t hidden_size, float* out) {
  const int64_t num_sines = (hidden_size + 1) / 2;
  for (int64_t i = 0; i < num_sines; i++) {
    const double angle = position * std::exp(i * (-2 * std::log(10000.0) / hidden_size));
    out[i] = static_cast<float>(std::sin(angle));
    if (num_sines + i < hidden_size) out[num_sines + i] = static_cast<float>(std::cos(angle));
  }
}

}  // namespace

Positions::Positions(int kind, int64_t max_positions, int64_t hidden_size, const float* learned)
    : kind_(kind), max_positions_(max_positions), hidden_size_(hidden_size), learned_(learned) {
  if (kind != REGARD_POS_SINUSOIDAL) return;
  sinusoids_.resize(max_positions * hidden_size);
  for (int64_t position = 0; position < max_positions; position++)
    compute_sinusoids(position, hidden_size, sinusoids_.data() + position * hidden_size);
}

void Positions::check_length(int64_t length) const {
  if (kind_ == REGARD_POS_LEARNED && length > max_positions_)
    throw std::invalid_argument("a text has " + std::to_string(length) + " positions but the model learned " +
                                std::to_string(max_positions_) + ": split it");
}

void Positions::add(float* row, int64_t position) const {
  if (kind_ != REGARD_POS_SINUSOIDAL && kind_ != REGARD_POS_LEARNED) return;
  std::vector<float> beyond_table;
  const float* embedding;
  if (position < max_positions_) {
    const float* table = kind_ == REGARD_POS_LEARNED ? learned_ : sinusoids_.data();
    embedding = table + position * hidden_size_;
  } else {  // sinusoidal: learned positions are checked before
    beyond_table.resize(hidden_size_);
    compute_sinusoids(position, hidden_size_, beyond_table.data());
    embedding = beyond_table.data();
  }
  for (int64_t i = 0; i < hidden_size_; i++) row[i] += embedding[i];
}

void Positions::rotate(float* row, int64_t num_heads, int64_t head_size, int64_t position) const {
  const int64_t half = head_size / 2;
  for (int64_t i = 0; i < half; i++) {
    const float frequency = std::exp(static_cast<float>(i) * static_cast<float>(-std::log(10000.0) / half));
    const float angle = static_cast<float>(position) * frequency;
    const float cosine = std::cos(angle);
    const float sine = std::sin(angle);
    for (int64_t head = 0; head < num_heads; head++) {
      float* left = row + head * head_size + i;
      float* right = left + half;
      const float x = *left;
      const float y = *right;
      *left = x * cosine - y * sine;
      *right = y * cosine + x * sine;
    }
  }
}

}  // namespace regard
