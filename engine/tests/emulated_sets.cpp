#include "emulated_sets.h"

namespace regard {
namespace {

// Portable products of which the last number is wrong: by the least that a product can be, or where a row is alone.
template <int PRECISION, bool ALONE>
void spoiled(const Operand& rows, int count, const Matrix& matrix, int first, int blocks, float* out, size_t stride,
             bool add) {
  PORTABLE.product(rows, count, matrix, first, blocks, out, stride, add);
  if (matrix.precision != PRECISION || (ALONE && count > 1)) return;
  float& last = out[static_cast<size_t>(count - 1) * stride + static_cast<size_t>(matrix.outputs - 1)];
  last += PRECISION == INT8 ? 1e-5f : ALONE ? 1e-6f : 0.02f;
}

Operators with(const char* name, decltype(Operators::product) product) {
  Operators made = PORTABLE;
  made.name = name, made.product = product;
  return made;
}

}  // namespace

std::vector<const Operators*> emulated_sets() {
  static const Operators bytes = with("spoiled_bytes", spoiled<INT8, false>);
  static const Operators halves = with("spoiled_halves", spoiled<BF16, false>);
  static const Operators alone = with("spoiled_alone", spoiled<BF16, true>);
  std::vector<const Operators*> found{&AMX_EMULATED, &bytes, &halves, &alone};
#if defined(REGARD_X86)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&AVX_VNNI_EMULATED);
#endif
  return found;
}

}  // namespace regard
