// Matmul of rows with packed weights, one register tile (rows × blocks of 16 outputs) at a time.
//
// Every output is summed in the order of its inputs, whichever tile computes it: a row's result never depends on the
// rows beside it. `FloatTile`, `Bf16Tile` and `Int8Tile` say how values are multiplied; the loops around them are
// shared.
#pragma once
#include "amx_matmul.h"
#include "simd.h"

namespace regard {
namespace {

// With sixteen registers, the code around a tile's loop must not occupy any: the tile loop is a function of its own,
// and a barrier keeps what follows the loop from being computed before it.
#if defined(__AVX512F__)
#define REGARD_TILE_FUNCTION inline
#define REGARD_TILE_BARRIER
#else
#define REGARD_TILE_FUNCTION __attribute__((noinline))
#define REGARD_TILE_BARRIER asm volatile("" ::: "memory")
#endif

// Rows of the tallest tile of one block: its sums fit into the registers. (AVX-512 chooses its tiles in
// `matmul_tiles`.)
#if defined(REGARD_HAS_VNNI)
constexpr int FLOAT_TILE_ROWS = 6;
constexpr int BF16_TILE_ROWS = 4;
constexpr int INT8_TILE_ROWS = 6;
#elif defined(__AVX2__) && !defined(__AVX512F__)
constexpr int FLOAT_TILE_ROWS = 6;
constexpr int BF16_TILE_ROWS = 4;
constexpr int INT8_TILE_ROWS = 4;
#else
constexpr int FLOAT_TILE_ROWS = 2;
constexpr int BF16_TILE_ROWS = 2;
constexpr int INT8_TILE_ROWS = 2;
#endif

struct FloatTile {
  using Sums = Floats;
  static constexpr int64_t GROUP = 1;
  static constexpr int MAX_ROWS = FLOAT_TILE_ROWS;

  template <int ROWS, int BLOCKS>
  static inline void accumulate(const MatmulInput& rows, int64_t row, const PackedLinear& linear, int64_t block,
                                Floats (&sums)[ROWS][BLOCKS]) {
    const int64_t inputs = linear.inputs;
    const int64_t stride = rows.stride;
    const float* a = static_cast<const float*>(rows.values) + row * stride;
    const float* w = static_cast<const float*>(linear.packed) + block * inputs * LANES;
    REGARD_UNROLL for (int i = 0; i < ROWS; i++)
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = broadcast(0);
    for (int64_t k = 0; k < inputs; k++) {
      Floats b[BLOCKS];
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) b[j] = load(w + (j * inputs + k) * LANES);
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
        const Floats x = broadcast(a[i * stride + k]);
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = fma(x, b[j], sums[i][j]);
      }
    }
  }
};

inline float bf16_to_float(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Bf16Tile {
  using Sums = Floats;
  static constexpr int64_t GROUP = 2;
  static constexpr int MAX_ROWS = BF16_TILE_ROWS;

  template <int ROWS, int BLOCKS>
  static inline void accumulate(const MatmulInput& rows, int64_t row, const PackedLinear& linear, int64_t block,
                                Floats (&sums)[ROWS][BLOCKS]) {
    const int64_t num_pairs = (linear.inputs + 1) / 2;
    const int64_t stride = rows.stride;
    const uint16_t* a = static_cast<const uint16_t*>(rows.values) + row * stride;
    const uint16_t* w = static_cast<const uint16_t*>(linear.packed) + block * num_pairs * 2 * LANES;
    REGARD_UNROLL for (int i = 0; i < ROWS; i++)
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = broadcast(0);
    for (int64_t k = 0; k < num_pairs; k++) {
#if defined(__AVX512BF16__)
      __m512bh b[BLOCKS];
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++)
        b[j] = (__m512bh)_mm512_loadu_si512(w + (j * num_pairs + k) * 2 * LANES);
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
        int32_t pair;
        std::memcpy(&pair, a + i * stride + 2 * k, sizeof pair);
        const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j].v = _mm512_dpbf16_ps(sums[i][j].v, b[j], x);
      }
#else
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
        Floats even;
        Floats odd;
        split_pairs(w + (j * num_pairs + k) * 2 * LANES, even, odd);
        REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
          Floats first;
          Floats second;
          broadcast_pair(a + i * stride + 2 * k, first, second);
          sums[i][j] = fma(second, odd, fma(first, even, sums[i][j]));
        }
      }
#endif
    }
  }

  // Both values of a pair, each in all lanes.
  static inline void broadcast_pair(const uint16_t* pair, Floats& first, Floats& second) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    int32_t bits;
    std::memcpy(&bits, pair, sizeof bits);
    const __m256i x = _mm256_set1_epi32(bits);
    const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    first.a = first.b = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    second.a = second.b = _mm256_castsi256_ps(_mm256_and_si256(x, high_half));
#else
    first = broadcast(bf16_to_float(pair[0]));
    second = broadcast(bf16_to_float(pair[1]));
#endif
  }

  // First and second values of sixteen pairs.
  static inline void split_pairs(const uint16_t* pairs, Floats& even, Floats& odd) {
#if defined(__AVX512F__)
    const __m512i bits = _mm512_loadu_si512(pairs);
    const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(bits, high_half));
#elif defined(__AVX2__)
    const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs + LANES));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(low, high_half)),
           _mm256_castsi256_ps(_mm256_and_si256(high, high_half))};
#else
    float left[LANES];
    float right[LANES];
    for (int i = 0; i < LANES; i++) {
      left[i] = bf16_to_float(pairs[2 * i]);
      right[i] = bf16_to_float(pairs[2 * i + 1]);
    }
    even = load(left);
    odd = load(right);
#endif
  }
};

// Integer sums: exact, the same bits on every instruction set.
struct Int8Tile {
  using Sums = Ints;
  static constexpr int64_t GROUP = 4;
  static constexpr int MAX_ROWS = INT8_TILE_ROWS;

  template <int ROWS, int BLOCKS>
  static inline void accumulate(const MatmulInput& rows, int64_t row, const PackedLinear& linear, int64_t block,
                                Ints (&sums)[ROWS][BLOCKS]) {
    const int64_t num_groups = (linear.inputs + 3) / 4;
    const uint8_t* a = static_cast<const uint8_t*>(rows.values) + row * rows.stride;
    const int8_t* w = static_cast<const int8_t*>(linear.packed) + block * num_groups * 4 * LANES;
    REGARD_UNROLL for (int i = 0; i < ROWS; i++)
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j] = load(linear.corrections + (block + j) * LANES);
    add_products<ROWS, BLOCKS>(a, rows.stride, w, num_groups, sums);
  }

#if defined(__AVX512F__)
  template <int ROWS, int BLOCKS>
  static inline void add_products(const uint8_t* a, int64_t stride, const int8_t* w, int64_t num_groups,
                                  Ints (&sums)[ROWS][BLOCKS]) {
    for (int64_t k = 0; k < num_groups; k++) {
      __m512i b[BLOCKS];
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) b[j] = _mm512_loadu_si512(w + (j * num_groups + k) * 4 * LANES);
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
        int32_t four_bytes;
        std::memcpy(&four_bytes, a + i * stride + 4 * k, sizeof four_bytes);
        const __m512i x = _mm512_set1_epi32(four_bytes);
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) sums[i][j].v = _mm512_dpbusd_epi32(sums[i][j].v, x, b[j]);
      }
    }
  }
#elif defined(REGARD_HAS_VNNI)
  // The shorter side of the tile, rows or weights, stays in registers while the other is loaded.
  template <int ROWS, int BLOCKS>
  static inline void add_products(const uint8_t* a, int64_t stride, const int8_t* w, int64_t num_groups,
                                  Ints (&sums)[ROWS][BLOCKS]) {
    const auto load_row = [=](int i, int64_t k) { return broadcast_four(a + i * stride + 4 * k); };
    const auto load_weights = [=](int j, int64_t k, int half) {
      const int8_t* weights = w + (j * num_groups + k) * 4 * LANES + 32 * half;
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
    };
    for (int64_t k = 0; k < num_groups; k++) {
      if constexpr (ROWS < 2 * BLOCKS) {
        __m256i x[ROWS];
        REGARD_UNROLL for (int i = 0; i < ROWS; i++) x[i] = load_row(i, k);
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
          const __m256i left = load_weights(j, k, 0);
          REGARD_UNROLL for (int i = 0; i < ROWS; i++) sums[i][j].a = dot_bytes(sums[i][j].a, x[i], left);
          const __m256i right = load_weights(j, k, 1);
          REGARD_UNROLL for (int i = 0; i < ROWS; i++) sums[i][j].b = dot_bytes(sums[i][j].b, x[i], right);
        }
      } else {
        __m256i left[BLOCKS];
        __m256i right[BLOCKS];
        REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
          left[j] = load_weights(j, k, 0);
          right[j] = load_weights(j, k, 1);
        }
        REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
          const __m256i x = load_row(i, k);
          REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
            sums[i][j].a = dot_bytes(sums[i][j].a, x, left[j]);
            sums[i][j].b = dot_bytes(sums[i][j].b, x, right[j]);
          }
        }
      }
    }
    // GCC would keep each sum in two registers, as __m256i and as a vector of int
    REGARD_UNROLL for (int i = 0; i < ROWS; i++)
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) asm("" : "+x"(sums[i][j].a), "+x"(sums[i][j].b));
  }
#elif defined(__AVX2__)
  // vpmaddubsw saturates at 16 bits. Packing bounds the weights so that the products of two groups fit there together
  // (see packing.h): they are widened to 32 bits once for both.
  template <int ROWS, int BLOCKS>
  static inline void add_products(const uint8_t* a, int64_t stride, const int8_t* w, int64_t num_groups,
                                  Ints (&sums)[ROWS][BLOCKS]) {
    int64_t k = 0;
    for (; k + 2 <= num_groups; k += 2)
      add_groups<ROWS, BLOCKS, 2>(a + 4 * k, stride, w + k * 4 * LANES, num_groups, sums);
    if (k < num_groups) add_groups<ROWS, BLOCKS, 1>(a + 4 * k, stride, w + k * 4 * LANES, num_groups, sums);
  }

  template <int ROWS, int BLOCKS, int GROUPS>
  static inline void add_groups(const uint8_t* a, int64_t stride, const int8_t* w, int64_t num_groups,
                                Ints (&sums)[ROWS][BLOCKS]) {
    REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
      __m256i x[GROUPS];
      REGARD_UNROLL for (int g = 0; g < GROUPS; g++) x[g] = broadcast_four(a + i * stride + 4 * g);
      REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
        const int8_t* weights = w + j * num_groups * 4 * LANES;
        sums[i][j].a = _mm256_add_epi32(sums[i][j].a, group_products<GROUPS>(x, weights));
        sums[i][j].b = _mm256_add_epi32(sums[i][j].b, group_products<GROUPS>(x, weights + 32));
      }
    }
  }

  template <int GROUPS>
  static inline __m256i group_products(const __m256i* x, const int8_t* w) {
    __m256i pairs = _mm256_maddubs_epi16(x[0], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
    REGARD_UNROLL for (int g = 1; g < GROUPS; g++) {
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 4 * LANES * g));
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(x[g], b));
    }
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
#else
  template <int ROWS, int BLOCKS>
  static inline void add_products(const uint8_t* a, int64_t stride, const int8_t* w, int64_t num_groups,
                                  Ints (&sums)[ROWS][BLOCKS]) {
    for (int j = 0; j < BLOCKS; j++)
      for (int i = 0; i < ROWS; i++)
        for (int64_t k = 0; k < num_groups; k++) {
          const int8_t* b = w + (j * num_groups + k) * 4 * LANES;
          const uint8_t* x = a + i * stride + 4 * k;
          for (int lane = 0; lane < LANES; lane++) {
            uint32_t sum = static_cast<uint32_t>(sums[i][j].n[lane]);  // wraps as SIMD does: a file may hold any numbers
            for (int n = 0; n < 4; n++) sum += static_cast<uint32_t>(x[n] * b[4 * lane + n]);
            sums[i][j].n[lane] = static_cast<int32_t>(sum);
          }
        }
  }
#endif

#if defined(__AVX2__)
  // Four bytes in all lanes. As a float load: for an integer, GCC goes through a general register.
  static inline __m256i broadcast_four(const uint8_t* from) {
    return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(from)));
  }
#endif
};

// Stores the results of a tile: sums · scales + bias, added to what is there if ADD.
template <bool ADD>
struct OutputWriter {
  const PackedLinear& linear;
  const float* row_scales;  // int8
  const float* row_offsets;
  float* out;
  int64_t stride;

  template <int ROWS, int BLOCKS>
  inline void write(const Floats (&sums)[ROWS][BLOCKS], int64_t row, int64_t block, int64_t out_block) const {
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
      const Floats bias = load(linear.bias + (block + j) * LANES);
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) write_block(row + i, out_block + j, sums[i][j] + bias);
    }
  }

  // What all rows share is loaded before the first store, which might alias it.
  template <int ROWS, int BLOCKS>
  inline void write(const Ints (&sums)[ROWS][BLOCKS], int64_t row, int64_t block, int64_t out_block) const {
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) {
      const Floats bias = load(linear.bias + (block + j) * LANES);
      const Floats scales = load(linear.scales + (block + j) * LANES);
      const Floats corrections = to_float(load(linear.corrections + (block + j) * LANES));
      REGARD_UNROLL for (int i = 0; i < ROWS; i++) {
        const Floats corrected = to_float(sums[i][j]) + broadcast(row_offsets[row + i]) * corrections;
        write_block(row + i, out_block + j, corrected * (broadcast(row_scales[row + i]) * scales) + bias);
      }
    }
  }

  inline void write_block(int64_t row, int64_t out_block, Floats result) const {
    float* to = out + row * stride + out_block * LANES;
    store(to, ADD ? load(to) + result : result);
  }
};

// Stores the integer sums alone, for tests.
struct SumWriter {
  int32_t* out;
  int64_t stride;

  template <int ROWS, int BLOCKS>
  inline void write(const Ints (&sums)[ROWS][BLOCKS], int64_t row, int64_t, int64_t out_block) const {
    for (int i = 0; i < ROWS; i++)
      for (int j = 0; j < BLOCKS; j++) store(out + (row + i) * stride + (out_block + j) * LANES, sums[i][j]);
  }
};

// Prefetches the weights of the next blocks bit by bit, a share with each tile: they come from outside the cache.
struct WeightPrefetcher {
  const char* from;
  const char* end;
  int64_t bytes_per_tile;

  WeightPrefetcher(const char* weights, int64_t num_bytes, int64_t num_tiles)
      : from(weights), end(weights + num_bytes), bytes_per_tile((num_bytes / num_tiles + 63) / 64 * 64) {}

  inline void fetch() {
    const char* stop = bytes_per_tile < end - from ? from + bytes_per_tile : end;
    for (; from < stop; from += 64) __builtin_prefetch(from, 0, 2);
  }
};

struct NextWeights {
  const char* weights;
  int64_t num_bytes;
};

// Tiles of ROWS rows each, one below the other, while rows are left; returns the first row that is left.
template <class Tile, int ROWS, int BLOCKS, class Writer>
REGARD_TILE_FUNCTION int64_t tile_rows(const MatmulInput& rows, int64_t row, int64_t num_rows,
                                       const PackedLinear& linear, int64_t block, int64_t out_block,
                                       const Writer& writer, WeightPrefetcher& prefetcher) {
  for (; row + ROWS <= num_rows; row += ROWS) {
    prefetcher.fetch();
    typename Tile::Sums sums[ROWS][BLOCKS];
    Tile::template accumulate<ROWS, BLOCKS>(rows, row, linear, block, sums);
    REGARD_TILE_BARRIER;
    writer.write(sums, row, block, out_block);
  }
  return row;
}

#if defined(__AVX512F__)
template <class Tile, int ROWS, int BLOCKS, class Writer>
inline void tile_blocks(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t block,
                        int64_t out_block, const Writer& writer, const NextWeights& next) {
  WeightPrefetcher prefetcher(next.weights, next.num_bytes, (num_rows + ROWS - 1) / ROWS);
  int64_t row = tile_rows<Tile, ROWS, BLOCKS>(rows, 0, num_rows, linear, block, out_block, writer, prefetcher);
  row = tile_rows<Tile, 4, BLOCKS>(rows, row, num_rows, linear, block, out_block, writer, prefetcher);
  row = tile_rows<Tile, 2, BLOCKS>(rows, row, num_rows, linear, block, out_block, writer, prefetcher);
  tile_rows<Tile, 1, BLOCKS>(rows, row, num_rows, linear, block, out_block, writer, prefetcher);
}
#else
// Calls `tile_rows` with a height known at run time.
template <class Tile, int ROWS, int BLOCKS, class Writer>
inline int64_t tile_rows_of(int64_t height, const MatmulInput& rows, int64_t row, int64_t num_rows,
                            const PackedLinear& linear, int64_t block, int64_t out_block, const Writer& writer,
                            WeightPrefetcher& prefetcher) {
  if constexpr (ROWS > 1) {
    if (height < ROWS)
      return tile_rows_of<Tile, ROWS - 1, BLOCKS>(height, rows, row, num_rows, linear, block, out_block, writer,
                                                  prefetcher);
  }
  return tile_rows<Tile, ROWS, BLOCKS>(rows, row, num_rows, linear, block, out_block, writer, prefetcher);
}

// Tiles of nearly equal height: in a low one every multiply-add would wait for the one before.
template <class Tile, int ROWS, int BLOCKS, class Writer>
inline void tile_blocks(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t block,
                        int64_t out_block, const Writer& writer, const NextWeights& next) {
  const int64_t num_tiles = (num_rows + ROWS - 1) / ROWS;
  const int64_t height = num_rows / num_tiles;
  const int64_t rows_in_taller = num_rows % num_tiles * (height + 1);
  WeightPrefetcher prefetcher(next.weights, next.num_bytes, num_tiles);
  if (rows_in_taller)
    tile_rows_of<Tile, ROWS, BLOCKS>(height + 1, rows, 0, rows_in_taller, linear, block, out_block, writer, prefetcher);
  tile_rows_of<Tile, ROWS, BLOCKS>(height, rows, rows_in_taller, num_rows, linear, block, out_block, writer,
                                   prefetcher);
}
#endif

// All blocks in tiles of at most ROWS × BLOCKS.
template <class Tile, int ROWS, int BLOCKS, class Writer>
inline void tile_all(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t first_block,
                     int64_t num_blocks, const Writer& writer) {
  if (num_rows < 1) return;
  const int64_t block_bytes = (linear.inputs + Tile::GROUP - 1) / Tile::GROUP * 4 * LANES;
  const char* packed = static_cast<const char*>(linear.packed);
  const int64_t end = (linear.outputs + LANES - 1) / LANES;
  for (int64_t out_block = 0; out_block < num_blocks;) {
    const int64_t width = out_block + BLOCKS <= num_blocks ? BLOCKS : 1;
    const int64_t block = first_block + out_block;
    const int64_t next_block = block + width;
    const int64_t next_width = end - next_block < BLOCKS ? end - next_block : BLOCKS;
    const NextWeights next{packed + next_block * block_bytes, next_width * block_bytes};
    if (width == BLOCKS)
      tile_blocks<Tile, ROWS, BLOCKS>(rows, num_rows, linear, block, out_block, writer, next);
    else
      tile_blocks<Tile, ROWS, 1>(rows, num_rows, linear, block, out_block, writer, next);
    out_block += width;
  }
}

// Chooses the shape of the tiles.
template <class Tile, class Writer>
inline void matmul_tiles(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t first_block,
                         int64_t num_blocks, const Writer& writer) {
#if defined(REGARD_HAS_AMX)
  if constexpr (Tile::GROUP > 1) {
    if (suits_amx<Tile>(num_rows)) return amx_matmul<Tile>(rows, num_rows, linear, first_block, num_blocks, writer);
  }
#endif
#if defined(__AVX512F__)
  constexpr int64_t MANY_ROWS = 64;  // tall tiles rather than wide ones: weights come from farther away than rows
  if (num_rows >= MANY_ROWS) return tile_all<Tile, 8, 3>(rows, num_rows, linear, first_block, num_blocks, writer);
  tile_all<Tile, 4, 4>(rows, num_rows, linear, first_block, num_blocks, writer);
#else
  if constexpr (Tile::MAX_ROWS > 3) {
    if (num_rows == 1) return tile_all<Tile, 1, 4>(rows, num_rows, linear, first_block, num_blocks, writer);
    if (num_rows <= 3) return tile_all<Tile, 3, 2>(rows, num_rows, linear, first_block, num_blocks, writer);
  }
  tile_all<Tile, Tile::MAX_ROWS, 1>(rows, num_rows, linear, first_block, num_blocks, writer);
#endif
}

template <class Writer>
inline void matmul_to(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t first_block,
                      int64_t num_blocks, const Writer& writer) {
  if (linear.precision == INT8) return matmul_tiles<Int8Tile>(rows, num_rows, linear, first_block, num_blocks, writer);
  if (linear.precision == BF16) return matmul_tiles<Bf16Tile>(rows, num_rows, linear, first_block, num_blocks, writer);
  matmul_tiles<FloatTile>(rows, num_rows, linear, first_block, num_blocks, writer);
}

void matmul(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t first_block,
            int64_t num_blocks, float* out, int64_t out_stride, bool should_add) {
  if (should_add) {
    const OutputWriter<true> writer{linear, rows.scales, rows.offsets, out, out_stride};
    matmul_to(rows, num_rows, linear, first_block, num_blocks, writer);
  } else {
    const OutputWriter<false> writer{linear, rows.scales, rows.offsets, out, out_stride};
    matmul_to(rows, num_rows, linear, first_block, num_blocks, writer);
  }
}

void integer_sums(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int32_t* out,
                  int64_t out_stride) {
  const int64_t num_blocks = (linear.outputs + LANES - 1) / LANES;
  matmul_tiles<Int8Tile>(rows, num_rows, linear, 0, num_blocks, SumWriter{out, out_stride});
}

}  // namespace
}  // namespace regard
