#include "processor.h"

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

struct Answer {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Answer asked(unsigned leaf, unsigned part) {
  Answer found;
  if (leaf <= __get_cpuid_max(0, nullptr)) __cpuid_count(leaf, part, found.eax, found.ebx, found.ecx, found.edx);
  return found;
}

bool bit(unsigned word, int number) { return word >> number & 1u; }

#if defined(__linux__)
// The registers that the system saves when it turns to another process.
uint64_t saved_registers() {
  if (!bit(asked(1, 0).ecx, 27)) return 0;  // it cannot be asked
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}
#endif

}  // namespace

bool has_tiles() {
#if defined(__linux__)
  constexpr int BF16 = 22, TILES = 24, INT8 = 25;
  constexpr uint64_t SAVED = uint64_t{3} << 17;  // sizes and contents
  constexpr int ASK = 0x1023, CONTENTS = 18;     // ARCH_REQ_XCOMP_PERM
  const unsigned found = asked(7, 0).edx;
  if (!bit(found, BF16) || !bit(found, TILES) || !bit(found, INT8)) return false;
  return (saved_registers() & SAVED) == SAVED && syscall(SYS_arch_prctl, ASK, CONTENTS) == 0;
#else
  return false;
#endif
}

bool has_dots() { return asked(7, 0).eax >= 1 && bit(asked(7, 1).eax, 4); }

#else

bool has_tiles() { return false; }
bool has_dots() { return false; }

#endif

}  // namespace regard
