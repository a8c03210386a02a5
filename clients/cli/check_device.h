// The families of kernels that a device has, each at one shape against the scalar reference, with how fast it
// was: enough to see a device that computes wrongly or not at all, not a replacement of the tests or of a
// benchmark.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tensor/backend.h"

namespace oar::cli {

// Of one kernel of a case.
struct DeviceLaunch {
  std::string kernel;     // "kv_append"
  double seconds = 0;     // of the fastest of a few, with the wait for it
  double bytes = 0;       // read and written at least; 0: nobody can tell
  double operations = 0;  // multiplications and additions
  double computed = 0;    // seconds that the device computes from sizes; 0: it cannot tell
};

struct DeviceCheck {
  std::string name;                    // "matmul bf16"
  bool missing = false;                // the device has no such kernel; the processor does it
  std::string fault;                   // what the device said where a call failed
  double error = 0;                    // largest difference to the reference
  double bound = 0;                    // what rounding of operands and sums allows
  std::vector<DeviceLaunch> launches;  // in their order: the last is what the case is for
  bool ok() const { return missing || (fault.empty() && error <= bound); }  // false for a NaN
};

// On the calling thread. `reference` is the processor's at Isa::kReference. Those whose name contains `only`.
std::vector<DeviceCheck> check_device(Backend& device, Backend& reference, std::string_view only = {});

}  // namespace oar::cli
