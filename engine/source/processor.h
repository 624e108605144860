// What compilers do not all know how to ask a processor and its system for.
#pragma once

namespace regard {

// AMX tiles of int8 and bf16, which the system lets this process use.
bool has_tiles();

// 8-bit dot products beside AVX2 (AVX-VNNI).
bool has_dots();

}  // namespace regard
