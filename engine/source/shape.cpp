#include "shape.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "checks.h"

namespace regard {
namespace {

void check_flag(const char* name, int32_t value) { check_range(name, value, 0, 1); }

constexpr int64_t MAX_LAYERS = 1024;
constexpr int64_t MAX_POSITIONS = 1 << 20;
constexpr int64_t MAX_BUCKETS = 1 << 16;

void check_float(const char* name, float value, float low) {
  if (!(value >= low && std::isfinite(value)))
    throw std::invalid_argument(std::string(name) + " must be a number from " + std::to_string(low) + " on");
}

void check_layer(const regard_layer& layer, int64_t num_layers, int64_t head_size, bool is_decoder) {
  check_flag("is_causal", layer.is_causal);
  const bool is_causal = is_decoder || layer.is_causal;
  check_range("block", layer.block, 0, num_layers - 1);
  check_range("window", layer.window, 0, MAX_POSITIONS);
  check_flag("interleaved", layer.interleaved);
  if (layer.positions != REGARD_POS_NONE)
    check_range("positions of a layer", layer.positions, REGARD_POS_ROTARY, REGARD_POS_RELATIVE);
  if (layer.positions == REGARD_POS_ROTARY) {
    check_range("rotary_dim", layer.rotary_dim, 0, head_size);
    if (layer.rotary_dim % 2 || (!layer.rotary_dim && head_size % 2))
      throw std::invalid_argument("rotary positions need an even number of values");
    check_float("theta", layer.theta, 1.0f);
    check_float("factor", layer.factor, 1e-6f);
  }
  if (layer.positions == REGARD_POS_RELATIVE) {
    check_range("bias_table", layer.bias_table, 0, num_layers - 1);
    check_range("num_buckets", layer.num_buckets, is_causal ? 2 : 4, MAX_BUCKETS);
    check_range("max_distance", layer.max_distance, layer.num_buckets / (is_causal ? 2 : 4) + 1, MAX_POSITIONS);
  }
}

// Layers from `layers` on, checked with their block.
void check_stack(const regard_block& block, const regard_layer* layers, int64_t num_layers, bool is_decoder) {
  if (!num_layers) return;
  if (!layers) throw std::invalid_argument("layers are missing");
  check_range("hidden_size", block.hidden_size, 1, MAX_INT8_INPUTS);
  check_range("num_heads", block.num_heads, 1, MAX_INT8_INPUTS);
  check_range("num_kv_heads", block.num_kv_heads, 0, block.num_heads);
  if (block.num_kv_heads && block.num_heads % block.num_kv_heads)
    throw std::invalid_argument("num_kv_heads (" + std::to_string(block.num_kv_heads) + ") must divide num_heads (" +
                                std::to_string(block.num_heads) + ")");
  if (!block.head_size && block.hidden_size % block.num_heads)
    throw std::invalid_argument("num_heads (" + std::to_string(block.num_heads) + ") must divide hidden_size (" +
                                std::to_string(block.hidden_size) + ")");
  check_range("head_size", block.head_size, 0, MAX_INT8_INPUTS / block.num_heads);
  check_range("value_size", block.value_size, 0, MAX_INT8_INPUTS / block.num_heads);
  check_range("feed_forward_size", block.feed_forward_size, 1, MAX_INT8_INPUTS);
  check_range("activation", block.activation, RELU, QUICK_GELU);
  check_range("norm", block.norm, REGARD_NORM_LAYER, REGARD_NORM_RMS_PLUS_ONE);
  check_range("norm_placement", block.norm_placement, REGARD_PLACEMENT_PRE, REGARD_PLACEMENT_NONE);
  check_flag("gated", block.gated);
  check_flag("first_attention_norm", block.first_attention_norm);
  check_flag("residual", block.residual);
  check_flag("qk_norm", block.qk_norm);
  check_range("cross_attention", block.cross_attention, 0, is_decoder);
  check_float("norm_eps", block.norm_eps, 0.0f);
  check_float("attention_scale", block.attention_scale, 0.0f);
  for (int64_t layer = 0; layer < num_layers; layer++)
    check_layer(layers[layer], num_layers, head_sizes(block).head_size, is_decoder);
}

}  // namespace

HeadSizes head_sizes(const regard_block& block) {
  const int64_t head_size = block.head_size ? block.head_size : block.hidden_size / block.num_heads;
  const float default_scale = 1.0f / std::sqrt(static_cast<float>(head_size));
  return {
      .num_heads = block.num_heads,
      .num_kv_heads = block.num_kv_heads ? block.num_kv_heads : block.num_heads,
      .head_size = head_size,
      .value_size = block.value_size ? block.value_size : head_size,
      .scale = block.attention_scale > 0 ? block.attention_scale : default_scale,
  };
}

void check_shape(const regard_shape& shape) {
  constexpr int64_t MAX_VOCAB_SIZE = 1 << 24;
  check_range("precision", shape.precision, FLOAT32, INT8);
  check_range("num_encoder_layers", shape.num_encoder_layers, 0, MAX_LAYERS);
  const bool has_encoder = shape.num_encoder_layers > 0;
  check_range("num_decoder_layers", shape.num_decoder_layers, has_encoder ? 0 : 1, MAX_LAYERS);
  const bool has_decoder = shape.num_decoder_layers > 0;
  check_stack(shape.encoder, shape.encoder_layers, shape.num_encoder_layers, false);
  check_stack(shape.decoder, shape.decoder_layers, shape.num_decoder_layers, true);
  if (shape.positions != REGARD_POS_NONE)
    check_range("positions", shape.positions, REGARD_POS_SINUSOIDAL, REGARD_POS_LEARNED);
  check_range("max_positions", shape.max_positions, 1, MAX_POSITIONS);
  check_range("position_offset", shape.position_offset, 0, shape.max_positions - 1);
  check_range("num_token_types", shape.num_token_types, 0, 1 << 16);
  check_range("embedding_size", shape.embedding_size, 0, has_decoder ? 0 : MAX_INT8_INPUTS);
  check_flag("embedding_norm", shape.embedding_norm);
  check_flag("share_embeddings", shape.share_embeddings);
  check_float("embedding_scale", shape.embedding_scale, 0.0f);
  if (has_encoder) check_range("source_vocab_size", shape.source_vocab_size, 1, MAX_VOCAB_SIZE);
  if (has_decoder) {
    check_range("target_vocab_size", shape.target_vocab_size, 1, MAX_VOCAB_SIZE);
    check_range("eos_id", shape.eos_id, 0, shape.target_vocab_size - 1);
    if ((shape.decoder.cross_attention != 0) != has_encoder)
      throw std::invalid_argument("a decoder has cross-attention if there is an encoder");
  }
  if (!has_encoder || !has_decoder) return;
  if (shape.encoder.hidden_size != shape.decoder.hidden_size)
    throw std::invalid_argument("encoder and decoder need equal hidden sizes");
  if (shape.share_embeddings && shape.source_vocab_size != shape.target_vocab_size)
    throw std::invalid_argument("shared embeddings need equal vocabulary sizes");
}

}  // namespace regard
