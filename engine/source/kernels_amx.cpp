#include "kernels/kernel_table.h"

namespace regard {
extern constinit const Kernels AMX = kernel_table("amx");
}
