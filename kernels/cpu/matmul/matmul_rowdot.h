// Matmul as dot products along K: the core for weights that stay row-major as the file has them. A tile of
// rows x tokens keeps one vector accumulator per output; lane l of it sums the k congruent to l in ascending
// order and a fixed tree joins the lanes at the end. So an output's value depends on its row, its token and K
// alone, whatever tile computed it.
//
// One source for all instruction sets: an Arch gives the vector types.
//
//   struct Arch {
//     using W, X;                    // storage of weight and packed activation elements
//     using WReg, XReg, Acc;
//     static constexpr int kStep;    // elements of K per step
//     static constexpr int kTileRows, kTileTokens;   // the tile for many tokens
//     static constexpr int kGemvRows;                // rows in flight for one token
//     static constexpr bool kOneStream;              // optional: rows of one token one after the other
//     static constexpr bool kInOrder;                // optional: for one token rows are fetched so
//     instead static Acc zero(); static WReg load_w(const W*);  static XReg load_x(const X*);   // kStep
//     elements, any alignment (X: 64) static Acc dot(Acc, WReg, XReg); static void reduce4(Acc, Acc, Acc,
//     Acc, float out[4]); static void pack(X* dst, const float* src, int64_t n);         // n elements, zeros
//     up to a multiple of kStep
//   };
//
// Where rows are more than their elements, instead of load_w():
//
//     static int64_t row_bytes(int64_t K);                        // W is a byte
//     static WReg load_at(const W* row, int64_t k);               // elements k .. k + kStep - 1 of a row
//     static WReg load_last(const W* row, int64_t k, int64_t n);  // n < kStep, and zeros
#pragma once

#include <cstring>

#include "kernels/cpu/matmul/matmul_driver.h"
#include "kernels/cpu/unrolled.h"

namespace oar {

template <class Arch>
struct RowDotCore {
  using W = typename Arch::W;
  using X = typename Arch::X;
  using Acc = typename Arch::Acc;
  static constexpr int kRows = 8;  // chunks hold whole tiles
  static constexpr int kStep = Arch::kStep;
  static constexpr bool kInOrder = requires { requires Arch::kInOrder; };
  static constexpr int kLine = 64;
  // Six tokens of a piece are 24 KB.
  static constexpr int64_t kPiece = 4096 / sizeof(X), kHeldRows = 32;

  static int64_t padded(int64_t K) { return (K + kStep - 1) / kStep * kStep; }
  // Elements of one packed token: rows start at multiples of 64 bytes.
  static int64_t stride(int64_t K) {
    constexpr int64_t kLine = 64 / sizeof(X);
    return (padded(K) + kLine - 1) / kLine * kLine;
  }
  static int64_t x_bytes(int64_t K) { return stride(K) * static_cast<int64_t>(sizeof(X)); }
  static int64_t w_bytes(const MatmulView& v) { return row_stride(v.K) * static_cast<int64_t>(sizeof(W)); }
  static int64_t scratch_bytes(const MatmulView&) { return 0; }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return default_chunk_rows(v, total_rows, w_bytes(v), kRows);
  }

  static void pack(void* run, const PackTask& p) {
    for (int64_t t = p.t_begin; t < p.t_end; ++t) {
      Arch::pack(static_cast<X*>(run) + t * stride(p.K) + p.k_begin, p.at(t, p.k_begin), p.k_end - p.k_begin);
    }
  }

  // W from one row to the next.
  static int64_t row_stride(int64_t K) {
    if constexpr (requires { Arch::row_bytes(K); }) return Arch::row_bytes(K);
    else return K;
  }
  [[gnu::always_inline]] static auto load(const W* row, int64_t k) {
    if constexpr (requires { Arch::load_at(row, k); }) return Arch::load_at(row, k);
    else return Arch::load_w(row + k);
  }
  // The tail of a row, zero-extended so that no load passes the end of the weights.
  static auto load_last(const W* row, int64_t k, int64_t n) {
    if constexpr (requires { Arch::load_last(row, k, n); }) {
      return Arch::load_last(row, k, n);
    } else {
      W last[kStep] = {};
      std::memcpy(last, row + k, static_cast<size_t>(n) * sizeof(W));
      return Arch::load_w(last);
    }
  }

  // Sums on their way through K, where it is taken in pieces.
  template <int NR, int NT>
  struct Held {
    Acc at[NR][NT];
  };

  // NR rows from `row` times NT tokens from `t`, k_begin <= k < k_end, both multiples of kStep or K. Sums
  // come from `held` unless k_begin is 0, and go there unless k_end is K.
  template <int NR, int NT, bool kPrefetch>
  [[gnu::noinline]] static void tile(const PanelTask& p, int64_t row, int64_t t, int64_t k_begin,
                                     int64_t k_end, Held<NR, NT>* held) {
    static_assert(NR % 4 == 0);
    const int64_t ldw = row_stride(p.K), ldx = stride(p.K), K = p.K, full = k_end / kStep * kStep;
    const W* w = static_cast<const W*>(p.w) + row * ldw;
    const X* x = static_cast<const X*>(p.x) + t * ldx;
    Acc acc[NR][NT];
    unrolled<NR>([&](auto i) OAR_INLINE_BODY {
      unrolled<NT>([&](auto j) OAR_INLINE_BODY { acc[i][j] = k_begin == 0 ? Arch::zero() : held->at[i][j]; });
    });
    for (int64_t k = k_begin; k < full; k += kStep) {
      typename Arch::XReg xr[NT];
      unrolled<NT>([&](auto j) OAR_INLINE_BODY { xr[j] = Arch::load_x(x + j * ldx + k); });
      unrolled<NR>([&](auto i) OAR_INLINE_BODY {
        const auto wr = load(w + i * ldw, k);
        // Of the next NR rows the same column: the distance that needs no special case at the end of a row.
        // Or their lines in the order of memory, which is one stream. Past the end of the weights a prefetch
        // does nothing.
        if constexpr (kPrefetch && NT == 1 && kInOrder) {
          constexpr int kEvery = kLine / (kStep * static_cast<int>(sizeof(W)));
          if constexpr (i % kEvery == 0) __builtin_prefetch(w + NR * (ldw + k) + i * kStep, 0, 3);
        } else if constexpr (kPrefetch) {
          __builtin_prefetch(w + (NR + i) * ldw + k, 0, 2);
        }
        unrolled<NT>([&](auto j) OAR_INLINE_BODY { acc[i][j] = Arch::dot(acc[i][j], wr, xr[j]); });
      });
    }
    if (full < k_end) {
      unrolled<NR>([&](auto i) OAR_INLINE_BODY {
        const auto wr = load_last(w + i * ldw, full, K - full);
        unrolled<NT>([&](auto j) OAR_INLINE_BODY {
          acc[i][j] = Arch::dot(acc[i][j], wr, Arch::load_x(x + j * ldx + full));
        });
      });
    }
    if (k_end < K) {
      unrolled<NR>([&](auto i) OAR_INLINE_BODY {
        unrolled<NT>([&](auto j) OAR_INLINE_BODY { held->at[i][j] = acc[i][j]; });
      });
      return;
    }
    unrolled<NT>([&](auto j) OAR_INLINE_BODY {
      unrolled<NR / 4>([&](auto four) OAR_INLINE_BODY {
        constexpr int i = 4 * four;
        alignas(16) float sums[4];
        Arch::reduce4(acc[i][j], acc[i + 1][j], acc[i + 2][j], acc[i + 3][j], sums);
        store(p, row + i, t + j, sums, 4);
      });
    });
  }

  // Four rows of one token, one after the other: the same sums. Not by a function of a row shared with
  // last_rows(): measured in turns that read 8 % less, with the same inner loop. Eight steps without a branch
  // leave room in the core's window for more lines under way (7 % on Zen 5, as much as clang's addressing).
  [[gnu::noinline]] static void four_rows(const PanelTask& p, int64_t row, int64_t t) {
    constexpr int64_t kAhead = 8192 / sizeof(W);
    const int64_t ldw = row_stride(p.K), K = p.K, full = K / kStep * kStep;
    const W* w = static_cast<const W*>(p.w) + row * ldw;
    const X* x = static_cast<const X*>(p.x) + t * stride(p.K);
    Acc acc[4];
    unrolled<4>([&](auto i) OAR_INLINE_BODY {
      acc[i] = Arch::zero();
#pragma GCC unroll 8
      for (int64_t k = 0; k < full; k += kStep) {
        __builtin_prefetch(w + i * ldw + k + kAhead, 0, 3);
        acc[i] = Arch::dot(acc[i], load(w + i * ldw, k), Arch::load_x(x + k));
      }
      if (full < K) {
        acc[i] = Arch::dot(acc[i], load_last(w + i * ldw, full, K - full), Arch::load_x(x + full));
      }
    });
    alignas(16) float sums[4];
    Arch::reduce4(acc[0], acc[1], acc[2], acc[3], sums);
    store(p, row, t, sums, 4);
  }

  static void store(const PanelTask& p, int64_t row, int64_t t, const float* sums, int n) {
    float* out = p.out + t * p.ldo + row;
    for (int i = 0; i < n; ++i) {
      float v = sums[i];
      if (p.row_scale != nullptr) v *= p.row_scale[row + i];
      if (p.bias != nullptr) v += p.bias[row + i];
      if (p.residual != nullptr) v += p.residual[t * p.ldo + row + i];
      out[i] = v;
    }
  }

  // Fewer than four rows at the end of a segment, one at a time.
  static void last_rows(const PanelTask& p, int64_t row) {
    const int64_t ldw = row_stride(p.K), ldx = stride(p.K), full = p.K / kStep * kStep;
    for (; row < p.row_end; ++row) {
      const W* w = static_cast<const W*>(p.w) + row * ldw;
      for (int64_t t = 0; t < p.tokens; ++t) {
        const X* x = static_cast<const X*>(p.x) + t * ldx;
        Acc acc = Arch::zero();
        for (int64_t k = 0; k < full; k += kStep) acc = Arch::dot(acc, load(w, k), Arch::load_x(x + k));
        if (full < p.K) acc = Arch::dot(acc, load_last(w, full, p.K - full), Arch::load_x(x + full));
        float sums[4];
        Arch::reduce4(acc, Arch::zero(), Arch::zero(), Arch::zero(), sums);
        store(p, row, t, sums, 1);
      }
    }
  }

  // All rows of the panel against NT tokens. Of a long K a piece at a time, so that the tokens' part of it
  // stays in the first-level cache while kHeldRows rows pass; sums are the same.
  template <int NR, int NT, bool kPrefetch>
  static void sweep(const PanelTask& p, int64_t t) {
    int64_t row = p.row_begin;
    if constexpr (NT == 1 && requires { requires Arch::kOneStream; }) {
      for (; row + 4 <= p.row_end; row += 4) four_rows(p, row, t);
      return;
    }
    if (NT > 1 && p.K > kPiece) {
      Held<NR, NT> held[kHeldRows / NR];
      for (int64_t end; row + NR <= p.row_end; row = end) {
        end = row + std::min(kHeldRows, (p.row_end - row) / NR * NR);
        for (int64_t k = 0; k < p.K; k += kPiece) {
          for (int64_t r = row; r < end; r += NR) {
            tile<NR, NT, kPrefetch>(p, r, t, k, std::min(p.K, k + kPiece), held + (r - row) / NR);
          }
        }
      }
    }
    for (; row + NR <= p.row_end; row += NR) tile<NR, NT, kPrefetch>(p, row, t, 0, p.K, nullptr);
    if constexpr (NR > 4) {
      for (; row + 4 <= p.row_end; row += 4) tile<4, NT, kPrefetch>(p, row, t, 0, p.K, nullptr);
    }
  }

  // Fewer than a tile of tokens: the whole of a small batch, or what is left of a large one. Prefetching
  // costs the latter little and is not worth a second copy of the code.
  template <int NT>
  static void last_tokens(const PanelTask& p, int64_t t) {
    if constexpr (NT > 0) {
      if (p.tokens - t == NT) {
        sweep<NT == 1 ? Arch::kGemvRows : Arch::kTileRows, NT, true>(p, t);
      } else {
        last_tokens<NT - 1>(p, t);
      }
    }
  }

  static void panel(const PanelTask& p) {
    constexpr int NT = Arch::kTileTokens;
    int64_t t = 0;
    // The first sweep brings the panel from memory, the others find it in the cache.
    if (p.tokens >= NT) {
      sweep<Arch::kTileRows, NT, true>(p, 0);
      for (t = NT; t + NT <= p.tokens; t += NT) sweep<Arch::kTileRows, NT, false>(p, t);
    }
    last_tokens<NT - 1>(p, t);
    last_rows(p, p.row_begin + (p.row_end - p.row_begin) / 4 * 4);
  }
};

}  // namespace oar
