// The searches behind fit_row(): a grid for a group of weights, by trying many (clip search) or by moving one
// many times (half-quadratic). What is tried side by side lies side by side, so that the compiler makes
// vectors of it: candidates of one group, or many groups. Every lane adds in the order of the elements and
// nothing is contracted, so each instruction set gives the same bits. Internal to quant/calibrate.
#pragma once

#include <cstdint>

#include "quant/calibrate/grid.h"

namespace oar::calibrate {

struct GroupGrid {
  float scale = 0, zero = 0;
};

// Least and largest of n >= 1 values, and 0 where the grid must reach it.
struct Extremes {
  float low = 0, high = 0;
};
Extremes extremes(const float* x, int64_t n, const GridSpec& spec);

// The grid on which [e.low, e.high], shrunk by `part`, just fits.
GroupGrid spanning(Extremes e, const GridSpec& spec, float part);

// One group of n values: FitMethod::kMse. `importance`: n factors, or null.
GroupGrid fit_mse(const float* x, const float* importance, int64_t n, const GridSpec& spec,
                  const FitOptions& options);

// `count` groups of n values, one behind the other: FitMethod::kHqq.
void fit_hqq(const float* x, int64_t count, int64_t n, const GridSpec& spec, int iterations, GroupGrid* out);

}  // namespace oar::calibrate
