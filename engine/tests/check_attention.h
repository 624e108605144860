// Captures and ablation of an encoder's attention.
#pragma once
#include "random_model.h"

// Texts end to end, as `regard_encode` takes them.
struct PackedTexts {
  const int32_t* ids;
  const int32_t* token_types;  // null: all 0
  const int32_t* offsets;
  int64_t num_texts;
};

// Captures change no result and do not depend on threads, with and without an ablation. `hidden`: without options.
void check_attention(const regard_model* model, const RandomModel& random, const PackedTexts& texts,
                     const std::vector<float>& hidden);
