#include "kernels/kernel_table.h"

namespace regard {
extern constinit const Kernels PORTABLE = kernel_table("portable");
}
