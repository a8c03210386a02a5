// Reductions of every level against the reference in double, operands ending at a guard page.
#include "kernels/reduce.h"

#include <cmath>

#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kSumOfSquares, ReduceOp::kMax,
                             ReduceOp::kMin};

Guarded<float> reduced(ReduceArgs a, Isa isa, ThreadPool* pool) {
  Guarded<float> out(static_cast<size_t>(a.outer * a.inner));
  std::fill(out.begin(), out.end(), 12345.f);
  a.out = out.data();
  const Kernel& k = *KernelRegistry::cpu().find({KernelFamily::kReduce}, isa);
  KernelPlan plan;
  k.plan(&a, pool ? pool->workers() : 1, &plan);
  if (pool != nullptr) pool->run(k, &a, plan, nullptr);
  else
    for (int64_t i = plan.chunks[0]; i-- > 0;) k.run(&a, 0, i, i + 1, {});
  return out;
}

// The bound of reduce.h for entry (o, i), and half a place of the result for its rounding.
double bound_of(const ReduceArgs& a, int64_t o, int64_t i, double want) {
  if (a.op == ReduceOp::kMax || a.op == ReduceOp::kMin) return 0;
  double magnitude = 0;
  for (int64_t k = 0; k < a.n; ++k) {
    const double v = a.x[(o * a.n + k) * a.inner + i];
    magnitude += a.op == ReduceOp::kSumOfSquares ? v * v : std::abs(v);
  }
  if (a.op == ReduceOp::kMean) magnitude /= static_cast<double>(a.n);
  return std::ldexp(66 * magnitude + std::abs(want), -24);
}

}  // namespace

TEST_CASE("reductions: every level against the reference, rows and columns of many sizes") {
  ThreadPool pool({.threads = 3});
  for (const int64_t n : {1, 2, 7, 16, 17, 63, 64, 65, 129, 1024, 1025, 5000}) {
    for (const int64_t inner : {1, 2, 5, 15, 16, 17, 64, 65, 255, 257}) {
      const int64_t outer = n * inner > 10000 ? 2 : 5;
      Guarded<float> x(static_cast<size_t>(outer * n * inner));
      const auto values = random_values(x.size(), Values::kNormal, static_cast<uint32_t>(n + inner));
      std::copy(values.begin(), values.end(), x.begin());
      for (const ReduceOp op : kOps) {
        ReduceArgs a;
        a.x = x.data(), a.outer = outer, a.n = n, a.inner = inner, a.op = op;
        const Guarded<float> want = reduced(a, Isa::kReference, nullptr);
        for (const Isa isa : levels()) {
          INFO("isa " << static_cast<int>(isa) << " op " << static_cast<int>(op) << " n " << n << " inner "
                      << inner);
          const Guarded<float> got = reduced(a, isa, nullptr), together = reduced(a, isa, &pool);
          int64_t wrong = 0;
          for (int64_t e = 0; e < outer * inner; ++e) {
            const double w = want[static_cast<size_t>(e)];
            wrong += !(std::abs(got[static_cast<size_t>(e)] - w) <= bound_of(a, e / inner, e % inner, w));
          }
          CHECK(wrong == 0);
          CHECK(std::equal(got.begin(), got.end(), together.begin()));
        }
      }
    }
  }
}

TEST_CASE("reductions: a NaN is the result, infinities and no entries are as the header says") {
  for (const int64_t inner : {1, 3, 40}) {
    for (const int64_t n : {1, 9, 100}) {
      std::vector<float> x(static_cast<size_t>(n * inner), 1.f);
      for (const ReduceOp op : kOps) {
        for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
          for (const Isa isa : levels()) {
            INFO("isa " << static_cast<int>(isa) << " op " << static_cast<int>(op) << " n " << n << " at "
                        << at);
            ReduceArgs a;
            a.x = x.data(), a.outer = 1, a.n = n, a.inner = inner, a.op = op;
            float& e = x[static_cast<size_t>(at * inner + inner - 1)];
            e = NAN;
            const Guarded<float> nan = reduced(a, isa, nullptr);
            CHECK(std::isnan(nan[nan.size() - 1]));
            if (inner > 1) CHECK(std::isfinite(nan[0]));
            e = -INFINITY;
            const Guarded<float> low = reduced(a, isa, nullptr);
            const Guarded<float> want = reduced(a, Isa::kReference, nullptr);
            CHECK(std::equal(low.begin(), low.end(), want.begin()));
            e = 1;
          }
        }
      }
    }
  }
  for (const ReduceOp op : kOps) {
    for (const Isa isa : levels()) {
      ReduceArgs a;
      a.outer = 1, a.n = 0, a.inner = 2, a.op = op;
      const float got = reduced(a, isa, nullptr)[1], want = reduced(a, Isa::kReference, nullptr)[1];
      CHECK((got == want || (std::isnan(got) && std::isnan(want))));
    }
  }
}
