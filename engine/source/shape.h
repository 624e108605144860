// Sizes and settings of a model, checked before any array is read.
#pragma once
#include "../include/regard_engine.h"
#include "types.h"

namespace regard {

// Sizes of a block's heads, with the defaults of fields that are 0.
HeadSizes head_sizes(const regard_block& block);

// Throws if the engine cannot compute a model of this shape.
void check_shape(const regard_shape& shape);

}  // namespace regard
