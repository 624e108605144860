// Self-test of kernels that few machines have run: do they multiply as tested ones do?
#pragma once
#include "types.h"

namespace regard {

// Compares a few matmuls, int8 bit by bit and bf16 within the error of its sums; takes a fraction of a millisecond.
bool matches_kernels(const Kernels& untested, const Kernels& reference);

}  // namespace regard
