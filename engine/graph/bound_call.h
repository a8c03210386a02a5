// A node of an ordinary model bound to kernel calls for operands of certain sizes. Bound when a run meets the
// sizes for the first time, and kept with the memory plan of that run's inputs: later runs fill argument
// structs and launch, without looking at attributes or shapes again.
#pragma once

#include <memory>
#include <vector>

#include "engine/graph/lowering.h"
#include "engine/graph/packed_weights.h"

namespace oar {

class KernelContext;
struct Datum;

// Immutable; any thread.
struct BoundCall {
  // One kernel call, planned.
  struct Launch {
    const LoweredOp* op = nullptr;
    KernelPlan plan;
    bool alone = false;            // too short to wake the pool for
    std::vector<uint8_t> in, out;  // as in LoweredCall; both empty: the node's own
  };
  std::vector<ValueInfo> operands, results;
  std::unique_ptr<const LoweredOp> op;  // null: an op without a kernel for these operands, which is evaluated
  std::vector<Launch> launches;         // of `op`, in order
  Backend* backend = nullptr;           // whose kernels they are
  std::vector<uint8_t> weights;  // by operand: the op has it from the WeightStore, and looks for none here

  bool on_device() const { return op != nullptr && backend->memory() == MemoryKind::kDevice; }

  // What it takes, roughly.
  uint64_t bytes() const;
  // Whether it was bound to such operands.
  bool fits(std::span<const Datum* const> values) const;
};
// By node of a graph; null: not bound, or an op that is always evaluated.
using BoundCalls = std::vector<std::shared_ptr<const BoundCall>>;

// Asks the op for kernel calls of the backend of `weights`. `prepared` is what its prepare() made for
// that backend.
Result<std::shared_ptr<const BoundCall>> bind_call(const Graph& graph, const Node& node,
                                                   std::span<const Datum* const> values, WeightStore& weights,
                                                   const Prepared& prepared);
// Runs it over the operands of `ctx`, whose results it allocates and sets. On a device: launches it.
Status run_call(const BoundCall& call, KernelContext& ctx);
// For by_kernels(), of operands that lower() does not take as they are: plans and runs an op over memory of
// the host. Not asked for what LoweredOp::check() looks at.
Status run_lowered(const LoweredOp& op, std::span<const Operand> in, std::span<const Operand> out,
                   const KernelContext& ctx);

// One kernel with memory of the run as scratch: `alone` on the calling thread, else on the pool. While sizing
// only memory is asked for.
Status run_on_host(const KernelContext& ctx, const Kernel& kernel, const void* args, const KernelPlan& plan,
                   bool alone);

}  // namespace oar
