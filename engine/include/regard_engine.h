/* C interface of the engine: models built from packed arrays, decoder states that generate text, and text encoders.
 *
 * A function that can fail returns 0 (or a null pointer) and writes one line to `error`. A model is immutable: any
 * number of threads may use it, each with decoder states of its own.
 *
 * `src/regard/engine/library.py` mirrors enums, structs and functions by name; a test compares it with this file. */
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

#define REGARD_ABI_VERSION 11 /* raised whenever a caller must change */

enum regard_precision {
  REGARD_PRECISION_FLOAT32 = 0,
  REGARD_PRECISION_BF16 = 1,
  REGARD_PRECISION_INT8 = 2
};

/* Sinusoidal and learned positions are added to the embeddings; the others belong to a layer. */
enum regard_positions {
  REGARD_POS_SINUSOIDAL = 0,
  REGARD_POS_LEARNED = 1,
  REGARD_POS_ROTARY = 2,
  REGARD_POS_NONE = 3,
  REGARD_POS_ALIBI = 4,
  REGARD_POS_RELATIVE = 5 /* a learned bias for each bucket of distances (T5) */
};

enum regard_norm {
  REGARD_NORM_LAYER = 0,
  REGARD_NORM_RMS = 1,
  REGARD_NORM_RMS_PLUS_ONE = 2 /* as RMS: 1 was added to the weights when they were packed */
};

enum regard_norm_placement {
  REGARD_PLACEMENT_PRE = 0,  /* of the input of a sublayer */
  REGARD_PLACEMENT_POST = 1, /* of the residual sum */
  REGARD_PLACEMENT_BOTH = 2, /* of the input and of the output, before the residual sum */
  REGARD_PLACEMENT_NONE = 3
};

enum regard_activation {
  REGARD_ACT_IDENTITY = 0,
  REGARD_ACT_RELU = 1,
  REGARD_ACT_GELU = 2,
  REGARD_ACT_GELU_TANH = 3,
  REGARD_ACT_SILU = 4,
  REGARD_ACT_TANH = 5,
  REGARD_ACT_QUICK_GELU = 6
};

enum regard_pooling {
  REGARD_POOL_MEAN = 0,
  REGARD_POOL_CLS = 1,
  REGARD_POOL_MAX = 2
};

/* Where a layer attends. */
enum regard_site {
  REGARD_SITE_ENCODER_SELF = 0,
  REGARD_SITE_DECODER_SELF = 1,
  REGARD_SITE_DECODER_CROSS = 2
};

/* Weights of a model. The first group exists once, the others once per block; bias tables are counted on their own. */
enum regard_slot {
  REGARD_SLOT_SOURCE_EMBEDDING = 0, /* [source_vocab_size, hidden_size]; both sides' if share_embeddings */
  REGARD_SLOT_TARGET_EMBEDDING = 1,
  REGARD_SLOT_SOURCE_POSITIONS = 2, /* [max_positions, hidden_size] of learned positions */
  REGARD_SLOT_TARGET_POSITIONS = 3,
  REGARD_SLOT_TOKEN_TYPES = 4, /* [num_token_types, hidden_size] */
  REGARD_SLOT_EMBEDDING_NORM = 5,
  REGARD_SLOT_ENCODER_NORM = 6, /* after the last layer, if norms are placed before sublayers or both */
  REGARD_SLOT_DECODER_NORM = 7,
  REGARD_SLOT_OUTPUT = 8,
  REGARD_SLOT_EMBEDDING_PROJECTION = 9, /* [hidden_size, embedding_size] */

  REGARD_SLOT_ENCODER_SELF_NORM = 16,
  REGARD_SLOT_ENCODER_SELF_QKV = 17,
  REGARD_SLOT_ENCODER_SELF_OUT = 18,
  REGARD_SLOT_ENCODER_FEED_FORWARD_NORM = 19,
  REGARD_SLOT_ENCODER_FEED_FORWARD_UP = 20,
  REGARD_SLOT_ENCODER_FEED_FORWARD_DOWN = 21,
  REGARD_SLOT_ENCODER_SELF_OUTPUT_NORM = 22, /* output norms: of placement `both` */
  REGARD_SLOT_ENCODER_SELF_QUERY_NORM = 23,  /* query and key norms: [head_size], of qk_norm */
  REGARD_SLOT_ENCODER_SELF_KEY_NORM = 24,
  REGARD_SLOT_ENCODER_FEED_FORWARD_OUTPUT_NORM = 25,
  REGARD_SLOT_ENCODER_RELATIVE_BIAS = 26, /* [num_buckets, num_heads] */

  REGARD_SLOT_DECODER_SELF_NORM = 32,
  REGARD_SLOT_DECODER_SELF_QKV = 33,
  REGARD_SLOT_DECODER_SELF_OUT = 34,
  REGARD_SLOT_DECODER_CROSS_NORM = 35, /* cross-attention: of encoder-decoders */
  REGARD_SLOT_DECODER_CROSS_QUERY = 36,
  REGARD_SLOT_DECODER_CROSS_KEY_VALUE = 37,
  REGARD_SLOT_DECODER_CROSS_OUT = 38,
  REGARD_SLOT_DECODER_FEED_FORWARD_NORM = 39,
  REGARD_SLOT_DECODER_FEED_FORWARD_UP = 40,
  REGARD_SLOT_DECODER_FEED_FORWARD_DOWN = 41,
  REGARD_SLOT_DECODER_SELF_OUTPUT_NORM = 42,
  REGARD_SLOT_DECODER_SELF_QUERY_NORM = 43,
  REGARD_SLOT_DECODER_SELF_KEY_NORM = 44,
  REGARD_SLOT_DECODER_CROSS_OUTPUT_NORM = 45,
  REGARD_SLOT_DECODER_CROSS_QUERY_NORM = 46,
  REGARD_SLOT_DECODER_CROSS_KEY_NORM = 47,
  REGARD_SLOT_DECODER_FEED_FORWARD_OUTPUT_NORM = 48,
  REGARD_SLOT_DECODER_RELATIVE_BIAS = 49
};

/* Arrays of a slot. An embedding or a table has a weight; a norm a weight and a bias, both padded to blocks of 16; a
 * linear layer packed weights, a padded bias and, in int8, padded scales and corrections. An absent bias is zero. */
enum regard_part {
  REGARD_PART_WEIGHT = 0,
  REGARD_PART_BIAS = 1,
  REGARD_PART_SCALES = 2,
  REGARD_PART_CORRECTIONS = 3
};

/* What all blocks of a stack share: fields and their meaning are those of `BlockConfig`. */
typedef struct {
  int64_t hidden_size;
  int64_t num_heads;
  int64_t num_kv_heads; /* 0: num_heads */
  int64_t head_size;    /* of queries and keys; 0: hidden_size / num_heads */
  int64_t value_size;   /* 0: head_size */
  int64_t feed_forward_size;
  int32_t activation;           /* regard_activation */
  int32_t gated;                /* the up projection has twice the outputs: activation(first half) * second half */
  int32_t norm;                 /* regard_norm */
  int32_t norm_placement;       /* regard_norm_placement */
  int32_t first_attention_norm; /* whether block 0 has a self norm */
  int32_t residual;
  int32_t qk_norm;
  int32_t cross_attention;
  float norm_eps;
  float attention_scale; /* 0: 1 / sqrt(head_size) */
} regard_block;

/* What differs between the layers of a stack. */
typedef struct {
  int64_t block;        /* index of its weights; layers may share them */
  int64_t window;       /* tokens on either side that a token attends to; 0: all */
  int64_t rotary_dim;   /* rotated values of a head; 0: all */
  int64_t bias_table;   /* index of its relative bias; layers may share one */
  int64_t num_buckets;  /* of the relative bias */
  int64_t max_distance; /* from which on distances share a bucket */
  int32_t positions;    /* regard_positions: rotary, alibi, relative or none */
  int32_t interleaved;  /* rotary pairs are neighbours */
  int32_t is_causal;    /* tokens attend to no later ones; a decoder's never do */
  float theta;          /* rotary wavelengths grow from 2 pi to 2 pi theta */
  float factor;         /* by which rotary positions are divided */
} regard_layer;

typedef struct {
  regard_block encoder;
  regard_block decoder;
  const regard_layer* encoder_layers;
  const regard_layer* decoder_layers;
  int64_t num_encoder_layers; /* 0: a causal language model */
  int64_t num_decoder_layers; /* 0: an encoder alone */
  int64_t source_vocab_size;
  int64_t target_vocab_size;
  int64_t max_positions;
  int64_t position_offset; /* position of a source text's first token */
  int64_t num_token_types; /* 0: no token type embedding */
  int64_t embedding_size;  /* of an encoder alone: its embeddings are projected to hidden_size; 0: they are not */
  int32_t precision;       /* regard_precision */
  int32_t positions;       /* regard_positions: sinusoidal, learned or none */
  int32_t embedding_norm;  /* source embeddings are normalized before the first layer */
  int32_t share_embeddings;
  int32_t eos_id;
  float embedding_scale;
} regard_shape;

typedef struct {
  int32_t slot;  /* regard_slot */
  int32_t part;  /* regard_part */
  int64_t layer; /* index of the block or bias table; 0 for what exists once */
  const void* data;
  int64_t num_bytes;
} regard_array;

/* Receives queries, keys and values of one site and layer in float32, as attention uses them: after bias, norms of heads
 * and rotation, before the scale. A null array is not wanted. Tokens are those of the call: of `regard_encode` and
 * `regard_start` the given ones, of `regard_step` those appended. Cross-attention's keys and values are those of the source,
 * which `regard_start` computes, its queries those of `regard_step`. Sites that a call does not compute stay untouched. */
typedef struct {
  int32_t site; /* regard_site */
  int64_t layer;
  float* query; /* [tokens, num_heads, head_size] */
  float* key;   /* [tokens, num_kv_heads, head_size] */
  float* value; /* [tokens, num_kv_heads, value_size] */
} regard_capture;

/* Heads of one site and layer whose output is zero. */
typedef struct {
  int32_t site; /* regard_site */
  int64_t layer;
  const uint8_t* heads; /* [num_heads], 1: ablated */
} regard_ablation;

/* What one call captures and ablates; each site and layer at most once. Captures change no result. */
typedef struct {
  const regard_capture* captures;
  int64_t num_captures;
  const regard_ablation* ablations;
  int64_t num_ablations;
} regard_attention_options;

typedef struct regard_model regard_model;
typedef struct regard_state regard_state;

REGARD_API int32_t regard_abi_version(void);
/* Instruction sets of this CPU, best first, separated by commas. */
REGARD_API const char* regard_instruction_sets(void);

/* Size of a linear layer's packed weights; 0 if the sizes are out of range. */
REGARD_API int64_t regard_packed_bytes(int64_t outputs, int64_t inputs, int32_t precision);
/* Packs weights [outputs, inputs]. int8 fills `scales` and `corrections`, one per output, padded to blocks of 16.
 * Returns 0 if the sizes are out of range, or int8 weights are not finite. */
REGARD_API int32_t regard_pack_weights(const float* weights, int64_t outputs, int64_t inputs, int32_t precision,
                                       void* packed, float* scales, int32_t* corrections);

/* `arrays`, in any order, stay the caller's and must outlive the model; the shape and its layers are copied. */
REGARD_API regard_model* regard_model_new(const regard_shape* shape, const regard_array* arrays, int64_t num_arrays,
                                          const char* instruction_set, char* error, int64_t error_size);
REGARD_API void regard_model_free(regard_model* model);

/* Encodes source texts, ids [offsets[num_texts]], and returns the decoder state before the first token: one row per
 * text. A causal language model prefills its cache with them instead; they are equally long, or all empty. `attention`
 * may be null, here and below; it applies to this call alone. */
REGARD_API regard_state* regard_start(const regard_model* model, const int32_t* ids, const int32_t* offsets,
                                      int64_t num_texts, const regard_attention_options* attention, char* error,
                                      int64_t error_size);
REGARD_API void regard_state_free(regard_state* state);
/* Appends tokens [rows, num_tokens], one of each row in a search. After each of them, finds the k likeliest next tokens,
 * ids and logprobs [rows, num_tokens, k], and the log-probability of one target token (null: eos). With k = 0, logprobs
 * [rows, num_tokens, vocabulary] of all tokens. The results have the same bits however many are appended at once. */
REGARD_API int32_t regard_step(regard_state* state, const int32_t* tokens, int64_t num_rows, int64_t num_tokens,
                               int64_t k, int32_t* ids, float* logprobs, const int32_t* targets,
                               float* target_logprobs, const regard_attention_options* attention, char* error,
                               int64_t error_size);
/* Reorders the rows; they may be dropped and repeated. */
REGARD_API int32_t regard_select_rows(regard_state* state, const int64_t* rows, int64_t num_rows, char* error,
                                      int64_t error_size);

/* Greedy or beam search with no constraints but length limits, forbidden tokens and a shortlist. */
typedef struct {
  int64_t beam;
  int64_t nbest;
  int32_t bos_id;
  const int32_t* max_lengths; /* [num_texts], each from 1 on */
  int64_t num_max_lengths;
  const double* length_norms; /* [largest max_length + 3]: divisor of the score of a text with so many tokens */
  int64_t num_length_norms;
  const int32_t* forbidden; /* [num_forbidden] token ids */
  int64_t num_forbidden;
  const int32_t* always_allowed; /* [num_always_allowed] shortlisted for every text, eos too; null: whole vocabulary */
  int64_t num_always_allowed;
  const int32_t* lexicon_offsets; /* [source_vocab_size + 1] */
  int64_t num_lexicon_offsets;
  const int32_t* lexicon; /* [lexicon_size]: target tokens shortlisted by each source token */
  int64_t lexicon_size;
  const int32_t* cancelled; /* read before each step: not 0 ends the search with an error; null: never */
} regard_search_request;

/* Arrays are [num_texts, nbest]; a missing hypothesis has length -1. */
typedef struct {
  int32_t* ids; /* [num_texts, nbest, largest max_length] */
  int32_t* lengths;
  double* scores;
  double* logprobs;
  int32_t* finished; /* ended by the model, not by max_length */
} regard_search_result;

/* Captures nothing. */
REGARD_API int32_t regard_search(const regard_model* model, const int32_t* ids, const int32_t* offsets,
                                 int64_t num_texts, const regard_search_request* request,
                                 const regard_search_result* result, const regard_attention_options* attention,
                                 char* error, int64_t error_size);

/* Encodes source texts; `token_types` may be null (all 0). Without poolings `out` receives the hidden states of all
 * tokens, [tokens, hidden_size]; otherwise one embedding per text, [num_texts, num_poolings * hidden_size]. */
REGARD_API int32_t regard_encode(const regard_model* model, const int32_t* ids, const int32_t* token_types,
                                 const int32_t* offsets, int64_t num_texts, const int32_t* poolings,
                                 int64_t num_poolings, int64_t threads, const regard_attention_options* attention,
                                 float* out, char* error, int64_t error_size);

/* out [rows, outputs] = activation(rows [rows, inputs] * packed float32 weights + bias [outputs padded to 16]). */
REGARD_API int32_t regard_linear(const char* instruction_set, const float* rows, int64_t num_rows, int64_t inputs,
                                 const void* packed, int64_t num_packed_bytes, const float* bias, int64_t num_biases,
                                 int64_t outputs, int32_t activation, float* out, char* error, int64_t error_size);

/* For tests: integer sums of an int8 matmul, [rows, outputs padded to 16], of bytes b that stand for b - 128. */
REGARD_API int32_t regard_integer_sums(const char* instruction_set, const uint8_t* bytes, int64_t num_rows,
                                       int64_t inputs, const void* packed, const int32_t* corrections, int64_t outputs,
                                       int32_t* sums);

#ifdef __cplusplus
}
#endif
#endif
