#include "cpu_features.h"

#include <cstdint>

#if defined(REGARD_X86)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace regard {

#if defined(REGARD_X86)
namespace {

struct CpuidResult {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
};

CpuidResult cpuid(unsigned leaf, unsigned subleaf) {
  CpuidResult result;
  if (leaf <= __get_cpuid_max(0, nullptr)) __cpuid_count(leaf, subleaf, result.eax, result.ebx, result.ecx, result.edx);
  return result;
}

bool has_bit(unsigned word, int bit) { return word >> bit & 1u; }

#if defined(__linux__)
// XCR0: the register sets that the kernel saves at a context switch.
uint64_t saved_registers() {
  constexpr int OSXSAVE = 27;
  if (!has_bit(cpuid(1, 0).ecx, OSXSAVE)) return 0;
  uint32_t low;
  uint32_t high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}
#endif

}  // namespace

bool has_amx() {
#if defined(__linux__)
  constexpr int AMX_BF16 = 22;
  constexpr int AMX_TILE = 24;
  constexpr int AMX_INT8 = 25;
  constexpr uint64_t TILE_STATE = uint64_t{3} << 17;  // XTILECFG and XTILEDATA
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023;
  constexpr int XFEATURE_XTILEDATA = 18;
  const unsigned features = cpuid(7, 0).edx;
  if (!has_bit(features, AMX_BF16) || !has_bit(features, AMX_TILE) || !has_bit(features, AMX_INT8)) return false;
  if ((saved_registers() & TILE_STATE) != TILE_STATE) return false;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
  return false;
#endif
}

bool has_avx_vnni() {
  constexpr int AVX_VNNI = 4;
  const bool has_subleaf = cpuid(7, 0).eax >= 1;
  return has_subleaf && has_bit(cpuid(7, 1).eax, AVX_VNNI);
}

#else

bool has_amx() { return false; }
bool has_avx_vnni() { return false; }

#endif

}  // namespace regard
