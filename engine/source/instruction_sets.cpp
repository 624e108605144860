#include "instruction_sets.h"

#include <stdexcept>
#include <vector>

#include "cpu_features.h"
#include "proof.h"
#if defined(REGARD_EMULATED)
#include "../tests/emulated_sets.h"
#endif

namespace regard {
namespace {

// Best first. Sets that were never run on such a CPU during development must prove themselves.
std::vector<const Kernels*> detect_sets() {
  std::vector<const Kernels*> sets;
#if defined(REGARD_X86)
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vnni");
  const bool has_avx512_bf16 = has_avx512 && __builtin_cpu_supports("avx512bf16");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(REGARD_AMX)
  if (has_avx512_bf16 && has_amx() && matches_kernels(AMX, AVX512_BF16)) sets.push_back(&AMX);
#endif
  if (has_avx512_bf16) sets.push_back(&AVX512_BF16);
  if (has_avx512) sets.push_back(&AVX512);
#if defined(REGARD_AVX_VNNI)
  if (has_avx2 && has_avx_vnni() && matches_kernels(AVX_VNNI, AVX2)) sets.push_back(&AVX_VNNI);
#endif
  if (has_avx2) sets.push_back(&AVX2);
#endif
  sets.push_back(&PORTABLE);
#if defined(REGARD_EMULATED)
  for (const Kernels* emulated : emulated_sets())
    if (matches_kernels(*emulated, *sets.front())) sets.push_back(emulated);
#endif
  return sets;
}

// Detected when the library is loaded, not on first use: a process may be forked while another thread is in here, and
// the child would wait for that thread's initialization for ever.
const std::vector<const Kernels*> usable_sets = detect_sets();

std::string join_names() {
  std::string names;
  for (const Kernels* kernels : usable_sets) {
    if (!names.empty()) names += ",";
    names += kernels->name;
  }
  return names;
}

const std::string set_names = join_names();

}  // namespace

const std::string& instruction_sets() {
  return set_names;
}

const Kernels& find_kernels(const std::string& name) {
  if (name.empty()) return *usable_sets.front();
  for (const Kernels* kernels : usable_sets)
    if (name == kernels->name) return *kernels;
  throw std::invalid_argument("no instruction set " + name + " on this CPU: it has " + instruction_sets());
}

}  // namespace regard
