// Super-block matmul with AVX-512 VNNI, weights in place: sixteen rows at a time, for one token or a few.
//
// First row after row, as the bytes come: four vpdpbusd give sums of four products, at most 4 * 63 * 127 =
// 32004. So two vectors of them pack into 16 bits without loss (not iq4_xs's), and a vpdpwssd multiplies them
// with the groups' scales and adds. Four numbers of each super-block, row and token wait in scratch. Then
// super-block after super-block, a row in each lane: what waited is added up, minima and offsets come from
// the heads of sixteen rows, and floats begin. Reading a super-block of each of the sixteen rows in turn
// would be one pass, but sequential reads are what a CPU fetches ahead.
//
// Roofline: one token, bytes of the weights over memory bandwidth. Many tokens: 13 vector instructions for
// 256 products.
#pragma once

#include "kernels/cpu/matmul/kquant_avx512.h"
#include "kernels/cpu/matmul/kquant_token.h"

namespace oar {
namespace {

// Sixteen dwords to four with the same sum.
inline __m128i add_lanes(__m512i v) {
  const __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
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

// F: one of the formats of kquant_avx512.h. kRowStreams: so many rows at once for one token. Sapphire Rapids
// likes four, each from another page; Zen 5 reads a third more from one that is fetched twice as far ahead.
template <class F, int64_t kRowStreams = 4>
struct KVnniCore {
  using Block = typename F::Block;
  static constexpr int64_t kTokens = 16;                  // that share an unpacking
  static constexpr int64_t kWaiting = 4 * 4 * kHeadRows;  // bytes of a super-block and token
  static constexpr int64_t kStreams = kRowStreams;
  // How far each run of rows is fetched before it is read, to the second-level cache: Zen 4 then reads q6_k
  // at 91 % of what a core gets from memory, and 65 % when the first level is asked for as much.
  static constexpr int64_t kAhead = kStreams == 1 ? 8192 : 2048;

  static int64_t x_bytes(int64_t K) { return KToken::bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return v.format.stride(v.K); }
  static int64_t scratch_bytes(const MatmulView& v) {
    return std::max(std::min(v.P, kTokens), kStreams) * (v.K / kSuperBlock) * kWaiting;
  }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return default_chunk_rows(v, total_rows, w_bytes(v),
                              v.P / v.runs <= 1 ? kStreams * kHeadRows : kHeadRows);
  }
  static void pack(void* run, const PackTask& p) { pack_tokens(run, p); }

  static void panel(const PanelTask& p) {
    int64_t row = p.row_begin;
    if (p.tokens == 1) {
      for (; row + (kStreams - 1) * kHeadRows < p.row_end; row += kStreams * kHeadRows)
        rows<1, kStreams>(p, row, 0, 1);
    }
    for (; row < p.row_end; row += kHeadRows) {
      for (int64_t t = 0; t < p.tokens; t += kTokens) rows<0, 1>(p, row, t, std::min(kTokens, p.tokens - t));
    }
  }

  // Where row r of the segment begins; rows past the last repeat it.
  static const Block* at(const PanelTask& p, int64_t r) {
    return static_cast<const Block*>(p.w) + std::min(r, p.rows - 1) * (p.K / kSuperBlock);
  }

  // kBlocks times sixteen rows and `n` tokens; kN is n when it is known.
  template <int kN, int kBlocks>
  [[gnu::noinline]] static void rows(const PanelTask& p, int64_t row, int64_t t, int64_t n) {
    if constexpr (kN > 0) n = kN;
    const int64_t blocks = p.K / kSuperBlock, token_bytes = x_bytes(p.K);
    const char* x = static_cast<const char*>(p.x) + t * token_bytes;
    char* waiting = static_cast<char*>(p.scratch);  // [kBlocks][blocks][n][row % 4][row / 4][4] int32
    constexpr auto size = static_cast<int64_t>(sizeof(Block));
    const int64_t run = kHeadRows * blocks * size;  // rows of one of the kBlocks
    for (int64_t r = 0; r < kHeadRows; ++r) {
      const Block* w[kBlocks];
      for (int64_t i = 0; i < kBlocks; ++i) w[i] = at(p, row + i * kHeadRows + r);
      char* to = waiting + r % 4 * 64 + r / 4 * 16;
      for (int64_t b = 0; b < blocks; ++b, to += n * kWaiting) {
        // Behind the end of a run comes the one kBlocks further on.
        const int64_t left = run - (r * blocks + b) * size;
        const int64_t ahead = left > kAhead ? kAhead : kAhead + (kBlocks - 1) * run;
#pragma GCC unroll 4
        for (int64_t i = 0; i < kBlocks; ++i)
          super(w[i][b], ahead, x, token_bytes, b, n, to + i * blocks * n * kWaiting);
      }
    }
    // Memory goes on working meanwhile: kAhead more of what comes next.
    const char* next = reinterpret_cast<const char*>(at(p, row)) + kBlocks * run + kAhead;
    for (int64_t i = 0; i < kBlocks; ++i, next += run) {
      finish<kN>(p, row + i * kHeadRows, t, n, waiting + i * blocks * n * kWaiting, next);
    }
  }

  // The integer dots of one super-block, four for each token. Inlined, since its constants are a third of it.
  [[gnu::always_inline]] static void super(const Block& block, int64_t ahead, const char* x,
                                           int64_t token_bytes, int64_t b, int64_t n, char* to) {
    // Past the end of the weights a prefetch does nothing.
    for (int64_t line = 0; line < static_cast<int64_t>(sizeof(Block)); line += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(&block) + ahead + line, 0, 2);
    }
    __m512i u[4];
    F::levels(block, u);
    const auto packed = F::scales(block);
    __m512i scales[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      if constexpr (F::kWide) {
        scales[v] = spread_wide(packed, v);
      } else if (v % 2 == 0) {
        scales[v] = spread_scales(packed, v);
      }
    }
    for (int64_t j = 0; j < n; ++j, to += kWaiting) {
      const int8_t* xq = KToken::levels(x + j * token_bytes, b);
      __m512i dot[4];
#pragma GCC unroll 4
      for (int64_t v = 0; v < 4; ++v) {
        dot[v] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), u[v], _mm512_loadu_si512(xq + 64 * v));
      }
      __m512i s;
      if constexpr (F::kWide) {
        s = _mm512_mullo_epi32(dot[0], scales[0]);
#pragma GCC unroll 3
        for (int64_t v = 1; v < 4; ++v) s = _mm512_add_epi32(s, _mm512_mullo_epi32(dot[v], scales[v]));
      } else {
        s = _mm512_madd_epi16(_mm512_packs_epi32(dot[0], dot[1]), scales[0]);
        s = _mm512_dpwssd_epi32(s, _mm512_packs_epi32(dot[2], dot[3]), scales[2]);
      }
      _mm_store_si128(reinterpret_cast<__m128i*>(to), add_lanes(s));
    }
  }

  // From the dots of sixteen rows to outputs. `next`: kAhead bytes to fetch.
  template <int kN>
  static void finish(const PanelTask& p, int64_t row, int64_t t, int64_t n, const char* waiting,
                     const char* next) {
    if (row >= p.row_end) return;
    const char* next_end = next + kAhead;
    const int64_t blocks = p.K / kSuperBlock, token_bytes = x_bytes(p.K);
    const char* x = static_cast<const char*>(p.x) + t * token_bytes;
    const char* heads[kHeadRows];
    for (int64_t r = 0; r < kHeadRows; ++r) heads[r] = reinterpret_cast<const char*>(at(p, row + r));
    constexpr int64_t kMost = kN > 0 ? kN : kTokens;
    __m512 sum[kMost];
    for (__m512& s : sum) s = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b) {
      for (int i = 0; i < 4 && next < next_end; ++i, next += 64) __builtin_prefetch(next, 0, 2);
      KHeads h;
      F::heads(heads, h);
      for (const char*& a : heads) a += sizeof(Block);
      for (int64_t j = 0; j < n; ++j, waiting += kWaiting) {
        const char* token = x + j * token_bytes;
        const char* sums = KToken::sums(token, p.K, b);
        __m512i M = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int64_t g = 0; g < 8; ++g) {
          int32_t two;
          std::memcpy(&two, sums + 4 * g, 4);
          M = _mm512_dpwssd_epi32(M, h.pairs[g], _mm512_set1_epi32(two));
        }
        __m512i S = add_four(_mm512_load_si512(waiting), _mm512_load_si512(waiting + 64),
                             _mm512_load_si512(waiting + 128), _mm512_load_si512(waiting + 192));
        if constexpr (F::kOffset != 0) {
          S = _mm512_sub_epi32(S, _mm512_mullo_epi32(M, _mm512_set1_epi32(F::kOffset)));
        }
        const __m512 scale_x = _mm512_set1_ps(KToken::scale(token, p.K, b));
        sum[j] = add_super<F>(sum[j], h.d, h.dmin, S, M, scale_x);
      }
    }
    for (int64_t j = 0; j < n; ++j) store_rows(p, row, t + j, sum[j]);
  }
};

}  // namespace
}  // namespace oar
