#include "instructions.h"

#include <stdexcept>
#include <vector>

#include "processor.h"
#include "proof.h"
#if defined(REGARD_EMULATED)
#include "../tests/emulated_sets.h"
#endif

namespace regard {
namespace {

std::vector<const Operators*> detected() {
  std::vector<const Operators*> found;
#if defined(REGARD_X86)
  __builtin_cpu_init();
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512vnni");
  const bool wide_bf16 = wide && __builtin_cpu_supports("avx512bf16");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(REGARD_AMX)
  if (wide_bf16 && has_tiles() && multiplies_like(AMX, AVX512_BF16)) found.push_back(&AMX);
#endif
  if (wide_bf16) found.push_back(&AVX512_BF16);
  if (wide) found.push_back(&AVX512);
#if defined(REGARD_AVX_VNNI)
  if (avx2 && has_dots() && multiplies_like(AVX_VNNI, AVX2)) found.push_back(&AVX_VNNI);
#endif
  if (avx2) found.push_back(&AVX2);
#endif
  found.push_back(&PORTABLE);
#if defined(REGARD_EMULATED)
  for (const Operators* one : emulated_sets())
    if (multiplies_like(*one, *found.front())) found.push_back(one);
#endif
  return found;
}

const std::vector<const Operators*>& sets() {
  static const std::vector<const Operators*> found = detected();
  return found;
}

std::string joined() {
  std::string names;
  for (const Operators* one : sets()) names += (names.empty() ? "" : ",") + std::string(one->name);
  return names;
}

}  // namespace

const std::string& instruction_sets() {
  static const std::string names = joined();
  return names;
}

const Operators& operators_of(const std::string& name) {
  if (name.empty()) return *sets().front();
  for (const Operators* one : sets())
    if (name == one->name) return *one;
  throw std::invalid_argument("no instruction set " + name + " on this processor: it has " + instruction_sets());
}

}  // namespace regard
