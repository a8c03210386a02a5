#include "engine/graph/evaluated_types.h"

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"
#include "engine/graph/run_memory.h"

namespace oar {

Result<std::vector<TensorType>> evaluated_types(const Graph& g, const OpDef& op,
                                                std::span<const ValueId> inputs, const Attrs& attrs) {
  if (op.evaluate == nullptr) return invalid_argument("it has no shape rule and no evaluation");
  // Zeros that take no memory until they are written: an op that looks at a value finds an index that there
  // is.
  RunMemory memory;
  memory.begin_sizing();
  std::vector<Datum> operands(inputs.size());
  std::vector<const Datum*> pointers(inputs.size(), nullptr);
  std::vector<uint8_t> unknown(inputs.size(), 0);
  bool any = false;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k] == kNoValue) continue;
    const Value& v = g.value(inputs[k]);
    pointers[k] = &operands[k];
    if (v.kind == ValueKind::kConstant) {
      operands[k] = v.constant;
      continue;
    }
    std::vector<int64_t> dims;
    for (const Dim& d : v.type.shape) {
      if (!v.type.known || !d.is_const())
        return invalid_argument(cat("the sizes of operand ", k, " are not known as numbers"));
      dims.push_back(d.const_value());
    }
    OAR_ASSIGN(const Shape shape, checked_shape(dims));
    if (!v.type.format.plain()) return invalid_argument(cat("operand ", k, " is stored in blocks"));
    const DType dtype = v.type.format.dtype();
    OAR_ASSIGN(const uint64_t bytes, element_bytes(shape, dtype, EvalOptions().tensor_limit));
    OAR_ASSIGN(Buffer zeros, memory.allocate(bytes));
    OAR_ASSIGN(operands[k], Tensor::make(shape, v.type.format, std::move(zeros)));
    unknown[k] = 1, any = true;
  }
  if (any && op.sizes == SizesFrom::kValues)
    return Status(StatusCode::kFailedPrecondition, "sizes depend on values");
  Node node{&op, {inputs.begin(), inputs.end()}, {0}, attrs, {}, {}};
  std::vector<Datum> results(1);
  EvalOptions options;
  options.memory = &memory;
  options.sizing = any && op.sizes != SizesFrom::kItself;
  EvalContext ctx(node, pointers, results, options, nullptr, {{}, unknown});
  OAR_RETURN_IF_ERROR(op.evaluate(ctx));
  if (!results[0].is_tensor()) return invalid_argument("its result is no tensor");
  const Tensor& y = results[0].tensor;
  TensorType type{y.format(), {}};
  for (const int64_t d : y.shape()) type.shape.emplace_back(d);
  return std::vector<TensorType>{std::move(type)};
}

}  // namespace oar
