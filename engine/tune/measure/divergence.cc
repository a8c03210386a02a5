#include "engine/tune/measure/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oar {
namespace {

struct RowSums {
  double log_sum = 0, mean = 0;  // ln sum exp x, and the mean of x
  size_t top = 0;
};

RowSums sums(std::span<const float> x) {
  RowSums out;
  out.top = static_cast<size_t>(std::max_element(x.begin(), x.end()) - x.begin());
  const double max = x[out.top];
  double total = 0;
  for (const float v : x) {
    total += std::exp(static_cast<double>(v) - max);
    out.mean += static_cast<double>(v);
  }
  out.log_sum = max + std::log(total);
  out.mean /= static_cast<double>(x.size());
  return out;
}

}  // namespace

RowDivergence row_divergence(std::span<const float> reference, std::span<const float> candidate,
                             int32_t target) {
  RowDivergence out;
  const RowSums p = sums(reference), q = sums(candidate);
  for (size_t i = 0; i < reference.size(); ++i) {
    const double a = reference[i], b = candidate[i];
    const double log_p = a - p.log_sum;
    out.kld += std::exp(log_p) * (log_p - (b - q.log_sum));
    const double centered = a - p.mean, difference = centered - (b - q.mean);
    out.signal += centered * centered;
    out.noise += difference * difference;
  }
  out.kld = std::max(out.kld, 0.0);  // rounding may leave -1e-16
  out.same_top = p.top == q.top;
  if (target >= 0) {
    out.reference_nll = p.log_sum - static_cast<double>(reference[static_cast<size_t>(target)]);
    out.nll = q.log_sum - static_cast<double>(candidate[static_cast<size_t>(target)]);
  }
  return out;
}

void Divergence::add(const RowDivergence& row) {
  kld_.push_back(static_cast<float>(row.kld));
  sum_ += row.kld;
  squares_ += row.kld * row.kld;
  reference_nll_ += row.reference_nll;
  nll_ += row.nll;
  signal_ += row.signal;
  noise_ += row.noise;
  same_top_ += row.same_top ? 1 : 0;
}

double Divergence::mean_kld() const { return kld_.empty() ? 0 : sum_ / static_cast<double>(positions()); }

double Divergence::mean_kld_error() const {
  const auto n = static_cast<double>(positions());
  if (n < 2) return 0;
  const double variance = std::max(0.0, (squares_ - sum_ * sum_ / n) / (n - 1));
  return std::sqrt(variance / n);
}

double Divergence::kld_quantile(double fraction) const {
  if (kld_.empty()) return 0;
  const double rank = std::ceil(fraction * static_cast<double>(kld_.size()));
  const auto k = static_cast<int64_t>(std::clamp(rank, 1.0, static_cast<double>(kld_.size()))) - 1;
  std::vector<float> values = kld_;
  std::nth_element(values.begin(), values.begin() + k, values.end());
  return values[static_cast<size_t>(k)];
}

double Divergence::top1_agreement() const {
  return kld_.empty() ? 0 : static_cast<double>(same_top_) / static_cast<double>(positions());
}

double Divergence::reference_perplexity() const {
  return std::exp(reference_nll_ / static_cast<double>(std::max<int64_t>(positions(), 1)));
}

double Divergence::perplexity() const {
  return std::exp(nll_ / static_cast<double>(std::max<int64_t>(positions(), 1)));
}

double Divergence::logit_snr_db() const {
  if (noise_ == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal_ / noise_);
}

}  // namespace oar
