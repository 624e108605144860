// Matmul with AMX: up to four tiles of sums, 16 rows × 16 outputs each, accumulate over the inputs together.
//
// The rows are divided into row tiles of one height. The last may overlap the one before it: the shared rows are
// computed twice, to the same bits, so that the tiles are configured once and nothing is read beyond the rows. Packed
// weights have the layout of tiles. What is left of the inputs is copied into zeroed tiles, for all rows alike.
#pragma once
#include <cstring>
#include <type_traits>

#include "amx_tiles.h"
#include "simd.h"

#if defined(REGARD_HAS_AMX)

namespace regard {
namespace {

// Fewer int8 rows are multiplied as vectors: loading their weights takes longer than using them. A guess, not yet
// measured. bf16 always uses tiles: vectors would round differently.
constexpr int64_t MIN_INT8_ROWS = 8;
constexpr int64_t WEIGHT_TILE_BYTES = TILE_ROWS * TILE_BYTES;
// Tiles 0 to 3 hold sums, 4 (and 5, for the second of two row tiles) rows, the others weights.
constexpr int ROW_TILE = 4;

// Tile for the weights of block `block` of BLOCKS.
constexpr int weight_tile(int num_blocks, int block) { return num_blocks > 2 ? 5 + block % 3 : 6 + block; }

inline void configure_tiles(int64_t height, bool has_two_row_tiles) {
  TileConfig config;
  for (int i = 0; i < NUM_TILES; i++) {
    const bool has_rows = i <= ROW_TILE || (i == ROW_TILE + 1 && has_two_row_tiles);
    config.bytes[i] = TILE_BYTES;
    config.rows[i] = static_cast<uint8_t>(has_rows ? height : TILE_ROWS);
  }
  load_tile_config(config);
}

// Inputs of one or two row tiles, in bytes.
struct RowTiles {
  const char* first;
  int64_t second_offset;
  int64_t stride;
};

template <class Sum, int SUMS, int A, int B>
inline void multiply_tiles() {
  if constexpr (std::is_same_v<Sum, int32_t>)
    multiply_int8_tiles<SUMS, A, B>();
  else
    multiply_bf16_tiles<SUMS, A, B>();
}

// One step of 64 bytes of inputs, block by block.
template <class Sum, int HEIGHT, int BLOCKS, int BLOCK = 0>
inline void multiply_blocks(const char* weights, int64_t block_bytes) {
  constexpr int B = weight_tile(BLOCKS, BLOCK);
  load_tile<B>(weights, TILE_BYTES);
  multiply_tiles<Sum, BLOCK, ROW_TILE, B>();
  if constexpr (HEIGHT > 1) multiply_tiles<Sum, BLOCKS + BLOCK, ROW_TILE + 1, B>();
  if constexpr (BLOCK + 1 < BLOCKS) multiply_blocks<Sum, HEIGHT, BLOCKS, BLOCK + 1>(weights + block_bytes, block_bytes);
}

template <class Sum, int HEIGHT, int BLOCKS>
inline void multiply_step(const RowTiles& rows, const char* weights, int64_t block_bytes) {
  load_tile<ROW_TILE>(rows.first, rows.stride);
  if constexpr (HEIGHT > 1) load_tile<ROW_TILE + 1>(rows.first + rows.second_offset, rows.stride);
  multiply_blocks<Sum, HEIGHT, BLOCKS>(weights, block_bytes);
}

// int8 sums begin with the corrections, the same in every row.
template <class Sum, int HEIGHT, int BLOCKS, int TILE = 0>
inline void initialize_sums(const int32_t* corrections) {
  if constexpr (std::is_same_v<Sum, int32_t>)
    load_tile<TILE>(corrections + TILE % BLOCKS * LANES, 0);
  else
    zero_tile<TILE>();
  if constexpr (TILE + 1 < HEIGHT * BLOCKS) initialize_sums<Sum, HEIGHT, BLOCKS, TILE + 1>(corrections);
}

template <class Sum, int HEIGHT, int BLOCKS, int TILE = 0>
inline void store_sums(Sum* out) {  // [HEIGHT, 16, BLOCKS, 16]
  store_tile<TILE>(out + (TILE / BLOCKS * TILE_ROWS * BLOCKS + TILE % BLOCKS) * LANES, BLOCKS * TILE_BYTES);
  if constexpr (TILE + 1 < HEIGHT * BLOCKS) store_sums<Sum, HEIGHT, BLOCKS, TILE + 1>(out);
}

// Weights of a few neighbouring blocks, and those to prefetch meanwhile.
struct WeightStrip {
  const char* weights;
  int64_t block_bytes;
  int64_t row_bytes;  // of one row's inputs
  const int32_t* corrections;
  const char* tail;  // last, incomplete step, as whole tiles
  const char* next;
  int64_t lines_per_step;  // cache lines to prefetch
};

// All complete steps; not inlined, so that everything stays in registers.
template <class Sum, int HEIGHT, int BLOCKS>
__attribute__((noinline)) void multiply_steps(const RowTiles& row_tiles, const WeightStrip& strip,
                                              const char* prefetched) {
  RowTiles rows = row_tiles;
  const char* weights = strip.weights;
  const int64_t block_bytes = strip.block_bytes;
  const int64_t lines_per_step = strip.lines_per_step;
  for (int64_t step = strip.row_bytes / TILE_BYTES; step > 0; step--) {
    multiply_step<Sum, HEIGHT, BLOCKS>(rows, weights, block_bytes);
    for (int64_t line = 0; line < lines_per_step; line++, prefetched += 64) __builtin_prefetch(prefetched, 0, 2);
    rows.first += TILE_BYTES;
    weights += WEIGHT_TILE_BYTES;
  }
}

template <class Sum, int HEIGHT, int BLOCKS>
inline void sum_tiles(RowTiles rows, int64_t height, const WeightStrip& strip, const char* prefetched, Sum* out) {
  const int64_t tail_bytes = strip.row_bytes % TILE_BYTES;
  initialize_sums<Sum, HEIGHT, BLOCKS>(strip.corrections);
  multiply_steps<Sum, HEIGHT, BLOCKS>(rows, strip, prefetched);
  if (tail_bytes) {
    alignas(64) char padded[HEIGHT][TILE_ROWS][TILE_BYTES] = {};
    rows.first += strip.row_bytes - tail_bytes;
    for (int i = 0; i < HEIGHT; i++)
      for (int64_t row = 0; row < height; row++)
        std::memcpy(padded[i][row], rows.first + i * rows.second_offset + row * rows.stride, tail_bytes);
    multiply_step<Sum, HEIGHT, BLOCKS>({padded[0][0], sizeof padded[0], TILE_BYTES}, strip.tail, WEIGHT_TILE_BYTES);
  }
  store_sums<Sum, HEIGHT, BLOCKS>(out);
}

template <int ROWS, int BLOCKS, class Sum, class Writer>
inline void write_rows(const Sum* sums, int64_t row, int64_t block, int64_t out_block, const Writer& writer) {
  decltype(load(sums)) vectors[ROWS][BLOCKS];
  REGARD_UNROLL for (int i = 0; i < ROWS; i++)
    REGARD_UNROLL for (int j = 0; j < BLOCKS; j++) vectors[i][j] = load(sums + (i * BLOCKS + j) * LANES);
  writer.write(vectors, row, block, out_block);
}

template <int BLOCKS, class Sum, class Writer>
inline void write_tile(const Sum* sums, int64_t row, int64_t num_rows, int64_t block, int64_t out_block,
                       const Writer& writer) {
  int64_t i = 0;
  for (; i + 4 <= num_rows; i += 4) write_rows<4, BLOCKS>(sums + i * BLOCKS * LANES, row + i, block, out_block, writer);
  for (; i < num_rows; i++) write_rows<1, BLOCKS>(sums + i * BLOCKS * LANES, row + i, block, out_block, writer);
}

// Division of the rows into row tiles.
struct RowSplit {
  const char* values;
  int64_t stride;  // bytes
  int64_t num_rows;
  int64_t num_tiles;
  int64_t height;

  int64_t first_row(int64_t tile) const {
    return tile * height < num_rows - height ? tile * height : num_rows - height;
  }
};

// HEIGHT row tiles from `tile` on.
template <class Sum, int HEIGHT, int BLOCKS, class Writer>
inline void multiply_row_tiles(const RowSplit& split, int64_t tile, const WeightStrip& strip, int64_t block,
                               int64_t out_block, const Writer& writer) {
  alignas(64) Sum sums[HEIGHT * TILE_ROWS * BLOCKS * LANES];
  const int64_t row = split.first_row(tile);
  const int64_t second_row = split.first_row(tile + HEIGHT - 1);
  const RowTiles rows{
      .first = split.values + row * split.stride,
      .second_offset = (second_row - row) * split.stride,
      .stride = split.stride,
  };
  const int64_t num_steps = strip.row_bytes / TILE_BYTES;
  const char* prefetched = strip.next + tile / 2 * num_steps * strip.lines_per_step * 64;
  sum_tiles<Sum, HEIGHT, BLOCKS>(rows, split.height, strip, prefetched, sums);
  for (int i = 0; i < HEIGHT; i++) {
    const int64_t begin = (tile + i) * split.height;
    const int64_t num_overlapping = begin - split.first_row(tile + i);
    const Sum* tile_sums = sums + (i * TILE_ROWS + num_overlapping) * BLOCKS * LANES;
    write_tile<BLOCKS>(tile_sums, begin, split.height - num_overlapping, block, out_block, writer);
  }
}

template <class Sum, int HEIGHT, int BLOCKS, class Writer>
inline void multiply_strip(const RowSplit& split, WeightStrip strip, int64_t block, int64_t out_block,
                           const Writer& writer) {
  alignas(64) char tail[BLOCKS * WEIGHT_TILE_BYTES];
  const int64_t tail_bytes = strip.row_bytes % TILE_BYTES;
  if (tail_bytes) {
    const int64_t tail_offset = (strip.row_bytes - tail_bytes) * LANES;
    std::memset(tail, 0, sizeof tail);
    for (int j = 0; j < BLOCKS; j++)
      std::memcpy(tail + j * WEIGHT_TILE_BYTES, strip.weights + j * strip.block_bytes + tail_offset,
                  tail_bytes * LANES);
    strip.tail = tail;
  }
  int64_t tile = 0;
  for (; tile + HEIGHT <= split.num_tiles; tile += HEIGHT)
    multiply_row_tiles<Sum, HEIGHT, BLOCKS>(split, tile, strip, block, out_block, writer);
  if (tile < split.num_tiles) multiply_row_tiles<Sum, 1, BLOCKS>(split, tile, strip, block, out_block, writer);
}

template <class Tile>
inline bool suits_amx(int64_t num_rows) {
  return Tile::GROUP == 2 || (Tile::GROUP == 4 && num_rows >= MIN_INT8_ROWS);
}

// HEIGHT · BLOCKS tiles of sums; fewer blocks at the end of the outputs.
template <class Tile, int HEIGHT, int BLOCKS, class Writer>
inline void multiply_all(const RowSplit& split, const PackedLinear& linear, int64_t first_block, int64_t num_blocks,
                         const Writer& writer) {
  using Sum = std::conditional_t<Tile::GROUP == 4, int32_t, float>;
  const int64_t row_bytes = (linear.inputs + Tile::GROUP - 1) / Tile::GROUP * 4;
  const int64_t block_bytes = row_bytes * LANES;
  const int64_t steps_per_strip = (split.num_tiles + HEIGHT - 1) / HEIGHT * (row_bytes / TILE_BYTES);
  const int64_t end = (linear.outputs + LANES - 1) / LANES;
  configure_tiles(split.height, HEIGHT > 1);
  for (int64_t out_block = 0; out_block < num_blocks;) {
    const int64_t blocks_left = num_blocks - out_block;
    const int64_t width = blocks_left >= BLOCKS ? BLOCKS : blocks_left >= 2 ? 2 : 1;
    const int64_t block = first_block + out_block;
    const int64_t next_block = block + width;
    const int64_t next_bytes = (end - next_block < BLOCKS ? end - next_block : BLOCKS) * block_bytes;
    const char* weights = static_cast<const char*>(linear.packed) + block * block_bytes;
    const WeightStrip strip{
        .weights = weights,
        .block_bytes = block_bytes,
        .row_bytes = row_bytes,
        .corrections = linear.corrections ? linear.corrections + block * LANES : nullptr,
        .tail = nullptr,
        .next = weights + width * block_bytes,
        .lines_per_step = steps_per_strip ? (next_bytes / 64 + steps_per_strip - 1) / steps_per_strip : 0,
    };
    if (width == BLOCKS)
      multiply_strip<Sum, HEIGHT, BLOCKS>(split, strip, block, out_block, writer);
    else if (width == 2)
      multiply_strip<Sum, HEIGHT, 2>(split, strip, block, out_block, writer);
    else
      multiply_strip<Sum, HEIGHT, 1>(split, strip, block, out_block, writer);
    out_block += width;
  }
  release_tiles();
}

template <class Tile, class Writer>
inline void amx_matmul(const MatmulInput& rows, int64_t num_rows, const PackedLinear& linear, int64_t first_block,
                       int64_t num_blocks, const Writer& writer) {
  if (num_rows < 1) return;
  const int64_t num_tiles = (num_rows + TILE_ROWS - 1) / TILE_ROWS;
  const RowSplit split{
      .values = static_cast<const char*>(rows.values),
      .stride = rows.stride * (4 / Tile::GROUP),
      .num_rows = num_rows,
      .num_tiles = num_tiles,
      .height = (num_rows + num_tiles - 1) / num_tiles,
  };
  // a multiplication waits for the previous one of the same sums: four tiles of sums hide the latency
  if (num_tiles == 1) return multiply_all<Tile, 1, 4>(split, linear, first_block, num_blocks, writer);
  multiply_all<Tile, 2, 2>(split, linear, first_block, num_blocks, writer);
}

}  // namespace
}  // namespace regard

#endif
