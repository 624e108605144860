// Test program for sanitizers: random small models through every function, on every instruction set. `check_engine
// [COUNT]`: COUNT random models of each kind (encoder, causal language model, encoder–decoder; default 24).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "../include/regard_engine.h"
#include "check_attention.h"
#include "check_matmul.h"
#include "check_parallel.h"
#include "check_rejections.h"
#include "check_shapes.h"
#include "expect.h"
#include "random_model.h"

namespace {

char message[256];

struct TokenBatch {
  std::vector<int32_t> ids;
  std::vector<int32_t> offsets{0};

  void add(const std::vector<int32_t>& text) {
    ids.insert(ids.end(), text.begin(), text.end());
    offsets.push_back(static_cast<int32_t>(ids.size()));
  }
  void remove_last() {
    offsets.pop_back();
    ids.resize(offsets.back());
  }
  int64_t num_texts() const { return std::ssize(offsets) - 1; }
  std::vector<int32_t> last_text() const { return {ids.begin() + offsets[offsets.size() - 2], ids.end()}; }
};

std::vector<int32_t> random_text(int64_t vocab_size, int64_t length) {
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = random_int(0, static_cast<int>(vocab_size) - 1);
  return ids;
}

TokenBatch random_texts(int64_t vocab_size, int max_texts, int max_length) {
  TokenBatch texts;
  const int num_texts = random_int(1, max_texts);
  for (int i = 0; i < num_texts; i++) texts.add(random_text(vocab_size, random_int(1, max_length)));
  return texts;
}

regard_model* create_model(const RandomModel& random, const std::string& set) {
  regard_model* model = regard_model_new(&random.shape, random.arrays.data(), random.num_arrays(), set.c_str(), message,
                                         sizeof message);
  expect(model != nullptr, message);
  return model;
}

regard_state* start(const regard_model* model, const TokenBatch& texts) {
  return regard_start(model, texts.ids.data(), texts.offsets.data(), texts.num_texts(), nullptr, message,
                      sizeof message);
}

// One step with all log-probabilities, [rows, vocabulary].
std::vector<float> step_all(regard_state* state, const std::vector<int32_t>& tokens, int64_t vocab_size) {
  const int64_t num_rows = std::ssize(tokens);
  std::vector<float> logprobs(num_rows * vocab_size);
  std::vector<float> eos_logprobs(num_rows);
  expect(regard_step(state, tokens.data(), num_rows, 1, 0, nullptr, logprobs.data(), nullptr, eos_logprobs.data(), nullptr,
                     message, sizeof message),
         message);
  return logprobs;
}

// All log-probabilities of three steps, by row.
std::vector<std::vector<float>> generate(const regard_model* model, const TokenBatch& texts, int64_t vocab_size) {
  regard_state* state = start(model, texts);
  expect(state != nullptr, message);
  std::vector<std::vector<float>> row_logprobs(texts.num_texts());
  std::vector<int32_t> tokens(texts.num_texts(), BOS_ID);
  for (int step = 0; step < 3; step++) {
    const std::vector<float> logprobs = step_all(state, tokens, vocab_size);
    for (int64_t row = 0; row < texts.num_texts(); row++) {
      const auto begin = logprobs.begin() + row * vocab_size;
      row_logprobs[row].insert(row_logprobs[row].end(), begin, begin + vocab_size);
      tokens[row] = 4 + step;
    }
  }
  regard_state_free(state);
  return row_logprobs;
}

// Results of a search, in memory of exactly their size.
struct SearchArrays {
  std::vector<int32_t> ids;
  std::vector<int32_t> lengths;
  std::vector<int32_t> finished;
  std::vector<double> scores;
  std::vector<double> logprobs;

  SearchArrays(int64_t num_hypotheses, int64_t max_length)
      : ids(num_hypotheses * max_length),
        lengths(num_hypotheses),
        finished(num_hypotheses),
        scores(num_hypotheses),
        logprobs(num_hypotheses) {}

  bool run(const regard_model* model, const TokenBatch& texts, const regard_search_request& request) {
    const regard_search_result result{
        .ids = ids.data(),
        .lengths = lengths.data(),
        .scores = scores.data(),
        .logprobs = logprobs.data(),
        .finished = finished.data(),
    };
    return regard_search(model, texts.ids.data(), texts.offsets.data(), texts.num_texts(), &request, &result, nullptr,
                         message, sizeof message);
  }
};

void check_search(const regard_model* model, const RandomModel& random, const TokenBatch& texts) {
  constexpr int32_t MAX_LENGTH = 9;
  const int32_t forbidden[] = {0, BOS_ID};
  const int64_t beam = random_int(1, 4);
  const int64_t num_hypotheses = texts.num_texts() * beam;
  const std::vector<int32_t> max_lengths(texts.num_texts(), MAX_LENGTH);
  std::vector<double> length_norms;
  for (int length = 0; length < MAX_LENGTH + 3; length++) length_norms.push_back(length);
  regard_search_request request{};
  request.beam = beam;
  request.nbest = beam;
  request.bos_id = BOS_ID;
  request.max_lengths = max_lengths.data();
  request.num_max_lengths = std::ssize(max_lengths);
  request.length_norms = length_norms.data();
  request.num_length_norms = std::ssize(length_norms);
  request.forbidden = forbidden;
  request.num_forbidden = 2;
  SearchArrays all_tokens(num_hypotheses, MAX_LENGTH);
  expect(all_tokens.run(model, texts, request), message);
  expect(all_tokens.lengths[0] >= 0 && all_tokens.lengths[0] <= MAX_LENGTH, "a text is within its length limit");

  // a lexicon that allows all tokens for each source token
  const int32_t always_allowed[] = {0, EOS_ID, BOS_ID};
  std::vector<int32_t> lexicon_offsets{0};
  std::vector<int32_t> lexicon;
  for (int64_t source_id = 0; source_id < random.shape.source_vocab_size; source_id++) {
    for (int32_t id = 0; id < random.shape.target_vocab_size; id++) lexicon.push_back(id);
    lexicon_offsets.push_back(static_cast<int32_t>(lexicon.size()));
  }
  request.always_allowed = always_allowed;
  request.num_always_allowed = 3;
  request.lexicon_offsets = lexicon_offsets.data();
  request.num_lexicon_offsets = std::ssize(lexicon_offsets);
  request.lexicon = lexicon.data();
  request.lexicon_size = std::ssize(lexicon);
  SearchArrays shortlisted(num_hypotheses, MAX_LENGTH);
  expect(shortlisted.run(model, texts, request), message);
  for (int64_t i = 0; i < num_hypotheses; i++) {
    const bool is_missing = all_tokens.lengths[i] < 0;
    const auto ids = all_tokens.ids.begin() + i * MAX_LENGTH;
    expect(shortlisted.lengths[i] == all_tokens.lengths[i] &&
               (is_missing || shortlisted.scores[i] == all_tokens.scores[i]) &&
               std::equal(ids, ids + std::max(all_tokens.lengths[i], 0), shortlisted.ids.begin() + i * MAX_LENGTH),
           "a shortlist of all tokens changes nothing");
  }

  const std::vector<int32_t> empty_lexicon(lexicon_offsets.size(), 0);
  request.always_allowed = forbidden;  // without eos
  request.num_always_allowed = 2;
  request.lexicon_offsets = empty_lexicon.data();
  expect(!shortlisted.run(model, texts, request), "a shortlist without eos, or with too few tokens, is rejected");
}

void check_rejections(const regard_model* model, const RandomModel& random) {
  const int32_t outside[] = {static_cast<int32_t>(random.shape.source_vocab_size)};
  const int32_t inside[] = {5};
  const int32_t offsets[] = {0, 1};
  const int32_t empty[] = {0, 0};
  expect(!regard_start(model, outside, offsets, 1, nullptr, message, sizeof message),
         "a token beyond the vocabulary is rejected");
  expect(!regard_start(model, inside, empty, 1, nullptr, message, sizeof message), "an empty text is rejected");
  regard_state* state = regard_start(model, inside, offsets, 1, nullptr, message, sizeof message);
  const int64_t no_row[] = {1};
  int32_t id;
  float logprob;
  float eos_logprob;
  expect(!regard_select_rows(state, no_row, 1, message, sizeof message), "a row that does not exist is rejected");
  expect(!regard_step(state, inside, 2, 1, 1, &id, &logprob, nullptr, &eos_logprob, nullptr, message, sizeof message),
         "too many tokens are rejected");
  regard_state_free(state);
}

using Poolings = std::vector<int32_t>;
const Poolings NO_POOLING;
const Poolings ALL_POOLINGS{REGARD_POOL_MEAN, REGARD_POOL_CLS, REGARD_POOL_MAX};
const Poolings CLS_POOLING{REGARD_POOL_CLS};

// Hidden states, or poolings of each text.
std::vector<float> encode(const regard_model* model, const TokenBatch& texts, const std::vector<int32_t>& token_types,
                          int64_t hidden_size, const Poolings& poolings, int64_t threads) {
  const int64_t num_poolings = std::ssize(poolings);
  const int64_t num_rows = num_poolings ? num_poolings * texts.num_texts() : std::ssize(texts.ids);
  std::vector<float> out(num_rows * hidden_size);
  const int32_t* types = token_types.empty() ? nullptr : token_types.data();
  expect(regard_encode(model, texts.ids.data(), types, texts.offsets.data(), texts.num_texts(), poolings.data(),
                       num_poolings, threads, nullptr, out.data(), message, sizeof message),
         message);
  return out;
}

// Token types of all tokens, or none.
std::vector<int32_t> random_token_types(const RandomModel& random, const TokenBatch& texts) {
  std::vector<int32_t> token_types;
  const int num_types = std::max(1, static_cast<int>(random.shape.num_token_types));
  if (random_int(0, 1)) return token_types;
  for (int64_t i = 0; i < std::ssize(texts.ids); i++) token_types.push_back(random_int(0, num_types - 1));
  return token_types;
}

void check_encoder_rejections(const regard_model* model, const RandomModel& random, const TokenBatch& texts) {
  const int32_t no_pooling[] = {7};
  const int32_t no_type[] = {static_cast<int32_t>(random.shape.num_token_types)};
  const int32_t ids[] = {0, 1};
  const int32_t offsets[] = {0, 1};
  float out[1024];
  expect(!regard_encode(model, texts.ids.data(), nullptr, texts.offsets.data(), texts.num_texts(), no_pooling, 1, 1,
                        nullptr, out, message, sizeof message),
         "an unknown pooling is rejected");
  if (random.shape.num_token_types)
    expect(!regard_encode(model, ids, no_type, offsets, 1, nullptr, 0, 1, nullptr, out, message, sizeof message),
           "an unknown token type is rejected");
  expect(!regard_start(model, ids, offsets, 1, nullptr, message, sizeof message), "an encoder does not generate");
}

// Encoders: the same bits with any number of threads, alone and among others, and in int8 on every instruction set.
void check_encoder(int32_t precision, const std::vector<std::string>& sets) {
  const RandomModel random(precision, true, false);
  const int64_t hidden_size = random.hidden_size();
  const TokenBatch texts = random_texts(random.shape.source_vocab_size, 9, random_int(0, 1) ? 20 : 290);
  const std::vector<int32_t> token_types = random_token_types(random, texts);
  std::vector<float> first_hidden;
  for (const std::string& set : sets) {
    regard_model* model = create_model(random, set);
    const std::vector<float> hidden = encode(model, texts, token_types, hidden_size, NO_POOLING, 1);
    const std::vector<float> pooled = encode(model, texts, token_types, hidden_size, ALL_POOLINGS, 1);
    std::vector<float> first_tokens;
    for (int64_t text = 0; text < texts.num_texts(); text++) {
      const auto begin = hidden.begin() + texts.offsets[text] * hidden_size;
      first_tokens.insert(first_tokens.end(), begin, begin + hidden_size);
    }
    for (int threads : {1, 2, 3, 9, more_than_cores()}) {
      expect(encode(model, texts, token_types, hidden_size, NO_POOLING, threads) == hidden,
             "threads do not change hidden states");
      expect(encode(model, texts, token_types, hidden_size, ALL_POOLINGS, threads) == pooled,
             "threads do not change embeddings");
      expect(encode(model, texts, token_types, hidden_size, CLS_POOLING, threads) == first_tokens,
             "first tokens alone have the same bits");
    }
    if (first_hidden.empty()) first_hidden = hidden;
    if (precision == REGARD_PRECISION_INT8)
      expect(hidden == first_hidden, "int8 has the same bits on every instruction set");
    check_attention(model, random,
                    {
                        .ids = texts.ids.data(),
                        .token_types = token_types.empty() ? nullptr : token_types.data(),
                        .offsets = texts.offsets.data(),
                        .num_texts = texts.num_texts(),
                    },
                    hidden);
    check_encoder_rejections(model, random, texts);
    regard_model_free(model);
  }
}

// A head: a linear layer alone.
void check_linear(const std::vector<std::string>& sets) {
  const int inputs = random_int(1, 40);
  const int outputs = random_int(1, 40);
  const int num_rows = random_int(1, 11);
  const std::vector<float> weights(inputs * outputs, 0.5f);
  const std::vector<float> bias(pad_to_block(outputs), 1.0f);
  const std::vector<float> rows(num_rows * inputs, 2.0f);
  std::vector<float> out(num_rows * outputs);
  std::vector<char> packed(regard_packed_bytes(outputs, inputs, REGARD_PRECISION_FLOAT32));
  expect(regard_pack_weights(weights.data(), outputs, inputs, REGARD_PRECISION_FLOAT32, packed.data(), nullptr,
                             nullptr),
         "the weights of a head are packed");
  for (const std::string& set : sets) {
    expect(regard_linear(set.c_str(), rows.data(), num_rows, inputs, packed.data(), std::ssize(packed),
                         bias.data(), std::ssize(bias), outputs, REGARD_ACT_RELU, out.data(), message, sizeof message),
           message);
    for (float value : out) expect(value == static_cast<float>(inputs + 1), "a head multiplies");
  }
}

// Feeds a causal language model token by token; returns the log-probabilities after `BOS_ID`.
std::vector<float> feed_tokens(const regard_model* model, const TokenBatch& texts, int64_t length, int64_t vocab_size) {
  const int64_t num_rows = texts.num_texts();
  TokenBatch empty;
  for (int64_t row = 0; row < num_rows; row++) empty.add({});
  regard_state* state = start(model, empty);
  expect(state != nullptr, message);
  std::vector<int32_t> tokens(num_rows);
  std::vector<float> logprobs;
  for (int64_t step = 0; step <= length; step++) {
    for (int64_t row = 0; row < num_rows; row++) tokens[row] = step < length ? texts.ids[row * length + step] : BOS_ID;
    logprobs = step_all(state, tokens, vocab_size);
  }
  regard_state_free(state);
  return logprobs;
}

// Causal language models: a prefilled prompt is as if fed token by token, alone and among others.
void check_causal(int32_t precision, const std::vector<std::string>& sets) {
  const RandomModel random(precision, false, true);
  const int64_t vocab_size = random.shape.target_vocab_size;
  const int length = random_int(1, 30);
  const int num_rows = random_int(1, 9);
  TokenBatch texts;
  for (int row = 0; row < num_rows; row++) texts.add(random_text(vocab_size, length));
  std::vector<std::vector<float>> first_logprobs;
  for (const std::string& set : sets) {
    regard_model* model = create_model(random, set);
    const auto logprobs = generate(model, texts, vocab_size);
    TokenBatch alone;
    alone.add(texts.last_text());
    expect(generate(model, alone, vocab_size)[0] == logprobs.back(), "a text alone is continued as among others");
    if (first_logprobs.empty()) first_logprobs = logprobs;
    if (precision == REGARD_PRECISION_INT8)
      expect(logprobs == first_logprobs, "int8 has the same bits on every instruction set");
    const std::vector<float> fed = feed_tokens(model, texts, length, vocab_size);
    for (int row = 0; row < num_rows; row++)
      expect(std::equal(logprobs[row].begin(), logprobs[row].begin() + vocab_size, fed.begin() + row * vocab_size),
             "a prefilled prompt is as if fed token by token");
    texts.add({5});  // of another length
    expect(length == 1 || !start(model, texts), "texts of different lengths are rejected");
    texts.remove_last();
    const int32_t outside[] = {static_cast<int32_t>(vocab_size)};
    const int32_t offsets[] = {0, 1};
    float out[1024];
    expect(!regard_start(model, outside, offsets, 1, nullptr, message, sizeof message),
           "a token beyond the vocabulary is rejected");
    expect(!regard_encode(model, offsets, nullptr, offsets, 1, nullptr, 0, 1, nullptr, out, message, sizeof message),
           "a causal language model does not encode");
    regard_model_free(model);
  }
}

// Encoder–decoders: the same bits alone and among others, and in int8 on every instruction set.
void check_translator(int32_t precision, const std::vector<std::string>& sets) {
  const RandomModel random(precision, true, true);
  const int64_t vocab_size = random.shape.target_vocab_size;
  const TokenBatch texts = random_texts(random.shape.source_vocab_size, 9, 20);
  std::vector<std::vector<float>> first_logprobs;
  for (const std::string& set : sets) {
    regard_model* model = create_model(random, set);
    const auto logprobs = generate(model, texts, vocab_size);
    TokenBatch alone;
    alone.add(texts.last_text());
    expect(generate(model, alone, vocab_size)[0] == logprobs.back(), "a row alone is as among others");
    if (first_logprobs.empty()) first_logprobs = logprobs;
    if (precision == REGARD_PRECISION_INT8)
      expect(logprobs == first_logprobs, "int8 has the same bits on every instruction set");
    encode(model, texts, {}, random.hidden_size(), NO_POOLING, 2);
    check_search(model, random, texts);
    check_rejections(model, random);
    check_rejected_calls(model, random);
    check_rejected_searches(model, random);
    check_rejected_arrays(random);
    check_rejected_shapes(random);
    regard_model_free(model);
  }
}

std::vector<std::string> list_sets() {
  std::vector<std::string> sets;
  std::istringstream names(regard_instruction_sets());
  for (std::string name; std::getline(names, name, ',');) sets.push_back(name);
  return sets;
}

void check_sets(const std::vector<std::string>& sets) {
  const auto has = [&](const char* name) { return std::find(sets.begin(), sets.end(), name) != sets.end(); };
  expect(has("amx_emulated"), "emulated AMX proves itself");
  expect(has("avx_vnni_emulated") == has("avx2"), "emulated AVX-VNNI proves itself");
  for (const std::string& set : sets)
    expect(set.find("faulty") == std::string::npos, "a set that multiplies wrongly is rejected");
}

}  // namespace

int main(int argc, char** argv) {
  const int models_per_kind = argc > 1 ? std::atoi(argv[1]) : 24;
  expect(models_per_kind >= 3, "the count of random models covers the three precisions");
  expect(regard_abi_version() == REGARD_ABI_VERSION, "the library is that of the header");
  const std::vector<std::string> sets = list_sets();
  check_sets(sets);
  check_parallel();
  check_matmul(sets, models_per_kind);
  for (int i = 0; i < models_per_kind; i++) check_encoder(i % 3, sets);
  for (int i = 0; i < models_per_kind; i++) check_linear(sets);
  for (int i = 0; i < models_per_kind; i++) check_causal(i % 3, sets);
  for (int i = 0; i < models_per_kind; i++) check_translator(i % 3, sets);
  for (int i = 0; i < models_per_kind; i++) check_extreme_shapes(RandomModel(i % 3, i % 2 == 0, i % 4 != 2));
  wait_for_helpers();  // one that has not started yet would look like a leak
  std::printf("passed on %s\n", regard_instruction_sets());
  return 0;
}
