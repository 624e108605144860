// One product alone, for the test program: models show it through all that stands around it.
#pragma once
#include "../include/regard_engine.h"

struct checked_layer {
  int32_t precision, outputs, inputs;
  const void* packed;
  const float* scales;
  const int32_t* corrections;
  const float* bias;
};

// Rows [count, inputs rounded up to 16] by some blocks of 16 outputs, added to `out` [count, blocks · 16].
extern "C" REGARD_API void regard_checked_product(const char* instructions, const checked_layer* layer, const float* rows,
                                                  int32_t count, int32_t first, int32_t blocks, float* out);
