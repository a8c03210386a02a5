// Attention against the machine: decode in GB/s of keys and values, as a percent of what plain reading
// reaches in the same round; prefill in GFLOP/s. One layer of 8 key/value heads x 4 queries over a bf16
// cache, as in a 1B or 8B model.
//
//   attention_bench [threads [rounds]]
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
    // Finite everywhere: small bf16 numbers, or f32.
    for (size_t i = 0; i < n; i += 2) {
      const auto half = static_cast<uint16_t>(0x3c00 + i * 2654435761u % 997 + (i % 3 == 0 ? 0x8000 : 0));
      memcpy(data + i, &half, 2);
    }
  }
  ~Memory() { munmap(data, bytes); }
  char* data;
  size_t bytes;
};

struct Run {
  oar::PagedAttentionArgs args;
  std::vector<int32_t> tables, start, context;
  std::vector<float> q, out;
  const oar::Kernel* kernel;
  oar::KernelPlan plan;
  std::unique_ptr<Memory> shared;

  // `layers` block tables over disjoint blocks; one sequence of `context_len` of which the last T are
  // queries.
  Run(const Memory& memory, int64_t D, int64_t context_len, int64_t T, int64_t layers, int workers, Isa isa) {
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
    kernel = oar::KernelRegistry::cpu().find(oar::KernelFamily::kPagedAttention, oar::Format::bf16(), isa);
    kernel->plan(&args, workers, &plan);
    shared = std::make_unique<Memory>(plan.shared_scratch + 64);
  }
  void layer(oar::ThreadPool& pool, int64_t i) {
    args.block_tables = tables.data() + i * args.max_blocks;
    pool.run(*kernel, &args, plan, shared->data);
  }
};

void bench_decode(oar::ThreadPool& pool, const Memory& memory, int64_t D, int64_t context, int rounds,
                  Isa isa) {
  const int64_t bytes = context * kKvHeads * D * 2 * 2;
  const int64_t layers = std::max<int64_t>(1, static_cast<int64_t>(kPoolBytes * 15 / 16) / bytes);
  Run run(memory, D, context, 1, layers, pool.workers(), isa);
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
  std::printf("decode   d=%-4ld context %-6ld %8.1f us  %6.1f GB/s  %5.1f %% of read (%.1f GB/s)\n", D,
              context, median(time) * 1e6, static_cast<double>(bytes) / median(time) / 1e9, median(percent),
              median(probe));
}

void bench_prefill(oar::ThreadPool& pool, const Memory& memory, int64_t D, int64_t T, int rounds, Isa isa) {
  Run run(memory, D, T, T, 1, pool.workers(), isa);
  pool.reserve_scratch(run.plan.worker_scratch);
  const int repeats = T > 1000 ? 1 : 8;
  std::vector<double> time;
  for (int r = 0; r < rounds; ++r) {
    const double begin = seconds();
    for (int i = 0; i < repeats; ++i) run.layer(pool, 0);
    time.push_back((seconds() - begin) / repeats);
  }
  // Two products over the causal half.
  const double flops =
      4.0 * static_cast<double>(T) * static_cast<double>(T + 1) / 2 * kHeads * static_cast<double>(D);
  std::printf("prefill  d=%-4ld tokens  %-6ld %8.1f us  %6.1f GFLOP/s\n", D, T, median(time) * 1e6,
              flops / median(time) / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 4, rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  const Isa isa = oar::best_isa();
  oar::ThreadPool pool({.threads = threads, .pin = true});
  const Memory memory(kPoolBytes);
  const oar::Kernel* kernel =
      oar::KernelRegistry::cpu().find(oar::KernelFamily::kPagedAttention, oar::Format::bf16(), isa);
  std::printf("%s, %d threads\n", kernel->name, threads);
  for (int64_t D : {64, 128}) {
    for (int64_t context : {128, 1024, 4096, 16384, 32768})
      bench_decode(pool, memory, D, context, rounds, isa);
  }
  for (int64_t D : {64, 128}) {
    for (int64_t T : {512, 4096}) bench_prefill(pool, memory, D, T, rounds, isa);
  }
}
