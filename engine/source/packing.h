// Weights as products read them: blocks of 16 outputs, their inputs in groups of 1 (float32), 2 (bf16) or 4 (int8).
#pragma once
#include <cstddef>
#include <cstdint>

namespace regard {

// Bytes of packed weights.
size_t packed_bytes(size_t outputs, size_t inputs, int precision);

// Packs weights [outputs, inputs]. int8 weights are symmetric with a scale for each output; `scales` and
// `corrections` have a number for each output of whole blocks.
//
// An output's scale is as fine as two things allow: no weight beyond ±127, and of any four weights that meet in 16 bits
// (inputs 0, 1, 4, 5 of eight, and 2, 3, 6, 7) neither the positive nor the negative ones beyond 128 together. Bytes
// are at most 255, and 255 · 128 < 2¹⁵: AVX2, whose 8-bit products end in 16 bits, adds four of them before it widens.
void pack(const float* weights, size_t outputs, size_t inputs, int precision, void* packed, float* scales,
          int32_t* corrections);

}  // namespace regard
