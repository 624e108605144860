#include "layers.h"

#include <cstring>

namespace regard {

int64_t value_bytes(int precision) {
  if (precision == INT8) return 1;
  return precision == BF16 ? 2 : 4;
}

int64_t matmul_input_stride(const PackedLinear& linear) {
  return pad(linear.inputs) + 64 / value_bytes(linear.precision);
}

int64_t row_stride(int64_t size) { return pad(size) + LANES; }

Workspace::Workspace(BufferPool& pool, const WorkspaceSize& size) {
  const int64_t num_rows = size.num_rows;
  const int64_t stride = row_stride(size.hidden_size);
  const int64_t wide_stride = row_stride(size.projection_size);
  const int64_t inputs_size = num_rows * (wide_stride + LANES);
  const int64_t rows_size = num_rows * (2 * stride + wide_stride + LOGIT_STRIDE);
  const int64_t total = rows_size + wide_stride + 2 * pad(num_rows) + size.scores_size + inputs_size;
  memory = Buffer(&pool, total * static_cast<int64_t>(sizeof(float)));
  float* next = memory.as<float>();
  const auto take = [&next](int64_t count) {
    float* taken = next;
    next += count;
    return taken;
  };
  hidden = {take(num_rows * stride), stride};
  context = {take(num_rows * stride), stride};
  projected = {take(num_rows * wide_stride), wide_stride};
  normed_row = take(wide_stride);
  scales = take(pad(num_rows));
  offsets = take(pad(num_rows));
  scores = take(size.scores_size);
  logits = {take(num_rows * LOGIT_STRIDE), LOGIT_STRIDE};
  inputs = reinterpret_cast<unsigned char*>(take(inputs_size));
  std::memset(memory.as<void>(), 0, 2 * num_rows * stride * sizeof(float));  // the padding of `hidden` and `context`
}

void LayerOps::linear(Workspace& space, RowView rows, int64_t num_rows, const PackedLinear& linear, RowView out,
                      const LinearOptions& options) const {
  int activation = options.activation;
  if (activation == GELU && linear.precision != FLOAT32) activation = FAST_GELU;
  MatmulInput input;
  if (linear.precision == FLOAT32 && !options.norm && activation == IDENTITY) {
    input = {.values = rows.data, .stride = rows.stride};
  } else {
    for (int64_t i = 0; i < num_rows; i++) {
      float* row = rows.row(i);
      if (options.norm) {
        kernels->layer_norm(row, linear.inputs, options.norm->weight, options.norm->bias, norm_eps, space.normed_row);
        row = space.normed_row;
      }
      if (activation != IDENTITY) kernels->activate(row, linear.inputs, activation, row);
      prepare_row(space, i, row, linear);
    }
    input = {
        .values = space.inputs,
        .stride = matmul_input_stride(linear),
        .scales = space.scales,
        .offsets = space.offsets,
    };
  }
  kernels->matmul(input, num_rows, linear, 0, num_blocks(linear), out.data, out.stride, options.should_add);
}

void LayerOps::prepare_row(Workspace& space, int64_t index, const float* row, const PackedLinear& linear) const {
  const int64_t num_bytes = matmul_input_stride(linear) * value_bytes(linear.precision);
  unsigned char* input = space.inputs + index * num_bytes;
  const RowQuantization quantization = kernels->quantize_row(row, linear.inputs, linear.precision, input);
  space.scales[index] = quantization.scale;
  space.offsets[index] = quantization.offset;
}

void LayerOps::normalize_rows(RowView rows, int64_t num_rows, int64_t size, const LayerNorm& norm) const {
  for (int64_t i = 0; i < num_rows; i++) {
    float* row = rows.row(i);
    kernels->layer_norm(row, size, norm.weight, norm.bias, norm_eps, row);
  }
}

void LayerOps::add_attention(Workspace& space, int64_t num_rows, const PackedLinear& out, const LayerNorm& norm) const {
  linear(space, space.context, num_rows, out, space.hidden, {.should_add = true});
  if (!pre_norm) normalize_rows(space.hidden, num_rows, out.outputs, norm);
}

void LayerOps::feed_forward(Workspace& space, int64_t num_rows, const FeedForward& layer) const {
  linear(space, space.hidden, num_rows, layer.up, space.projected, {.norm = pre_norm ? &layer.norm : nullptr});
  // the activation is applied as the inner layer is read, row by row, while it is in the cache
  linear(space, space.projected, num_rows, layer.down, space.hidden, {.activation = activation, .should_add = true});
  if (!pre_norm) normalize_rows(space.hidden, num_rows, layer.down.outputs, layer.norm);
}

}  // namespace regard
