// RMSNorm and LayerNorm, scalar, sums in double: the truth for the fast ones.
#include "kernels/norm.h"

#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

// h = x + residual of one row, rounded to f32 as the stored sum is. The addends are read before sum_out is
// written, element by element, because sum_out may be residual.
double h_at(const float* x, const float* residual, int64_t i) {
  return residual != nullptr ? x[i] + residual[i] : x[i];
}

void rms_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const RmsNormArgs*>(args)->rows}};
}

void rms_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const RmsNormArgs*>(args);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.ldx;
    const float* residual = a.residual != nullptr ? a.residual + r * a.cols : nullptr;
    float* out = a.out + r * a.ldo;
    double squares = 0;
    for (int64_t i = 0; i < a.cols; ++i) {
      const double h = h_at(x, residual, i);
      squares += h * h;
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(a.cols) + a.eps);
    for (int64_t i = 0; i < a.cols; ++i) {
      const double h = h_at(x, residual, i);
      if (a.sum_out != nullptr) a.sum_out[r * a.cols + i] = static_cast<float>(h);
      out[i] = static_cast<float>(h * scale * (static_cast<double>(a.w[i]) + a.w_offset));
    }
  }
}

void layer_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const LayerNormArgs*>(args)->rows}};
}

void layer_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const LayerNormArgs*>(args);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.ldx;
    const float* residual = a.residual != nullptr ? a.residual + r * a.cols : nullptr;
    float* out = a.out + r * a.ldo;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < a.cols; ++i) mean += h_at(x, residual, i);
    mean /= static_cast<double>(a.cols);
    for (int64_t i = 0; i < a.cols; ++i) {
      const double centred = h_at(x, residual, i) - mean;
      variance += centred * centred;
    }
    const double scale = 1.0 / std::sqrt(variance / static_cast<double>(a.cols) + a.eps);
    for (int64_t i = 0; i < a.cols; ++i) {
      const double h = h_at(x, residual, i);
      const double w = a.w != nullptr ? a.w[i] : 1.0, b = a.b != nullptr ? a.b[i] : 0.0;
      if (a.sum_out != nullptr) a.sum_out[r * a.cols + i] = static_cast<float>(h);
      out[i] = static_cast<float>((h - mean) * scale * w + b);
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kRmsNorm, Isa::kReference, rms_plan, rms_run},
    {KernelFamily::kLayerNorm, Isa::kReference, layer_plan, layer_run},
};

}  // namespace

constinit const KernelTable kernels_norm_reference{kEntries};

}  // namespace oar
