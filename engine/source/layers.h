// Parts of Transformers over rows of numbers: norms, linear layers with what comes before them, and looks.
#pragma once
#include <vector>

#include "memory.h"
#include "types.h"

namespace regard {

inline size_t padded(size_t width) { return (width + LANES - 1) / LANES * LANES; }

// Bytes that an operand's stride counts in, and that stride: rows a power of two apart would share the same few places
// of a cache.
size_t number_bytes(int precision);
size_t operand_stride(const Matrix& matrix);
// The same for rows of float32.
size_t row_stride(size_t width);

struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

struct SelfLook {
  Matrix qkv, out;
  Norm norm;
};

struct CrossLook {
  Matrix query, key_value, out;
  Norm norm;
};

struct FeedForward {
  Matrix inner, outer;
  Norm norm;
};

// Room for the numbers of one pass over at most `rows` rows.
struct Workspace {
  Workspace(Pool& pool, size_t rows, size_t width, size_t widest, size_t heads, size_t longest);

  size_t stride, wide_stride;
  Buffer memory;
  float *states, *mixed, *wide, *row, *scales, *offsets, *scores, *logits;
  unsigned char* values;
};

constexpr int VOCABULARY_BLOCKS = 16;  // of 16 logits that are made and looked through together
constexpr size_t LOGIT_STRIDE = (VOCABULARY_BLOCKS + 1) * LANES;

// What every layer of a stack shares.
struct Arithmetic {
  const Operators* operators;
  int width;
  bool norm_before;
  int activation;
  float epsilon;

  // out (+)= matrix · activation(norm(rows)); `norm` may be null; rows are changed where there is an activation.
  void apply(Workspace& space, float* rows, size_t stride, int count, const Matrix& matrix, const Norm* norm,
             int activation, float* out, size_t out_stride, bool add) const;
  // The row at place i of those that a product reads.
  void prepare(Workspace& space, int i, const float* row, const Matrix& matrix) const;
  // Norms all rows in place.
  void norm_rows(float* rows, size_t stride, int count, const Norm& norm) const;
  // The feed-forward part of a block, added to the states in the workspace.
  void think(Workspace& space, int count, const FeedForward& part) const;
};

}  // namespace regard
