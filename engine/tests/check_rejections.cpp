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

void check_rejected_calls(const regard_model* model, const RandomModel& random) {
  const auto expect_rejected = [&](const char* what, bool is_accepted) {
    expect(!is_accepted, what);
    expect(message[0] && !std::strchr(message, '\n'), "an error is one line");
    message[0] = 0;
  };
  const int32_t ids[] = {5, 6};
  const int32_t offsets[] = {0, 1, 2};
  const int32_t decreasing[] = {0, 2, 1};
  const int32_t negative[] = {0, -1, 2};
  const int32_t poolings[] = {REGARD_POOL_MEAN};
  float out[2048];
  const auto start = [&](const regard_model* any, const int32_t* any_ids, const int32_t* any_offsets, int64_t count) {
    return regard_start(any, any_ids, any_offsets, count, nullptr, message, sizeof message) != nullptr;
  };
  expect_rejected("a state without a model", start(nullptr, ids, offsets, 2));
  expect_rejected("no ids", start(model, nullptr, offsets, 2));
  expect_rejected("no offsets", start(model, ids, nullptr, 2));
  expect_rejected("no texts", start(model, ids, offsets, 0));
  expect_rejected("fewer than no texts", start(model, ids, offsets, INT64_MIN));
  expect_rejected("decreasing offsets", start(model, ids, decreasing, 2));
  expect_rejected("negative offsets", start(model, ids, negative, 2));
  const auto encode = [&](const regard_model* any, const int32_t* kinds, int64_t count, float* any_out) {
    return regard_encode(any, ids, nullptr, offsets, 2, kinds, count, 1, nullptr, any_out, message, sizeof message) != 0;
  };
  expect_rejected("hidden states without a model", encode(nullptr, poolings, 1, out));
  expect_rejected("no poolings", encode(model, nullptr, 1, out));
  expect_rejected("a negative number of poolings", encode(model, poolings, -1, out));
  expect_rejected("too many poolings", encode(model, poolings, INT64_MAX, out));
  expect_rejected("no output", encode(model, poolings, 1, nullptr));

  regard_state* state = regard_start(model, ids, offsets, 2, nullptr, message, sizeof message);
  const int64_t rows[] = {0, -1};
  const auto select = [&](regard_state* any, const int64_t* any_rows, int64_t count) {
    return regard_select_rows(any, any_rows, count, message, sizeof message) != 0;
  };
  expect_rejected("rows of no state", select(nullptr, rows, 1));
  expect_rejected("no rows", select(state, nullptr, 1));
  expect_rejected("a negative row", select(state, rows, 2));
  expect_rejected("a negative number of rows", select(state, rows, -1));
  expect_rejected("too many rows", select(state, rows, int64_t{1} << 59));
  int64_t num_tokens = 1;
  const auto step = [&](regard_state* any, const int32_t* tokens, int64_t k, int32_t* any_ids, float* logprobs,
                        float* targets) {
    return regard_step(any, tokens, 2, num_tokens, k, any_ids, logprobs, nullptr, targets, nullptr, message,
                       sizeof message) != 0;
  };
  int32_t found[4];
  expect_rejected("a step of no state", step(nullptr, ids, 1, found, out, out));
  expect_rejected("no tokens", step(state, nullptr, 1, found, out, out));
  expect_rejected("no ids of the candidates", step(state, ids, 1, nullptr, out, out));
  expect_rejected("no logprobs", step(state, ids, 1, found, nullptr, out));
  expect_rejected("no logprobs of the targets", step(state, ids, 1, found, out, nullptr));
  expect_rejected("negative k", step(state, ids, -1, found, out, out));
  expect_rejected("k beyond the vocabulary", step(state, ids, random.shape.target_vocab_size + 1, found, out, out));
  expect_rejected("an absurd k", step(state, ids, INT64_MAX, found, out, out));
  for (int64_t count : {int64_t{0}, int64_t{-1}, int64_t{1} << 32, INT64_MAX}) {
    num_tokens = count;
    expect_rejected("an absurd number of tokens", step(state, ids, 1, found, out, out));
  }
  regard_state_free(state);
}

// A valid search, of which `change` spoils one argument.
template <class Change>
bool is_searched(const regard_model* model, const RandomModel& random, Change change) {
  const int32_t ids[] = {5, 6};
  const int32_t offsets[] = {0, 1, 2};
  int32_t max_lengths[] = {3, 3};
  const std::vector<double> length_norms(6, 1.0);
  const int32_t always_allowed[] = {0, EOS_ID, 2, BOS_ID, 4, 5};
  std::vector<int32_t> lexicon_offsets(random.shape.source_vocab_size + 1, 0);
  const std::vector<int32_t> lexicon{1};
  regard_search_request request{};
  request.beam = 2;
  request.nbest = 2;
  request.bos_id = BOS_ID;
  request.max_lengths = max_lengths;
  request.num_max_lengths = 2;
  request.length_norms = length_norms.data();
  request.num_length_norms = std::ssize(length_norms);
  request.always_allowed = always_allowed;
  request.num_always_allowed = 6;
  request.lexicon_offsets = lexicon_offsets.data();
  request.num_lexicon_offsets = std::ssize(lexicon_offsets);
  request.lexicon = lexicon.data();
  request.lexicon_size = 1;
  int32_t found[12];
  int32_t lengths[4];
  int32_t finished[4];
  double scores[4];
  double logprobs[4];
  regard_search_result result{
      .ids = found,
      .lengths = lengths,
      .scores = scores,
      .logprobs = logprobs,
      .finished = finished,
  };
  change(request, result, max_lengths, lexicon_offsets.data());
  return regard_search(model, ids, offsets, 2, &request, &result, nullptr, message, sizeof message) != 0;
}

void check_rejected_searches(const regard_model* model, const RandomModel& random) {
  using Request = regard_search_request;
  using Result = regard_search_result;
  const auto expect_rejected = [&](const char* what, auto change) {
    message[0] = 0;
    expect(!is_searched(model, random, change), what);
    expect(message[0] && !std::strchr(message, '\n'), "an error is one line");
  };
  expect(is_searched(model, random, [](Request&, Result&, int32_t*, int32_t*) {}), "a valid search is accepted");
  const int64_t huge = INT64_MAX;
  const auto with = [&](const char* what, auto field, auto value) {
    expect_rejected(what, [=](Request& request, Result&, int32_t*, int32_t*) { request.*field = value; });
  };
  with("no beam", &Request::beam, int64_t{0});
  with("a negative beam", &Request::beam, int64_t{-1});
  with("an absurd beam", &Request::beam, huge);
  with("a beam of a million", &Request::beam, int64_t{1'000'000});
  with("no hypotheses", &Request::nbest, int64_t{0});
  with("more hypotheses than beams", &Request::nbest, int64_t{3});
  with("an absurd number of hypotheses", &Request::nbest, huge);
  with("a negative start token", &Request::bos_id, -1);
  with("a start token beyond the vocabulary", &Request::bos_id, INT32_MAX);
  with("no limits", &Request::max_lengths, nullptr);
  with("fewer limits than texts", &Request::num_max_lengths, int64_t{1});
  with("no norms", &Request::length_norms, nullptr);
  with("fewer norms than lengths", &Request::num_length_norms, int64_t{5});
  with("forbidden tokens that are not there", &Request::num_forbidden, int64_t{1});
  with("a negative number of forbidden tokens", &Request::num_forbidden, int64_t{-1});
  with("an absurd number of forbidden tokens", &Request::num_forbidden, huge);
  with("no allowed tokens", &Request::num_always_allowed, int64_t{0});
  with("an absurd number of allowed tokens", &Request::num_always_allowed, huge);
  with("no offsets of the lexicon", &Request::lexicon_offsets, nullptr);
  with("fewer offsets than source tokens", &Request::num_lexicon_offsets, random.shape.source_vocab_size);
  with("no lexicon", &Request::lexicon, nullptr);
  with("a negative lexicon", &Request::lexicon_size, int64_t{-1});
  for (int32_t limit : {0, -1, 1'000'000'000, INT32_MIN, INT32_MAX})
    expect_rejected("an absurd limit", [=](Request&, Result&, int32_t* limits, int32_t*) { limits[1] = limit; });
  for (int32_t offset : {-1, 2, INT32_MIN, INT32_MAX})
    expect_rejected("offsets beyond the lexicon", [=](Request&, Result&, int32_t*, int32_t* of) { of[6] = offset; });
  for (auto field : {&Result::ids, &Result::lengths, &Result::finished})
    expect_rejected("no result", [=](Request&, Result& result, int32_t*, int32_t*) { result.*field = nullptr; });
  for (auto field : {&Result::scores, &Result::logprobs})
    expect_rejected("no scores", [=](Request&, Result& result, int32_t*, int32_t*) { result.*field = nullptr; });
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
