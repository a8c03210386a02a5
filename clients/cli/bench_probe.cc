#include "clients/cli/bench_probe.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/tune/measure/arithmetic_peak.h"
#include "engine/tune/measure/bandwidth.h"

namespace oar::cli {
namespace {

constexpr uint64_t kReadBytes = uint64_t{512} << 20;

// The probes that differ: a level is named where it brings a wider instruction for the type.
struct Peak {
  const char* type;
  Arithmetic arithmetic;
  Isa level;
};
constexpr Peak kPeaks[] = {
    {"int8", Arithmetic::kInt8, Isa::kAmx},  {"int8", Arithmetic::kInt8, Isa::kAvx512Vnni},
    {"bf16", Arithmetic::kBf16, Isa::kAmx},  {"bf16", Arithmetic::kBf16, Isa::kAvx512Vnni},
    {"f32", Arithmetic::kF32, Isa::kAvx512}, {"f32", Arithmetic::kF32, Isa::kAvx2},
};

template <class F>
double median_of(int64_t rounds, F&& measure) {
  std::vector<double> values;
  for (int64_t i = 0; i < rounds; ++i) values.push_back(measure());
  std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
  return values[values.size() / 2];
}

Result<double> read_speed(ThreadPool& pool, int64_t rounds) {
  OAR_ASSIGN(ReadProbe probe, ReadProbe::create(pool, kReadBytes));
  return median_of(rounds, [&] { return probe.measure(); });
}

}  // namespace

Status print_machine_probe(int threads, int64_t rounds, bool as_json) {
  ThreadPool pool({.threads = threads, .pin = true}), one({.threads = 1});
  OAR_ASSIGN(const double read, read_speed(pool, rounds));
  OAR_ASSIGN(const double read_one, read_speed(one, rounds));
  json::object peaks;
  for (const Peak& p : kPeaks) {
    if (p.level > best_isa()) continue;
    const double peak = median_of(rounds, [&] { return arithmetic_peak(pool, p.arithmetic, p.level); });
    if (peak > 0) peaks[cat(p.type, ".", isa_name(p.level))] = peak / 1e9;
  }
  if (as_json) {
    const json::object out{{"threads", pool.workers()},
                           {"isa", isa_name(best_isa())},
                           {"read_gb_per_second", read / 1e9},
                           {"read_one_thread_gb_per_second", read_one / 1e9},
                           {"peak_gop_per_second", peaks}};
    std::printf("%s\n", json::serialize(out).c_str());
    return ok_status();
  }
  std::printf("%d threads, %s; medians of %lld rounds\n", pool.workers(), isa_name(best_isa()),
              static_cast<long long>(rounds));
  std::printf("%-18s %10.1f GB/s\n%-18s %10.1f GB/s\n", "memory reads", read / 1e9, "by one thread",
              read_one / 1e9);
  for (const auto& [name, peak] : peaks) {
    std::printf("%-18s %10.0f GOP/s\n", std::string(name).c_str(), peak.as_double());
  }
  return ok_status();
}

}  // namespace oar::cli
