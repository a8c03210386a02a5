// Coordinate descent on codes, behind GPTQ: each weight's code is chosen anew while all others of its row
// stand, sweep after sweep, as long as the row's loss falls. GPTQ takes each column once, those after it
// still unrounded; here every choice sees all of them as they will be stored.
// https://arxiv.org/abs/2309.01885
//
// With d = w - q of a row, the loss is d H d^T. In column j alone it is least where q_j moves by r_j / H_jj,
// r = d H. The nearest code to that is the best one, and r follows by a multiple of H's row j.
#pragma once

#include <cstdint>
#include <span>

#include "quant/calibrate/grid.h"

namespace oar::calibrate {

struct DescentOptions {
  double damping = 0;  // added to the diagonal of H: GptqFactor::damping
  int sweeps = 8;      // at most; a row ends with the first that changes nothing
};

// Improves `levels` of `count` rows of W on their grids; arrays as gptq_rows() has them, `hessian` is (size *
// size), both triangles. The loss of a row never rises, up to rounding. About count * size^2 multiply-adds,
// and as many again for each change of every tenth code.
void descend_rows(std::span<const float> rows, int64_t count, const GridSpec& spec,
                  std::span<const float> scale, std::span<const float> zero, std::span<const float> hessian,
                  int64_t size, const DescentOptions& options, std::span<int8_t> levels);

}  // namespace oar::calibrate
