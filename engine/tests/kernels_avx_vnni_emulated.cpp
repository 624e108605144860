#define REGARD_EMULATED_VNNI
#include "../source/kernels/kernel_table.h"

namespace regard {
extern constinit const Kernels AVX_VNNI_EMULATED = kernel_table("avx_vnni_emulated");
}
