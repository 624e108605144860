/* The engine's C interface: a model made of packed arrays, states that write texts with it, and readers of texts.
 *
 * Functions that can fail return 0 (or a null pointer) for failure and leave one line in `error`. A model is never
 * changed once made: any number of threads may use it, each with states of its own. */
#ifndef REGARD_ENGINE_H
#define REGARD_ENGINE_H

#include <stdint.h>

#if defined(_WIN32)
#define REGARD_API __declspec(dllexport)
#else
#define REGARD_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define REGARD_INTERFACE 4 /* changes whenever a caller must change */

enum regard_precision { REGARD_FLOAT32 = 0, REGARD_BF16 = 1, REGARD_INT8 = 2 };
enum regard_positions { REGARD_SINUSOIDAL = 0, REGARD_LEARNED = 1, REGARD_ROTARY = 2, REGARD_NONE = 3 };
enum regard_activation {
  REGARD_IDENTITY = 0,
  REGARD_RELU = 1,
  REGARD_GELU = 2,
  REGARD_GELU_TANH = 3,
  REGARD_SILU = 4,
  REGARD_TANH = 5,
  REGARD_QUICK_GELU = 6
};

typedef struct {
  int32_t precision;
  int32_t width;
  int32_t encoder_layers, encoder_heads, encoder_feedforward; /* no layers: it continues texts, and reads no others */
  int32_t decoder_layers, decoder_heads, decoder_feedforward; /* no layers: it reads and does not write */
  int32_t source_vocabulary, target_vocabulary;
  int32_t shared; /* one table of words for both sides */
  int32_t norm_before;
  int32_t activation;
  int32_t positions, places;
  int32_t first_place;    /* of a source text's first token */
  int32_t types;          /* kinds of source tokens told apart; 0: none */
  int32_t embedding_norm; /* source words are normed before the first block */
  int32_t end; /* the token that ends a text */
  float epsilon;
  float scale; /* of the words */
} regard_shape;

typedef struct {
  const void* data;
  int64_t bytes;
} regard_array;

typedef struct regard_model regard_model;
typedef struct regard_state regard_state;

REGARD_API int32_t regard_interface(void);
/* The instruction sets that this processor has, best first, separated by commas. */
REGARD_API const char* regard_instructions(void);

/* How many bytes the packed weights of a linear layer take; 0 for sizes that no layer has. */
REGARD_API int64_t regard_packed_bytes(int64_t outputs, int64_t inputs, int32_t precision);
/* Packs weights [outputs, inputs]. `scales` and `corrections`, one for each output rounded up to 16, are for int8. */
REGARD_API int32_t regard_pack(const float* weights, int64_t outputs, int64_t inputs, int32_t precision, void* packed,
                               float* scales, int32_t* corrections);

/* `arrays` stay the caller's and must outlive the model; their order is told in model.cpp. */
REGARD_API regard_model* regard_model_new(const regard_shape* shape, const regard_array* arrays, int32_t count,
                                          const char* instructions, char* error, int32_t room);
REGARD_API void regard_model_free(regard_model* model);

/* Reads source texts, ids [offsets[sentences]], and returns the state before the first token: one row for each. Of a
 * model that continues texts these are what was written so far, equally many tokens of each or none; the next step takes
 * what follows them. */
REGARD_API regard_state* regard_start(const regard_model* model, const int32_t* ids, const int32_t* offsets,
                                      int32_t sentences, char* error, int32_t room);
REGARD_API void regard_state_free(regard_state* state);
/* Takes one more token of each row. Finds the k likeliest next tokens, ids and logp [rows, k], and the
 * log-probability of one wanted token of each row (null: the end's). For k = 0 all of logp [rows, vocabulary]. */
REGARD_API int32_t regard_step(regard_state* state, const int32_t* tokens, int32_t rows, int32_t k, int32_t* ids,
                               float* logp, const int32_t* wanted, float* wanted_logp, char* error, int32_t room);
/* Keeps the rows with these numbers, in this order; rows may be dropped and repeated. */
REGARD_API int32_t regard_select(regard_state* state, const int64_t* rows, int32_t count, char* error, int32_t room);

/* What a plain search is asked for: no wishes but limits and tokens that are never written. */
typedef struct {
  int32_t beam, nbest, start;
  const int32_t* limits;    /* [sentences], most tokens of each text */
  const double* powers;     /* [longest limit + 3]: each length to the power that scores are divided by */
  const int32_t* forbidden; /* [forbidden_count] */
  int32_t forbidden_count;
  const int32_t* common; /* [common_count], words that every text may be written with, the end too; null: all words */
  int32_t common_count;
  const int32_t* lexicon_offsets; /* [source_vocabulary + 1] */
  const int32_t* lexicon;         /* [lexicon_offsets[source_vocabulary]], words that a text with this word may have */
} regard_plan;

/* Where its answers go, each [sentences, nbest]; a text that was not found has length -1. */
typedef struct {
  int32_t* ids; /* [sentences, nbest, longest limit] */
  int32_t* lengths;
  double *scores, *totals;
  int32_t* finished;
} regard_found;

/* Searches for the best texts of each source text, greedily or by beam. */
REGARD_API int32_t regard_search(const regard_model* model, const int32_t* ids, const int32_t* offsets,
                                 int32_t sentences, const regard_plan* plan, const regard_found* found, char* error,
                                 int32_t room);

enum regard_pooling { REGARD_MEAN = 0, REGARD_FIRST = 1, REGARD_MAXIMUM = 2 };

/* Reads source texts by so many threads; `types` of tokens may be null: all 0. Without poolings `out` takes the states
 * of all tokens after the encoder, [tokens, width]; otherwise what they make of each text, [sentences, count · width]. */
REGARD_API int32_t regard_read(const regard_model* model, const int32_t* ids, const int32_t* types,
                               const int32_t* offsets, int32_t sentences, const int32_t* poolings, int32_t count,
                               int32_t threads, float* out, char* error, int32_t room);

/* out [rows, outputs] = activation(rows [rows, inputs] · packed float32 weights + bias [outputs rounded up to 16]). */
REGARD_API int32_t regard_linear(const char* instructions, const float* rows, int32_t count, int32_t inputs,
                                 const void* packed, const float* bias, int32_t outputs, int32_t activation, float* out,
                                 char* error, int32_t room);

/* For tests: the integer sums of an int8 product, [rows, outputs rounded up to 16], of bytes that stand for b - 128. */
REGARD_API int32_t regard_integer_sums(const char* instructions, const uint8_t* bytes, int32_t rows, int32_t inputs,
                                       const void* packed, const int32_t* corrections, int32_t outputs, int32_t* sums);

#ifdef __cplusplus
}
#endif
#endif
