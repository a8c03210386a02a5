// AMX tiles in software, for builds with sanitizers: the kernels of tiles run wherever AVX512-BF16 does, and
// each row that a tile reads or writes is a plain access that AddressSanitizer sees. The names are those of
// the intrinsics, which amx.h replaces; the arithmetic is that of the Intel SDM, volume 2 ("TDPBF16PS",
// "TDPBSSD"). Shapes that the processor refuses with #UD or #GP end the process.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd

namespace oar {

struct alignas(64) SoftwareTile {
  unsigned char row[16][64] = {};
  uint16_t row_bytes = 0;
  uint8_t rows = 0;  // 0: not configured
};
// A thread's tile registers.
inline thread_local SoftwareTile software_tiles[8];

inline void require_tiles(bool holds) {
  if (!holds) __builtin_trap();
}

inline SoftwareTile& configured_tile(int i) {
  require_tiles(i >= 0 && i < 8 && software_tiles[i].rows > 0);
  return software_tiles[i];
}

// Bytes 0, 1: palette and first row; 16 to 47: bytes of each tile's rows; 48 to 63: their number.
inline void _tile_loadconfig(const void* config) {
  unsigned char c[64];
  memcpy(c, config, sizeof c);
  require_tiles(c[0] == 1 && c[1] == 0);
  for (int i = 0; i < 8; ++i) {
    uint16_t bytes;
    memcpy(&bytes, c + 16 + 2 * i, sizeof bytes);
    require_tiles(bytes <= 64 && c[48 + i] <= 16 && (bytes == 0) == (c[48 + i] == 0));
    software_tiles[i] = SoftwareTile{};
    software_tiles[i].row_bytes = bytes;
    software_tiles[i].rows = c[48 + i];
  }
}
inline void _tile_release() {
  for (SoftwareTile& t : software_tiles) t.rows = 0;
}
inline void _tile_zero(int i) {
  SoftwareTile& t = configured_tile(i);
  memset(t.row, 0, sizeof t.row);
}
inline void _tile_loadd(int i, const void* base, size_t stride) {
  _tile_zero(i);
  SoftwareTile& t = configured_tile(i);
  for (int r = 0; r < t.rows; ++r)
    memcpy(t.row[r], static_cast<const char*>(base) + static_cast<size_t>(r) * stride, t.row_bytes);
}
inline void _tile_stored(int i, void* base, size_t stride) {
  const SoftwareTile& t = configured_tile(i);
  for (int r = 0; r < t.rows; ++r)
    memcpy(static_cast<char*>(base) + static_cast<size_t>(r) * stride, t.row[r], t.row_bytes);
}

// c += a . b: calls dot(sums of a row of c, four bytes of a's row in every lane, a line of b) for each k,
// `begin` before the first and `end` behind the last.
template <class Begin, class Dot, class End>
inline void tile_product(int c, int a, int b, Begin begin, Dot dot, End end) {
  SoftwareTile& out = configured_tile(c);
  const SoftwareTile &x = configured_tile(a), &w = configured_tile(b);
  require_tiles(c != a && c != b && a != b);
  require_tiles(out.rows == x.rows && out.row_bytes == w.row_bytes && x.row_bytes == 4 * w.rows);
  require_tiles(out.row_bytes % 4 == 0);
  const auto lanes = static_cast<__mmask16>((1u << (out.row_bytes / 4)) - 1u);
  for (int m = 0; m < out.rows; ++m) {
    auto sums = begin(_mm512_load_si512(out.row[m]));
    for (int k = 0; k < w.rows; ++k) {
      int32_t four;
      memcpy(&four, x.row[m] + 4 * k, sizeof four);
      dot(sums, _mm512_set1_epi32(four), _mm512_load_si512(w.row[k]));
    }
    _mm512_mask_store_epi32(out.row[m], lanes, end(sums));
  }
}

// Even and odd products are summed apart, then together, then with what was there. Subnormal numbers are
// zero, and the caller's rounding plays no part.
inline void _tile_dpbf16ps(int c, int a, int b) {
  struct Sums {
    __m512 before, even, odd;
  };
  const unsigned int mode = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // flush, subnormals are zero, all exceptions masked, to nearest
  const auto even = [](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
  const auto odd = [](__m512i x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  };
  tile_product(
      c, a, b,
      [](__m512i before) {
        return Sums{_mm512_castsi512_ps(before), _mm512_setzero_ps(), _mm512_setzero_ps()};
      },
      [&](Sums& s, __m512i x, __m512i w) {
        s.even = _mm512_fmadd_ps(even(x), even(w), s.even);
        s.odd = _mm512_fmadd_ps(odd(x), odd(w), s.odd);
      },
      [](const Sums& s) {
        return _mm512_castps_si512(_mm512_add_ps(s.before, _mm512_add_ps(s.even, s.odd)));
      });
  _mm_setcsr(mode);
}

inline void _tile_dpbusd(int c, int a, int b) {
  const auto same = [](__m512i x) { return x; };
  tile_product(
      c, a, b, same, [](__m512i& s, __m512i x, __m512i w) { s = _mm512_dpbusd_epi32(s, x, w); }, same);
}
inline void _tile_dpbsud(int c, int a, int b) {
  const auto same = [](__m512i x) { return x; };
  tile_product(
      c, a, b, same, [](__m512i& s, __m512i x, __m512i w) { s = _mm512_dpbusd_epi32(s, w, x); }, same);
}
// The instruction below multiplies unsigned by signed bytes: 128 is added to one side, and its products taken
// off.
inline void _tile_dpbssd(int c, int a, int b) {
  const auto same = [](__m512i x) { return x; };
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(-128));
  tile_product(
      c, a, b, same,
      [&](__m512i& s, __m512i x, __m512i w) {
        const __m512i over = _mm512_dpbusd_epi32(_mm512_setzero_si512(), offset, w);
        s = _mm512_sub_epi32(_mm512_dpbusd_epi32(s, _mm512_xor_si512(x, offset), w), over);
      },
      same);
}

}  // namespace oar
