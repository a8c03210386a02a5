// The Arch of int4_groups_core.h with AVX-512 VNNI. Only for files compiled with it.
//
// vpdpbusd wants one operand unsigned, which levels are; where q - 8 is meant, the dots start from -8 times
// the group's sum of activations.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/matmul/int4_groups_core.h"
#include "kernels/cpu/matmul/int8_vnni.h"
#include "kernels/cpu/x86_reduce.h"

namespace oar {
namespace {

struct VnniInt4Groups {
  using Int8 = VnniInt8;
  // 2 x 6 dots, as many sums of the block, two lines, an activation, a mask: 28 of 32 registers.
  static constexpr int kTileTokens = 6;

  static void quantize(const float* x, int64_t group, GroupsToken* to) {
    __m512 v[16];
    __m512i most = _mm512_setzero_si512();  // as integers, which order numbers, infinities and NaNs alike
    unrolled<16>([&](auto i) OAR_INLINE_BODY {
      v[i] = _mm512_loadu_ps(x + i * 16);
      const __m512i bits = _mm512_and_si512(_mm512_castps_si512(v[i]), _mm512_set1_epi32(0x7fffffff));
      most = _mm512_max_epu32(most, bits);
    });
    const float absmax = __builtin_bit_cast(float, _mm512_reduce_max_epu32(most));
    if (!(absmax > kLeastAbsmax && std::isfinite(absmax))) return GroupsToken::quantize(x, group, to);
    const __m512 inverse = _mm512_set1_ps(127.f / absmax);
    __m512i fours[4];  // sums of four k
    unrolled<4>([&](auto i) OAR_INLINE_BODY {
      unrolled<4>([&](auto l) OAR_INLINE_BODY {
        const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(v[4 * i + l], inverse));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to->levels + (4 * i + l) * 16), _mm512_cvtepi32_epi8(n));
      });
      const __m512i bytes = _mm512_loadu_si512(to->levels + i * 64);
      fours[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
    });
    // In each quarter the sums of four times sixteen k; together of four times 64.
    const __m512i quarters = add_four(fours[0], fours[1], fours[2], fours[3]);
    const __m256i halves =
        _mm256_add_epi32(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64(quarters, 1));
    const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    alignas(16) int32_t of64[4];
    _mm_store_si128(reinterpret_cast<__m128i*>(of64), sums);
    for (int64_t g = 0; g < kGroupsBlock / group; ++g) {
      const int32_t sum = group == 64 ? of64[g] : of64[2 * g] + of64[2 * g + 1];
      to->minus[g] = -sum;
      to->sums[g] = static_cast<int16_t>(sum);
    }
    to->scale = absmax / 127.f;
  }

  // m q + o, in bytes. Lines of 32 k hold the first sixteen low and the others high.
  static void expand(const Int4GroupsBlock& w, int64_t half, char* to) {
    std::memcpy(to, w.scales + half * kPanelLine, kPanelLine);
    to += kPanelLine;
    const char* lines = w.levels + half * kPanelLine;
    const __m512i level = _mm512_set1_epi16(15), low_byte = _mm512_set1_epi16(0xff);
    for (int64_t g = 0; g < w.groups; ++g) {
      const __m512i rows = _mm512_cvtepu8_epi32(_mm_loadu_si128(
          reinterpret_cast<const __m128i*>(w.multipliers + g * kGroupsRows + half * kPanelRows)));
      const __m512i m = _mm512_or_si512(rows, _mm512_slli_epi32(rows, 16));
      const __m512i pairs = _mm512_cvtepu16_epi32(_mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(w.offsets + (g / 2 * kGroupsRows + half * kPanelRows) * 2)));
      const __m512i of_row = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
      const __m512i o =
          _mm512_shuffle_epi8(pairs, _mm512_add_epi8(of_row, _mm512_set1_epi8(static_cast<char>(g % 2))));
      const auto weights = [&](__m512i even, __m512i odd) OAR_INLINE_BODY {
        const __m512i products = _mm512_or_si512(_mm512_and_si512(_mm512_mullo_epi16(even, m), low_byte),
                                                 _mm512_slli_epi16(_mm512_mullo_epi16(odd, m), 8));
        return _mm512_add_epi8(products, o);
      };
      for (int64_t s = 0; s < w.steps; ++s, lines += Int4GroupsBlock::kStepBytes, to += 8 * kPanelLine) {
        for (int j = 0; j < 4; ++j) {
          const __m512i v = _mm512_loadu_si512(lines + j * kHalves * kPanelLine);
          _mm512_storeu_si512(to + j * kPanelLine, weights(_mm512_and_si512(v, level),
                                                           _mm512_and_si512(_mm512_srli_epi16(v, 8), level)));
          _mm512_storeu_si512(
              to + (4 + j) * kPanelLine,
              weights(_mm512_and_si512(_mm512_srli_epi16(v, 4), level), _mm512_srli_epi16(v, 12)));
        }
      }
    }
  }

  template <bool kOffsets, int NT, int kFetch>
  [[gnu::noinline]] static void block(const Int4GroupsTask& q) {
    const GroupsToken* x = q.x;
    const char* ahead = q.ahead;
    float(*sums)[kGroupsRows] = q.sums;
    for (int64_t i = 0; i < q.tiles; ++i, x += NT, sums += NT) {
      const char* next = i < q.ahead_tiles ? ahead : reinterpret_cast<const char*>(x + NT);
      tile<kOffsets, NT, kFetch>(q, x, next, sums);
      ahead += kFetch * kGroupsBlock / kGroupsStep * 64;
    }
  }

 private:
  static constexpr int kHalves = 2;  // of sixteen rows

  template <bool kOffsets, int NT, int kFetch>
  [[gnu::always_inline]] static void tile(const Int4GroupsTask& q, const GroupsToken* x, const char* ahead,
                                          float (*sums)[kGroupsRows]) {
    __m512i S[kHalves][NT];
    each<NT>([&](auto i, auto j) OAR_INLINE_BODY { S[i][j] = _mm512_setzero_si512(); });
    if constexpr (kOffsets) {
      for (int64_t pair = 0; 2 * pair < q.w.groups; ++pair) {
        unrolled<kHalves>([&](auto i) OAR_INLINE_BODY {
          const char* o = q.w.offsets + (pair * kHalves + i) * 32;
          const __m512i two = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(o)));
          unrolled<NT>([&](auto j) OAR_INLINE_BODY {
            S[i][j] = _mm512_dpwssd_epi32(S[i][j], two, broadcast(x[j].sums + 2 * pair));
          });
        });
      }
      const __m128i shift = _mm_cvtsi32_si128(q.shift);
      each<NT>([&](auto i, auto j) OAR_INLINE_BODY { S[i][j] = _mm512_sll_epi32(S[i][j], shift); });
    }
    const char* lines = q.w.levels;
    const char* multipliers = q.w.multipliers;
    const int8_t* levels = x->levels;
    const int32_t* minus = x->minus;
    for (int64_t g = 0; g < q.w.groups; ++g) {
      __m512i dot[kHalves][NT];
      unrolled<NT>([&](auto j) OAR_INLINE_BODY {
        const __m512i start =
            kOffsets ? _mm512_setzero_si512() : _mm512_slli_epi32(broadcast(at<j>(minus)), 3);
        unrolled<kHalves>([&](auto i) OAR_INLINE_BODY { dot[i][j] = start; });
      });
      for (int64_t s = 0; s < q.w.steps; ++s) {
        fetch_lines<kFetch>(ahead);
        step<NT>(lines, levels, dot);
        ahead += kFetch * 64;
        lines += Int4GroupsBlock::kStepBytes;
        levels += kGroupsStep;
      }
      unrolled<kHalves>([&](auto i) OAR_INLINE_BODY {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(multipliers + i * 16));
        const __m512i m = kOffsets ? _mm512_cvtepu8_epi32(bytes) : _mm512_cvtepi8_epi32(bytes);
        unrolled<NT>([&](auto j) OAR_INLINE_BODY {
          S[i][j] = _mm512_add_epi32(S[i][j], _mm512_mullo_epi32(dot[i][j], m));
        });
      });
      multipliers += kGroupsRows;
      ++minus;
    }
    const auto before = static_cast<__mmask16>(q.first ? 0 : -1);
    const __m512 scales[kHalves] = {_mm512_loadu_ps(q.w.scales), _mm512_loadu_ps(q.w.scales + 64)};
    unrolled<NT>([&](auto j) OAR_INLINE_BODY {
      const __m512 scale_x = _mm512_set1_ps(x[j].scale);
      unrolled<kHalves>([&](auto i) OAR_INLINE_BODY {
        float* to = sums[j] + i * 16;
        const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(S[i][j]), _mm512_mul_ps(scales[i], scale_x),
                                           _mm512_maskz_load_ps(before, to));
        _mm512_store_ps(to, sum);
      });
    });
  }

  // The products of 32 k.
  template <int NT>
  [[gnu::always_inline]] static void step(const char* lines, const int8_t* levels, __m512i dot[kHalves][NT]) {
    const __m512i nibble = _mm512_set1_epi8(15);
    unrolled<4>([&](auto l) OAR_INLINE_BODY {
      __m512i low[kHalves], high[kHalves];
      unrolled<kHalves>([&](auto i) OAR_INLINE_BODY {
        const __m512i both = _mm512_loadu_si512(lines + (l * kHalves + i) * 64);
        low[i] = _mm512_and_si512(both, nibble);
        high[i] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
      });
      unrolled<NT>([&](auto j) OAR_INLINE_BODY {
        const __m512i four = broadcast(at<j>(levels + 4 * l));
        unrolled<kHalves>([&](auto i)
                              OAR_INLINE_BODY { dot[i][j] = _mm512_dpbusd_epi32(dot[i][j], low[i], four); });
      });
      unrolled<NT>([&](auto j) OAR_INLINE_BODY {
        const __m512i four = broadcast(at<j>(levels + 4 * l + kGroupsStep / 2));
        unrolled<kHalves>([&](auto i)
                              OAR_INLINE_BODY { dot[i][j] = _mm512_dpbusd_epi32(dot[i][j], high[i], four); });
      });
    });
  }

  template <int NT, class F>
  [[gnu::always_inline]] static void each(F&& f) {
    unrolled<NT>([&](auto j)
                     OAR_INLINE_BODY { unrolled<kHalves>([&](auto i) OAR_INLINE_BODY { f(i, j); }); });
  }
  // What is at `first` in the first token, of token j.
  template <int kToken>
  static const void* at(const void* first) {
    return static_cast<const char*>(first) + kToken * static_cast<int64_t>(sizeof(GroupsToken));
  }
  static __m512i broadcast(const void* four) {
    int32_t v;
    std::memcpy(&v, four, sizeof v);
    return _mm512_set1_epi32(v);
  }
};

}  // namespace
}  // namespace oar
