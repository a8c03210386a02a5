// Matmul of q8_0 weights in int8.panel16 with activations quantized on the fly: each (token, 32 k) becomes 32
// signed bytes and an f32 scale, absmax / 127. The products of a group are summed in int32, which is exact;
// group after group, in ascending order, is added as
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
//     static constexpr int kTileVectors, kTileTokens;   // the tile for many tokens
//     static constexpr int kGemvVectors;                // vectors in flight for one token
//     static WReg load_w(const char* line);             // kLanes * 4 bytes
//     static XReg load_x(const int8_t* x);              // 4 bytes to all lanes
//     static Dot start(int32_t);  static Dot dot(Dot, WReg, XReg);
//     static Sum zero();  static Sum load_scales(const char* f16);  static Sum load(const float*);
//     static Sum flush(Sum, Dot, Sum scale_w, float scale_x);
//     static Sum add(Sum, Sum);  static void store(float*, Sum);
//   };
#pragma once

#include <cstring>

#include "kernels/cpu/int8_panel.h"
#include "kernels/cpu/matmul_driver.h"

namespace oar {

// One packed token: [groups][32] int8, then [groups] f32 scales, then [groups] int32 -128 * sum of the group.
struct Int8Token {
  static int64_t bytes(int64_t K) { return (panel_groups(K) * (kPanelGroup + 8) + 63) / 64 * 64; }
};

// 32 (or `count` and zeros) values to int8. A group with a NaN or an infinity gets a NaN scale, which reaches
// every output of its token. Groups below 1e-30 count as zero: the reciprocal of their scale would overflow.
static inline float quantize_group(const float* x, int64_t count, int8_t* q, int32_t* sum) {
  float v[kPanelGroup] = {};
  std::memcpy(v, x, static_cast<size_t>(count) * sizeof(float));
  uint32_t bits[kPanelGroup], most = 0;
  std::memcpy(bits, v, sizeof bits);
  for (uint32_t b : bits) {
    b &= 0x7fffffffu;
    most = b > most ? b : most;
  }
  float absmax;
  std::memcpy(&absmax, &most, sizeof absmax);
  const bool finite = most<0x7f800000u, any = absmax> 1e-30f;
  const float inverse = finite && any ? 127.f / absmax : 0.f;
  // Adding 1.5 * 2^23 rounds to an integer, to nearest even, and leaves it in the low bits.
  constexpr float kRound = 12582912.f;
  int32_t total = 0;
  for (int64_t i = 0; i < kPanelGroup; ++i) {
    const float scaled = (finite ? v[i] : 0.f) * inverse + kRound;
    int32_t n;
    std::memcpy(&n, &scaled, sizeof n);
    n -= 0x4b400000;
    q[i] = static_cast<int8_t>(n);
    total += n;
  }
  *sum = total;
  if (!finite) return __builtin_nanf("");
  return any ? absmax / 127.f : 0.f;
}

template <class Arch>
struct Int8Core {
  static constexpr int64_t kLanes = Arch::kLanes;
  static constexpr int64_t kRows = 32;
  // How far ahead a panel is fetched: 100 ns of latency at 20 GB/s of one core are 2 KB; twice that, to be
  // safe.
  static constexpr int64_t kAhead = 4096;

  static int64_t x_bytes(int64_t K) { return Int8Token::bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return panel_bytes(v.K) / kPanelRows; }
  static int64_t scratch_bytes(const MatmulView&) { return 0; }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    const int64_t streams = v.P / v.runs <= 1 ? Arch::kGemvVectors * kLanes : kRows;
    return default_chunk_rows(v, total_rows, w_bytes(v), std::max<int64_t>(kRows, streams));
  }

  static void pack(void* run, const PackTask& p) {
    const int64_t groups = panel_groups(p.K);
    for (int64_t t = p.t_begin; t < p.t_end; ++t) {
      char* token = static_cast<char*>(run) + t * x_bytes(p.K);
      for (int64_t k = p.k_begin; k < p.k_end; k += kPanelGroup) {
        const int64_t g = k / kPanelGroup;
        int32_t sum;
        const float scale = quantize_group(p.row(t) + k, std::min(kPanelGroup, p.K - k),
                                           reinterpret_cast<int8_t*>(token + g * kPanelGroup), &sum);
        const int32_t bias = -128 * sum;
        std::memcpy(token + groups * kPanelGroup + g * 4, &scale, 4);
        std::memcpy(token + groups * (kPanelGroup + 4) + g * 4, &bias, 4);
      }
    }
  }

  // NV vectors of rows from `row` (a multiple of kLanes) times NT tokens from t.
  template <int NV, int NT, bool kPrefetch>
  [[gnu::noinline]] static void tile(const PanelTask& p, int64_t row, int64_t t) {
    const int64_t groups = panel_groups(p.K), token_bytes = x_bytes(p.K);
    const char* w[NV];  // at the vector's lane of the panel's first byte
    for (int i = 0; i < NV; ++i) {
      const int64_t r = row + i * kLanes;
      w[i] = static_cast<const char*>(p.w) + r / kPanelRows * panel_bytes(p.K);
    }
    constexpr auto lane = [](int i, int64_t first) { return (first + i * kLanes) % kPanelRows; };
    const char* x = static_cast<const char*>(p.x) + t * token_bytes;
    typename Arch::Sum sum[NV][NT];
    for (auto& v : sum) {
      for (auto& s : v) s = Arch::zero();
    }
    for (int64_t g = 0; g < groups; ++g) {
      typename Arch::Dot dot[NV][NT];
#pragma GCC unroll 8
      for (int j = 0; j < NT; ++j) {
        int32_t bias = 0;
        if constexpr (Arch::kBiased) {
          std::memcpy(&bias, x + j * token_bytes + groups * (kPanelGroup + 4) + g * 4, 4);
        }
#pragma GCC unroll 4
        for (int i = 0; i < NV; ++i) dot[i][j] = Arch::start(bias);
      }
      const int64_t lines = panel_lines_at(g);
#pragma GCC unroll 8
      for (int l = 0; l < kPanelLines; ++l) {
        typename Arch::WReg wr[NV];
#pragma GCC unroll 4
        for (int i = 0; i < NV; ++i) {
          const char* line = w[i] + lines + l * kPanelLine + lane(i, row) * 4;
          wr[i] = Arch::load_w(line);
          if constexpr (kPrefetch) __builtin_prefetch(line + kAhead, 0, 3);
        }
#pragma GCC unroll 8
        for (int j = 0; j < NT; ++j) {
          const auto xr =
              Arch::load_x(reinterpret_cast<const int8_t*>(x + j * token_bytes + g * kPanelGroup + l * 4));
#pragma GCC unroll 4
          for (int i = 0; i < NV; ++i) dot[i][j] = Arch::dot(dot[i][j], wr[i], xr);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < NV; ++i) {
        const auto scale_w = Arch::load_scales(w[i] + panel_scales_at(g) + lane(i, row) * 2);
#pragma GCC unroll 8
        for (int j = 0; j < NT; ++j) {
          float scale_x;
          std::memcpy(&scale_x, x + j * token_bytes + groups * kPanelGroup + g * 4, 4);
          sum[i][j] = Arch::flush(sum[i][j], dot[i][j], scale_w, scale_x);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < NV; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < NT; ++j) store(p, row + i * kLanes, t + j, sum[i][j]);
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
  static void sweep(const PanelTask& p, int64_t t) {
    int64_t row = p.row_begin;
    for (; row + (NV - 1) * kLanes < p.row_end; row += NV * kLanes) tile<NV, NT, kPrefetch>(p, row, t);
    if constexpr (NV > 1) {
      for (; row < p.row_end; row += kLanes) tile<1, NT, kPrefetch>(p, row, t);
    }
  }

  // Fewer than a tile of tokens: the whole of a small batch, or what is left of a large one. Prefetching
  // costs the latter little and is not worth a second copy of the code.
  template <int NT>
  static void last_tokens(const PanelTask& p, int64_t t) {
    if constexpr (NT > 0) {
      if (p.tokens - t == NT) {
        sweep<NT == 1 ? Arch::kGemvVectors : Arch::kTileVectors, NT, true>(p, t);
      } else {
        last_tokens<NT - 1>(p, t);
      }
    }
  }

  // Tokens from t on; the first sweep over the panel brings it from memory when t is 0.
  static void rest(const PanelTask& p, int64_t t) {
    constexpr int NT = Arch::kTileTokens;
    if (t == 0 && p.tokens >= NT) {
      sweep<Arch::kTileVectors, NT, true>(p, 0);
      t = NT;
    }
    for (; t + NT <= p.tokens; t += NT) sweep<Arch::kTileVectors, NT, false>(p, t);
    last_tokens<NT - 1>(p, t);
  }

  static void panel(const PanelTask& p) { rest(p, 0); }
};

}  // namespace oar
