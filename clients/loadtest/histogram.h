// Latency histogram with a bounded relative error, after Gil Tene's HdrHistogram: buckets are linear within a
// power of two. 1024 sub-buckets per power keep every reported value within 1/1024 of the recorded one, from
// one nanosecond to 2^62. Recording is two shifts and an increment; histograms of several threads, runs or
// hosts are merged by adding. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace oar::loadtest {

class Histogram {
 public:
  void record(int64_t nanoseconds);  // negative values count as 0
  void merge(const Histogram& other);

  int64_t count() const { return count_; }
  int64_t min() const { return count_ == 0 ? 0 : min_; }
  int64_t max() const { return max_; }
  double mean() const;
  double stddev() const;
  // The least recorded value (to 1/1024) that at least `p` percent of the values do not exceed; 0 when empty.
  int64_t percentile(double p) const;

  struct Bucket {
    int64_t low, high, count;  // values in [low, high]
  };
  std::vector<Bucket> buckets() const;  // those that hold something, ascending

 private:
  std::vector<int64_t> counts_;
  int64_t count_ = 0, min_ = 0, max_ = 0;
  double sum_ = 0, squares_ = 0;
};

}  // namespace oar::loadtest
