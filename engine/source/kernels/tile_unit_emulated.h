// The instructions of tile_unit.h in plain C++, for tests on processors that lack them.
//
// They read and write exactly the rows and bytes of a tile, and stop where the processor would.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace regard {
namespace {

struct EmulatedTile {
  int rows, bytes;
  uint8_t data[TILE_ROWS][TILE_BYTES];

  template <class Number>
  Number at(int row, int column) const {
    Number value;
    std::memcpy(&value, data[row] + static_cast<size_t>(column) * sizeof value, sizeof value);
    return value;
  }
  template <class Number>
  void put(int row, int column, Number value) {
    std::memcpy(data[row] + static_cast<size_t>(column) * sizeof value, &value, sizeof value);
  }
};

thread_local bool tiles_are_set = false;
thread_local EmulatedTile emulated_tiles[TILES];

inline void demand(bool allowed, const char* what) {
  if (allowed) return;
  std::fprintf(stderr, "tile unit: %s\n", what);
  std::abort();
}

inline void set_tiles(const TileSizes& sizes) {
  demand(sizes.palette == 1 && sizes.start_row == 0, "an unknown palette, or a start inside a tile");
  for (uint8_t byte : sizes.reserved) demand(byte == 0, "a reserved byte is not 0");
  for (int i = 0; i < 16; i++) {
    demand(sizes.rows[i] <= TILE_ROWS && sizes.bytes[i] <= TILE_BYTES, "a tile is too large");
    demand((sizes.rows[i] == 0) == (sizes.bytes[i] == 0), "a tile has rows or bytes alone");
    demand(i < TILES || sizes.rows[i] == 0, "there is no such tile");
  }
  for (int i = 0; i < TILES; i++) emulated_tiles[i] = {sizes.rows[i], sizes.bytes[i], {}};
  tiles_are_set = true;
}

inline void release_tiles() { tiles_are_set = false; }

inline EmulatedTile& tile_in_use(int number) {
  demand(tiles_are_set, "tiles have no sizes");
  demand(number >= 0 && number < TILES && emulated_tiles[number].rows > 0, "this tile has no size");
  return emulated_tiles[number];
}

template <int TILE>
inline void clear_tile() {
  std::memset(tile_in_use(TILE).data, 0, sizeof emulated_tiles[TILE].data);
}

template <int TILE>
inline void load_tile(const void* from, size_t stride) {
  EmulatedTile& tile = tile_in_use(TILE);
  clear_tile<TILE>();
  for (int row = 0; row < tile.rows; row++)
    std::memcpy(tile.data[row], static_cast<const char*>(from) + static_cast<size_t>(row) * stride,
                static_cast<size_t>(tile.bytes));
}

template <int TILE>
inline void store_tile(void* to, size_t stride) {
  const EmulatedTile& tile = tile_in_use(TILE);
  for (int row = 0; row < tile.rows; row++)
    std::memcpy(static_cast<char*>(to) + static_cast<size_t>(row) * stride, tile.data[row], static_cast<size_t>(tile.bytes));
}

inline void demand_fitting(const EmulatedTile& sums, const EmulatedTile& a, const EmulatedTile& b) {
  demand(&sums != &a && &sums != &b && &a != &b, "a product needs three tiles");
  demand(sums.bytes % 4 == 0 && a.bytes % 4 == 0, "bytes that are no whole numbers");
  demand(sums.rows == a.rows && sums.bytes == b.bytes && a.bytes == 4 * b.rows, "tiles do not fit each other");
}

inline void emulate_bytes(EmulatedTile& sums, const EmulatedTile& a, const EmulatedTile& b) {
  demand_fitting(sums, a, b);
  for (int row = 0; row < sums.rows; row++)
    for (int column = 0; column < sums.bytes / 4; column++) {
      int32_t sum = sums.at<int32_t>(row, column);
      for (int k = 0; k < a.bytes; k++) sum += a.data[row][k] * static_cast<int8_t>(b.data[k / 4][4 * column + k % 4]);
      sums.put(row, column, sum);
    }
}

// Numbers too small for their full precision are 0, those that are read and those that are made.
inline float without_subnormal(float value) { return __builtin_fabsf(value) < 1.17549435e-38f ? value * 0.0f : value; }

struct EmulatedHalves {
  float at[TILE_ROWS][TILE_BYTES / 2];

  explicit EmulatedHalves(const EmulatedTile& tile) : at() {
    for (int row = 0; row < tile.rows; row++)
      for (int column = 0; column < tile.bytes / 2; column++) {
        const uint32_t bits = static_cast<uint32_t>(tile.at<uint16_t>(row, column)) << 16;
        std::memcpy(&at[row][column], &bits, sizeof bits);
        at[row][column] = without_subnormal(at[row][column]);
      }
  }
};

// Even and odd numbers are summed apart, then together, then to what was there. A product of two bf16 is exact.
inline void emulate_halves(EmulatedTile& sums, const EmulatedTile& a, const EmulatedTile& b) {
  demand_fitting(sums, a, b);
  const EmulatedHalves left(a), right(b);
  for (int row = 0; row < sums.rows; row++)
    for (int column = 0; column < sums.bytes / 4; column++) {
      float even = 0, odd = 0;
      for (int k = 0; k < b.rows; k++) {
        even = without_subnormal(even + left.at[row][2 * k] * right.at[k][2 * column]);
        odd = without_subnormal(odd + left.at[row][2 * k + 1] * right.at[k][2 * column + 1]);
      }
      const float before = without_subnormal(sums.at<float>(row, column));
      sums.put(row, column, without_subnormal(before + without_subnormal(even + odd)));
    }
}

template <int SUMS, int A, int B>
inline void multiply_bytes() {
  emulate_bytes(tile_in_use(SUMS), tile_in_use(A), tile_in_use(B));
}

template <int SUMS, int A, int B>
inline void multiply_halves() {
  emulate_halves(tile_in_use(SUMS), tile_in_use(A), tile_in_use(B));
}

}  // namespace
}  // namespace regard
