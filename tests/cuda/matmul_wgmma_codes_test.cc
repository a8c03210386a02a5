// Products of prompts with weights of e4m3 by warp groups, and by cuBLASLt's strict fake: against loops over
// rows rounded to e4m3 as the device rounds them, a batch beside each row alone, and weights that are not
// packed.
#include "kernels/cuda/matmul_wgmma_codes.h"

#include <cuda_fp8.h>

#include <numeric>

#include "engine/tensor/backend.h"
#include "kernels/cuda/emulation/libraries.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_library.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar::cuda;
using namespace oar_test;

namespace {

enum class By { kGroups, kLibrary, kUsual };

// Weights side by side, of one x.
struct CodesProblem {
  CodesProblem(const char* name, std::vector<int64_t> outputs, int64_t k, int64_t rows, bool with_gate,
               bool with_bias)
      : format(name), K(k), T(rows), N(0), ld(k + 3) {
    const Format f = *Format::find(name);
    const int64_t stride = f.stride(K);
    for (const int64_t n : outputs) {
      const auto seed = static_cast<uint32_t>(10 + N);
      const std::vector<float> w = random_values(static_cast<size_t>(n * K), Values::kNormal, seed);
      std::vector<char> rows_of(static_cast<size_t>(n * stride));
      decoded.emplace_back(w.size());
      for (int64_t r = 0; r < n; ++r) {
        f.info().encode(w.data() + r * K, K / f.info().block_elems, rows_of.data() + r * stride);
        f.info().decode(rows_of.data() + r * stride, 0, K / f.info().block_elems,
                        decoded.back().data() + r * K);
      }
      const uint64_t bytes = packed_bytes(name, n, K);
      if (bytes > 0) {
        std::vector<char> packed(bytes);
        pack_weight(name, n, K, packed.data(), rows_of.data());
        rows_of = packed;
      }
      biases.push_back(with_bias ? random_values(static_cast<size_t>(n), Values::kNormal, seed + 1)
                                 : std::vector<float>());
      weights.push_back(std::make_unique<DeviceCopy<char>>(rows_of));
      device_biases.push_back(std::make_unique<DeviceArray>(biases.back()));
      segments.push_back({weights.back()->data(), with_bias ? device_biases.back()->data() : nullptr, n, N});
      N += n;
    }
    x = random_values(static_cast<size_t>(T * ld), Values::kNormal, 1);
    if (T > 2) std::fill_n(x.begin() + 2 * ld, ld, 0.f);  // a row of zeros, whose scale is none
    residual = random_values(static_cast<size_t>(T * N), Values::kNormal, 2);
    if (with_gate) gate = random_values(static_cast<size_t>(T * ld), Values::kNormal, 3);
  }

  // Rows [begin, end).
  std::vector<float> run(int64_t begin, int64_t end, By by = By::kGroups) {
    const auto part = [&](const std::vector<float>& all, int64_t row) {
      return all.empty() ? all : std::vector<float>(all.begin() + begin * row, all.begin() + end * row);
    };
    DeviceArray dx(part(x, ld)), dg(part(gate, ld)), out(part(residual, N));
    GatedMatmulArgs g;
    MatmulArgs& a = g.matmul;
    a.out = out.data();
    a.x = dx.data();
    a.residual = adds ? out.data() : nullptr;
    a.segments = segments.data();
    a.num_segments = static_cast<int64_t>(segments.size());
    a.T = end - begin;
    a.K = K;
    a.ldx = ld;
    a.ldo = N;
    g.gate = dg.data();
    g.ld_gate = ld;
    g.act = UnaryOp::kSilu;
    if (by == By::kUsual) {
      launch_on_device(gate.empty() ? KernelFamily::kMatmul : KernelFamily::kGatedMatmul, format,
                       gate.empty() ? static_cast<const void*>(&a) : &g);
      return out.host();
    }
    const auto multiply = [&](auto& products) {
      DeviceCopy<char> scratch(std::vector<char>(products.scratch(a), '\x7f'));
      CHECK((scratch.size() > 0) == (a.T > 0 && (by == By::kLibrary ? library_takes : packs(K))));
      const LibraryStatus ran =
          gate.empty() ? products.run(a, scratch.data(), nullptr) : products.run(g, scratch.data(), nullptr);
      INFO(ran.what);
      REQUIRE(ran.ok());
    };
    if (by == By::kGroups) {
      WarpGroupCodes groups(format);
      multiply(groups);
      return out.host();
    }
    std::string why;
    const auto library = LibraryProducts::make(emulation::fake_cublas_lt(), &why);
    REQUIRE(library != nullptr);
    LibraryCodes codes(*library);
    multiply(codes);
    return out.host();
  }

  // x, or act(gate) x, as its codes have it.
  std::vector<double> row(int64_t t) const {
    std::vector<double> out;
    for (int64_t k0 = 0; k0 < K; k0 += 128) {
      float v[128], most = 0.f;
      for (int64_t i = 0; i < 128; ++i) {
        const auto at = static_cast<size_t>(t * ld + k0 + i);
        v[i] = gate.empty() ? x[at] : gated(UnaryOp::kSilu, gate[at], x[at]);
        most = std::max(most, std::fabs(v[i]));
      }
      const float scale = std::max(most / 448.f, 1.1754944e-38f);
      for (const float e : v) {
        __nv_fp8_e4m3 code;
        code.__x = __nv_cvt_float_to_fp8(e / scale, __NV_SATFINITE, __NV_E4M3);
        out.push_back(static_cast<double>(static_cast<float>(code)) * static_cast<double>(scale));
      }
    }
    return out;
  }

  const char* format;
  int64_t K, T, N, ld;
  bool library_takes = true;  // a weight at least
  bool adds = true;           // the residual
  std::vector<std::vector<float>> decoded, biases;
  std::vector<std::unique_ptr<DeviceCopy<char>>> weights;
  std::vector<std::unique_ptr<DeviceArray>> device_biases;
  std::vector<MatmulSegment> segments;
  std::vector<float> x, residual, gate;
};

void check_codes_rows(const CodesProblem& p, const std::vector<float>& got) {
  // 128 sums within the tensor cores, and what scales a group and adds it.
  const double roundings = 128 + 4 * static_cast<double>(p.K) / 128 + 8;
  for (int64_t t = 0; t < p.T; ++t) {
    const std::vector<double> row = p.row(t);
    for (size_t s = 0; s < p.segments.size(); ++s) {
      for (int64_t j = 0; j < p.segments[s].n; ++j) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < p.K; ++k) {
          const double e = row[static_cast<size_t>(k)] *
                           static_cast<double>(p.decoded[s][static_cast<size_t>(j * p.K + k)]);
          sum += e;
          size += std::fabs(e);
        }
        const auto at = static_cast<size_t>(t * p.N + p.segments[s].out_col + j);
        if (!p.biases[s].empty()) sum += static_cast<double>(p.biases[s][static_cast<size_t>(j)]);
        if (p.adds) sum += static_cast<double>(p.residual[at]);
        REQUIRE(std::fabs(static_cast<double>(got[at]) - sum) <= roundings * kUnit * (std::fabs(sum) + size));
      }
    }
  }
}

}  // namespace

TEST_CASE("cuda products of warp groups with e4m3 are those of rows rounded to it, alone as in any company") {
  struct Case {
    std::vector<int64_t> outputs;
    int64_t rows, K;
    bool gate, bias;
  };
  for (const char* format : {"e4m3_channel", "e4m3_g128"}) {
    // Around tiles of 128 rows and outputs; more steps than there are stages.
    for (const Case& c : {Case{{24, 4, 132}, 5, 256, false, true}, Case{{130}, 130, 128, true, false},
                          Case{{16}, 1, 768, false, false}, Case{{7, 0, 1}, 65, 128, false, true}}) {
      INFO(format << " rows " << c.rows << " K " << c.K << " first n " << c.outputs[0]);
      CodesProblem p(format, c.outputs, c.K, c.rows, c.gate, c.bias);
      CHECK(p.run(0, 0).empty());
      const std::vector<float> all = p.run(0, c.rows);
      check_codes_rows(p, all);
      if (c.rows == 1) continue;
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{c.rows - 1, c.rows}, {1, c.rows}}) {
        const std::vector<float> part = p.run(begin, end);
        CHECK(std::equal(part.begin(), part.end(), all.begin() + begin * p.N));
      }
    }
    // Whatever the order of threads, and however late boxes and products come.
    CodesProblem p(format, {136}, 768, 3, false, true);
    const std::vector<float> once = p.run(0, 3);
    in_every_order([&] { CHECK((p.run(0, 3) == once)); });
  }
}

TEST_CASE("cuda products of warp groups with e4m3: weights that are not packed have our other kernel") {
  for (const bool with_gate : {false, true}) {
    CodesProblem p("e4m3_channel", {24}, 96, 9, with_gate, true);
    CHECK(p.run(0, 9) == p.run(0, 9, By::kUsual));
    CHECK(p.run(0, 0).empty());
  }
}

TEST_CASE("cuda libraries: products of prompts with e4m3_g128 are those of rows rounded to e4m3") {
  struct Case {
    std::vector<int64_t> outputs;
    int64_t rows, K;
    bool gate, bias;
  };
  // Rows in fours, and not; panels of 16 rows, more words of a panel than a block copies.
  for (const Case& c : {Case{{32, 16, 144}, 5, 256, false, true}, Case{{48}, 8, 128, true, false},
                        Case{{16}, 1, 384, false, false}, Case{{32, 32}, 66, 128, false, true}}) {
    INFO("rows " << c.rows << " K " << c.K << " first n " << c.outputs[0]);
    CodesProblem p("e4m3_g128", c.outputs, c.K, c.rows, c.gate, c.bias);
    CHECK(p.run(0, 0, By::kLibrary).empty());
    const std::vector<float> all = p.run(0, c.rows, By::kLibrary);
    check_codes_rows(p, all);
    p.adds = false;
    check_codes_rows(p, p.run(0, c.rows, By::kLibrary));
    p.adds = true;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{c.rows - 1, c.rows}, {c.rows / 2, c.rows}}) {
      const std::vector<float> part = p.run(begin, end, By::kLibrary);
      CHECK(std::equal(part.begin(), part.end(), all.begin() + begin * p.N));
    }
  }
}

TEST_CASE("cuda libraries: the plug-in has cuBLASLt multiply prompts with weights of e4m3_g128") {
  const auto backend = [](const char* libraries) {
    const WithLibraries with(libraries);
    auto made = make_plugin_backend(
        kCudaPlugin,
        make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 1}), Isa::kReference), {});
    REQUIRE_OK(made);
    return std::move(*made);
  };
  const Format format = *Format::find("e4m3_g128");
  const KernelKey prompts = {.family = KernelFamily::kMatmul, .weight = format, .rows = RowClass::kPrompt};
  CHECK(backend("none")->find_kernel(prompts) == nullptr);
  const auto b = backend("cublaslt");
  const Kernel* kernel = b->find_kernel(prompts);
  REQUIRE(kernel != nullptr);
  KernelKey channels = prompts;
  channels.weight = *Format::find("e4m3_channel");
  CHECK(b->find_kernel(channels) == nullptr);

  constexpr int64_t kRows = 5, kK = 128, kOutputs = 16;
  const std::vector<float> ones(kOutputs * kK, 1.f);
  std::vector<char> rows(static_cast<size_t>(kOutputs * format.stride(kK)));
  for (int64_t r = 0; r < kOutputs; ++r)
    format.encode_row(ones.data(), kK, rows.data() + r * format.stride(kK));
  const auto bytes = b->packed_bytes(format, kOutputs, kK);
  REQUIRE_OK(bytes);
  std::vector<char> packed(*bytes + 64);
  auto* to = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(packed.data()) + 63) / 64 * 64);
  REQUIRE_OK(b->pack(format, format, kOutputs, kK, to, rows.data()));
  const auto w = b->allocate(*bytes), x = b->allocate(kRows * kK * sizeof(float)),
             out = b->allocate(kRows * kOutputs * sizeof(float));
  REQUIRE_OK(w);
  REQUIRE_OK(x);
  REQUIRE_OK(out);
  REQUIRE_OK(b->upload(w->mutable_data(), to, *bytes));
  REQUIRE_OK(b->upload(x->mutable_data(), ones.data(), kRows * kK * sizeof(float)));
  const MatmulSegment segment{w->data(), nullptr, kOutputs, 0};
  MatmulArgs a;
  a.out = static_cast<float*>(out->mutable_data());
  a.x = static_cast<const float*>(x->data());
  a.segments = &segment;
  a.num_segments = 1;
  a.T = kRows;
  a.K = a.ldx = kK;
  a.ldo = kOutputs;
  KernelPlan plan;
  REQUIRE_OK(b->plan(*kernel, &a, &plan));
  const auto scratch = b->allocate(plan.shared_scratch);
  REQUIRE_OK(scratch);
  REQUIRE_OK(b->launch(*kernel, &a, plan, scratch->mutable_data()));
  std::vector<float> got(kRows * kOutputs);
  REQUIRE_OK(b->download(got.data(), out->data(), got.size() * sizeof(float)));
  REQUIRE_OK(b->synchronize());
  for (const float sum : got) CHECK(std::fabs(sum - 128.f) < 1e-3f);
}

TEST_CASE("cuda libraries: weights of e4m3_g128 that cuBLASLt does not take have our other kernel") {
  for (const bool with_gate : {false, true}) {
    CodesProblem p("e4m3_g128", {24}, 128, 9, with_gate, true);  // outputs that are no panels
    p.library_takes = false;
    CHECK(p.run(0, 9, By::kLibrary) == p.run(0, 9, By::kUsual));
    CHECK(p.run(0, 0, By::kLibrary).empty());
  }
  // One that begins askew.
  CodesProblem askew("e4m3_g128", {2, 16, 2}, 128, 5, false, false);
  askew.library_takes = false;
  CHECK(askew.run(0, 5, By::kLibrary) == askew.run(0, 5, By::kUsual));
  // One that it takes beside one that it does not.
  CodesProblem both("e4m3_g128", {16, 8}, 128, 5, false, true);
  const std::vector<float> got = both.run(0, 5, By::kLibrary), own = both.run(0, 5, By::kUsual);
  for (size_t t = 0; t < 5; ++t)
    for (size_t j = 16; j < 24; ++j) CHECK(got[t * 24 + j] == own[t * 24 + j]);
  CHECK(got != own);
}
