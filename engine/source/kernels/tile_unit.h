// The tile registers of AMX: eight of them, each up to 16 rows of 64 bytes.
//
// Written as instructions, for the compilers' own names for them take no numbers from templates, and do not say which
// memory they read. Where they are emulated, see tile_unit_emulated.h.
#pragma once
#include <cstddef>
#include <cstdint>

#if (defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)) || defined(REGARD_EMULATED_TILES)
#define REGARD_TILE_UNIT

namespace regard {
namespace {

constexpr int TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64;

// The size of each tile, as the instruction that sets them reads it.
struct TileSizes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileSizes) == 64, "what the instruction reads");

}  // namespace
}  // namespace regard

#if defined(REGARD_EMULATED_TILES)
#include "tile_unit_emulated.h"
#else

namespace regard {
namespace {

inline void set_tiles(const TileSizes& sizes) { __asm__ volatile("ldtilecfg %0" : : "m"(sizes)); }
inline void release_tiles() { __asm__ volatile("tilerelease"); }

template <int TILE>
inline void clear_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(TILE));
}

// Rows are `stride` bytes apart; 0 repeats one row.
template <int TILE>
inline void load_tile(const void* from, size_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
inline void store_tile(void* to, size_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}

// SUMS += A · B, of bytes without signs in A and with signs in B.
template <int SUMS, int A, int B>
inline void multiply_bytes() {
  __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B));
}

// The same of bf16.
template <int SUMS, int A, int B>
inline void multiply_halves() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B));
}

}  // namespace
}  // namespace regard

#endif
#endif
