#include "engine/import/import.h"

#include <cstring>
#include <limits>

#include "engine/import/onnx.h"
#include "engine/import/paddle.h"
#include "engine/tensor/mapped_file.h"

namespace oar {

std::string IoSpec::to_string() const {
  std::string s = name + ": ";
  if (kind == Kind::kSequence) s += "sequence of ";
  if (kind == Kind::kOptional) s += "optional ";
  s += typed ? dtype_name(dtype) : "any";
  if (!ranked) return s + "[...]";
  s += "[";
  for (size_t k = 0; k < dims.size(); ++k) {
    s += k ? ", " : "";
    const IoDim& d = dims[k];
    s += d.value >= 0 ? cat(d.value) : d.usual >= 0 ? cat("~", d.usual) : d.name.empty() ? "?" : d.name;
  }
  return s + "]";
}

Val OpWriter::op(std::string_view name, std::vector<Val> inputs, Attrs attrs) {
  auto r = ops(name, std::move(inputs), 1, std::move(attrs));
  return r.empty() ? Val{} : r[0];
}

Val OpWriter::op(std::string_view name, std::initializer_list<Val> inputs) {
  return op(name, inputs, Attrs());
}
Val OpWriter::op(std::string_view name, std::initializer_list<Val> inputs, const Attrs& attrs) {
  return op(name, std::vector<Val>(inputs), attrs);
}

std::vector<Val> OpWriter::ops(std::string_view name, std::vector<Val> inputs, size_t outputs, Attrs attrs,
                               std::vector<std::shared_ptr<const Graph>> subgraphs) {
  if (!status_.ok()) return std::vector<Val>(outputs);
  const OpDef* def = find_op(name);
  if (!def || !def->evaluate) {
    fail(internal_error(cat("there is no graph op '", name, "' that can be evaluated")));
    return std::vector<Val>(outputs);
  }
  std::vector<ValueId> ids;
  for (Val v : inputs) ids.push_back(v.id);
  std::vector<Val> out;
  for (ValueId id :
       graph_.append(def, std::move(ids), outputs, std::move(attrs), std::move(subgraphs), name_)) {
    out.push_back({id});
  }
  return out;
}

Val OpWriter::ints(const std::vector<int64_t>& values) {
  Tensor t = must(allocate_elements({static_cast<int64_t>(values.size())}, DType::kI64));
  if (!values.empty()) std::memcpy(t.mutable_data(), values.data(), values.size() * sizeof(int64_t));
  return constant(std::move(t));
}

Val OpWriter::int_scalar(int64_t value) {
  Tensor t = must(allocate_elements({}, DType::kI64));
  *mutable_elements<int64_t>(t) = value;
  return constant(std::move(t));
}

Val OpWriter::float_scalar(double value, DType dtype) {
  Tensor t = must(allocate_elements({}, dtype));
  dispatch_number(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    *mutable_elements<T>(t) = Element<T>::store(static_cast<typename Element<T>::Compute>(value));
  });
  return constant(std::move(t));
}

std::vector<Val> write_loop(OpWriter& w, Val trips, Val condition, const std::vector<Val>& states,
                            const std::vector<Val>& captured, const std::shared_ptr<Graph>& body,
                            size_t outputs) {
  constexpr size_t kTrip = 2;  // inputs in front of the states; outputs have the condition alone
  const std::vector<ValueId> given = body->inputs();
  const std::vector<Graph::Output> made = body->outputs();
  std::vector<ValueId> inputs(given.begin(), given.begin() + kTrip), kept;
  std::vector<Graph::Output> results{made[0]};
  std::vector<Val> in{trips, condition}, around, out(outputs);
  std::vector<size_t> places;  // of the loop's results among all
  for (size_t k = 0; k < states.size(); ++k) {
    const ValueId inside = given[kTrip + k];
    if (made[1 + k].value != inside) {
      inputs.push_back(inside);
      in.push_back(states[k]);
      results.push_back(made[1 + k]);
      places.push_back(k);
      continue;
    }
    out[k] = states[k];
    if (const Tensor* known = w.constant_of(states[k])) {
      body->become_constant(inside, *known);
    } else {
      kept.push_back(inside);
      around.push_back(states[k]);
    }
  }
  const auto carried = static_cast<int64_t>(places.size());
  inputs.insert(inputs.end(), kept.begin(), kept.end());
  inputs.insert(inputs.end(), given.begin() + static_cast<std::ptrdiff_t>(kTrip + states.size()),
                given.end());
  in.insert(in.end(), around.begin(), around.end());
  in.insert(in.end(), captured.begin(), captured.end());
  for (size_t k = states.size(); k < outputs; ++k) {
    results.push_back(made[1 + k]);
    places.push_back(k);
  }
  body->set_inputs(std::move(inputs));
  body->set_outputs(std::move(results));
  const std::vector<Val> all = w.ops("loop", std::move(in), places.size(), {{"states", carried}}, {body});
  for (size_t k = 0; k < places.size(); ++k) out[places[k]] = all[k];
  return out;
}

ValueId add_graph_input(Graph& graph, const IoSpec& spec) {
  TensorType type = TensorType::unknown();
  if (spec.kind == IoSpec::Kind::kTensor && spec.typed && spec.ranked) {
    type = {element_format(spec.dtype), {}};
    for (size_t k = 0; k < spec.dims.size(); ++k) {
      const IoDim& d = spec.dims[k];
      if (d.value >= 0) {
        type.shape.emplace_back(d.value);
        continue;
      }
      const std::string name = d.name.empty() ? cat(spec.name, ".", k) : d.name;
      SymbolId id = -1;
      for (size_t s = 0; s < graph.symbols().size(); ++s) {
        if (graph.symbols()[s].name == name) id = static_cast<SymbolId>(s);
      }
      if (id < 0) id = graph.add_symbol(name, std::numeric_limits<int32_t>::max());
      type.shape.push_back(graph.dim(id));
    }
  }
  return graph.add_input(spec.name, std::move(type));
}

Result<Tensor> tensor_from_bytes(const Shape& shape, DType dtype, Buffer buffer, DeferredCopies* later) {
  const Format format = element_format(dtype);
  OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, format));
  if (static_cast<uint64_t>(bytes) != buffer.size()) {
    return data_loss(cat("a tensor ", shape.to_string(), " of ", format.name(), " takes ", bytes,
                         " bytes; the file has ", buffer.size()));
  }
  const auto address = reinterpret_cast<uintptr_t>(buffer.data());
  if (dtype != DType::kBool && address % static_cast<uintptr_t>(format.info().alignment) == 0) {
    return Tensor::make(shape, format, std::move(buffer));
  }
  OAR_ASSIGN(Tensor t, Tensor::allocate(shape, format));
  if (later && dtype != DType::kBool) {
    later->add(t.mutable_data(), buffer);
    return t;
  }
  if (bytes > 0) std::memcpy(t.mutable_data(), buffer.data(), static_cast<size_t>(bytes));
  if (dtype == DType::kBool) {  // a file may hold any byte; evaluation relies on 0 and 1
    for (int64_t k = 0; k < bytes; ++k) mutable_elements<uint8_t>(t)[k] = elements<uint8_t>(t)[k] != 0;
  }
  return t;
}

Result<ImportedModel> import_model(const std::string& path, const ImportOptions& options) {
  if (path.ends_with(".onnx") && !options.parameters.empty()) {
    return invalid_argument(
        cat("params: ", path, " is an ONNX model, whose parameters are in it or named by it; ",
            options.parameters, " is of no use"),
        "params");
  }
  if (is_paddle_path(path) || !options.parameters.empty()) return import_paddle(path, options);
  if (is_folder(path) || path.ends_with(".gguf") || path.ends_with(".safetensors"))
    return invalid_argument(cat(
        path, " is no .onnx, .pdmodel or PIR .json file; language models and encoders run by `oar serve`"));
  return import_onnx(path, options);
}

Result<ImportedModel> import_model_bytes(Buffer model, Buffer parameters, const std::string& name,
                                         const ImportOptions& options) {
  const std::string_view text(static_cast<const char*>(model.data()), model.size());
  if (parameters.size() == 0 && !paddle::is_program(text)) return import_onnx_bytes(model, name, "", options);
  paddle::Model opened;
  OAR_ASSIGN(opened.program, paddle::parse_program(text, name));
  OAR_ASSIGN(opened.parameters,
             paddle::read_parameters(opened.program, parameters, cat(name, ": params"), options.threads));
  return import_paddle_model(opened);
}

}  // namespace oar
