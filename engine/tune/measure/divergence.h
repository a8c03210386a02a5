// How far one model's predictions are from another's, token by token: what a storage format costs.
//
// At each position the reference gives a distribution p over the vocabulary and the candidate q; the
// Kullback-Leibler divergence is sum p ln(p / q), in nats. The mean says what is lost on average, the 99th
// percentile what is lost where it hurts. Top-1 agreement says how often the likeliest token stays the same.
// All sums are in double and in the order of the positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oar {

struct RowDivergence {
  double kld = 0;            // nats, never below 0
  double reference_nll = 0;  // -ln p[target]
  double nll = 0;            // -ln q[target]
  double signal = 0;         // sum of squares of the reference's centered logits
  double noise = 0;          // sum of squares of the difference of both centered logits
  bool same_top = false;     // argmax agrees; the first of equals counts
};

// Logits of one row, both of the same vocabulary. A target below 0 leaves both nll at 0.
RowDivergence row_divergence(std::span<const float> reference, std::span<const float> candidate,
                             int32_t target);

// Sums over positions.
class Divergence {
 public:
  void add(const RowDivergence& row);
  int64_t positions() const { return static_cast<int64_t>(kld_.size()); }
  double mean_kld() const;
  // Standard error of the mean, positions taken as independent.
  double mean_kld_error() const;
  // The least value that at least `fraction` of the positions do not exceed (nearest rank). 0 when empty.
  double kld_quantile(double fraction) const;
  double top1_agreement() const;  // in [0, 1]
  double reference_perplexity() const;
  double perplexity() const;
  // 10 log10(signal / noise) of the logits, each row centered: what a softmax cannot see does not count.
  double logit_snr_db() const;

 private:
  std::vector<float> kld_;
  double sum_ = 0, squares_ = 0, reference_nll_ = 0, nll_ = 0, signal_ = 0, noise_ = 0;
  int64_t same_top_ = 0;
};

}  // namespace oar
