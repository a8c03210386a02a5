// Grouped Hadamard transform, scalar and in double.
#include "kernels/hadamard.h"

#include <cmath>
#include <vector>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void hadamard_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const HadamardArgs*>(args);
  *out = {1, {a.rows}};
  out->worker_scratch = static_cast<size_t>(2 * a.block) * sizeof(double);
}

// v <- H v; `copy` holds a column of a core.
void transform(const HadamardArgs& a, double* v, double* copy) {
  for (int64_t h = 1; h < a.power; h *= 2) {
    for (int64_t i = 0; i < a.block; ++i) {
      if ((i & h) != 0) continue;
      const double x = v[i], y = v[i + h];
      v[i] = x + y;
      v[i + h] = x - y;
    }
  }
  int64_t stride = a.power;
  for (int c = 0; c < a.num_cores; ++c) {
    const int64_t K = a.core_order[c];
    for (int64_t base = 0; base < a.block; base += K * stride) {
      for (int64_t j = base; j < base + stride; ++j) {
        for (int64_t k = 0; k < K; ++k) copy[k] = v[j + k * stride];
        for (int64_t r = 0; r < K; ++r) {
          double sum = 0;
          for (int64_t k = 0; k < K; ++k) sum += static_cast<double>(a.cores[c][r * K + k]) * copy[k];
          v[j + r * stride] = sum;
        }
      }
    }
    stride *= K;
  }
}

void hadamard_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const HadamardArgs*>(args);
  auto* v = static_cast<double*>(scratch.worker);
  const double scale = 1 / std::sqrt(static_cast<double>(a.block));
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t first = 0; first < a.n; first += a.block) {
      const float* x = a.x + row * a.ldx + first;
      float* out = a.out + row * a.ldo + first;
      const auto sign = [&](int64_t i) {
        return a.signs != nullptr ? static_cast<double>(a.signs[first + i]) : 1.0;
      };
      for (int64_t i = 0; i < a.block; ++i) v[i] = a.inverse != 0 ? x[i] : x[i] * sign(i);
      transform(a, v, v + a.block);
      for (int64_t i = 0; i < a.block; ++i)
        out[i] = static_cast<float>(v[i] * scale * (a.inverse != 0 ? sign(i) : 1.0));
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kHadamard, Isa::kReference, hadamard_plan, hadamard_run},
};

}  // namespace

constinit const KernelTable kernels_hadamard_reference{kEntries};

}  // namespace oar
