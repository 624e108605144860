#include "kernels/operators.h"

namespace regard {
extern const Operators AVX_VNNI = operators("avx_vnni");
}
