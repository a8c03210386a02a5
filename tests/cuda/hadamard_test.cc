// Hadamard transforms on the device against the reference: powers of two, dense cores, several runs a row,
// signs, in place, and one too large for shared memory.
#include "kernels/hadamard.h"
#include "kernels/cuda/hadamard.h"
#include "quant/transforms/hadamard.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

TEST_CASE("cuda: hadamard against the reference, forward and inverse", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (auto [n, block] : {std::pair<int64_t, int64_t>{1, 1},
                          {6, 2},
                          {48, 16},
                          {256, 256},
                          {384, 128},
                          {36, 12},
                          {240, 240},
                          {1680, 1680},
                          {4096, 4096},
                          {57344, 57344}}) {
    for (int flags = 0; flags < (n > 5000 ? 1 : 4); ++flags) {
      const bool inverse = flags % 2 != 0, with_signs = flags / 2 != 0;
      INFO("n " << n << " block " << block << " inverse " << inverse << " signs " << with_signs);
      const HadamardOrder order = *hadamard_order(block);
      std::vector<std::vector<float>> cores;
      double depth = 5;  // additions an output goes through, the scale and two factors
      for (int64_t p = order.power; p > 1; p /= 2) ++depth;
      for (size_t c = order.cores.size(); c-- > 0;) {
        const int64_t K = order.cores[c];
        depth += static_cast<double>(K);
        const auto core = hadamard_core(K);
        auto& m = cores.emplace_back(core.size());
        for (int64_t i = 0; i < K; ++i)
          for (int64_t j = 0; j < K; ++j)
            m[static_cast<size_t>(inverse ? j * K + i : i * K + j)] = core[static_cast<size_t>(i * K + j)];
      }
      const int64_t rows = n > 5000 ? 1 : 3, ldx = n + 3;
      std::vector<float> x = random_values(static_cast<size_t>(rows * ldx), Values::kNormal, 1), want = x,
                         signs;
      for (int64_t i = 0; i < n; ++i)
        signs.push_back(static_cast<float>(random_sign(3, static_cast<uint64_t>(i))) *
                        std::exp2(static_cast<float>(i % 3)));
      HadamardArgs a;
      a.rows = rows;
      a.n = n;
      a.ldx = a.ldo = ldx;
      a.block = block;
      a.power = order.power;
      a.inverse = inverse ? 1 : 0;
      a.num_cores = static_cast<int32_t>(cores.size());
      std::vector<std::unique_ptr<DeviceArray>> dcores;
      for (size_t c = 0; c < cores.size(); ++c) {
        a.core_order[c] = order.cores[order.cores.size() - 1 - c];
        a.cores[c] = cores[c].data();
        dcores.push_back(std::make_unique<DeviceArray>(cores[c]));
      }
      a.x = x.data();
      a.out = want.data();
      a.signs = with_signs ? signs.data() : nullptr;
      run_reference(KernelFamily::kHadamard, Format::f32(), &a);
      DeviceArray in_place(x), dsigns(signs);
      for (size_t c = 0; c < cores.size(); ++c) a.cores[c] = dcores[c]->data();
      a.x = a.out = in_place.data();
      a.signs = with_signs ? dsigns.data() : nullptr;
      launch_on_device(KernelFamily::kHadamard, "f32", &a);
      // Runs that fit into shared memory take no scratch.
      CHECK((cuda::hadamard_scratch(a) == 0) == (block <= 28'672));
      // Of each run of each row: the sum of magnitudes.
      std::vector<double> magnitude(static_cast<size_t>(rows * (n / block)));
      for (int64_t i = 0; i < rows * ldx; ++i) {
        if (i % ldx >= n) continue;
        const float sign = with_signs && !inverse ? signs[static_cast<size_t>(i % ldx)] : 1.f;
        magnitude[static_cast<size_t>(i / ldx * (n / block) + i % ldx / block)] +=
            std::fabs(x[static_cast<size_t>(i)] * sign);
      }
      const double unit = depth * kUnit / std::sqrt(static_cast<double>(block));
      check_close(in_place.host(), want, [&](size_t at) {
        const auto i = static_cast<int64_t>(at), column = i % ldx;
        if (column >= n) return 0.0;  // between rows
        const double after = with_signs && inverse ? std::fabs(signs[static_cast<size_t>(column)]) : 1;
        return unit * magnitude[static_cast<size_t>(i / ldx * (n / block) + column / block)] * after;
      });
    }
  }
}
