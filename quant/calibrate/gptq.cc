#include "quant/calibrate/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace oar::calibrate {
namespace {

// H = M M^T with M upper triangular, in place (the upper triangle of `h`): from the last column to the first,
// every inner product runs along two rows. Then H^-1 = U^T U with U = M^-1. False when a pivot is not
// positive.
bool factor_upper(std::vector<double>& h, int64_t n) {
  const auto at = [n](int64_t i, int64_t j) { return static_cast<size_t>(i * n + j); };
  for (int64_t j = n - 1; j >= 0; --j) {
    const double* right = h.data() + at(j, 0);
    double pivot = right[j];
    for (int64_t k = j + 1; k < n; ++k) pivot -= right[k] * right[k];
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    const double root = std::sqrt(pivot);
    h[at(j, j)] = root;
    for (int64_t i = 0; i < j; ++i) {
      const double* left = h.data() + at(i, 0);
      double sum[4] = {left[j], 0, 0, 0};
      int64_t k = j + 1;
      for (; k + 4 <= n; k += 4) {
        for (int l = 0; l < 4; ++l) sum[l] -= left[k + l] * right[k + l];
      }
      for (; k < n; ++k) sum[0] -= left[k] * right[k];
      h[at(i, j)] = ((sum[0] + sum[2]) + (sum[1] + sum[3])) / root;
    }
  }
  return true;
}

// The inverse of an upper triangular matrix, rows from the last to the first.
void invert_upper(const std::vector<double>& m, int64_t n, std::vector<float>& out) {
  std::vector<double> u(static_cast<size_t>(n * n), 0.0);
  for (int64_t i = n - 1; i >= 0; --i) {
    const double inverse = 1 / m[static_cast<size_t>(i * n + i)];
    double* row = u.data() + i * n;
    for (int64_t k = i + 1; k < n; ++k) {
      const double factor = m[static_cast<size_t>(i * n + k)] * -inverse;
      if (factor == 0) continue;
      const double* below = u.data() + k * n;
      for (int64_t j = k; j < n; ++j) row[j] += factor * below[j];
    }
    row[i] = inverse;
  }
  out.resize(u.size());
  std::transform(u.begin(), u.end(), out.begin(), [](double v) { return static_cast<float>(v); });
}

}  // namespace

bool gptq_factor(std::span<const float> hessian, int64_t size, const GptqOptions& options, GptqFactor& out) {
  const auto n = static_cast<size_t>(size);
  std::vector<double> diagonal(n);
  double mean = 0;
  for (size_t i = 0; i < n; ++i) {
    diagonal[i] = hessian[i * n + i];
    mean += diagonal[i];
  }
  mean /= static_cast<double>(n);
  if (!std::isfinite(mean)) return false;
  out.size = size;
  out.order.resize(n);
  std::iota(out.order.begin(), out.order.end(), 0);
  if (options.activation_order) {
    std::stable_sort(out.order.begin(), out.order.end(), [&](int32_t a, int32_t b) {
      return diagonal[static_cast<size_t>(a)] > diagonal[static_cast<size_t>(b)];
    });
  }
  double damping = options.damping * mean;
  if (!(damping > 0)) damping = options.damping;
  for (int attempt = 0; attempt < 8; ++attempt, damping *= 10) {
    std::vector<double> h(n * n);
    for (size_t i = 0; i < n; ++i) {
      const auto row = static_cast<size_t>(out.order[i]);
      for (size_t j = i; j < n; ++j) h[i * n + j] = hessian[row * n + static_cast<size_t>(out.order[j])];
      h[i * n + i] = (diagonal[row] == 0 ? 1 : diagonal[row]) + damping;
    }
    if (!factor_upper(h, size)) continue;
    invert_upper(h, size, out.upper);
    out.damping = damping;
    return true;
  }
  return false;
}

void gptq_rows(std::span<const float> rows, int64_t count, const GridSpec& spec, std::span<const float> scale,
               std::span<const float> zero, const GptqFactor& factor, std::span<int8_t> levels) {
  constexpr size_t kLanes = 16;  // rows side by side, so that a row of U is read once for all of them
  const auto n = static_cast<size_t>(factor.size), total = static_cast<size_t>(count);
  const auto groups = static_cast<size_t>(spec.groups(factor.size));
  const auto width = static_cast<size_t>(spec.columns(factor.size));
  std::vector<float> w(n * kLanes);  // (column in order, row)
  for (size_t first = 0; first < total; first += kLanes) {
    const size_t lanes = std::min(kLanes, total - first);
    for (size_t j = 0; j < n; ++j) {
      for (size_t r = 0; r < kLanes; ++r) {
        w[j * kLanes + r] = r < lanes ? rows[(first + r) * n + static_cast<size_t>(factor.order[j])] : 0.f;
      }
    }
    for (size_t j = 0; j < n; ++j) {
      const auto column = static_cast<size_t>(factor.order[j]);
      const float* u = factor.upper.data() + j * n;
      float error[kLanes] = {};
      for (size_t r = 0; r < lanes; ++r) {
        const size_t g = (first + r) * groups + column / width;
        const float x = w[j * kLanes + r];
        const int level = level_of(spec, x, reciprocal(scale[g]), zero[g]);
        levels[(first + r) * n + column] = static_cast<int8_t>(level);
        error[r] = (x - scale[g] * (static_cast<float>(level) - zero[g])) / u[j];
      }
      for (size_t k = j + 1; k < n; ++k) {
        const float factor_k = u[k];
        float* later = w.data() + k * kLanes;
        for (size_t r = 0; r < kLanes; ++r) later[r] -= error[r] * factor_k;
      }
    }
  }
}

void add_outer_products(std::span<const float> samples, int64_t size, int64_t first, int64_t last,
                        std::span<float> hessian) {
  const auto n = static_cast<size_t>(size), count = samples.size() / n;
  for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
    float* h = hessian.data() + i * n;
    for (size_t t = 0; t < count; ++t) {
      const float* x = samples.data() + t * n;
      const float factor = x[i];
      if (factor == 0) continue;
      for (size_t j = i; j < n; ++j) h[j] += factor * x[j];
    }
  }
}

double output_error(std::span<const float> difference, int64_t count, std::span<const float> hessian,
                    int64_t size) {
  const auto n = static_cast<size_t>(size);
  double total = 0;
  std::vector<float> product(n);
  for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
    const float* d = difference.data() + r * n;
    std::fill(product.begin(), product.end(), 0.f);
    for (size_t i = 0; i < n; ++i) {
      if (d[i] == 0) continue;
      const float* h = hessian.data() + i * n;
      for (size_t j = 0; j < n; ++j) product[j] += d[i] * h[j];
    }
    double sum = 0;
    for (size_t j = 0; j < n; ++j) sum += static_cast<double>(d[j]) * static_cast<double>(product[j]);
    total += sum;
  }
  return total;
}

}  // namespace oar::calibrate
