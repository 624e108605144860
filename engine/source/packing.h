// Weights as products read them: blocks of 16 outputs, their inputs in groups of 1 (float32), 2 (bf16) or 4 (int8).
#pragma once
#include <cstddef>
#include <cstdint>

namespace regard {

// Bytes of packed weights.
size_t packed_bytes(size_t outputs, size_t inputs, int precision);

// Packs weights [outputs, inputs]. int8 weights are symmetric with a scale for each output; `scales` and
// `corrections` have a number for each output of whole blocks.
void pack(const float* weights, size_t outputs, size_t inputs, int precision, void* packed, float* scales,
          int32_t* corrections);

}  // namespace regard
