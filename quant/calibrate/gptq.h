// GPTQ: rounding with error feedback. Columns are rounded one after the other. What each loses is made up for
// in those to come, by the Hessian of the layer's output error. https://arxiv.org/abs/2210.17323
//
// With X (inputs, samples), the loss of a row is (w - q) H (w - q)^T, H = X X^T. Let U be upper triangular
// with H^-1 = U^T U. Column j: q_j = nearest code, e = (w_j - q_j) / U_jj, w_k -= e U_jk for k > j.
//
// The grid is fitted before (grid.h, from the original weights: "static groups"), so any scale rule of a
// format works, and columns may be taken in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quant/calibrate/grid.h"

namespace oar::calibrate {

// Row i of a packed upper triangle: entry (i, j) is at [j], j >= i. Half the memory, which at 14,336 columns
// (the down projection of an 8B model) is 0.8 GB of double.
template <class T>
T* triangle_row(T* data, int64_t size, int64_t i) {
  return data + i * (2 * size - i - 1) / 2;
}

struct GptqFactor {
  int64_t size = 0;
  std::vector<float>
      upper;  // U in the order of `order`, its upper triangle row after row: see triangle_row()
  std::vector<int32_t> order;  // column of W taken in step j
  double damping = 0;          // what was added to the diagonal in the end
};

// Spreads fn(begin, end) over [0, count), in any order on any threads. The result does not depend on it.
using Parallel =
    std::function<void(int64_t count, const std::function<void(int64_t begin, int64_t end)>& fn)>;

struct GptqOptions {
  double damping = 0.01;  // of the mean diagonal
  // Columns of large H_jj first, when all others can still make up for them.
  bool activation_order = true;
  Parallel parallel;  // empty: on the calling thread
};

// Of a symmetric `hessian` (size * size, row-major). A column that no sample ever used (diagonal 0) gets 1
// there and feeds nothing. Damping is raised tenfold, up to 8 times, while the matrix is not positive
// definite in double; false when it never is (NaN or infinite entries). size^3 / 3 multiply-adds.
bool gptq_factor(std::span<const float> hessian, int64_t size, const GptqOptions& options, GptqFactor& out);

// Chooses codes for `count` rows of W (cols = factor.size) on their grids. All arrays row-major; scale and
// zero have spec.groups(cols) entries a row. count * cols^2 / 2 multiply-adds.
void gptq_rows(std::span<const float> rows, int64_t count, const GridSpec& spec, std::span<const float> scale,
               std::span<const float> zero, const GptqFactor& factor, std::span<int8_t> levels);

// sum over rows of d H d^T: the squared output error that a weight error d (count rows) makes on the samples
// of H.
double output_error(std::span<const float> difference, int64_t count, std::span<const float> hessian,
                    int64_t size);

}  // namespace oar::calibrate
