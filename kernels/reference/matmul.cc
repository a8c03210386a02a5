// The truth for both matmuls: any storage format, sums in double in order of k, one rounding at the end. One
// chunk is one weight row of one run.
#include "kernels/cpu/matmul/matmul_driver.h"

namespace oar {
namespace {

struct ReferenceCore {
  static int64_t x_bytes(int64_t K) { return (K * 4 + 63) / 64 * 64; }
  static int64_t w_bytes(const MatmulView& v) { return v.format.stride(v.K); }
  static int64_t chunk_rows(const MatmulView&, int64_t) { return 1; }
  static int64_t scratch_bytes(const MatmulView& v) { return v.K * 4; }

  static void pack(void* run, const PackTask& p) {
    for (int64_t t = p.t_begin; t < p.t_end; ++t) {
      float* dst = reinterpret_cast<float*>(static_cast<char*>(run) + t * x_bytes(p.K));
      for (int64_t k = p.k_begin; k < p.k_end; ++k) dst[k] = *p.at(t, k);
    }
  }

  static void panel(const PanelTask& p) {
    float* w = static_cast<float*>(p.scratch);
    for (int64_t row = p.row_begin; row < p.row_end; ++row) {
      p.format.decode_row(static_cast<const char*>(p.w) + row * p.format.stride(p.K), p.K, w);
      for (int64_t t = 0; t < p.tokens; ++t) {
        const float* x = reinterpret_cast<const float*>(static_cast<const char*>(p.x) + t * x_bytes(p.K));
        double sum = 0;
        for (int64_t k = 0; k < p.K; ++k) sum += static_cast<double>(w[k]) * static_cast<double>(x[k]);
        if (p.bias != nullptr) sum += p.bias[row];
        const int64_t at = t * p.ldo + row;
        if (p.residual != nullptr) sum += p.residual[at];
        p.out[at] = static_cast<float>(sum);
      }
    }
  }
};

constexpr auto kEntries = MatmulDriver<ReferenceCore>::kernels(nullptr, Isa::kReference);

}  // namespace

constinit const KernelTable kernels_matmul_reference{kEntries};

}  // namespace oar
