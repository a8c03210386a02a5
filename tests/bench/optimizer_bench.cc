// AdamW beside copying: what an update moves in a second, as a share of what a copy moves in the same round.
//
//   optimizer_bench [--rounds N] [--millions N]    of parameters
//
// An update moves 28 bytes a parameter: it reads and writes p, m and v, and reads g. A copy of one byte moves
// two. Both take all usable CPUs, and parts of 16,384 numbers as a training step does. Exits with 1 below
// 80 %.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/optimizer.h"
#include "kernels/thread_pool.h"

using namespace oar;

namespace {

template <class F>
double seconds(F&& f) {
  const auto begun = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 9;
  int64_t millions = 32;
  CLI::App app("AdamW beside copying");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--millions", millions, "of parameters")->check(CLI::Range(1, 4096))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const int64_t n = millions * 1000000;
  constexpr int64_t kPart = 16384;
  const int64_t parts = (n + kPart - 1) / kPart;
  ThreadPool pool;
  const Kernel* const kernel = KernelRegistry::cpu().find({KernelFamily::kAdamw, Format::f32()}, best_isa());
  const auto numbers = static_cast<size_t>(n);
  std::vector<float> p(numbers, 0.5f), m(numbers, 0.01f), v(numbers, 0.001f), g(numbers, 0.02f);
  const auto update = [&] {
    pool.parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i * kPart;
        AdamwArgs a;
        a.p = p.data() + first, a.m = m.data() + first, a.v = v.data() + first, a.g = g.data() + first;
        a.n = std::min(kPart, n - first), a.clear = false;
        a.beta1 = 0.9f, a.beta2 = 0.999f, a.rest1 = 0.1f, a.rest2 = 0.001f;
        a.step = 1e-5f, a.epsilon = 1e-8f;
        kernel->run(&a, 0, 0, 1, {});
      }
    });
  };
  // In one piece a worker, which goes past the caches.
  const int64_t workers = pool.workers();
  const auto copy = [&](const std::vector<float>& from, std::vector<float>& to) {
    pool.parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
      const int64_t first = n * begin / workers, last = n * end / workers;
      std::memcpy(to.data() + first, from.data() + first, static_cast<size_t>(last - first) * sizeof(float));
    });
  };
  std::vector<double> updates, copies, shares;
  for (int r = 0; r < rounds; ++r) {
    const double moved = 28e-9 * static_cast<double>(n) / seconds(update);
    const double copied = 16e-9 * static_cast<double>(n) / seconds([&] { copy(g, m), copy(p, v); });
    updates.push_back(moved), copies.push_back(copied), shares.push_back(moved / copied);
  }
  const double share = median(shares);
  std::printf("adamw %.1f GB/s, copy %.1f GB/s, share %.2f (medians of %d rounds; bound 0.80)\n",
              median(std::move(updates)), median(std::move(copies)), share, rounds);
  return share >= 0.8 ? 0 : 1;
}
