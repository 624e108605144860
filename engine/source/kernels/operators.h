// The table of operators of the instruction set that the including file is compiled for.
#pragma once
#include "../types.h"
//
#include "activation.h"
#include "attend.h"
#include "norm.h"
#include "product.h"
#include "quantise.h"
#include "read.h"
#include "scan.h"

namespace regard {
namespace {

constexpr Operators operators(const char* name) {
  return {name, norm, activate, prepare, keep, product, integer_sums, attend, read, scan};
}

}  // namespace
}  // namespace regard
