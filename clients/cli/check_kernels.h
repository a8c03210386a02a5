// Every kernel level of this machine against the reference, on one GEMM and one attention each: enough to see
// a wrong dispatch or a broken processor, not a replacement of the tests.
#pragma once

#include <string>
#include <vector>

#include "kernels/thread_pool.h"

namespace oar::cli {

struct KernelCheck {
  std::string name;                           // "matmul bf16 avx512vnni"
  double error = 0;                           // largest difference to the reference
  double bound = 0;                           // what rounding of operands and sums allows
  bool ok() const { return error <= bound; }  // false for a NaN
};

std::vector<KernelCheck> check_kernels(ThreadPool& pool);

}  // namespace oar::cli
