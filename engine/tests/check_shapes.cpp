#include "check_shapes.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "expect.h"

namespace {

constexpr int64_t INT64_FIELDS[] = {-1, 0, 1, 2, 3, 5, 1 << 20, (1 << 24) + 1, INT32_MAX, int64_t{1} << 32,
                                    INT64_MIN, INT64_MAX};
constexpr int32_t INT32_FIELDS[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 1 << 20, INT32_MIN, INT32_MAX};
constexpr float FLOAT_FIELDS[] = {
    NAN, INFINITY, -INFINITY, 0, -1, 1e-45f, 3e38f, -3e38f};

constexpr int64_t regard_block::*BLOCK_SIZES[] = {&regard_block::hidden_size,  &regard_block::num_heads,
                                                  &regard_block::num_kv_heads, &regard_block::head_size,
                                                  &regard_block::value_size,   &regard_block::feed_forward_size};
constexpr int32_t regard_block::*BLOCK_CODES[] = {
    &regard_block::activation,           &regard_block::gated,    &regard_block::norm,    &regard_block::norm_placement,
    &regard_block::first_attention_norm, &regard_block::residual, &regard_block::qk_norm, &regard_block::cross_attention};
constexpr float regard_block::*BLOCK_FLOATS[] = {&regard_block::norm_eps, &regard_block::attention_scale};
constexpr int64_t regard_layer::*LAYER_SIZES[] = {&regard_layer::block,      &regard_layer::window,
                                                  &regard_layer::rotary_dim, &regard_layer::bias_table,
                                                  &regard_layer::num_buckets, &regard_layer::max_distance};
constexpr int32_t regard_layer::*LAYER_CODES[] = {&regard_layer::positions, &regard_layer::interleaved,
                                                  &regard_layer::is_causal};
constexpr float regard_layer::*LAYER_FLOATS[] = {&regard_layer::theta, &regard_layer::factor};
constexpr int64_t regard_shape::*SHAPE_SIZES[] = {
    &regard_shape::num_encoder_layers, &regard_shape::num_decoder_layers, &regard_shape::source_vocab_size,
    &regard_shape::target_vocab_size,  &regard_shape::max_positions,      &regard_shape::position_offset,
    &regard_shape::num_token_types,    &regard_shape::embedding_size};
constexpr int32_t regard_shape::*SHAPE_CODES[] = {&regard_shape::precision, &regard_shape::positions,
                                                  &regard_shape::embedding_norm, &regard_shape::share_embeddings,
                                                  &regard_shape::eos_id};

char message[256];

void encode(const regard_model* model, const regard_shape& shape) {
  const int32_t ids[] = {0, static_cast<int32_t>(shape.source_vocab_size - 1), 1};
  const int32_t offsets[] = {0, 2, 3};
  const int32_t poolings[] = {REGARD_POOL_MAX};
  std::vector<float> out(2 * shape.encoder.hidden_size);
  regard_encode(model, ids, nullptr, offsets, 2, poolings, 1, 2, nullptr, out.data(), message, sizeof message);
}

void generate(const regard_model* model, const regard_shape& shape) {
  const int32_t ids[] = {0, 1};
  const int32_t offsets[] = {0, 1, 2};
  regard_state* state = regard_start(model, ids, offsets, 2, nullptr, message, sizeof message);
  if (!state) return;
  const int32_t tokens[] = {0, static_cast<int32_t>(shape.target_vocab_size - 1)};
  std::vector<float> logprobs(2 * shape.target_vocab_size);
  float eos_logprobs[2];
  for (int step = 0; step < 3; step++)
    if (!regard_step(state, tokens, 2, 1, 0, nullptr, logprobs.data(), nullptr, eos_logprobs, nullptr, message,
                     sizeof message))
      break;
  regard_state_free(state);
}

void open_and_use(const RandomModel& random, const regard_shape& shape) {
  message[0] = 0;
  regard_model* model =
      regard_model_new(&shape, random.arrays.data(), random.num_arrays(), "", message, sizeof message);
  if (!model) {
    expect(message[0] && !std::strchr(message, '\n'), "a shape is rejected with one line");
    return;
  }
  if (shape.num_encoder_layers) encode(model, shape);
  if (shape.num_decoder_layers) generate(model, shape);
  regard_model_free(model);
}

template <class Struct, class Value, size_t NUM_FIELDS, size_t NUM_VALUES, class Function>
void for_each_change(Struct& object, Value Struct::*const (&fields)[NUM_FIELDS], const Value (&values)[NUM_VALUES],
                     Function function) {
  for (Value Struct::*field : fields)
    for (Value value : values) {
      const Value original = object.*field;
      object.*field = value;
      function();
      object.*field = original;
    }
}

}  // namespace

void check_extreme_shapes(const RandomModel& random) {
  regard_shape shape = random.shape;
  std::vector<regard_layer> encoder_layers = random.encoder_layers;
  std::vector<regard_layer> decoder_layers = random.decoder_layers;
  shape.encoder_layers = encoder_layers.data();
  shape.decoder_layers = decoder_layers.data();
  const auto use = [&] {
    // more layers than the array has are the caller's fault
    if (shape.num_encoder_layers > std::ssize(encoder_layers) && shape.num_encoder_layers <= 1024) return;
    if (shape.num_decoder_layers > std::ssize(decoder_layers) && shape.num_decoder_layers <= 1024) return;
    open_and_use(random, shape);
  };
  use();
  for_each_change(shape, SHAPE_SIZES, INT64_FIELDS, use);
  for_each_change(shape, SHAPE_CODES, INT32_FIELDS, use);
  constexpr float regard_shape::*SHAPE_FLOATS[] = {&regard_shape::embedding_scale};
  for_each_change(shape, SHAPE_FLOATS, FLOAT_FIELDS, use);
  for (regard_block* block : {&shape.encoder, &shape.decoder}) {
    for_each_change(*block, BLOCK_SIZES, INT64_FIELDS, use);
    for_each_change(*block, BLOCK_CODES, INT32_FIELDS, use);
    for_each_change(*block, BLOCK_FLOATS, FLOAT_FIELDS, use);
  }
  for (std::vector<regard_layer>* layers : {&encoder_layers, &decoder_layers}) {
    if (layers->empty()) continue;
    for_each_change(layers->back(), LAYER_SIZES, INT64_FIELDS, use);
    for_each_change(layers->back(), LAYER_CODES, INT32_FIELDS, use);
    for_each_change(layers->back(), LAYER_FLOATS, FLOAT_FIELDS, use);
  }
}
