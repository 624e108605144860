#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "../include/regard_engine.h"
#include "decoder.h"
#include "instructions.h"
#include "packing.h"
#include "pooling.h"
#include "search.h"

// What the names of the interface stand for. A state keeps its model: they may be freed in any order.
struct regard_model {
  std::shared_ptr<const regard::Model> model;
};
struct regard_state {
  std::shared_ptr<const regard::Model> model;
  regard::State state;
};

namespace {

constexpr int32_t MOST_THREADS = 256;

void tell(char* error, int32_t room, const char* message) {
  if (!error || room < 1) return;
  const size_t size = std::min(std::strlen(message), static_cast<size_t>(room) - 1);
  std::memcpy(error, message, size);
  error[size] = 0;
}

// Runs what may throw; an exception becomes a message and a zero.
template <class Work>
auto guarded(char* error, int32_t room, Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    tell(error, room, "not enough memory");
  } catch (const std::exception& problem) {
    tell(error, room, problem.what());
  }
  return {};
}

bool is_layer(int64_t outputs, int64_t inputs, int32_t precision) {
  return outputs >= 1 && outputs <= (1 << 24) && inputs >= 1 && inputs <= regard::LONGEST_SUM &&
         precision >= regard::FLOAT32 && precision <= regard::INT8;
}

}  // namespace

int32_t regard_interface(void) { return REGARD_INTERFACE; }

const char* regard_instructions(void) { return regard::instruction_sets().c_str(); }

int64_t regard_packed_bytes(int64_t outputs, int64_t inputs, int32_t precision) {
  if (!is_layer(outputs, inputs, precision)) return 0;
  return static_cast<int64_t>(regard::packed_bytes(static_cast<size_t>(outputs), static_cast<size_t>(inputs), precision));
}

int32_t regard_pack(const float* weights, int64_t outputs, int64_t inputs, int32_t precision, void* packed,
                    float* scales, int32_t* corrections) {
  if (!is_layer(outputs, inputs, precision)) return 0;
  regard::pack(weights, static_cast<size_t>(outputs), static_cast<size_t>(inputs), precision, packed, scales, corrections);
  return 1;
}

regard_model* regard_model_new(const regard_shape* shape, const regard_array* arrays, int32_t count,
                               const char* instructions, char* error, int32_t room) {
  return guarded(error, room, [&] {
    return new regard_model{std::make_shared<regard::Model>(*shape, arrays, count, instructions ? instructions : "")};
  });
}

void regard_model_free(regard_model* model) { delete model; }

regard_state* regard_start(const regard_model* model, const int32_t* ids, const int32_t* offsets, int32_t sentences,
                           char* error, int32_t room) {
  return guarded(error, room, [&] { return new regard_state{model->model, {*model->model, {ids, offsets, sentences}}}; });
}

void regard_state_free(regard_state* state) { delete state; }

int32_t regard_step(regard_state* state, const int32_t* tokens, int32_t rows, int32_t k, int32_t* ids, float* logp,
                    const int32_t* wanted, float* wanted_logp, char* error, int32_t room) {
  return guarded(error, room, [&] {
    state->state.step(tokens, rows, {k, ids, logp, wanted, wanted_logp});
    return int32_t{1};
  });
}

int32_t regard_select(regard_state* state, const int64_t* rows, int32_t count, char* error, int32_t room) {
  return guarded(error, room, [&] {
    state->state.select(rows, count);
    return int32_t{1};
  });
}

int32_t regard_search(const regard_model* model, const int32_t* ids, const int32_t* offsets, int32_t sentences,
                      const regard_plan* plan, const regard_found* found, char* error, int32_t room) {
  return guarded(error, room, [&] {
    const regard::Texts source{ids, offsets, sentences};
    source.check(*model->model);
    int32_t longest = 1;
    for (int32_t i = 0; i < sentences; i++) longest = std::max(longest, plan->limits[i]);
    const regard::Plan wishes{plan->beam, plan->nbest, plan->limits, plan->powers, plan->forbidden, plan->forbidden_count,
                              {plan->common, plan->common_count, plan->lexicon_offsets, plan->lexicon}};
    const auto made = regard::search(*model->model, source, plan->start, wishes);
    for (size_t place = 0; place < made.size() * static_cast<size_t>(plan->nbest); place++) {
      const auto& some = made[place / static_cast<size_t>(plan->nbest)];
      const size_t number = place % static_cast<size_t>(plan->nbest);
      found->lengths[place] = -1;
      if (number >= some.size()) continue;
      const regard::Hypothesis& one = some[number];
      std::copy(one.ids.begin(), one.ids.end(), found->ids + place * static_cast<size_t>(longest));
      found->lengths[place] = static_cast<int32_t>(one.ids.size());
      found->scores[place] = one.score;
      found->totals[place] = one.total;
      found->finished[place] = one.finished;
    }
    return int32_t{1};
  });
}

int32_t regard_read(const regard_model* model, const int32_t* ids, const int32_t* types, const int32_t* offsets,
                    int32_t sentences, const int32_t* poolings, int32_t count, int32_t threads, float* out, char* error,
                    int32_t room) {
  return guarded(error, room, [&] {
    const regard::Texts texts{ids, offsets, sentences, types};
    regard::read(*model->model, texts, {poolings, count}, std::clamp(threads, 1, MOST_THREADS), out);
    return int32_t{1};
  });
}

int32_t regard_linear(const char* instructions, const float* rows, int32_t count, int32_t inputs, const void* packed,
                      const float* bias, int32_t outputs, int32_t activation, float* out, char* error, int32_t room) {
  return guarded(error, room, [&] {
    if (!is_layer(outputs, inputs, regard::FLOAT32) || activation < regard::IDENTITY || activation > regard::QUICK_GELU)
      throw std::invalid_argument("no such layer");
    const regard::Operators& operators = regard::operators_of(instructions);
    const regard::Matrix matrix{regard::FLOAT32, outputs, inputs, packed, nullptr, nullptr, bias};
    const size_t wide = regard::padded(static_cast<size_t>(outputs));
    std::vector<float> made(static_cast<size_t>(count) * wide);
    operators.product({rows, static_cast<size_t>(inputs), nullptr, nullptr}, count, matrix, 0, static_cast<int>(wide) / regard::LANES,
                      made.data(), wide, false);
    operators.activate(made.data(), static_cast<int>(made.size()), activation, made.data());
    for (int32_t row = 0; row < count; row++)
      std::copy_n(made.data() + static_cast<size_t>(row) * wide, outputs, out + static_cast<size_t>(row) * static_cast<size_t>(outputs));
    return int32_t{1};
  });
}

int32_t regard_integer_sums(const char* instructions, const uint8_t* bytes, int32_t rows, int32_t inputs,
                            const void* packed, const int32_t* corrections, int32_t outputs, int32_t* sums) {
  return guarded(nullptr, 0, [&] {
    const regard::Matrix matrix{regard::INT8, outputs, inputs, packed, nullptr, corrections, nullptr};
    const size_t wide = regard::padded(static_cast<size_t>(inputs)), out = regard::padded(static_cast<size_t>(outputs));
    regard::operators_of(instructions).integer_sums({bytes, wide, nullptr, nullptr}, rows, matrix, sums, out);
    return int32_t{1};
  });
}
