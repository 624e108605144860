#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "types.h"

namespace regard {
namespace {

size_t group(int precision) { return precision == INT8 ? 4 : precision == BF16 ? 2 : 1; }

uint16_t rounded_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
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
  for (size_t n = 0; n < outputs; n++) {
    const float* row = weights + n * inputs;
    float most = 0;
    for (size_t k = 0; k < inputs; k++) most = std::max(most, std::fabs(row[k]));
    const float factor = most > 1e-30f ? 127.0f / most : 0.0f;
    int32_t total = 0;
    for (size_t k = 0; k < inputs; k++) {
      const size_t at = (((n / LANES) * groups + k / size) * LANES + n % LANES) * size + k % size;
      if (precision == INT8) {
        const int value = std::clamp(static_cast<int>(std::nearbyint(row[k] * factor)), -127, 127);
        static_cast<int8_t*>(packed)[at] = static_cast<int8_t>(value);
        total += value;
      } else if (precision == BF16) {
        static_cast<uint16_t*>(packed)[at] = rounded_half(row[k]);
      } else {
        static_cast<float*>(packed)[at] = row[k];
      }
    }
    if (precision == INT8) {
      scales[n] = factor > 0 ? most / 127.0f : 0.0f;
      corrections[n] = -128 * total;
    }
  }
}

}  // namespace regard
