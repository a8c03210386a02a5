// How fast the matmul kernels are beside what the machine can do. Each round measures the probes (read
// bandwidth, peak of the arithmetic) and every case once, so a slow minute hits all alike; the table shows
// medians of the ratios within a round.
//
//   matmul_bench [--threads N] [--rounds N] [--isa LEVEL] [--format bf16,q8_0] [--tokens 1,8,512] [--shape
//   NxK,...] [--json]
//
// --json prints every round's times and probes, for bench_cpu.py.
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/tune/measure/arithmetic_peak.h"
#include "engine/tune/measure/bandwidth.h"
#include "kernels/matmul.h"
#include "kernels/thread_pool.h"
#include "tests/bench/bench_options.h"

using namespace oar;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

std::optional<std::pair<int64_t, int64_t>> parse_shape(const std::string& text) {
  int64_t n = 0, k = 0;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, n);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != 'x') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, k);
  if (second.ec != std::errc() || second.ptr != end || n < 1 || k < 1) return std::nullopt;
  return std::pair(n, k);
}

// Pages of weights; huge ones where the kernel gives them, as for a model that is read once.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      std::fprintf(stderr, "cannot map %zu bytes\n", bytes);
      std::exit(1);
    }
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { munmap(data_, bytes_); }
  char* data() { return static_cast<char*>(data_); }

 private:
  void* data_;
  size_t bytes_;
};

// One shape with as many copies of the weight as it takes to leave the last-level cache (decode reads each
// weight once per token, never from a cache).
struct Case {
  Format format;
  Isa isa;
  int64_t N, K, T;
  const Kernel* kernel;
  size_t weight_bytes, copies;
  std::unique_ptr<Memory> weights;
  std::vector<float> x, out;
  std::vector<double> seconds;  // one per round

  Case(Format f, Isa level, int64_t n, int64_t k, int64_t t, ThreadPool& pool)
      : format(f),
        isa(level),
        N(n),
        K(k),
        T(t),
        kernel(KernelRegistry::cpu().find({KernelFamily::kMatmul, f}, level)) {
    const WeightLayout& layout = weight_layout(format, isa);
    const auto row_bytes = static_cast<size_t>(*format.row_bytes(K));
    weight_bytes = layout.in_place ? row_bytes * static_cast<size_t>(N) : layout.bytes(N, K);
    constexpr size_t kBeyondCache = size_t{600} << 20;
    copies = T <= 64 ? std::max<size_t>(1, kBeyondCache / weight_bytes) : 2;
    weights = std::make_unique<Memory>(copies * weight_bytes);
    // Random rows, repeated: their values do not matter for speed, but they must not be subnormal or NaN.
    std::mt19937 gen(1);
    std::normal_distribution<float> normal;
    std::vector<float> row(static_cast<size_t>(K));
    for (float& v : row) v = normal(gen);
    std::vector<char> stored(row_bytes * static_cast<size_t>(N));
    if (format.info().encode != nullptr) {
      format.encode_row(row.data(), K, stored.data());
    } else {
      std::memset(stored.data(), 0x2b, row_bytes);  // an f16 of this is 0.056, so any block of it is sane
    }
    for (int64_t r = 1; r < N; ++r)
      std::memcpy(stored.data() + static_cast<size_t>(r) * row_bytes, stored.data(), row_bytes);
    pool.parallel_for(static_cast<int64_t>(copies), 1, [&](int64_t b, int64_t e) {
      for (int64_t c = b; c < e; ++c) {
        char* dst = weights->data() + static_cast<size_t>(c) * weight_bytes;
        if (layout.in_place) {
          std::memcpy(dst, stored.data(), weight_bytes);
        } else {
          layout.pack(dst, stored.data(), format, N, K, 0, N);
        }
      }
    });
    x.resize(static_cast<size_t>(T * K));
    for (float& v : x) v = normal(gen);
    out.resize(static_cast<size_t>(T * N));
  }

  void measure(ThreadPool& pool) {
    MatmulSegment segment{weights->data(), nullptr, N, 0};
    MatmulArgs a;
    a.out = out.data();
    a.x = x.data();
    a.segments = &segment;
    a.num_segments = 1;
    a.T = T;
    a.K = a.ldx = K;
    a.ldo = N;
    a.format = format;
    KernelPlan plan;
    kernel->plan(&a, pool.workers(), &plan);
    pool.reserve_scratch(plan.worker_scratch);
    Memory shared(plan.shared_scratch + 64);
    std::memset(shared.data(), 0, plan.shared_scratch);
    const size_t calls = std::max<size_t>(copies, 3);
    const auto start = Clock::now();
    for (size_t c = 0; c < calls; ++c) {
      segment.w = weights->data() + c % copies * weight_bytes;
      pool.run(*kernel, &a, plan, shared.data());
    }
    seconds.push_back(seconds_since(start) / static_cast<double>(calls));
  }
};

}  // namespace

int main(int argc, char** argv) {
  oar_bench::Options options{.rounds = 9};
  std::vector<std::string> formats{"bf16", "q8_0"}, shapes{"2048x2048", "8192x2048", "2048x8192"};
  std::vector<int64_t> tokens{1, 4, 16, 64, 512};
  CLI::App app("Matmul kernels beside what the machine can do");
  options.add_to(app);
  app.add_option("--format", formats)->delimiter(',')->check([](const std::string& name) {
    return Format::find(name) ? "" : name + " is no storage format";
  });
  app.add_option("--tokens", tokens)->delimiter(',')->check(CLI::Range(1, 1 << 20));
  app.add_option("--shape", shapes, "NxK")->delimiter(',')->check([](const std::string& text) {
    return parse_shape(text) ? "" : text + " is not NxK, for instance 2048x8192";
  });
  CLI11_PARSE(app, argc, argv);
  const Isa isa = options.isa;
  ThreadPool pool({.threads = options.threads, .pin = true});
  std::vector<std::unique_ptr<Case>> cases;
  for (const std::string& f : formats) {
    for (const std::string& s : shapes) {
      const auto [N, K] = *parse_shape(s);
      for (const int64_t t : tokens)
        cases.push_back(std::make_unique<Case>(*Format::find(f), isa, N, K, t, pool));
    }
  }
  std::vector<double> read, peak_bf16, peak_int8;
  auto read_probe = ReadProbe::create(pool, uint64_t{1} << 30);
  if (!read_probe.ok()) {
    std::fprintf(stderr, "%s\n", read_probe.status().message().c_str());
    return 1;
  }
  for (int r = 0; r < options.rounds; ++r) {
    peak_bf16.push_back(arithmetic_peak(pool, Arithmetic::kBf16, isa));
    peak_int8.push_back(arithmetic_peak(pool, Arithmetic::kInt8, isa));
    read.push_back(read_probe->measure());
    for (auto& c : cases) c->measure(pool);
  }
  if (options.json) {
    json::array list;
    for (const auto& c : cases) {
      const bool bf16 = c->format == Format::bf16();
      const std::string shape = std::to_string(c->N) + " x " + std::to_string(c->K);
      const double ops =
          2.0 * static_cast<double>(c->N) * static_cast<double>(c->K) * static_cast<double>(c->T);
      list.push_back(
          json::object{{"name", c->format.name() + (" " + shape) + ", " + std::to_string(c->T) + " tokens"},
                       {"kernel", c->kernel->name},
                       {"bytes", c->weight_bytes},
                       {"ops", ops},
                       {"arithmetic", bf16 ? "bf16" : "int8"},
                       {"seconds", json::value_from(c->seconds)},
                       {"read", json::value_from(read)},
                       {"peak", json::value_from(bf16 ? peak_bf16 : peak_int8)}});
    }
    const json::object out{{"threads", pool.workers()}, {"isa", isa_name(isa)}, {"cases", list}};
    std::printf("%s\n", json::serialize(out).c_str());
    return 0;
  }
  std::printf(
      "%d threads, %s, %d rounds; probes: read %.1f GB/s, bf16 %.0f GFLOP/s, int8 %.0f GOP/s (medians)\n",
      pool.workers(), isa_name(isa), options.rounds, median(read) / 1e9, median(peak_bf16) / 1e9,
      median(peak_int8) / 1e9);
  std::printf("%-28s %12s %5s %10s %8s %7s %9s %7s\n", "kernel", "N x K", "T", "us", "GB/s", "% read",
              "GFLOP/s", "% peak");
  for (const auto& c : cases) {
    const std::vector<double>& peak = c->format == Format::bf16() ? peak_bf16 : peak_int8;
    std::vector<double> of_read, of_peak;
    const double flops =
        2.0 * static_cast<double>(c->N) * static_cast<double>(c->K) * static_cast<double>(c->T);
    for (size_t r = 0; r < c->seconds.size(); ++r) {
      of_read.push_back(static_cast<double>(c->weight_bytes) / c->seconds[r] / read[r]);
      of_peak.push_back(flops / c->seconds[r] / peak[r]);
    }
    const double s = median(c->seconds);
    char shape[32];
    std::snprintf(shape, sizeof shape, "%ldx%ld", c->N, c->K);
    std::printf("%-28s %12s %5ld %10.1f %8.1f %6.0f%% %9.0f %6.0f%%\n", c->kernel->name, shape, c->T, s * 1e6,
                static_cast<double>(c->weight_bytes) / s / 1e9, median(of_read) * 100, flops / s / 1e9,
                median(of_peak) * 100);
  }
}
