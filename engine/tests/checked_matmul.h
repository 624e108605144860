// One matmul alone, for the test program: models reach it only through the layers around it.
#pragma once
#include "../include/regard_engine.h"

struct checked_linear {
  int32_t precision;
  int64_t outputs;
  int64_t inputs;
  const void* packed;
  const float* scales;
  const int32_t* corrections;
  const float* bias;
};

// Adds rows [num_rows, inputs padded to 16] times `num_blocks` blocks of weights to `out` [num_rows, num_blocks · 16].
extern "C" REGARD_API void regard_checked_matmul(const char* instruction_set, const checked_linear* layer,
                                                 const float* rows, int64_t num_rows, int64_t first_block,
                                                 int64_t num_blocks, float* out);
