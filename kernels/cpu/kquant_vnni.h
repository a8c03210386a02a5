// Super-block matmul with AVX-512 VNNI, weights in place: sixteen rows at a time, for one token or a few.
//
// The levels of four rows are unpacked into registers once and meet every token: four vpdpbusd give sums of
// four products, at most 4 * 63 * 127 = 32004, so two vectors of them pack into 16 bits without loss, and a
// vpdpwssd multiplies them with the groups' scales and adds. Sixteen rows' vectors are then added across into
// one with a row in each lane; the sums of minima or offsets come from the heads of sixteen rows, which have
// that form already.
//
// Roofline: one token, bytes of the weights over memory bandwidth (about 13 cycles of a core for a
// super-block's 144 bytes in q4_k). Many tokens: 12 vector instructions for 256 products.
#pragma once

#include "kernels/cpu/kquant_avx512.h"
#include "kernels/cpu/kquant_token.h"

namespace oar {
namespace {

// Lane L of the result: the sum of the lanes of rows 4 L .. 4 L + 3, as the dwords of that lane. q[i] holds
// rows 4 i .. 4 i + 3 as add_four left them.
inline __m512i add_lanes(const __m512i q[4]) {
  const auto halves = [](__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  };
  return halves(halves(q[0], q[1]), halves(q[2], q[3]));
}
// In each 128-bit lane, the sums of a's, b's, c's and d's four dwords.
inline __m512i add_four(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// float sum of one super-block, added to what came before: the definition in kquant_format.h.
template <class F>
inline __m512 add_super(__m512 sum, __m512 d, __m512 dmin, __m512i S, __m512i M, __m512 scale_x) {
  const __m512 product = _mm512_mul_ps(d, _mm512_cvtepi32_ps(S));
  if constexpr (F::kMins) {
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(M), product), scale_x, sum);
  } else {
    return _mm512_fmadd_ps(product, scale_x, sum);
  }
}

inline void store_rows(const PanelTask& p, int64_t row, int64_t t, __m512 sum) {
  const int64_t n = std::min<int64_t>(kHeadRows, p.row_end - row), at = t * p.ldo + row;
  const auto mask = static_cast<__mmask16>((1u << n) - 1u);
  if (p.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, p.bias + row));
  if (p.residual != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, p.residual + at));
  _mm512_mask_storeu_ps(p.out + at, mask, sum);
}

// Addresses of the blocks of sixteen rows; rows past the segment's last repeat it.
struct KRows {
  const char* at[kHeadRows];
  KRows(const PanelTask& p, int64_t row, int64_t stride) {
    for (int64_t r = 0; r < kHeadRows; ++r) {
      at[r] = static_cast<const char*>(p.w) + std::min(row + r, p.rows - 1) * stride;
    }
  }
  void advance(int64_t bytes) {
    for (const char*& a : at) a += bytes;
  }
};

// F: one of the formats of kquant_avx512.h.
template <class F>
struct KVnniCore {
  static constexpr int64_t kBytes = F::kInfo->block_bytes;
  static constexpr int64_t kTokens = 16;  // that share an unpacking

  static int64_t x_bytes(int64_t K) { return KToken::bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return v.K / kSuperBlock * kBytes; }
  static int64_t scratch_bytes(const MatmulView&) { return 0; }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return default_chunk_rows(v, total_rows, w_bytes(v), kHeadRows);
  }
  static void pack(void* run, const PackTask& p) { pack_tokens(run, p); }

  static void panel(const PanelTask& p) {
    for (int64_t row = p.row_begin; row < p.row_end; row += kHeadRows) {
      for (int64_t t = 0; t < p.tokens; t += kTokens) {
        const int64_t n = std::min(kTokens, p.tokens - t);
        if (n == 1) {
          rows16<1>(p, row, t, 1);
        } else {
          rows16<0>(p, row, t, n);
        }
      }
    }
  }

  // Sixteen rows times `n` tokens; kN is n when it is known.
  template <int kN>
  [[gnu::noinline]] static void rows16(const PanelTask& p, int64_t row, int64_t t, int64_t n) {
    if constexpr (kN > 0) n = kN;
    const int64_t blocks = p.K / kSuperBlock, stride = blocks * kBytes, token_bytes = x_bytes(p.K);
    const char* x = static_cast<const char*>(p.x) + t * token_bytes;
    KRows rows(p, row, stride);
    constexpr int64_t kMost = kN > 0 ? kN : kTokens;
    __m512 sum[kMost];
    for (__m512& s : sum) s = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b) {
      KHeads h;
      F::heads(rows.at, h);
      __m512i quads[kMost][4];
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        __m512i u[4][4], scales[4][2];
#pragma GCC unroll 4
        for (int64_t e = 0; e < 4; ++e) {
          const char* block = rows.at[4 * i + e];
          F::levels(block, u[e]);
          scales[e][0] = F::Scales::spread(h.scales[e] + 16 * i, 0);
          scales[e][1] = F::Scales::spread(h.scales[e] + 16 * i, 2);
          // The same block of the next sixteen rows. Past the end of the weights a prefetch does nothing.
          if (t == 0) {
            for (int64_t at = 0; at < kBytes; at += 64) {
              __builtin_prefetch(block + kHeadRows * stride + at, 0, 2);
            }
          }
        }
        for (int64_t j = 0; j < n; ++j) {
          const int8_t* xq = KToken::levels(x + j * token_bytes, b);
          __m512i s[4];
#pragma GCC unroll 4
          for (int64_t e = 0; e < 4; ++e) {
            __m512i dot[4];
#pragma GCC unroll 4
            for (int64_t v = 0; v < 4; ++v) {
              dot[v] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), u[e][v], _mm512_loadu_si512(xq + 64 * v));
            }
            s[e] = _mm512_dpwssd_epi32(_mm512_madd_epi16(_mm512_packs_epi32(dot[0], dot[1]), scales[e][0]),
                                       _mm512_packs_epi32(dot[2], dot[3]), scales[e][1]);
          }
          quads[j][i] = add_four(s[0], s[1], s[2], s[3]);
        }
      }
      for (int64_t j = 0; j < n; ++j) {
        const char* token = x + j * token_bytes;
        __m512i S = add_lanes(quads[j]), M = _mm512_setzero_si512();
        const char* sums = KToken::sums(token, p.K, b);
#pragma GCC unroll 8
        for (int64_t g = 0; g < 8; ++g) {
          int32_t two;
          std::memcpy(&two, sums + 4 * g, 4);
          M = _mm512_dpwssd_epi32(M, h.pairs[g], _mm512_set1_epi32(two));
        }
        if constexpr (F::kOffset != 0) {
          S = _mm512_sub_epi32(S, _mm512_mullo_epi32(M, _mm512_set1_epi32(F::kOffset)));
        }
        const __m512 scale_x = _mm512_set1_ps(KToken::scale(token, p.K, b));
        sum[j] = add_super<F>(sum[j], h.d, h.dmin, S, M, scale_x);
      }
      rows.advance(kBytes);
    }
    for (int64_t j = 0; j < n; ++j) store_rows(p, row, t + j, sum[j]);
  }
};

}  // namespace
}  // namespace oar
