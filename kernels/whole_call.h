// A kernel that calls another, whole, as one piece of one worker's work: all phases and chunks of it, with
// scratch that lies in the caller's.
#pragma once

#include "kernels/kernel.h"

namespace oar {

inline size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes that such a call takes, from a multiple of 64 on.
inline size_t whole_call_scratch(const Kernel& kernel, const void* args) {
  KernelPlan plan;
  kernel.plan(args, 1, &plan);
  return whole_lines(plan.worker_scratch) + whole_lines(plan.shared_scratch);
}

inline void whole_call(const Kernel& kernel, const void* args, void* scratch) {
  KernelPlan plan;
  kernel.plan(args, 1, &plan);
  const KernelScratch own{scratch, static_cast<char*>(scratch) + whole_lines(plan.worker_scratch)};
  for (int phase = 0; phase < plan.phases; ++phase) kernel.run(args, phase, 0, plan.chunks[phase], own);
}

}  // namespace oar
