#include "attention_options.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "checks.h"
#include "layers.h"
#include "model.h"

namespace regard {

void SiteOptions::capture(int64_t token, const float* query, const float* key, const float* value) const {
  const int64_t query_size = query_width(heads_);
  const int64_t key_size = key_width(heads_);
  const int64_t value_size = key_value_width(heads_) - key_size;
  if (capture_->query && query) std::copy_n(query, query_size, capture_->query + token * query_size);
  if (capture_->key && key) std::copy_n(key, key_size, capture_->key + token * key_size);
  if (capture_->value && value) std::copy_n(value, value_size, capture_->value + token * value_size);
}

void SiteOptions::capture_qkv(int64_t token, const float* qkv) const {
  const float* key = qkv + query_width(heads_);
  capture(token, qkv, key, key + key_width(heads_));
}

void SiteOptions::ablate(float* context) const {
  for (int64_t head = 0; head < heads_.num_heads; head++)
    if (ablated_heads_[head]) std::fill_n(context + head * heads_.value_size, heads_.value_size, 0.0f);
}

AttentionOptions::AttentionOptions(const Model& model, const regard_attention_options* options) {
  if (!options) return;
  const int64_t num_sites = std::ssize(model.encoder.layers) + 2 * std::ssize(model.decoder.layers);
  check_range("num_captures", options->num_captures, 0, num_sites);
  check_range("num_ablations", options->num_ablations, 0, num_sites);
  check_array("captures", options->captures, options->num_captures, options->num_captures);
  check_array("ablations", options->ablations, options->num_ablations, options->num_ablations);
  for (int64_t i = 0; i < options->num_captures; i++) {
    const regard_capture& capture = options->captures[i];
    SiteOptions& site = find(model, capture.site, capture.layer);
    if (site.capture_) throw std::invalid_argument("an attention site is captured twice");
    site.capture_ = &capture;
  }
  for (int64_t i = 0; i < options->num_ablations; i++) {
    const regard_ablation& ablation = options->ablations[i];
    SiteOptions& site = find(model, ablation.site, ablation.layer);
    if (!ablation.heads || site.ablated_heads_)
      throw std::invalid_argument("an attention site is ablated twice, or has no heads");
    site.ablated_heads_ = ablation.heads;
  }
}

SiteOptions& AttentionOptions::find(const Model& model, int32_t site, int64_t layer) {
  const bool is_encoder = site == REGARD_SITE_ENCODER_SELF;
  const bool is_cross = site == REGARD_SITE_DECODER_CROSS;
  const Stack& stack = is_encoder ? model.encoder : model.decoder;
  const int64_t num_layers = std::ssize(stack.layers);
  const bool exists = is_encoder || site == REGARD_SITE_DECODER_SELF || (is_cross && model.has_encoder());
  if (!exists || layer < 0 || layer >= num_layers)
    throw std::invalid_argument("there is no attention site " + std::to_string(site) + " in layer " +
                                std::to_string(layer));
  std::vector<SiteOptions>& layers = sites_[site];
  if (layers.empty()) {
    layers.resize(num_layers);
    for (SiteOptions& options : layers) options.heads_ = stack.ops.heads;
  }
  return layers[layer];
}

}  // namespace regard
