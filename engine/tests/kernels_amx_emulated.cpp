#define REGARD_EMULATED_AMX
#include "../source/kernels/kernel_table.h"

namespace regard {
extern constinit const Kernels AMX_EMULATED = kernel_table("amx_emulated");
}
