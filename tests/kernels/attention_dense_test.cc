// Attention of padded batches at every level against the double-precision reference, operands ending at a
// guard page; what a query gets must not depend on its chunk, its company, the workers, or on whether keys
// are packed.
#include <algorithm>

#include "tests/kernels/dense_problem.h"

using namespace oar;
using namespace oar_test;

TEST_CASE("dense attention: every level equals the reference") {
  uint32_t seed = 0;
  for (const DenseCase& c : dense_cases()) {
    const DenseProblem p(c, seed += 10);
    const std::vector<float> want = p.run(Isa::kReference);
    for (const Isa isa : levels()) {
      INFO(isa_name(isa) << " case " << seed << " S " << c.S << " L " << c.L << " D " << c.D << " DV "
                         << c.DV);
      const std::vector<float> got = p.run(isa);
      REQUIRE(got.size() == want.size());
      double worst = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(want[i]) && std::isnan(got[i])) continue;
        const double d = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
        worst = d <= worst ? worst : d;  // NaN stays
      }
      CHECK(worst <= p.bound());
    }
  }
}

TEST_CASE("dense attention: a query alone, in company and over workers is the same to the last bit") {
  ThreadPool pool({.threads = 3});
  uint32_t seed = 1000;
  for (const DenseCase& c : dense_cases()) {
    const DenseProblem p(c, seed += 10);
    for (const Isa isa : levels()) {
      INFO(isa_name(isa) << " case " << seed << " S " << c.S << " L " << c.L);
      const std::vector<float> all = p.run(isa), spread = p.run(isa, &pool);
      REQUIRE(std::memcmp(all.data(), spread.data(), all.size() * sizeof(float)) == 0);
      if (c.last) continue;  // its position follows from how many queries there are
      for (const int64_t i : {int64_t{0}, c.S / 2, c.S - 1}) {
        const std::vector<float> one = p.run_one(isa, i);
        for (int64_t bh = 0; bh < c.B * c.H; ++bh)
          REQUIRE(std::memcmp(one.data() + bh * c.DV, all.data() + (bh * c.S + i) * c.DV,
                              static_cast<size_t>(c.DV) * sizeof(float)) == 0);
      }
    }
  }
}
