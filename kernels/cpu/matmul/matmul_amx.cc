// Matmul on AMX tiles (Sapphire Rapids and later): bf16 weights as they lie in the file.
//
// A weight tile, 16 rows x 32 k, is the A operand: its rows are loaded straight from the row-major weight.
// The activations are the B operand, packed in phase 0 into tiles of 16 k-pairs x 16 tokens, the last block
// of a run with only as many columns as it has tokens. So a result tile is [16 weight rows][tokens] and is
// transposed on its way out. One tile instruction adds the 32 products of a step to each output in an order
// of its own, the steps come in ascending order, and sums between steps are f32 wherever they are kept: a
// value depends on its row and its token alone.
//
// Two ways through a panel. Few tokens: memory bound, the sums of a 32 x 32 block stay in tiles over all of K
// and the next rows are prefetched meanwhile. Many tokens: the panel is copied block by block into tiles that
// lie together (256 rows x 1024 k, 512 KB of the second-level cache), all tokens pass by, 32 at a time, and
// partial sums wait in scratch.
//
// Roofline: 16 cycles a tile product. With both operands in the second-level cache the four loads of a 2 x 2
// step take about 28 cycles a product (measured on Sapphire Rapids; both in the first level: 20).
#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul/bf16_avx512.h"
#include "kernels/cpu/matmul/f8_vbmi.h"
#include "kernels/cpu/matmul/matmul_driver.h"
#include "kernels/cpu/matmul/matmul_f8.h"

namespace oar {
namespace {

constexpr int64_t kTile = 16;  // rows of a weight tile, tokens of a block
constexpr int64_t kStep = 32;  // k of one tile product
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kTileFloats = kTile * kTile;
constexpr int64_t kDirectTokens = 128;  // up to here the direct way
constexpr int64_t kBlockRows = 256, kBlockK = 1024, kBlockTokens = 512;
constexpr int64_t kMinBlocks = 16;  // chunks of a matmul with many tokens

inline int64_t padded(int64_t K) { return (K + kStep - 1) / kStep * kStep; }

// Tiles 0..3 hold sums [row tile][token tile], 4..5 weights, 6..7 activations of `first` and `second` tokens.
inline void configure(int64_t first, int64_t second) {
  TileConfig c;
  for (int i = 0; i < 2; ++i) {
    c.set(2 * i, kTile, 4 * first);
    c.set(2 * i + 1, kTile, 4 * std::max<int64_t>(second, 1));
    c.set(4 + i, kTile, 64);
  }
  c.set(6, kTile, 4 * first);
  c.set(7, kTile, 4 * std::max<int64_t>(second, 1));
  load_config(c);
}

// Where the tiles of an operand lie: byte distances between rows of a tile and between steps.
struct Tiles {
  const char* at;
  int64_t row, step;
};

// Lines to fetch while computing: `per_step` in each step, `next` apart.
struct Ahead {
  const char* at = nullptr;
  int64_t lines_per_step = 0, line = 0, step = 0;
  void fetch(int64_t s) const {
    const char* p = at + s * step;
    for (int64_t i = 0; i < lines_per_step; ++i) _mm_prefetch(p + i * line, _MM_HINT_T1);
  }
};

// Adds `steps` products to the sums; a1 or b1 is left out when NR or NT is 1.
template <int NR, int NT>
inline void multiply(const Tiles& a0, const Tiles& a1, const Tiles& b0, const Tiles& b1, int64_t steps,
                     const Ahead& ahead) {
  // The tile loads below do not tell the compiler that they read memory.
  __asm__ volatile("" ::: "memory");
  for (int64_t s = 0; s < steps; ++s) {
    _tile_loadd(4, a0.at + s * a0.step, static_cast<size_t>(a0.row));
    _tile_loadd(6, b0.at + s * b0.step, static_cast<size_t>(b0.row));
    ahead.fetch(s);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (NR == 2) {
      _tile_loadd(5, a1.at + s * a1.step, static_cast<size_t>(a1.row));
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (NT == 2) {
      _tile_loadd(7, b1.at + s * b1.step, static_cast<size_t>(b1.row));
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (NR == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// sums[16 rows][16 tokens] of rows row .. row + 15 and `tokens` tokens from t; rows below `keep` belong to a
// tile already stored and rows from p.row_end on to nobody.
inline void store_tile(const PanelTask& p, const float* sums, int64_t row, int64_t keep, int64_t t,
                       int64_t tokens) {
  const int64_t lo = std::max<int64_t>(0, keep - row), hi = std::min<int64_t>(kTile, p.row_end - row);
  const auto mask = static_cast<__mmask16>(((1u << hi) - 1u) & ~((1u << lo) - 1u));
  __m512 m[16];
  for (int i = 0; i < 16; ++i) m[i] = _mm512_loadu_ps(sums + i * kTile);
  transpose16(m);
  const __m512 bias = p.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, p.bias + row);
  float* out = p.out + t * p.ldo + row;
  const float* residual = p.residual == nullptr ? nullptr : p.residual + t * p.ldo + row;
  const __m512 scale =
      p.row_scale == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, p.row_scale + row);
  for (int64_t j = 0; j < tokens; ++j) {
    __m512 v = m[j];
    if (p.row_scale != nullptr) v = _mm512_mul_ps(v, scale);
    if (p.bias != nullptr) v = _mm512_add_ps(v, bias);
    if (residual != nullptr) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, residual + j * p.ldo));
    _mm512_mask_storeu_ps(out + j * p.ldo, mask, v);
  }
}

// Copies rows [row, row + rows) x columns [k0, k1) of the weight into tiles that lie together, [row
// tile][step], with zeros past the segment's last row and past K.
void gather_tiles(const PanelTask& p, int64_t row, int64_t rows, int64_t k0, int64_t k1, char* dst) {
  const int64_t steps = (padded(k1) - k0) / kStep;
  const bf16* w = static_cast<const bf16*>(p.w);
  for (int64_t r = 0; r < rows; ++r) {
    char* to = dst + (r / kTile) * steps * kTileBytes + (r % kTile) * 64;
    const bool exists = row + r < p.rows;
    const bf16* from = w + (row + r) * p.K + k0;
    int64_t s = 0;
    if (exists) {
      for (; (s + 1) * kStep <= k1 - k0; ++s) {
        _mm512_store_si512(to + s * kTileBytes, _mm512_loadu_si512(from + s * kStep));
      }
      if (s < steps) {
        const auto mask = static_cast<__mmask32>((1u << (k1 - k0 - s * kStep)) - 1u);
        _mm512_store_si512(to + s * kTileBytes, _mm512_maskz_loadu_epi16(mask, from + s * kStep));
        ++s;
      }
    }
    for (; s < steps; ++s) _mm512_store_si512(to + s * kTileBytes, _mm512_setzero_si512());
  }
}

struct AmxBf16Core {
  static constexpr int kRows = 32;

  static int64_t x_bytes(int64_t K) { return padded(K) * 2; }
  static int64_t w_bytes(const MatmulView& v) { return v.K * 2; }

  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    if (v.P / v.runs <= kDirectTokens) return default_chunk_rows(v, total_rows, w_bytes(v), kRows);
    const int64_t by_balance = total_rows / kMinBlocks / kRows * kRows;
    return std::clamp<int64_t>(by_balance, kRows, kBlockRows);
  }
  static int64_t scratch_bytes(const MatmulView& v) {
    const int64_t direct = kRows * padded(v.K) * 2;
    if (v.P <= kDirectTokens) return direct;
    return std::max(direct, kBlockRows * kBlockK * 2 + kBlockRows * kBlockTokens * 4);
  }

  // Block b of a run starts at token 16 b; its tiles have 4 * tokens bytes per row.
  static Tiles block(const PanelTask& p, int64_t t, int64_t tokens, int64_t k) {
    return {static_cast<const char*>(p.x) + t * x_bytes(p.K) + k * 2 * tokens, 4 * tokens,
            2 * kStep * tokens};
  }

  static void pack(void* run, const PackTask& p) {
    const int64_t n = p.t_end - p.t_begin;
    char* dst = static_cast<char*>(run) + p.t_begin * x_bytes(p.K);
    const auto columns = static_cast<__mmask16>((1u << n) - 1u);
    for (int64_t k = p.k_begin; k < p.k_end; k += kStep) {
      const int64_t left = p.k_end - k;
      const uint32_t mask = left >= kStep ? ~0u : (1u << left) - 1u;
      __m512 m[16];
      for (int64_t t = 0; t < 16; ++t) {
        m[t] = _mm512_setzero_ps();
        if (t >= n) continue;
        const float* x = p.at(p.t_begin + t, k);
        const __m512 lo = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x);
        const __m512 hi = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + 16);
        m[t] = (__m512)_mm512_cvtne2ps_pbh(hi, lo);
      }
      char* tile = dst + k * 2 * n;
      if (n == 1) {  // one column: the pairs already lie in order
        _mm512_storeu_ps(tile, m[0]);
        continue;
      }
      transpose16(m);
      for (int i = 0; i < 16; ++i) _mm512_mask_storeu_ps(tile + i * 4 * n, columns, m[i]);
    }
  }

  static void panel(const PanelTask& p) {
    if (p.tokens <= kDirectTokens) {
      direct(p);
    } else {
      blocked(p);
    }
    _tile_release();
  }

  // All of K for NR x NT tiles whose first rows are row0 and row1.
  template <int NR, int NT>
  static void direct_block(const PanelTask& p, const Tiles& a0, const Tiles& a1, int64_t row0, int64_t row1,
                           int64_t keep, int64_t t, int64_t first, int64_t second, const Ahead& ahead) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    multiply<NR, NT>(a0, a1, block(p, t, first, 0), block(p, t + first, second, 0), padded(p.K) / kStep,
                     ahead);
    alignas(64) float sums[kTile * kTile];
    _tile_stored(0, sums, 64);
    store_tile(p, sums, row0, keep, t, first);
    if constexpr (NT == 2) {
      _tile_stored(1, sums, 64);
      store_tile(p, sums, row0, keep, t + first, second);
    }
    if constexpr (NR == 2) {
      _tile_stored(2, sums, 64);
      store_tile(p, sums, row1, std::max(keep, row0 + kTile), t, first);
      if constexpr (NT == 2) {
        _tile_stored(3, sums, 64);
        store_tile(p, sums, row1, std::max(keep, row0 + kTile), t + first, second);
      }
    }
  }

  static void direct(const PanelTask& p) {
    const int64_t K = p.K, row_bytes = 2 * K;
    const bool in_place = K % kStep == 0 && p.rows >= kTile;
    int64_t first = 0, second = 0;  // as configured
    for (int64_t row = p.row_begin; row < p.row_end; row += 2 * kTile) {
      // Tiles start early rather than read past the segment; `row` says which rows are new.
      const int64_t count = std::min(2 * kTile, p.row_end - row);
      int64_t row0 = row, row1 = row + kTile;
      Tiles a0, a1;
      if (in_place) {
        row0 = std::min(row0, p.rows - kTile);
        row1 = std::min(row1, p.rows - kTile);
        const char* w = static_cast<const char*>(p.w);
        a0 = {w + row0 * row_bytes, row_bytes, 64};
        a1 = {w + row1 * row_bytes, row_bytes, 64};
      } else {
        char* tiles = static_cast<char*>(p.scratch);
        gather_tiles(p, row, 2 * kTile, 0, K, tiles);
        a0 = {tiles, 64, kTileBytes};
        a1 = {tiles + padded(K) / kStep * kTileBytes, 64, kTileBytes};
      }
      // While these rows are multiplied the next ones come from memory, an equal share with each sweep.
      const int64_t sweeps = (p.tokens + 2 * kTile - 1) / (2 * kTile);
      const int64_t next = row + 2 * kTile, share = (2 * kTile + sweeps - 1) / sweeps;
      for (int64_t t = 0, fetched = 0; t < p.tokens; t += 2 * kTile, fetched += share) {
        const int64_t n0 = std::min(kTile, p.tokens - t), n1 = std::min(kTile, p.tokens - t - n0);
        if (n0 != first || n1 != second) configure(first = n0, second = n1);
        const Ahead ahead{static_cast<const char*>(p.w) + (next + fetched) * row_bytes,
                          std::min({share, 2 * kTile - fetched, p.rows - next - fetched}), row_bytes, 64};
        if (n1 == 0 && count <= kTile) {
          direct_block<1, 1>(p, a0, a1, row0, row1, row, t, n0, n1, ahead);
        } else if (n1 == 0) {
          direct_block<2, 1>(p, a0, a1, row0, row1, row, t, n0, n1, ahead);
        } else if (count <= kTile) {
          direct_block<1, 2>(p, a0, a1, row0, row1, row, t, n0, n1, ahead);
        } else {
          direct_block<2, 2>(p, a0, a1, row0, row1, row, t, n0, n1, ahead);
        }
      }
    }
  }

  static void blocked(const PanelTask& p) {
    char* weights = static_cast<char*>(p.scratch);
    float* sums = reinterpret_cast<float*>(weights + kBlockRows * kBlockK * 2);
    int64_t first = 0, second = 0;  // as configured
    for (int64_t row = p.row_begin; row < p.row_end; row += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, p.row_end - row), row_pairs = (rows + 31) / 32;
      for (int64_t t0 = 0; t0 < p.tokens; t0 += kBlockTokens) {
        const int64_t t1 = std::min(p.tokens, t0 + kBlockTokens);
        for (int64_t k0 = 0; k0 < p.K; k0 += kBlockK) {
          const int64_t k1 = std::min(p.K, k0 + kBlockK), steps = (padded(k1) - k0) / kStep;
          gather_tiles(p, row, row_pairs * 32, k0, k1, weights);
          const int64_t calls = (t1 - t0 + 31) / 32 * row_pairs;
          NextBlock next(p, row, t1, k0, calls);
          for (int64_t t = t0; t < t1; t += 32) {
            const int64_t n0 = std::min(kTile, t1 - t), n1 = std::min(kTile, t1 - t - n0);
            if (n0 != first || n1 != second) configure(first = n0, second = n1);
            float* pair_sums = sums + (t - t0) / 32 * row_pairs * 4 * kTileFloats;
            for (int64_t r = 0; r < row_pairs; ++r) {
              const char* a = weights + 2 * r * steps * kTileBytes;
              accumulate(p, {a, 64, kTileBytes}, {a + steps * kTileBytes, 64, kTileBytes},
                         pair_sums + r * 4 * kTileFloats, k0, steps, t, n0, n1, next.take(steps));
            }
            if (k1 == p.K) {
              for (int64_t r = 0; r < row_pairs; ++r) {
                for (int64_t i = 0; i < 2; ++i) {
                  const int64_t at = row + 32 * r + kTile * i;
                  if (at >= p.row_end) continue;
                  const float* c = pair_sums + (r * 4 + 2 * i) * kTileFloats;
                  store_tile(p, c, at, row, t, n0);
                  if (n1 > 0) store_tile(p, c + kTileFloats, at, row, t + n0, n1);
                }
              }
            }
          }
        }
      }
    }
  }

  // What the next block will read from memory, handed out in equal parts to the calls of this one.
  class NextBlock {
   public:
    NextBlock(const PanelTask& p, int64_t row, int64_t t1, int64_t k0, int64_t calls) {
      int64_t next_row = row, next_k = k0 + kBlockK;
      if (next_k >= p.K) {
        next_k = 0;
        if (t1 == p.tokens) next_row += kBlockRows;
      }
      rows_ = std::min(kBlockRows, p.rows - next_row);
      if (rows_ <= 0) {
        rows_ = 0;
        return;
      }
      stride_ = 2 * p.K;
      at_ = static_cast<const char*>(p.w) + next_row * stride_ + 2 * next_k;
      lines_ = (std::min(kBlockK, p.K - next_k) * 2 + 63) / 64;
      per_call_ = (rows_ * lines_ + calls - 1) / calls;
    }
    // Part of one row for one call of `steps` steps.
    Ahead take(int64_t steps) {
      if (row_ >= rows_) return {};
      const int64_t per_step =
          std::min((per_call_ + steps - 1) / steps, std::max<int64_t>(1, lines_ / steps));
      const Ahead a{at_ + row_ * stride_ + line_ * 64, per_step, 64, per_step * 64};
      line_ += per_step * steps;
      if (line_ >= lines_) {
        row_ += (line_ + lines_ - 1) / lines_;
        line_ = 0;
      }
      return a;
    }

   private:
    const char* at_ = nullptr;
    int64_t rows_ = 0, stride_ = 0, lines_ = 0, per_call_ = 0, row_ = 0, line_ = 0;
  };

  // c += the products of one block of K for 32 rows x (n0 + n1) tokens.
  static void accumulate(const PanelTask& p, const Tiles& a0, const Tiles& a1, float* c, int64_t k,
                         int64_t steps, int64_t t, int64_t n0, int64_t n1, const Ahead& ahead) {
    if (k == 0) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      __asm__ volatile("" ::: "memory");
      _tile_loadd(0, c, 64);
      _tile_loadd(1, c + kTileFloats, 64);
      _tile_loadd(2, c + 2 * kTileFloats, 64);
      _tile_loadd(3, c + 3 * kTileFloats, 64);
    }
    if (n1 > 0) {
      multiply<2, 2>(a0, a1, block(p, t, n0, k), block(p, t + n0, n1, k), steps, ahead);
    } else {
      multiply<2, 1>(a0, a1, block(p, t, n0, k), {}, steps, ahead);
    }
    _tile_stored(0, c, 64);
    _tile_stored(1, c + kTileFloats, 64);
    _tile_stored(2, c + 2 * kTileFloats, 64);
    _tile_stored(3, c + 3 * kTileFloats, 64);
  }
};

constexpr auto kEntries = join(MatmulDriver<AmxBf16Core>::kernels("bf16", Isa::kAmx),
                               f8_kernels<Bf16Arch, VbmiWiden, AmxBf16Core, 0>(Isa::kAmx));

}  // namespace

constinit const KernelTable kernels_matmul_amx{kEntries};

}  // namespace oar
