#include "layers.h"

#include <cstring>

namespace regard {

size_t number_bytes(int precision) { return precision == INT8 ? 1 : precision == BF16 ? 2 : 4; }

size_t operand_stride(const Matrix& matrix) {
  return padded(static_cast<size_t>(matrix.inputs)) + 64 / number_bytes(matrix.precision);
}

size_t row_stride(size_t width) { return padded(width) + LANES; }

Workspace::Workspace(Pool& pool, size_t rows, size_t width, size_t widest, size_t heads, size_t longest)
    : stride(row_stride(width)), wide_stride(row_stride(widest)) {
  const size_t sizes[] = {rows * stride, rows * stride, rows * wide_stride,      wide_stride,        padded(rows),
                          padded(rows),  heads * padded(longest), rows * LOGIT_STRIDE, rows * (wide_stride + LANES)};
  size_t total = 0;
  for (size_t size : sizes) total += size;
  memory = Buffer(&pool, total * sizeof(float));
  float* at = memory.as<float>();
  float** places[] = {&states, &mixed, &wide, &row, &scales, &offsets, &scores, &logits};
  for (size_t i = 0; i < 8; i++) {
    *places[i] = at;
    at += sizes[i];
  }
  values = reinterpret_cast<unsigned char*>(at);
  std::memset(static_cast<void*>(memory.as<float>()), 0, 2 * rows * stride * sizeof(float));  // what is padded is zero
}

void Arithmetic::apply(Workspace& space, float* rows, size_t stride, int count, const Matrix& matrix, const Norm* norm,
                       int activation, float* out, size_t out_stride, bool add) const {
  Operand operand{space.values, operand_stride(matrix), space.scales, space.offsets};
  if (activation == GELU && matrix.precision != FLOAT32) activation = NEAR_GELU;
  if (matrix.precision == FLOAT32 && !norm && activation == IDENTITY) {
    operand = {rows, stride, nullptr, nullptr};
  } else {
    for (int i = 0; i < count; i++) {
      float* row = rows + static_cast<size_t>(i) * stride;
      if (norm) {
        operators->norm(row, matrix.inputs, norm->weight, norm->bias, epsilon, space.row);
        row = space.row;
      }
      if (activation != IDENTITY) operators->activate(row, matrix.inputs, activation, row);
      prepare(space, i, row, matrix);
    }
  }
  const int blocks = (matrix.outputs + LANES - 1) / LANES;
  operators->product(operand, count, matrix, 0, blocks, out, out_stride, add);
}

void Arithmetic::prepare(Workspace& space, int i, const float* row, const Matrix& matrix) const {
  const size_t bytes = operand_stride(matrix) * number_bytes(matrix.precision);
  const Bytes made = operators->prepare(row, matrix.inputs, matrix.precision, space.values + static_cast<size_t>(i) * bytes);
  space.scales[i] = made.scale;
  space.offsets[i] = made.offset;
}

void Arithmetic::norm_rows(float* rows, size_t stride, int count, const Norm& norm) const {
  for (int i = 0; i < count; i++) {
    float* row = rows + static_cast<size_t>(i) * stride;
    operators->norm(row, width, norm.weight, norm.bias, epsilon, row);
  }
}

void Arithmetic::think(Workspace& space, int count, const FeedForward& part) const {
  apply(space, space.states, space.stride, count, part.inner, norm_before ? &part.norm : nullptr, IDENTITY, space.wide,
        space.wide_stride, false);
  apply(space, space.wide, space.wide_stride, count, part.outer, nullptr, activation, space.states, space.stride, true);
  if (!norm_before) norm_rows(space.states, space.stride, count, part.norm);
}

}  // namespace regard
