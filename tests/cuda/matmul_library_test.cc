// Products of prompts by cuBLASLt's strict fake, and by warp groups: against loops over rounded rows, a batch
// beside each row alone, how often the library is asked, and what they do not take, which our own kernel
// does.
#include "kernels/cuda/matmul_library.h"

#include <cuda_bf16.h>

#include "kernels/cuda/emulation/libraries.h"
#include "kernels/cuda/matmul_wgmma.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar::cuda;
using namespace oar_test;

namespace {

int g_chosen, g_products;  // calls of the library

// The fake, counted.
CublasLtApi counted() {
  g_chosen = g_products = 0;
  CublasLtApi api = emulation::fake_cublas_lt();
  api.MatmulAlgoGetHeuristic = [](auto... args) {
    ++g_chosen;
    return emulation::fake_cublas_lt().MatmulAlgoGetHeuristic(args...);
  };
  api.Matmul = [](auto... args) {
    ++g_products;
    return emulation::fake_cublas_lt().Matmul(args...);
  };
  return api;
}

std::unique_ptr<LibraryProducts> library() {
  std::string why;
  auto made = LibraryProducts::make(counted(), &why);
  INFO(why);
  REQUIRE(made != nullptr);
  return made;
}

std::vector<uint16_t> as_bf16(const std::vector<float>& v) {
  std::vector<uint16_t> out;
  for (float x : v) out.push_back(to_bf16(x).bits);
  return out;
}
double number_of_bits(uint16_t bits) { return static_cast<double>(to_f32(bf16{bits})); }
std::vector<float> normal(int64_t n, uint32_t seed) {
  return random_values(static_cast<size_t>(n), Values::kNormal, seed);
}

// Weights side by side, of one x; `shift` elements of bf16 behind where the library would read them.
struct Problem {
  Problem(std::vector<int64_t> outputs, int64_t k, bool with_bias, bool with_gate, int64_t rows,
          size_t shift = 0)
      : K(k), T(rows), N(0) {
    for (const int64_t n : outputs) {
      const auto seed = static_cast<uint32_t>(10 + N);
      weights.push_back(as_bf16(normal(n * K, seed)));
      biases.push_back(with_bias ? normal(n, seed + 1) : std::vector<float>());
      device_weights.push_back(std::make_unique<DeviceCopy<uint16_t>>(weights.back(), shift));
      device_biases.push_back(std::make_unique<DeviceArray>(biases.back()));
      segments.push_back(
          {device_weights.back()->data(), with_bias ? device_biases.back()->data() : nullptr, n, N});
      N += n;
    }
    ld = K + 3;  // rows of x that are not aligned
    x = normal(T * ld, 1);
    residual = normal(T * N, 2);
    if (with_gate) gate = normal(T * ld, 3);
  }

  // What a product says of the scratch it takes.
  MatmulArgs sizes() const {
    MatmulArgs a;
    a.segments = segments.data();
    a.num_segments = static_cast<int64_t>(segments.size());
    a.T = T;
    a.K = K;
    a.ldo = N;
    return a;
  }

  // Rows [begin, end); by the library or by warp groups, or where `by` is null by our own kernel.
  template <class Products>
  std::vector<float> run(Products* by, int64_t begin, int64_t end) {
    const auto part = [&](const std::vector<float>& all, int64_t row) {
      return all.empty() ? all : std::vector<float>(all.begin() + begin * row, all.begin() + end * row);
    };
    DeviceArray dx(part(x, ld)), dg(part(gate, ld)), out(part(residual, N));  // the residual is the result
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
    if (by == nullptr) {
      launch_on_device(gate.empty() ? KernelFamily::kMatmul : KernelFamily::kGatedMatmul, "bf16",
                       gate.empty() ? static_cast<const void*>(&a) : &g);
      return out.host();
    }
    DeviceCopy<char> scratch(std::vector<char>(gate.empty() ? by->scratch(a) : by->scratch(g), '\x7f'));
    const LibraryStatus ran =
        gate.empty() ? by->run(a, scratch.data(), nullptr) : by->run(g, scratch.data(), nullptr);
    INFO(ran.what);
    REQUIRE(ran.ok());
    return out.host();
  }

  int64_t K, T, N, ld;
  bool adds = true;  // the residual
  std::vector<std::vector<uint16_t>> weights;
  std::vector<std::vector<float>> biases;
  std::vector<std::unique_ptr<DeviceCopy<uint16_t>>> device_weights;
  std::vector<std::unique_ptr<DeviceArray>> device_biases;
  std::vector<MatmulSegment> segments;
  std::vector<float> x, residual, gate;
};

// Against loops over rows rounded to bf16; `roundings` of a sum, each of its magnitudes.
void check_rows(const Problem& p, const std::vector<float>& got, double roundings) {
  for (int64_t t = 0; t < p.T; ++t) {
    for (size_t s = 0; s < p.segments.size(); ++s) {
      for (int64_t j = 0; j < p.segments[s].n; ++j) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < p.K; ++k) {
          double v = static_cast<double>(p.x[static_cast<size_t>(t * p.ld + k)]);
          const double w = number_of_bits(p.weights[s][static_cast<size_t>(j * p.K + k)]);
          if (!p.gate.empty()) {
            const double g = static_cast<double>(p.gate[static_cast<size_t>(t * p.ld + k)]);
            v *= g / (1 + std::exp(-g));
          }
          sum += number_of_bits(to_bf16(static_cast<float>(v)).bits) * w;
          size += std::fabs(v * w);
        }
        const auto at = static_cast<size_t>(t * p.N + p.segments[s].out_col + j);
        if (!p.biases[s].empty()) sum += static_cast<double>(p.biases[s][static_cast<size_t>(j)]);
        if (p.adds) sum += static_cast<double>(p.residual[at]);
        // A gated element that lies between two of bf16 may round to the other one.
        const double bound = roundings * kUnit * (std::fabs(sum) + size) + (!p.gate.empty() ? size / 256 : 0);
        REQUIRE(std::fabs(static_cast<double>(got[at]) - sum) <= bound);
      }
    }
  }
}

}  // namespace

TEST_CASE("cuda libraries: products of prompts are those of rows rounded to bf16") {
  for (const int64_t rows : {1, 5, 33}) {
    for (const int flags : {0, 1, 2, 3}) {
      const bool bias = flags % 2 != 0, with_gate = flags / 2 != 0;
      INFO("rows " << rows << " bias " << bias << " gate " << with_gate);
      Problem p(with_gate ? std::vector<int64_t>{24} : std::vector<int64_t>{24, 4, 132}, 72, bias, with_gate,
                rows);
      p.adds = rows != 5;
      const auto by = library();
      const std::vector<float> got = p.run(by.get(), 0, rows);
      CHECK(g_products == static_cast<int>(p.segments.size()));
      check_rows(p, got, 2);  // the fake adds in double and rounds once
    }
  }
}

TEST_CASE("cuda libraries: a row of a prompt is the same beside any other rows, with one choice a weight") {
  constexpr int64_t kRows = 19;
  for (const bool with_gate : {false, true}) {
    INFO("gate " << with_gate);
    Problem p(with_gate ? std::vector<int64_t>{32} : std::vector<int64_t>{32, 16, 32}, 48, false, with_gate,
              kRows);
    const auto by = library();
    const std::vector<float> all = p.run(by.get(), 0, kRows);
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, 1}, {7, 8}, {kRows - 1, kRows}, {0, 7}, {7, kRows}}) {
      const std::vector<float> part = p.run(by.get(), begin, end);
      CHECK(std::equal(part.begin(), part.end(), all.begin() + begin * p.N));
    }
    // Two shapes, or one; whatever the rows were, nobody chose again.
    CHECK(g_chosen == (with_gate ? 1 : 2));
    CHECK(g_products == 6 * static_cast<int>(p.segments.size()));
  }
}

TEST_CASE("cuda libraries: what cuBLASLt does not take, our own kernel does for all rows") {
  struct Case {
    std::vector<int64_t> outputs;
    int64_t K;
    size_t shift;
    int products;  // of the library
  };
  for (const Case& c : {Case{{24}, 12, 0, 0},       // rows of weights that are no multiple of 16 bytes
                        Case{{24}, 16, 1, 0},       // a weight that lies askew
                        Case{{6}, 16, 0, 0},        // rows of results that are none
                        Case{{6, 2}, 16, 0, 1}}) {  // the second begins askew
    for (const bool with_gate : {false, true}) {
      if (with_gate && c.outputs.size() > 1) continue;
      INFO("K " << c.K << " shift " << c.shift << " first n " << c.outputs[0] << " gate " << with_gate);
      for (const int64_t rows : {1, 9}) {
        Problem p(c.outputs, c.K, true, with_gate, rows, c.shift);
        const auto by = library();
        const std::vector<float> got = p.run(by.get(), 0, rows),
                                 own = p.run<LibraryProducts>(nullptr, 0, rows);
        CHECK(g_products == c.products);
        if (c.products == 0) CHECK(got == own);
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t j = 6; c.products > 0 && j < p.N; ++j)
            CHECK(got[static_cast<size_t>(t * p.N + j)] == own[static_cast<size_t>(t * p.N + j)]);
      }
    }
  }
  // No rows: nothing is done.
  Problem none({24}, 16, false, false, 1);
  const auto idle = library();
  CHECK(none.run(idle.get(), 0, 0).empty());
  CHECK(g_products == 0);
  // Nothing that the library would do: no scratch.
  CHECK(library()->scratch(Problem({24}, 12, false, false, 4).sizes()) == 0);
}

TEST_CASE("cuda products of warp groups are those of rows rounded to bf16, alone as in any company") {
  struct Case {
    std::vector<int64_t> outputs;
    int64_t rows, K;
    bool bias, gate, adds = true;
  };
  // Around tiles of 128 rows and outputs and boxes of 64 k; more steps than there are stages.
  for (const Case& c : {Case{{24, 4, 132}, 5, 72, true, false}, Case{{130}, 130, 8, false, true},
                        Case{{16}, 1, 456, false, false}, Case{{7, 0, 1}, 65, 64, true, false},
                        Case{{7}, 1, 64, false, false, false}, Case{{8, 8}, 1, 64, false, false, false}}) {
    INFO("rows " << c.rows << " K " << c.K << " first n " << c.outputs[0]);
    Problem p(c.outputs, c.K, c.bias, c.gate, c.rows);
    p.adds = c.adds;
    WarpGroupProducts by;
    CHECK(p.run(&by, 0, 0).empty());
    const std::vector<float> all = p.run(&by, 0, c.rows);
    check_rows(p, all, 16 + static_cast<double>(c.K) / 8);  // two an addition of 16 products, and within them
    if (c.rows == 1) continue;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{c.rows - 1, c.rows}, {1, c.rows}}) {
      const std::vector<float> part = p.run(&by, begin, end);
      CHECK(std::equal(part.begin(), part.end(), all.begin() + begin * p.N));
    }
  }
  // Whatever the order of threads, and however late boxes and products come.
  Problem p({136}, 456, true, false, 3);
  WarpGroupProducts by;
  const std::vector<float> once = p.run(&by, 0, 3);
  in_every_order([&] { CHECK((p.run(&by, 0, 3) == once)); });
}

TEST_CASE("cuda products of warp groups: other weights have our other kernel for all rows") {
  for (const auto& [K, shift] : {std::pair<int64_t, size_t>{12, 0}, {16, 1}}) {
    for (const bool with_gate : {false, true}) {
      Problem p({24}, K, true, with_gate, 9, shift);
      WarpGroupProducts by;
      CHECK(p.run(&by, 0, 9) == p.run<WarpGroupProducts>(nullptr, 0, 9));
      CHECK(p.run(&by, 0, 0).empty());
      CHECK(by.scratch(p.sizes()) == 0);
    }
  }
}
