// AMX tiles: configuration and the transposition of a stored result tile. Only for files compiled with AMX.
#pragma once

#include <immintrin.h>

#include <cstdint>

#ifdef OAR_SOFTWARE_TILES
#include "kernels/cpu/software_tiles.h"
#endif

namespace oar {

// The operand of LDTILECFG, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  void set(int tile, int64_t tile_rows, int64_t bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

inline void load_config(const TileConfig& c) {
  __asm__ volatile("" ::"r"(&c) : "memory");  // g++'s intrinsic admits to reading eight bytes only
  _tile_loadconfig(&c);
}

namespace {

// m[i][j] -> m[j][i], 16 x 16 dwords in registers.
inline void transpose16(__m512 m[16]) {
  __m512 a[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512 t0 = _mm512_unpacklo_ps(m[i], m[i + 1]), t1 = _mm512_unpackhi_ps(m[i], m[i + 1]);
    const __m512 t2 = _mm512_unpacklo_ps(m[i + 2], m[i + 3]), t3 = _mm512_unpackhi_ps(m[i + 2], m[i + 3]);
    a[i] = _mm512_shuffle_ps(t0, t2, _MM_SHUFFLE(1, 0, 1, 0));
    a[i + 1] = _mm512_shuffle_ps(t0, t2, _MM_SHUFFLE(3, 2, 3, 2));
    a[i + 2] = _mm512_shuffle_ps(t1, t3, _MM_SHUFFLE(1, 0, 1, 0));
    a[i + 3] = _mm512_shuffle_ps(t1, t3, _MM_SHUFFLE(3, 2, 3, 2));
  }
  // a[4 r + c]: quarter q holds rows 4r..4r+3 of column 4q + c.
  for (int c = 0; c < 4; ++c) {
    const __m512 lo01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88),
                 hi01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xdd);
    const __m512 lo23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88),
                 hi23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xdd);
    m[c] = _mm512_shuffle_f32x4(lo01, lo23, 0x88);
    m[8 + c] = _mm512_shuffle_f32x4(lo01, lo23, 0xdd);
    m[4 + c] = _mm512_shuffle_f32x4(hi01, hi23, 0x88);
    m[12 + c] = _mm512_shuffle_f32x4(hi01, hi23, 0xdd);
  }
}

}  // namespace
}  // namespace oar
