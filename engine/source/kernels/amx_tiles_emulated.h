// The instructions of amx_tiles.h in plain C++, for tests on CPUs without AMX.
//
// They access exactly the rows and bytes of a tile, and abort where the CPU would fault.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace regard {
namespace {

struct EmulatedTile {
  int rows;
  int bytes;
  uint8_t data[TILE_ROWS][TILE_BYTES];

  template <class Value>
  Value get(int row, int column) const {
    Value value;
    std::memcpy(&value, data[row] + column * sizeof value, sizeof value);
    return value;
  }
  template <class Value>
  void set(int row, int column, Value value) {
    std::memcpy(data[row] + column * sizeof value, &value, sizeof value);
  }
};

thread_local bool has_tile_config = false;
thread_local EmulatedTile emulated_tiles[NUM_TILES];

inline void require(bool condition, const char* fault) {
  if (condition) return;
  std::fprintf(stderr, "emulated AMX: %s\n", fault);
  std::abort();
}

inline void load_tile_config(const TileConfig& config) {
  require(config.palette == 1 && config.start_row == 0, "unknown palette, or a start row");
  for (uint8_t byte : config.reserved) require(byte == 0, "a reserved byte is not 0");
  for (int i = 0; i < 16; i++) {
    require(config.rows[i] <= TILE_ROWS && config.bytes[i] <= TILE_BYTES, "a tile is too large");
    require((config.rows[i] == 0) == (config.bytes[i] == 0), "a tile has rows without bytes, or bytes without rows");
    require(i < NUM_TILES || config.rows[i] == 0, "no such tile");
  }
  for (int i = 0; i < NUM_TILES; i++) emulated_tiles[i] = {config.rows[i], config.bytes[i], {}};
  has_tile_config = true;
}

inline void release_tiles() { has_tile_config = false; }

inline EmulatedTile& configured_tile(int index) {
  require(has_tile_config, "no tile configuration");
  require(index >= 0 && index < NUM_TILES && emulated_tiles[index].rows > 0, "this tile is not configured");
  return emulated_tiles[index];
}

template <int TILE>
inline void zero_tile() {
  std::memset(configured_tile(TILE).data, 0, sizeof emulated_tiles[TILE].data);
}

template <int TILE>
inline void load_tile(const void* from, int64_t stride) {
  EmulatedTile& tile = configured_tile(TILE);
  zero_tile<TILE>();
  for (int row = 0; row < tile.rows; row++)
    std::memcpy(tile.data[row], static_cast<const char*>(from) + row * stride, tile.bytes);
}

template <int TILE>
inline void store_tile(void* to, int64_t stride) {
  const EmulatedTile& tile = configured_tile(TILE);
  for (int row = 0; row < tile.rows; row++)
    std::memcpy(static_cast<char*>(to) + row * stride, tile.data[row], tile.bytes);
}

inline void require_matching(const EmulatedTile& sums, const EmulatedTile& a, const EmulatedTile& b) {
  require(&sums != &a && &sums != &b && &a != &b, "a product needs three tiles");
  require(sums.bytes % 4 == 0 && a.bytes % 4 == 0, "bytes are no multiple of 4");
  require(sums.rows == a.rows && sums.bytes == b.bytes && a.bytes == 4 * b.rows, "shapes of the tiles do not match");
}

inline void emulate_int8(EmulatedTile& sums, const EmulatedTile& a, const EmulatedTile& b) {
  require_matching(sums, a, b);
  for (int row = 0; row < sums.rows; row++)
    for (int column = 0; column < sums.bytes / 4; column++) {
      uint32_t sum = sums.get<uint32_t>(row, column);  // wraps
      for (int k = 0; k < a.bytes; k++) {
        const int32_t product = a.data[row][k] * static_cast<int8_t>(b.data[k / 4][4 * column + k % 4]);
        sum += static_cast<uint32_t>(product);
      }
      sums.set(row, column, sum);
    }
}

// The unit treats subnormal inputs and results as 0.
inline float flush_subnormal(float value) { return __builtin_fabsf(value) < 1.17549435e-38f ? value * 0.0f : value; }

struct WidenedTile {
  float values[TILE_ROWS][TILE_BYTES / 2];

  explicit WidenedTile(const EmulatedTile& tile) : values() {
    for (int row = 0; row < tile.rows; row++)
      for (int column = 0; column < tile.bytes / 2; column++) {
        const uint32_t bits = static_cast<uint32_t>(tile.get<uint16_t>(row, column)) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        values[row][column] = flush_subnormal(value);
      }
  }
};

// Sums even and odd products apart, then both, then the previous sum. A product of two bf16 is exact in float32.
inline void emulate_bf16(EmulatedTile& sums, const EmulatedTile& a, const EmulatedTile& b) {
  require_matching(sums, a, b);
  const WidenedTile left(a);
  const WidenedTile right(b);
  for (int row = 0; row < sums.rows; row++)
    for (int column = 0; column < sums.bytes / 4; column++) {
      float even = 0;
      float odd = 0;
      for (int k = 0; k < b.rows; k++) {
        even = flush_subnormal(even + left.values[row][2 * k] * right.values[k][2 * column]);
        odd = flush_subnormal(odd + left.values[row][2 * k + 1] * right.values[k][2 * column + 1]);
      }
      const float previous = flush_subnormal(sums.get<float>(row, column));
      sums.set(row, column, flush_subnormal(previous + flush_subnormal(even + odd)));
    }
}

template <int SUMS, int A, int B>
inline void multiply_int8_tiles() {
  emulate_int8(configured_tile(SUMS), configured_tile(A), configured_tile(B));
}

template <int SUMS, int A, int B>
inline void multiply_bf16_tiles() {
  emulate_bf16(configured_tile(SUMS), configured_tile(A), configured_tile(B));
}

}  // namespace
}  // namespace regard
