// Attention against the machine: decode in GB/s of keys and values, as a percent of what plain reading
// reaches in the same round; prefill in GFLOP/s. One layer of 8 key/value heads x 4 queries, as in a 1B or 8B
// model, over each kind of cache. With --latent, of so many heads over one latent of 512 beside 64 numbers
// that rotate, as DeepSeek and GLM-4.7-Flash have it: a decode's percentage is then of the longer of its two
// limits, a read of the cache and the products of the absorbed form at the peak of bf16.
//
//   attention_bench [--threads N] [--rounds N] [--kv bf16,int8,fp8,k8v4,int4,int4-mean,k4v3] [--dims 64,128]
//                   [--decode 128,1024,4096,16384] [--prefill 0,15872] [--prompt 512] [--latent 20,64,128]
//                   [--isa LEVEL] [--json]
//
// --decode: contexts of one query; --prefill: contexts before a prompt of --prompt tokens. --json prints
// every round's times and probes, for bench_cpu.py.
//
// Decode walks through enough layers (640 MB) that no cache holds them; pages of 64 tokens lie in shuffled
// runs of 8. Each round measures the probe, then each cache; the table has medians over rounds, of times and
// of the ratio to the first cache.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "engine/base/json.h"
#include "engine/tune/measure/arithmetic_peak.h"
#include "engine/tune/measure/bandwidth.h"
#include "kernels/attention.h"
#include "kernels/kv_quant.h"
#include "kernels/thread_pool.h"
#include "tests/bench/bench_options.h"

namespace {

using oar::Isa;

constexpr int64_t kPage = 64, kRun = 8;
constexpr size_t kPoolBytes = size_t{640} << 20;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> x) {
  std::ranges::sort(x);
  return x[x.size() / 2];
}

// Memory of whole huge pages where the system has them.
struct Memory {
  explicit Memory(size_t n) : bytes(n) {
    data = static_cast<char*>(mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (data == MAP_FAILED) std::abort();
    madvise(data, n, MADV_HUGEPAGE);
    // Finite everywhere and small, as keys, values (bf16 or codes of any bits) and scales (f16): logits then
    // stay within a few units of each other.
    for (size_t i = 0; i < n; i += 2) {
      const auto half = static_cast<uint16_t>(0x1c00 + i * 2654435761u % 997 + (i % 3 == 0 ? 0x8000 : 0));
      memcpy(data + i, &half, 2);
    }
  }
  ~Memory() { munmap(data, bytes); }
  char* data;
  size_t bytes;
};

struct Cache {
  const char* name;
  bool quantized;
  oar::KvCode keys, values;
};
constexpr Cache kCaches[] = {{"bf16", false, {}, {}},
                             {"int8", true, oar::KvCode::kInt8, oar::KvCode::kInt8},
                             {"fp8", true, oar::KvCode::kFp8, oar::KvCode::kFp8},
                             {"k8v4", true, oar::KvCode::kInt8, oar::KvCode::kInt4},
                             {"int4", true, oar::KvCode::kInt4, oar::KvCode::kInt4},
                             {"int4-mean", true, oar::KvCode::kInt4Mean, oar::KvCode::kInt4},
                             {"k4v3", true, oar::KvCode::kInt4Mean, oar::KvCode::kInt3}};

struct Heads {
  int64_t D = 0, queries = 32, keys = 8, latent = 0;
  int64_t value() const { return latent > 0 ? latent : D; }
};

oar::QuantKvShape quant_shape(const Cache& cache, const Heads& h) {
  // As the serve pass has it (engine/graph/passes/serve.cc).
  const bool centred = h.latent > 0 && cache.keys == oar::KvCode::kInt4;
  return {centred ? oar::KvCode::kInt4Mean : cache.keys,
          centred ? oar::KvCode::kInt4Mean : cache.values,
          kPage,
          static_cast<int32_t>(h.keys),
          static_cast<int32_t>(h.D),
          static_cast<int32_t>(h.latent)};
}
int64_t block_bytes(const Cache& cache, const Heads& h) {
  const oar::QuantKvShape shape = quant_shape(cache, h);
  return static_cast<int64_t>(cache.quantized ? oar::quant_kv_block_bytes(shape)
                                              : oar::kv_block_bytes(oar::open_kv_shape(shape)));
}
const oar::Kernel* find_kernel(const Cache& cache, Isa isa) {
  const auto family =
      cache.quantized ? oar::KernelFamily::kQuantPagedAttention : oar::KernelFamily::kPagedAttention;
  return oar::KernelRegistry::cpu().find({family, oar::Format::bf16()}, isa);
}

struct Run {
  oar::QuantPagedAttentionArgs quant;
  oar::PagedAttentionArgs& args = quant.common;
  const Cache& cache;
  std::vector<int32_t> tables, near, start, context;
  std::vector<float> q, out;
  const oar::Kernel* kernel;
  oar::KernelPlan plan;
  std::unique_ptr<Memory> shared;

  // `layers` block tables over disjoint blocks; one sequence of `context_len` of which the last T are
  // queries.
  Run(const Cache& kind, const Memory& memory, const Heads& h, int64_t context_len, int64_t T, int64_t layers,
      int workers, Isa isa)
      : cache(kind) {
    quant.shape = quant_shape(cache, h);
    args.shape = oar::open_kv_shape(quant.shape);
    args.max_blocks = (context_len + kPage - 1) / kPage;
    std::vector<int32_t> runs(static_cast<size_t>((layers * args.max_blocks + kRun - 1) / kRun));
    std::iota(runs.begin(), runs.end(), 0);
    std::shuffle(runs.begin(), runs.end(), std::mt19937(1));
    for (int32_t r : runs) {
      for (int32_t i = 0; i < kRun; ++i) tables.push_back(r * static_cast<int32_t>(kRun) + i);
    }
    start = {0, static_cast<int32_t>(T)};
    context = {static_cast<int32_t>(context_len)};
    q.assign(static_cast<size_t>(T * h.queries * h.D), 0.25f);
    out.assign(static_cast<size_t>(T * h.queries * h.value()), 0.f);
    args.out = out.data();
    args.q = q.data();
    args.pool = memory.data;
    args.seq_start = start.data();
    args.context_len = context.data();
    args.T = T;
    args.B = 1;
    args.H = h.queries;
    args.ldq = h.queries * h.D;
    args.ldo = h.queries * h.value();
    args.scale = 1.f / std::sqrt(static_cast<float>(h.D));
    // 16-bit pages of a quantized cache lie anywhere: one of each sequence's is read.
    quant.open = quant.sinks = memory.data;
    near.assign(static_cast<size_t>(args.max_blocks), 0);
    quant.open_tables = quant.sink_tables = near.data();
    quant.open_max_blocks = args.max_blocks;
    quant.sink_max_blocks = 1;
    kernel = find_kernel(cache, isa);
    kernel->plan(kernel_args(), workers, &plan);
    shared = std::make_unique<Memory>(plan.shared_scratch + 64);
  }
  const void* kernel_args() const {
    return cache.quantized ? static_cast<const void*>(&quant) : static_cast<const void*>(&quant.common);
  }
  void layer(oar::ThreadPool& pool, int64_t i) {
    args.block_tables = tables.data() + i * args.max_blocks;
    pool.run(*kernel, kernel_args(), plan, shared->data);
  }
};

// What a case measured: seconds per layer in each round, and the probes of these rounds.
struct Timed {
  const Cache& cache;
  std::unique_ptr<Run> run;
  int64_t layers, bytes;
  std::vector<double> time, read, peak;
};

// Median over rounds of the first cache's time over this one's.
double ratio(const Timed& first, const Timed& t) {
  std::vector<double> r;
  for (size_t i = 0; i < t.time.size(); ++i) r.push_back(first.time[i] / t.time[i]);
  return median(r);
}

struct Bench {
  std::vector<const Cache*> caches;
  oar::ThreadPool& pool;
  const Memory& memory;
  int rounds;
  Isa isa;
  bool as_json;
  oar::json::array cases = {};

  // All caches take turns in each round, behind the probes: the machine's pace changes from second to second.
  void run(const Heads& h, int64_t context, int64_t T) {
    const bool decode = T == 1;
    std::vector<Timed> all;
    for (const Cache* cache : caches) {
      const int64_t bytes = (context + kPage - 1) / kPage * block_bytes(*cache, h);
      // Tables are made of whole runs of blocks.
      const int64_t need = bytes + kRun * block_bytes(*cache, h);
      if (need > static_cast<int64_t>(kPoolBytes)) {
        std::fprintf(stderr, "%s, heads of %ld: %ld tokens take %ld MB, the pool has %zu; ask for fewer\n",
                     cache->name, h.D, context, need >> 20, kPoolBytes >> 20);
        std::exit(2);
      }
      const int64_t layers =
          decode ? std::max<int64_t>(1, static_cast<int64_t>(kPoolBytes * 15 / 16) / bytes) : 1;
      all.push_back({*cache,
                     std::make_unique<Run>(*cache, memory, h, context, T, layers, pool.workers(), isa),
                     layers,
                     bytes,
                     {},
                     {},
                     {}});
      pool.reserve_scratch(all.back().run->plan.worker_scratch);
    }
    oar::ReadProbe read(pool, oar::Buffer::wrap_const(memory.data, memory.bytes, nullptr));
    for (int r = 0; r < rounds; ++r) {
      const double bandwidth = decode || as_json ? read.measure() : 0;
      const double bf16 = oar::arithmetic_peak(pool, oar::Arithmetic::kBf16, isa);
      const double int8 = oar::arithmetic_peak(pool, oar::Arithmetic::kInt8, isa);
      for (Timed& t : all) {
        const double begin = seconds();
        for (int64_t i = 0; i < t.layers; ++i) t.run->layer(pool, i);
        t.time.push_back((seconds() - begin) / static_cast<double>(t.layers));
        t.read.push_back(bandwidth);
        t.peak.push_back(in_integers(t.cache, h) ? int8 : bf16);
      }
    }
    for (const Timed& t : all) { as_json ? add_json(t, h, context, T) : print(all[0], t, h, context, T); }
  }

 private:
  // Codes of a latent are widened to bf16.
  static bool in_integers(const Cache& c, const Heads& h) {
    return c.quantized && c.keys != oar::KvCode::kFp8 && h.latent == 0;
  }
  // Two products over what is before each query.
  static double operations(const Heads& h, int64_t context, int64_t T) {
    const double seen =
        static_cast<double>(T) * (static_cast<double>(context) - static_cast<double>(T - 1) / 2);
    return 2.0 * seen * static_cast<double>(h.queries * (h.D + h.value()));
  }
  static void print(const Timed& first, const Timed& t, const Heads& h, int64_t context, int64_t T) {
    const double time = median(t.time);
    std::printf("%-9s %ld x d=%-4ld %4ld of %-6ld %10.1f us  %.2f x %s  ", t.cache.name, h.queries, h.D, T,
                context, time * 1e6, ratio(first, t), first.cache.name);
    std::vector<double> percent;
    for (size_t i = 0; i < t.time.size(); ++i) {
      const double reading = static_cast<double>(t.bytes) / t.read[i],
                   computing = operations(h, context, T) / t.peak[i];
      const double least = T > 1 ? computing : h.latent > 0 ? std::max(reading, computing) : reading;
      percent.push_back(least / t.time[i] * 100);
    }
    if (T == 1 && h.latent > 0) {
      std::printf("%6.1f GB/s  %6.1f GFLOP/s  %5.1f %% of the longer limit\n",
                  static_cast<double>(t.bytes) / time / 1e9, operations(h, context, T) / time / 1e9,
                  median(percent));
    } else if (T == 1) {
      std::printf("%6.1f GB/s  %5.1f %% of read\n", static_cast<double>(t.bytes) / time / 1e9,
                  median(percent));
    } else {
      std::printf("%6.1f GFLOP/s  %5.1f %% of %s peak\n", operations(h, context, T) / time / 1e9,
                  median(percent), in_integers(t.cache, h) ? "int8" : "bf16");
    }
  }
  void add_json(const Timed& t, const Heads& h, int64_t context, int64_t T) {
    std::ostringstream name;
    name << "attention, " << t.cache.name << ", ";
    if (h.latent > 0) name << h.queries << " heads over a latent, ";
    else name << "heads of " << h.D << ", ";
    if (T == 1) name << "decode behind " << context;
    else name << "prompt of " << T << " behind " << context - T;
    cases.push_back(oar::json::object{{"name", name.str()},
                                      {"kernel", find_kernel(t.cache, isa)->name},
                                      {"bytes", t.bytes},
                                      {"ops", operations(h, context, T)},
                                      {"arithmetic", in_integers(t.cache, h) ? "int8" : "bf16"},
                                      {"seconds", oar::json::value_from(t.time)},
                                      {"read", oar::json::value_from(t.read)},
                                      {"peak", oar::json::value_from(t.peak)}});
  }
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was measured is told even if the run is cut off
  oar_bench::Options options{.threads = 4, .rounds = 7};
  std::vector<std::string> kv{"bf16", "int8", "int4"};
  std::vector<int64_t> latent, dims{64, 128}, decode{128, 1024, 4096, 16384}, prefill{0, 15872}, prompt{512};
  CLI::App app("Attention against the machine");
  options.add_to(app);
  std::vector<std::string> names;
  for (const Cache& cache : kCaches) names.emplace_back(cache.name);
  app.add_option("--kv", kv)->delimiter(',')->check(CLI::IsMember(names));
  app.add_option("--dims", dims, "head sizes")->delimiter(',')->check(CLI::Range(8, 256));
  app.add_option("--decode", decode, "contexts of one query")->delimiter(',')->check(CLI::Range(1, 1 << 20));
  app.add_option("--prefill", prefill, "contexts before a prompt")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--latent", latent, "heads over one latent, in place of --dims")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  app.add_option("--prompt", prompt, "tokens of a prompt")->delimiter(',')->check(CLI::Range(2, 8192));
  CLI11_PARSE(app, argc, argv);
  oar::ThreadPool pool({.threads = options.threads, .pin = true});
  const Memory memory(kPoolBytes);
  Bench bench{{}, pool, memory, options.rounds, options.isa, options.json};
  for (const Cache& cache : kCaches) {
    if (std::ranges::find(kv, cache.name) == kv.end()) continue;
    if (!latent.empty() && cache.quantized && cache.keys != cache.values) {
      std::fprintf(stderr, "--kv %s: keys of a latent are its values; take bf16, int8, fp8 or int4\n",
                   cache.name);
      return 2;
    }
    bench.caches.push_back(&cache);
    if (!options.json)
      std::printf("%s: %s, %d threads\n", cache.name, find_kernel(cache, options.isa)->name, pool.workers());
  }
  std::vector<Heads> shapes;
  for (const int64_t heads : latent) shapes.push_back({576, heads, 1, 512});
  if (latent.empty())
    for (const int64_t D : dims) shapes.push_back({D});
  for (const Heads& h : shapes) {
    for (const int64_t context : decode) bench.run(h, context, 1);
    for (const int64_t before : prefill)
      for (const int64_t tokens : prompt) bench.run(h, before + tokens, tokens);
  }
  if (options.json) {
    const oar::json::object out{
        {"threads", pool.workers()}, {"isa", oar::isa_name(options.isa)}, {"cases", std::move(bench.cases)}};
    std::printf("%s\n", oar::json::serialize(out).c_str());
  }
}
