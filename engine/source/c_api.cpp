#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "../include/regard_engine.h"
#include "attention_options.h"
#include "checks.h"
#include "decoder.h"
#include "instruction_sets.h"
#include "packing.h"
#include "pooling.h"
#include "search.h"

// Opaque types of the interface. A state shares its model: they may be freed in any order.
struct regard_model {
  std::shared_ptr<const regard::Model> model;
};
struct regard_state {
  std::shared_ptr<const regard::Model> model;
  regard::DecoderState state;
};

namespace {

using regard::check_array;
using regard::check_range;
using regard::require;

constexpr int64_t MAX_THREADS = 256;
constexpr int64_t MAX_ARRAYS = 1 << 20;
constexpr int64_t MAX_POOLINGS = 16;

void copy_error(char* error, int64_t error_size, const char* message) {
  if (!error || error_size < 1) return;
  const int64_t length = std::min(static_cast<int64_t>(std::strlen(message)), error_size - 1);
  std::memcpy(error, message, length);
  error[length] = 0;
}

// Returns what `function` returns, or zero and a message if it throws.
template <class Function>
auto catch_errors(char* error, int64_t error_size, Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    copy_error(error, error_size, "not enough memory");
  } catch (const std::exception& exception) {
    copy_error(error, error_size, exception.what());
  }
  return {};
}

bool is_valid_linear(int64_t outputs, int64_t inputs, int32_t precision) {
  const bool has_valid_outputs = outputs >= 1 && outputs <= (1 << 24);
  const bool has_valid_inputs = inputs >= 1 && inputs <= regard::MAX_INT8_INPUTS;
  return has_valid_outputs && has_valid_inputs && precision >= regard::FLOAT32 && precision <= regard::INT8;
}

// Copies hypotheses to arrays [texts, nbest]; ids have `max_length` columns.
void copy_hypotheses(const std::vector<std::vector<regard::Hypothesis>>& texts, int64_t nbest, int64_t max_length,
                     const regard_search_result& result) {
  for (int64_t text = 0; text < std::ssize(texts); text++)
    for (int64_t rank = 0; rank < nbest; rank++) {
      const int64_t index = text * nbest + rank;
      result.lengths[index] = -1;
      if (rank >= std::ssize(texts[text])) continue;
      const regard::Hypothesis& hypothesis = texts[text][rank];
      std::copy(hypothesis.ids.begin(), hypothesis.ids.end(), result.ids + index * max_length);
      result.lengths[index] = static_cast<int32_t>(hypothesis.ids.size());
      result.scores[index] = hypothesis.score;
      result.logprobs[index] = hypothesis.logprob;
      result.finished[index] = hypothesis.is_finished;
    }
}

}  // namespace

int32_t regard_abi_version(void) { return REGARD_ABI_VERSION; }

const char* regard_instruction_sets(void) { return regard::instruction_sets().c_str(); }

int64_t regard_packed_bytes(int64_t outputs, int64_t inputs, int32_t precision) {
  return is_valid_linear(outputs, inputs, precision) ? regard::packed_bytes(outputs, inputs, precision) : 0;
}

int32_t regard_pack_weights(const float* weights, int64_t outputs, int64_t inputs, int32_t precision, void* packed,
                            float* scales, int32_t* corrections) {
  const bool has_scales = precision != regard::INT8 || (scales && corrections);
  if (!is_valid_linear(outputs, inputs, precision) || !weights || !packed || !has_scales) return 0;
  return regard::pack_weights(weights, outputs, inputs, precision, packed, scales, corrections);
}

regard_model* regard_model_new(const regard_shape* shape, const regard_array* arrays, int64_t num_arrays,
                               const char* instruction_set, char* error, int64_t error_size) {
  return catch_errors(error, error_size, [&] {
    require("shape", shape);
    check_range("num_arrays", num_arrays, 1, MAX_ARRAYS);
    check_array("arrays", arrays, num_arrays, num_arrays);
    const std::string name = instruction_set ? instruction_set : "";
    return new regard_model{std::make_shared<regard::Model>(*shape, arrays, num_arrays, name)};
  });
}

void regard_model_free(regard_model* model) { delete model; }

regard_state* regard_start(const regard_model* model, const int32_t* ids, const int32_t* offsets, int64_t num_texts,
                           const regard_attention_options* attention, char* error, int64_t error_size) {
  return catch_errors(error, error_size, [&] {
    require("model", model);
    const regard::TokenBatch source{.ids = ids, .offsets = offsets, .num_texts = num_texts};
    const regard::AttentionOptions options(*model->model, attention);
    return new regard_state{model->model, regard::DecoderState(*model->model, source, options)};
  });
}

void regard_state_free(regard_state* state) { delete state; }

int32_t regard_step(regard_state* state, const int32_t* tokens, int64_t num_rows, int64_t num_tokens, int64_t k,
                    int32_t* ids, float* logprobs, const int32_t* targets, float* target_logprobs,
                    const regard_attention_options* attention, char* error, int64_t error_size) {
  return catch_errors(error, error_size, [&] {
    require("state", state);
    require("tokens", tokens);
    if (k) require("ids", ids);
    require("logprobs", logprobs);
    require("target_logprobs", target_logprobs);
    const regard::AttentionOptions options(*state->model, attention);
    state->state.step(tokens, num_rows, num_tokens,
                      {
                          .k = k,
                          .ids = ids,
                          .logprobs = logprobs,
                          .targets = targets,
                          .target_logprobs = target_logprobs,
                      },
                      options);
    return int32_t{1};
  });
}

int32_t regard_select_rows(regard_state* state, const int64_t* rows, int64_t num_rows, char* error,
                           int64_t error_size) {
  return catch_errors(error, error_size, [&] {
    require("state", state);
    if (num_rows) require("rows", rows);
    state->state.select_rows(rows, num_rows);
    return int32_t{1};
  });
}

int32_t regard_search(const regard_model* model, const int32_t* ids, const int32_t* offsets, int64_t num_texts,
                      const regard_search_request* request, const regard_search_result* result,
                      const regard_attention_options* attention, char* error, int64_t error_size) {
  return catch_errors(error, error_size, [&] {
    require("model", model);
    require("request", request);
    require("result", result);
    for (const void* array : std::initializer_list<const void*>{result->ids, result->lengths, result->scores,
                                                                result->logprobs, result->finished})
      require("an array of the result", array);
    if (attention) check_range("num_captures of a search", attention->num_captures, 0, 0);
    const regard::AttentionOptions options(*model->model, attention);
    const regard::TokenBatch source{.ids = ids, .offsets = offsets, .num_texts = num_texts};
    const regard::Lexicon lexicon{
        .always_allowed = request->always_allowed,
        .num_always_allowed = request->num_always_allowed,
        .offsets = request->lexicon_offsets,
        .num_offsets = request->num_lexicon_offsets,
        .token_ids = request->lexicon,
        .size = request->lexicon_size,
    };
    const regard::SearchRequest search_request{
        .beam = request->beam,
        .nbest = request->nbest,
        .bos_id = request->bos_id,
        .max_lengths = request->max_lengths,
        .num_max_lengths = request->num_max_lengths,
        .length_norms = request->length_norms,
        .num_length_norms = request->num_length_norms,
        .forbidden = request->forbidden,
        .num_forbidden = request->num_forbidden,
        .lexicon = lexicon,
        .cancelled = request->cancelled,
    };
    const auto texts = regard::search(*model->model, source, search_request, options);
    const int32_t max_length = *std::max_element(request->max_lengths, request->max_lengths + num_texts);
    copy_hypotheses(texts, request->nbest, max_length, *result);
    return int32_t{1};
  });
}

int32_t regard_encode(const regard_model* model, const int32_t* ids, const int32_t* token_types, const int32_t* offsets,
                      int64_t num_texts, const int32_t* poolings, int64_t num_poolings, int64_t threads,
                      const regard_attention_options* attention, float* out, char* error, int64_t error_size) {
  return catch_errors(error, error_size, [&] {
    require("model", model);
    require("out", out);
    check_range("num_poolings", num_poolings, 0, MAX_POOLINGS);
    if (num_poolings) require("poolings", poolings);
    const regard::AttentionOptions options(*model->model, attention);
    const regard::TokenBatch texts{.ids = ids, .offsets = offsets, .num_texts = num_texts, .token_types = token_types};
    const regard::PoolingKinds kinds{.kinds = poolings, .count = num_poolings};
    regard::pool_texts(*model->model, texts, kinds, std::clamp(threads, int64_t{1}, MAX_THREADS), options, out);
    return int32_t{1};
  });
}

int32_t regard_linear(const char* instruction_set, const float* rows, int64_t num_rows, int64_t inputs,
                      const void* packed, int64_t num_packed_bytes, const float* bias, int64_t num_biases,
                      int64_t outputs, int32_t activation, float* out, char* error, int64_t error_size) {
  return catch_errors(error, error_size, [&] {
    const bool is_valid_activation = activation >= regard::IDENTITY && activation <= regard::QUICK_GELU;
    if (!is_valid_linear(outputs, inputs, regard::FLOAT32) || !is_valid_activation)
      throw std::invalid_argument("no such layer");
    const int64_t required_bytes = regard::packed_bytes(outputs, inputs, regard::FLOAT32);
    if (!packed || num_packed_bytes != required_bytes)
      throw std::invalid_argument("the layer has " + std::to_string(num_packed_bytes) + " bytes of weights, not " +
                                  std::to_string(required_bytes));
    if (!bias || num_biases != regard::pad(outputs))
      throw std::invalid_argument("the layer has " + std::to_string(num_biases) + " biases, not " +
                                  std::to_string(regard::pad(outputs)));
    check_range("num_rows", num_rows, 0, INT32_MAX);
    if (num_rows) require("rows", rows);
    if (num_rows) require("out", out);
    const regard::Kernels& kernels = regard::find_kernels(instruction_set ? instruction_set : "");
    const regard::PackedLinear linear{.outputs = outputs, .inputs = inputs, .packed = packed, .bias = bias};
    const int64_t stride = regard::pad(outputs);
    std::vector<float> padded(num_rows * stride);
    kernels.matmul({.values = rows, .stride = inputs}, num_rows, linear, 0, regard::num_blocks(linear), padded.data(),
                   stride, false);
    kernels.activate(padded.data(), std::ssize(padded), activation, padded.data());
    for (int64_t row = 0; row < num_rows; row++)
      std::copy_n(padded.data() + row * stride, outputs, out + row * outputs);
    return int32_t{1};
  });
}

int32_t regard_integer_sums(const char* instruction_set, const uint8_t* bytes, int64_t num_rows, int64_t inputs,
                            const void* packed, const int32_t* corrections, int64_t outputs, int32_t* sums) {
  return catch_errors(nullptr, 0, [&] {
    if (!is_valid_linear(outputs, inputs, regard::INT8) || num_rows < 0) throw std::invalid_argument("no such layer");
    require("bytes", bytes);
    require("packed", packed);
    require("corrections", corrections);
    require("sums", sums);
    const regard::PackedLinear linear{
        .precision = regard::INT8,
        .outputs = outputs,
        .inputs = inputs,
        .packed = packed,
        .corrections = corrections,
    };
    const regard::MatmulInput rows{.values = bytes, .stride = regard::pad(inputs)};
    const regard::Kernels& kernels = regard::find_kernels(instruction_set ? instruction_set : "");
    kernels.integer_sums(rows, num_rows, linear, sums, regard::pad(outputs));
    return int32_t{1};
  });
}
