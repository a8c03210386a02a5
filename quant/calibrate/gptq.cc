#include "quant/calibrate/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quant/calibrate/for_each_isa.h"

namespace oar::calibrate {
namespace {

// Rows, or columns, that are worked on together: what they all read comes from memory once.
constexpr int64_t kBlock = 32;
constexpr int64_t kChunk = 512;  // columns: 32 rows of them stay in the second-level cache

// out[r] = the inner product of a[lo, hi) and b[r][lo, hi).
struct Dots {
  const double* a;
  const double* const* b;
  int64_t lo, hi;
  double* out;
};
template <int R>
OAR_BODY void dots_body(const Dots& d) {
  using Doubles [[gnu::vector_size(32), gnu::aligned(8), gnu::may_alias]] = double;
  Doubles sum[R] = {};
  int64_t k = d.lo;
  for (; k + 4 <= d.hi; k += 4) {
    const Doubles a = *reinterpret_cast<const Doubles*>(d.a + k);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) sum[r] += a * *reinterpret_cast<const Doubles*>(d.b[r] + k);
  }
  for (; k < d.hi; ++k) {
    for (int r = 0; r < R; ++r) sum[r][0] += d.a[k] * d.b[r][k];
  }
  for (int r = 0; r < R; ++r) d.out[r] = (sum[r][0] + sum[r][2]) + (sum[r][1] + sum[r][3]);
}
OAR_FOR_EACH_ISA(one_dot, dots_body<1>, const Dots)
OAR_FOR_EACH_ISA(four_dots, dots_body<4>, const Dots)

// to += factor * from, n numbers that do not overlap.
struct Scaled {
  double* to;
  const double* from;
  double factor;
  int64_t n;
};
OAR_BODY void add_scaled_body(const Scaled& a) {
  using Doubles [[gnu::vector_size(64), gnu::aligned(8), gnu::may_alias]] = double;
  int64_t i = 0;
  for (; i + 8 <= a.n; i += 8) {
    *reinterpret_cast<Doubles*>(a.to + i) += a.factor * *reinterpret_cast<const Doubles*>(a.from + i);
  }
  for (; i < a.n; ++i) a.to[i] += a.factor * a.from[i];
}
OAR_FOR_EACH_ISA(add_scaled, add_scaled_body, const Scaled)

// Errors of kLanes rows of weights, made up for in the n columns to come: w (columns, kLanes), factors of a
// row of U.
constexpr size_t kLanes = 16;  // side by side, so that a row of U is read once for all of them
struct Feedback {
  float* w;
  const float *factors, *error;
  size_t n;
};
OAR_BODY void feed_back_body(const Feedback& f) {
  using Lanes [[gnu::vector_size(4 * kLanes), gnu::aligned(4), gnu::may_alias]] = float;
  const Lanes error = *reinterpret_cast<const Lanes*>(f.error);
  for (size_t k = 0; k < f.n; ++k) *reinterpret_cast<Lanes*>(f.w + k * kLanes) -= error * f.factors[k];
}
OAR_FOR_EACH_ISA(feed_back, feed_back_body, const Feedback)

// out[r] = the inner product of h[lo, hi) and d[r][lo, hi), four rows of weights.
struct RowDots {
  const float* h;
  const float* const* d;
  size_t lo, hi;
  double* out;
};
OAR_BODY void four_row_dots_body(const RowDots& a) {
  using Floats [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
  Floats sum[4] = {};
  size_t k = a.lo;
  for (; k + 16 <= a.hi; k += 16) {
    const Floats h = *reinterpret_cast<const Floats*>(a.h + k);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) sum[r] += h * *reinterpret_cast<const Floats*>(a.d[r] + k);
  }
  for (int r = 0; r < 4; ++r) {
    double total = 0;
    for (int l = 0; l < 16; ++l) total += static_cast<double>(sum[r][l]);
    for (size_t i = k; i < a.hi; ++i) total += static_cast<double>(a.h[i]) * static_cast<double>(a.d[r][i]);
    a.out[r] = total;
  }
}
OAR_FOR_EACH_ISA(four_row_dots, four_row_dots_body, const RowDots)

// H = M M^T with M upper triangular, in place (`h`: a packed triangle), a block of columns after the other
// from the last to the first; every inner product runs along two rows. Then H^-1 = U^T U with U = M^-1. False
// when a pivot is not positive.
bool factor_upper(std::vector<double>& h, int64_t n, const Parallel& parallel) {
  const auto row = [&](int64_t i) { return triangle_row(h.data(), n, i); };
  for (int64_t j1 = n; j1 > 0;) {
    const int64_t j0 = std::max<int64_t>(j1 - kBlock, 0);
    // What the columns behind the block take from row i of it.
    const auto subtract = [&](int64_t i) {
      double* left = row(i);
      for (int64_t j = std::max(i, j0); j < j1;) {
        const double* right[4];
        double sum[4];
        const int64_t count = std::min<int64_t>(4, j1 - j);
        for (int64_t r = 0; r < count; ++r) right[r] = row(j + r);
        if (count == 4) {
          four_dots({left, right, j1, n, sum});
        } else {
          for (int64_t r = 0; r < count; ++r) one_dot({left, right + r, j1, n, sum + r});
        }
        for (int64_t r = 0; r < count; ++r) left[j + r] -= sum[r];
        j += count;
      }
    };
    const auto solve = [&](int64_t i, int64_t j) {
      double* left = row(i);
      const double* right = row(j);
      double sum = left[j];
      for (int64_t k = j + 1; k < j1; ++k) sum -= left[k] * right[k];
      left[j] = sum / right[j];
    };
    for (int64_t i = j0; i < j1; ++i) subtract(i);
    for (int64_t j = j1 - 1; j >= j0; --j) {
      double* right = row(j);
      double pivot = right[j];
      for (int64_t k = j + 1; k < j1; ++k) pivot -= right[k] * right[k];
      if (!(pivot > 0) || !std::isfinite(pivot)) return false;
      right[j] = std::sqrt(pivot);
      for (int64_t i = j0; i < j; ++i) solve(i, j);
    }
    parallel(j0, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        subtract(i);
        for (int64_t j = j1 - 1; j >= j0; --j) solve(i, j);
      }
    });
    j1 = j0;
  }
  return true;
}

// The inverse of an upper triangular matrix in its place, a block of rows after the other from the last to
// the first: row i is -1 / M_ii times the sum over k > i of M_ik and row k.
void invert_upper(std::vector<double>& m, int64_t n, const Parallel& parallel) {
  const auto row = [&](int64_t i) { return triangle_row(m.data(), n, i); };
  std::vector<double> old(static_cast<size_t>(kBlock * n));
  for (int64_t i1 = n; i1 > 0;) {
    const int64_t i0 = std::max<int64_t>(i1 - kBlock, 0);
    const auto old_row = [&](int64_t i) { return old.data() + (i - i0) * n; };
    for (int64_t i = i0; i < i1; ++i) {
      std::copy(row(i) + i, row(i) + n, old_row(i) + i);
      std::fill(row(i) + i, row(i) + n, 0.0);
    }
    parallel((n - i0 + kChunk - 1) / kChunk, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t c0 = i0 + chunk * kChunk, c1 = std::min(c0 + kChunk, n);
        const auto add = [&](int64_t i, int64_t k) {
          const int64_t c = std::max(k, c0);
          if (const double factor = old_row(i)[k]; factor != 0)
            add_scaled({row(i) + c, row(k) + c, factor, c1 - c});
        };
        for (int64_t k = i1; k < c1; ++k) {
          for (int64_t i = i0; i < i1; ++i) add(i, k);
        }
        for (int64_t i = std::min(i1, c1) - 1; i >= i0; --i) {
          for (int64_t k = i + 1; k < std::min(i1, c1); ++k) add(i, k);
          const double inverse = 1 / old_row(i)[i];
          for (int64_t c = std::max(i, c0); c < c1; ++c) row(i)[c] *= -inverse;
          if (i >= c0) row(i)[i] = inverse;
        }
      }
    });
    i1 = i0;
  }
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
  const auto serial = [](int64_t count, const auto& fn) { fn(0, count); };
  const Parallel parallel = options.parallel ? options.parallel : Parallel(serial);
  for (int attempt = 0; attempt < 8; ++attempt, damping *= 10) {
    std::vector<double> h(n * (n + 1) / 2);
    for (size_t i = 0; i < n; ++i) {
      const auto row = static_cast<size_t>(out.order[i]);
      double* packed = triangle_row(h.data(), size, static_cast<int64_t>(i));
      for (size_t j = i; j < n; ++j) packed[j] = hessian[row * n + static_cast<size_t>(out.order[j])];
      packed[i] = (diagonal[row] == 0 ? 1 : diagonal[row]) + damping;
    }
    if (!factor_upper(h, size, parallel)) continue;
    invert_upper(h, size, parallel);
    out.upper.resize(h.size());
    std::transform(h.begin(), h.end(), out.upper.begin(), [](double v) { return static_cast<float>(v); });
    out.damping = damping;
    return true;
  }
  return false;
}

void gptq_rows(std::span<const float> rows, int64_t count, const GridSpec& spec, std::span<const float> scale,
               std::span<const float> zero, const GptqFactor& factor, std::span<int8_t> levels) {
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
      const float* u = triangle_row(factor.upper.data(), factor.size, static_cast<int64_t>(j));
      float error[kLanes] = {};
      for (size_t r = 0; r < lanes; ++r) {
        const size_t g = (first + r) * groups + column / width;
        const float x = w[j * kLanes + r];
        const int level = level_of(spec, x, reciprocal(scale[g]), zero[g]);
        levels[(first + r) * n + column] = static_cast<int8_t>(level);
        error[r] = (x - scale[g] * (static_cast<float>(level) - zero[g])) / u[j];
      }
      feed_back({w.data() + (j + 1) * kLanes, u + j + 1, error, n - j - 1});
    }
  }
}

double output_error(std::span<const float> difference, int64_t count, std::span<const float> hessian,
                    int64_t size) {
  constexpr size_t kTogether = 4;
  const auto n = static_cast<size_t>(size), total = static_cast<size_t>(count);
  double error = 0;
  // d H d^T by the upper triangle, a row of which is read once for all rows of d.
  for (size_t i = 0; i < n; ++i) {
    const float* h = hessian.data() + i * n;
    for (size_t r = 0; r < total; r += kTogether) {
      const float* d[kTogether];
      double behind[kTogether];
      const size_t rows = std::min(kTogether, total - r);
      for (size_t k = 0; k < kTogether; ++k) { d[k] = difference.data() + (r + std::min(k, rows - 1)) * n; }
      four_row_dots({h, d, i + 1, n, behind});
      for (size_t k = 0; k < rows; ++k) {
        const auto at = static_cast<double>(d[k][i]);
        error += at * (static_cast<double>(h[i]) * at + 2 * behind[k]);
      }
    }
  }
  return error;
}

}  // namespace oar::calibrate
