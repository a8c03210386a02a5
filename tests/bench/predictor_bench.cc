// How long a model takes in a Predictor: median and best of runs, and with --profile each op's share.
//
//   predictor_bench MODEL [--input NAME=2x3x224x224]... [--threads N] [--rounds N] [--profile]
//                   [--off PASS]... [--precision f32|bf16|int8] [--device NAME] [--cache-dir DIR] [--serve]
//
// Inputs are random: floats in [-1, 1), integers 0 or 1; extents the file leaves open must be given. With
// --serve the first line tells milliseconds of loading and of the first run, then MiB that this run added to
// the process at its peak and that it has after it. Each line on stdin asks for that many runs and is
// answered with their times in milliseconds, so that another program can take turns with a peer
// (peers_onnx.py does).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/runtime/predictor.h"

namespace {

using namespace oar;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}

// MiB of this process: VmRSS, what is resident, or RssAnon, what it allocated of that. NaN where there is no
// /proc.
double status_mib(const char* key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    const std::string name = std::string(key) + ":";
    if (line.starts_with(name)) return std::strtod(line.c_str() + name.size(), nullptr) / 1024;
  }
  return NAN;
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "predictor_bench: %s\n", why.c_str());
  std::exit(1);
}

Datum random_value(const IoSpec& spec, const std::vector<int64_t>& dims) {
  auto t = allocate_elements(Shape(dims), spec.dtype);
  if (!t.ok()) fail(t.status().message());
  std::mt19937 random(1);
  dispatch_number(spec.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    for (int64_t k = 0; k < t->numel(); ++k) {
      C v;
      if constexpr (std::is_floating_point_v<C>)
        v = static_cast<C>(std::uniform_real_distribution<double>(-1, 1)(random));
      else v = static_cast<C>(random() & 1);
      mutable_elements<T>(*t)[k] = Element<T>::store(v);
    }
  });
  return Datum(std::move(*t));
}

std::vector<int64_t> parse_dims(const std::string& s) {
  std::vector<int64_t> dims;
  for (size_t at = 0; at < s.size();) {
    const size_t x = std::min(s.find('x', at), s.size());
    dims.push_back(std::strtoll(s.substr(at, x - at).c_str(), nullptr, 10));
    at = x + 1;
  }
  return dims;
}

double once(const Predictor& p, const std::vector<Datum>& in) {
  const auto start = Clock::now();
  const auto out = p.run(in);
  const double ms = ms_since(start);
  if (!out.ok()) fail(out.status().message());
  return ms;
}

}  // namespace

int main(int argc, char** argv) {
  std::string model;
  std::map<std::string, std::vector<int64_t>> shapes;
  int rounds = 20;
  bool serve = false, profile = false;
  PredictorOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto next = [&]() -> std::string {
      if (++i >= argc) fail(a + " needs a value");
      return argv[i];
    };
    if (a == "--threads") options.threads = static_cast<int>(std::strtol(next().c_str(), nullptr, 10));
    else if (a == "--rounds")
      rounds = std::max(1, static_cast<int>(std::strtol(next().c_str(), nullptr, 10)));
    else if (a == "--serve") serve = true;
    else if (a == "--profile") profile = true;
    else if (a == "--cache-dir") options.cache_dir = next();
    else if (a == "--device") options.device = next();
    else if (a == "--precision") {
      const auto precision = parse_precision(next());
      if (!precision.ok()) fail(precision.status().message());
      options.precision = *precision;
    } else if (a == "--off") options.disabled_passes.insert(next());
    else if (a == "--input") {
      const std::string v = next();
      shapes[v.substr(0, v.find('='))] = parse_dims(v.substr(std::min(v.size(), v.find('=') + 1)));
    } else model = a;
  }
  if (model.empty()) fail("which model?");
  const auto start = Clock::now();
  const auto p = Predictor::open(model, options);
  if (!p.ok()) fail(p.status().message());
  const double load = ms_since(start);
  std::vector<Datum> in;
  for (const IoSpec& spec : (*p)->inputs()) {
    std::vector<int64_t> dims;
    for (const IoDim& d : spec.dims) dims.push_back(d.value);
    if (shapes.count(spec.name)) dims = shapes[spec.name];
    if (std::any_of(dims.begin(), dims.end(), [](int64_t d) { return d < 0; }))
      fail("say the extents of " + spec.to_string() + " with --input " + spec.name + "=...");
    in.push_back(random_value(spec, dims));
  }
  // Anonymous: what a run allocates, not the code that it touches first. Arenas stay after it.
  const double before = status_mib("RssAnon");
  const double first = once(**p, in);
  if (serve) {
    std::printf("%.3f %.3f %.1f %.1f\n", load, first, status_mib("RssAnon") - before, status_mib("VmRSS"));
    std::fflush(stdout);
    char line[64];
    while (std::fgets(line, sizeof line, stdin)) {
      for (long n = std::strtol(line, nullptr, 10); n > 0; --n) std::printf("%.4f ", once(**p, in));
      std::printf("\n");
      std::fflush(stdout);
    }
    return 0;
  }
  std::vector<double> ms;
  for (int r = 0; r < rounds; ++r) ms.push_back(once(**p, in));
  std::sort(ms.begin(), ms.end());
  std::printf("load %.1f ms, first run %.2f ms, median %.3f ms, best %.3f ms of %d\n", load, first,
              ms[ms.size() / 2], ms[0], rounds);
  if (!profile) return 0;
  // The median of each node over rounds, then summed by op.
  std::vector<std::vector<double>> by_node;
  std::vector<NodeTime> times;
  for (int r = 0; r < rounds; ++r) {
    times.clear();
    if (const auto out = (*p)->profile(in, &times); !out.ok()) fail(out.status().message());
    by_node.resize(std::max(by_node.size(), times.size()));
    for (size_t k = 0; k < times.size(); ++k)
      by_node[k].push_back(static_cast<double>(times[k].end_ns - times[k].start_ns) * 1e-3);
  }
  std::map<std::string, std::pair<double, int>> by_op;
  for (size_t k = 0; k < times.size(); ++k) {
    std::sort(by_node[k].begin(), by_node[k].end());
    const double us = by_node[k][by_node[k].size() / 2];
    by_op[times[k].op].first += us, by_op[times[k].op].second++;
    if (std::getenv("OAR_BENCH_NODES"))
      std::printf("%8.1f us  %s %s\n", us, times[k].op.c_str(), times[k].name.c_str());
  }
  for (const auto& [op, t] : by_op) std::printf("%-24s %4d calls %10.1f us\n", op.c_str(), t.second, t.first);
  return 0;
}
