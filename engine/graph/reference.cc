#include "engine/graph/reference.h"

#include <cmath>

#include "engine/base/format.h"
#include "engine/graph/builder.h"
#include "engine/graph/evaluate.h"

namespace oar {
namespace {

template <class T>
void load_ints(const Tensor& t, std::vector<int64_t>& out) {
  const auto* p = static_cast<const T*>(t.data());
  out.assign(p, p + t.numel());
}

template <class T>
void store_ints(const std::vector<int64_t>& in, void* out) {
  auto* p = static_cast<T*>(out);
  for (size_t k = 0; k < in.size(); ++k) p[k] = static_cast<T>(in[k]);
}

void round_to_dtype(HostValue& v) {
  if (v.dtype == DType::kBF16) {
    for (double& x : v.f) x = to_f32(to_bf16(static_cast<float>(x)));
  } else if (v.dtype == DType::kF16) {
    for (double& x : v.f) x = to_f32(to_f16(static_cast<float>(x)));
  }
}

TensorType type_of(const HostValue& v) {
  TensorType t{Format::of(v.dtype), {}};
  for (int64_t d : v.shape) t.shape.emplace_back(d);
  return t;
}

// The types of the results where the op has a rule for them, else none. It reads integers (sizes), which are
// few; all else it knows by type.
Result<std::vector<TensorType>> types_of(const OpDef& op, std::span<const HostValue* const> inputs,
                                         const Attrs& attrs) {
  if (op.infer == nullptr) return std::vector<TensorType>{};
  Graph g;
  std::vector<ValueId> ids;
  for (const HostValue* v : inputs) {
    ids.push_back(kNoValue);
    if (v == nullptr) continue;
    if (v->is_float()) {
      ids.back() = g.add_input("", type_of(*v));
    } else {
      OAR_ASSIGN(Tensor t, to_tensor(*v));
      ids.back() = g.add_constant("", std::move(t));
    }
  }
  return op.infer(g, ids, attrs);
}

// evaluate() over floats as f64 and integers as they are. Results have the formats that types say, f32 where
// there is no rule.
Result<std::vector<HostValue>> evaluate_wide(const OpDef& op, std::span<const HostValue* const> inputs,
                                             const Attrs& attrs) {
  OAR_ASSIGN(const std::vector<TensorType> types, types_of(op, inputs, attrs));
  const size_t results = std::max<size_t>(types.size(), 1);
  std::vector<Datum> operands(inputs.size());
  std::vector<const Datum*> pointers(inputs.size(), nullptr);
  Node node{&op, {}, std::vector<ValueId>(results, 0), attrs, {}, {}};
  // f32 is held in double here, that of a cast too: rounding it would end the precision of all behind it.
  if (node.is("cast") && attrs.get_string("to") == "f32") node.attrs.set("to", std::string("f64"));
  for (size_t k = 0; k < inputs.size(); ++k) {
    node.inputs.push_back(inputs[k] != nullptr ? static_cast<ValueId>(k) : kNoValue);
    if (inputs[k] == nullptr) continue;
    HostValue wide = *inputs[k];
    if (wide.is_float()) wide.dtype = DType::kF64;
    OAR_ASSIGN(operands[k], to_tensor(wide));
    pointers[k] = &operands[k];
  }
  OAR_ASSIGN(const auto data, evaluate_op(node, pointers, {}));
  std::vector<HostValue> out(results);
  for (size_t k = 0; k < results; ++k) {
    if (!data[k].is_tensor()) return unimplemented(cat(op.name, " has a result that is no tensor"));
    OAR_ASSIGN(out[k], host_value(data[k].tensor));
    if (!out[k].is_float()) continue;
    out[k].dtype = types.empty() ? DType::kF32 : types[k].format.dtype();
    round_to_dtype(out[k]);
  }
  return out;
}

}  // namespace

Result<HostValue> host_value(const Tensor& t) {
  HostValue v;
  v.shape = t.shape();
  v.dtype = t.format().plain() ? t.format().dtype() : DType::kF32;
  switch (v.dtype) {
    case DType::kI8: load_ints<int8_t>(t, v.i); break;
    case DType::kU8:
    case DType::kBool: load_ints<uint8_t>(t, v.i); break;
    case DType::kI16: load_ints<int16_t>(t, v.i); break;
    case DType::kU16: load_ints<uint16_t>(t, v.i); break;
    case DType::kI32: load_ints<int32_t>(t, v.i); break;
    case DType::kU32: load_ints<uint32_t>(t, v.i); break;
    case DType::kI64:
    case DType::kU64: load_ints<int64_t>(t, v.i); break;
    case DType::kF64: {
      const auto* p = static_cast<const double*>(t.data());
      v.f.assign(p, p + t.numel());
      break;
    }
    default: {
      OAR_ASSIGN(const Tensor f32, to_f32(t));
      const auto values = f32.values<float>();
      v.f.assign(values.begin(), values.end());
      if (!v.is_float()) v.dtype = DType::kF32;
    }
  }
  return v;
}

Result<Tensor> to_tensor(const HostValue& v) {
  OAR_ASSIGN(Tensor t, Tensor::allocate(v.shape, Format::of(v.dtype)));
  void* out = t.mutable_data();
  switch (v.dtype) {
    case DType::kI8: store_ints<int8_t>(v.i, out); break;
    case DType::kU8:
    case DType::kBool: store_ints<uint8_t>(v.i, out); break;
    case DType::kI16: store_ints<int16_t>(v.i, out); break;
    case DType::kU16: store_ints<uint16_t>(v.i, out); break;
    case DType::kI32: store_ints<int32_t>(v.i, out); break;
    case DType::kU32: store_ints<uint32_t>(v.i, out); break;
    case DType::kI64:
    case DType::kU64: store_ints<int64_t>(v.i, out); break;
    case DType::kF64: std::copy(v.f.begin(), v.f.end(), static_cast<double*>(out)); break;
    case DType::kF32:
      for (size_t k = 0; k < v.f.size(); ++k) static_cast<float*>(out)[k] = static_cast<float>(v.f[k]);
      break;
    case DType::kBF16:
      for (size_t k = 0; k < v.f.size(); ++k)
        static_cast<bf16*>(out)[k] = to_bf16(static_cast<float>(v.f[k]));
      break;
    case DType::kF16:
      for (size_t k = 0; k < v.f.size(); ++k) static_cast<f16*>(out)[k] = to_f16(static_cast<float>(v.f[k]));
      break;
    default: return unimplemented(cat("no host storage for dtype ", dtype_name(v.dtype)));
  }
  return t;
}

Result<std::vector<HostValue>> evaluate_node(const OpDef& op, std::span<const HostValue* const> inputs,
                                             const Attrs& attrs) {
  if (op.define == nullptr) {
    if (op.evaluate == nullptr) return unimplemented(cat(op.name, " has no evaluation"));
    return evaluate_wide(op, inputs, attrs);
  }
  // The op alone in a graph of concrete shapes, so that its definition has them too.
  Graph g;
  std::vector<Val> vals;
  std::map<std::string, HostValue> named;
  for (size_t k = 0; k < inputs.size(); ++k) {
    vals.emplace_back();
    if (inputs[k] == nullptr) continue;
    const std::string name = cat("in", k);
    // Inputs, not constants: a definition must not depend on values.
    vals.back() = {g.add_input(name, type_of(*inputs[k]))};
    named.emplace(name, *inputs[k]);
  }
  Builder b(g);
  const std::vector<Val> outputs = op.define(b, vals, attrs);
  OAR_RETURN_IF_ERROR(b.status());
  for (size_t k = 0; k < outputs.size(); ++k) g.add_output(cat("out", k), outputs[k].id);
  OAR_ASSIGN(auto results, evaluate_reference(g, named));
  std::vector<HostValue> out;
  for (size_t k = 0; k < outputs.size(); ++k) out.push_back(std::move(results.at(cat("out", k))));
  return out;
}

Result<std::map<std::string, HostValue>> evaluate_reference(const Graph& graph,
                                                            const std::map<std::string, HostValue>& inputs) {
  std::vector<HostValue> values(graph.num_values());
  std::vector<bool> known(graph.num_values(), false);
  for (ValueId id : graph.inputs()) {
    auto it = inputs.find(graph.value(id).name);
    if (it == inputs.end()) continue;  // an unused input may be left out
    values[id] = it->second;
    known[id] = true;
  }
  for (const Node& node : graph.nodes()) {
    std::vector<const HostValue*> operands;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) {
        operands.push_back(nullptr);
        continue;
      }
      if (!known[v]) {
        const Value& value = graph.value(v);
        if (value.kind != ValueKind::kConstant)
          return invalid_argument(cat("graph input '", value.name, "' is missing"));
        OAR_ASSIGN(values[v], host_value(value.constant));
        known[v] = true;
      }
      operands.push_back(&values[v]);
    }
    OAR_ASSIGN(auto results, evaluate_node(*node.op, operands, node.attrs));
    for (size_t k = 0; k < results.size() && k < node.outputs.size(); ++k) {  // some may be left out
      values[node.outputs[k]] = std::move(results[k]);
      known[node.outputs[k]] = true;
    }
  }
  std::map<std::string, HostValue> out;
  for (const auto& o : graph.outputs()) {
    if (!known[o.value]) { OAR_ASSIGN(values[o.value], host_value(graph.value(o.value).constant)); }
    out[o.name] = values[o.value];
  }
  return out;
}

}  // namespace oar
