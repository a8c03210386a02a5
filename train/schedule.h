// The learning rate of a step, as a factor on the rate that was asked for: a linear rise over the first
// `warmup` steps, then constant, or down towards `least` in a line or half a cosine
// (https://arxiv.org/abs/1608.03983).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace oar::train {

enum class Decay : uint8_t { kConstant, kLinear, kCosine };
std::vector<std::string> decay_names();
Result<Decay> find_decay(const std::string& name);

struct Schedule {
  Decay decay = Decay::kCosine;
  int64_t warmup = 0;
  int64_t steps = 1;
  double least = 0;  // the factor at the end
  // Of step 1, 2, ... steps.
  double factor(int64_t step) const;
  // INVALID_ARGUMENT where the warm-up takes all steps.
  Status check() const;
};

}  // namespace oar::train
