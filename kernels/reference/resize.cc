// Interpolation, scalar, sums in double: the truth for the fast ones.
#include "kernels/resize.h"

#include <algorithm>
#include <vector>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const ResizeArgs*>(args);
  *out = {1, {std::max<int64_t>(1, a.outer * a.rows.out)}};
}

// f(input entry, weight) for the taps of output entry k.
template <class F>
void each_tap(const ResizeAxis& axis, int64_t k, F&& f) {
  if (axis.first == nullptr) return f(k, 1.0);
  for (int32_t t = axis.first[k]; t < axis.first[k + 1]; ++t)
    f(int64_t{axis.at[t]}, static_cast<double>(axis.weight[t]));
}

void run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const ResizeArgs*>(args);
  const int64_t line = a.cols.in * a.inner;
  for (int64_t r = begin; r < end && r < a.outer * a.rows.out; ++r) {
    const float* image = a.x + r / a.rows.out * a.rows.in * line;
    for (int64_t j = 0; j < a.cols.out; ++j) {
      for (int64_t e = 0; e < a.inner; ++e) {
        double sum = 0;
        each_tap(a.rows, r % a.rows.out, [&](int64_t row, double by_row) {
          each_tap(a.cols, j, [&](int64_t column, double by_column) {
            sum += by_row * by_column * static_cast<double>(image[row * line + column * a.inner + e]);
          });
        });
        a.out[(r * a.cols.out + j) * a.inner + e] = static_cast<float>(sum);
      }
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kResize, Isa::kReference, plan, run},
};

}  // namespace

constinit const KernelTable kernels_resize_reference{kEntries};

}  // namespace oar
