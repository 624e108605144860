#include "kernels/kernel_table.h"

namespace regard {
extern constinit const Kernels AVX2 = kernel_table("avx2");
}
