#include "emulated_sets.h"

namespace regard {
namespace {

// Portable matmul with a faulty last value: by the least that can be wrong, or only where a row is alone.
template <int PRECISION, bool ONLY_SINGLE_ROW>
void faulty_matmul(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t first_block,
                   int64_t num_blocks, float* out, int64_t out_stride, bool should_add) {
  PORTABLE.matmul(rows, num_rows, linear, first_block, num_blocks, out, out_stride, should_add);
  if (linear.precision != PRECISION || (ONLY_SINGLE_ROW && num_rows > 1)) return;
  float& last = out[(num_rows - 1) * out_stride + linear.outputs - 1];
  last += PRECISION == INT8 ? 1e-5f : ONLY_SINGLE_ROW ? 1e-6f : 0.02f;
}

Kernels with_matmul(const char* name, decltype(Kernels::matmul) matmul) {
  Kernels kernels = PORTABLE;
  kernels.name = name;
  kernels.matmul = matmul;
  return kernels;
}

}  // namespace

std::vector<const Kernels*> emulated_sets() {
  static const Kernels faulty_int8 = with_matmul("faulty_int8", faulty_matmul<INT8, false>);
  static const Kernels faulty_bf16 = with_matmul("faulty_bf16", faulty_matmul<BF16, false>);
  static const Kernels faulty_single_row = with_matmul("faulty_single_row", faulty_matmul<BF16, true>);
  std::vector<const Kernels*> sets{&AMX_EMULATED, &faulty_int8, &faulty_bf16, &faulty_single_row};
#if defined(REGARD_X86)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(&AVX_VNNI_EMULATED);
#endif
  return sets;
}

}  // namespace regard
