#define REGARD_EMULATED_DOTS
#include "../source/kernels/operators.h"

namespace regard {
extern const Operators AVX_VNNI_EMULATED = operators("avx_vnni_emulated");
}
