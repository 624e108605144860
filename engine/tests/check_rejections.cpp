#include "check_rejections.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "expect.h"

namespace {

char message[256];

}  // namespace

void check_rejected_arrays(const RandomModel& random) {
  const auto is_rejected = [&](const std::vector<regard_array>& arrays, int64_t error_size) {
    return !regard_model_new(&random.shape, arrays.data(), std::ssize(arrays), "", message, error_size);
  };
  for (int64_t i = 0; i < random.num_arrays(); i++) {
    std::vector<regard_array> arrays = random.arrays;
    arrays[i].num_bytes--;
    expect(is_rejected(arrays, sizeof message), "an array of the wrong size is rejected");
  }
  std::vector<regard_array> arrays = random.arrays;
  arrays.pop_back();
  expect(is_rejected(arrays, 8), "a missing array is rejected, in a short message");
  arrays = random.arrays;
  arrays.push_back(arrays.front());
  expect(is_rejected(arrays, sizeof message), "an array given twice is rejected");
  arrays.back().layer = 7;
  expect(is_rejected(arrays, sizeof message), "an array that the model has no place for is rejected");
}

void check_rejected_shapes(const RandomModel& random) {
  const auto expect_rejected = [&](const char* what, auto change) {
    regard_shape shape = random.shape;
    std::vector<regard_layer> layers = random.decoder_layers;
    change(shape, layers[0]);
    shape.decoder_layers = shape.decoder_layers ? layers.data() : nullptr;
    message[0] = 0;
    expect(!regard_model_new(&shape, random.arrays.data(), random.num_arrays(), "", message, sizeof message), what);
    expect(message[0] && !std::strchr(message, '\n'), "an error is one line");
  };
  using Shape = regard_shape;
  using Layer = regard_layer;
  const int64_t huge = int64_t{1} << 62;
  expect_rejected("no layers", [](Shape& shape, Layer&) { shape.decoder_layers = nullptr; });
  expect_rejected("too many layers", [=](Shape& shape, Layer&) { shape.num_decoder_layers = huge; });
  expect_rejected("no heads", [](Shape& shape, Layer&) { shape.decoder.num_heads = 0; });
  expect_rejected("too many heads", [=](Shape& shape, Layer&) { shape.decoder.num_heads = huge; });
  expect_rejected("heads that share no keys", [](Shape& shape, Layer&) { shape.decoder.num_kv_heads = 5; });
  expect_rejected("huge heads", [=](Shape& shape, Layer&) { shape.decoder.head_size = huge; });
  expect_rejected("negative values", [](Shape& shape, Layer&) { shape.decoder.value_size = -1; });
  expect_rejected("another width", [](Shape& shape, Layer&) { shape.decoder.hidden_size++; });
  expect_rejected("no inner layer", [](Shape& shape, Layer&) { shape.decoder.feed_forward_size = 0; });
  expect_rejected("no such activation", [](Shape& shape, Layer&) { shape.decoder.activation = 99; });
  expect_rejected("no such norm", [](Shape& shape, Layer&) { shape.decoder.norm = 3; });
  expect_rejected("no such placement", [](Shape& shape, Layer&) { shape.decoder.norm_placement = -1; });
  expect_rejected("no cross-attention", [](Shape& shape, Layer&) { shape.decoder.cross_attention = 0; });
  expect_rejected("not a number", [](Shape& shape, Layer&) { shape.decoder.norm_eps = NAN; });
  expect_rejected("negative scale", [](Shape& shape, Layer&) { shape.decoder.attention_scale = -1; });
  expect_rejected("absolute rotary positions", [](Shape& shape, Layer&) { shape.positions = REGARD_POS_ROTARY; });
  expect_rejected("projected embeddings of a decoder", [](Shape& shape, Layer&) { shape.embedding_size = 8; });
  expect_rejected("no such block", [](Shape&, Layer& layer) { layer.block = 9; });
  expect_rejected("negative window", [](Shape&, Layer& layer) { layer.window = -1; });
  expect_rejected("learned positions of a layer", [](Shape&, Layer& layer) { layer.positions = REGARD_POS_LEARNED; });
  expect_rejected("rotation beyond the head", [](Shape&, Layer& layer) {
    layer.positions = REGARD_POS_ROTARY;
    layer.rotary_dim = 1000;
  });
  expect_rejected("no theta", [](Shape&, Layer& layer) {
    layer.positions = REGARD_POS_ROTARY;
    layer.rotary_dim = 0;
    layer.theta = 0;
  });
  expect_rejected("no buckets", [](Shape&, Layer& layer) {
    layer.positions = REGARD_POS_RELATIVE;
    layer.num_buckets = 1;
  });
  expect_rejected("no distance", [](Shape&, Layer& layer) {
    layer.positions = REGARD_POS_RELATIVE;
    layer.max_distance = 1;
  });
  expect_rejected("no such table", [](Shape&, Layer& layer) {
    layer.positions = REGARD_POS_RELATIVE;
    layer.bias_table = 77;
  });
}
