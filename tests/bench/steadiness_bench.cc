// How steady steps are beside a process that takes a processor away: the time of steps of many small phases,
// as a model's are, undisturbed and beside bursts of another process.
//
//   steadiness_bench [--threads N] [--rounds N] [--steps N] [--phases N] [--kilobytes N] [--burst-ms N]
//
// Each phase reads its own part of a buffer, divided into chunks among the workers. The defaults are the step
// of a model of 15 M parameters in 4 bits; --phases 80 --kilobytes 8500 is one of 1.2 G. The burner works for
// --burst-ms and sleeps as long, over and over, once where the scheduler puts it and once pinned to the last
// processor. Rounds take turns; shown are medians over the rounds of each round's median, 99th percentile
// and worst.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/thread_pool.h"
#include "tests/bench/bench_options.h"

using namespace oar;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kChunkBytes = 16 << 10;

struct ReadArgs {
  const char* data;
  int64_t bytes;
  uint64_t* sums;  // one for each chunk
};

void read_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const ReadArgs*>(args);
  for (int64_t c = begin; c < end; ++c) {
    uint64_t sums[8] = {};
    const int64_t stop = std::min(a.bytes, (c + 1) * kChunkBytes);
    for (int64_t i = c * kChunkBytes; i + 64 <= stop; i += 64) {
      uint64_t v[8];
      std::memcpy(v, a.data + i, sizeof v);
      for (int j = 0; j < 8; ++j) sums[j] += v[j];
    }
    a.sums[c] = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
  }
}

const Kernel kRead{KernelFamily::kUnary, Isa::kGeneric, "read", std::nullopt, nullptr, &read_run};

// A child that burns, and goes when this process does.
class Burner {
 public:
  Burner(int64_t burst_ms, bool pinned) {
    child_ = fork();
    if (child_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (pinned) {
      cpu_set_t set;
      CPU_ZERO(&set);
      if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int last = CPU_SETSIZE - 1;
        while (last > 0 && !CPU_ISSET(last, &set)) --last;
        CPU_ZERO(&set);
        CPU_SET(last, &set);
        sched_setaffinity(0, sizeof set, &set);
      }
    }
    const std::chrono::milliseconds burst(burst_ms);
    while (true) {
      for (const auto stop = Clock::now() + burst; Clock::now() < stop;) {}
      std::this_thread::sleep_for(burst);
    }
  }
  Burner(const Burner&) = delete;
  Burner& operator=(const Burner&) = delete;
  ~Burner() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

 private:
  pid_t child_;
};

double percentile(std::vector<double>& sorted, double p) {
  return sorted[static_cast<size_t>(p * static_cast<double>(sorted.size() - 1))];
}

struct Row {
  const char* name;
  bool burns, pinned;
  std::vector<double> median, p99, worst;
  uint64_t steals = 0, rests = 0;
};

}  // namespace

int main(int argc, char** argv) {
  oar_bench::Options options{.rounds = 5};
  int64_t steps = 1000, phases = 36, kilobytes = 230, burst_ms = 5;
  CLI::App app("Times of steps beside a process that takes a processor away");
  options.add_to(app);
  app.add_option("--steps", steps, "per round")->check(CLI::Range(10, 1 << 24));
  app.add_option("--phases", phases, "of a step")->check(CLI::Range(1, 1 << 12));
  app.add_option("--kilobytes", kilobytes, "read by a phase")->check(CLI::Range(1, 1 << 20));
  app.add_option("--burst-ms", burst_ms)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);

  const auto bytes = static_cast<size_t>(kilobytes) << 10, all = bytes * static_cast<size_t>(phases);
  void* data = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    std::fprintf(stderr, "cannot map %zu bytes\n", all);
    return 1;
  }
  std::memset(data, 1, all);
  std::vector<uint64_t> sums((bytes + kChunkBytes - 1) / kChunkBytes);
  KernelPlan plan;
  plan.chunks[0] = static_cast<int64_t>(sums.size());

  Row rows[] = {{"undisturbed", false, false, {}, {}, {}},
                {"burner anywhere", true, false, {}, {}, {}},
                {"burner on one", true, true, {}, {}, {}}};
  for (int round = 0; round < options.rounds; ++round) {
    for (Row& row : rows) {
      // A pool of its own: nothing it learned of the processors is carried over.
      ThreadPool pool({.threads = options.threads});
      std::vector<double> times;
      const auto step = [&] {
        const auto start = Clock::now();
        for (int64_t p = 0; p < phases; ++p) {
          const ReadArgs args{static_cast<const char*>(data) + static_cast<size_t>(p) * bytes,
                              static_cast<int64_t>(bytes), sums.data()};
          pool.run(kRead, &args, plan, nullptr);
        }
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
      };
      std::optional<Burner> burner;
      if (row.burns) burner.emplace(burst_ms, row.pinned);
      for (int64_t i = 0; i < std::max<int64_t>(steps / 10, 5); ++i) step();
      times.clear();
      for (int64_t i = 0; i < steps; ++i) step();
      std::sort(times.begin(), times.end());
      row.median.push_back(percentile(times, 0.5));
      row.p99.push_back(percentile(times, 0.99));
      row.worst.push_back(times.back());
      row.steals += pool.counters().steals;
      row.rests += pool.counters().rests;
    }
  }
  std::printf("%-18s %10s %10s %10s %10s %9s %7s\n", "us per step", "median", "p99", "worst", "p99/median",
              "steals", "rests");
  for (Row& row : rows) {
    const auto mid = [](std::vector<double>& v) {
      std::sort(v.begin(), v.end());
      return v[v.size() / 2];
    };
    const double median = mid(row.median), p99 = mid(row.p99);
    std::printf("%-18s %10.1f %10.1f %10.1f %10.2f %9llu %7llu\n", row.name, median, p99, mid(row.worst),
                p99 / median, static_cast<unsigned long long>(row.steals),
                static_cast<unsigned long long>(row.rests));
  }
}
