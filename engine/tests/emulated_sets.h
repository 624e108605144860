// Instruction sets for tests: kernels with emulated instructions, and faulty ones, which must be rejected.
#pragma once
#include <vector>

#include "../source/types.h"

namespace regard {

extern const Kernels AMX_EMULATED;
extern const Kernels AVX_VNNI_EMULATED;

// Sets that this CPU can run, before any is checked.
std::vector<const Kernels*> emulated_sets();

}  // namespace regard
