// Instruction sets of this CPU, and their kernels.
#pragma once
#include <string>

#include "types.h"

namespace regard {

// Names of the usable sets, best first, separated by commas.
const std::string& instruction_sets();

// Kernels of the named set, or of the best one if the name is empty; throws if this CPU lacks it.
const Kernels& find_kernels(const std::string& name);

}  // namespace regard
