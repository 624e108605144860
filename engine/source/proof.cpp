#include "proof.h"

#include <cmath>
#include <vector>

#include "layers.h"
#include "packing.h"

namespace regard {
namespace {

// From -1 to 1, the same on every run.
std::vector<float> drawn(size_t count, uint32_t& state) {
  std::vector<float> made(count);
  for (float& value : made) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * (1.0f / 2147483648.0f);
  }
  return made;
}

struct Layer {
  std::vector<unsigned char> packed;
  std::vector<float> scales, bias;
  std::vector<int32_t> corrections;
  Matrix matrix;

  Layer(int outputs, int inputs, int precision, uint32_t& state) {
    const size_t wide = static_cast<size_t>(outputs), deep = static_cast<size_t>(inputs);
    packed.resize(packed_bytes(wide, deep, precision));
    scales.resize(padded(wide)), corrections.resize(padded(wide)), bias = drawn(padded(wide), state);
    pack(drawn(wide * deep, state).data(), wide, deep, precision, packed.data(), scales.data(), corrections.data());
    matrix = {precision, outputs, inputs, packed.data(), scales.data(), corrections.data(), bias.data()};
  }
};

// [count][outputs rounded up to whole blocks], added to `out`.
void multiply(const Operators& operators, const std::vector<float>& rows, int from, int count, const Matrix& matrix,
              std::vector<float>& out) {
  const size_t wide = padded(static_cast<size_t>(matrix.inputs)), stride = operand_stride(matrix);
  const size_t bytes = stride * number_bytes(matrix.precision), to = padded(static_cast<size_t>(matrix.outputs));
  std::vector<unsigned char> told(static_cast<size_t>(count) * bytes);
  std::vector<float> scales(static_cast<size_t>(count)), offsets(scales.size());
  for (size_t i = 0; i < scales.size(); i++) {
    const float* row = rows.data() + (static_cast<size_t>(from) + i) * wide;
    const Bytes made = operators.prepare(row, matrix.inputs, matrix.precision, told.data() + i * bytes);
    scales[i] = made.scale, offsets[i] = made.offset;
  }
  operators.product({told.data(), stride, scales.data(), offsets.data()}, count, matrix, 0, static_cast<int>(to) / LANES,
                    out.data(), to, true);
}

bool close(const std::vector<float>& one, const std::vector<float>& other, float bound) {
  for (size_t i = 0; i < one.size(); i++)
    if (!(std::fabs(one[i] - other[i]) <= bound)) return false;
  return true;
}

// All rows at once as the other set has them, and the last row alone as among others.
bool agree(const Operators& tried, const Operators& known, int precision, int count, int inputs, int outputs) {
  uint32_t state = 7;
  const Layer layer(outputs, inputs, precision, state);
  const size_t wide = padded(static_cast<size_t>(inputs)), to = padded(static_cast<size_t>(outputs));
  std::vector<float> rows = drawn(static_cast<size_t>(count) * wide, state);
  for (size_t i = 0; i < rows.size(); i++)
    if (i % wide >= static_cast<size_t>(inputs)) rows[i] = 0;
  const std::vector<float> before = drawn(static_cast<size_t>(count) * to, state);
  std::vector<float> found = before, wanted = before, alone(before.end() - static_cast<std::ptrdiff_t>(to), before.end());
  multiply(tried, rows, 0, count, layer.matrix, found);
  multiply(known, rows, 0, count, layer.matrix, wanted);
  multiply(tried, rows, count - 1, 1, layer.matrix, alone);
  // the order of a sum is not told: one product more or less is far outside
  if (!close(found, wanted, precision == INT8 ? 0.0f : 1e-3f)) return false;
  return std::vector<float>(found.end() - static_cast<std::ptrdiff_t>(to), found.end()) == alone;
}

}  // namespace

bool multiplies_like(const Operators& tried, const Operators& known) {
  // rows, inputs, outputs: every shape of tile, and something left over
  constexpr int SHAPES[][3] = {{1, 70, 49}, {3, 40, 33}, {8, 64, 16}, {13, 75, 100}, {37, 130, 45}, {53, 64, 33}};
  for (const auto& shape : SHAPES)
    for (int precision : {BF16, INT8})
      if (!agree(tried, known, precision, shape[0], shape[1], shape[2])) return false;
  return true;
}

}  // namespace regard
