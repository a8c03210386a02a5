// Super-block matmul with AVX-512 VNNI for several tokens: sixteen rows of weights are expanded to a panel in
// the worker's scratch, a row in each 32-bit lane. They are multiplied there by tiles of two panels times six
// tokens.
//
// In a panel a line of 64 bytes holds four k of the sixteen rows. One vpdpbusd with four activations of a
// token, broadcast, adds four products to sixteen outputs. The dots of a group are multiplied with its scales
// and added in integers; offsets are what the dots start from (-kOffset times the group's sum of
// activations). So 256 k of a row and a token take 64 dots, 8 or 16 multiplications and, with minima, half as
// many dots of pairs: 0.8 to 0.85 of the dot products' peak at best. KVnniCore's way, row by row from the
// file, needs 13 instructions for each 256 products and is kept for so few tokens that expanding does not
// pay.
//
// Exact integers, then add_super(): the bits of every other kernel of these formats.
#pragma once

#include "kernels/cpu/matmul/kquant_vnni.h"
#include "kernels/cpu/matmul/matmul_prefetch.h"
#include "kernels/cpu/unrolled.h"

namespace oar {
namespace {

// One super-block of sixteen rows, expanded. Formats of the same shape share their tiles.
template <int kGroupsOf, bool kMinsOf>
struct KPanelShape {
  static constexpr int kGroups = kGroupsOf;  // scales in 256 k
  static constexpr bool kMins = kMinsOf;
  static constexpr int kLines = static_cast<int>(kSuperBlock) / 4;
  static constexpr int kGroupLines = kLines / kGroups;
  static constexpr int kMinPairs = kMins ? kGroups / 2 : 1;

  struct alignas(64) Super {
    uint8_t lines[kLines][64];  // [16 rows][4 k] levels
    int32_t scales[kGroups][kHeadRows];
    float d[kHeadRows], dmin[kHeadRows];
    __m512i mins[kMinPairs];  // of two groups that follow each other, 16 bits each
  };

  // What the tiles of a piece have in common. `offset`: the format's kOffset.
  struct Task {
    const PanelTask& p;
    int64_t blocks, token_bytes;
    int offset;
    Ahead& ahead;
  };

  // What the sums of a token's sixteen groups are needed as: without minima the dots' starts, one for each
  // group; with them pairs of 16 bits, one for each of Super::mins.
  [[gnu::always_inline]] static void token_sums(const char* group_sums, int offset,
                                                int32_t out[kSuperGroups]) {
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group_sums));
    if constexpr (!kMins) {
      _mm512_store_si512(out, _mm512_mullo_epi32(_mm512_cvtepi16_epi32(sums), _mm512_set1_epi32(-offset)));
    } else if constexpr (kGroups == 16) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(out), sums);
    } else {  // of 32 k, at most 32 * 127
      const __m256i twice = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
      _mm_store_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtepi32_epi16(twice));
    }
  }

  // NP panels, each `blocks` long, whose first row is `row`, times NT tokens from t.
  template <int NP, int NT>
  [[gnu::noinline]] static void tile(const Task& q, const Super* panel, int64_t row, int64_t t) {
    const PanelTask& p = q.p;
    const char* x = static_cast<const char*>(p.x) + t * q.token_bytes;
    alignas(64) float sums[NP][NT][kHeadRows] = {};
    OutLines out(p, row, NP, t, NT, q.blocks);
    for (int64_t b = 0; b < q.blocks; ++b) {
      q.ahead.fetch();
      out.fetch();
      alignas(64) int32_t starts[NT][kSuperGroups];  // with minima: pairs of sums instead
      for (int j = 0; j < NT; ++j)
        token_sums(KToken::sums(x + j * q.token_bytes, p.K, b), q.offset, starts[j]);
      __m512i S[NP][NT];
      unrolled<NP>([&](auto i) OAR_INLINE_BODY {
        unrolled<NT>([&](auto j) OAR_INLINE_BODY { S[i][j] = _mm512_setzero_si512(); });
      });
      const int8_t* xb = KToken::levels(x, b);
      for (int g = 0; g < kGroups; ++g, xb += 4 * kGroupLines) {
        __m512i dot[NP][NT];
        unrolled<NT>([&](auto j) OAR_INLINE_BODY {
          const __m512i start = kMins ? _mm512_setzero_si512() : _mm512_set1_epi32(starts[j][g]);
          unrolled<NP>([&](auto i) OAR_INLINE_BODY { dot[i][j] = start; });
        });
        unrolled<kGroupLines>([&](auto l) OAR_INLINE_BODY {
          __m512i w[NP];
          unrolled<NP>([&](auto i) OAR_INLINE_BODY {
            w[i] = _mm512_load_si512(panel[i * q.blocks + b].lines[g * kGroupLines + l]);
          });
          unrolled<NT>([&](auto j) OAR_INLINE_BODY {
            int32_t four;
            std::memcpy(&four, xb + j * q.token_bytes + 4 * l, 4);
            const __m512i xr = _mm512_set1_epi32(four);
            unrolled<NP>([&](auto i)
                             OAR_INLINE_BODY { dot[i][j] = _mm512_dpbusd_epi32(dot[i][j], w[i], xr); });
          });
        });
        unrolled<NP>([&](auto i) OAR_INLINE_BODY {
          const __m512i scale = _mm512_load_si512(panel[i * q.blocks + b].scales[g]);
          unrolled<NT>([&](auto j) OAR_INLINE_BODY {
            S[i][j] = _mm512_add_epi32(S[i][j], _mm512_mullo_epi32(dot[i][j], scale));
          });
        });
      }
      // By way of memory, as in Int8Core::flush.
      __m512i done[NP][NT];
      unrolled<NP>([&](auto i) OAR_INLINE_BODY {
        unrolled<NT>([&](auto j) OAR_INLINE_BODY { done[i][j] = S[i][j]; });
      });
      asm volatile("" : : "r"(&done) : "memory");
      for (int j = 0; j < NT; ++j) {
        const __m512 scale_x = _mm512_set1_ps(KToken::scale(x + j * q.token_bytes, p.K, b));
        unrolled<NP>([&](auto i) OAR_INLINE_BODY {
          const Super& w = panel[i * q.blocks + b];
          __m512i M = _mm512_setzero_si512();
          if constexpr (kMins) {
            unrolled<kMinPairs>([&](auto g) OAR_INLINE_BODY {
              M = _mm512_dpwssd_epi32(M, w.mins[g], _mm512_set1_epi32(starts[j][g]));
            });
          }
          const __m512 sum = add_super<KPanelShape>(_mm512_load_ps(sums[i][j]), _mm512_load_ps(w.d),
                                                    _mm512_load_ps(w.dmin), done[i][j], M, scale_x);
          _mm512_store_ps(sums[i][j], sum);
        });
      }
    }
    for (int i = 0; i < NP; ++i) {
      for (int j = 0; j < NT; ++j) store_rows(p, row + i * kHeadRows, t + j, _mm512_load_ps(sums[i][j]));
    }
  }

  // `tokens` from t with as many tiles of NT as fit, then with smaller ones.
  template <int NP, int NT>
  static void sweep(const Task& q, const Super* panel, int64_t row, int64_t t) {
    for (; t + NT <= q.p.tokens; t += NT) tile<NP, NT>(q, panel, row, t);
    if constexpr (NT > 1) sweep<NP, NT == 6 ? 4 : NT / 2>(q, panel, row, t);
  }
};

// v[r], dword l -> v[l], dword r.
inline void transpose16(__m512i v[16]) {
  unrolled<4>([&](auto i) OAR_INLINE_BODY { transpose4(v + 4 * i); });
  // Now v[4 i + l], lane L has dword 4 L + l of rows 4 i .. 4 i + 3.
  unrolled<4>([&](auto l) OAR_INLINE_BODY {
    const __m512i a = _mm512_shuffle_i32x4(v[l], v[4 + l], 0x44),
                  b = _mm512_shuffle_i32x4(v[l], v[4 + l], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(v[8 + l], v[12 + l], 0x44),
                  d = _mm512_shuffle_i32x4(v[8 + l], v[12 + l], 0xee);
    v[l] = _mm512_shuffle_i32x4(a, c, 0x88);
    v[4 + l] = _mm512_shuffle_i32x4(a, c, 0xdd);
    v[8 + l] = _mm512_shuffle_i32x4(b, d, 0x88);
    v[12 + l] = _mm512_shuffle_i32x4(b, d, 0xdd);
  });
}

inline __m128i scale_bytes(int64_t eight) { return _mm_cvtsi64_si128(eight); }
inline __m128i scale_bytes(__m128i sixteen) { return sixteen; }

// F: one of the formats of kquant_avx512.h.
template <class F>
struct KPanelCore {
  using Few = KVnniCore<F, 1>;
  using Block = typename F::Block;
  static constexpr bool kEightScales =
      std::is_same_v<decltype(F::scales(std::declval<const Block&>())), int64_t>;
  using Shape = KPanelShape<kEightScales ? 8 : 16, F::kMins>;
  using Super = typename Shape::Super;
  static constexpr int64_t kFromTokens = 7;
  static constexpr int64_t kRows = 2 * kHeadRows;
  static constexpr int64_t kPieceBytes = 384 << 10;  // of panels, which stay in the second-level cache

  static int64_t piece_rows(int64_t K) {
    const int64_t row = K / kSuperBlock * static_cast<int64_t>(sizeof(Super)) / kHeadRows;
    return std::max(kRows, kPieceBytes / row / kRows * kRows);
  }

  static int64_t x_bytes(int64_t K) { return KToken::bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return Few::w_bytes(v); }
  static int64_t scratch_bytes(const MatmulView& v) {
    const int64_t piece =
        piece_rows(v.K) / kHeadRows * (v.K / kSuperBlock) * static_cast<int64_t>(sizeof(Super));
    return std::max(Few::scratch_bytes(v), v.P < kFromTokens ? 0 : piece);
  }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    if (v.P / v.runs < kFromTokens) return Few::chunk_rows(v, total_rows);
    return default_chunk_rows(v, total_rows, w_bytes(v), kRows);
  }
  static void pack(void* run, const PackTask& p) { pack_tokens(run, p); }

  static void panel(const PanelTask& p) {
    if (p.tokens < kFromTokens) return Few::panel(p);
    const int64_t step = piece_rows(p.K), blocks = p.K / kSuperBlock;
    auto* panels = static_cast<Super*>(p.scratch);
    for (int64_t begin = p.row_begin; begin < p.row_end; begin += step) {
      const int64_t end = std::min(begin + step, p.row_end);
      for (int64_t row = begin; row < end; row += kHeadRows) {
        expand(p, row, panels + (row - begin) / kHeadRows * blocks);
      }
      // The next piece, of this chunk or most likely of this worker's next one.
      const int64_t tiles = ((end - begin + kRows - 1) / kRows) * ((p.tokens + 5) / 6);
      const int64_t next = std::min(end + step, p.rows) - end;
      Ahead ahead(reinterpret_cast<const char*>(static_cast<const Block*>(p.w) + end * blocks),
                  next * blocks * static_cast<int64_t>(sizeof(Block)), tiles * blocks);
      const typename Shape::Task task{p, blocks, x_bytes(p.K), F::kOffset, ahead};
      for (int64_t row = begin; row < end; row += kRows) {
        const Super* at = panels + (row - begin) / kHeadRows * blocks;
        if (row + kHeadRows < end) {
          Shape::template sweep<2, 6>(task, at, row, 0);
        } else {
          Shape::template sweep<1, 6>(task, at, row, 0);
        }
      }
    }
  }

  // Sixteen rows to a panel; rows past the last repeat it, and what they give is not stored.
  [[gnu::noinline]] static void expand(const PanelTask& p, int64_t row, Super* to) {
    const int64_t blocks = p.K / kSuperBlock;
    const char* rows[kHeadRows];
    for (int64_t r = 0; r < kHeadRows; ++r) rows[r] = reinterpret_cast<const char*>(Few::at(p, row + r));
    for (int64_t b = 0; b < blocks; ++b, ++to) {
      alignas(64) __m512i levels[4][kHeadRows];
      alignas(64) __m128i scales[kHeadRows];
      for (int64_t r = 0; r < kHeadRows; ++r) {
        const Block& block = *reinterpret_cast<const Block*>(rows[r]);
        __m512i u[4];
        F::levels(block, u);
        for (int v = 0; v < 4; ++v) levels[v][r] = u[v];
        scales[r] = scale_bytes(F::scales(block));
      }
      for (int v = 0; v < 4; ++v) {
        __m512i line[16];
        unrolled<16>([&](auto r) OAR_INLINE_BODY { line[r] = levels[v][r]; });
        transpose16(line);
        unrolled<16>([&](auto l) OAR_INLINE_BODY { _mm512_store_si512(to->lines[16 * v + l], line[l]); });
      }
      // A row's four bytes of groups 4 i .. 4 i + 3 in each lane of s[i].
      __m512i s[4];
      unrolled<4>([&](auto e) OAR_INLINE_BODY {
        __m512i four = _mm512_castsi128_si512(scales[e]);
        four = _mm512_inserti32x4(four, scales[e + 4], 1);
        four = _mm512_inserti32x4(four, scales[e + 8], 2);
        s[e] = _mm512_inserti32x4(four, scales[e + 12], 3);
      });
      transpose4(s);
      unrolled<Shape::kGroups>([&](auto g) OAR_INLINE_BODY {
        const __m512i byte = _mm512_srai_epi32(_mm512_slli_epi32(s[g / 4], 24 - g % 4 * 8), 24);
        _mm512_store_si512(to->scales[g], byte);
      });
      KHeads h;
      F::heads(rows, h);
      _mm512_store_ps(to->d, h.d);
      if constexpr (F::kMins) {
        _mm512_store_ps(to->dmin, h.dmin);
        // Where groups have 32 k, the pair of group 2 j holds the same number twice.
        unrolled<Shape::kMinPairs>([&](auto j) OAR_INLINE_BODY {
          to->mins[j] = kEightScales ? _mm512_mask_blend_epi16(0xaaaaaaaa, h.pairs[2 * j], h.pairs[2 * j + 1])
                                     : h.pairs[j];
        });
      }
      for (const char*& at : rows) at += sizeof(Block);
    }
  }
};

}  // namespace
}  // namespace oar
