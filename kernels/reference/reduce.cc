// Reductions, one entry after the other, sums in double: the truth for the fast ones.
#include "kernels/reduce.h"

#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

double reduced(const float* x, int64_t n, int64_t step, ReduceOp op) {
  double y = op == ReduceOp::kMax ? -HUGE_VAL : op == ReduceOp::kMin ? HUGE_VAL : 0;
  for (int64_t k = 0; k < n; ++k) {
    const double v = x[k * step];
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kMean: y += v; break;
      case ReduceOp::kSumOfSquares: y += v * v; break;
      case ReduceOp::kMax: y = std::isnan(v) || v > y ? v : y; break;
      case ReduceOp::kMin: y = std::isnan(v) || v < y ? v : y; break;
    }
  }
  return op == ReduceOp::kMean ? y / static_cast<double>(n) : y;
}

void plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const ReduceArgs*>(args)->outer}};
}

void run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const ReduceArgs*>(args);
  for (int64_t o = begin; o < end; ++o) {
    for (int64_t i = 0; i < a.inner; ++i) {
      a.out[o * a.inner + i] = static_cast<float>(reduced(a.x + o * a.n * a.inner + i, a.n, a.inner, a.op));
    }
  }
}

constexpr KernelEntry kEntries[] = {{KernelFamily::kReduce, Isa::kReference, plan, run}};

}  // namespace

constinit const KernelTable kernels_reduce_reference{kEntries};

}  // namespace oar
