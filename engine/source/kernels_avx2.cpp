#include "kernels/kernel_table.h"

namespace regard {
extern const Kernels AVX2 = kernel_table("avx2");
}
