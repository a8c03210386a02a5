// The grouped Hadamard transform: every level against the double reference, rows ending at a guard page;
// values must not depend on the batch, the chunks or the workers.
#include "kernels/hadamard.h"

#include <cmath>

#include "quant/transforms/hadamard.h"
#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Problem {
  HadamardArgs a;
  HadamardOrder order;
  std::vector<std::vector<float>> cores;
  Guarded<float> x, out, signs;

  // `factors`: signs times scales of 1/4 to 4.
  Problem(int64_t rows, int64_t n, int64_t block, bool with_signs, bool inverse, int64_t ldx = 0,
          bool factors = false) {
    order = *hadamard_order(block);
    ldx = ldx > 0 ? ldx : n;
    a.rows = rows;
    a.n = n;
    a.block = block;
    a.power = order.power;
    a.inverse = inverse ? 1 : 0;
    a.ldx = ldx;
    a.ldo = n;
    for (size_t c = order.cores.size(); c-- > 0;) {
      const int64_t K = order.cores[c];
      const auto core = hadamard_core(K);
      auto& m = cores.emplace_back(core.size());
      for (int64_t i = 0; i < K; ++i) {
        for (int64_t j = 0; j < K; ++j)
          m[static_cast<size_t>(inverse ? j * K + i : i * K + j)] = core[static_cast<size_t>(i * K + j)];
      }
    }
    for (size_t c = 0; c < cores.size(); ++c) {
      a.cores[c] = cores[c].data();
      a.core_order[c] = order.cores[order.cores.size() - 1 - c];
    }
    a.num_cores = static_cast<int32_t>(cores.size());
    const auto values = random_values(static_cast<size_t>((rows - 1) * ldx + n), Values::kNormal, 5);
    x = Guarded<float>(values.size());
    std::copy(values.begin(), values.end(), x.begin());
    out = Guarded<float>(static_cast<size_t>(rows * n));
    if (with_signs) {
      signs = Guarded<float>(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i)
        signs[static_cast<size_t>(i)] = static_cast<float>(random_sign(3, static_cast<uint64_t>(i))) *
                                        (factors ? std::exp2(static_cast<float>(i % 9) / 2 - 2) : 1.f);
      a.signs = signs.data();
    }
    a.x = x.data();
    a.out = out.data();
  }
  // Additions an output goes through: a level of the tree for each factor of two, K in a row for a dense
  // core.
  int64_t depth() const {
    int64_t d = 0;
    for (int64_t p = order.power; p > 1; p /= 2) ++d;
    for (int64_t K : order.cores) d += K;
    return d;
  }
  double magnitude(int64_t row, int64_t column) const {
    double sum = 0;
    const int64_t first = column / a.block * a.block;
    const auto factor = [&](int64_t i) { return a.signs != nullptr ? std::fabs(a.signs[i]) : 1.f; };
    for (int64_t i = first; i < first + a.block; ++i)
      sum += std::fabs(a.x[row * a.ldx + i]) * (a.inverse != 0 ? 1.f : factor(i));
    return sum / std::sqrt(static_cast<double>(a.block)) * (a.inverse != 0 ? factor(column) : 1.f);
  }
};

const Kernel& kernel(Isa isa) {
  const Kernel* k = KernelRegistry::cpu().find({KernelFamily::kHadamard, Format::f32()}, isa);
  REQUIRE(k != nullptr);
  return *k;
}

struct Size {
  int64_t n, block;
};
// Blocks around the vector widths, several to a row, odd numbers of them, dense cores of one and of two
// factors, large.
const Size kSizes[] = {{1, 1},       {7, 1},       {2, 2},       {6, 2},       {4, 4},      {20, 4},
                       {8, 8},       {24, 8},      {16, 16},     {48, 16},     {32, 32},    {96, 32},
                       {64, 64},     {192, 64},    {128, 128},   {384, 128},   {256, 256},  {512, 512},
                       {1024, 1024}, {2048, 2048}, {11008, 256}, {8192, 8192}, {12, 12},    {36, 12},
                       {20, 20},     {28, 28},     {80, 80},     {96, 96},     {112, 112},  {224, 112},
                       {192, 192},   {240, 240},   {896, 896},   {576, 576},   {1680, 1680}};

}  // namespace

TEST_CASE("hadamard: every level against the reference, forward and inverse, with signs or factors") {
  const double u = std::ldexp(1.0, -24);
  for (const Size& size : kSizes) {
    for (bool inverse : {false, true}) {
      for (int with : {0, 1, 2}) {  // nothing, signs, factors
        const int64_t rows = size.n > 4000 ? 2 : 3, ldx = size.n + 3;
        Problem p(rows, size.n, size.block, with > 0, inverse, ldx, with == 2);
        run_in_steps(kernel(Isa::kReference), &p.a, 1, false);
        const std::vector<float> want(p.out.begin(), p.out.end());
        // Each addition rounds once, so do the scale, its product, that with a factor, and the reference's
        // result.
        const double roundings = static_cast<double>(p.depth()) + 5;
        std::vector<double> bounds;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < size.n; ++c) bounds.push_back(roundings * u * p.magnitude(r, c));
        }
        for (Isa isa : levels()) {
          const Kernel& k = kernel(isa);
          INFO(k.name << " n=" << size.n << " block=" << size.block << " inverse=" << inverse);
          std::fill(p.out.begin(), p.out.end(), NAN);
          run_in_steps(k, &p.a, 1, true);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < size.n; ++c) {
              const auto at = static_cast<size_t>(r * size.n + c);
              if (!(std::fabs(p.out[at] - want[at]) <= bounds[at])) {
                CAPTURE(r, c, p.out[at], want[at]);
                FAIL("outside the bound");
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("hadamard: the matrix itself, in place, and back again") {
  for (Isa isa : levels()) {
    const Kernel& k = kernel(isa);
    for (int64_t block : {16, 64, 12, 28, 80, 48}) {
      INFO(k.name << " block=" << block);
      // Unit vectors give columns of H / sqrt n, exact but for the one rounding of the scale.
      Problem p(block, block, block, false, false);
      for (int64_t r = 0; r < block; ++r) {
        for (int64_t c = 0; c < block; ++c) p.x[static_cast<size_t>(r * block + c)] = r == c ? 1.f : 0.f;
      }
      run_in_steps(k, &p.a, 1, false);
      const float scale = 1.f / std::sqrt(static_cast<float>(block));
      bool equal = true;
      for (int64_t r = 0; r < block; ++r) {
        for (int64_t c = 0; c < block; ++c)
          equal = equal && p.out[static_cast<size_t>(r * block + c)] ==
                               scale * static_cast<float>(hadamard_entry(p.order, c, r));
      }
      CHECK(equal);

      // In place, then the inverse in place, gives what was there.
      Problem forward(5, 2 * block, block, true, false), inverse(5, 2 * block, block, true, true);
      std::vector<float> data(forward.x.begin(), forward.x.end());
      const auto original = data;
      forward.a.x = forward.a.out = data.data();
      run_in_steps(k, &forward.a, 1, true);
      inverse.a.x = inverse.a.out = data.data();
      run_in_steps(k, &inverse.a, 1, false);
      // Two transforms of depth d over values of norm |x|: each output is off by at most (d + 4) u sum |x| /
      // sqrt n of either, sums that Cauchy and Schwarz bound by |x|.
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t b = 0; b < 2; ++b) {
          double norm = 0;
          for (int64_t i = 0; i < block; ++i)
            norm += std::pow(original[static_cast<size_t>((2 * r + b) * block + i)], 2);
          const double bound = 2 * (static_cast<double>(forward.depth()) + 4) * std::ldexp(1.0, -24) *
                               std::sqrt(static_cast<double>(block)) * std::sqrt(norm);
          for (int64_t i = 0; i < block; ++i) {
            const auto at = static_cast<size_t>((2 * r + b) * block + i);
            REQUIRE(std::fabs(data[at] - original[at]) <= bound);
          }
        }
      }
    }
  }
}

TEST_CASE("hadamard: bits do not depend on the batch, the chunks or the workers") {
  ThreadPool pool({.threads = 3});
  for (const Size& size : {Size{11008, 256}, Size{192, 64}, Size{24, 8}, Size{224, 112}, Size{8192, 8192}}) {
    for (Isa isa : levels()) {
      const Kernel& k = kernel(isa);
      INFO(k.name << " n=" << size.n);
      const int64_t rows = 67;
      Problem p(rows, size.n, size.block, true, false);
      run_on_pool(pool, k, &p.a);
      const std::vector<float> all(p.out.begin(), p.out.end());
      run_in_steps(k, &p.a, 2, true);
      CHECK(std::memcmp(all.data(), p.out.data(), all.size() * sizeof(float)) == 0);
      for (int64_t row : {0, 1, 33, 66}) {
        HadamardArgs one = p.a;
        one.rows = 1;
        one.x = p.a.x + row * p.a.ldx;
        std::vector<float> alone(static_cast<size_t>(size.n));
        one.out = alone.data();
        run_in_steps(k, &one, 1, false);
        CHECK(std::memcmp(alone.data(), all.data() + row * size.n, alone.size() * sizeof(float)) == 0);
      }
    }
  }
}
