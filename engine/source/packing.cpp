#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "types.h"

namespace regard {
namespace {

size_t group(int precision) { return precision == INT8 ? 4 : precision == BF16 ? 2 : 1; }

uint16_t rounded_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr int MOST = 127, MOST_TOGETHER = 128;

void scaled(const float* row, size_t inputs, float factor, int* made) {
  for (size_t k = 0; k < inputs; k++) made[k] = std::clamp(static_cast<int>(std::nearbyint(row[k] * factor)), -MOST, MOST);
}

// The most that weights of one sign make where four meet; `made` has room for whole eights, zero behind the inputs.
int most_together(const int* made, size_t inputs) {
  int most = 0;
  for (size_t first = 0; first < inputs; first += 8)
    for (size_t lane : {first, first + 2}) {
      int above = 0, below = 0;
      for (size_t k : {lane, lane + 1, lane + 4, lane + 5}) (made[k] > 0 ? above : below) += made[k];
      most = std::max({most, above, -below});
    }
  return most;
}

// Weights of one output as whole numbers, and the factor that made them so.
float quantised(const float* row, size_t inputs, float most, std::vector<int>& made) {
  made.assign((inputs + 7) / 8 * 8, 0);
  float factor = most > 1e-30f ? static_cast<float>(MOST) / most : 0.0f;
  scaled(row, inputs, factor, made.data());
  for (int together; (together = most_together(made.data(), inputs)) > MOST_TOGETHER;) {
    factor *= static_cast<float>(MOST_TOGETHER) / static_cast<float>(together);
    scaled(row, inputs, factor, made.data());
  }
  return factor;
}

}  // namespace

size_t packed_bytes(size_t outputs, size_t inputs, int precision) {
  const size_t blocks = (outputs + LANES - 1) / LANES, groups = (inputs + group(precision) - 1) / group(precision);
  return blocks * groups * LANES * 4;  // a group has four bytes in every precision
}

void pack(const float* weights, size_t outputs, size_t inputs, int precision, void* packed, float* scales,
          int32_t* corrections) {
  const size_t size = group(precision), groups = (inputs + size - 1) / size;
  std::memset(packed, 0, packed_bytes(outputs, inputs, precision));
  if (precision == INT8) {
    const size_t padded = (outputs + LANES - 1) / LANES * LANES;
    std::fill(scales, scales + padded, 0.0f);
    std::fill(corrections, corrections + padded, 0);
  }
  std::vector<int> whole;
  for (size_t n = 0; n < outputs; n++) {
    const float* row = weights + n * inputs;
    float most = 0;
    for (size_t k = 0; k < inputs; k++) most = std::max(most, std::fabs(row[k]));
    const float factor = precision == INT8 ? quantised(row, inputs, most, whole) : 0.0f;
    int32_t total = 0;
    for (size_t k = 0; k < inputs; k++) {
      const size_t at = (((n / LANES) * groups + k / size) * LANES + n % LANES) * size + k % size;
      if (precision == INT8) {
        static_cast<int8_t*>(packed)[at] = static_cast<int8_t>(whole[k]);
        total += whole[k];
      } else if (precision == BF16) {
        static_cast<uint16_t*>(packed)[at] = rounded_half(row[k]);
      } else {
        static_cast<float*>(packed)[at] = row[k];
      }
    }
    if (precision == INT8) {
      scales[n] = factor > 0 ? 1.0f / factor : 0.0f;
      corrections[n] = -128 * total;
    }
  }
}

}  // namespace regard
