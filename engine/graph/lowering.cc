#include "engine/graph/lowering.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/weights.h"
#include "engine/tensor/plugin.h"

namespace oar {

Result<void*> HostScratch::reserve(size_t index, uint64_t bytes) {
  if (buffers.size() <= index) buffers.resize(index + 1);
  Buffer& b = buffers[index];
  if (b.size() < bytes) { OAR_ASSIGN(b, Buffer::allocate(bytes)); }
  return bytes > 0 ? b.mutable_data() : nullptr;
}

KernelKey rope_key(const Backend& backend) {
  KernelKey key{KernelFamily::kRope};
  if (backend.memory() == MemoryKind::kHost) return key;
  key.layout = static_cast<ImageLayout>(OAR_LAYOUT_HEADS_APART);
  if (backend.find_kernel(key) == nullptr) key.layout = ImageLayout::kFamily;
  return key;
}
MemoryRules memory_rules(const Backend& backend) {
  const bool device = backend.memory() != MemoryKind::kHost;
  const KernelKey rope = rope_key(backend);
  return {device, (!device || rope.layout != ImageLayout::kFamily) && backend.find_kernel(rope) != nullptr};
}

Known LowerContext::known(size_t input) const {
  if (in_run()) return input < operands.size() ? Known(operands[input]) : Known();
  if (input >= node.inputs.size() || node.inputs[input] == kNoValue) return {};
  return Known(graph.value(node.inputs[input]).type);
}

bool LowerContext::is_weight(size_t input) const {
  if (input >= node.inputs.size() || node.inputs[input] == kNoValue) return false;
  const ValueId v = node.inputs[input];
  if (graph.value(v).kind == ValueKind::kConstant) return true;
  return std::any_of(expressions.begin(), expressions.end(),
                     [&](const Node& n) { return n.outputs[0] == v; });
}

Format LowerContext::weight_format(size_t input) const {
  return oar::weight_format(graph, expressions, node.inputs[input]);
}

Shape LowerContext::weight_shape(size_t input) const {
  const Value& v = graph.value(node.inputs[input]);
  if (v.kind == ValueKind::kConstant) return v.constant.shape();
  std::vector<int64_t> dims;
  for (const Dim& d : v.type.shape) dims.push_back(d.const_value());
  return Shape(std::span<const int64_t>(dims));
}

Result<Tensor> LowerContext::evaluate(size_t input) const {
  return evaluate_weight(graph, expressions, node.inputs[input], backend.host_pool());
}

Result<const StoredWeight*> LowerContext::weight(
    size_t input, std::string_view layout,
    const std::function<Result<StoredWeight>(const Tensor&)>& make) const {
  static const StoredWeight kNone;
  taken.push_back(input);
  if (probe) return &kNone;
  return weights.get(cat(weight_key(graph, node.inputs[input]), " ", layout), [&]() -> Result<StoredWeight> {
    OAR_ASSIGN(const Tensor tensor, evaluate(input));
    return make(tensor);
  });
}

Result<const float*> LowerContext::f32_constant(size_t input) const {
  if (input >= node.inputs.size() || node.inputs[input] == kNoValue)
    return static_cast<const float*>(nullptr);
  if (graph.value(node.inputs[input]).kind != ValueKind::kConstant)
    return invalid_argument(cat(node.op->name, ": operand ", input, " is not a constant"));
  OAR_ASSIGN(const StoredWeight* stored, weight(input, "f32", [&](const Tensor& t) -> Result<StoredWeight> {
               if (t.format() == Format::f32()) return weights.place(t, false);
               OAR_ASSIGN(const Tensor f32, to_f32(t));
               return weights.place(f32, true);
             }));
  return static_cast<const float*>(stored->data());
}

bool LowerContext::is_f32_operand(size_t input) const {
  const Known operand = known(input);
  if (!operand.given() || operand.f32()) return true;
  const Format& format = operand.format();
  return graph.value(node.inputs[input]).kind == ValueKind::kConstant &&
         (!format.plain() || dtype_is_float(format.dtype()));
}

Result<const float*> LowerContext::f32_operand(size_t input) const {
  const bool computed = known(input).given() && graph.value(node.inputs[input]).kind != ValueKind::kConstant;
  return computed ? static_cast<const float*>(nullptr) : f32_constant(input);
}

}  // namespace oar
