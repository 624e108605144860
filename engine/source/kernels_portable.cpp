#include "kernels/kernel_table.h"

namespace regard {
extern const Kernels PORTABLE = kernel_table("portable");
}
