#include "kernels/operators.h"

namespace regard {
extern const Operators PORTABLE = operators("portable");
}
