// Matmul of weights in int8.panel16 (int8_panel.h) with activations quantized on the fly (int8_token.h). The
// products of a block of 256 k are summed in int32, exactly: |dot| <= 256 * 128 * 127 < 2^24, so that its
// conversion to float is exact too. Block after block, in ascending order, is added as
//
//   sum = fma(float(dot), scale_w * scale_x, sum)
//
// so an output depends on its row, its token and K alone, whichever instruction computed the dots.
//
// An Arch gives vectors of kLanes weight rows:
//
//   struct Arch {
//     using WReg, XReg, Dot, Sum;
//     static constexpr int kLanes;                      // 16, 8 or 4 rows of a panel
//     static constexpr bool kBiased;                    // w is read as w + 128: dots start at -128 * sum(x)
//     static constexpr int kTileVectors, kTileTokens;   // the tile for many tokens; tokens divide 16
//     static constexpr int kGemvVectors;                // vectors in flight for one token
//     static WReg load_w(const char* line);             // kLanes * 4 bytes
//     static XReg load_x(const int8_t* x);              // 4 bytes to all lanes
//     static Dot start(int32_t);  static Dot dot(Dot, WReg, XReg);
//     static Sum load(const float*);  static void store(float*, Sum);  static Sum add(Sum, Sum);
//     static Sum flush(Sum, Dot, Sum scale_w, float scale_x);
//   };
#pragma once

#include "kernels/cpu/matmul/int8_token.h"
#include "kernels/cpu/matmul/matmul_prefetch.h"
#include "kernels/cpu/unrolled.h"

namespace oar {

template <class Arch>
struct Int8Core {
  static constexpr int64_t kLanes = Arch::kLanes;
  static constexpr int64_t kRows = 32;
  // What many tokens take at a time: whole tiles and whole panels.
  static constexpr int64_t kTileRows = std::max<int64_t>(kRows, Arch::kTileVectors* kLanes);
  static_assert(kTileRows % kPanelRows == 0 && kTileRows % (Arch::kTileVectors * kLanes) == 0);
  static constexpr int64_t kPieceBytes = 512 << 10;  // of panels that stay in the second-level cache
  // How far ahead a panel is fetched: 100 ns of latency at 20 GB/s of one core are 2 KB; twice that, to be
  // safe.
  static constexpr int64_t kAhead = 4096;

  static int64_t x_bytes(int64_t K) { return Int8Tokens::bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return panel_bytes(v.K) / kPanelRows; }
  static int64_t scratch_bytes(const MatmulView&) { return 0; }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    const int64_t one = std::max<int64_t>(kRows, Arch::kGemvVectors * kLanes);
    return default_chunk_rows(v, total_rows, w_bytes(v), v.P / v.runs <= 1 ? one : kTileRows);
  }
  static void pack(void* run, const PackTask& p) { Int8Tokens::pack(run, p); }

  // What is read after this, to be fetched meanwhile.
  struct Soon {
    Ahead weights, tokens;
  };

  // Adds the dots of a block and NT tokens to their sums. By way of memory, or g++ 12, short of registers
  // from here on, stores every dot of the tile at each step.
  template <int NT>
  [[gnu::always_inline]] static void flush(const typename Arch::Dot dot[NT], float sums[NT][kLanes],
                                           const float* scales_w, const float* scales_x) {
    typename Arch::Dot done[NT];
    unrolled<NT>([&](auto j) OAR_INLINE_BODY { done[j] = dot[j]; });
    asm volatile("" : : "r"(&done) : "memory");
    const auto scale_w = Arch::load(scales_w);
    for (int j = 0; j < NT; ++j) {
      Arch::store(sums[j], Arch::flush(Arch::load(sums[j]), done[j], scale_w, scales_x[j]));
    }
  }

  // NV vectors of rows from `row` (a multiple of kLanes) times tokens j .. j + NT of a block of 16, the first
  // of which is token t of the run.
  template <int NV, int NT, bool kPrefetch>
  [[gnu::noinline]] static void tile(const PanelTask& p, int64_t row, const Int8Tokens& x, int64_t t,
                                     int64_t j0, Soon& soon) {
    const char* w[NV];  // at the panel's first byte
    for (int i = 0; i < NV; ++i) {
      w[i] = static_cast<const char*>(p.w) + (row + i * kLanes) / kPanelRows * panel_bytes(p.K);
    }
    constexpr int64_t kPanels = (NV * kLanes + kPanelRows - 1) / kPanelRows;
    const int64_t skip = (kPanels - 1) * panel_bytes(p.K);
    constexpr auto lane = [](int i, int64_t first) { return (first + i * kLanes) % kPanelRows * 4; };
    OutLines out(p, row, (NV * kLanes + OutLines::kLine - 1) / OutLines::kLine, t + j0, NT,
                 panel_k(p.K) / kPanelStep);
    alignas(64) float sums[NV][NT][kLanes] = {};
    for (int64_t b = 0; b < panel_blocks(p.K); ++b) {
      typename Arch::Dot dot[NV][NT];
      const int32_t* starts = x.starts(b) + j0;
      unrolled<NT>([&](auto j) OAR_INLINE_BODY {
        const auto start = Arch::start(Arch::kBiased ? starts[j] : 0);
        unrolled<NV>([&](auto i) OAR_INLINE_BODY { dot[i][j] = start; });
      });
      const int64_t steps = panel_steps(p.K, b), at = panel_block_at(b) + kPanelLine;
      // Behind the end of a panel comes the one that follows those read here.
      const int64_t ahead = at + kAhead < panel_bytes(p.K) ? kAhead : kAhead + skip;
      for (int64_t s = 0; s < steps; ++s) {
        const int8_t* xs = x.at(j0, b * (kPanelBlock / kPanelStep) + s);
        if constexpr (NT > 1) {  // one token waits for memory; asking took 2 to 6 % of it
          soon.weights.fetch();
          soon.tokens.fetch();
          out.fetch();
        }
        for (int64_t l = 0; l < kStepLines; ++l) {
          typename Arch::WReg wr[NV];
          unrolled<NV>([&](auto i) OAR_INLINE_BODY {
            const char* line = w[i] + at + (s * kStepLines + l) * kPanelLine + lane(i, row);
            wr[i] = Arch::load_w(line);
            if constexpr (kPrefetch) __builtin_prefetch(line + ahead, 0, 2);
          });
          unrolled<NT>([&](auto j) OAR_INLINE_BODY {
            const auto xr = Arch::load_x(xs + j * kPanelStep + l * 4);
            unrolled<NV>([&](auto i) OAR_INLINE_BODY { dot[i][j] = Arch::dot(dot[i][j], wr[i], xr); });
          });
        }
      }
      unrolled<NV>([&](auto i) OAR_INLINE_BODY {
        flush<NT>(dot[i], sums[i], reinterpret_cast<const float*>(w[i] + panel_block_at(b) + lane(i, row)),
                  x.scales(b) + j0);
      });
    }
    for (int i = 0; i < NV; ++i) {
      for (int j = 0; j < NT; ++j) store(p, row + i * kLanes, t + j0 + j, Arch::load(sums[i][j]));
    }
  }

  // kLanes outputs of token t from `row`; rows past the panel's end are padding.
  static void store(const PanelTask& p, int64_t row, int64_t t, typename Arch::Sum sum) {
    const int64_t n = std::min<int64_t>(kLanes, p.row_end - row), at = t * p.ldo + row;
    if (n == kLanes) {
      if (p.bias != nullptr) sum = Arch::add(sum, Arch::load(p.bias + row));
      if (p.residual != nullptr) sum = Arch::add(sum, Arch::load(p.residual + at));
      Arch::store(p.out + at, sum);
      return;
    }
    float v[kLanes];
    Arch::store(v, sum);
    for (int64_t i = 0; i < n; ++i) {
      if (p.bias != nullptr) v[i] += p.bias[row + i];
      if (p.residual != nullptr) v[i] += p.residual[at + i];
      p.out[at + i] = v[i];
    }
  }

  template <int NV, int NT, bool kPrefetch>
  static void sweep(const PanelTask& p, const Int8Tokens& x, int64_t t, int64_t j, Soon& soon) {
    int64_t row = p.row_begin;
    for (; row + (NV - 1) * kLanes < p.row_end; row += NV * kLanes) {
      tile<NV, NT, kPrefetch>(p, row, x, t, j, soon);
    }
    if constexpr (NV > 1) {
      for (; row < p.row_end; row += kLanes) tile<1, NT, kPrefetch>(p, row, x, t, j, soon);
    }
  }

  // The last `left` tokens of a block, fewer than a tile: the whole of a small batch, or what is left of a
  // large one. Prefetching costs the latter little and is not worth a second copy of the code.
  template <int NT>
  static void last_tokens(const PanelTask& p, const Int8Tokens& x, int64_t t, int64_t j, Soon& soon) {
    if constexpr (NT > 0) {
      if (x.size() - j == NT) {
        sweep<NT == 1 ? Arch::kGemvVectors : Arch::kTileVectors, NT, true>(p, x, t, j, soon);
      } else {
        last_tokens<NT - 1>(p, x, t, j, soon);
      }
    }
  }

  // To be fetched in so many parts: the bytes after the chunk, unless the caller knows better.
  static Ahead next_bytes(const PanelTask& p, int64_t parts) {
    if (p.ahead != nullptr) return {p.ahead, p.ahead_bytes, parts};
    const auto panels = [](int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; };
    const int64_t end = panels(p.row_end),
                  next = std::min(panels(p.row_end - p.row_begin), panels(p.rows) - end);
    return {static_cast<const char*>(p.w) + end * panel_bytes(p.K), next * panel_bytes(p.K), parts};
  }

  // The first sweep over the panel brings what no other chunk has asked for from memory.
  static void panel(const PanelTask& p) {
    constexpr int NT = Arch::kTileTokens, kVectors = Arch::kTileVectors * kLanes;
    static_assert(Int8Tokens::kBlock % NT == 0);
    const int64_t steps = panel_k(p.K) / kPanelStep,
                  blocks = (p.tokens + Int8Tokens::kBlock - 1) / Int8Tokens::kBlock;
    // Of a block of tokens.
    const int64_t parts =
        steps * (Int8Tokens::kBlock / NT) * ((p.row_end - p.row_begin + kVectors - 1) / kVectors);
    const Ahead nothing(nullptr, 0, 1);
    Soon soon{p.tokens > NT ? next_bytes(p, blocks * parts) : nothing, nothing};
    for (int64_t t = 0; t < p.tokens; t += Int8Tokens::kBlock) {
      const Int8Tokens x(p.x, p.K, p.tokens, t);
      const int64_t next = t + Int8Tokens::kBlock;
      if (next < p.tokens) {
        const int64_t n = std::min(Int8Tokens::kBlock, p.tokens - next);
        soon.tokens = {static_cast<const char*>(p.x) + next * x_bytes(p.K), n * x_bytes(p.K), parts};
      }
      int64_t j = 0;
      for (; j + NT <= x.size(); j += NT) {
        if (t + j == 0) {
          sweep<Arch::kTileVectors, NT, true>(p, x, t, j, soon);
        } else {
          sweep<Arch::kTileVectors, NT, false>(p, x, t, j, soon);
        }
      }
      last_tokens<NT - 1>(p, x, t, j, soon);
    }
  }
};

// Core for every format that lies in int8.panel16.
template <class Core>
constexpr auto int8_kernels(Isa isa, const char* level = nullptr) {
  return MatmulDriver<Core>::kernels(kInt8PanelFormats, isa, level);
}

}  // namespace oar
