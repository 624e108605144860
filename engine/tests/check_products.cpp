#include "check_products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checked_product.h"
#include "expect.h"

namespace {

size_t whole(int size) { return static_cast<size_t>((size + 15) / 16 * 16); }

std::vector<float> normals(size_t count) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> made(count);
  for (float& value : made) value = normal(chance);
  return made;
}

float halved(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

struct Case {
  int rows, inputs, outputs;

  size_t wide() const { return whole(inputs); }
  size_t packed_place(int output, int input) const {
    const int groups = (inputs + 3) / 4;
    return static_cast<size_t>(((output / 16 * groups + input / 4) * 16 + output % 16) * 4 + input % 4);
  }
  float weight(const std::vector<float>& weights, int output, int input) const {
    return weights[static_cast<size_t>(output) * static_cast<size_t>(inputs) + static_cast<size_t>(input)];
  }
};

// A few large weights, and bytes of all sizes, the largest most often.
void check_integer_sums(const Case& one, const std::vector<std::string>& sets) {
  std::vector<float> weights = normals(static_cast<size_t>(one.outputs) * static_cast<size_t>(one.inputs));
  for (float& weight : weights) weight *= drawn(0, 5) ? 0.02f : 1.0f;
  std::vector<int8_t> packed(static_cast<size_t>(regard_packed_bytes(one.outputs, one.inputs, REGARD_INT8)));
  std::vector<float> scales(whole(one.outputs));
  std::vector<int32_t> corrections(whole(one.outputs));
  expect(regard_pack(weights.data(), one.outputs, one.inputs, REGARD_INT8, packed.data(), scales.data(), corrections.data()),
         "packing");
  std::vector<uint8_t> rows(static_cast<size_t>(one.rows) * one.wide());
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(drawn(0, 2) ? 255 : drawn(0, 255));
  for (const std::string& set : sets) {
    std::vector<int32_t> sums(static_cast<size_t>(one.rows) * whole(one.outputs));
    expect(regard_integer_sums(set.c_str(), rows.data(), one.rows, one.inputs, packed.data(), corrections.data(), one.outputs,
                               sums.data()),
           "integer sums");
    for (int row = 0; row < one.rows; row++)
      for (int output = 0; output < one.outputs; output++) {
        int32_t wanted = 0;
        for (int i = 0; i < one.inputs; i++)
          wanted += (rows[static_cast<size_t>(row) * one.wide() + static_cast<size_t>(i)] - 128) *
                    packed[one.packed_place(output, i)];
        expect(sums[static_cast<size_t>(row) * whole(one.outputs) + static_cast<size_t>(output)] == wanted,
               ("integer sums are exact on " + set).c_str());
      }
  }
}

void check_numbers(const Case& one, int precision, const std::vector<std::string>& sets) {
  const std::vector<float> weights = normals(static_cast<size_t>(one.outputs) * static_cast<size_t>(one.inputs));
  const std::vector<float> bias = normals(whole(one.outputs));
  std::vector<char> packed(static_cast<size_t>(regard_packed_bytes(one.outputs, one.inputs, precision)));
  std::vector<float> scales(whole(one.outputs));
  std::vector<int32_t> corrections(whole(one.outputs));
  expect(regard_pack(weights.data(), one.outputs, one.inputs, precision, packed.data(), scales.data(), corrections.data()),
         "packing");
  const bool bytes = precision == REGARD_INT8;
  const checked_layer layer{precision,          one.outputs,    one.inputs, packed.data(), scales.data(),
                            corrections.data(), bias.data()};
  std::vector<float> rows = normals(static_cast<size_t>(one.rows) * one.wide());
  for (size_t i = 0; i < rows.size(); i++)
    if (i % one.wide() >= static_cast<size_t>(one.inputs)) rows[i] = 0;
  const int blocks = (one.outputs + 15) / 16, first = drawn(0, blocks - 1), some = drawn(1, blocks - first);
  const size_t wide = static_cast<size_t>(some) * 16;
  std::vector<float> before;
  for (const std::string& set : sets) {
    std::vector<float> found(static_cast<size_t>(one.rows) * wide, 1.0f);
    regard_checked_product(set.c_str(), &layer, rows.data(), one.rows, first, some, found.data());
    for (int row = 0; row < one.rows; row++)
      for (int output = 16 * first; output < std::min(one.outputs, 16 * (first + some)); output++) {
        double sum = 0, size = 0;
        for (int i = 0; i < one.inputs; i++) {
          const float x = rows[static_cast<size_t>(row) * one.wide() + static_cast<size_t>(i)];
          const float w = one.weight(weights, output, i);
          sum += bytes ? static_cast<double>(x) * w : static_cast<double>(halved(x)) * halved(w);
          size += std::fabs(static_cast<double>(x) * w);
        }
        const double wanted = 1.0 + bias[static_cast<size_t>(output)] + sum;
        const double away = found[static_cast<size_t>(row) * wide + static_cast<size_t>(output - 16 * first)] - wanted;
        expect(std::fabs(away) <= (bytes ? 0.2 * (1 + std::sqrt(size)) : 1e-5 * (1 + size)),
               ((bytes ? "a product of bytes on " : "a product of halves on ") + set).c_str());
      }
    if (bytes && !before.empty()) expect(found == before, "int8 has the same bits on every instruction set");
    before = found;
    const int from = drawn(0, one.rows - 1), few = drawn(1, one.rows - from);
    std::vector<float> part(static_cast<size_t>(few) * wide, 1.0f);
    const float* given = rows.data() + static_cast<size_t>(from) * one.wide();
    regard_checked_product(set.c_str(), &layer, given, few, first, some, part.data());
    expect(std::equal(part.begin(), part.end(), found.data() + static_cast<size_t>(from) * wide),
           ("rows have the same bits among fewer on " + set).c_str());
  }
}

}  // namespace

void check_products(const std::vector<std::string>& sets, int random_cases) {
  std::vector<Case> cases{{1, 1, 1},    {1, 64, 16},  {7, 64, 16},   {8, 128, 33}, {16, 64, 64},  {16, 63, 47}, {17, 65, 48},
                          {31, 32, 17}, {32, 96, 32}, {33, 256, 80}, {48, 60, 31}, {50, 130, 97}, {64, 64, 16}, {70, 700, 100}};
  for (int turn = 0; turn < random_cases; turn++)
    cases.push_back({drawn(1, 70), drawn(1, turn % 10 ? 200 : 700), drawn(1, turn % 3 ? 50 : 100)});
  for (const Case& one : cases) {
    check_integer_sums(one, sets);
    check_numbers(one, REGARD_BF16, sets);
    check_numbers(one, REGARD_INT8, sets);
  }
}
