#include "clients/loadtest/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace oar::loadtest {
namespace {

constexpr int kBits = 10;
constexpr int64_t kSub = int64_t{1} << kBits;

// Values below 2 * kSub have a bucket of their own; above, the top kBits + 1 bits choose it.
size_t index_of(int64_t v) {
  if (v < 2 * kSub) return static_cast<size_t>(v);
  const int shift = std::bit_width(static_cast<uint64_t>(v)) - 1 - kBits;
  return static_cast<size_t>(shift * kSub + (v >> shift));
}
int64_t lowest(size_t index) {
  const auto i = static_cast<int64_t>(index);
  if (i < 2 * kSub) return i;
  const int64_t shift = i / kSub - 1;
  return (i - shift * kSub) << shift;
}

}  // namespace

void Histogram::record(int64_t v) {
  v = std::clamp<int64_t>(v, 0, int64_t{1} << 62);
  const size_t i = index_of(v);
  if (i >= counts_.size()) counts_.resize(i + 1);
  ++counts_[i];
  min_ = count_ == 0 ? v : std::min(min_, v);
  max_ = std::max(max_, v);
  ++count_;
  sum_ += static_cast<double>(v);
  squares_ += static_cast<double>(v) * static_cast<double>(v);
}

void Histogram::merge(const Histogram& o) {
  if (o.count_ == 0) return;
  if (o.counts_.size() > counts_.size()) counts_.resize(o.counts_.size());
  for (size_t i = 0; i < o.counts_.size(); ++i) counts_[i] += o.counts_[i];
  min_ = count_ == 0 ? o.min_ : std::min(min_, o.min_);
  max_ = std::max(max_, o.max_);
  count_ += o.count_;
  sum_ += o.sum_;
  squares_ += o.squares_;
}

double Histogram::mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

double Histogram::stddev() const {
  if (count_ == 0) return 0;
  const double m = mean();
  return std::sqrt(std::max(0.0, squares_ / static_cast<double>(count_) - m * m));
}

int64_t Histogram::percentile(double p) const {
  if (count_ == 0) return 0;
  const double exact = std::clamp(p, 0.0, 100.0) / 100 * static_cast<double>(count_);
  // 99.9 % of 1000 is 999, whatever the last bit of the product says.
  const int64_t rank = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact - 1e-9 * exact)));
  int64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen >= rank) return std::clamp(lowest(i + 1) - 1, min_, max_);
  }
  return max_;
}

std::vector<Histogram::Bucket> Histogram::buckets() const {
  std::vector<Bucket> out;
  for (size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i] > 0) out.push_back({lowest(i), lowest(i + 1) - 1, counts_[i]});
  return out;
}

}  // namespace oar::loadtest
