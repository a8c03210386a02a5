#include "clients/loadtest/arrival.h"

#include <cmath>
#include <utility>

#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

constexpr std::pair<const char*, ArrivalKind> kNames[] = {
    {"closed", ArrivalKind::kClosed},   {"constant", ArrivalKind::kConstant},
    {"poisson", ArrivalKind::kPoisson}, {"gamma", ArrivalKind::kGamma},
    {"ramp", ArrivalKind::kRamp},       {"burst", ArrivalKind::kBurst},
    {"trace", ArrivalKind::kTrace}};

double uniform(uint64_t& state) {  // (0, 1]
  return (static_cast<double>(next_random(state) >> 11) + 1) * 0x1p-53;
}
double exponential(uint64_t& state) { return -std::log(uniform(state)); }

double normal(uint64_t& state) {
  return std::sqrt(-2 * std::log(uniform(state))) * std::cos(2 * M_PI * uniform(state));
}

// Mean `shape`. Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); shapes below 1
// by their boost: gamma(a) = gamma(a + 1) * U^(1/a).
double gamma(double shape, uint64_t& state) {
  if (shape < 1) return gamma(shape + 1, state) * std::pow(uniform(state), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal(state), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(uniform(state)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Result<ArrivalKind> parse_arrival(const std::string& name) {
  std::string known;
  for (const auto& [n, kind] : kNames) {
    if (name == n) return kind;
    known += cat(known.empty() ? "" : ", ", n);
  }
  return invalid_argument(cat("arrival: there is no '", name, "'; one of ", known), "arrival");
}

const char* arrival_name(ArrivalKind kind) {
  for (const auto& [n, k] : kNames)
    if (k == kind) return n;
  return "unknown";
}

Result<std::vector<double>> arrival_times(const ArrivalSpec& s) {
  const auto positive = [](double v) { return std::isfinite(v) && v > 0; };
  if (s.count < 1) return invalid_argument(cat("requests: must be at least 1, got ", s.count), "requests");
  if (!positive(s.rate)) return invalid_argument(cat("rate: must be a number > 0, got ", s.rate), "rate");
  if (s.kind == ArrivalKind::kGamma && !positive(s.burstiness))
    return invalid_argument(cat("burstiness: must be a number > 0, got ", s.burstiness), "burstiness");
  if (s.kind == ArrivalKind::kRamp && !positive(s.rate_end))
    return invalid_argument(cat("rate-end: must be a number > 0, got ", s.rate_end), "rate-end");
  if (s.kind == ArrivalKind::kBurst && s.burst < 1)
    return invalid_argument(cat("burst: must be at least 1, got ", s.burst), "burst");
  std::vector<double> times;
  times.reserve(static_cast<size_t>(s.count));
  uint64_t state = s.seed * 0x9e3779b97f4a7c15u + 1;
  double at = 0;
  for (int64_t i = 0; i < s.count; ++i) {
    const auto n = static_cast<double>(i);
    switch (s.kind) {
      case ArrivalKind::kPoisson: times.push_back(at), at += exponential(state) / s.rate; break;
      case ArrivalKind::kGamma:
        times.push_back(at), at += gamma(s.burstiness, state) / s.burstiness / s.rate;
        break;
      case ArrivalKind::kBurst:
        times.push_back(static_cast<double>(i / s.burst) * static_cast<double>(s.burst) / s.rate);
        break;
      case ArrivalKind::kRamp: {
        // n = r0 t + (r1 - r0) t^2 / 2T with T = 2N / (r0 + r1), solved for t without cancellation.
        const double total = 2 * static_cast<double>(s.count) / (s.rate + s.rate_end);
        const double slope = (s.rate_end - s.rate) / total;
        times.push_back(2 * n / (s.rate + std::sqrt(std::max(0.0, s.rate * s.rate + 2 * slope * n))));
        break;
      }
      default: times.push_back(n / s.rate);
    }
  }
  return times;
}

}  // namespace oar::loadtest
