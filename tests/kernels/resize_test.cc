// Interpolation: every level against the double reference, operands ending at guard pages; copies to the bit.
#include "kernels/resize.h"

#include <cmath>
#include <random>

#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

// Taps of one axis in memory of their own.
struct Taps {
  std::vector<int32_t> first{0}, at;
  std::vector<float> weight;

  // `most` taps an entry, none for some; 0: one tap of weight 1 each.
  Taps(int64_t in, int64_t out, int most, uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto any = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(in)); };
    std::uniform_real_distribution<float> u(-1, 1);
    for (int64_t k = 0; k < out; ++k) {
      const int taps = most == 0 ? 1 : static_cast<int>(random() % static_cast<uint64_t>(most + 1));
      for (int t = 0; t < taps; ++t) at.push_back(any()), weight.push_back(most == 0 ? 1.f : u(random));
      first.push_back(static_cast<int32_t>(at.size()));
    }
  }
  ResizeAxis axis(int64_t in) const {
    return {first.data(), at.data(), weight.data(), in, static_cast<int64_t>(first.size()) - 1};
  }
};

std::vector<float> run(ResizeArgs a, Isa isa, ThreadPool* pool) {
  Guarded<float> y(static_cast<size_t>(a.outer * a.rows.out * a.cols.out * a.inner));
  std::fill(y.begin(), y.end(), NAN);
  a.out = y.data();
  const Kernel& k = *KernelRegistry::cpu().find({KernelFamily::kResize}, isa);
  REQUIRE(k.isa == isa);
  KernelPlan plan;
  k.plan(&a, pool ? pool->workers() : 1, &plan);
  if (pool) {
    pool->reserve_scratch(plan.worker_scratch);
    pool->run(k, &a, plan, nullptr);
  } else {
    Guarded<float> scratch(plan.worker_scratch / sizeof(float));
    for (int64_t i = plan.chunks[0]; i-- > 0;) k.run(&a, 0, i, i + 1, {scratch.data(), nullptr});
  }
  return {y.begin(), y.end()};
}

std::vector<Isa> resize_levels() {
  std::vector<Isa> out;
  for (const Kernel* k : KernelRegistry::cpu().all()) {
    if (k->family == KernelFamily::kResize && k->isa != Isa::kReference && k->isa <= best_isa())
      out.push_back(k->isa);
  }
  return out;
}

}  // namespace

TEST_CASE("resize: rows, columns and both equal the reference") {
  ThreadPool pool({.threads = 3});
  REQUIRE(!resize_levels().empty());
  struct Size {
    int64_t outer, rows, cols, inner, new_rows, new_cols;
  };
  for (const Size& s : {Size{1, 1, 1, 1, 1, 1}, Size{2, 5, 7, 1, 10, 3}, Size{3, 4, 6, 17, 9, 13},
                        Size{1, 3, 2, 64, 6, 4}, Size{1, 33, 16, 3, 7, 40}, Size{2, 1, 9, 5, 1, 1}}) {
    for (const int most : {0, 2, 6}) {
      for (const int which : {1, 2, 3}) {  // rows, columns, both
        ResizeArgs a;
        a.outer = s.outer, a.inner = s.inner;
        const Taps rows(s.rows, s.new_rows, most, 1), cols(s.cols, s.new_cols, most, 2);
        a.rows.in = a.rows.out = s.rows, a.cols.in = a.cols.out = s.cols;
        if ((which & 1) != 0) a.rows = rows.axis(s.rows);
        if ((which & 2) != 0) a.cols = cols.axis(s.cols);
        Guarded<float> x(static_cast<size_t>(s.outer * s.rows * s.cols * s.inner));
        const std::vector<float> values = random_values(x.size(), Values::kNormal, 3);
        std::copy(values.begin(), values.end(), x.begin());
        a.x = x.data();
        const std::vector<float> exact = run(a, Isa::kReference, nullptr);
        for (const Isa isa : resize_levels()) {
          INFO(isa_name(isa) << " taps " << most << " axes " << which << " inner " << s.inner);
          for (ThreadPool* p : {static_cast<ThreadPool*>(nullptr), &pool}) {
            const std::vector<float> got = run(a, isa, p);
            for (size_t k = 0; k < exact.size(); ++k) {
              // Up to 6 x 6 products of weights below 1 and values below 6, each sum of 6 rounded.
              INFO("at " << k);
              if (most == 0) REQUIRE(got[k] == exact[k]);
              else REQUIRE(std::abs(got[k] - exact[k]) <= 36 * 6 * 14 * 0x1p-24);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("resize: copies keep every bit") {
  const Taps rows(3, 5, 0, 4), cols(4, 9, 0, 5);
  const std::vector<float> special = {-0.f, 0x1p-149f, -0x1p-140f, INFINITY, -INFINITY, NAN, 1.5f};
  for (const int64_t inner : {1, 19}) {
    ResizeArgs a;
    a.rows = rows.axis(3), a.cols = cols.axis(4);
    a.inner = inner;
    std::vector<float> x(static_cast<size_t>(12 * inner));
    for (size_t k = 0; k < x.size(); ++k) x[k] = special[k % special.size()];
    a.x = x.data();
    for (const Isa isa : resize_levels()) {
      const std::vector<float> y = run(a, isa, nullptr);
      for (size_t k = 0; k < y.size(); ++k) {
        const auto e = static_cast<int64_t>(k) % inner, j = static_cast<int64_t>(k) / inner % 9,
                   i = static_cast<int64_t>(k) / inner / 9;
        const float want = x[static_cast<size_t>(
            (rows.at[static_cast<size_t>(i)] * 4 + cols.at[static_cast<size_t>(j)]) * inner + e)];
        REQUIRE(std::memcmp(&y[k], &want, sizeof want) == 0);
      }
    }
  }
}
