#include "clients/loadtest/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

struct Number {
  const char* name;
  std::function<double(const Summary&)> of;
};

std::vector<Number> numbers() {
  const auto percentile = [](const Histogram Summary::*h, double p) {
    return [h, p](const Summary& s) { return static_cast<double>((s.*h).percentile(p)); };
  };
  return {{"request throughput", [](const Summary& s) { return s.per_second(s.completed); }},
          {"output throughput", [](const Summary& s) { return s.per_second(s.output_tokens); }},
          {"TTFT p50", percentile(&Summary::ttft_intended, 50)},
          {"TTFT p99", percentile(&Summary::ttft_intended, 99)},
          {"TPOT p50", percentile(&Summary::tpot, 50)},
          {"TPOT p99", percentile(&Summary::tpot, 99)},
          {"ITL p99", percentile(&Summary::itl, 99)},
          {"end-to-end p50", percentile(&Summary::e2el_intended, 50)},
          {"end-to-end p99", percentile(&Summary::e2el_intended, 99)}};
}

}  // namespace

// Up to 30 degrees from the usual table, beyond it the expansion of the quantile in 1 / degrees (Abramowitz
// and Stegun 26.7.5, first term), exact to 0.001 there.
double student_t95(int n) {
  static constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                      2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                      2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  if (n < 1) return INFINITY;
  if (n <= 30) return kTable[n - 1];
  constexpr double z = 1.959964;
  return z + (z * z * z + z) / (4.0 * n);
}

std::vector<Ratio> compare(const std::vector<Summary>& a, const std::vector<Summary>& b) {
  std::vector<Ratio> out;
  for (const Number& number : numbers()) {
    std::vector<double> logs;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const double x = number.of(a[i]), y = number.of(b[i]);
      if (x > 0 && y > 0) logs.push_back(std::log(y / x));
    }
    if (logs.empty()) continue;
    const auto n = static_cast<double>(logs.size());
    double mean = 0, squares = 0;
    for (const double l : logs) mean += l / n;
    for (const double l : logs) squares += (l - mean) * (l - mean);
    Ratio r;
    r.name = number.name;
    r.rounds = static_cast<int>(logs.size());
    r.ratio = r.low = r.high = std::exp(mean);
    if (logs.size() > 1) {
      const double half = student_t95(r.rounds - 1) * std::sqrt(squares / (n - 1) / n);
      r.low = std::exp(mean - half);
      r.high = std::exp(mean + half);
    }
    out.push_back(std::move(r));
  }
  return out;
}

const char* verdict(const Ratio& r) {
  return r.rounds < 2 ? "one round: no interval" : r.significant() ? "differs" : "no difference shown";
}

std::string compare_text(const std::vector<Ratio>& ratios) {
  std::string out = "B / A                 ratio   95 % interval\n";
  char line[160];
  for (const Ratio& r : ratios) {
    const int n = std::snprintf(line, sizeof line, "  %-20s %6.3f   [%.3f, %.3f]  %s\n", r.name.c_str(),
                                r.ratio, r.low, r.high, verdict(r));
    out.append(line, static_cast<size_t>(n));
  }
  return out;
}

}  // namespace oar::loadtest
