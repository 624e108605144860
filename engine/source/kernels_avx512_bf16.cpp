#include "kernels/kernel_table.h"

namespace regard {
extern constinit const Kernels AVX512_BF16 = kernel_table("avx512_bf16");
}
