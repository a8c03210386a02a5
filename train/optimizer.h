// Which optimizer, with which numbers.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace oar::train {

enum class Optimizer : uint8_t { kAdamW, kSgd };

struct OptimizerOptions {
  Optimizer kind = Optimizer::kAdamW;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double momentum = 0.9;  // sgd
  double decay = 0;       // of matrices; vectors (norms, biases) have none
  // Factors on the rate by pattern of names ('*' is any text); the first that matches counts.
  std::vector<std::pair<std::string, double>> rates;
  size_t moments() const { return kind == Optimizer::kAdamW ? 2 : 1; }
};

}  // namespace oar::train
