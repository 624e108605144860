// Which instruction sets this processor has, and the operators of one.
#pragma once
#include <string>

#include "types.h"

namespace regard {

// The names of the sets that this processor has, best first.
const std::string& instruction_sets();

// The operators of the set of this name, or of the best one for an empty name; throws where it is not there.
const Operators& operators_of(const std::string& name);

}  // namespace regard
