// Super-block matmul on AMX tiles, weights in place in the file. For one token or a few the vector kernel
// (kquant_vnni.h) is as fast as memory and is used as it is; this is for more.
//
// The product of a level and its group's scale is an integer of at most 13 bits and a sign, p = 256 * hi + lo
// with an unsigned byte lo and a signed one: a super-block of 16 rows is expanded to two planes of tiles once
// for all tokens, and
//
//   S = sum (lo * x) + 256 * sum (hi * x),      M = sum of minima times sums of x
//
// come out of the tiles with no scale in between: exact, as kquant_format.h wants them, and passed to the
// vector unit once for 256 k. M is a product of bf16 tiles: minima have six bits, the sums of 16 activations
// go in as two bf16 numbers (high and low bits), and all sums stay below 2^24, so f32 holds them exactly.
//
// Up to 32 tokens each weight passes once, and expanding it is what takes the time: in_passing() keeps
// expanding, tiles and adding at three super-blocks that follow each other, so that none waits for another.
//
// Weights are the A operand, 16 rows x 64 k of a plane; activations the B operand, packed in phase 0 as [16
// quads of k][tokens][4]. A result tile is [16 rows][16 tokens]; partial sums wait in scratch in that form.
//
// Roofline: 18 tile products for 16 rows x 32 tokens x 256 k, 16 cycles each; beside them some 200 vector
// instructions to scale and add the results of the block before, which the loop below leaves to run
// meanwhile.
#include <bit>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul/kquant_vnni.h"

namespace oar {
namespace {

constexpr int64_t kTile = 16;     // rows of a weight tile, tokens of an activation tile
constexpr int64_t kSteps = 4;     // tiles of 64 k in a super-block
constexpr int64_t kRowTiles = 2;  // row tiles that share a tile of activations in the first-level cache
constexpr int64_t kRows = kRowTiles * kTile;
constexpr int64_t kTokenBlock = 512;  // tokens whose partial sums wait together

// A packed run of tokens in blocks of 16, the last of as many as are left (n): [super-blocks][4][16][n][4]
// int8, [super-blocks][16][n] pairs of bf16 whose sum is that of 16 activations, [super-blocks][n] f32
// scales.
struct XBlock {
  static constexpr int64_t kLevels = kSuperBlock, kSums = 4 * kSuperGroups;  // bytes of a token
  char* at;
  int64_t blocks, n;
  static int64_t bytes(int64_t K) { return (K / kSuperBlock * (kLevels + kSums + 4) + 63) / 64 * 64; }
  XBlock(const void* run, int64_t K, int64_t tokens, int64_t t)
      : at(const_cast<char*>(static_cast<const char*>(run)) + t * bytes(K)),
        blocks(K / kSuperBlock),
        n(std::min(kTile, tokens - t)) {}
  char* levels(int64_t b, int64_t step) const { return at + (b * kSteps + step) * 64 * n; }
  char* sums(int64_t b) const { return at + (blocks * kLevels + b * kSums) * n; }
  char* scales(int64_t b) const { return at + (blocks * (kLevels + kSums) + b * 4) * n; }
};

inline void store_columns(char* to, __m512 m[16], int64_t n) {
  const auto columns = static_cast<__mmask16>((1u << n) - 1u);
  transpose16(m);
  for (int i = 0; i < 16; ++i) _mm512_mask_storeu_ps(to + i * 4 * n, columns, m[i]);
}

inline void pack_columns(void* run, const PackTask& p) {
  const XBlock x(run, p.K, p.tokens, p.t_begin);
  alignas(64) int8_t q[kTile][kSuperBlock];
  alignas(64) int16_t sums[kTile][kSuperGroups];
  for (int64_t k = p.k_begin; k < p.k_end; k += kSuperBlock) {
    const int64_t b = k / kSuperBlock;
    for (int64_t t = 0; t < x.n; ++t) {
      const float scale = quantize_super(p.at(p.t_begin + t, k), q[t], sums[t]);
      std::memcpy(x.scales(b) + 4 * t, &scale, 4);
    }
    __m512 m[16];
    for (int64_t step = 0; step < kSteps; ++step) {
      for (int64_t t = 0; t < kTile; ++t) {
        m[t] = t < x.n ? _mm512_load_ps(q[t] + 64 * step) : _mm512_setzero_ps();
      }
      store_columns(x.levels(b, step), m, x.n);
    }
    for (int64_t t = 0; t < kTile; ++t) {
      m[t] = _mm512_setzero_ps();
      if (t >= x.n) continue;
      const __m512i top = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
      const __m512 sum = _mm512_cvtepi32_ps(
          _mm512_cvtepi16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(sums[t]))));
      const __m512i high = _mm512_and_si512(_mm512_castps_si512(sum), top);
      const __m512i low = _mm512_castps_si512(_mm512_sub_ps(sum, _mm512_castsi512_ps(high)));
      m[t] = _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(high, 16), _mm512_and_si512(low, top)));
    }
    store_columns(x.sums(b), m, x.n);
  }
}

// Patterns for vpshufb that put the scale of each pair of levels above a zero byte, for vector v of 64
// levels.
struct alignas(64) ScalePatterns {
  char of[4][64];
};
constexpr ScalePatterns scale_patterns(int group) {
  ScalePatterns p{};
  for (int k = 0; k < kSuperBlock; ++k) {
    p.of[k / 64][k % 64] = static_cast<char>(k % 2 == 0 ? -128 : k / group);
  }
  return p;
}
inline __m512i scales_above(int64_t eight, int v) {
  static constexpr ScalePatterns kPatterns = scale_patterns(32);
  return _mm512_shuffle_epi8(_mm512_set1_epi64(eight), _mm512_load_si512(kPatterns.of[v]));
}
inline __m512i scales_above(__m128i sixteen, int v) {
  static constexpr ScalePatterns kPatterns = scale_patterns(16);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), _mm512_load_si512(kPatterns.of[v]));
}

// One super-block of 16 rows as the tiles want it.
struct alignas(64) Expanded {
  char lo[kSteps][kTile][64], hi[kSteps][kTile][64];
  char mins[kTile][64];  // pairs of equal bf16, one for each group of 16
};

// Row r of it. Levels are unsigned bytes and scales signed ones, so one vpmaddubsw multiplies those of even
// k, where the scales stand below zeros, and another those of odd k.
template <class F>
inline void expand_row(const typename F::Block& block, int64_t r, Expanded& out) {
  __m512i u[4];
  F::levels(block, u);
  const auto packed = F::scales(block);
  const __m512i even = _mm512_set1_epi16(0xff);
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const __m512i above = scales_above(packed, v);
    __m512i a = _mm512_maddubs_epi16(u[v], _mm512_srli_epi16(above, 8));
    __m512i b = _mm512_maddubs_epi16(u[v], above);
    if constexpr (F::kOffset != 0) {
      // 256 s >> 8 - log2(offset) is offset * s.
      const __m512i less = _mm512_srai_epi16(above, 8 - std::countr_zero(static_cast<unsigned>(F::kOffset)));
      a = _mm512_sub_epi16(a, less);
      b = _mm512_sub_epi16(b, less);
    }
    constexpr int kSelect = 0xca;  // where the first operand is set the second, else the third
    _mm512_store_si512(out.lo[v][r], _mm512_ternarylogic_epi32(even, a, _mm512_slli_epi16(b, 8), kSelect));
    _mm512_store_si512(out.hi[v][r], _mm512_ternarylogic_epi32(even, _mm512_srli_epi16(a, 8), b, kSelect));
  }
  if constexpr (F::kMins) {
    const __m512i min = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(F::mins(block))));
    _mm512_store_si512(out.mins[r], _mm512_or_si512(min, _mm512_srli_epi32(min, 16)));
  }
}

// The floating-point scales of 16 rows of a super-block.
struct alignas(64) RowScales {
  float d[kTile], dmin[kTile];
};
template <class F>
inline void read_scales(const char* const rows[kTile], RowScales& out) {
  KHeads h;
  F::heads(rows, h);
  _mm512_store_ps(out.d, h.d);
  if constexpr (F::kMins) _mm512_store_ps(out.dmin, h.dmin);
}

// What the tiles leave of 16 rows x 32 tokens and one super-block.
struct alignas(64) Products {
  int32_t lo[2][kTile][kTile], hi[2][kTile][kTile];
  float M[2][kTile][kTile];
};

// Adds the products of row r and NT tiles of tokens to sums[NT][16 rows][16 tokens].
template <class F, int NT>
inline void add_row(const Products& c, const RowScales& w, int64_t r, const __m512 scale_x[NT], float* sums) {
#pragma GCC unroll 2
  for (int j = 0; j < NT; ++j) {
    const __m512i S =
        _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(c.hi[j][r]), 8), _mm512_load_si512(c.lo[j][r]));
    float* at = sums + (j * kTile + r) * kTile;
    const __m512 product = _mm512_mul_ps(_mm512_set1_ps(w.d[r]), _mm512_cvtepi32_ps(S));
    __m512 sum = _mm512_load_ps(at);
    if constexpr (F::kMins) {
      const __m512 less = _mm512_fnmadd_ps(_mm512_set1_ps(w.dmin[r]), _mm512_load_ps(c.M[j][r]), product);
      sum = _mm512_fmadd_ps(less, scale_x[j], sum);
    } else {
      sum = _mm512_fmadd_ps(product, scale_x[j], sum);
    }
    _mm512_store_ps(at, sum);
  }
}

template <class F, int NT>
inline void add_products(const Products& c, const RowScales& w, const __m512 scale_x[NT], float* sums) {
#pragma GCC unroll 4
  for (int64_t r = 0; r < kTile; ++r) add_row<F, NT>(c, w, r, scale_x, sums);
}

// Tiles 0..1 hold sums of lo and 2..3 of hi for two tiles of tokens, 4..5 weights, 6..7 activations of
// `first` and `second` tokens.
inline void configure(int64_t first, int64_t second) {
  TileConfig c;
  for (int i : {0, 2, 6}) c.set(i, kTile, 4 * first);
  for (int i : {1, 3, 7}) c.set(i, kTile, 4 * std::max<int64_t>(second, 1));
  for (int i : {4, 5}) c.set(i, kTile, 64);
  load_config(c);
}

inline void zero_products() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Step s of super-block b.
template <int NT>
inline void multiply_step(const Expanded& w, const XBlock& x0, const XBlock& x1, int64_t b, int64_t s) {
  // The tile loads do not tell the compiler that they read memory.
  __asm__ volatile("" ::: "memory");
  _tile_loadd(4, w.lo[s], 64);
  _tile_loadd(6, x0.levels(b, s), static_cast<size_t>(4 * x0.n));
  _tile_dpbusd(0, 4, 6);
  _tile_loadd(5, w.hi[s], 64);
  _tile_dpbssd(2, 5, 6);
  if constexpr (NT == 2) {
    _tile_loadd(7, x1.levels(b, s), static_cast<size_t>(4 * x1.n));
    _tile_dpbusd(1, 4, 7);
    _tile_dpbssd(3, 5, 7);
  }
}

template <int NT>
inline void multiply(const Expanded& w, const XBlock& x0, const XBlock& x1, int64_t b) {
  zero_products();
  for (int64_t s = 0; s < kSteps; ++s) multiply_step<NT>(w, x0, x1, b, s);
}

template <class F, int NT>
inline void store_products(const Expanded& w, const XBlock& x0, const XBlock& x1, int64_t b, Products& c) {
  _tile_stored(0, c.lo[0], 64);
  _tile_stored(2, c.hi[0], 64);
  if constexpr (NT == 2) {
    _tile_stored(1, c.lo[1], 64);
    _tile_stored(3, c.hi[1], 64);
  }
  if constexpr (F::kMins) {
    _tile_zero(0);
    _tile_loadd(4, w.mins, 64);
    _tile_loadd(6, x0.sums(b), static_cast<size_t>(4 * x0.n));
    _tile_dpbf16ps(0, 4, 6);
    _tile_stored(0, c.M[0], 64);
    if constexpr (NT == 2) {
      _tile_zero(1);
      _tile_loadd(7, x1.sums(b), static_cast<size_t>(4 * x1.n));
      _tile_dpbf16ps(1, 4, 7);
      _tile_stored(1, c.M[1], 64);
    }
  }
  __asm__ volatile("" ::: "memory");
}

inline __m512 scales_at(const XBlock& x, int64_t b) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << x.n) - 1u), x.scales(b));
}

template <class F>
struct KAmxCore {
  using Vnni = KVnniCore<F>;
  using Block = typename F::Block;
  static constexpr int64_t kTileFrom = 8;  // tokens from which expanding pays

  struct Scratch {
    Expanded weights[kRowTiles];
    RowScales scales[kRowTiles];
    Products products[2];
    // Then sums: [pairs of token tiles][kRowTiles][2][16 rows][16 tokens] f32.
    float* sums() { return reinterpret_cast<float*>(this + 1); }
  };
  // With so few tokens that each weight passes once: one super-block of a row tile is expanded while the
  // tiles work on the one before and the vectors add up what they left of the one before that.
  static constexpr int64_t kPassingTokens = 2 * kTile;
  struct alignas(64) Passing {
    Expanded weights[2];
    RowScales scales[3];
    Products products[2];
    float sums[2 * kTile * kTile];
  };
  static constexpr int64_t kPairFloats = kRowTiles * 2 * kTile * kTile;  // sums of two tiles of tokens

  static int64_t x_bytes(int64_t K) { return XBlock::bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return v.format.stride(v.K); }
  static int64_t scratch_bytes(const MatmulView& v) {
    const int64_t pairs = (std::min(v.P, kTokenBlock) + 31) / 32;
    return std::max({Vnni::scratch_bytes(v), static_cast<int64_t>(sizeof(Passing)),
                     static_cast<int64_t>(sizeof(Scratch)) + pairs * kPairFloats * 4});
  }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    if (v.P / v.runs < kTileFrom) return Vnni::chunk_rows(v, total_rows);
    return default_chunk_rows(v, total_rows, w_bytes(v), kRows);
  }

  static void pack(void* run, const PackTask& p) {
    if (p.tokens < kTileFrom) {
      Vnni::pack(run, p);
    } else {
      pack_columns(run, p);
    }
  }

  static void panel(const PanelTask& p) {
    if (p.tokens < kTileFrom) return Vnni::panel(p);
    if (p.tokens <= kPassingTokens) {
      p.tokens <= kTile ? in_passing<1>(p) : in_passing<2>(p);
      return _tile_release();
    }
    for (int64_t row = p.row_begin; row < p.row_end; row += kRows) {
      for (int64_t t = 0; t < p.tokens; t += kTokenBlock) {
        rows_times(p, row, t, std::min(p.tokens, t + kTokenBlock));
      }
    }
    _tile_release();
  }

  // All rows of the chunk times NT tiles of tokens, the whole run. Units of work are the super-blocks of a
  // row tile, tile after tile; step u expands unit u, multiplies u - 1 and adds u - 2.
  template <int NT>
  [[gnu::noinline]] static void in_passing(const PanelTask& p) {
    const int64_t blocks = p.K / kSuperBlock, tiles = (p.row_end - p.row_begin + kTile - 1) / kTile;
    const XBlock x0(p.x, p.K, p.tokens, 0), x1(p.x, p.K, p.tokens, std::min(kTile, p.tokens));
    auto& work = *static_cast<Passing*>(p.scratch);
    configure(x0.n, NT == 2 ? x1.n : 0);
    const char* rows[kTile];
    // The rows after the chunk's own first tile, in equal parts with each unit. Past the end of the weights a
    // prefetch does nothing.
    const char* next =
        reinterpret_cast<const char*>(static_cast<const Block*>(p.w) + (p.row_begin + kTile) * blocks);
    const int64_t units = tiles * blocks;
    for (int64_t u = 0; u < units + 2; ++u) {
      const bool expanding = u < units, multiplying = u >= 1 && u <= units, adding = u >= 2;
      Expanded& fresh = work.weights[u % 2];
      const Expanded& ready = work.weights[(u + 1) % 2];
      const Products& left = work.products[u % 2];
      const RowScales& left_scales = work.scales[(u + 1) % 3];
      const int64_t ready_block = (u + blocks - 1) % blocks, left_block = (u + 2 * blocks - 2) % blocks;
      const __m512 scale_x[2] = {scales_at(x0, left_block),
                                 NT == 2 ? scales_at(x1, left_block) : _mm512_setzero_ps()};
      if (expanding) {
        if (u % blocks == 0) {
          for (int64_t r = 0; r < kTile; ++r) {
            rows[r] = reinterpret_cast<const char*>(Vnni::at(p, p.row_begin + u / blocks * kTile + r));
          }
        }
        read_scales<F>(rows, work.scales[u % 3]);
      }
      if (adding && left_block == 0) std::memset(work.sums, 0, sizeof work.sums);
      if (multiplying) zero_products();
      for (int64_t r = 0; r < kTile; ++r) {
        // The products have time to be ready before they are stored.
        if (multiplying && r % 2 == 0 && r < 2 * kSteps) multiply_step<NT>(ready, x0, x1, ready_block, r / 2);
        if (multiplying && r == kTile - 4) {
          store_products<F, NT>(ready, x0, x1, ready_block, work.products[(u + 1) % 2]);
        }
        if (expanding) {
          expand_row<F>(*reinterpret_cast<const Block*>(rows[r]), r, fresh);
          for (size_t i = 0; i < sizeof(Block); i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
          next += sizeof(Block);
          rows[r] += sizeof(Block);
        }
        if (adding) add_row<F, NT>(left, left_scales, r, scale_x, work.sums);
      }
      if (adding && left_block == blocks - 1) {
        const int64_t row = p.row_begin + (u - 2) / blocks * kTile;
        for (int j = 0; j < NT; ++j) { store(p, row, j * kTile, p.tokens, work.sums + j * kTile * kTile); }
      }
    }
  }

  // kRows rows times tokens [t0, t1).
  static void rows_times(const PanelTask& p, int64_t row, int64_t t0, int64_t t1) {
    const int64_t blocks = p.K / kSuperBlock, pairs = (t1 - t0 + 31) / 32;
    const int64_t tiles = std::min(kRowTiles, (p.row_end - row + kTile - 1) / kTile);
    auto& scratch = *static_cast<Scratch*>(p.scratch);
    float* sums = scratch.sums();
    std::memset(sums, 0, static_cast<size_t>(pairs * kPairFloats) * sizeof(float));
    const char* at[kRows];
    for (int64_t r = 0; r < kRows; ++r) at[r] = reinterpret_cast<const char*>(Vnni::at(p, row + r));
    // The rows after these, in equal parts with each super-block. Past the end of the weights a prefetch does
    // nothing.
    const char* next = reinterpret_cast<const char*>(static_cast<const Block*>(p.w) + (row + kRows) * blocks);
    int64_t first = 0, second = 0;  // as configured
    for (int64_t b = 0; b < blocks; ++b) {
      for (size_t i = 0; i < kRows * sizeof(Block); i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
      next += kRows * sizeof(Block);
      for (int64_t i = 0; i < tiles; ++i) {
        read_scales<F>(at + i * kTile, scratch.scales[i]);
        for (int64_t r = 0; r < kTile; ++r) {
          expand_row<F>(*reinterpret_cast<const Block*>(at[i * kTile + r]), r, scratch.weights[i]);
        }
      }
      for (const char*& a : at) a += sizeof(Block);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const int64_t t = t0 + 32 * pair;
        const XBlock x0(p.x, p.K, p.tokens, t), x1(p.x, p.K, p.tokens, std::min(t + kTile, p.tokens));
        if (x0.n != first || x1.n != second) configure(first = x0.n, second = x1.n);
        if (x1.n > 0) {
          pair_times<2>(scratch, tiles, x0, x1, b, sums + pair * kPairFloats);
        } else {
          pair_times<1>(scratch, tiles, x0, x1, b, sums + pair * kPairFloats);
        }
      }
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (int64_t i = 0; i < tiles; ++i) {
        for (int64_t j = 0; j < 2; ++j) {
          store(p, row + i * kTile, t0 + 32 * pair + kTile * j, t1,
                sums + pair * kPairFloats + (i * 2 + j) * kTile * kTile);
        }
      }
    }
  }

  // All row tiles times NT tiles of tokens, one super-block. The products of a row tile are added up while
  // the tiles work on the next.
  template <int NT>
  [[gnu::noinline]] static void pair_times(Scratch& s, int64_t tiles, const XBlock& x0, const XBlock& x1,
                                           int64_t b, float* sums) {
    const __m512 scale_x[2] = {scales_at(x0, b), NT == 2 ? scales_at(x1, b) : _mm512_setzero_ps()};
    for (int64_t i = 0; i < tiles; ++i) {
      multiply<NT>(s.weights[i], x0, x1, b);
      if (i > 0) {
        add_products<F, NT>(s.products[(i - 1) % 2], s.scales[i - 1], scale_x,
                            sums + (i - 1) * 2 * kTile * kTile);
      }
      store_products<F, NT>(s.weights[i], x0, x1, b, s.products[i % 2]);
    }
    add_products<F, NT>(s.products[(tiles - 1) % 2], s.scales[tiles - 1], scale_x,
                        sums + (tiles - 1) * 2 * kTile * kTile);
  }

  // sums[16 rows][16 tokens] to the outputs of tokens from t.
  static void store(const PanelTask& p, int64_t row, int64_t t, int64_t t1, const float* sums) {
    __m512 m[16];
    for (int i = 0; i < 16; ++i) m[i] = _mm512_load_ps(sums + i * kTile);
    transpose16(m);
    for (int64_t j = 0; j < std::min(kTile, t1 - t); ++j) store_rows(p, row, t + j, m[j]);
  }
};

template <class... Types>
constexpr auto kernels_of() {
  return join(MatmulDriver<KAmxCore<Types>>::kernels(Types::kFormat, Isa::kAmx)...);
}
constexpr auto kEntries = kernels_of<Q4K512, Q5K512, Q6K512, Q3K512, Q2K512, IQ4XS512>();

}  // namespace

constinit const KernelTable kernels_kquant_amx{kEntries};

}  // namespace oar
