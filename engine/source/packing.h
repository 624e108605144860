// Weights in the layout that the matmul kernels read: blocks of 16 outputs, inputs in groups of 1 (float32), 2 (bf16)
// or 4 (int8).
#pragma once
#include <cstdint>

namespace regard {

int64_t packed_bytes(int64_t outputs, int64_t inputs, int precision);

// Packs weights [outputs, inputs]. int8 weights are symmetric with one scale per output; `scales` and `corrections`
// have one value per output of whole blocks.
//
// A scale is as fine as two bounds allow: every weight within ±127, and of any four weights that meet in 16 bits
// (inputs 0, 1, 4, 5 of eight, and 2, 3, 6, 7) neither the positive nor the negative ones beyond 128 in total. Inputs
// are at most 255, and 255 · 128 < 2¹⁵: AVX2, whose 8-bit products are 16 bits wide, adds four before it widens them.
//
// Returns whether the weights could be packed: in int8, they must be finite.
bool pack_weights(const float* weights, int64_t outputs, int64_t inputs, int precision, void* packed, float* scales,
                  int32_t* corrections);

}  // namespace regard
