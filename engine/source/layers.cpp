#include "layers.h"

#include <algorithm>
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
  const int64_t context_stride = row_stride(size.context_size);
  const int64_t wide_stride = row_stride(size.projection_size);
  const int64_t inputs_size = num_rows * (wide_stride + LANES);
  const int64_t rows_size = num_rows * (stride + context_stride + wide_stride + LOGIT_STRIDE);
  const int64_t total = rows_size + wide_stride + 2 * pad(num_rows) + size.scores_size + inputs_size;
  memory = Buffer(&pool, total * static_cast<int64_t>(sizeof(float)));
  float* next = memory.as<float>();
  const auto take = [&next](int64_t count) {
    float* taken = next;
    next += count;
    return taken;
  };
  hidden = {take(num_rows * stride), stride};
  context = {take(num_rows * context_stride), context_stride};
  projected = {take(num_rows * wide_stride), wide_stride};
  normed_row = take(wide_stride);
  scales = take(pad(num_rows));
  offsets = take(pad(num_rows));
  scores = take(size.scores_size);
  logits = {take(num_rows * LOGIT_STRIDE), LOGIT_STRIDE};
  inputs = reinterpret_cast<unsigned char*>(take(inputs_size));
  // the padding of `hidden` and `context`
  std::memset(memory.as<void>(), 0, num_rows * (stride + context_stride) * sizeof(float));
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
        normalize(row, linear.inputs, options.norm, space.normed_row);
        row = space.normed_row;
      }
      if (options.is_gated) {
        kernels->activate(row, linear.inputs, activation, space.normed_row);
        kernels->multiply(space.normed_row, row + linear.inputs, linear.inputs, space.normed_row);
        row = space.normed_row;
      } else if (activation != IDENTITY) {
        kernels->activate(row, linear.inputs, activation, row);
      }
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

void LayerOps::normalize(const float* in, int64_t size, const Norm& norm, float* out) const {
  if (is_rms_norm)
    kernels->rms_norm(in, size, norm.weight, norm_eps, out);
  else
    kernels->layer_norm(in, size, norm.weight, norm.bias, norm_eps, out);
}

void LayerOps::normalize_rows(RowView rows, int64_t num_rows, int64_t size, const Norm& norm) const {
  for (int64_t i = 0; i < num_rows; i++) {
    float* row = rows.row(i);
    normalize(row, size, norm, row);
  }
}

void LayerOps::normalize_heads(Workspace& space, float* row, int64_t num_heads, const Norm& norm) const {
  if (!norm) return;
  for (int64_t head = 0; head < num_heads; head++, row += heads.head_size) {
    normalize(row, heads.head_size, norm, space.normed_row);  // not in place: its padding is the next head
    std::copy_n(space.normed_row, heads.head_size, row);
  }
}

void LayerOps::add_output(Workspace& space, RowView rows, int64_t num_rows, const PackedLinear& linear_layer,
                          const SublayerNorms& norms, LinearOptions options) const {
  if (norms.output) {
    // the inner layer of a feed-forward is in `projected`, too, but has been activated into `inputs` before
    linear(space, rows, num_rows, linear_layer, space.projected, options);
    for (int64_t i = 0; i < num_rows; i++) {
      const float* output = space.normed_row;
      float* hidden = space.hidden.row(i);
      normalize(space.projected.row(i), linear_layer.outputs, norms.output, space.normed_row);
      for (int64_t j = 0; j < linear_layer.outputs; j++) hidden[j] = has_residual ? hidden[j] + output[j] : output[j];
    }
  } else {
    options.should_add = has_residual;
    linear(space, rows, num_rows, linear_layer, space.hidden, options);
  }
  if (norms.sum) normalize_rows(space.hidden, num_rows, linear_layer.outputs, norms.sum);
}

void LayerOps::add_attention(Workspace& space, int64_t num_rows, const PackedLinear& out,
                             const SublayerNorms& norms) const {
  add_output(space, space.context, num_rows, out, norms, {});
}

void LayerOps::feed_forward(Workspace& space, int64_t num_rows, const FeedForward& layer) const {
  linear(space, space.hidden, num_rows, layer.up, space.projected, {.norm = layer.norms.input});
  // the activation is applied as the inner layer is read, row by row, while it is in the cache
  const LinearOptions options{.activation = activation, .is_gated = is_gated};
  add_output(space, space.projected, num_rows, layer.down, layer.norms, options);
}

}  // namespace regard
