// Products of rows with packed weights, a tile of rows and blocks of outputs at a time.
//
// Each output is summed in the order of its inputs whatever tile it is in: a row's result never depends on the rows
// beside it. A tile type says how its numbers are multiplied; all else is here, once.
#pragma once
#include "tile_product.h"
#include "vector.h"

namespace regard {
namespace {

// With few registers, what surrounds a tile's loop must not take any of them: it is a function of its own, in which
// nothing of what follows the loop is done before it.
#if defined(__AVX512F__)
#define REGARD_APART inline
#define REGARD_SETTLED
#else
#define REGARD_APART __attribute__((noinline))
#define REGARD_SETTLED asm volatile("" ::: "memory")
#endif

// The most rows of a tile of one block: its sums fit into registers.
#if defined(REGARD_DOTS)
constexpr int FLOAT_ROWS = 6, HALF_ROWS = 4, BYTE_ROWS = 6;
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr int FLOAT_ROWS = 6, HALF_ROWS = 4, BYTE_ROWS = 4;
#else
constexpr int FLOAT_ROWS = 2, HALF_ROWS = 2, BYTE_ROWS = 2;
#endif

struct FloatTile {
  using Sums = Floats;
  static constexpr size_t GROUP = 1;
  static constexpr int MOST_ROWS = FLOAT_ROWS;

  template <int ROWS, int BLOCKS>
  static inline void sum_up(const Operand& rows, int row, const Matrix& matrix, int block, Floats (&sums)[ROWS][BLOCKS]) {
    const size_t depth = static_cast<size_t>(matrix.inputs);
    const float* a = static_cast<const float*>(rows.values) + static_cast<size_t>(row) * rows.stride;
    const float* w = static_cast<const float*>(matrix.packed) + static_cast<size_t>(block) * depth * LANES;
    REGARD_UNROLL for (int i = 0; i < ROWS; i++)
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = spread(0);
    for (size_t k = 0; k < depth; k++) {
      Floats b[BLOCKS];
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) b[j] = load(w + (static_cast<size_t>(j) * depth + k) * LANES);
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
        const Floats x = spread(a[static_cast<size_t>(i) * rows.stride + k]);
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = fused(x, b[j], sums[i][j]);
      }
    }
  }
};

inline float widened(uint32_t high_half) {
  float value;
  std::memcpy(&value, &high_half, sizeof value);
  return value;
}

struct HalfTile {
  using Sums = Floats;
  static constexpr size_t GROUP = 2;
  static constexpr int MOST_ROWS = HALF_ROWS;

  template <int ROWS, int BLOCKS>
  static inline void sum_up(const Operand& rows, int row, const Matrix& matrix, int block, Floats (&sums)[ROWS][BLOCKS]) {
    const size_t pairs = (static_cast<size_t>(matrix.inputs) + 1) / 2;
    const uint16_t* a = static_cast<const uint16_t*>(rows.values) + static_cast<size_t>(row) * rows.stride;
    const uint16_t* w = static_cast<const uint16_t*>(matrix.packed) + static_cast<size_t>(block) * pairs * 2 * LANES;
    REGARD_UNROLL for (int i = 0; i < ROWS; i++)
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = spread(0);
    for (size_t k = 0; k < pairs; k++) {
#if defined(__AVX512BF16__)
      __m512bh b[BLOCKS];
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++)
        b[j] = (__m512bh)_mm512_loadu_si512(w + (static_cast<size_t>(j) * pairs + k) * 2 * LANES);
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
        int32_t both;
        std::memcpy(&both, a + static_cast<size_t>(i) * rows.stride + 2 * k, sizeof both);
        const __m512bh x = (__m512bh)_mm512_set1_epi32(both);
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j].v = _mm512_dpbf16_ps(sums[i][j].v, b[j], x);
      }
#else
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
        Floats even, odd;
        part(w + (static_cast<size_t>(j) * pairs + k) * 2 * LANES, even, odd);
        REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
          Floats first, second;
          spread_both(a + static_cast<size_t>(i) * rows.stride + 2 * k, first, second);
          sums[i][j] = fused(second, odd, fused(first, even, sums[i][j]));
        }
      }
#endif
    }
  }

  // Two numbers of a row, each sixteen times.
  static inline void spread_both(const uint16_t* both, Floats& first, Floats& second) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    int32_t pair;
    std::memcpy(&pair, both, sizeof pair);
    const __m256i x = _mm256_set1_epi32(pair), high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    first.a = first.b = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    second.a = second.b = _mm256_castsi256_ps(_mm256_and_si256(x, high));
#else
    first = spread(widened(static_cast<uint32_t>(both[0]) << 16));
    second = spread(widened(static_cast<uint32_t>(both[1]) << 16));
#endif
  }

  // Parts sixteen pairs into their first and their second numbers.
  static inline void part(const uint16_t* pairs, Floats& even, Floats& odd) {
#if defined(__AVX512F__)
    const __m512i both = _mm512_loadu_si512(pairs);
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
#elif defined(__AVX2__)
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    const __m256i last = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs + LANES));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(last, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(first, high)), _mm256_castsi256_ps(_mm256_and_si256(last, high))};
#else
    float left[LANES], right[LANES];
    for (int i = 0; i < LANES; i++) {
      left[i] = widened(static_cast<uint32_t>(pairs[2 * i]) << 16);
      right[i] = widened(static_cast<uint32_t>(pairs[2 * i + 1]) << 16);
    }
    even = load(left), odd = load(right);
#endif
  }
};

// Bytes: whole numbers, exact on every instruction set.
struct ByteTile {
  using Sums = Wholes;
  static constexpr size_t GROUP = 4;
  static constexpr int MOST_ROWS = BYTE_ROWS;

  template <int ROWS, int BLOCKS>
  static inline void sum_up(const Operand& rows, int row, const Matrix& matrix, int block, Wholes (&sums)[ROWS][BLOCKS]) {
    const size_t groups = (static_cast<size_t>(matrix.inputs) + 3) / 4;
    const uint8_t* a = static_cast<const uint8_t*>(rows.values) + static_cast<size_t>(row) * rows.stride;
    const int8_t* w = static_cast<const int8_t*>(matrix.packed) + static_cast<size_t>(block) * groups * 4 * LANES;
    REGARD_UNROLL for (int i = 0; i < ROWS; i++)
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = load(matrix.corrections + (block + j) * LANES);
    multiply<ROWS, BLOCKS>(a, rows.stride, w, groups, sums);
  }

#if defined(__AVX512F__)
  template <int ROWS, int BLOCKS>
  static inline void multiply(const uint8_t* a, size_t stride, const int8_t* w, size_t groups, Wholes (&sums)[ROWS][BLOCKS]) {
    for (size_t k = 0; k < groups; k++) {
      __m512i b[BLOCKS];
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++)
        b[j] = _mm512_loadu_si512(w + (static_cast<size_t>(j) * groups + k) * 4 * LANES);
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
        int32_t four;
        std::memcpy(&four, a + static_cast<size_t>(i) * stride + 4 * k, sizeof four);
        const __m512i x = _mm512_set1_epi32(four);
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j].v = _mm512_dpbusd_epi32(sums[i][j].v, x, b[j]);
      }
    }
  }
#elif defined(REGARD_DOTS)
  // The side that is shorter waits in registers for the other.
  template <int ROWS, int BLOCKS>
  static inline void multiply(const uint8_t* a, size_t stride, const int8_t* w, size_t groups, Wholes (&sums)[ROWS][BLOCKS]) {
    const auto row = [=](int i, size_t k) {
      const uint8_t* four = a + static_cast<size_t>(i) * stride + 4 * k;
      return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(four)));
    };
    const auto weights = [=](int j, size_t k, int half) {
      const int8_t* place = w + (static_cast<size_t>(j) * groups + k) * 4 * LANES + 32 * half;
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(place));
    };
    for (size_t k = 0; k < groups; k++) {
      if constexpr (ROWS < 2 * BLOCKS) {
        __m256i x[ROWS];
        REGARD_UNROLL for (int i = 0; i < ROWS; i++) x[i] = row(i, k);
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
          const __m256i left = weights(j, k, 0);
          REGARD_UNROLL for (int i = 0; i < ROWS; i++) sums[i][j].a = add_dots(sums[i][j].a, x[i], left);
          const __m256i right = weights(j, k, 1);
          REGARD_UNROLL for (int i = 0; i < ROWS; i++) sums[i][j].b = add_dots(sums[i][j].b, x[i], right);
        }
      } else {
        __m256i left[BLOCKS], right[BLOCKS];
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) left[j] = weights(j, k, 0), right[j] = weights(j, k, 1);
        REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
          const __m256i x = row(i, k);
          REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
            sums[i][j].a = add_dots(sums[i][j].a, x, left[j]);
            sums[i][j].b = add_dots(sums[i][j].b, x, right[j]);
          }
        }
      }
    }
    // else the compiler keeps each sum twice, as one of two kinds of vector
    REGARD_UNROLL for (int i = 0; i < ROWS; i++)
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) asm("" : "+x"(sums[i][j].a), "+x"(sums[i][j].b));
  }
#elif defined(__AVX2__)
  // The 8-bit multiplication of this set saturates at 16 bits; packing made weights such that the products of two groups
  // are sure to fit there together (see packing.h), so they are widened once for both.
  template <int ROWS, int BLOCKS>
  static inline void multiply(const uint8_t* a, size_t stride, const int8_t* w, size_t groups, Wholes (&sums)[ROWS][BLOCKS]) {
    size_t k = 0;
    for (; k + 2 <= groups; k += 2) add_groups<ROWS, BLOCKS, 2>(a + 4 * k, stride, w + k * 4 * LANES, groups, sums);
    if (k < groups) add_groups<ROWS, BLOCKS, 1>(a + 4 * k, stride, w + k * 4 * LANES, groups, sums);
  }

  template <int ROWS, int BLOCKS, int GROUPS>
  static inline void add_groups(const uint8_t* a, size_t stride, const int8_t* w, size_t groups, Wholes (&sums)[ROWS][BLOCKS]) {
    REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
      __m256i x[GROUPS];
      REGARD_UNROLL for (int g = 0; g < GROUPS; g++) x[g] = spread_four(a + static_cast<size_t>(i) * stride + 4 * g);
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
        const int8_t* place = w + static_cast<size_t>(j) * groups * 4 * LANES;
        sums[i][j].a = _mm256_add_epi32(sums[i][j].a, products<GROUPS>(x, place));
        sums[i][j].b = _mm256_add_epi32(sums[i][j].b, products<GROUPS>(x, place + 32));
      }
    }
  }

  template <int GROUPS>
  static inline __m256i products(const __m256i* x, const int8_t* w) {
    __m256i pairs = _mm256_maddubs_epi16(x[0], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
    REGARD_UNROLL for (int g = 1; g < GROUPS; g++) {
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 4 * LANES * g));
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(x[g], b));
    }
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }

  // Four bytes eight times, straight from memory: the compiler would take a way round.
  static inline __m256i spread_four(const uint8_t* from) {
    return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(from)));
  }
#else
  template <int ROWS, int BLOCKS>
  static inline void multiply(const uint8_t* a, size_t stride, const int8_t* w, size_t groups, Wholes (&sums)[ROWS][BLOCKS]) {
    for (int j = 0; j < BLOCKS; j++)
      for (int i = 0; i < ROWS; i++)
        for (size_t k = 0; k < groups; k++) {
          const int8_t* b = w + (static_cast<size_t>(j) * groups + k) * 4 * LANES;
          const uint8_t* x = a + static_cast<size_t>(i) * stride + 4 * k;
          for (int lane = 0; lane < LANES; lane++)
            for (int n = 0; n < 4; n++) sums[i][j].n[lane] += x[n] * b[4 * lane + n];
        }
  }
#endif
};

// Where results go: sums · scales + bias, added to what is there or not.
template <bool ADD>
struct Placing {
  const Matrix& matrix;
  const float *row_scales, *row_offsets;  // of bytes
  float* out;
  size_t stride;

  template <int ROWS, int BLOCKS>
  inline void put(const Floats (&sums)[ROWS][BLOCKS], int row, int block, int at) const {
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
      const Floats bias = load(matrix.bias + (block + j) * LANES);
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) place(row + i, at + j, sums[i][j] + bias);
    }
  }
  // What all rows share is read before anything is written: nobody can tell that it stays the same.
  template <int ROWS, int BLOCKS>
  inline void put(const Wholes (&sums)[ROWS][BLOCKS], int row, int block, int at) const {
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
      const Floats bias = load(matrix.bias + (block + j) * LANES), scales = load(matrix.scales + (block + j) * LANES);
      const Floats corrections = converted(load(matrix.corrections + (block + j) * LANES));
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
        const Floats whole = converted(sums[i][j]) + spread(row_offsets[row + i]) * corrections;
        place(row + i, at + j, whole * (spread(row_scales[row + i]) * scales) + bias);
      }
    }
  }
  inline void place(int row, int at, Floats made) const {
    float* to = out + static_cast<size_t>(row) * stride + static_cast<size_t>(at) * LANES;
    store(to, ADD ? load(to) + made : made);
  }
};

// The sums alone, for tests.
struct Collecting {
  int32_t* out;
  size_t stride;

  template <int ROWS, int BLOCKS>
  inline void put(const Wholes (&sums)[ROWS][BLOCKS], int row, int, int at) const {
    for (int i = 0; i < ROWS; i++)
      for (int j = 0; j < BLOCKS; j++)
        store(out + static_cast<size_t>(row + i) * stride + static_cast<size_t>(at + j) * LANES, sums[i][j]);
  }
};

// Weights that are needed next, asked for bit by bit while others are used: they come from far away.
struct Ahead {
  const char *from, *end;
  size_t some;  // bytes for each of the tiles

  Ahead(const char* weights, size_t bytes, int tiles)
      : from(weights), end(weights + bytes), some((bytes / static_cast<size_t>(tiles) + 63) / 64 * 64) {}
  inline void fetch() {
    const char* stop = some < static_cast<size_t>(end - from) ? from + some : end;
    for (; from < stop; from += 64) __builtin_prefetch(from, 0, 2);
  }
};

// Weights of the blocks that come next.
struct Coming {
  const char* weights;
  size_t bytes;
};

// Tiles of ROWS rows each, one below the other, as long as rows are left.
template <class Tile, int ROWS, int BLOCKS, class Target>
REGARD_APART int tile_rows(const Operand& rows, int row, int count, const Matrix& matrix, int block, int at,
                           const Target& target, Ahead& ahead) {
  for (; row + ROWS <= count; row += ROWS) {
    ahead.fetch();
    typename Tile::Sums sums[ROWS][BLOCKS];
    Tile::template sum_up<ROWS, BLOCKS>(rows, row, matrix, block, sums);
    REGARD_SETTLED;
    target.put(sums, row, block, at);
  }
  return row;
}

#if defined(__AVX512F__)
template <class Tile, int ROWS, int BLOCKS, class Target>
inline void tile_blocks(const Operand& rows, int count, const Matrix& matrix, int block, int at, const Target& target,
                        const Coming& coming) {
  Ahead ahead(coming.weights, coming.bytes, (count + ROWS - 1) / ROWS);
  int row = tile_rows<Tile, ROWS, BLOCKS>(rows, 0, count, matrix, block, at, target, ahead);
  row = tile_rows<Tile, 4, BLOCKS>(rows, row, count, matrix, block, at, target, ahead);
  row = tile_rows<Tile, 2, BLOCKS>(rows, row, count, matrix, block, at, target, ahead);
  tile_rows<Tile, 1, BLOCKS>(rows, row, count, matrix, block, at, target, ahead);
}
#else
template <class Tile, int ROWS, int BLOCKS, class Target>
inline int tile_rows_of(int height, const Operand& rows, int row, int count, const Matrix& matrix, int block, int at,
                        const Target& target, Ahead& ahead) {
  if constexpr (ROWS > 1)
    if (height < ROWS)
      return tile_rows_of<Tile, ROWS - 1, BLOCKS>(height, rows, row, count, matrix, block, at, target, ahead);
  return tile_rows<Tile, ROWS, BLOCKS>(rows, row, count, matrix, block, at, target, ahead);
}

// Tiles of about as many rows each: a low one would wait for its own sums.
template <class Tile, int ROWS, int BLOCKS, class Target>
inline void tile_blocks(const Operand& rows, int count, const Matrix& matrix, int block, int at, const Target& target,
                        const Coming& coming) {
  const int tiles = (count + ROWS - 1) / ROWS, height = count / tiles, higher = count % tiles * (height + 1);
  Ahead ahead(coming.weights, coming.bytes, tiles);
  if (higher) tile_rows_of<Tile, ROWS, BLOCKS>(height + 1, rows, 0, higher, matrix, block, at, target, ahead);
  tile_rows_of<Tile, ROWS, BLOCKS>(height, rows, higher, count, matrix, block, at, target, ahead);
}
#endif

template <class Tile, int ROWS, int BLOCKS, class Target>
inline void all_tiles(const Operand& rows, int count, const Matrix& matrix, int first, int blocks, const Target& target) {
  if (count < 1) return;
  const size_t inputs = static_cast<size_t>(matrix.inputs), group = Tile::GROUP;
  const size_t bytes = (inputs + group - 1) / group * 4 * LANES;  // of a block
  const char* packed = static_cast<const char*>(matrix.packed);
  const int end = (matrix.outputs + LANES - 1) / LANES;
  for (int at = 0; at < blocks;) {
    const int some = at + BLOCKS <= blocks ? BLOCKS : 1, next = first + at + some;
    const int after = end - next < BLOCKS ? end - next : BLOCKS;
    const Coming coming{packed + static_cast<size_t>(next) * bytes, static_cast<size_t>(after) * bytes};
    if (some == BLOCKS)
      tile_blocks<Tile, ROWS, BLOCKS>(rows, count, matrix, first + at, at, target, coming);
    else
      tile_blocks<Tile, ROWS, 1>(rows, count, matrix, first + at, at, target, coming);
    at += some;
  }
}

template <class Tile, class Target>
inline void tiles(const Operand& rows, int count, const Matrix& matrix, int first, int blocks, const Target& target) {
#if defined(REGARD_TILE_UNIT)
  if constexpr (Tile::GROUP > 1)
    if (suits_tiles<Tile>(count)) return multiply_by_tiles<Tile>(rows, count, matrix, first, blocks, target);
#endif
#if defined(__AVX512F__)
  constexpr int MANY = 64;  // rows from which tiles are high rather than wide: weights come from farther away than rows
  if (count >= MANY) return all_tiles<Tile, 8, 3>(rows, count, matrix, first, blocks, target);
  all_tiles<Tile, 4, 4>(rows, count, matrix, first, blocks, target);
#else
  if constexpr (Tile::MOST_ROWS > 3) {
    if (count == 1) return all_tiles<Tile, 1, 4>(rows, count, matrix, first, blocks, target);
    if (count <= 3) return all_tiles<Tile, 3, 2>(rows, count, matrix, first, blocks, target);
  }
  all_tiles<Tile, Tile::MOST_ROWS, 1>(rows, count, matrix, first, blocks, target);
#endif
}

template <class Target>
inline void product_of(const Operand& rows, int count, const Matrix& matrix, int first, int blocks, const Target& target) {
  if (matrix.precision == INT8) return tiles<ByteTile>(rows, count, matrix, first, blocks, target);
  if (matrix.precision == BF16) return tiles<HalfTile>(rows, count, matrix, first, blocks, target);
  tiles<FloatTile>(rows, count, matrix, first, blocks, target);
}

void product(const Operand& rows, int count, const Matrix& matrix, int first, int blocks, float* out, size_t stride,
             bool add) {
  if (add) return product_of(rows, count, matrix, first, blocks, Placing<true>{matrix, rows.scales, rows.offsets, out, stride});
  product_of(rows, count, matrix, first, blocks, Placing<false>{matrix, rows.scales, rows.offsets, out, stride});
}

// For tests.
void integer_sums(const Operand& rows, int count, const Matrix& matrix, int32_t* out, size_t stride) {
  tiles<ByteTile>(rows, count, matrix, 0, (matrix.outputs + LANES - 1) / LANES, Collecting{out, stride});
}

}  // namespace
}  // namespace regard
