#include "check_attention.h"

#include <iterator>

#include "expect.h"

namespace {

char message[256];

// Arrays for the queries, keys and values of all layers of an encoder.
struct EncoderCaptures {
  EncoderCaptures(const RandomModel& random, int64_t num_tokens) {
    const regard_block& block = random.shape.encoder;
    const int64_t num_kv_heads = block.num_kv_heads ? block.num_kv_heads : block.num_heads;
    const int64_t head_size = block.head_size ? block.head_size : block.hidden_size / block.num_heads;
    const int64_t value_size = block.value_size ? block.value_size : head_size;
    const int64_t num_layers = random.shape.num_encoder_layers;
    queries.assign(num_layers, std::vector<float>(num_tokens * block.num_heads * head_size));
    keys.assign(num_layers, std::vector<float>(num_tokens * num_kv_heads * head_size));
    values.assign(num_layers, std::vector<float>(num_tokens * num_kv_heads * value_size));
    for (int64_t layer = 0; layer < num_layers; layer++)
      captures.push_back({
          .site = REGARD_SITE_ENCODER_SELF,
          .layer = layer,
          .query = queries[layer].data(),
          .key = keys[layer].data(),
          .value = values[layer].data(),
      });
  }

  bool operator==(const EncoderCaptures& other) const {
    return queries == other.queries && keys == other.keys && values == other.values;
  }

  std::vector<std::vector<float>> queries;  // of each layer
  std::vector<std::vector<float>> keys;
  std::vector<std::vector<float>> values;
  std::vector<regard_capture> captures;
};

std::vector<float> encode(const regard_model* model, const PackedTexts& texts, int64_t size, int64_t threads,
                          const regard_attention_options& attention) {
  std::vector<float> out(size);
  expect(regard_encode(model, texts.ids, texts.token_types, texts.offsets, texts.num_texts, nullptr, 0, threads,
                       &attention, out.data(), message, sizeof message),
         message);
  return out;
}

}  // namespace

void check_attention(const regard_model* model, const RandomModel& random, const PackedTexts& texts,
                     const std::vector<float>& hidden) {
  const int64_t num_tokens = texts.offsets[texts.num_texts];
  const int64_t last_layer = random.shape.num_encoder_layers - 1;
  const std::vector<uint8_t> all_heads(random.shape.encoder.num_heads, 1);
  const regard_ablation ablation{.site = REGARD_SITE_ENCODER_SELF, .layer = last_layer, .heads = all_heads.data()};
  const regard_attention_options ablated{
      .captures = nullptr, .num_captures = 0, .ablations = &ablation, .num_ablations = 1};
  const std::vector<float> ablated_hidden =
      encode(model, texts, hidden.size(), 1, ablated);
  const EncoderCaptures expected(random, num_tokens);
  for (int threads : {1, 3}) {
    const EncoderCaptures captured(random, num_tokens);
    const EncoderCaptures& target = threads == 1 ? expected : captured;
    regard_attention_options options{
        .captures = target.captures.data(),
        .num_captures = std::ssize(target.captures),
        .ablations = nullptr,
        .num_ablations = 0,
    };
    expect(encode(model, texts, hidden.size(), threads, options) == hidden,
           "captures do not change hidden states");
    expect(target == expected, "threads do not change captures");
    options.ablations = &ablation;
    options.num_ablations = 1;
    expect(encode(model, texts, hidden.size(), threads, options) == ablated_hidden,
           "captures do not change an ablation");
  }
  const regard_ablation no_heads{.site = REGARD_SITE_ENCODER_SELF, .layer = 0, .heads = nullptr};
  const regard_ablation no_layer{.site = REGARD_SITE_ENCODER_SELF, .layer = last_layer + 1, .heads = all_heads.data()};
  for (const regard_ablation& wrong : {no_heads, no_layer}) {
    const regard_attention_options options{
        .captures = nullptr, .num_captures = 0, .ablations = &wrong, .num_ablations = 1};
    std::vector<float> out(hidden.size());
    expect(!regard_encode(model, texts.ids, texts.token_types, texts.offsets, texts.num_texts, nullptr, 0, 1, &options,
                          out.data(), message, sizeof message),
           "an ablation of nothing is rejected");
  }
}
