// Value panels of keys that hold values (KvShape::latent): the first dims of a span's keys, turned around
// once for all rows of a tile, so that every engine multiplies them as values of their own. For a latent of
// 512 and 20 heads that is a tenth of the products' instructions, and the keys lie in a near cache by then.
// Bits are copied: what lies behind a sequence's end meets no arithmetic here.
#pragma once

#include "kernels/cpu/attention/attention_partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

// From [D/2][16 tokens][2 dims] to [8][DV][2 tokens]. Eight bytes hold two dims of two neighbouring tokens on
// both sides; the middle two numbers change places.
inline void turn_pairs(const char* k, int64_t DV, char* v) {
  int64_t i = 0;  // pairs of dims
#ifdef __AVX2__
  const __m256i swap = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2,
                                        3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (; i + 4 <= DV / 2; i += 4) {
    for (int64_t half = 0; half < 2; ++half) {  // of the tokens: four pairs of them
      __m256i x[4];
      for (int64_t j = 0; j < 4; ++j) {
        const char* line = k + (i + j) * 64 + half * 32;
        x[j] = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)), swap);
      }
      const __m256i a = _mm256_unpacklo_epi64(x[0], x[1]), b = _mm256_unpackhi_epi64(x[0], x[1]),
                    c = _mm256_unpacklo_epi64(x[2], x[3]), d = _mm256_unpackhi_epi64(x[2], x[3]);
      const __m256i rows[4] = {_mm256_permute2x128_si256(a, c, 0x20), _mm256_permute2x128_si256(b, d, 0x20),
                               _mm256_permute2x128_si256(a, c, 0x31), _mm256_permute2x128_si256(b, d, 0x31)};
      for (int64_t j = 0; j < 4; ++j)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(v + ((half * 4 + j) * DV + 2 * i) * 4), rows[j]);
    }
  }
#endif
  for (; i < DV / 2; ++i) {
    for (int64_t pair = 0; pair < kKvPanelTokens / 2; ++pair) {
      uint64_t x;
      memcpy(&x, k + i * 64 + pair * 8, sizeof x);
      x = (x & 0xffff00000000ffffu) | (x >> 16 & 0xffff0000u) | (x & 0xffff0000u) << 16;
      memcpy(v + (pair * DV + 2 * i) * 4, &x, sizeof x);
    }
  }
}

// From [D][16 tokens] to [16 tokens][DV].
template <class T>
inline void turn_rows(const char* k, int64_t DV, char* v) {
  const T* from = reinterpret_cast<const T*>(k);
  T* to = reinterpret_cast<T*>(v);
  for (int64_t d = 0; d < DV; ++d)
    for (int64_t t = 0; t < kKvPanelTokens; ++t) to[t * DV + d] = from[d * kKvPanelTokens + t];
}

// Of every panel that is set, into `memory`, kSpanPanels value panels one behind the other.
inline void values_of_keys(const KvLayout& layout, char* memory, SpanPanels* panels) {
  for (int64_t i = panels->lo; i < panels->hi; ++i) {
    char* v = memory + i * layout.v_panel_bytes();
    if (layout.paired) turn_pairs(panels->k[i], layout.value_dim, v);
    else if (layout.elem_bytes == 2) turn_rows<uint16_t>(panels->k[i], layout.value_dim, v);
    else turn_rows<uint32_t>(panels->k[i], layout.value_dim, v);
    panels->v[i] = v;
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
