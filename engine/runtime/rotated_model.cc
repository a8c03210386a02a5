#include "engine/runtime/rotated_model.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/weights.h"
#include "engine/runtime/stored_basis.h"

namespace oar {
namespace {

// Whether the graph reads a stored matrix transposed (GPT-2 in the Hugging Face layout).
bool reads_transposed(const Graph& graph, ValueId value) {
  const std::vector<int> producers = graph.producers();
  bool transposed = false;
  while (producers[value] >= 0) {
    const Node& node = graph.nodes()[static_cast<size_t>(producers[value])];
    if (node.inputs.empty() || node.inputs[0] == kNoValue) break;
    transposed ^= node.is("transpose");
    value = node.inputs[0];
  }
  return transposed;
}

// Whether the graph makes it of a stack of all experts' floats: its name is none of the checkpoint's.
bool made_of_stack(const Graph& graph, const NamedWeight& weight) {
  if (graph.value(weight.value).kind == ValueKind::kConstant || weight.name.empty()) return false;
  const auto format = source_format(graph, graph.nodes(), weight.value);
  return format && format->plain() && dtype_is_float(format->dtype());
}

}  // namespace

Status RotatedModel::take_apart(const NamedWeight& weight) {
  const Value& source = graph_.value(weight_source(graph_, graph_.nodes(), weight.value));
  std::vector<int64_t> dims;
  for (const Dim& d : graph_.value(weight.value).type.shape) dims.push_back(d.const_value());
  const Shape shape{std::span<const int64_t>(dims)};
  const Tensor& stack = source.constant;
  auto own = Tensor::make(shape, stack.format(), stack.buffer());
  if (!own.ok()) own = Tensor::zeros(shape, stack.format());  // of several parts
  OAR_RETURN_IF_ERROR(own.status());
  const auto* at = static_cast<const std::byte*>(stack.data());
  std::erase_if(layout_.tensors, [&](const auto& named) {
    const auto* begin = static_cast<const std::byte*>(named.second.data());
    return named.second.shape().rank() >= stack.shape().rank() && begin <= at &&
           at < begin + named.second.bytes() && named.first.find(".experts.") != std::string::npos &&
           !named.first.ends_with(".weight");
  });
  layout_.tensors.insert_or_assign(weight.name, std::move(*own));
  values_.emplace(weight.name, weight.value);
  return ok_status();
}

Result<RotatedModel> RotatedModel::make(const Checkpoint& checkpoint, const ModelConfig& config,
                                        const RotationOptions& wanted) {
  RotatedModel out;
  OAR_ASSIGN(BuiltModel model, build_model(checkpoint, config, {}));
  out.graph_ = std::move(model.graph);
  const auto left_out = std::make_shared<std::vector<LeftOut>>();
  OAR_ASSIGN(const RotationOptions applied, rotate(out.graph_, wanted, left_out));
  out.left_out_ = *left_out;
  const Architecture* architecture = find_architecture(config.model_type);
  out.layout_ = checkpoint;
  for (const NamedWeight& weight : named_weights(out.graph_)) {
    const bool head = weight.name == architecture->head && !checkpoint.tensors.contains(weight.name);
    if (!head && !checkpoint.tensors.contains(weight.name)) {  // else tables no checkpoint has
      if (made_of_stack(out.graph_, weight)) OAR_RETURN_IF_ERROR(out.take_apart(weight));
      continue;
    }
    if (head) {
      out.layout_.config["tie_word_embeddings"] = false;
      out.layout_.tensors.insert_or_assign(weight.name, checkpoint.tensors.at(architecture->embedding));
    }
    // Expressions end as the graph reads them: such a model is written with its matrices (out, in).
    if (reads_transposed(out.graph_, weight.value)) {
      Tensor& t = out.layout_.tensors.at(weight.name);
      OAR_ASSIGN(t, Tensor::make({t.shape()[1], t.shape()[0]}, t.format(), t.buffer()));
      out.layout_.config["linear_out_in"] = true;
    }
    // An expression, or a constant that a pass put in the tensor's place (a norm's ones).
    const Value& value = out.graph_.value(weight.value);
    const bool same = value.kind == ValueKind::kConstant &&
                      value.constant.data() == out.layout_.tensors.at(weight.name).data();
    if (!same) out.values_.emplace(weight.name, weight.value);
  }
  for (const NamedWeight& operand : basis_operands(out.graph_)) {
    if (operand.name.empty()) continue;  // made of others: adapters are refused
    const std::string name = cat(kBasisPrefix, operand.name);
    const Value& value = out.graph_.value(operand.value);
    Tensor kept = value.constant;
    if (value.kind != ValueKind::kConstant) {
      OAR_ASSIGN(kept, Tensor::allocate({value.type.shape[0].const_value()}, Format::f32()));
      out.values_.emplace(name, operand.value);
    }
    out.layout_.tensors.insert_or_assign(name, std::move(kept));
  }
  if (wanted.any()) { out.layout_.config["quantization_config"] = {{"rotation", rotation_record(applied)}}; }
  return out;
}

Result<Tensor> RotatedModel::tensor(const std::string& name, ThreadPool& pool) const {
  const auto it = values_.find(name);
  const Tensor& stored = layout_.tensors.at(name);
  if (it == values_.end()) return stored;
  OAR_ASSIGN(Tensor t, evaluate_weight(graph_, it->second, pool));
  if (!(t.format() == Format::f32())) { OAR_ASSIGN(t, to_f32(t)); }
  return t.reshape(stored.shape());  // a row of numbers may be a vector in the graph
}

Result<bool> stores_transposed(const Checkpoint& checkpoint, const ModelConfig& config) {
  OAR_ASSIGN(const BuiltModel model, build_model(checkpoint, config, {}));
  const auto weights = named_weights(model.graph);
  return std::any_of(weights.begin(), weights.end(), [&](const NamedWeight& weight) {
    const auto it = checkpoint.tensors.find(weight.name);
    if (it == checkpoint.tensors.end()) return made_of_stack(model.graph, weight);
    return it->second.format().plain() && reads_transposed(model.graph, weight.value);
  });
}

bool rotates_weights(const Checkpoint& checkpoint, const RotationOptions& wanted) {
  if (!wanted.residual && !wanted.ffn && (!wanted.values || wanted.values_online)) return false;
  const auto stored = stored_rotation(checkpoint.config);
  if (!stored.ok() || stored->any() || stored->stored_residual || stored->stored_values) return false;
  return std::all_of(checkpoint.tensors.begin(), checkpoint.tensors.end(), [](const auto& named) {
    return named.second.shape().rank() < 2 || named.second.format().plain();
  });
}

}  // namespace oar
