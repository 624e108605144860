#include "kernels/operators.h"

namespace regard {
extern const Operators AMX = operators("amx");
}
