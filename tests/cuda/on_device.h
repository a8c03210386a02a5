// A kernel on the device, found as the plug-in finds it, and its reference on the host.
#pragma once

#include <cmath>

#include "kernels/cuda/kernels.h"
#include "tests/cuda/device_memory.h"
#include "tests/kernels/matmul_problem.h"

namespace oar_test {

// `args`: the family's struct with device pointers. With its scratch, as the table promises it.
inline void launch_on_device(KernelFamily family, const char* format, const void* args, const char* keys = "",
                             const char* values = "") {
  const oar::cuda::DeviceKernel* kernel = oar::cuda::find_device_kernel(family, format, keys, values);
  REQUIRE(kernel != nullptr);
  DeviceCopy<char> scratch(std::vector<char>(kernel->scratch != nullptr ? kernel->scratch(args) : 0, '\x7f'));
  const oar::cuda::CudaStatus status = kernel->launch(args, scratch.data(), nullptr);
  INFO(status.message());
  REQUIRE(status.ok());
}

// `args`: the same with pointers of the host.
inline void run_reference(KernelFamily family, Format format, const void* args) {
  const Kernel* kernel = oar::KernelRegistry::cpu().find({family, format}, Isa::kReference);
  REQUIRE(kernel != nullptr);
  run_in_steps(*kernel, args, 1 << 20, false);
}

// |got - want| <= bound(i), and both NaN or infinite alike.
template <class Bound>
void check_close(const std::vector<float>& got, const std::vector<float>& want, const Bound& bound) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) ? std::isnan(got[i]) : got[i] == want[i]) continue;
    const double difference = std::fabs(static_cast<double>(got[i]) - want[i]);
    if (difference <= bound(i)) continue;
    INFO("element " << i << ": " << got[i] << ", not " << want[i] << ", bound " << bound(i));
    FAIL("too far from the reference");
  }
}

inline std::vector<float> nothing_yet(int64_t n) { return std::vector<float>(static_cast<size_t>(n), NAN); }

constexpr double kUnit = 1.0 / (1 << 24);  // half a unit in the last place

}  // namespace oar_test
