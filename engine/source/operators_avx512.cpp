#include "kernels/operators.h"

namespace regard {
extern const Operators AVX512 = operators("avx512");
}
