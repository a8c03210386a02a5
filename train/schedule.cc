#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/format.h"

namespace oar::train {
namespace {
constexpr const char* kNames[] = {"constant", "linear", "cosine"};
}

std::vector<std::string> decay_names() { return {std::begin(kNames), std::end(kNames)}; }

Result<Decay> find_decay(const std::string& name) {
  for (size_t k = 0; k < std::size(kNames); ++k)
    if (name == kNames[k]) return static_cast<Decay>(k);
  return invalid_argument(cat("there is no schedule '", name, "'; there are constant, linear, cosine"));
}

Status Schedule::check() const {
  if (warmup == 0 || warmup < steps) return ok_status();
  return invalid_argument(cat("--warmup ", warmup, " is not below the ", steps, " steps of the run"));
}

double Schedule::factor(int64_t step) const {
  if (step <= warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  if (decay == Decay::kConstant) return 1;
  // The first step behind the warm-up has the whole rate; the least is that of a step behind the last.
  const int64_t last = std::max<int64_t>(steps - warmup, 1);
  const double part = std::min(1.0, static_cast<double>(step - warmup - 1) / static_cast<double>(last));
  const double falling = decay == Decay::kLinear ? 1 - part : 0.5 * (1 + std::cos(std::numbers::pi * part));
  return least + (1 - least) * falling;
}

}  // namespace oar::train
