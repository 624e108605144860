// One vector of a text: its states' mean or maximum, or the first of them.
#pragma once
#include "encoder.h"

namespace regard {

struct Poolings {
  const int32_t* kinds;  // regard_pooling
  int count;             // 0: the states themselves
};

// Reads texts; `out` takes the states of all tokens, or all poolings of a text side by side.
void read(const Model& model, const Texts& texts, const Poolings& poolings, int threads, float* out);

}  // namespace regard
