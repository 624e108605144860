// Positional schemes: absolute ones are added to the embeddings; those of a layer rotate queries and keys, or bias the
// attention scores.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "../include/regard_engine.h"

namespace regard {

constexpr int64_t MAX_TEXT_LENGTH = 1 << 20;  // tokens of a source, or of a generated text

// Absolute positions: sinusoidal, learned or none.
class Positions {
 public:
  // `learned`: [max_positions, hidden_size]; null for the other kinds.
  Positions(int kind, int64_t max_positions, int64_t hidden_size, const float* learned);
  ~Positions();

  Positions(const Positions&) = delete;
  Positions& operator=(const Positions&) = delete;

  // Throws if a text is longer than the learned positions, or than any text may be.
  void check_length(int64_t length) const;
  void add(float* row, int64_t position) const;

 private:
  // Sinusoidal embedding of a position below `max_positions_`. A chunk of the table is computed when a text first needs
  // it: a file that names many positions costs nothing. Any thread may do so; the first result stays.
  const float* sinusoid(int64_t position) const;
  float* compute_chunk(int64_t chunk) const;

  int kind_;
  int64_t max_positions_;
  int64_t hidden_size_;
  const float* learned_;
  mutable std::unique_ptr<std::atomic<float*>[]> chunks_;  // [CHUNK_POSITIONS, hidden_size] each; null: not computed
  int64_t num_chunks_ = 0;
};

// Rotary queries and keys (RoPE, Su et al. 2021) of one layer; does nothing in a layer with other positions.
class Rotary {
 public:
  Rotary(const regard_layer& layer, int64_t head_size);

  explicit operator bool() const { return !frequencies_.empty(); }
  // Rotates the heads of a row.
  void rotate(float* row, int64_t num_heads, int64_t position) const;

 private:
  int64_t head_size_;
  bool is_interleaved_;
  std::vector<float> frequencies_;  // of each pair; empty: no rotation
};

// Bias of attention scores by the distance of the key from the query, for distances of less than `max_length`: that of
// ALiBi (Press et al. 2022) or T5 (Raffel et al. 2020), and in an encoder the mask of a window or of later keys.
class DistanceBias {
 public:
  DistanceBias() = default;
  // `table`: of a relative bias, [num_buckets, num_heads].
  DistanceBias(const regard_layer& layer, const float* table, int64_t num_heads, bool is_decoder, int64_t max_length);

  // Bias of distance 0 in the first head; kernels read whole blocks around it. Null: none.
  const float* center() const { return values_.empty() ? nullptr : values_.data() + center_; }
  int64_t head_stride() const { return head_stride_; }

 private:
  std::vector<float> values_;  // [num_heads or 1, distances]
  int64_t center_ = 0;
  int64_t head_stride_ = 0;  // 0: all heads have the same bias
};

// T5's bucket of the offset of a key from its query: exact for small distances, logarithmic beyond.
int64_t relative_bucket(int64_t offset, bool is_causal, int64_t num_buckets, int64_t max_distance);

}  // namespace regard
