#include "positions.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "types.h"

namespace regard {
namespace {

constexpr float MASKED_BIAS = -1e30f;
constexpr int64_t CHUNK_POSITIONS = 64;  // sinusoids computed together

// Sines, then cosines (Vaswani et al. 2017, section 3.5); an odd size has one more sine.
void compute_sinusoids(int64_t position, int64_t hidden_size, float* out) {
  const int64_t num_sines = (hidden_size + 1) / 2;
  for (int64_t i = 0; i < num_sines; i++) {
    const double angle = position * std::exp(i * (-2 * std::log(10000.0) / hidden_size));
    out[i] = static_cast<float>(std::sin(angle));
    if (num_sines + i < hidden_size) out[num_sines + i] = static_cast<float>(std::cos(angle));
  }
}

// Geometric from 2^(-8/n) to 2^-8 for n heads, a power of two. For any other number, those of the next smaller power of
// two, then every other one of the next larger.
std::vector<float> alibi_slopes(int64_t num_heads) {
  int64_t power = 1;
  while (2 * power <= num_heads) power *= 2;
  std::vector<float> slopes;
  for (int64_t head = 0; head < power; head++)
    slopes.push_back(static_cast<float>(std::exp2(-8.0 * static_cast<double>(head + 1) / static_cast<double>(power))));
  for (int64_t head = 0; std::ssize(slopes) < num_heads; head += 2)
    slopes.push_back(static_cast<float>(std::exp2(-4.0 * static_cast<double>(head + 1) / static_cast<double>(power))));
  return slopes;
}

}  // namespace

Positions::Positions(int kind, int64_t max_positions, int64_t hidden_size, const float* learned)
    : kind_(kind), max_positions_(max_positions), hidden_size_(hidden_size), learned_(learned) {
  if (kind != REGARD_POS_SINUSOIDAL) return;
  num_chunks_ = (max_positions + CHUNK_POSITIONS - 1) / CHUNK_POSITIONS;
  chunks_ = std::make_unique<std::atomic<float*>[]>(num_chunks_);
  for (int64_t i = 0; i < num_chunks_; i++) chunks_[i].store(nullptr, std::memory_order_relaxed);
}

Positions::~Positions() {
  for (int64_t i = 0; i < num_chunks_; i++) delete[] chunks_[i].load(std::memory_order_relaxed);
}

void Positions::check_length(int64_t length) const {
  if (length > MAX_TEXT_LENGTH)
    throw std::invalid_argument("a text has " + std::to_string(length) + " positions but the engine takes " +
                                std::to_string(MAX_TEXT_LENGTH) + ": split it");
  if (kind_ == REGARD_POS_LEARNED && length > max_positions_)
    throw std::invalid_argument("a text has " + std::to_string(length) + " positions but the model learned " +
                                std::to_string(max_positions_) + ": split it");
}

void Positions::add(float* row, int64_t position) const {
  if (kind_ != REGARD_POS_SINUSOIDAL && kind_ != REGARD_POS_LEARNED) return;
  std::vector<float> beyond_table;
  const float* embedding;
  if (position < max_positions_) {
    embedding = kind_ == REGARD_POS_LEARNED ? learned_ + position * hidden_size_ : sinusoid(position);
  } else {  // sinusoidal: learned positions are checked before
    beyond_table.resize(hidden_size_);
    compute_sinusoids(position, hidden_size_, beyond_table.data());
    embedding = beyond_table.data();
  }
  for (int64_t i = 0; i < hidden_size_; i++) row[i] += embedding[i];
}

const float* Positions::sinusoid(int64_t position) const {
  const int64_t chunk = position / CHUNK_POSITIONS;
  const float* table = chunks_[chunk].load(std::memory_order_acquire);
  if (!table) table = compute_chunk(chunk);
  return table + position % CHUNK_POSITIONS * hidden_size_;
}

float* Positions::compute_chunk(int64_t chunk) const {
  std::unique_ptr<float[]> table(new float[CHUNK_POSITIONS * hidden_size_]);
  for (int64_t i = 0; i < CHUNK_POSITIONS; i++)
    compute_sinusoids(chunk * CHUNK_POSITIONS + i, hidden_size_, table.get() + i * hidden_size_);
  float* earlier = nullptr;  // computed by another thread meanwhile
  return chunks_[chunk].compare_exchange_strong(earlier, table.get()) ? table.release() : earlier;
}

Rotary::Rotary(const regard_layer& layer, int64_t head_size)
    : head_size_(head_size), is_interleaved_(layer.interleaved != 0) {
  if (layer.positions != REGARD_POS_ROTARY) return;
  const int64_t half = (layer.rotary_dim ? layer.rotary_dim : head_size) / 2;
  const float log_step = static_cast<float>(-std::log(static_cast<double>(layer.theta)) / half);
  for (int64_t i = 0; i < half; i++)
    frequencies_.push_back(std::exp(static_cast<float>(i) * log_step) / layer.factor);
}

void Rotary::rotate(float* row, int64_t num_heads, int64_t position) const {
  const int64_t half = std::ssize(frequencies_);
  const int64_t pair_step = is_interleaved_ ? 2 : 1;      // from a pair to the next
  const int64_t partner_step = is_interleaved_ ? 1 : half;  // from a value to the other one of its pair
  for (int64_t i = 0; i < half; i++) {
    const float angle = static_cast<float>(position) * frequencies_[i];
    const float cosine = std::cos(angle);
    const float sine = std::sin(angle);
    for (int64_t head = 0; head < num_heads; head++) {
      float* left = row + head * head_size_ + i * pair_step;
      float* right = left + partner_step;
      const float x = *left;
      const float y = *right;
      *left = x * cosine - y * sine;
      *right = y * cosine + x * sine;
    }
  }
}

DistanceBias::DistanceBias(const regard_layer& layer, const float* table, int64_t num_heads, bool is_decoder,
                           int64_t max_length) {
  const bool is_alibi = layer.positions == REGARD_POS_ALIBI;
  const bool is_relative = layer.positions == REGARD_POS_RELATIVE;
  const bool is_causal = is_decoder || layer.is_causal;
  const bool is_window = layer.window > 0 && !is_decoder;
  const bool masks_later_keys = is_causal && !is_decoder;  // a decoder has none
  if (!is_alibi && !is_relative && !is_window && !masks_later_keys) return;
  const int64_t before = max_length - 1;
  const int64_t after = (is_decoder ? 0 : max_length - 1) + LANES;  // kernels read whole blocks
  const int64_t size = before + 1 + after;
  const int64_t num_rows = is_alibi || is_relative ? num_heads : 1;
  center_ = before;
  head_stride_ = num_rows == 1 ? 0 : size;
  values_.assign(num_rows * size, 0.0f);
  const std::vector<float> slopes = is_alibi ? alibi_slopes(num_heads) : std::vector<float>{};
  for (int64_t offset = -before; offset <= after; offset++) {
    const int64_t distance = std::abs(offset);
    const bool is_masked = (is_window && distance > layer.window) || (masks_later_keys && offset > 0);
    const int64_t bucket = is_relative ? relative_bucket(offset, is_causal, layer.num_buckets, layer.max_distance) : 0;
    for (int64_t head = 0; head < num_rows; head++) {
      float& value = values_[head * size + center_ + offset];
      if (is_masked)
        value = MASKED_BIAS;
      else if (is_alibi)
        value = -slopes[head] * static_cast<float>(distance);
      else if (is_relative)
        value = table[bucket * num_heads + head];
    }
  }
}

int64_t relative_bucket(int64_t offset, bool is_causal, int64_t num_buckets, int64_t max_distance) {
  int64_t first_bucket = 0;
  int64_t distance = std::max(-offset, int64_t{0});
  if (!is_causal) {
    num_buckets /= 2;
    first_bucket = offset > 0 ? num_buckets : 0;
    distance = std::abs(offset);
  }
  const int64_t num_exact = num_buckets / 2;
  if (distance < num_exact) return first_bucket + distance;
  const float log_range = static_cast<float>(std::log(static_cast<double>(max_distance) / num_exact));
  const float ratio = std::log(static_cast<float>(distance) / static_cast<float>(num_exact)) / log_range;
  const int64_t log_bucket = num_exact + static_cast<int64_t>(ratio * static_cast<float>(num_buckets - num_exact));
  return first_bucket + std::min(log_bucket, num_buckets - 1);
}

}  // namespace regard
