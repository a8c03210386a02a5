// The core of int8_core.h on AMX tiles, for files compiled with AMX.
//
// Sixteen lines of a panel are a B tile, 64 k x 16 rows; a step of 16 packed tokens is an A tile; their
// product adds to the int32 dots [16 tokens][16 rows]. Two panels by two blocks of tokens go through K
// together, four products for four loads. At the end of each 256 k the dots pass through a buffer to the
// vector unit, which scales and adds them to sums in the first-level cache. It does a quarter of them in each
// step of the following block, so that tiles and vectors work at the same time. Dots are exact and the
// additions are those of int8_core.h: the values are the vector kernel's, to the bit.
//
// Roofline: 16 products of 16 cycles for 32 rows x 32 tokens x 256 k; the vector unit takes 64 x 3
// instructions, about 100 cycles on two ports, beside those 256.
#pragma once

#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul/int8_vnni.h"

namespace oar {
namespace {

struct AmxInt8Core {
  using Vnni = Int8Core<VnniInt8Streams>;
  static constexpr int64_t kTile = 16;
  static constexpr int64_t kRows = 2 * kTile;
  static constexpr int64_t kTileRows = kRows;
  // From here on tiles cost less than vectors, even when they are not full.
  static constexpr int64_t kTileFrom = 4;

  struct alignas(64) Dots {
    int32_t at[2][2][kTile][kTile];  // [token block][panel][token][row]
  };
  struct alignas(64) Sums {
    float at[2][2][kTile][kTile];
  };

  static int64_t x_bytes(int64_t K) { return Vnni::x_bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return Vnni::w_bytes(v); }
  // Rows of a call with many tokens: the panels and the packed tokens share 2 MB of second-level cache.
  static constexpr int64_t kManyTokens = 128, kPieceBytes = 768 << 10, kMinChunks = 16;

  static int64_t scratch_bytes(const MatmulView&) { return 0; }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    if (v.P / v.runs < kManyTokens) {
      return default_chunk_rows(v, total_rows, w_bytes(v), v.P / v.runs <= 1 ? 64 : kRows);
    }
    return std::max(kRows, std::min(kPieceBytes / w_bytes(v), total_rows / kMinChunks) / kRows * kRows);
  }
  static void pack(void* run, const PackTask& p) { Vnni::pack(run, p); }

  static void panel(const PanelTask& p) {
    if (p.tokens < kTileFrom) return Vnni::panel(p);
    const int64_t steps = panel_k(p.K) / kPanelStep, pairs = (p.row_end - p.row_begin + kRows - 1) / kRows;
    Ahead ahead = Vnni::next_bytes(p, (p.tokens + 2 * kTile - 1) / (2 * kTile) * pairs * steps);
    int64_t first = 0, second = 0;  // as configured
    for (int64_t t = 0; t < p.tokens; t += 2 * kTile) {
      const int64_t n0 = std::min(kTile, p.tokens - t), n1 = std::min(kTile, p.tokens - t - n0);
      if (n0 != first || n1 != second) configure(first = n0, second = n1);
      sweep(p, t, InPlace(p, t == 0), ahead);
    }
    _tile_release();
  }

  // As panel(), for so few tokens that each weight passes once, of weights in another form: `Weights`, which
  // has the interface of InPlace, brings a step of them to int8.panel16 while the one before is multiplied.
  static constexpr int64_t kInPassingTokens = 2 * kTile;
  template <class Weights>
  static void in_passing(const PanelTask& p, Weights w) {
    configure(std::min(kTile, p.tokens), std::max<int64_t>(0, p.tokens - kTile));
    Ahead nothing(nullptr, 0, 1);
    sweep(p, 0, w, nothing);
    _tile_release();
  }

 private:
  // Pairs of panels where they lie in memory.
  class InPlace {
   public:
    InPlace(const PanelTask& p, bool first_time)
        : w_(static_cast<const char*>(p.w) + p.row_begin / kPanelRows * panel_bytes(p.K)),
          bytes_(panel_bytes(p.K)),
          first_time_(first_time) {}
    // Of panel i of the pair, block b.
    const char* scales(int i, int64_t b) const { return w_ + i * bytes_ + panel_block_at(b); }
    // Its steps. A value: members would be read again after each tile load, which may write anything as far
    // as the compiler knows.
    struct Steps {
      const char* first;
      const char* operator[](int64_t s) const { return first + s * kStepLines * kPanelLine; }
    };
    Steps steps(int i, int64_t b) const { return {scales(i, b) + kPanelLine}; }
    // Beside the product of panel i (of NP), step s of block b: the first time past a panel brings it from
    // memory. Behind its end comes the panel NP further on.
    template <int NP>
    void during(int i, int64_t b, int64_t s) const {
      if (!first_time_) return;
      const int64_t at = panel_block_at(b) + Vnni::kAhead;
      const char* line = w_ + (at < bytes_ ? i * bytes_ + at : (NP - 1 + i) * bytes_ + at) +
                         (s * kStepLines + 1) * kPanelLine;
      for (int64_t l = 0; l < kStepLines; ++l) _mm_prefetch(line + l * kPanelLine, _MM_HINT_T0);
    }
    void next_pair() { w_ += 2 * bytes_; }

   private:
    const char* w_;
    int64_t bytes_;
    bool first_time_;
  };

  // All rows of the chunk times the tokens from t, at most 32, as configured.
  template <class Weights>
  static void sweep(const PanelTask& p, int64_t t, Weights w, Ahead& ahead) {
    for (int64_t row = p.row_begin; row < p.row_end; row += kRows, w.next_pair()) {
      const bool two = row + kTile < p.row_end;
      if (p.tokens - t > kTile) {
        two ? block<2, 2>(p, row, t, w, ahead) : block<2, 1>(p, row, t, w, ahead);
      } else {
        two ? block<1, 2>(p, row, t, w, ahead) : block<1, 1>(p, row, t, w, ahead);
      }
    }
  }

  // Tiles 0..3 receive the dots [token block][panel], 4..5 hold activations, 6..7 weights.
  static void configure(int64_t first, int64_t second) {
    const int64_t n[] = {first, std::max<int64_t>(second, 1)};
    TileConfig c;
    for (int i = 0; i < 4; ++i) c.set(i, n[i / 2], 64);
    for (int i = 0; i < 2; ++i) c.set(4 + i, n[i], kPanelStep);
    for (int i = 6; i < 8; ++i) c.set(i, kStepLines, kPanelLine);
    load_config(c);
  }

  // sums += dots of one tile, scaled. Rows of absent tokens are neither written by the tiles nor read here.
  static void flush(const Int8Tokens& x, int64_t b, const char* scale_at, const int32_t (*dots)[kTile],
                    float (*sums)[kTile]) {
    const __m512 scale_w = _mm512_loadu_ps(scale_at);
    const float* scales = x.scales(b);
    const int64_t n = x.size();
#pragma GCC unroll 4
    for (int64_t j = 0; j < n; ++j) {
      const __m512 sum = _mm512_load_ps(sums[j]);
      _mm512_store_ps(sums[j], VnniInt8::flush(sum, _mm512_load_si512(dots[j]), scale_w, scales[j]));
    }
  }

  // NT blocks of tokens from t times NP panels from `row`.
  template <int NT, int NP, class Weights>
  static void block(const PanelTask& p, int64_t row, int64_t t, Weights& w, Ahead& ahead) {
    const Int8Tokens x0(p.x, p.K, p.tokens, t), x1(p.x, p.K, p.tokens, t + (NT - 1) * kTile);
    Dots dots[2];
    Sums sums{};
    // Half of the tiles are absent with one block of tokens; the others have more time until they are scaled.
    const auto flush_tile = [&](int64_t b, int64_t i) {
      if (NT == 1) i -= 2;
      const int64_t tb = i / 2, panel = i % 2;
      if (i < 0 || panel >= NP) return;
      flush(tb == 0 ? x0 : x1, b, w.scales(static_cast<int>(panel), b), dots[b % 2].at[tb][panel],
            sums.at[tb][panel]);
    };
    const int64_t blocks = panel_blocks(p.K);
    OutLines out(p, row, 2, t, x0.size() + (NT == 2 ? x1.size() : 0), panel_k(p.K) / kPanelStep);
    for (int64_t b = 0; b < blocks; ++b) {
      _tile_zero(0);
      if constexpr (NP == 2) _tile_zero(1);
      if constexpr (NT == 2) _tile_zero(2);
      if constexpr (NT == 2 && NP == 2) _tile_zero(3);
      const int64_t steps = panel_steps(p.K, b);
      const auto w0 = w.steps(0, b), w1 = w.steps(NP - 1, b);
      for (int64_t s = 0; s < steps; ++s) {
        const int64_t k = b * (kPanelBlock / kPanelStep) + s;
        __asm__ volatile("" ::: "memory");  // the tile loads do not tell the compiler that they read memory
        _tile_loadd(4, x0.at(0, k), kPanelStep);
        _tile_loadd(6, w0[s], kPanelLine);
        _tile_dpbssd(0, 4, 6);
        w.template during<NP>(0, b, s);
        if constexpr (NP == 2) {
          _tile_loadd(7, w1[s], kPanelLine);
          _tile_dpbssd(1, 4, 7);
          w.template during<NP>(1, b, s);
        }
        if constexpr (NT == 2) {
          _tile_loadd(5, x1.at(0, k), kPanelStep);
          _tile_dpbssd(2, 5, 6);
          if constexpr (NP == 2) _tile_dpbssd(3, 5, 7);
        }
        ahead.fetch();
        out.fetch();
        if (b > 0) flush_tile(b - 1, s);
      }
      for (int64_t s = steps; s < kPanelBlock / kPanelStep; ++s) {  // a short last block
        for (int i = 0; i < NP; ++i) w.template during<NP>(i, b, s);
        if (b > 0) flush_tile(b - 1, s);
      }
      Dots& d = dots[b % 2];
      _tile_stored(0, d.at[0][0], 64);
      if constexpr (NP == 2) _tile_stored(1, d.at[0][1], 64);
      if constexpr (NT == 2) _tile_stored(2, d.at[1][0], 64);
      if constexpr (NT == 2 && NP == 2) _tile_stored(3, d.at[1][1], 64);
    }
    for (int i = 0; i < 4; ++i) flush_tile(blocks - 1, i);
    for (int tb = 0; tb < NT; ++tb) {
      for (int panel = 0; panel < NP; ++panel) {
        for (int64_t j = 0; j < (tb == 0 ? x0 : x1).size(); ++j) {
          Vnni::store(p, row + panel * kTile, t + tb * kTile + j, _mm512_load_ps(sums.at[tb][panel][j]));
        }
      }
    }
  }
};

}  // namespace
}  // namespace oar
