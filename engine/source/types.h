// What all parts of the engine share: matrices, operands, and the table of operators of an instruction set.
//
// Files that are compiled for one instruction set include this one: it must define no function.
#pragma once
#include <cstddef>
#include <cstdint>

namespace regard {

constexpr int LANES = 16;          // outputs of a block; rows of numbers are padded to whole blocks
constexpr int LONGEST_SUM = 65536; // inputs whose int8 products a 32-bit sum surely holds: 65,536 · 255 · 127 < 2³¹

enum Precision { FLOAT32 = 0, BF16 = 1, INT8 = 2 };
enum Activation { IDENTITY, RELU, GELU, GELU_TANH, SILU, TANH, QUICK_GELU, NEAR_GELU };

// A linear layer, packed: [outputs / 16][inputs / g][16][g] with g = 1, 2 or 4 numbers of 4, 2 or 1 bytes.
struct Matrix {
  int precision;
  int outputs, inputs;
  const void* packed;
  const float* scales;         // int8: of each output
  const int32_t* corrections;  // int8: -128 times the sum of each output's weights, for inputs told as b + 128
  const float* bias;           // of each output, padded
};

// Rows that a product reads: float32, bf16, or bytes that stand for (b - 128 · (1 + offset)) · scale.
struct Operand {
  const void* values;
  size_t stride;        // from one row to the next, in numbers
  const float* scales;  // int8: of each row
  const float* offsets;
};

// How a row was turned into bytes.
struct Bytes {
  float scale, offset;
};

// Keys and values of a token: float32, or bf16 where products are no finer.
using Entry = const void*;

// Rows that look at the same keys and values; entry t holds token t's key and value at fixed places.
struct Look {
  const float* queries;
  size_t stride;
  int rows;
  const Entry* entries;
  bool halves;  // entries are bf16; of heads of whole blocks in pairs, which are quick to part: numbers i and i + 8
  int count;
  size_t key, value;  // at which number of an entry they stand
  int heads, width;   // of a head
  float* scores;      // room for each head's `count` rounded up to 16
  float* mixed;
  size_t mixed_stride;
  const Entry* next;  // what will be looked at after this, so that it is on its way; may be null
  int next_count;
};

// Rows of one text that look at all rows of it; a row holds its query, its key and its value one after the other.
struct Reading {
  const float* rows;
  size_t stride;
  int count;         // rows of the text
  int first, last;   // those that look
  int heads, width;  // of a head
  float* room;       // (width + 4) · `count` rounded up to 16
  float* mixed;      // of the first that looks
  size_t mixed_stride;
};

// What is known of one row's next token while the logits pass by.
struct Best {
  float largest;
  float sums[LANES];  // of exp(logit - largest)
  int k, count;
  int32_t wanted;
  float wanted_logit;
  float* values;  // [k], largest first
  int32_t* ids;
};

struct Operators {
  const char* name;
  void (*norm)(const float* in, int width, const float* weight, const float* bias, float epsilon, float* out);
  void (*activate)(const float* in, int width, int activation, float* out);
  // Turns a padded row into what a product of this precision reads.
  Bytes (*prepare)(const float* in, int width, int precision, void* out);
  // Rounds keys and values to bf16, in pairs (see `Look`) or one after the other.
  void (*keep)(const float* in, size_t count, bool paired, uint16_t* out);
  void (*product)(const Operand& rows, int count, const Matrix& matrix, int first, int blocks, float* out,
                  size_t stride, bool add);
  void (*integer_sums)(const Operand& rows, int count, const Matrix& matrix, int32_t* out, size_t stride);
  void (*attend)(const Look& look);
  void (*read)(const Reading& reading);
  void (*scan)(const float* logits, int first, int count, Best& best);
};

extern const Operators PORTABLE;
#if defined(REGARD_X86)
extern const Operators AVX2;
extern const Operators AVX_VNNI;
extern const Operators AVX512;
extern const Operators AVX512_BF16;
extern const Operators AMX;
#endif

}  // namespace regard
