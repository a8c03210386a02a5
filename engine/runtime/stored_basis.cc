#include "engine/runtime/stored_basis.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/graph/weights.h"

namespace oar {
namespace {

// "awq" or "smoothquant" where a folder of ours was made by it, else empty.
std::string channel_method(const json::object& config) {
  const json::value* v = config.if_contains("quantization_config");
  const json::object* q = v != nullptr ? v->if_object() : nullptr;
  const auto text = [&](const char* key) -> std::string {
    const json::value* value = q != nullptr ? q->if_contains(key) : nullptr;
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
  };
  const std::string method = text("method");
  return text("quant_method") == "oar" && (method == "awq" || method == "smoothquant") ? method : "";
}

Status missing(const RotationOptions& stored, const std::string& method) {
  return unimplemented(
      cat("max_loras: the weights were rewritten when they were quantized (",
          method.empty() ? "" : cat(method, ", "), "rotations: ", rotation_names(stored),
          "), and the folder lacks what an adapter of them must go through: an older version "
          "wrote it; quantize the model again"));
}

// A kept vector, as f32.
Result<Tensor> vector_of(const std::string& name, const Tensor& kept, int64_t n) {
  if (kept.shape().rank() != 1 || kept.numel() != n)
    return data_loss(cat(name, " is ", kept.shape().to_string(), ", expected ", n, " numbers"));
  OAR_ASSIGN(Tensor f32, to_f32(kept));
  const auto values = f32.values<float>();
  if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }))
    return data_loss(cat(name, " has a number that is not finite"));
  return f32;
}

}  // namespace

bool rewritten(const Checkpoint& checkpoint, const RotationOptions& stored) {
  return stored.stored_residual || stored.stored_values || stored.stored_ffn ||
         !channel_method(checkpoint.config).empty();
}

Result<std::map<std::string, AdapterBasis>> stored_bases(const Checkpoint& checkpoint,
                                                         const ModelConfig& config,
                                                         const RotationOptions& stored, ThreadPool& pool) {
  const std::string method = channel_method(checkpoint.config);
  const auto kept = [&](const std::string& name) -> const Tensor* {
    const auto it = checkpoint.tensors.find(cat(kBasisPrefix, name));
    return it == checkpoint.tensors.end() ? nullptr : &it->second;
  };
  // The model before it was rewritten, but for the numbers of its matrices, which no step has.
  Checkpoint before = checkpoint;
  bool norms = false, channels = false;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!name.starts_with(kBasisPrefix)) continue;
    channels |= name.ends_with(kBasisChannels);
    const auto own = before.tensors.find(name.substr(kBasisPrefix.size()));
    if (own == before.tensors.end()) continue;
    OAR_RETURN_IF_ERROR(vector_of(name, tensor, own->second.numel()).status());
    own->second = tensor;
    norms = true;
  }
  // Norms of a rotated folder are ones, which nothing tells from norms that never had a weight.
  if ((stored.stored_residual && !norms) || (!method.empty() && !channels)) return missing(stored, method);
  OAR_ASSIGN(BuiltModel model, build_model(before, config, {}));
  Graph& graph = model.graph;
  RotationOptions again;
  again.residual = stored.stored_residual;
  again.values = stored.stored_values;
  again.ffn = stored.stored_ffn;
  again.seed = stored.seed;
  again.ffn_block = stored.ffn_block;
  again.ffn_exact = stored.ffn_exact;
  OAR_ASSIGN(const RotationOptions applied, rotate(graph, again));
  if (applied.residual != again.residual || applied.values != again.values || applied.ffn != again.ffn)
    return data_loss(cat("config.json: quantization_config.rotation says ", rotation_names(stored),
                         ", and of this model could be rotated: ", rotation_names(applied)));
  for (const NamedWeight& operand : basis_operands(graph)) {
    const Tensor* tensor = kept(operand.name);
    if (tensor == nullptr) return missing(stored, method);
    const int64_t n = graph.value(operand.value).type.shape[0].const_value();
    OAR_ASSIGN(Tensor numbers, vector_of(operand.name, *tensor, n));
    graph.replace_uses(operand.value, graph.add_constant(operand.name, std::move(numbers)));
  }
  std::map<std::string, AdapterBasis> out;
  const std::vector<int> producers = graph.producers();
  for (const Node& n : graph.nodes()) {
    if (!n.is("linear")) continue;
    const int maker = producers[n.inputs[0]];
    const Node* norm = maker < 0 ? nullptr : &graph.nodes()[static_cast<size_t>(maker)];
    const Tensor* scale = nullptr;
    if (!method.empty() && norm != nullptr && norm->is("rms_norm"))
      scale = kept(cat(graph.value(norm->inputs[1]).name, kBasisChannels));
    for (size_t k = 2; k < n.inputs.size(); k += 2) {
      const ValueId source = weight_source(graph, graph.nodes(), n.inputs[k]);
      if (source == kNoValue || graph.value(source).name.empty()) continue;
      OAR_ASSIGN(AdapterBasis basis, adapter_basis(graph, n.inputs[k], pool));
      if (scale != nullptr) {
        const int64_t columns = graph.value(n.inputs[k]).type.shape[1].const_value();
        OAR_ASSIGN(Tensor numbers, vector_of("channels", *scale, columns));
        basis.inputs.push_back({find_op("mul"), {std::move(numbers)}, {}});
      }
      out.insert_or_assign(graph.value(source).name, std::move(basis));
    }
  }
  return out;
}

}  // namespace oar
