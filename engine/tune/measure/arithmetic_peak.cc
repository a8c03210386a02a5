// Compiled for the baseline; functions carry the instruction set they use.
#include "engine/tune/measure/arithmetic_peak.h"

#include <algorithm>
#include <chrono>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oar {
namespace {

using Clock = std::chrono::steady_clock;

// Runs fn(worker) once on every worker, at the same time, and returns the seconds of the whole.
template <class F>
double on_all(ThreadPool& pool, F&& fn) {
  const auto start = Clock::now();
  pool.parallel_for(pool.workers(), 1, [&](int64_t b, int64_t e) {
    for (int64_t w = b; w < e; ++w) fn(w);
  });
  return std::chrono::duration<double>(Clock::now() - start).count();
}

#if defined(__x86_64__)

constexpr int64_t kLoops = 400'000;

// Twelve independent accumulators cover the latency of every dot-product instruction.
#define OAR_PEAK_LOOP(type, zero, op)                                                                     \
  type a0 = zero, a1 = zero, a2 = zero, a3 = zero, a4 = zero, a5 = zero, a6 = zero, a7 = zero, a8 = zero, \
       a9 = zero, aa = zero, ab = zero;                                                                   \
  for (int64_t i = 0; i < kLoops; ++i) {                                                                  \
    a0 = op(a0), a1 = op(a1), a2 = op(a2), a3 = op(a3), a4 = op(a4), a5 = op(a5);                         \
    a6 = op(a6), a7 = op(a7), a8 = op(a8), a9 = op(a9), aa = op(aa), ab = op(ab);                         \
    __asm__ volatile("" : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4), "+v"(a5));                    \
    __asm__ volatile("" : "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9), "+v"(aa), "+v"(ab));                    \
  }
constexpr double kOps = 12.0 * kLoops;

__attribute__((target("avx2,fma"))) double fma256() {
  __m256 x = _mm256_set1_ps(1.f);
#define OP(a) _mm256_fmadd_ps(x, x, a)
  OAR_PEAK_LOOP(__m256, _mm256_setzero_ps(), OP)
#undef OP
  return kOps * 16;
}
__attribute__((target("avx512f"))) double fma512() {
  __m512 x = _mm512_set1_ps(1.f);
#define OP(a) _mm512_fmadd_ps(x, x, a)
  OAR_PEAK_LOOP(__m512, _mm512_setzero_ps(), OP)
#undef OP
  return kOps * 32;
}
__attribute__((target("avx512f,avx512bf16"))) double dpbf16() {
  __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);
#define OP(a) _mm512_dpbf16_ps(a, x, x)
  OAR_PEAK_LOOP(__m512, _mm512_setzero_ps(), OP)
#undef OP
  return kOps * 64;
}
__attribute__((target("avx512f,avx512vnni"))) double dpbusd() {
  __m512i x = _mm512_set1_epi8(1);
#define OP(a) _mm512_dpbusd_epi32(a, x, x)
  OAR_PEAK_LOOP(__m512i, _mm512_setzero_si512(), OP)
#undef OP
  return kOps * 128;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

__attribute__((target("amx-tile,amx-bf16,amx-int8"))) double tiles(bool bf16) {
  TileConfig c;
  for (int i = 0; i < 8; ++i) c.rows[i] = 16, c.row_bytes[i] = 64;
  __asm__ volatile("" ::"r"(&c) : "memory");
  _tile_loadconfig(&c);
  constexpr int64_t kTileLoops = 100'000;
  for (int64_t i = 0; i < kTileLoops; ++i) {
    if (bf16) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    } else {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  }
  _tile_release();
  return 4.0 * kTileLoops * 16 * 16 * (bf16 ? 32 : 64) * 2;
}

double run_peak(Arithmetic arithmetic, Isa isa) {
  if (isa >= Isa::kAmx && arithmetic != Arithmetic::kF32) return tiles(arithmetic == Arithmetic::kBf16);
  if (isa >= Isa::kAvx512Vnni && arithmetic == Arithmetic::kBf16) return dpbf16();
  if (isa >= Isa::kAvx512Vnni && arithmetic == Arithmetic::kInt8) return dpbusd();
  if (isa >= Isa::kAvx512) return fma512();
  if (isa >= Isa::kAvx2) return fma256();
  return 0;
}

#else

double run_peak(Arithmetic, Isa) { return 0; }

#endif

}  // namespace

double arithmetic_peak(ThreadPool& pool, Arithmetic arithmetic, Isa isa) {
  std::vector<double> ops(static_cast<size_t>(pool.workers()));
  const double seconds =
      on_all(pool, [&](int64_t w) { ops[static_cast<size_t>(w)] = run_peak(arithmetic, isa); });
  double sum = 0;
  for (double o : ops) sum += o;
  return sum / seconds;
}

}  // namespace oar
