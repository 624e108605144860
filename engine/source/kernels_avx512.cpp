#include "kernels/kernel_table.h"

namespace regard {
extern constinit const Kernels AVX512 = kernel_table("avx512");
}
