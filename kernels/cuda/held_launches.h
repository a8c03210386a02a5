// Launches that follow one another and can be one. Oar gives a device one kernel after the other; those that
// a launch to come may take along are held back until it is known. Whoever looks at the device's memory, or
// orders anything else, has release() called before.
//
// Held are rotations and Hadamard transforms. An append of what they made, over whole heads and in memory of
// its own, does all of it (heads.h). Whatever else comes finds them launched, in their order.
#pragma once

#include <variant>

#include "kernels/cuda/kernels.h"
#include "kernels/hadamard.h"
#include "kernels/rope.h"

namespace oar::cuda {

class HeldLaunches {
 public:
  static constexpr int kMost = 5;  // queries and keys rotated and transformed, values transformed

  // Puts a launch behind those before, now or later. An error may be that of an earlier one.
  CudaStatus launch(const DeviceKernel& kernel, const void* args, void* scratch, Stream stream);
  CudaStatus release();

 private:
  struct Held {
    const DeviceKernel* kernel;
    std::variant<RopeArgs, HadamardArgs> args;
    void* scratch;
  };
  Held held_[kMost];
  int count_ = 0;
  Stream stream_ = nullptr;
};

}  // namespace oar::cuda
