// What a caller asks of attention beside its result: queries, keys and values to capture, and heads to ablate.
#pragma once
#include <vector>

#include "../include/regard_engine.h"
#include "types.h"

namespace regard {

struct Model;

// Options of one site in one layer.
class SiteOptions {
 public:
  bool is_captured() const { return capture_ != nullptr; }
  bool is_ablated() const { return ablated_heads_ != nullptr; }

  // Copies the captured ones of query, key and value of a token; null: there is none to copy.
  void capture(int64_t token, const float* query, const float* key, const float* value) const;
  // The same of a row that holds query, key and value side by side.
  void capture_qkv(int64_t token, const float* qkv) const;
  // Sets the context of ablated heads to zero.
  void ablate(float* context) const;

 private:
  friend class AttentionOptions;
  HeadSizes heads_;
  const regard_capture* capture_ = nullptr;
  const uint8_t* ablated_heads_ = nullptr;
};

// Options of one call. Their arrays stay the caller's.
class AttentionOptions {
 public:
  // `options` may be null. Throws for sites, layers and arrays that do not exist.
  AttentionOptions(const Model& model, const regard_attention_options* options);

  const SiteOptions& at(regard_site site, int64_t layer) const {
    return sites_[site].empty() ? no_options_ : sites_[site][layer];
  }

 private:
  SiteOptions& find(const Model& model, int32_t site, int64_t layer);

  std::vector<SiteOptions> sites_[3];  // [site][layer]; empty: nothing is asked of the site
  SiteOptions no_options_;
};

}  // namespace regard
