// RMSNorm on the device against the double-precision reference: sizes around the vector width and the block,
// aligned and not, with and without residual, in place; a row does not depend on its neighbours.
#include <cmath>
#include <cstring>

#include "kernels/cuda/norm.h"
#include "kernels/kernel.h"
#include "tests/cuda/device_memory.h"
#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr int64_t kRows = 3;

// The reference, with the sum h in `sum`.
std::vector<float> reference(const std::vector<float>& x, const std::vector<float>& residual,
                             const std::vector<float>& w, int64_t cols, int64_t ldx,
                             std::vector<float>& sum) {
  std::vector<float> out(static_cast<size_t>(kRows * cols));
  sum.resize(out.size());
  RmsNormArgs a;
  a.out = out.data();
  a.sum_out = sum.data();
  a.x = x.data();
  a.residual = residual.empty() ? nullptr : residual.data();
  a.w = w.data();
  a.rows = kRows;
  a.cols = a.ldo = cols;
  a.ldx = ldx;
  a.w_offset = 1.f;
  const Kernel* k = KernelRegistry::cpu().find({KernelFamily::kRmsNorm, Format::f32()}, Isa::kReference);
  REQUIRE(k != nullptr);
  k->run(&a, 0, 0, kRows, {});
  return out;
}

}  // namespace

TEST_CASE("cuda: rms_norm against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (int64_t cols : {1, 3, 4, 5, 31, 64, 255, 1000, 1023, 1024, 1025, 4096, 16384}) {
    for (size_t shift : {0, 1}) {
      for (bool add : {false, true}) {
        INFO("cols=" << cols << " shift=" << shift << " residual=" << add);
        const int64_t ldx = cols + 4;
        const auto values = [](int64_t n, uint32_t seed) {
          return random_values(static_cast<size_t>(n), Values::kNormal, seed);
        };
        const std::vector<float> x = values((kRows - 1) * ldx + cols, 1), w = values(cols, 2),
                                 residual = add ? values(kRows * cols, 3) : std::vector<float>{};
        std::vector<float> want_sum;
        const std::vector<float> want = reference(x, residual, w, cols, ldx, want_sum);

        DeviceArray dx(x, shift), dw(w, shift), out(std::vector<float>(want.size(), NAN), shift);
        // The sum replaces the residual, as in a model's residual stream.
        DeviceArray stream(add ? residual : std::vector<float>(want.size(), NAN), shift);
        RmsNormArgs a;
        a.out = out.data();
        a.sum_out = stream.data();
        a.x = dx.data();
        a.residual = add ? stream.data() : nullptr;
        a.w = dw.data();
        a.rows = kRows;
        a.cols = a.ldo = cols;
        a.ldx = ldx;
        a.w_offset = 1.f;
        {
          const NextOrder order;
          const cuda::CudaStatus status = cuda::rms_norm(a, nullptr);
          INFO(status.message());
          REQUIRE(status.ok());
        }
        const std::vector<float> got = out.host();

        // A square is in a sum of at most 4 ceil(cols / 1024) terms of its thread, then 5 additions in the
        // warp and 8 over the warps, each 2^-24 relative; the root halves that. Behind it: the division by
        // cols, + eps, root and reciprocal (2^-23 at most each), w + w_offset and two products.
        const double depth = 4 * std::ceil(static_cast<double>(cols) / 1024) + 13;
        const double bound = (depth / 2 + 12) * std::ldexp(1.0, -24);
        for (size_t i = 0; i < want.size(); ++i)
          REQUIRE(std::fabs(got[i] - want[i]) <= bound * std::fabs(want[i]));
        CHECK(same_bits(stream.host(), want_sum));

        // One row alone is the same row.
        DeviceArray alone(std::vector<float>(static_cast<size_t>(cols), NAN), shift),
            row(std::vector<float>(want_sum.begin() + cols, want_sum.begin() + 2 * cols), shift);
        a.x = row.data();
        a.residual = nullptr;
        a.sum_out = nullptr;
        a.out = alone.data();
        a.rows = 1;
        const NextOrder order;
        REQUIRE(cuda::rms_norm(a, nullptr).ok());
        CHECK(same_bits(alone.host(), {got.begin() + cols, got.begin() + 2 * cols}));
      }
    }
  }
}

TEST_CASE("cuda: rms_norm refuses sizes below zero and accepts nothing to do", "[cuda]") {
  RmsNormArgs a;
  a.rows = -1;
  CHECK_FALSE(cuda::rms_norm(a, nullptr).ok());
  a.rows = 0;
  a.cols = 5;
  CHECK(cuda::rms_norm(a, nullptr).ok());
}
