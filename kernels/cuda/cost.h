// What a launch needs at least, and the time that follows for an H100. It is computed: nobody has measured
// it. The bytes and operations are held against what the traced emulated device counts
// (tests/cuda/cost_test.cc).
//
// Time: the longest of bytes of memory, bytes of L2, operations of tensor cores and of the other units. Each
// is divided by what a kernel is assumed to reach, and what blocks that do not fill the last round leave idle
// is added; a launch has a time of its own.
#pragma once

#include "kernels/cuda/held_launches.h"
#include "kernels/cuda/kernels.h"

namespace oar::cuda {

// Of an H100 SXM5: published figures (https://resources.nvidia.com/en-us-tensor-core, data sheet), and the
// share of each that a kernel is assumed to reach.
struct AssumedDevice {
  double memory = 3.35e12 * 0.9;      // bytes a second
  double l2 = 5.5e12;                 // bytes a second: assumed whole
  double tensor = 989e12 * 0.6;       // bf16 by mma.sync: the peak is that of wgmma
  double warp_groups = 989e12 * 0.8;  // bf16 by wgmma; twice that for 8 bits
  double ordinary = 67e12 * 0.5;      // f32
  double launch = 1e-6;               // seconds, within a capture
};

struct KernelCost {
  double bytes = 0;              // of memory, read and written, each once
  double l2_bytes = 0;           // that blocks read, each its own
  double tensor_operations = 0;  // multiplications and additions, those of padding too
  double operations = 0;         // the same by other units, of f32
  double seconds = 0;            // computed
  int64_t launches = 0;  // that the call adds to those before: none where it becomes part of one of these
};

// `args` is the family's struct; of its pointers only those to host arrays are followed. `context`: tokens
// that each sequence has, of attention, as the struct has them on the device. False: a family that is not
// known here. Runs nothing. `before`: the calls before this one, which it joins; null: it stands alone.
bool cost_of(const DeviceKernel& kernel, const void* args, int64_t context, KernelCost* cost,
             HeldLaunches* before = nullptr);

}  // namespace oar::cuda
