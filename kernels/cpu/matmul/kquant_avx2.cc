// Super-block matmul with AVX2, weights in place: a row's levels, 32 at a time, meet up to four tokens.
//
// vpmaddubsw adds two products of a level and an activation in 16 bits, at most 2 * 63 * 127 = 16002;
// vpmaddwd multiplies with the groups' scales and adds pairs in 32. Offsets of levels leave the same sums as
// scale * offset times the activations' sums of 16. All integers, so the values are those of the other
// kernels (kquant_format.h).
#include <immintrin.h>

#include "kernels/cpu/matmul/kquant_token.h"

namespace oar {
namespace {

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m256i bits(__m256i v, int mask) {
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}
// `value` where bit v of `high` is set.
inline __m256i bit(__m256i high, int v, int value) {
  const __m256i at = _mm256_set1_epi8(static_cast<char>(1 << v));
  return bits(_mm256_cmpeq_epi8(_mm256_and_si256(high, at), at), value);
}

// The levels of k = 32 v .. 32 v + 31.
inline __m256i nibbles(const uint8_t* q, int v) {
  const __m256i b = load(q + v / 2 * 32);
  return bits(v % 2 == 0 ? b : _mm256_srli_epi16(b, 4), 15);
}
inline __m256i pairs(const uint8_t* q, int v) {
  return bits(_mm256_srli_epi16(load(q + v / 4 * 32), 2 * (v % 4)), 3);
}
inline __m256i levels(const formats::q4_k::Block& b, int v) { return nibbles(b.q, v); }
inline __m256i levels(const formats::q5_k::Block& b, int v) {
  return _mm256_or_si256(nibbles(b.q, v), bit(load(b.high), v, 16));
}
inline __m256i levels(const formats::q6_k::Block& b, int v) {
  const __m256i low = load(b.low + v / 4 * 64 + v % 2 * 32), high = load(b.high + v / 4 * 32);
  const __m256i nibble = bits(v % 4 < 2 ? low : _mm256_srli_epi16(low, 4), 15);
  const int left = 4 - 2 * (v % 4);
  return _mm256_or_si256(
      nibble, bits(left >= 0 ? _mm256_slli_epi16(high, left) : _mm256_srli_epi16(high, -left), 0x30));
}
inline __m256i levels(const formats::q3_k::Block& b, int v) {
  return _mm256_or_si256(pairs(b.low, v), bit(load(b.high), v, 4));
}
inline __m256i levels(const formats::q2_k::Block& b, int v) { return pairs(b.q, v); }

// Signed: the table's own levels.
inline __m256i levels(const formats::iq4_xs::Block& b, int v) {
  const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.q + 16 * v));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1);
  const __m128i table =
      _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bits(both, 15));
}

// Sums of two products in 16 bits. Signed levels lend their signs to x: 2 * 127 * 127 = 32258 fits.
template <bool kSigned>
inline __m256i products(__m256i level, __m256i x) {
  if constexpr (kSigned) return _mm256_maddubs_epi16(_mm256_abs_epi8(level), _mm256_sign_epi8(x, level));
  return _mm256_maddubs_epi16(level, x);
}

inline int32_t add_lanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(s);
}

template <class F>
struct KAvx2Core {
  using Block = typename F::Block;
  static constexpr int64_t kRows = 8, kTokens = 4;

  static int64_t x_bytes(int64_t K) { return KToken::bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return v.format.stride(v.K); }
  static int64_t scratch_bytes(const MatmulView&) { return 0; }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return default_chunk_rows(v, total_rows, w_bytes(v), kRows);
  }
  static void pack(void* run, const PackTask& p) { pack_tokens(run, p); }

  static void panel(const PanelTask& p) {
    for (int64_t row = p.row_begin; row < p.row_end; row += kRows) {
      int64_t t = 0;
      for (; t + kTokens <= p.tokens; t += kTokens) rows<kTokens>(p, row, t);
      if (p.tokens - t == 3) rows<3>(p, row, t);
      if (p.tokens - t == 2) rows<2>(p, row, t);
      if (p.tokens - t == 1) rows<1>(p, row, t);
    }
  }

  template <int N>
  [[gnu::noinline]] static void rows(const PanelTask& p, int64_t row, int64_t t) {
    const int64_t blocks = p.K / kSuperBlock, n = std::min(kRows, p.row_end - row);
    const char* x[N];
    __m256 sum[N];
    for (int j = 0; j < N; ++j) {
      x[j] = static_cast<const char*>(p.x) + (t + j) * x_bytes(p.K);
      sum[j] = _mm256_setzero_ps();
    }
    const Block* w = static_cast<const Block*>(p.w) + row * blocks;
    alignas(32) int32_t S[N][kRows] = {}, M[N][kRows] = {};
    alignas(32) float d[kRows] = {}, dmin[kRows] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t r = 0; r < n; ++r) {
        const Block& block = w[r * blocks + b];
        for (size_t line = 0; line < sizeof(Block); line += 64) {  // past the end a prefetch does nothing
          __builtin_prefetch(reinterpret_cast<const char*>(&block) + kRows * blocks * sizeof(Block) + line, 0,
                             2);
        }
        KHead h;
        F::head(block, h);
        d[r] = h.d;
        const __m256i scales =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(h.scale)));
        const __m256i half[2] = {_mm256_permute2x128_si256(scales, scales, 0x00),
                                 _mm256_permute2x128_si256(scales, scales, 0x11)};
        __m256i acc[N];
        for (__m256i& a : acc) a = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int v = 0; v < 8; ++v) {
          const __m256i u = levels(block, v);
          const auto two = [](int g) {
            return _mm_set1_epi16(static_cast<int16_t>((2 * g + 1) << 8 | 2 * g));
          };
          const __m256i at = _mm256_set_m128i(two(v % 4 * 2 + 1), two(v % 4 * 2));
          const __m256i s = _mm256_shuffle_epi8(half[v / 4], at);
#pragma GCC unroll 4
          for (int j = 0; j < N; ++j) {
            const __m256i sums = products<F::kWide>(u, load(KToken::levels(x[j], b) + 32 * v));
            acc[j] = _mm256_add_epi32(acc[j], _mm256_madd_epi16(sums, s));
          }
        }
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
          const __m256i sums = load(KToken::sums(x[j], p.K, b));
          if constexpr (F::kOffset != 0 && !F::kWide) {
            const __m256i offsets = _mm256_mullo_epi16(scales, _mm256_set1_epi16(F::kOffset));
            acc[j] = _mm256_sub_epi32(acc[j], _mm256_madd_epi16(offsets, sums));
          }
          S[j][r] = add_lanes(acc[j]);
          if constexpr (F::kMins) {
            const __m256i mins =
                _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(h.min)));
            M[j][r] = add_lanes(_mm256_madd_epi16(mins, sums));
            dmin[r] = h.dmin;
          }
        }
      }
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        const auto ints = [](const int32_t* v) {
          return _mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(v)));
        };
        __m256 product = _mm256_mul_ps(_mm256_load_ps(d), ints(S[j]));
        if constexpr (F::kMins) product = _mm256_fnmadd_ps(_mm256_load_ps(dmin), ints(M[j]), product);
        sum[j] = _mm256_fmadd_ps(product, _mm256_set1_ps(KToken::scale(x[j], p.K, b)), sum[j]);
      }
    }
    for (int j = 0; j < N; ++j) {
      alignas(32) float v[kRows];
      _mm256_store_ps(v, sum[j]);
      const int64_t at = (t + j) * p.ldo + row;
      for (int64_t r = 0; r < n; ++r) {
        if (p.bias != nullptr) v[r] += p.bias[row + r];
        if (p.residual != nullptr) v[r] += p.residual[at + r];
        p.out[at + r] = v[r];
      }
    }
  }
};

template <class... Types>
constexpr auto kernels_of() {
  return join(MatmulDriver<KAvx2Core<Types>>::kernels(Types::kFormat, Isa::kAvx2)...);
}
constexpr auto kEntries = kernels_of<Q4K, Q5K, Q6K, Q3K, Q2K, IQ4XS>();

}  // namespace

constinit const KernelTable kernels_kquant_avx2{kEntries};

}  // namespace oar
