#define REGARD_EMULATED_TILES
#include "../source/kernels/operators.h"

namespace regard {
extern const Operators AMX_EMULATED = operators("amx_emulated");
}
