#include "engine/export/onnx_writer.h"

#include <algorithm>

#include "engine/import/onnx.h"
#include "engine/tensor/element.h"

namespace oar::onnx {
namespace {

// AttributeProto.AttributeType
constexpr int kFloat = 1, kInt = 2, kString = 3, kTensor = 4, kGraph = 5, kFloats = 6, kInts = 7,
              kStrings = 8;

ProtoWriter attribute(std::string_view name, int type) {
  ProtoWriter a;
  a.text(1, name).number(20, type);
  return a;
}

// Constants below this stay in the file whatever the others weigh.
constexpr uint64_t kSmall = 1024;

template <class T>
std::vector<T> list_of(const AttrValue& v) {
  if (const auto* list = std::get_if<std::vector<T>>(&v)) return *list;
  if (const auto* one = std::get_if<T>(&v)) return {*one};
  return {};
}

// False: the value has another type than `spec` wants.
bool typed_attribute(std::string_view name, char spec, const AttrValue& v, std::vector<ProtoWriter>& out) {
  const auto* i = std::get_if<int64_t>(&v);
  const auto* f = std::get_if<double>(&v);
  const auto* s = std::get_if<std::string>(&v);
  switch (spec) {
    case 'i':
      if (i) out.push_back(int_attribute(name, *i));
      return i != nullptr;
    case 'f':
      if (i || f) out.push_back(float_attribute(name, f ? *f : static_cast<double>(*i)));
      return i || f;
    case 's':
      if (s) out.push_back(string_attribute(name, *s));
      return s != nullptr;
    case 'I':
      if (!std::holds_alternative<std::vector<int64_t>>(v)) return false;
      out.push_back(ints_attribute(name, std::get<std::vector<int64_t>>(v)));
      return true;
    case 'F': {
      std::vector<double> list = list_of<double>(v);
      for (const int64_t n : list_of<int64_t>(v)) list.push_back(static_cast<double>(n));
      ProtoWriter a = attribute(name, kFloats);
      for (const double x : list) a.fixed32(7, static_cast<float>(x));
      out.push_back(std::move(a));
      return true;
    }
    case 'S': {
      ProtoWriter a = attribute(name, kStrings);
      for (const std::string& x : list_of<std::string>(v)) a.text(9, x);
      out.push_back(std::move(a));
      return true;
    }
    default: return false;
  }
}

}  // namespace

ProtoWriter int_attribute(std::string_view name, int64_t v) { return attribute(name, kInt).number(3, v); }
ProtoWriter float_attribute(std::string_view name, double v) {
  return attribute(name, kFloat).fixed32(2, static_cast<float>(v));
}
ProtoWriter string_attribute(std::string_view name, std::string_view v) {
  return attribute(name, kString).text(4, v);
}
ProtoWriter ints_attribute(std::string_view name, std::span<const int64_t> v) {
  ProtoWriter a = attribute(name, kInts);
  for (const int64_t i : v) a.number(8, i);
  return a;
}
ProtoWriter graph_attribute(std::string_view name, const ProtoWriter& graph) {
  return attribute(name, kGraph).message(6, graph);
}
ProtoWriter tensor_attribute(std::string_view name, const std::string& tensor) {
  return attribute(name, kTensor).text(5, tensor);
}

Result<ProtoWriter> value_info(const IoSpec& io) {
  ProtoWriter tensor;
  if (io.typed) {
    const int type = onnx_type_of(io.dtype);
    if (type == 0)
      return unimplemented(
          cat("'", io.name, "' is of ", dtype_name(io.dtype), ", which ONNX cannot express"));
    tensor.number(1, type);
  }
  if (io.ranked) {
    ProtoWriter shape;
    for (const IoDim& d : io.dims) {
      ProtoWriter dim;
      if (d.declared() >= 0) dim.number(1, d.declared());  // what is only usual cannot be said
      else if (!d.name.empty()) dim.text(2, d.name);
      shape.message(1, dim);
    }
    tensor.message(2, shape);
  }
  ProtoWriter type;
  type.message(1, tensor);
  if (io.kind == IoSpec::Kind::kSequence) type = ProtoWriter().message(4, ProtoWriter().message(1, type));
  if (io.kind == IoSpec::Kind::kOptional) type = ProtoWriter().message(9, ProtoWriter().message(1, type));
  return std::move(ProtoWriter().text(1, io.name).message(2, type));
}

std::string FileWriter::unique_in(std::set<std::string, std::less<>>& names, std::string_view wanted) {
  if (wanted.empty()) wanted = "v";
  std::string name(wanted);
  for (int n = 2; !names.insert(name).second; ++n) name = cat(wanted, "_", n);
  return name;
}

// ---- GraphWriter ----

Result<std::string> GraphWriter::add_constant(const Tensor& t, std::string_view wanted) {
  if (const auto it = file_.outer.find(t.data()); !main_ && it != file_.outer.end() && t.bytes() >= kSmall)
    return it->second;
  std::string name = file_.unique(wanted.empty() ? "c" : wanted);
  if (file_.inline_bytes == 0 && t.bytes() >= kSmall && t.format().dtype() != DType::kString &&
      dtype_bits(t.format().dtype()) >= 8) {
    // TensorProto with external data; offsets as the file can be mapped.
    constexpr size_t kAlign = 64;
    file_.data.resize((file_.data.size() + kAlign - 1) / kAlign * kAlign);
    ProtoWriter m;
    for (const int64_t d : t.shape()) m.number(1, d);
    m.number(2, onnx_type_of(t.format().dtype())).text(8, name).number(14, 1);
    const std::pair<const char*, std::string> entries[] = {
        {"location", file_.data_name}, {"offset", cat(file_.data.size())}, {"length", cat(t.bytes())}};
    for (const auto& [key, value] : entries) m.message(13, ProtoWriter().text(1, key).text(2, value));
    file_.data.append(static_cast<const char*>(t.data()), t.bytes());
    initializers_ += ProtoWriter().message(5, m).bytes();
  } else {
    OAR_ASSIGN(const std::string bytes, write_onnx_tensor(t, name));
    initializers_ += ProtoWriter().text(5, bytes).bytes();
  }
  if (main_ && t.bytes() >= kSmall) file_.outer.emplace(t.data(), name);
  return name;
}

Result<std::string> GraphWriter::name_of(ValueId id) {
  if (id == kNoValue) return std::string();
  if (const auto it = names_.find(id); it != names_.end()) return it->second;
  const Value& v = graph_.value(id);
  if (v.kind == ValueKind::kState)
    return unimplemented(cat("the state '", v.name, "' lives in no such file"));
  std::string name;
  if (v.kind == ValueKind::kConstant) {
    OAR_ASSIGN(name, add_constant(v.constant, v.name));
  } else {
    name = file_.unique(v.name);
  }
  return names_[id] = name;
}

void GraphWriter::add_node(std::string_view op, const std::vector<std::string>& inputs,
                           const std::vector<std::string>& outputs,
                           const std::vector<ProtoWriter>& attributes, std::string_view name) {
  const auto used = [](const std::vector<std::string>& names) {
    size_t n = names.size();
    while (n > 0 && names[n - 1].empty()) --n;
    return n;
  };
  ProtoWriter node;
  for (size_t i = 0, n = used(inputs); i < n; ++i) node.text(1, inputs[i]);
  for (size_t i = 0, n = used(outputs); i < n; ++i) node.text(2, outputs[i]);
  if (!name.empty()) node.text(3, FileWriter::unique_in(file_.taken_nodes, name));
  node.text(4, op);
  for (const ProtoWriter& a : attributes) node.message(5, a);
  nodes_ += ProtoWriter().message(1, node).bytes();
}

void GraphWriter::name_outputs(const std::vector<std::string>& names) {
  const std::vector<int> producers = graph_.producers();
  for (size_t k = 0; k < names.size(); ++k) {
    const ValueId id = graph_.outputs()[k].value;
    if (named(id) || producers[static_cast<size_t>(id)] < 0) copies_.emplace_back(id, names[k]);
    else set_name(id, names[k]);
  }
}

Status GraphWriter::write_nodes() {
  for (const Node& node : graph_.nodes()) {
    const Status s = write_onnx_node(*this, node);
    if (s.ok()) continue;
    if (s.message().starts_with("node '")) return s;  // of a body: it has named itself
    return Status(s.code(), cat("node '", node.name, "' (", node.op->name, "): ", s.message()));
  }
  for (const auto& [id, name] : copies_) {
    OAR_ASSIGN(std::string from, name_of(id));
    add_node("Identity", {std::move(from)}, {name}, {}, "");
  }
  return ok_status();
}

ProtoWriter GraphWriter::finish(std::string_view name, const std::vector<ProtoWriter>& inputs,
                                const std::vector<ProtoWriter>& outputs) const {
  ProtoWriter g;
  g.raw(nodes_).text(2, name).raw(initializers_);
  for (const ProtoWriter& v : inputs) g.message(11, v);
  for (const ProtoWriter& v : outputs) g.message(12, v);
  return g;
}

// ---- NodeWriter ----

void NodeWriter::fail(std::string why) {
  if (status_.ok()) status_ = unimplemented(cat(why, ", which ONNX cannot express"));
}

std::string NodeWriter::in(size_t i) {
  if (!has(i)) return {};
  auto name = graph_.name_of(node_.inputs[i]);
  if (name.ok()) return std::move(*name);
  if (status_.ok()) status_ = name.status();
  return {};
}
std::vector<std::string> NodeWriter::ins() {
  std::vector<std::string> names;
  for (size_t i = 0; i < node_.inputs.size(); ++i) names.push_back(in(i));
  return names;
}
std::string NodeWriter::out(size_t i) {
  if (i >= node_.outputs.size()) return {};
  return *graph_.name_of(node_.outputs[i]);
}
std::vector<std::string> NodeWriter::outs() {
  std::vector<std::string> names;
  for (size_t i = 0; i < node_.outputs.size(); ++i) names.push_back(out(i));
  return names;
}
const Tensor* NodeWriter::constant_in(size_t i) const {
  if (!has(i)) return nullptr;
  const Value& v = graph_.graph().value(node_.inputs[i]);
  return v.kind == ValueKind::kConstant ? &v.constant : nullptr;
}
std::string NodeWriter::constant(const Tensor& t) {
  auto name = graph_.add_constant(t, "");
  if (name.ok()) return std::move(*name);
  if (status_.ok()) status_ = name.status();
  return {};
}
std::string NodeWriter::ints(const std::vector<int64_t>& v) {
  Tensor t = must(allocate_elements({static_cast<int64_t>(v.size())}, DType::kI64));
  std::copy(v.begin(), v.end(), mutable_elements<int64_t>(t));
  return constant(t);
}
std::string NodeWriter::number(float v) {
  Tensor t = must(allocate_elements({}, DType::kF32));
  *mutable_elements<float>(t) = v;
  return constant(t);
}

std::vector<ProtoWriter> NodeWriter::attributes(std::string_view spec,
                                                std::span<const std::string_view> handled) {
  std::vector<ProtoWriter> out;
  for (const auto& [name, value] : attrs().items()) {
    if (std::find(handled.begin(), handled.end(), name) != handled.end()) continue;
    const std::string wanted = cat(name, ":");
    size_t at = spec.find(wanted);
    while (at != std::string_view::npos && at > 0 && spec[at - 1] != ' ') at = spec.find(wanted, at + 1);
    if (at == std::string_view::npos) fail(cat("attribute '", name, "' is set"));
    else if (!typed_attribute(name, spec[at + wanted.size()], value, out))
      fail(cat("attribute '", name, "' has another type than there"));
  }
  return out;
}

void NodeWriter::dtype_attribute(std::string_view from, std::string_view to, std::vector<ProtoWriter>& out) {
  if (!attrs().has(from)) return;
  const std::string word = attrs().get_string(from);
  const auto dtype = parse_dtype(word);
  const int type = dtype ? onnx_type_of(*dtype) : 0;
  if (type == 0) fail(cat("attribute '", from, "' is ", word));
  out.push_back(int_attribute(to, type));
}

IoSpec NodeWriter::operand_spec(size_t i) const {
  IoSpec io;
  if (!has(i)) return io;
  const TensorType& type = graph_.graph().value(node_.inputs[i]).type;
  io.typed = type.known && onnx_type_of(type.format.dtype()) != 0;
  if (io.typed) io.dtype = type.format.dtype();
  return io;
}

Result<ProtoWriter> NodeWriter::body(size_t which, size_t formal, size_t captured,
                                     const std::vector<IoSpec>& own_inputs,
                                     const std::vector<IoSpec>& own_outputs) {
  const Graph& g = *node_.subgraphs[which];
  GraphWriter inner(file(), g, false);
  std::vector<ProtoWriter> inputs, outputs;
  const auto declare = [](std::vector<ProtoWriter>& infos, const std::string& name,
                          const std::vector<IoSpec>& own) -> Status {
    const size_t k = infos.size();
    if (k >= own.size() || !own[k].typed)
      return infos.push_back(std::move(ProtoWriter().text(1, name))), ok_status();
    IoSpec io = own[k];
    io.name = name;
    OAR_ASSIGN(ProtoWriter info, value_info(io));
    infos.push_back(std::move(info));
    return ok_status();
  };
  for (size_t k = 0; k < g.inputs().size(); ++k) {
    const ValueId id = g.inputs()[k];
    if (k >= formal) {
      inner.set_name(id, in(captured + k - formal));
      continue;
    }
    inner.set_name(id, file().unique(g.value(id).name));
    OAR_RETURN_IF_ERROR(declare(inputs, *inner.name_of(id), own_inputs));
  }
  std::vector<std::string> names;
  for (const Graph::Output& o : g.outputs()) {
    names.push_back(file().unique(o.name));
    OAR_RETURN_IF_ERROR(declare(outputs, names.back(), own_outputs));
  }
  inner.name_outputs(names);
  OAR_RETURN_IF_ERROR(inner.write_nodes());
  OAR_RETURN_IF_ERROR(status_);
  return inner.finish(cat(node_.op->name, "_body"), inputs, outputs);
}

}  // namespace oar::onnx
