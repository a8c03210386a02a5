// Matmul of 8-bit floats as the file has them (f8_channel.h, f8_g128.h), over the core that multiplies what
// they become. Few tokens: elements are widened on their way to the product. Many: a piece of rows is
// widened to the worker's scratch and multiplied there. Both compute the same bits.
//
// The scale of a row is applied to its sums. That of a group of 128 k is applied to its elements, which are
// then rounded to what the core multiplies: to bf16 where it has bf16 products, as a checkpoint that is
// converted to bf16 would have them.
//
// A Widen does this for one type of element:
//
//   struct Widen {
//     using Number;                   // of the core's weights: float or bf16
//     using Reg;                      // the core's register of kStep weights
//     static constexpr float kUnit;   // what all elements are to be multiplied by
//     static constexpr int kSweeps;   // how many tiles of tokens may each widen a row for themselves
//     static Reg plain(const uint8_t*);            // kStep elements / kUnit
//     static Reg scaled(const uint8_t*, float d);  // kStep elements / kUnit * d
//     static void store(Number*, Reg);
//   };
#pragma once

#include <type_traits>

#include "kernels/cpu/matmul/matmul_rowdot.h"

namespace oar {

inline constexpr int64_t kF8Head = 4, kF8Group = 128, kF8GroupBytes = kF8Head + kF8Group;

// The Arch of matmul_rowdot.h that reads rows of 8-bit floats and multiplies as Numbers does.
template <class Numbers, class Widen, bool kGrouped>
struct F8Arch : Numbers {
  using W = uint8_t;
  static constexpr bool kOneStream = false, kInOrder = true;
  static int64_t row_bytes(int64_t K) { return kGrouped ? K / kF8Group * kF8GroupBytes : kF8Head + K; }
  static typename Widen::Reg load_at(const uint8_t* row, int64_t k) {
    if constexpr (kGrouped) {
      const uint8_t* group = row + k / kF8Group * kF8GroupBytes;
      return Widen::scaled(group + kF8Head + k % kF8Group, scale_at(group));
    }
    return Widen::plain(row + kF8Head + k);
  }
  // n < kStep elements and zeros: groups are whole steps.
  static typename Widen::Reg load_last(const uint8_t* row, int64_t k, int64_t n) {
    uint8_t last[Numbers::kStep] = {};
    std::memcpy(last, row + kF8Head + k, static_cast<size_t>(n));
    return Widen::plain(last);
  }
  static float scale_at(const uint8_t* head) {
    float scale;
    std::memcpy(&scale, head, sizeof scale);
    return scale * Widen::kUnit;
  }
};

// Base: the core of the widened weights; kDirect: it takes its activations as RowDotCore<Arch> does.
template <class Arch, class Widen, class Base, bool kGrouped, bool kDirect>
struct F8Core {
  using Direct = RowDotCore<Arch>;
  using Number = typename Widen::Number;
  static constexpr int64_t kRows = 32;
  // Scaling elements costs as much again: then one tile.
  static constexpr int64_t kDirectTokens = Arch::kTileTokens * (kGrouped ? 1 : Widen::kSweeps);
  static constexpr int64_t kPieceBytes = 256 << 10;  // of widened rows, which stay in the second-level cache

  static int64_t x_bytes(int64_t K) { return Base::x_bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return Arch::row_bytes(v.K); }
  static int64_t piece_rows(int64_t K) {
    const int64_t rows = kPieceBytes / (K * static_cast<int64_t>(sizeof(Number)));
    return std::clamp<int64_t>(rows, kRows, 256) / kRows * kRows;
  }
  // The scales of a piece's rows, then the rows.
  static int64_t scales_bytes(int64_t K) { return (piece_rows(K) * 4 + 63) / 64 * 64; }
  static int64_t piece_bytes(int64_t K) {
    return scales_bytes(K) + piece_rows(K) * K * static_cast<int64_t>(sizeof(Number)) / 64 * 64 + 64;
  }
  static int64_t scratch_bytes(const MatmulView& v) { return piece_bytes(v.K) + Base::scratch_bytes(v); }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return default_chunk_rows(v, total_rows, w_bytes(v), kRows);
  }
  static void pack(void* run, const PackTask& p) { Base::pack(run, p); }

  static void panel(const PanelTask& p) {
    const int64_t bytes = Arch::row_bytes(p.K), rows = piece_rows(p.K);
    auto* scale = static_cast<float*>(p.scratch);
    auto* numbers = reinterpret_cast<Number*>(static_cast<char*>(p.scratch) + scales_bytes(p.K));
    for (int64_t row = p.row_begin; row < p.row_end; row += rows) {
      const uint8_t* w = static_cast<const uint8_t*>(p.w) + row * bytes;
      const int64_t n = std::min(rows, p.row_end - row);
      PanelTask q = piece_of(p, row, n, numbers);
      if constexpr (!kGrouped) {
        for (int64_t i = 0; i < n; ++i) scale[i] = Arch::scale_at(w + i * bytes);
        q.row_scale = scale;
      }
      if constexpr (kDirect) {
        if (p.tokens <= kDirectTokens) {
          q.w = w;
          Direct::panel(q);
          continue;
        }
      }
      for (int64_t i = 0; i < n; ++i) widen(w + i * bytes, p.K, numbers + i * p.K);
      q.scratch = static_cast<char*>(p.scratch) + piece_bytes(p.K);
      Base::panel(q);
    }
  }

 private:
  static void widen(const uint8_t* row, int64_t K, Number* to) {
    const int64_t full = K / Arch::kStep * Arch::kStep;
    for (int64_t k = 0; k < full; k += Arch::kStep) {
      __builtin_prefetch(row + k + 4096, 0, 3);
      Widen::store(to + k, Arch::load_at(row, k));
    }
    if (full < K) {
      Number last[Arch::kStep];
      Widen::store(last, Arch::load_last(row, full, K - full));
      std::memcpy(to + full, last, static_cast<size_t>(K - full) * sizeof(Number));
    }
  }
};

// The four formats. Widen<T> is the Widen of elements T. Few tokens are multiplied directly by e4m3
// with scales per row if kDirect is 1, also per group if it is 2: each takes a set of tiles of its own. e5m2
// is rare.
template <class Numbers, template <class> class Widen, class Base = RowDotCore<Numbers>, int kDirect = 2>
constexpr auto f8_kernels(Isa isa) {
  const auto of = [isa]<class T, bool kGrouped>(const char* format) constexpr {
    using Arch = F8Arch<Numbers, Widen<T>, kGrouped>;
    constexpr bool direct = std::is_same_v<T, e4m3> && kDirect > (kGrouped ? 1 : 0);
    return MatmulDriver<F8Core<Arch, Widen<T>, Base, kGrouped, direct>>::kernels(format, isa);
  };
  return join(of.template operator()<e4m3, false>("e4m3_channel"),
              of.template operator()<e5m2, false>("e5m2_channel"),
              of.template operator()<e4m3, true>("e4m3_g128"),
              of.template operator()<e5m2, true>("e5m2_g128"));
}

}  // namespace oar
