#include "kernels/kernel_table.h"

namespace regard {
extern const Kernels AMX = kernel_table("amx");
}
