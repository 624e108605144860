// Products by tile registers: up to four tiles of sums, 16 rows and 16 outputs each, grow over the depth together.
//
// All rows of a product are dealt out to tiles of one height. The last tile may begin among the rows of the one before
// it: these are computed twice, to the same bits, and so the sizes of tiles are set once, and nothing is read beyond the
// rows. Packed weights are tiles as they lie. What is left of the depth is copied beside zeros, for every row alike.
#pragma once
#include <cstring>
#include <type_traits>

#include "tile_unit.h"
#include "vector.h"

#if defined(REGARD_TILE_UNIT)

namespace regard {
namespace {

// Fewer rows of int8 are multiplied as vectors: their weights take longer to come than to use. A guess, not yet measured.
// bf16 is always multiplied by tiles: vectors would round otherwise.
constexpr int LEAST_BYTE_ROWS = 8;
constexpr size_t WEIGHT_TILE = static_cast<size_t>(TILE_ROWS) * TILE_BYTES;
constexpr int ROW_TILE = 4;  // sums are tiles 0 to 3, rows 4 and, of two heights, 5, weights what is left

// Which tile has the weights of block j.
constexpr int weight_tile(int wide, int j) { return wide > 2 ? 5 + j % 3 : 6 + j; }

inline void set_tiles(int height, bool two_heights) {
  TileSizes sizes;
  for (int i = 0; i < TILES; i++) {
    sizes.bytes[i] = TILE_BYTES;
    sizes.rows[i] = static_cast<uint8_t>(i <= ROW_TILE || (i == 5 && two_heights) ? height : TILE_ROWS);
  }
  set_tiles(sizes);
}

// Where the rows of a tile begin, how far below them those of a second tile do, and the bytes of a row.
struct RowTiles {
  const char* from;
  size_t below, stride;
};

template <class Sum, int SUMS, int A, int B>
inline void multiply_tiles() {
  if constexpr (std::is_same_v<Sum, int32_t>)
    multiply_bytes<SUMS, A, B>();
  else
    multiply_halves<SUMS, A, B>();
}

// One step of the depth, block by block; their weights are `apart` bytes from each other.
template <class Sum, int HIGH, int WIDE, int BLOCK = 0>
inline void multiply_blocks(const char* weights, size_t apart) {
  constexpr int B = weight_tile(WIDE, BLOCK);
  load_tile<B>(weights, TILE_BYTES);
  multiply_tiles<Sum, BLOCK, ROW_TILE, B>();
  if constexpr (HIGH > 1) multiply_tiles<Sum, WIDE + BLOCK, ROW_TILE + 1, B>();
  if constexpr (BLOCK + 1 < WIDE) multiply_blocks<Sum, HIGH, WIDE, BLOCK + 1>(weights + apart, apart);
}

template <class Sum, int HIGH, int WIDE>
inline void multiply_step(const RowTiles& rows, const char* weights, size_t apart) {
  load_tile<ROW_TILE>(rows.from, rows.stride);
  if constexpr (HIGH > 1) load_tile<ROW_TILE + 1>(rows.from + rows.below, rows.stride);
  multiply_blocks<Sum, HIGH, WIDE>(weights, apart);
}

// Bytes begin with their corrections, the same in every row.
template <class Sum, int HIGH, int WIDE, int AT = 0>
inline void begin_sums(const int32_t* corrections) {
  if constexpr (std::is_same_v<Sum, int32_t>)
    load_tile<AT>(corrections + AT % WIDE * LANES, 0);
  else
    clear_tile<AT>();
  if constexpr (AT + 1 < HIGH * WIDE) begin_sums<Sum, HIGH, WIDE, AT + 1>(corrections);
}

template <class Sum, int HIGH, int WIDE, int AT = 0>
inline void store_sums(Sum* out) {  // [HIGH][16][WIDE][16]
  store_tile<AT>(out + (AT / WIDE * TILE_ROWS * WIDE + AT % WIDE) * LANES, WIDE * TILE_BYTES);
  if constexpr (AT + 1 < HIGH * WIDE) store_sums<Sum, HIGH, WIDE, AT + 1>(out);
}

// The weights of a few blocks, and what their products need of those that come next.
struct Strip {
  const char* weights;
  size_t apart;               // bytes of a block
  size_t depth;               // bytes of a row
  const int32_t* corrections;
  const char* rest;           // the end of the depth, as whole tiles
  const char* next;
  size_t lines;               // of what comes next, asked for with each step
};

// Whole steps; a function of its own, so that all it needs stays in registers. What comes next is asked for meanwhile.
template <class Sum, int HIGH, int WIDE>
__attribute__((noinline)) void multiply_steps(const RowTiles& given, const Strip& strip, const char* coming) {
  RowTiles rows = given;
  const char* weights = strip.weights;
  const size_t apart = strip.apart, lines = strip.lines;
  for (size_t step = strip.depth / TILE_BYTES; step > 0; step--, rows.from += TILE_BYTES, weights += WEIGHT_TILE) {
    multiply_step<Sum, HIGH, WIDE>(rows, weights, apart);
    for (size_t line = 0; line < lines; line++, coming += 64) __builtin_prefetch(coming, 0, 2);
  }
}

template <class Sum, int HIGH, int WIDE>
inline void sum_tiles(RowTiles rows, int height, const Strip& strip, const char* coming, Sum* out) {
  const size_t left = strip.depth % TILE_BYTES;
  begin_sums<Sum, HIGH, WIDE>(strip.corrections);
  multiply_steps<Sum, HIGH, WIDE>(rows, strip, coming);
  if (left) {
    alignas(64) char room[HIGH][TILE_ROWS][TILE_BYTES] = {};
    rows.from += strip.depth - left;
    for (int i = 0; i < HIGH; i++)
      for (int row = 0; row < height; row++)
        std::memcpy(room[i][row], rows.from + static_cast<size_t>(i) * rows.below + static_cast<size_t>(row) * rows.stride,
                    left);
    multiply_step<Sum, HIGH, WIDE>({room[0][0], sizeof room[0], TILE_BYTES}, strip.rest, WEIGHT_TILE);
  }
  store_sums<Sum, HIGH, WIDE>(out);
}

template <int ROWS, int WIDE, class Sum, class Target>
inline void put_some(const Sum* sums, int row, int block, int at, const Target& target) {
  decltype(load(sums)) some[ROWS][WIDE];
  REGARD_UNROLL for (int i = 0; i < ROWS; i++)
    REGARD_UNROLL for (int j = 0; j < WIDE; j++) some[i][j] = load(sums + (i * WIDE + j) * LANES);
  target.put(some, row, block, at);
}

template <int WIDE, class Sum, class Target>
inline void put_rows(const Sum* sums, int row, int rows, int block, int at, const Target& target) {
  int i = 0;
  for (; i + 4 <= rows; i += 4) put_some<4, WIDE>(sums + i * WIDE * LANES, row + i, block, at, target);
  for (; i < rows; i++) put_some<1, WIDE>(sums + i * WIDE * LANES, row + i, block, at, target);
}

// How the rows of a product are dealt out.
struct RowShares {
  const char* values;
  size_t stride;  // in bytes
  int count, parts, height;

  int first(int part) const { return part * height < count - height ? part * height : count - height; }
};

// HIGH parts of the rows, from this one on.
template <class Sum, int HIGH, int WIDE, class Target>
inline void multiply_parts(const RowShares& shares, int part, const Strip& strip, int block, int at, const Target& target) {
  alignas(64) Sum sums[HIGH * TILE_ROWS * WIDE * LANES];
  const size_t row = static_cast<size_t>(shares.first(part));
  const size_t below = static_cast<size_t>(shares.first(part + HIGH - 1)) - row;
  const RowTiles rows{shares.values + row * shares.stride, below * shares.stride, shares.stride};
  const size_t steps = strip.depth / TILE_BYTES;
  const char* coming = strip.next + static_cast<size_t>(part / 2) * steps * strip.lines * 64;
  sum_tiles<Sum, HIGH, WIDE>(rows, shares.height, strip, coming, sums);
  for (int i = 0; i < HIGH; i++) {
    const int begin = (part + i) * shares.height, known = begin - shares.first(part + i);
    put_rows<WIDE>(sums + (i * TILE_ROWS + known) * WIDE * LANES, begin, shares.height - known, block, at, target);
  }
}

template <class Sum, int HIGH, int WIDE, class Target>
inline void multiply_strip(const RowShares& shares, Strip strip, int block, int at, const Target& target) {
  alignas(64) char rest[WIDE * WEIGHT_TILE];
  const size_t left = strip.depth % TILE_BYTES;
  if (left) {
    std::memset(rest, 0, sizeof rest);
    for (int j = 0; j < WIDE; j++)
      std::memcpy(rest + static_cast<size_t>(j) * WEIGHT_TILE,
                  strip.weights + static_cast<size_t>(j) * strip.apart + (strip.depth - left) * LANES, left * LANES);
    strip.rest = rest;
  }
  int part = 0;
  for (; part + HIGH <= shares.parts; part += HIGH) multiply_parts<Sum, HIGH, WIDE>(shares, part, strip, block, at, target);
  if (part < shares.parts) multiply_parts<Sum, 1, WIDE>(shares, part, strip, block, at, target);
}

template <class Tile>
inline bool suits_tiles(int count) {
  return Tile::GROUP == 2 || (Tile::GROUP == 4 && count >= LEAST_BYTE_ROWS);
}

// HIGH · WIDE are all tiles of sums; fewer blocks at the end of the outputs.
template <class Tile, int HIGH, int WIDE, class Target>
inline void multiply_shares(const RowShares& shares, const Matrix& matrix, int first, int blocks, const Target& target) {
  using Sum = std::conditional_t<Tile::GROUP == 4, int32_t, float>;
  const size_t depth = (static_cast<size_t>(matrix.inputs) + Tile::GROUP - 1) / Tile::GROUP * 4, bytes = depth * LANES;
  const size_t steps = static_cast<size_t>((shares.parts + HIGH - 1) / HIGH) * (depth / TILE_BYTES);
  const int end = (matrix.outputs + LANES - 1) / LANES;
  set_tiles(shares.height, HIGH > 1);
  for (int at = 0; at < blocks;) {
    const int some = at + WIDE <= blocks ? WIDE : at + 2 <= blocks ? 2 : 1, block = first + at, next = block + some;
    const size_t coming = static_cast<size_t>(end - next < WIDE ? end - next : WIDE) * bytes;
    const char* weights = static_cast<const char*>(matrix.packed) + static_cast<size_t>(block) * bytes;
    const Strip strip{weights, bytes, depth, matrix.corrections ? matrix.corrections + block * LANES : nullptr, nullptr,
                      weights + static_cast<size_t>(some) * bytes, steps ? (coming / 64 + steps - 1) / steps : 0};
    if (some == WIDE)
      multiply_strip<Sum, HIGH, WIDE>(shares, strip, block, at, target);
    else if (some == 2)
      multiply_strip<Sum, HIGH, 2>(shares, strip, block, at, target);
    else
      multiply_strip<Sum, HIGH, 1>(shares, strip, block, at, target);
    at += some;
  }
  release_tiles();
}

template <class Tile, class Target>
inline void multiply_by_tiles(const Operand& rows, int count, const Matrix& matrix, int first, int blocks,
                              const Target& target) {
  if (count < 1) return;
  const int parts = (count + TILE_ROWS - 1) / TILE_ROWS;
  const RowShares shares{static_cast<const char*>(rows.values), rows.stride * (4 / Tile::GROUP), count, parts,
                         (count + parts - 1) / parts};
  // a tile waits for its own sums: there should be four
  if (parts == 1) return multiply_shares<Tile, 1, 4>(shares, matrix, first, blocks, target);
  multiply_shares<Tile, 2, 2>(shares, matrix, first, blocks, target);
}

}  // namespace
}  // namespace regard

#endif
