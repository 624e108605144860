#include "kernels/kernel_table.h"

namespace regard {
extern constinit const Kernels AVX_VNNI = kernel_table("avx_vnni");
}
