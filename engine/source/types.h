// Types that all parts of the engine share: packed weights, inputs of the kernels, and the table of kernels.
//
// Files compiled for one instruction set include this one. It must define no function: the linker would keep one copy,
// perhaps the one with instructions that this CPU lacks.
#pragma once
#include <cstddef>
#include <cstdint>

namespace regard {

constexpr int LANES = 16;  // outputs of a block; rows are padded to whole blocks

// Longest dot product whose int8 sum fits into 32 bits: 65,536 · 255 · 127 < 2³¹.
constexpr int64_t MAX_INT8_INPUTS = 65536;

enum Precision { FLOAT32 = 0, BF16 = 1, INT8 = 2 };  // as regard_precision
// As regard_activation; FAST_GELU, a polynomial, is for internal use.
enum Activation { IDENTITY, RELU, GELU, GELU_TANH, SILU, TANH, QUICK_GELU, FAST_GELU };

// A linear layer with packed weights: [outputs / 16][inputs / g][16][g], groups of g = 1, 2 or 4 values of 4, 2 or 1
// bytes.
struct PackedLinear {
  int precision = FLOAT32;
  int64_t outputs = 0;
  int64_t inputs = 0;
  const void* packed = nullptr;
  const float* scales = nullptr;         // int8: per output
  const int32_t* corrections = nullptr;  // int8: -128 · the sum of each output's weights, for inputs stored as b + 128
  const float* bias = nullptr;           // per output, padded
};

// Rows that a matmul reads: float32, bf16, or bytes b that stand for (b - 128 · (1 + offset)) · scale.
struct MatmulInput {
  const void* values = nullptr;
  int64_t stride = 0;             // between rows, in values
  const float* scales = nullptr;  // int8: per row
  const float* offsets = nullptr;
};

// How a row was quantized to bytes.
struct RowQuantization {
  float scale;
  float offset;
};

// Numbers and sizes of heads; a key and a value are shared by num_heads / num_kv_heads queries.
struct HeadSizes {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;   // of queries and keys
  int64_t value_size = 0;
  float scale = 0;  // of the scores
};

// Keys and values of one token, of all layers: float32, or bf16 in the lower precisions.
using KeyValueEntry = const void*;

// Queries that attend to the same cached keys and values; entry t holds those of token t.
struct DecodeAttention {
  const float* queries;
  int64_t query_stride;
  int64_t num_rows;
  const KeyValueEntry* entries;
  bool is_bf16;  // paired if keys and values are whole blocks: values i and i + 8 of 16 share 32 bits, quick to unpack
  int64_t num_entries;
  int64_t key_offset;  // within an entry, in values
  int64_t value_offset;
  HeadSizes heads;
  const float* bias;    // of the scores, [heads]: that of the last entry, those of earlier ones before it; null: none
  int64_t bias_stride;  // between heads
  float* scores;        // scratch: [num_heads, num_entries padded to 16]
  float* context;
  int64_t context_stride;
  const KeyValueEntry* next_entries;  // read by the next call, prefetched here
  int64_t num_next_entries;
};

// Self-attention of rows `first_row` to `last_row` of one text; a row holds query, key and value side by side.
struct EncodeAttention {
  const float* qkv;
  int64_t qkv_stride;
  int64_t num_tokens;
  int64_t first_row;
  int64_t last_row;
  HeadSizes heads;
  int64_t window;       // tokens on either side that a row attends to; 0: all
  const float* bias;    // of the scores, [heads]: that of key t for row r is at t - r; null: none
  int64_t bias_stride;  // between heads
  float* scratch;  // (head_size + 4) · num_tokens padded to 16
  float* context;  // of the first row
  int64_t context_stride;
};

// Running softmax and top-k of one row while its logits pass by.
struct TopK {
  float max_logit = -3e38f;
  float exp_sums[LANES] = {};  // of exp(logit - max_logit)
  int64_t k = 0;
  int64_t num_found = 0;
  int32_t target = 0;
  float target_logit = 0;
  float* logits = nullptr;  // [k], largest first
  int32_t* ids = nullptr;
};

// Kernels of one instruction set.
struct Kernels {
  const char* name;
  void (*layer_norm)(const float* in, int64_t size, const float* weight, const float* bias, float eps, float* out);
  void (*rms_norm)(const float* in, int64_t size, const float* weight, float eps, float* out);
  void (*activate)(const float* in, int64_t size, int activation, float* out);
  // out = left · right; its padding is zero.
  void (*multiply)(const float* left, const float* right, int64_t size, float* out);
  // Converts a padded row to the input of a matmul of this precision.
  RowQuantization (*quantize_row)(const float* in, int64_t size, int precision, void* out);
  // Rounds keys and values to bf16, paired (see DecodeAttention) or in order.
  void (*store_bf16)(const float* in, int64_t size, bool is_paired, uint16_t* out);
  // out [num_rows, num_blocks · 16] (+)= rows · weights of blocks `first_block` on, + bias.
  void (*matmul)(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t first_block,
                 int64_t num_blocks, float* out, int64_t out_stride, bool should_add);
  void (*integer_sums)(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int32_t* out,
                       int64_t out_stride);
  void (*decode_attention)(const DecodeAttention& attention);
  void (*encode_attention)(const EncodeAttention& attention);
  void (*scan_logits)(const float* logits, int64_t first_id, int64_t num_logits, TopK& top);
};

extern const Kernels PORTABLE;
#if defined(REGARD_X86)
extern const Kernels AVX2;
extern const Kernels AVX_VNNI;
extern const Kernels AVX512;
extern const Kernels AVX512_BF16;
extern const Kernels AMX;
#endif

}  // namespace regard
