// Attention against the machine: decode in GB/s of keys and values, as a percent of what plain reading
// reaches in the same round; prefill in GFLOP/s. One layer of 8 key/value heads x 4 queries, as in a 1B or 8B
// model, over each kind of cache.
//
//   attention_bench [threads [rounds [kv,..]]]      kv: bf16, int8, fp8, k8v4, int4, int4-mean
//
// Decode walks through enough layers (640 MB) that no cache holds them; pages of 64 tokens lie in shuffled
// runs of 8. Each round measures the probe, then the kernel; the table has medians over rounds.
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

#include "engine/tune/bandwidth.h"
#include "kernels/attention.h"
#include "kernels/kv_quant.h"
#include "kernels/thread_pool.h"
#include "tests/bench/probes.h"

namespace {

using oar::Isa;

constexpr int64_t kKvHeads = 8, kHeads = 32, kPage = 64, kRun = 8;
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
                             {"int4-mean", true, oar::KvCode::kInt4Mean, oar::KvCode::kInt4}};

oar::QuantKvShape quant_shape(const Cache& cache, int64_t D) {
  return {cache.keys, cache.values, kPage, kKvHeads, static_cast<int32_t>(D)};
}
int64_t block_bytes(const Cache& cache, int64_t D) {
  const oar::QuantKvShape shape = quant_shape(cache, D);
  return static_cast<int64_t>(cache.quantized ? oar::quant_kv_block_bytes(shape)
                                              : oar::kv_block_bytes(oar::open_kv_shape(shape)));
}
const oar::Kernel* find_kernel(const Cache& cache, Isa isa) {
  const auto family =
      cache.quantized ? oar::KernelFamily::kQuantPagedAttention : oar::KernelFamily::kPagedAttention;
  return oar::KernelRegistry::cpu().find(family, oar::Format::bf16(), isa);
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
  Run(const Cache& kind, const Memory& memory, int64_t D, int64_t context_len, int64_t T, int64_t layers,
      int workers, Isa isa)
      : cache(kind) {
    args.shape = {oar::DType::kBF16, kPage, kKvHeads, static_cast<int32_t>(D)};
    args.max_blocks = (context_len + kPage - 1) / kPage;
    std::vector<int32_t> runs(static_cast<size_t>((layers * args.max_blocks + kRun - 1) / kRun));
    std::iota(runs.begin(), runs.end(), 0);
    std::shuffle(runs.begin(), runs.end(), std::mt19937(1));
    for (int32_t r : runs) {
      for (int32_t i = 0; i < kRun; ++i) tables.push_back(r * static_cast<int32_t>(kRun) + i);
    }
    start = {0, static_cast<int32_t>(T)};
    context = {static_cast<int32_t>(context_len)};
    q.assign(static_cast<size_t>(T * kHeads * D), 0.25f);
    out.assign(q.size(), 0.f);
    args.out = out.data();
    args.q = q.data();
    args.pool = memory.data;
    args.seq_start = start.data();
    args.context_len = context.data();
    args.T = T;
    args.B = 1;
    args.H = kHeads;
    args.ldq = args.ldo = kHeads * D;
    args.scale = 1.f / std::sqrt(static_cast<float>(D));
    // 16-bit pages of a quantized cache lie anywhere: one of each sequence's is read.
    quant.shape = quant_shape(cache, D);
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

void bench_decode(const Cache& cache, oar::ThreadPool& pool, const Memory& memory, int64_t D, int64_t context,
                  int rounds, Isa isa) {
  const int64_t bytes = context / kPage * block_bytes(cache, D);
  const int64_t layers = std::max<int64_t>(1, static_cast<int64_t>(kPoolBytes * 15 / 16) / bytes);
  Run run(cache, memory, D, context, 1, layers, pool.workers(), isa);
  pool.reserve_scratch(run.plan.worker_scratch);
  oar::ReadProbe read(pool, oar::Buffer::wrap_const(memory.data, memory.bytes, nullptr));
  std::vector<double> time, probe, percent;
  for (int r = 0; r < rounds; ++r) {
    probe.push_back(read.measure() / 1e9);
    const double begin = seconds();
    for (int64_t i = 0; i < layers; ++i) run.layer(pool, i);
    time.push_back((seconds() - begin) / static_cast<double>(layers));
    percent.push_back(static_cast<double>(bytes) / time.back() / 1e9 / probe.back() * 100);
  }
  std::printf("%-9s decode   d=%-4ld context %-6ld %8.1f us  %6.1f GB/s  %5.1f %% of read (%.1f GB/s)\n",
              cache.name, D, context, median(time) * 1e6, static_cast<double>(bytes) / median(time) / 1e9,
              median(percent), median(probe));
}

void bench_prefill(const Cache& cache, oar::ThreadPool& pool, const Memory& memory, int64_t D,
                   int64_t context, int64_t T, int rounds, Isa isa) {
  Run run(cache, memory, D, context, T, 1, pool.workers(), isa);
  pool.reserve_scratch(run.plan.worker_scratch);
  const int repeats = T > 1000 ? 1 : 8;
  std::vector<double> time;
  for (int r = 0; r < rounds; ++r) {
    const double begin = seconds();
    for (int i = 0; i < repeats; ++i) run.layer(pool, 0);
    time.push_back((seconds() - begin) / repeats);
  }
  // Two products over what is before each query.
  const double seen =
      static_cast<double>(T) * (static_cast<double>(context) - static_cast<double>(T - 1) / 2);
  const double flops = 4.0 * seen * kHeads * static_cast<double>(D);
  std::printf("%-9s prefill  d=%-4ld %ld of %-6ld  %10.1f us  %6.1f GFLOP/s\n", cache.name, D, T, context,
              median(time) * 1e6, flops / median(time) / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 4, rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  const Isa isa = oar::best_isa();
  oar::ThreadPool pool({.threads = threads, .pin = true});
  const Memory memory(kPoolBytes);
  const std::string wanted = std::string(",") + (argc > 3 ? argv[3] : "bf16,int8,int4") + ",";
  for (const Cache& cache : kCaches) {
    if (wanted.find(std::string(",") + cache.name + ",") == std::string::npos) continue;
    std::printf("%s, %d threads\n", find_kernel(cache, isa)->name, threads);
    for (int64_t D : {64, 128}) {
      for (int64_t context : {128, 1024, 4096, 16384})
        bench_decode(cache, pool, memory, D, context, rounds, isa);
    }
    for (int64_t D : {64, 128}) {
      bench_prefill(cache, pool, memory, D, 512, 512, rounds, isa);
      bench_prefill(cache, pool, memory, D, 4096, 4096, rounds, isa);
      bench_prefill(cache, pool, memory, D, 16384, 512, rounds, isa);
    }
  }
}
