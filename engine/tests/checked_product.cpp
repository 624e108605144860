#include "checked_product.h"

#include <vector>

#include "../source/instructions.h"
#include "../source/layers.h"

using namespace regard;

void regard_checked_product(const char* instructions, const checked_layer* layer, const float* rows, int32_t count,
                            int32_t first, int32_t blocks, float* out) {
  const Operators& operators = operators_of(instructions);
  const Matrix matrix{layer->precision, layer->outputs,     layer->inputs, layer->packed,
                      layer->scales,    layer->corrections, layer->bias};
  const size_t wide = padded(static_cast<size_t>(layer->inputs)), rows_count = static_cast<size_t>(count);
  const size_t bytes = wide * number_bytes(layer->precision);
  std::vector<unsigned char> told(rows_count * bytes);  // not a byte more than they need
  std::vector<float> scales(rows_count), offsets(rows_count);
  for (size_t i = 0; i < rows_count; i++) {
    const Bytes made = operators.prepare(rows + i * wide, layer->inputs, layer->precision, told.data() + i * bytes);
    scales[i] = made.scale, offsets[i] = made.offset;
  }
  operators.product({told.data(), wide, scales.data(), offsets.data()}, count, matrix, first, blocks, out,
                    static_cast<size_t>(blocks) * LANES, true);
}
