// Divergence against values worked out by hand.
#include "engine/tune/measure/divergence.h"

#include <cmath>
#include <vector>

#include "tests/support/catch.h"

using namespace oar;

TEST_CASE("divergence of two distributions known in closed form") {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4), as logits with an offset that must not matter.
  const float l2 = std::log(2.f), l4 = std::log(4.f);
  const std::vector<float> p{3 - l2, 3 - l4, 3 - l4}, q{-7 - l4, -7 - l2, -7 - l4};
  const RowDivergence d = row_divergence(p, q, 0);
  // 1/2 ln 2 + 1/4 ln 1/2; logits near 7 carry f32 rounding of 2^-22.
  CHECK(d.kld == Approx(0.25 * std::log(2.0)).margin(1e-6));
  CHECK(d.reference_nll == Approx(std::log(2.0)).margin(1e-6));
  CHECK(d.nll == Approx(std::log(4.0)).margin(1e-6));
  CHECK_FALSE(d.same_top);
}

TEST_CASE("the same logits diverge by nothing") {
  const std::vector<float> p{1, -2, 30, 4};
  const RowDivergence d = row_divergence(p, p, 3);
  CHECK(d.kld == 0);
  CHECK(d.noise == 0);
  CHECK(d.same_top);
  CHECK(d.nll == d.reference_nll);
}

TEST_CASE("a shift of all logits is no noise") {
  const std::vector<float> p{1, -2, 3, 4}, q{11, 8, 13, 14};
  const RowDivergence d = row_divergence(p, q, -1);
  CHECK(d.noise == Approx(0).margin(1e-12));
  CHECK(d.kld == Approx(0).margin(1e-12));
  CHECK(d.nll == 0);
}

TEST_CASE("means, quantiles and agreement over positions") {
  Divergence all;
  CHECK(all.mean_kld() == 0);
  CHECK(all.kld_quantile(0.99) == 0);
  for (int i = 1; i <= 200; ++i) {
    RowDivergence row;
    row.kld = i;
    row.nll = 2;
    row.reference_nll = 1;
    row.signal = 100;
    row.noise = 1;
    row.same_top = i % 4 != 0;
    all.add(row);
  }
  CHECK(all.positions() == 200);
  CHECK(all.mean_kld() == Approx(100.5));
  CHECK(all.kld_quantile(0.99) == 198);  // nearest rank: ceil(0.99 * 200)
  CHECK(all.kld_quantile(1) == 200);
  CHECK(all.kld_quantile(0) == 1);
  CHECK(all.top1_agreement() == Approx(0.75));
  CHECK(all.perplexity() == Approx(std::exp(2.0)));
  CHECK(all.reference_perplexity() == Approx(std::exp(1.0)));
  CHECK(all.logit_snr_db() == Approx(20));
  // Variance of 1..n is n(n+1)/12.
  CHECK(all.mean_kld_error() == Approx(std::sqrt(200.0 * 201 / 12 / 200)));
}
