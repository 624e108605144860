#include "kernels/operators.h"

namespace regard {
extern const Operators AVX512_BF16 = operators("avx512_bf16");
}
