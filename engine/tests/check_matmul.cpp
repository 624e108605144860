#include "check_matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checked_matmul.h"
#include "expect.h"

namespace {

float round_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

struct MatmulShape {
  int64_t rows;
  int64_t inputs;
  int64_t outputs;

  int64_t row_size() const { return pad_to_block(inputs); }
  // Index of an int8 weight in the packed layout.
  int64_t packed_index(int64_t output, int64_t input) const {
    const int64_t groups = (inputs + 3) / 4;
    return ((output / 16 * groups + input / 4) * 16 + output % 16) * 4 + input % 4;
  }
};

// Packed weights of a random layer.
struct RandomWeights {
  std::vector<char> packed;
  std::vector<float> scales;
  std::vector<int32_t> corrections;

  RandomWeights(const MatmulShape& shape, const std::vector<float>& weights, int precision)
      : packed(regard_packed_bytes(shape.outputs, shape.inputs, precision)),
        scales(pad_to_block(shape.outputs)),
        corrections(pad_to_block(shape.outputs)) {
    expect(regard_pack_weights(weights.data(), shape.outputs, shape.inputs, precision, packed.data(), scales.data(),
                               corrections.data()),
           "weights are packed");
  }
};

// A few large weights, and bytes of all sizes, the largest most often: the sums are as large as they can be.
void check_integer_sums(const MatmulShape& shape, const std::vector<std::string>& sets) {
  std::vector<float> weights = random_normal(shape.outputs * shape.inputs, 0, 1);
  for (float& weight : weights) weight *= random_int(0, 5) ? 0.02f : 1.0f;
  const RandomWeights layer(shape, weights, REGARD_PRECISION_INT8);
  std::vector<uint8_t> rows(shape.rows * shape.row_size());
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random_int(0, 2) ? 255 : random_int(0, 255));
  const int64_t padded_outputs = pad_to_block(shape.outputs);
  for (const std::string& set : sets) {
    std::vector<int32_t> sums(shape.rows * padded_outputs);
    expect(regard_integer_sums(set.c_str(), rows.data(), shape.rows, shape.inputs, layer.packed.data(),
                               layer.corrections.data(), shape.outputs, sums.data()),
           "integer sums are computed");
    for (int64_t row = 0; row < shape.rows; row++)
      for (int64_t output = 0; output < shape.outputs; output++) {
        int32_t expected = 0;
        for (int64_t i = 0; i < shape.inputs; i++) {
          const int8_t weight = static_cast<int8_t>(layer.packed[shape.packed_index(output, i)]);
          expected += (rows[row * shape.row_size() + i] - 128) * weight;
        }
        expect(sums[row * padded_outputs + output] == expected, ("integer sums are exact on " + set).c_str());
      }
  }
}

// Blocks of outputs that a matmul computes.
struct BlockRange {
  int64_t first;
  int64_t count;

  int64_t stride() const { return 16 * count; }
};

// Compares results, added to 1, with sums in double precision.
void check_close(const MatmulShape& shape, int precision, const std::vector<float>& weights,
                 const std::vector<float>& bias, const std::vector<float>& rows, const BlockRange& blocks,
                 const std::vector<float>& results, const std::string& set) {
  const bool is_int8 = precision == REGARD_PRECISION_INT8;
  const std::string what = (is_int8 ? "an int8 matmul is accurate on " : "a bf16 matmul is accurate on ") + set;
  const int64_t first_output = 16 * blocks.first;
  const int64_t last_output = std::min(shape.outputs, 16 * (blocks.first + blocks.count));
  for (int64_t row = 0; row < shape.rows; row++)
    for (int64_t output = first_output; output < last_output; output++) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t i = 0; i < shape.inputs; i++) {
        const float x = rows[row * shape.row_size() + i];
        const float weight = weights[output * shape.inputs + i];
        const double product = static_cast<double>(x) * weight;
        sum += is_int8 ? product : static_cast<double>(round_to_bf16(x)) * round_to_bf16(weight);
        magnitude += std::fabs(product);
      }
      const double expected = 1.0 + bias[output] + sum;
      const double error = results[row * blocks.stride() + output - first_output] - expected;
      const double tolerance = is_int8 ? 0.2 * (1 + std::sqrt(magnitude)) : 1e-5 * (1 + magnitude);
      expect(std::fabs(error) <= tolerance, what.c_str());
    }
}

void check_results(const MatmulShape& shape, int precision, const std::vector<std::string>& sets) {
  const std::vector<float> weights = random_normal(shape.outputs * shape.inputs, 0, 1);
  const std::vector<float> bias = random_normal(pad_to_block(shape.outputs), 0, 1);
  const RandomWeights layer(shape, weights, precision);
  const checked_linear linear{
      .precision = precision,
      .outputs = shape.outputs,
      .inputs = shape.inputs,
      .packed = layer.packed.data(),
      .scales = layer.scales.data(),
      .corrections = layer.corrections.data(),
      .bias = bias.data(),
  };
  std::vector<float> rows = random_normal(shape.rows * shape.row_size(), 0, 1);
  for (int64_t i = 0; i < std::ssize(rows); i++)
    if (i % shape.row_size() >= shape.inputs) rows[i] = 0;
  const int num_blocks = static_cast<int>(pad_to_block(shape.outputs) / 16);
  const int first_block = random_int(0, num_blocks - 1);
  const BlockRange blocks{.first = first_block, .count = random_int(1, num_blocks - first_block)};
  std::vector<float> previous;
  for (const std::string& set : sets) {
    std::vector<float> results(shape.rows * blocks.stride(), 1.0f);
    regard_checked_matmul(set.c_str(), &linear, rows.data(), shape.rows, blocks.first, blocks.count, results.data());
    check_close(shape, precision, weights, bias, rows, blocks, results, set);
    if (precision == REGARD_PRECISION_INT8 && !previous.empty())
      expect(results == previous, "int8 has the same bits on every instruction set");
    previous = results;
    const int num_rows = static_cast<int>(shape.rows);
    const int first_row = random_int(0, num_rows - 1);
    const int num_few = random_int(1, num_rows - first_row);
    std::vector<float> few(num_few * blocks.stride(), 1.0f);
    regard_checked_matmul(set.c_str(), &linear, rows.data() + first_row * shape.row_size(), num_few, blocks.first,
                          blocks.count, few.data());
    expect(std::equal(few.begin(), few.end(), results.begin() + first_row * blocks.stride()),
           ("rows have the same bits among fewer on " + set).c_str());
  }
}

}  // namespace

void check_matmul(const std::vector<std::string>& sets, int num_random_cases) {
  std::vector<MatmulShape> shapes{{1, 1, 1},     {1, 64, 16},  {7, 64, 16},  {8, 128, 33},  {16, 64, 64},
                                  {16, 63, 47},  {17, 65, 48}, {31, 32, 17}, {32, 96, 32},  {33, 256, 80},
                                  {48, 60, 31},  {50, 130, 97}, {64, 64, 16}, {70, 700, 100}};
  for (int i = 0; i < num_random_cases; i++) {
    const int rows = random_int(1, 70);
    const int inputs = random_int(1, i % 10 ? 200 : 700);
    const int outputs = random_int(1, i % 3 ? 50 : 100);
    shapes.push_back({rows, inputs, outputs});
  }
  for (const MatmulShape& shape : shapes) {
    check_integer_sums(shape, sets);
    check_results(shape, REGARD_PRECISION_BF16, sets);
    check_results(shape, REGARD_PRECISION_INT8, sets);
  }
}
