// AMX tile registers: eight, each up to 16 rows of 64 bytes.
//
// Inline assembly, because the compilers' intrinsics take no register numbers from templates and do not declare which
// memory they read. amx_tiles_emulated.h emulates them for tests.
#pragma once
#include <cstddef>
#include <cstdint>

#if (defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)) || defined(REGARD_EMULATED_AMX)
#define REGARD_HAS_AMX

namespace regard {
namespace {

constexpr int NUM_TILES = 8;
constexpr int TILE_ROWS = 16;
constexpr int TILE_BYTES = 64;

// Operand of ldtilecfg.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "ldtilecfg reads 64 bytes");

}  // namespace
}  // namespace regard

#if defined(REGARD_EMULATED_AMX)
#include "amx_tiles_emulated.h"
#else

namespace regard {
namespace {

inline void load_tile_config(const TileConfig& config) { __asm__ volatile("ldtilecfg %0" : : "m"(config)); }
inline void release_tiles() { __asm__ volatile("tilerelease"); }

template <int TILE>
inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(TILE));
}

// `stride`: bytes between rows; 0 repeats one row.
template <int TILE>
inline void load_tile(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
inline void store_tile(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}

// SUMS += A · B, of unsigned bytes in A and signed ones in B.
template <int SUMS, int A, int B>
inline void multiply_int8_tiles() {
  __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B));
}

template <int SUMS, int A, int B>
inline void multiply_bf16_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(A), "i"(B));
}

}  // namespace
}  // namespace regard

#endif
#endif
