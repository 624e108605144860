// Whether a set of operators multiplies as another does: asked of those that few of our machines have run.
#pragma once
#include "types.h"

namespace regard {

// A few products, int8 to the same bits and bf16 as close as its sums can be; takes a fraction of a millisecond.
bool multiplies_like(const Operators& tried, const Operators& known);

}  // namespace regard
