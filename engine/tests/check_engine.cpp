// The engine's own test program, for sanitizers: random small models through every function, on every instruction set.
// `check_engine [COUNT]`: COUNT random models of each kind (encoder, decoder, translator; default 24).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "../include/regard_engine.h"
#include "check_parallel.h"
#include "check_products.h"
#include "expect.h"

namespace {

// A model with random weights, in memory exactly as large as it must be: reading beyond it is noticed.
struct Made {
  regard_shape shape;
  std::vector<std::vector<char>> memory;
  std::vector<regard_array> arrays;

  void put(size_t bytes) {
    memory.emplace_back(bytes);
    arrays.push_back({memory.back().data(), static_cast<int64_t>(bytes)});
  }
  void floats(size_t count, float center, float spread) {
    put(count * sizeof(float));
    std::normal_distribution<float> normal(center, spread);
    std::vector<float> values(count);
    for (float& value : values) value = normal(chance);
    std::memcpy(memory.back().data(), values.data(), count * sizeof(float));
  }
  static size_t whole(int size) { return static_cast<size_t>((size + 15) / 16 * 16); }
  void words(int count) {
    const size_t size = static_cast<size_t>(count) * static_cast<size_t>(shape.width);
    if (shape.precision == REGARD_FLOAT32) return floats(size, 0, 0.3f);
    put(size * 2);
    for (size_t i = 0; i < size; i++) {
      const float value = std::normal_distribution<float>(0, 0.3f)(chance);
      std::memcpy(memory.back().data() + 2 * i, reinterpret_cast<const char*>(&value) + 2, 2);
    }
  }
  void norm() {
    floats(whole(shape.width), 1, 0.1f);
    floats(whole(shape.width), 0, 0.1f);
  }
  void linear(int outputs, int inputs) {
    std::vector<float> weights(static_cast<size_t>(outputs) * static_cast<size_t>(inputs));
    std::normal_distribution<float> normal(0, 0.3f);
    for (float& value : weights) value = normal(chance);
    std::vector<float> scales(whole(outputs));
    std::vector<int32_t> corrections(whole(outputs));
    put(static_cast<size_t>(regard_packed_bytes(outputs, inputs, shape.precision)));
    expect(regard_pack(weights.data(), outputs, inputs, shape.precision, memory.back().data(), scales.data(),
                       corrections.data()),
           "packing");
    if (shape.precision == REGARD_INT8) {
      put(scales.size() * sizeof(float));
      std::memcpy(memory.back().data(), scales.data(), memory.back().size());
      put(corrections.size() * sizeof(int32_t));
      std::memcpy(memory.back().data(), corrections.data(), memory.back().size());
    }
    floats(whole(outputs), 0, 0.1f);
  }
  void block(int feedforward, bool cross) {
    const int width = shape.width;
    norm(), linear(3 * width, width), linear(width, width);
    if (cross) norm(), linear(width, width), linear(2 * width, width), linear(width, width);
    norm(), linear(feedforward, width), linear(width, feedforward);
  }
  // A translator, an encoder alone, or a decoder alone.
  Made(int precision, bool reads, bool writes) : shape() {
    const int heads = drawn(1, 3), part = 2 * drawn(1, drawn(0, 3) ? 12 : 30);
    shape.precision = precision;
    shape.width = heads * part;
    shape.encoder_layers = reads ? drawn(1, 2) : 0, shape.decoder_layers = writes ? drawn(1, 2) : 0;
    shape.encoder_heads = shape.decoder_heads = heads;
    shape.encoder_feedforward = drawn(1, 70), shape.decoder_feedforward = drawn(1, 70);
    shape.source_vocabulary = shape.target_vocabulary = drawn(12, 300);
    shape.shared = drawn(0, 1);
    shape.norm_before = drawn(0, 1);
    shape.activation = drawn(REGARD_RELU, REGARD_QUICK_GELU);
    shape.positions = drawn(REGARD_SINUSOIDAL, REGARD_NONE);
    shape.places = writes ? 40 : 300;
    shape.first_place = writes ? 0 : drawn(0, 3);
    shape.types = writes ? 0 : drawn(0, 3);
    shape.embedding_norm = writes ? 0 : drawn(0, 1);
    shape.end = 1;
    shape.epsilon = 1e-5f;
    shape.scale = 1.5f;
    if (reads) words(shape.source_vocabulary);
    if (writes && !(reads && shape.shared)) words(shape.target_vocabulary);
    for (int side = 0; side < reads + writes && shape.positions == REGARD_LEARNED; side++)
      floats(static_cast<size_t>(shape.places) * static_cast<size_t>(shape.width), 0, 0.3f);
    if (shape.types) floats(static_cast<size_t>(shape.types) * static_cast<size_t>(shape.width), 0, 0.3f);
    if (shape.embedding_norm) norm();
    for (int layer = 0; layer < shape.encoder_layers; layer++) block(shape.encoder_feedforward, false);
    if (reads && shape.norm_before) norm();
    if (!writes) return;
    for (int layer = 0; layer < shape.decoder_layers; layer++) block(shape.decoder_feedforward, reads);
    if (shape.norm_before) norm();
    linear(shape.target_vocabulary, shape.width);
  }
};

char message[256];

struct Texts {
  std::vector<int32_t> ids, offsets{0};
  void add(const std::vector<int32_t>& row) {
    ids.insert(ids.end(), row.begin(), row.end());
    offsets.push_back(static_cast<int32_t>(ids.size()));
  }
  int32_t count() const { return static_cast<int32_t>(offsets.size()) - 1; }
};

// All log-probabilities of a few steps, row by row.
std::vector<std::vector<float>> written(const regard_model* model, const Texts& texts, int vocabulary) {
  regard_state* state = regard_start(model, texts.ids.data(), texts.offsets.data(), texts.count(), message, sizeof message);
  expect(state != nullptr, message);
  std::vector<std::vector<float>> made(static_cast<size_t>(texts.count()));
  std::vector<int32_t> tokens(static_cast<size_t>(texts.count()), 3);
  for (int step = 0; step < 3; step++) {
    std::vector<float> logp(tokens.size() * static_cast<size_t>(vocabulary)), end(tokens.size());
    expect(regard_step(state, tokens.data(), texts.count(), 0, nullptr, logp.data(), nullptr, end.data(), message,
                       sizeof message),
           message);
    for (size_t row = 0; row < tokens.size(); row++) {
      const float* from = logp.data() + row * static_cast<size_t>(vocabulary);
      made[row].insert(made[row].end(), from, from + vocabulary);
      tokens[row] = 4 + step;
    }
  }
  regard_state_free(state);
  return made;
}

void search(const regard_model* model, const Made& made, const Texts& texts) {
  const int32_t beam = drawn(1, 4), longest = 9, never[] = {0, 3};
  const size_t places = static_cast<size_t>(texts.count()) * static_cast<size_t>(beam);
  std::vector<int32_t> limits(static_cast<size_t>(texts.count()), longest), ids(places * longest), lengths(places), finished(places);
  std::vector<double> powers, scores(places), totals(places);
  for (int length = 0; length < longest + 3; length++) powers.push_back(length);
  const regard_plan plan{beam, beam, 3, limits.data(), powers.data(), never, 2, nullptr, 0, nullptr, nullptr};
  const regard_found found{ids.data(), lengths.data(), scores.data(), totals.data(), finished.data()};
  expect(regard_search(model, texts.ids.data(), texts.offsets.data(), texts.count(), &plan, &found, message, sizeof message),
         message);
  expect(lengths[0] >= 0 && lengths[0] <= longest, "a text within its limit");
  // a lexicon in which each source word has all words
  const std::vector<int32_t> common{0, 1, 3};
  std::vector<int32_t> starts{0}, words;
  for (int32_t word = 0; word < made.shape.source_vocabulary; word++) {
    for (int32_t id = 0; id < made.shape.target_vocabulary; id++) words.push_back(id);
    starts.push_back(static_cast<int32_t>(words.size()));
  }
  std::vector<int32_t> again(ids.size()), counted(places);
  std::vector<double> also(places);
  const regard_plan limited{beam, beam, 3, limits.data(), powers.data(), never, 2, common.data(), 3, starts.data(), words.data()};
  const regard_found repeated{again.data(), counted.data(), also.data(), totals.data(), finished.data()};
  expect(regard_search(model, texts.ids.data(), texts.offsets.data(), texts.count(), &limited, &repeated, message, sizeof message),
         message);
  for (size_t i = 0; i < places; i++) {
    const size_t from = i * static_cast<size_t>(longest), count = static_cast<size_t>(std::max(lengths[i], 0));
    expect(counted[i] == lengths[i] && (lengths[i] < 0 || also[i] == scores[i]) &&
               std::equal(ids.data() + from, ids.data() + from + count, again.data() + from),
           "a shortlist of all words changes nothing");
  }
  const int32_t few[] = {0, 3};
  const std::vector<int32_t> none(starts.size(), 0);
  const regard_plan wrong{beam, beam, 3, limits.data(), powers.data(), never, 2, few, 2, none.data(), words.data()};
  expect(!regard_search(model, texts.ids.data(), texts.offsets.data(), texts.count(), &wrong, &repeated, message, sizeof message),
         "a shortlist that lacks the end, or has too few words, is refused");
}

void refusals(const regard_model* model, const Made& made) {
  const int32_t beyond[] = {made.shape.source_vocabulary}, fine[] = {5}, offsets[] = {0, 1}, empty[] = {0, 0};
  expect(!regard_start(model, beyond, offsets, 1, message, sizeof message), "a token beyond the vocabulary is refused");
  expect(!regard_start(model, fine, empty, 1, message, sizeof message), "an empty text is refused");
  regard_state* state = regard_start(model, fine, offsets, 1, message, sizeof message);
  const int64_t no_row[] = {1};
  int32_t id;
  float logp, end;
  expect(!regard_select(state, no_row, 1, message, sizeof message), "a row that is not there is refused");
  expect(!regard_step(state, fine, 2, 1, &id, &logp, nullptr, &end, message, sizeof message), "too many tokens are refused");
  regard_state_free(state);
  for (size_t i = 0; i < made.arrays.size(); i++) {
    auto arrays = made.arrays;
    arrays[i].bytes--;
    expect(!regard_model_new(&made.shape, arrays.data(), static_cast<int32_t>(arrays.size()), "", message, sizeof message),
           "an array of the wrong size is refused");
  }
  expect(!regard_model_new(&made.shape, made.arrays.data(), static_cast<int32_t>(made.arrays.size()) - 1, "", message, 8),
         "a missing array is refused, in a short message");
}

using Poolings = std::vector<int32_t>;
const Poolings NONE, EVERY{REGARD_MEAN, REGARD_FIRST, REGARD_MAXIMUM}, FIRSTS{REGARD_FIRST};

// What is made of texts: states, or some poolings.
std::vector<float> read(const regard_model* model, const Texts& texts, const std::vector<int32_t>& types, int width,
                        const Poolings& poolings, int threads) {
  const size_t rows = poolings.empty() ? texts.ids.size() : poolings.size() * static_cast<size_t>(texts.count());
  std::vector<float> made(rows * static_cast<size_t>(width));
  expect(regard_read(model, texts.ids.data(), types.empty() ? nullptr : types.data(), texts.offsets.data(), texts.count(),
                     poolings.data(), static_cast<int32_t>(poolings.size()), threads, made.data(), message, sizeof message),
         message);
  return made;
}

Texts some_texts(int vocabulary, int most, int longest) {
  Texts texts;
  for (int row = 0, rows = drawn(1, most); row < rows; row++) {
    std::vector<int32_t> ids(static_cast<size_t>(drawn(1, longest)));
    for (int32_t& id : ids) id = drawn(0, vocabulary - 1);
    texts.add(ids);
  }
  return texts;
}

regard_model* model_of(const Made& made, const std::string& set) {
  regard_model* model = regard_model_new(&made.shape, made.arrays.data(), static_cast<int32_t>(made.arrays.size()),
                                         set.c_str(), message, sizeof message);
  expect(model != nullptr, message);
  return model;
}

// Encoders: the same bits by any number of threads, alone and among others, and in int8 on every instruction set.
void check_reading(int precision, const std::vector<std::string>& sets) {
  const Made made(precision, true, false);
  const Texts texts = some_texts(made.shape.source_vocabulary, 9, drawn(0, 1) ? 20 : 290);
  std::vector<int32_t> types;
  for (size_t i = 0; i < texts.ids.size() && drawn(0, 3); i++) types.push_back(drawn(0, std::max(1, made.shape.types) - 1));
  if (types.size() < texts.ids.size()) types.clear();
  std::vector<float> first;
  for (const std::string& set : sets) {
    regard_model* model = model_of(made, set);
    const auto states = read(model, texts, types, made.shape.width, NONE, 1);
    const auto pooled = read(model, texts, types, made.shape.width, EVERY, 1);
    std::vector<float> firsts;
    for (int text = 0; text < texts.count(); text++) {
      const auto begin = states.begin() + static_cast<std::ptrdiff_t>(texts.offsets[static_cast<size_t>(text)]) * made.shape.width;
      firsts.insert(firsts.end(), begin, begin + made.shape.width);
    }
    for (int threads : {1, 2, 3, 9, more_than_cores()}) {
      expect(read(model, texts, types, made.shape.width, NONE, threads) == states, "threads change nothing");
      expect(read(model, texts, types, made.shape.width, EVERY, threads) == pooled, "threads change no vector");
      expect(read(model, texts, types, made.shape.width, FIRSTS, threads) == firsts, "first tokens alone are the same");
    }
    if (first.empty()) first = states;
    if (precision == REGARD_INT8) expect(states == first, "int8 has the same bits on every instruction set");
    const int32_t no_pooling[] = {7}, bad[] = {made.shape.types};
    float room[1024];
    expect(!regard_read(model, texts.ids.data(), nullptr, texts.offsets.data(), texts.count(), no_pooling, 1, 1, room, message,
                        sizeof message),
           "an unknown pooling is refused");
    const int32_t one[] = {0, 1};
    expect(!made.shape.types || !regard_read(model, one, bad, one, 1, nullptr, 0, 1, room, message, sizeof message),
           "an unknown type is refused");
    expect(!regard_start(model, one, one, 1, message, sizeof message), "an encoder does not write");
    regard_model_free(model);
  }
  // a head
  const int inputs = drawn(1, 40), outputs = drawn(1, 40), rows = drawn(1, 11);
  std::vector<float> weights(static_cast<size_t>(inputs * outputs), 0.5f), bias(Made::whole(outputs), 1.0f);
  std::vector<float> given(static_cast<size_t>(rows * inputs), 2.0f), out(static_cast<size_t>(rows * outputs));
  std::vector<char> packed(static_cast<size_t>(regard_packed_bytes(outputs, inputs, REGARD_FLOAT32)));
  expect(regard_pack(weights.data(), outputs, inputs, REGARD_FLOAT32, packed.data(), nullptr, nullptr), "packing a head");
  for (const std::string& set : sets) {
    expect(regard_linear(set.c_str(), given.data(), rows, inputs, packed.data(), bias.data(), outputs, REGARD_RELU, out.data(),
                         message, sizeof message),
           message);
    for (float value : out) expect(value == static_cast<float>(inputs + 1), "a head's product");
  }
}

// Decoders alone: what was read at once is as if it had been written, alone and among others.
void check_continuing(int precision, const std::vector<std::string>& sets) {
  const Made made(precision, false, true);
  const int vocabulary = made.shape.target_vocabulary, length = drawn(1, 30), rows = drawn(1, 9);
  Texts texts, none;
  for (int row = 0; row < rows; row++) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = drawn(0, vocabulary - 1);
    texts.add(ids), none.add({});
  }
  std::vector<std::vector<float>> first;
  for (const std::string& set : sets) {
    regard_model* model = model_of(made, set);
    const auto together = written(model, texts, vocabulary);
    Texts alone;
    alone.add({texts.ids.end() - length, texts.ids.end()});
    expect(written(model, alone, vocabulary)[0] == together.back(), "a text alone is continued as among others");
    if (first.empty()) first = together;
    if (precision == REGARD_INT8) expect(together == first, "int8 has the same bits on every instruction set");
    regard_state* state = regard_start(model, nullptr, none.offsets.data(), rows, message, sizeof message);
    expect(state != nullptr, message);
    std::vector<int32_t> tokens(static_cast<size_t>(rows));
    std::vector<float> logp(tokens.size() * static_cast<size_t>(vocabulary)), end(tokens.size());
    for (int step = 0; step <= length; step++) {
      for (int row = 0; row < rows; row++)
        tokens[static_cast<size_t>(row)] = step < length ? texts.ids[static_cast<size_t>(row * length + step)] : 3;
      expect(regard_step(state, tokens.data(), rows, 0, nullptr, logp.data(), nullptr, end.data(), message, sizeof message), message);
    }
    for (size_t row = 0; row < tokens.size(); row++)
      expect(std::equal(together[row].begin(), together[row].begin() + vocabulary, logp.begin() + static_cast<int64_t>(row) * vocabulary),
             "what was read is as if it had been written");
    regard_state_free(state);
    texts.add({5});  // of another length
    expect(length == 1 || !regard_start(model, texts.ids.data(), texts.offsets.data(), rows + 1, message, sizeof message),
           "texts of different lengths are refused");
    texts.ids.pop_back(), texts.offsets.pop_back();
    const int32_t beyond[] = {vocabulary}, offsets[] = {0, 1};
    expect(!regard_start(model, beyond, offsets, 1, message, sizeof message), "a token beyond the vocabulary is refused");
    float room[1024];
    expect(!regard_read(model, offsets, nullptr, offsets, 1, nullptr, 0, 1, room, message, sizeof message), "a decoder does not read");
    regard_model_free(model);
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  const int models_per_kind = argument_count > 1 ? std::atoi(arguments[1]) : 24;
  expect(models_per_kind >= 3, "the count of random models covers the three precisions");
  std::vector<std::string> sets;
  std::istringstream names(regard_instructions());
  for (std::string name; std::getline(names, name, ',');) sets.push_back(name);
  const auto listed = [&](const char* name) { return std::find(sets.begin(), sets.end(), name) != sets.end(); };
  expect(listed("amx_emulated"), "emulated tiles prove themselves");
  expect(listed("avx_vnni_emulated") == listed("avx2"), "emulated dot products prove themselves");
  for (const std::string& set : sets)
    expect(set.find("spoiled") == std::string::npos, "a set that multiplies wrongly is left out");
  check_parallel();
  check_products(sets, models_per_kind);
  for (int turn = 0; turn < models_per_kind; turn++) check_reading(turn % 3, sets);
  for (int turn = 0; turn < models_per_kind; turn++) check_continuing(turn % 3, sets);
  for (int turn = 0; turn < models_per_kind; turn++) {
    const Made made(turn % 3, true, true);
    const Texts texts = some_texts(made.shape.source_vocabulary, 9, 20);
    std::vector<std::vector<float>> first;
    for (const std::string& set : sets) {
      regard_model* model = model_of(made, set);
      const auto together = written(model, texts, made.shape.target_vocabulary);
      Texts alone;
      alone.add({texts.ids.begin() + texts.offsets[texts.offsets.size() - 2], texts.ids.end()});
      expect(written(model, alone, made.shape.target_vocabulary)[0] == together.back(), "a row alone is as among others");
      if (first.empty()) first = together;
      if (made.shape.precision == REGARD_INT8) expect(together == first, "int8 has the same bits on every instruction set");
      read(model, texts, {}, made.shape.width, NONE, 2);
      search(model, made, texts);
      refusals(model, made);
      regard_model_free(model);
    }
  }
  wait_for_helpers();  // one that has not started yet would look like a leak
  std::printf("right on %s\n", regard_instructions());
  return 0;
}
