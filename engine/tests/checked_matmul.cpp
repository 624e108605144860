#include "checked_matmul.h"

#include <vector>

#include "../source/instruction_sets.h"
#include "../source/layers.h"

using namespace regard;

void regard_checked_matmul(const char* instruction_set, const checked_linear* layer, const float* rows,
                           int64_t num_rows, int64_t first_block, int64_t num_blocks, float* out) {
  const Kernels& kernels = find_kernels(instruction_set);
  const PackedLinear linear{
      .precision = layer->precision,
      .outputs = layer->outputs,
      .inputs = layer->inputs,
      .packed = layer->packed,
      .scales = layer->scales,
      .corrections = layer->corrections,
      .bias = layer->bias,
  };
  const int64_t stride = pad(layer->inputs);
  const int64_t num_bytes = stride * value_bytes(layer->precision);
  std::vector<unsigned char> inputs(num_rows * num_bytes);  // not a byte more than needed
  std::vector<float> scales(num_rows);
  std::vector<float> offsets(num_rows);
  for (int64_t i = 0; i < num_rows; i++) {
    unsigned char* input = inputs.data() + i * num_bytes;
    const RowQuantization quantization =
        kernels.quantize_row(rows + i * stride, layer->inputs, layer->precision, input);
    scales[i] = quantization.scale;
    offsets[i] = quantization.offset;
  }
  const MatmulInput input{
      .values = inputs.data(),
      .stride = stride,
      .scales = scales.data(),
      .offsets = offsets.data(),
  };
  kernels.matmul(input, num_rows, linear, first_block, num_blocks, out, num_blocks * LANES, true);
}
