// Test program for the thread sanitizer: several threads use one model, each with encoders' helpers, searches and
// states of its own, and all must get the bits that one thread gets. `check_threads [COUNT]`: COUNT models of each kind.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../include/regard_engine.h"
#include "check_parallel.h"
#include "expect.h"
#include "random_model.h"

namespace {

constexpr int NUM_THREADS = 4;
constexpr int NUM_ROUNDS = 3;
constexpr int32_t MAX_LENGTH = 7;

struct Texts {
  std::vector<int32_t> ids;
  std::vector<int32_t> offsets{0};

  int64_t num_texts() const { return std::ssize(offsets) - 1; }
};

Texts draw_texts(int64_t vocab_size, const std::vector<int>& lengths) {
  Texts texts;
  for (int length : lengths) {
    for (int i = 0; i < length; i++) texts.ids.push_back(random_int(0, static_cast<int>(vocab_size) - 1));
    texts.offsets.push_back(static_cast<int32_t>(texts.ids.size()));
  }
  return texts;
}

int64_t query_width(const regard_block& block) {
  return block.num_heads * (block.head_size ? block.head_size : block.hidden_size / block.num_heads);
}

regard_model* create_model(const RandomModel& random) {
  char message[256];
  regard_model* model =
      regard_model_new(&random.shape, random.arrays.data(), random.num_arrays(), "", message, sizeof message);
  expect(model != nullptr, message);
  return model;
}

using Compute = std::function<std::vector<float>(const regard_model*)>;

// All threads begin with a new model at once: what is computed on first use is computed by several.
void check_same_bits(const RandomModel& random, const Compute& compute) {
  regard_model* model = create_model(random);
  const std::vector<float> expected = compute(model);
  regard_model_free(model);
  model = create_model(random);
  std::atomic<int> num_ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < NUM_THREADS; i++)
    threads.emplace_back([&] {
      num_ready++;
      while (num_ready < NUM_THREADS) std::this_thread::yield();
      for (int round = 0; round < NUM_ROUNDS; round++)
        expect(compute(model) == expected, "a thread gets the bits that one thread gets");
    });
  for (std::thread& thread : threads) thread.join();
  regard_model_free(model);
}

// Encodes with helper threads: ranges of texts in parallel, and rows of one long text.
void check_encoder(int32_t precision) {
  const RandomModel random(precision, true, false);
  for (const std::vector<int>& lengths : {std::vector<int>{90, 80, 3, 70, 1}, std::vector<int>{200}}) {
    const Texts texts = draw_texts(random.shape.source_vocab_size, lengths);
    check_same_bits(random, [&](const regard_model* model) {
      char message[256];
      const int32_t poolings[] = {REGARD_POOL_MEAN, REGARD_POOL_MAX};
      std::vector<float> out(texts.num_texts() * 2 * random.hidden_size());
      std::vector<float> query(std::ssize(texts.ids) * query_width(random.shape.encoder));
      const regard_capture capture{
          .site = REGARD_SITE_ENCODER_SELF,
          .layer = 0,
          .query = query.data(),
          .key = nullptr,
          .value = nullptr,
      };
      const regard_attention_options options{
          .captures = &capture,
          .num_captures = 1,
          .ablations = nullptr,
          .num_ablations = 0,
      };
      expect(regard_encode(model, texts.ids.data(), nullptr, texts.offsets.data(), texts.num_texts(), poolings, 2, 3,
                           &options, out.data(), message, sizeof message),
             message);
      out.insert(out.end(), query.begin(), query.end());
      return out;
    });
  }
}

std::vector<float> search(const regard_model* model, const RandomModel& random, const Texts& texts) {
  char message[256];
  constexpr int64_t BEAM = 3;
  const int64_t num_hypotheses = texts.num_texts() * BEAM;
  const std::vector<int32_t> max_lengths(texts.num_texts(), MAX_LENGTH);
  const std::vector<double> length_norms(MAX_LENGTH + 3, 2.0);
  const std::vector<int32_t> always_allowed{0, EOS_ID, 2, BOS_ID, 4, 5, 6, 7};
  const std::vector<int32_t> lexicon_offsets(random.shape.source_vocab_size + 1, 0);
  regard_search_request request{};
  request.beam = BEAM;
  request.nbest = BEAM;
  request.bos_id = BOS_ID;
  request.max_lengths = max_lengths.data();
  request.num_max_lengths = std::ssize(max_lengths);
  request.length_norms = length_norms.data();
  request.num_length_norms = std::ssize(length_norms);
  request.always_allowed = always_allowed.data();
  request.num_always_allowed = std::ssize(always_allowed);
  request.lexicon_offsets = lexicon_offsets.data();
  request.num_lexicon_offsets = std::ssize(lexicon_offsets);
  std::vector<int32_t> ids(num_hypotheses * MAX_LENGTH);
  std::vector<int32_t> lengths(num_hypotheses);
  std::vector<int32_t> finished(num_hypotheses);
  std::vector<double> scores(num_hypotheses);
  std::vector<double> logprobs(num_hypotheses);
  const regard_search_result result{
      .ids = ids.data(),
      .lengths = lengths.data(),
      .scores = scores.data(),
      .logprobs = logprobs.data(),
      .finished = finished.data(),
  };
  expect(regard_search(model, texts.ids.data(), texts.offsets.data(), texts.num_texts(), &request, &result, nullptr,
                       message, sizeof message),
         message);
  std::vector<float> found(lengths.begin(), lengths.end());
  for (double score : scores) found.push_back(static_cast<float>(score));
  return found;
}

// Starts states, steps them and selects rows, as generators in Python do.
std::vector<float> generate(const regard_model* model, const Texts& texts, int64_t vocab_size) {
  char message[256];
  regard_state* state =
      regard_start(model, texts.ids.data(), texts.offsets.data(), texts.num_texts(), nullptr, message, sizeof message);
  expect(state != nullptr, message);
  std::vector<int64_t> rows(texts.num_texts());
  for (int64_t i = 0; i < std::ssize(rows); i++) rows[i] = std::ssize(rows) - 1 - i;
  const std::vector<int32_t> tokens(texts.num_texts(), BOS_ID);
  std::vector<float> logprobs(texts.num_texts() * vocab_size);
  std::vector<float> eos_logprobs(texts.num_texts());
  for (int step = 0; step < 3; step++) {
    expect(regard_step(state, tokens.data(), std::ssize(tokens), 1, 0, nullptr, logprobs.data(), nullptr,
                       eos_logprobs.data(), nullptr, message, sizeof message),
           message);
    expect(regard_select_rows(state, rows.data(), std::ssize(rows), message, sizeof message), message);
  }
  regard_state_free(state);
  return logprobs;
}

void check_translator(int32_t precision) {
  const RandomModel random(precision, true, true);
  const Texts texts = draw_texts(random.shape.source_vocab_size, {9, 2, 17});
  check_same_bits(random, [&](const regard_model* model) { return search(model, random, texts); });
  check_same_bits(random,
                  [&](const regard_model* model) { return generate(model, texts, random.shape.target_vocab_size); });
}

void check_causal(int32_t precision) {
  const RandomModel random(precision, false, true);
  const Texts texts = draw_texts(random.shape.target_vocab_size, {5, 5, 5});
  check_same_bits(random,
                  [&](const regard_model* model) { return generate(model, texts, random.shape.target_vocab_size); });
}

}  // namespace

int main(int argc, char** argv) {
  const int models_per_kind = argc > 1 ? std::atoi(argv[1]) : 6;
  check_parallel();
  for (int i = 0; i < models_per_kind; i++) {
    check_encoder(i % 3);
    check_translator(i % 3);
    check_causal(i % 3);
  }
  wait_for_helpers();
  std::printf("passed on %s\n", regard_instruction_sets());
  return 0;
}
