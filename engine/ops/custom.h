// Ops of whoever embeds Oar: a model file may hold ops that nobody here knows, and its owner brings the code.
// A custom op is one of the ordinary models' ops (graph/evaluate.h). It runs on the processor; beside a
// device its operands are copied to it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/graph/lowering.h"
#include "engine/graph/op.h"
#include "engine/tensor/tensor.h"

namespace oar {

struct CustomOp {
  std::string name;    // the op's type in the file
  std::string domain;  // ONNX: as the file has it, empty for ai.onnx; Paddle: "paddle"
  // Says formats and shapes of the results, all of them, from those of the operands (`given` false: left
  // out). Looks at no values, and may be asked more often than the op runs.
  std::function<Status(const Attrs&, std::span<const ValueInfo> operands, std::span<ValueInfo> results)>
      shape;
  // Computes: operands left out are not defined(), results have memory of 64-byte alignment. Any thread,
  // several at once; bytes of operands must not change.
  std::function<Status(const Attrs&, std::span<const Tensor> operands, std::span<Tensor> results)> compute;
};

// For models imported from now on, as long as the process lives, and before an op of the same name and domain
// that Oar has. ALREADY_EXISTS for the same name and domain twice; INVALID_ARGUMENT names what is missing.
// Any thread.
Status register_custom_op(CustomOp op);
// Null: none was registered. `name` of the definition is "custom.DOMAIN.NAME".
const OpDef* find_custom_op(std::string_view domain, std::string_view name);
const OpDef* find_custom_op(std::string_view definition);

}  // namespace oar
