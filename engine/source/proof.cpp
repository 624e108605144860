#include "proof.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "layers.h"
#include "packing.h"

namespace regard {
namespace {

// Uniform from -1 to 1, the same in every run (a linear congruential generator).
std::vector<float> random_values(int64_t count, uint32_t& state) {
  std::vector<float> values(count);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * (1.0f / 2147483648.0f);
  }
  return values;
}

// A linear layer with random weights.
struct RandomLinear {
  std::vector<float> bias;
  std::vector<unsigned char> packed;
  std::vector<float> scales;
  std::vector<int32_t> corrections;
  PackedLinear linear;

  RandomLinear(int64_t outputs, int64_t inputs, int precision, uint32_t& state)
      : bias(random_values(pad(outputs), state)),
        packed(packed_bytes(outputs, inputs, precision)),
        scales(pad(outputs)),
        corrections(pad(outputs)) {
    const std::vector<float> weights = random_values(outputs * inputs, state);
    pack_weights(weights.data(), outputs, inputs, precision, packed.data(), scales.data(), corrections.data());
    linear = {
        .precision = precision,
        .outputs = outputs,
        .inputs = inputs,
        .packed = packed.data(),
        .scales = scales.data(),
        .corrections = corrections.data(),
        .bias = bias.data(),
    };
  }
};

// Adds the products of rows `first_row` on to `out` [num_rows, padded outputs].
void multiply(const Kernels& kernels, const std::vector<float>& rows, int64_t first_row, int64_t num_rows,
              const PackedLinear& linear, std::vector<float>& out) {
  const int64_t stride = matmul_input_stride(linear);
  const int64_t num_bytes = stride * value_bytes(linear.precision);
  std::vector<unsigned char> inputs(num_rows * num_bytes);
  std::vector<float> scales(num_rows);
  std::vector<float> offsets(num_rows);
  for (int64_t i = 0; i < num_rows; i++) {
    const float* row = rows.data() + (first_row + i) * pad(linear.inputs);
    unsigned char* input = inputs.data() + i * num_bytes;
    const RowQuantization quantization = kernels.quantize_row(row, linear.inputs, linear.precision, input);
    scales[i] = quantization.scale;
    offsets[i] = quantization.offset;
  }
  const MatmulInput input{
      .values = inputs.data(),
      .stride = stride,
      .scales = scales.data(),
      .offsets = offsets.data(),
  };
  kernels.matmul(input, num_rows, linear, 0, num_blocks(linear), out.data(), pad(linear.outputs), true);
}

bool is_close(const std::vector<float>& left, const std::vector<float>& right, float tolerance) {
  for (int64_t i = 0; i < std::ssize(left); i++)
    if (!(std::fabs(left[i] - right[i]) <= tolerance)) return false;
  return true;
}

// Whether all rows match the reference's, and the last row has the same bits alone as among the others.
bool outputs_match(const Kernels& untested, const Kernels& reference, int precision, int64_t num_rows, int64_t inputs,
                   int64_t outputs) {
  uint32_t state = 7;
  const RandomLinear layer(outputs, inputs, precision, state);
  std::vector<float> rows = random_values(num_rows * pad(inputs), state);
  for (int64_t i = 0; i < std::ssize(rows); i++)
    if (i % pad(inputs) >= inputs) rows[i] = 0;
  const std::vector<float> initial = random_values(num_rows * pad(outputs), state);
  const int64_t last_row = (num_rows - 1) * pad(outputs);
  std::vector<float> output = initial;
  std::vector<float> expected = initial;
  std::vector<float> alone(initial.begin() + last_row, initial.end());
  multiply(untested, rows, 0, num_rows, layer.linear, output);
  multiply(reference, rows, 0, num_rows, layer.linear, expected);
  multiply(untested, rows, num_rows - 1, 1, layer.linear, alone);
  // the order of bf16 sums may differ; a missing or additional product exceeds this tolerance by far
  if (!is_close(output, expected, precision == INT8 ? 0.0f : 1e-3f)) return false;
  return std::equal(alone.begin(), alone.end(), output.begin() + last_row);
}

}  // namespace

bool matches_kernels(const Kernels& untested, const Kernels& reference) {
  // every shape of tile, with remainders
  constexpr struct {
    int64_t num_rows;
    int64_t inputs;
    int64_t outputs;
  } SHAPES[] = {{1, 70, 49}, {3, 40, 33}, {8, 64, 16}, {13, 75, 100}, {37, 130, 45}, {53, 64, 33}};
  for (const auto& shape : SHAPES)
    for (int precision : {BF16, INT8})
      if (!outputs_match(untested, reference, precision, shape.num_rows, shape.inputs, shape.outputs)) return false;
  return true;
}

}  // namespace regard
