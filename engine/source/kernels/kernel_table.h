// Table of kernels for the instruction set that the including file is compiled for.
#pragma once
#include "../types.h"
//
#include "activation.h"
#include "decode_attention.h"
#include "encode_attention.h"
#include "matmul.h"
#include "norms.h"
#include "quantize.h"
#include "scan_logits.h"

namespace regard {
namespace {

constexpr Kernels kernel_table(const char* name) {
  return {
      .name = name,
      .layer_norm = layer_norm,
      .rms_norm = rms_norm,
      .activate = activate,
      .multiply = multiply,
      .quantize_row = quantize_row,
      .store_bf16 = store_bf16,
      .matmul = matmul,
      .integer_sums = integer_sums,
      .decode_attention = decode_attention,
      .encode_attention = encode_attention,
      .scan_logits = scan_logits,
  };
}

}  // namespace
}  // namespace regard
