// Ops of a plan that no kernel of its backend does. On the CPU itself they are evaluated; on a device the CPU
// does them beside it: operands are copied over, the CPU kernel (or the evaluation) runs, results are copied
// back. Right and slow; Plan warns with the cost.
#pragma once

#include <memory>
#include <vector>

#include "engine/graph/lowering.h"

namespace oar {

// The node by its evaluation, or its definition in double, on operands in host memory, by threads of
// `host`. `node` must outlive it.
std::unique_ptr<LoweredOp> make_host_op(const Node& node, Backend& host);

// How an operand reaches the CPU.
enum class HostOperand : uint8_t {
  kAbsent,
  kCopied,  // lies on the device
  kHost,    // lies in host memory already: constants, and states all of whose ops run there
};

// `inner` (for operands in host memory) as an op of `device`. One entry per input and output.
std::unique_ptr<LoweredOp> make_copied_op(Backend& device, std::unique_ptr<const LoweredOp> inner,
                                          std::vector<HostOperand> in, std::vector<HostOperand> out);

}  // namespace oar
