// What an outputs handle stands for: the results of one run, kept until the caller closes it.
#pragma once

#include <vector>

#include "engine/tensor/tensor.h"

namespace oar::capi {

class OutputsObject {
 public:
  std::vector<Tensor> tensors;
};

}  // namespace oar::capi
