// Sets for tests: kernels whose instructions are emulated, and spoiled ones, which must not be taken.
#pragma once
#include <vector>

#include "../source/types.h"

namespace regard {

extern const Operators AMX_EMULATED;
extern const Operators AVX_VNNI_EMULATED;

// Those that this processor can run, before they have proved anything.
std::vector<const Operators*> emulated_sets();

}  // namespace regard
