// The core of int8_core.h with smmla (i8mm, Armv8.6), for files compiled with it.
//
// An smmla multiplies 2 tokens with 2 rows over 8 k, 32 products where sdot has 16. Two lines of a panel that
// follow each other, zipped by dwords, are its operands of weights. Those of activations lie ready: pack()
// zips every two tokens, 8 k by 8 k, but for an odd last one, which is read beside zeros.
//
// A tile is four rows times a block of up to 16 tokens, 16 registers of dots and two zips for 16 smmla: 89 %
// of their peak. The other rows of the panel follow within each 256 k, so that both operands, 4 KB each, come
// from the first-level cache. Dots are exact and the additions are those of int8_core.h: the values are
// sdot's, to the bit.
#pragma once

#include "kernels/cpu/matmul/int8_neon.h"

namespace oar {
namespace {

struct NeonI8mmCore {
  using Plain = Int8Core<NeonDotInt8>;
  // For 4 rows x 8 k two tokens would take two zips and two smmla, as many as sdots. Their bytes are not
  // zipped.
  static constexpr int64_t kPlainTokens = 2;
  static constexpr int64_t kTileRows = Plain::kTileRows, kPieceBytes = Plain::kPieceBytes;
  static constexpr int64_t kLanes = Plain::kLanes, kBlock = Int8Tokens::kBlock;
  static constexpr int kVectors = kPanelRows / kLanes;
  static constexpr int kStepSlices = kPanelStep / 8;

  static int64_t x_bytes(int64_t K) { return Plain::x_bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return Plain::w_bytes(v); }
  static int64_t scratch_bytes(const MatmulView&) { return 0; }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return Plain::chunk_rows(v, total_rows);
  }

  static void pack(void* run, const PackTask& p) {
    Plain::pack(run, p);
    if (p.tokens <= kPlainTokens) return;
    const Int8Tokens x(run, p.K, p.tokens, p.t_begin);
    const int64_t end = panel_k(p.k_end) / kPanelStep;
    for (int64_t s = p.k_begin / kPanelStep; s < end; ++s) {
      for (int64_t j = 0; j + 1 < x.size(); j += 2) zip(const_cast<int8_t*>(x.at(j, s)));
    }
  }

  static void panel(const PanelTask& p) {
    if (p.tokens <= kPlainTokens) return Plain::panel(p);
    const int64_t panels = (p.row_end - p.row_begin + kPanelRows - 1) / kPanelRows,
                  blocks = (p.tokens + kBlock - 1) / kBlock, parts = panels * panel_blocks(p.K);
    const Ahead nothing(nullptr, 0, 1);
    Plain::Soon soon{blocks > 1 ? Plain::next_bytes(p, blocks * parts) : nothing, nothing};
    for (int64_t t = 0; t < p.tokens; t += kBlock) {
      const Int8Tokens x(p.x, p.K, p.tokens, t);
      const int64_t next = t + kBlock;
      if (next < p.tokens) {
        const int64_t n = std::min(kBlock, p.tokens - next);
        soon.tokens = {static_cast<const char*>(p.x) + next * x_bytes(p.K), n * x_bytes(p.K), parts};
      }
      sweep<kBlock>(p, x, t, soon);
    }
  }

 private:
  // Step s of two tokens, [2][64 k], to [8][2][8 k].
  static void zip(int8_t* x) {
    int64x2_t out[kStepSlices];
    unrolled<kStepSlices / 2>([&](auto i) OAR_INLINE_BODY {
      const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(x + 16 * i)),
                      b = vreinterpretq_s64_s8(vld1q_s8(x + kPanelStep + 16 * i));
      out[2 * i] = vzip1q_s64(a, b);
      out[2 * i + 1] = vzip2q_s64(a, b);
    });
    unrolled<kStepSlices>([&](auto i)
                              OAR_INLINE_BODY { vst1q_s8(x + 16 * i, vreinterpretq_s8_s64(out[i])); });
  }

  template <int NT>
  static void sweep(const PanelTask& p, const Int8Tokens& x, int64_t t, Plain::Soon& soon) {
    if constexpr (NT > 1) {
      if (x.size() < NT) return sweep<NT - 1>(p, x, t, soon);
    }
    for (int64_t row = p.row_begin; row < p.row_end; row += kPanelRows) tile<NT>(p, row, x, t, soon);
  }

  // A panel from `row` times the NT tokens of a block, the first of which is token t of the run.
  template <int NT>
  [[gnu::noinline]] static void tile(const PanelTask& p, int64_t row, const Int8Tokens& x, int64_t t,
                                     Plain::Soon& soon) {
    constexpr int kPairs = (NT + 1) / 2;
    const char* w = static_cast<const char*>(p.w) + row / kPanelRows * panel_bytes(p.K);
    OutLines out(p, row, 1, t, NT, panel_blocks(p.K));
    alignas(64) float sums[kVectors][NT][kLanes] = {};
    for (int64_t b = 0; b < panel_blocks(p.K); ++b) {
      soon.weights.fetch();
      soon.tokens.fetch();
      out.fetch();
      const char* block = w + panel_block_at(b);
      const int64_t steps = panel_steps(p.K, b);
      for (int i = 0; i < kVectors; ++i) {
        int32x4_t dot[kPairs][2];
        unrolled<kPairs>([&](auto q) OAR_INLINE_BODY { dot[q][0] = dot[q][1] = vdupq_n_s32(0); });
        for (int64_t s = 0; s < steps; ++s) {
          const char* lines = block + kPanelLine + s * kStepLines * kPanelLine;
          if (i == 0 && t == 0) {  // what no other sweep has asked for from memory
            for (int64_t l = 0; l < kStepLines; ++l)
              __builtin_prefetch(lines + l * kPanelLine + Plain::kAhead, 0, 3);
          }
          const int8_t* xs = x.at(0, b * (kPanelBlock / kPanelStep) + s);
          unrolled<kStepSlices>([&](auto k) OAR_INLINE_BODY {
            const char* at = lines + 2 * k * kPanelLine + i * 4 * kLanes;
            const int32x4_t a = vreinterpretq_s32_s8(NeonDotInt8::load_w(at)),
                            c = vreinterpretq_s32_s8(NeonDotInt8::load_w(at + kPanelLine));
            const int8x16_t w01 = vreinterpretq_s8_s32(vzip1q_s32(a, c)),
                            w23 = vreinterpretq_s8_s32(vzip2q_s32(a, c));
            unrolled<kPairs>([&](auto q) OAR_INLINE_BODY {
              const int8_t* pair = xs + 2 * q * kPanelStep;
              const int8x16_t xr =
                  2 * q + 1 < NT ? vld1q_s8(pair + 16 * k) : vcombine_s8(vld1_s8(pair + 8 * k), vdup_n_s8(0));
              dot[q][0] = vmmlaq_s32(dot[q][0], xr, w01);
              dot[q][1] = vmmlaq_s32(dot[q][1], xr, w23);
            });
          });
        }
        // A token in each half of the dots, with two rows in either.
        int32x4_t rows[NT];
        unrolled<NT>([&](auto j) OAR_INLINE_BODY {
          const int64x2_t lo = vreinterpretq_s64_s32(dot[j / 2][0]),
                          hi = vreinterpretq_s64_s32(dot[j / 2][1]);
          rows[j] = vreinterpretq_s32_s64(j % 2 == 0 ? vzip1q_s64(lo, hi) : vzip2q_s64(lo, hi));
        });
        Plain::flush<NT>(rows, sums[i], reinterpret_cast<const float*>(block) + i * kLanes, x.scales(b));
      }
    }
    for (int i = 0; i < kVectors; ++i) {
      for (int j = 0; j < NT; ++j) {
        Plain::store(p, row + i * kLanes, t + j, NeonDotInt8::load(sums[i][j]));
      }
    }
  }
};

}  // namespace
}  // namespace oar
