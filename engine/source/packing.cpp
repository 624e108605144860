#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "layers.h"
#include "types.h"

namespace regard {
namespace {

constexpr int MAX_WEIGHT = 127;
constexpr int MAX_GROUP_SUM = 128;
constexpr int64_t GROUP_BYTES = 4;  // in every precision

int64_t group_size(int precision) { return GROUP_BYTES / value_bytes(precision); }

int64_t num_groups(int64_t inputs, int precision) {
  return (inputs + group_size(precision) - 1) / group_size(precision);
}

uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 64u);  // rounding could make it infinite
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void scale_row(const float* row, int64_t inputs, float factor, int* scaled) {
  for (int64_t i = 0; i < inputs; i++)
    scaled[i] = std::clamp(static_cast<int>(std::nearbyint(row[i] * factor)), -MAX_WEIGHT, MAX_WEIGHT);
}

// Largest total of weights of one sign where four meet; `weights` is padded with zeros to a multiple of eight.
int max_group_sum(const int* weights, int64_t inputs) {
  int largest = 0;
  for (int64_t first = 0; first < inputs; first += 8)
    for (int64_t lane : {first, first + 2}) {
      int positive = 0;
      int negative = 0;
      for (int64_t i : {lane, lane + 1, lane + 4, lane + 5}) (weights[i] > 0 ? positive : negative) += weights[i];
      largest = std::max({largest, positive, -negative});
    }
  return largest;
}

// Quantizes the weights of one output; returns the factor they were multiplied by.
float quantize_row(const float* row, int64_t inputs, std::vector<int>& quantized) {
  float max_abs = 0;
  for (int64_t i = 0; i < inputs; i++) max_abs = std::max(max_abs, std::fabs(row[i]));
  quantized.assign((inputs + 7) / 8 * 8, 0);
  float factor = max_abs > 1e-30f ? static_cast<float>(MAX_WEIGHT) / max_abs : 0.0f;
  scale_row(row, inputs, factor, quantized.data());
  int group_sum = max_group_sum(quantized.data(), inputs);
  while (group_sum > MAX_GROUP_SUM) {
    factor *= static_cast<float>(MAX_GROUP_SUM) / static_cast<float>(group_sum);
    scale_row(row, inputs, factor, quantized.data());
    group_sum = max_group_sum(quantized.data(), inputs);
  }
  return factor;
}

// Index of a weight in the packed layout [outputs / 16][inputs / g][16][g].
int64_t packed_index(int64_t output, int64_t input, int64_t groups, int64_t group) {
  return ((output / LANES * groups + input / group) * LANES + output % LANES) * group + input % group;
}

}  // namespace

int64_t packed_bytes(int64_t outputs, int64_t inputs, int precision) {
  return pad(outputs) * num_groups(inputs, precision) * GROUP_BYTES;
}

bool pack_weights(const float* weights, int64_t outputs, int64_t inputs, int precision, void* packed, float* scales,
                  int32_t* corrections) {
  const auto is_finite = [](float weight) { return std::isfinite(weight); };
  if (precision == INT8 && !std::all_of(weights, weights + outputs * inputs, is_finite)) return false;
  const int64_t group = group_size(precision);
  const int64_t groups = num_groups(inputs, precision);
  std::memset(packed, 0, packed_bytes(outputs, inputs, precision));
  if (precision == INT8) {
    std::fill_n(scales, pad(outputs), 0.0f);
    std::fill_n(corrections, pad(outputs), 0);
  }
  std::vector<int> quantized;
  for (int64_t output = 0; output < outputs; output++) {
    const float* row = weights + output * inputs;
    if (precision == INT8) {
      const float factor = quantize_row(row, inputs, quantized);
      int32_t total = 0;
      for (int64_t i = 0; i < inputs; i++) {
        static_cast<int8_t*>(packed)[packed_index(output, i, groups, group)] = static_cast<int8_t>(quantized[i]);
        total += quantized[i];
      }
      scales[output] = factor > 0 ? 1.0f / factor : 0.0f;
      corrections[output] = -128 * total;
    } else if (precision == BF16) {
      for (int64_t i = 0; i < inputs; i++)
        static_cast<uint16_t*>(packed)[packed_index(output, i, groups, group)] = float_to_bf16(row[i]);
    } else {
      for (int64_t i = 0; i < inputs; i++)
        static_cast<float*>(packed)[packed_index(output, i, groups, group)] = row[i];
    }
  }
  return true;
}

}  // namespace regard
