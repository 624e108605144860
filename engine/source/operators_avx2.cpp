#include "kernels/operators.h"

namespace regard {
extern const Operators AVX2 = operators("avx2");
}
