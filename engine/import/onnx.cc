// The ONNX importer: names to values, scopes of subgraphs, functions inlined. What each op means is in
// onnx_ops.cc.
#include "engine/import/onnx.h"

#include <map>
#include <unordered_map>

#include "engine/import/onnx_node.h"
#include "engine/ops/custom.h"

namespace oar {
namespace onnx {
namespace {

// Calls of functions may double at every level; the whole import has a budget of nodes.
constexpr int64_t kMaxNodes = 2'000'000;
constexpr int kMaxFunctionDepth = 64;

}  // namespace

// Names visible at a point: those of this graph, and through `parent` those of the graphs around it.
struct Scope {
  Graph& graph;
  OpWriter& writer;
  Scope* parent = nullptr;  // another graph; values of it must be captured
  std::unordered_map<std::string, Val> names;
  std::vector<std::string> captured;  // names handed in as extra inputs
};

class GraphImporter {
 public:
  GraphImporter(const ModelMsg& model, TensorSource& source) : model_(model), source_(source) {
    for (const FunctionMsg& f : model.functions) functions_[key(f.domain, f.name, f.overload)] = &f;
  }

  Result<ImportedModel> run();
  TensorSource& source() { return source_; }
  void widened(uint64_t stored, uint64_t held) { ++widened_, stored_ += stored, held_ += held; }
  Result<Subgraph> subgraph(const GraphMsg& g, const std::vector<AttrMsg>* function_attrs);

 private:
  static std::string key(std::string_view domain, std::string_view name, std::string_view overload) {
    return cat(domain == "ai.onnx" ? "" : domain, "|", name, "|", overload);
  }
  // Empty Val when no scope has the name.
  Val lookup(Scope& scope, const std::string& name);
  Status initializers(const GraphMsg& g, Scope& scope);
  Status nodes(const std::vector<NodeMsg>& nodes, Scope& scope, const std::vector<OpsetMsg>& opsets,
               const std::vector<AttrMsg>* function_attrs);
  Status node(const NodeMsg& n, Scope& scope, const std::vector<OpsetMsg>& opsets,
              const std::vector<AttrMsg>* function_attrs);
  Status call(const FunctionMsg& f, const NodeMsg& n, std::vector<Val> inputs, Scope& scope,
              const std::vector<AttrMsg>* function_attrs);

  const ModelMsg& model_;
  TensorSource& source_;
  std::unordered_map<std::string, const FunctionMsg*> functions_;
  Scope* scope_ = nullptr;                         // of the node being imported
  const std::vector<OpsetMsg>* opsets_ = nullptr;  // in force there
  int64_t budget_ = kMaxNodes;
  int depth_ = 0;
  int64_t widened_ = 0;  // layers of few bits that become f32, their bytes before and after
  uint64_t stored_ = 0, held_ = 0;
};

OnnxNode::OnnxNode(const NodeMsg& msg, std::vector<Val> inputs, int64_t opset, OpWriter& writer,
                   GraphImporter& importer, const std::vector<AttrMsg>* function_attrs)
    : msg_(msg),
      inputs_(std::move(inputs)),
      outputs_(msg.outputs.size()),
      opset_(opset),
      writer_(writer),
      importer_(importer),
      function_attrs_(function_attrs) {}

void OnnxNode::widened(uint64_t stored, uint64_t held) { importer_.widened(stored, held); }

const AttrMsg* OnnxNode::find(std::string_view name) {
  for (const AttrMsg& a : msg_.attrs) {
    if (a.name != name) continue;
    read_.insert(a.name);
    if (a.ref.empty()) return &a;
    if (!function_attrs_) return nullptr;
    for (const AttrMsg& f : *function_attrs_) {
      if (f.name == a.ref) return &f;
    }
    return nullptr;  // the caller of the function left it out
  }
  return nullptr;
}

const AttrMsg* OnnxNode::typed(std::string_view name, AttrType type) {
  const AttrMsg* a = find(name);
  if (a && a->type != type) {
    fail(invalid_argument(cat("attribute '", name, "' has type ", static_cast<int>(a->type), ", not ",
                              static_cast<int>(type))));
    return nullptr;
  }
  return a;
}

int64_t OnnxNode::get_int(std::string_view name, int64_t fallback) {
  const AttrMsg* a = typed(name, AttrType::kInt);
  return a ? a->i : fallback;
}
double OnnxNode::get_float(std::string_view name, double fallback) {
  const AttrMsg* a = typed(name, AttrType::kFloat);
  return a ? static_cast<double>(a->f) : fallback;
}
std::string OnnxNode::get_string(std::string_view name, std::string fallback) {
  const AttrMsg* a = typed(name, AttrType::kString);
  return a ? std::string(a->s) : fallback;
}
std::vector<int64_t> OnnxNode::get_ints(std::string_view name) {
  const AttrMsg* a = typed(name, AttrType::kInts);
  return a ? a->ints : std::vector<int64_t>{};
}
Result<Tensor> OnnxNode::get_tensor(std::string_view name) {
  const AttrMsg* a = typed(name, AttrType::kTensor);
  if (!a) return invalid_argument(cat("attribute '", name, "' is missing"));
  return importer_.source().read(a->tensors[0]);
}
Result<Subgraph> OnnxNode::get_graph(std::string_view name) {
  const AttrMsg* a = typed(name, AttrType::kGraph);
  if (!a) return invalid_argument(cat("attribute '", name, "' is missing"));
  return importer_.subgraph(a->graphs[0], function_attrs_);
}
std::optional<AttrValue> OnnxNode::get_any(std::string_view name) {
  const AttrMsg* a = find(name);
  if (!a) return std::nullopt;
  switch (a->type) {
    case AttrType::kInt: return a->i;
    case AttrType::kFloat: return static_cast<double>(a->f);
    case AttrType::kString: return std::string(a->s);
    case AttrType::kInts: return a->ints;
    case AttrType::kFloats: return std::vector<double>(a->floats.begin(), a->floats.end());
    case AttrType::kStrings: return std::vector<std::string>(a->strings.begin(), a->strings.end());
    default:
      fail(invalid_argument(cat("attribute '", name, "' is no number, string or list")));
      return std::nullopt;
  }
}
Attrs OnnxNode::get_all(std::string_view spec) {
  Attrs attrs;
  while (!spec.empty()) {
    const size_t colon = spec.find(':'), end = std::min(spec.find(' '), spec.size());
    const std::string_view name = spec.substr(0, colon);
    const char type = spec[colon + 1];
    if (auto v = get_any(name)) {
      static constexpr std::string_view kTypes = "ifsIFS";  // in the order of AttrValue
      if (v->index() == kTypes.find(type)) {
        attrs.set(name, std::move(*v));
      } else {
        fail(invalid_argument(cat("attribute '", name, "' has another type than ONNX gives it")));
      }
    }
    spec = end < spec.size() ? spec.substr(end + 1) : std::string_view();
  }
  return attrs;
}
Attrs OnnxNode::get_all() {
  Attrs attrs;
  for (const AttrMsg& a : msg_.attrs) {
    if (auto v = get_any(a.name)) attrs.set(a.name, std::move(*v));
  }
  return attrs;
}
TensorSource& OnnxNode::tensors() { return importer_.source(); }
std::string_view OnnxNode::unread() const {
  for (const AttrMsg& a : msg_.attrs) {
    if (!read_.count(a.name)) return a.name;
  }
  return {};
}

Val GraphImporter::lookup(Scope& scope, const std::string& name) {
  if (const auto it = scope.names.find(name); it != scope.names.end()) return it->second;
  if (!scope.parent) return {};
  const Val outer = lookup(*scope.parent, name);
  if (!outer) return {};
  const Value& v = scope.parent->graph.value(outer.id);
  Val inner;
  if (v.kind == ValueKind::kConstant) {
    inner = {scope.graph.add_constant(v.name, v.constant)};
  } else {
    inner = {scope.graph.add_input(name, v.type)};
    scope.captured.push_back(name);
  }
  scope.names.emplace(name, inner);
  return inner;
}

Status GraphImporter::initializers(const GraphMsg& g, Scope& scope) {
  DeferredCopies copies;
  for (const TensorMsg& t : g.initializers) {
    OAR_ASSIGN(Tensor tensor, source_.read(t, &copies));
    const std::string name(t.name);
    scope.names[name] = {scope.graph.add_constant(name, std::move(tensor))};
  }
  copies.run(source_.options().threads);
  for (const SparseMsg& s : g.sparse) {
    OAR_ASSIGN(Tensor tensor, source_.read(s));
    const std::string name(s.values.name);
    scope.names[name] = {scope.graph.add_constant(name, std::move(tensor))};
  }
  return ok_status();
}

Status GraphImporter::nodes(const std::vector<NodeMsg>& nodes, Scope& scope,
                            const std::vector<OpsetMsg>& opsets, const std::vector<AttrMsg>* function_attrs) {
  for (const NodeMsg& n : nodes) {
    Status s = node(n, scope, opsets, function_attrs);
    if (s.ok()) continue;
    // The innermost node names itself; those around it do not repeat it.
    if (s.message().find("node '") != std::string::npos) return s;
    return Status(s.code(), cat("node '", n.name, "' (", n.domain.empty() ? "" : cat(n.domain, "."), n.op,
                                ") at byte ", n.offset, ": ", s.message()));
  }
  return ok_status();
}

Status GraphImporter::node(const NodeMsg& n, Scope& scope, const std::vector<OpsetMsg>& opsets,
                           const std::vector<AttrMsg>* function_attrs) {
  if (--budget_ < 0) return resource_exhausted(cat("the model has more than ", kMaxNodes, " nodes"));
  std::vector<Val> inputs;
  for (std::string_view name : n.inputs) {
    if (name.empty()) {
      inputs.push_back({});
      continue;
    }
    const Val v = lookup(scope, std::string(name));
    if (!v) {
      return invalid_argument(
          cat("operand '", name, "' is computed by no node before it (a cycle, a missing node or input)"));
    }
    inputs.push_back(v);
  }
  std::vector<Val> results;
  const auto f = functions_.find(key(n.domain, n.op, n.overload));
  if (f != functions_.end()) {
    // Bind results under the caller's names.
    return call(*f->second, n, std::move(inputs), scope, function_attrs);
  }
  int64_t opset = -1;
  const bool standard = n.domain.empty() || n.domain == "ai.onnx";
  for (const OpsetMsg& o : opsets) {
    const bool o_standard = o.domain.empty() || o.domain == "ai.onnx";
    if (standard ? o_standard : o.domain == n.domain) opset = o.version;
  }
  if (opset < 0) return invalid_argument(cat("the model imports no version of domain '", n.domain, "'"));
  if (standard && (opset < kOnnxOldest || opset > kOnnxNewest)) {
    return unimplemented(
        cat("opset ", opset, " of ai.onnx; supported are ", kOnnxOldest, " to ", kOnnxNewest));
  }
  bool newer = false;
  const OpDef* const own = find_custom_op(standard ? "" : n.domain, n.op);
  const OnnxOp* op = own != nullptr ? nullptr
                     : standard     ? find_onnx_op(n.op, opset, &newer)
                     : n.domain == "com.microsoft" || n.domain == "ai.onnx.preview" ? find_contrib_op(n.op)
                                                                                    : nullptr;
  // onnxruntime's optimizer writes this one as if it were ONNX's.
  if (!op && !own && standard && n.op == "SimplifiedLayerNormalization") op = find_contrib_op(n.op);
  if (!op && !own) {
    return unimplemented(
        newer ? cat("ai.onnx opset ", opset, " has no op ", n.op, "; later ones have")
              : cat("op ", n.op, " of domain '", standard ? "ai.onnx" : n.domain, "' is not supported"));
  }
  Scope* const outer_scope = scope_;
  const auto* const outer_opsets = opsets_;
  scope_ = &scope;
  opsets_ = &opsets;
  scope.writer.set_node_name(n.name.empty()
                                 ? (n.outputs.empty() ? std::string(n.op) : std::string(n.outputs[0]))
                                 : std::string(n.name));
  OnnxNode context(n, std::move(inputs), opset, scope.writer, *this, function_attrs);
  if (own) {
    context.outs(scope.writer.ops(own->name, context.ins(), n.outputs.size(), context.get_all()));
  } else if (op->import) {
    op->import(context);
  } else {
    Attrs attrs = context.get_all(op->attrs ? op->attrs : "");
    context.outs(scope.writer.ops(op->graph_op, context.ins(), n.outputs.size(), std::move(attrs)));
  }
  scope_ = outer_scope;
  opsets_ = outer_opsets;
  OAR_RETURN_IF_ERROR(scope.writer.status());
  if (const std::string_view left = context.unread(); !left.empty()) {
    return unimplemented(cat("attribute '", left, "' is not one that opset ", opset, " gives this op"));
  }
  for (size_t k = 0; k < n.outputs.size(); ++k) {
    if (n.outputs[k].empty()) continue;
    if (!context.results()[k])
      return unimplemented(cat("output ", k, " ('", n.outputs[k], "') is not supported"));
    if (!scope.names.emplace(std::string(n.outputs[k]), context.results()[k]).second) {
      return invalid_argument(cat("'", n.outputs[k], "' is computed twice"));
    }
  }
  return ok_status();
}

Status GraphImporter::call(const FunctionMsg& f, const NodeMsg& n, std::vector<Val> inputs, Scope& scope,
                           const std::vector<AttrMsg>* function_attrs) {
  if (depth_ >= kMaxFunctionDepth)
    return invalid_argument(cat("function ", f.name, " calls itself or nests too deeply"));
  // The function's own attributes: the caller's, resolved in the caller's function, then the defaults.
  std::vector<AttrMsg> attrs;
  for (const AttrMsg& a : n.attrs) {
    if (a.ref.empty()) {
      attrs.push_back(a);
    } else if (function_attrs) {
      for (const AttrMsg& o : *function_attrs) {
        if (o.name == a.ref) attrs.push_back(o), attrs.back().name = a.name;
      }
    }
  }
  for (const AttrMsg& d : f.defaults) {
    bool given = false;
    for (const AttrMsg& a : attrs) given = given || a.name == d.name;
    if (!given) attrs.push_back(d);
  }
  // Inlined: same graph, names of its own. Values it may see are its inputs alone.
  Scope inner{scope.graph, scope.writer, nullptr, {}, {}};
  for (size_t k = 0; k < f.inputs.size(); ++k) {
    if (k < inputs.size() && inputs[k]) inner.names.emplace(std::string(f.inputs[k]), inputs[k]);
  }
  // Inputs left out are known by name, without a value.
  for (size_t k = 0; k < f.inputs.size(); ++k) {
    if (k < inputs.size() && inputs[k]) continue;
    inner.names.emplace(std::string(f.inputs[k]), scope.writer.op("none", {}));
  }
  ++depth_;
  const Status s = nodes(f.nodes, inner, f.opsets, &attrs);
  --depth_;
  OAR_RETURN_IF_ERROR(s);
  for (size_t k = 0; k < n.outputs.size(); ++k) {
    if (n.outputs[k].empty()) continue;
    if (k >= f.outputs.size())
      return invalid_argument(cat("function ", f.name, " has ", f.outputs.size(), " outputs"));
    const Val v = lookup(inner, std::string(f.outputs[k]));
    if (!v)
      return invalid_argument(cat("function ", f.name, " does not compute its output '", f.outputs[k], "'"));
    if (!scope.names.emplace(std::string(n.outputs[k]), v).second) {
      return invalid_argument(cat("'", n.outputs[k], "' is computed twice"));
    }
  }
  return ok_status();
}

Result<Subgraph> GraphImporter::subgraph(const GraphMsg& g, const std::vector<AttrMsg>* function_attrs) {
  auto graph = std::make_shared<Graph>();
  OpWriter writer(*graph);
  Scope& outer = *scope_;
  const auto* opsets = opsets_;
  Scope scope{*graph, writer, &outer, {}, {}};
  for (const ValueMsg& v : g.inputs) {
    IoSpec spec;
    spec.name = v.name;
    scope.names[spec.name] = {graph->add_input(spec.name, TensorType::unknown())};
  }
  OAR_RETURN_IF_ERROR(initializers(g, scope));
  OAR_RETURN_IF_ERROR(nodes(g.nodes, scope, *opsets, function_attrs));
  for (const ValueMsg& v : g.outputs) {
    const Val out = lookup(scope, std::string(v.name));
    if (!out) return invalid_argument(cat("a subgraph does not compute its output '", v.name, "'"));
    graph->add_output(std::string(v.name), out.id);
  }
  Subgraph result;
  for (const std::string& name : scope.captured) result.captured.push_back(lookup(outer, name));
  result.graph = std::move(graph);
  return result;
}

namespace {

IoSpec spec_of(const ValueMsg& v) {
  IoSpec s;
  s.name = v.name;
  s.kind = v.type.kind == TypeMsg::kSequence   ? IoSpec::Kind::kSequence
           : v.type.kind == TypeMsg::kOptional ? IoSpec::Kind::kOptional
                                               : IoSpec::Kind::kTensor;
  if (const auto d = dtype_of_onnx(v.type.elem)) s.dtype = *d, s.typed = true;
  s.ranked = v.type.ranked && v.type.dims.size() <= Shape::kMaxRank;
  for (const DimMsg& d : v.type.dims) s.dims.push_back({d.value >= 0 ? d.value : -1, std::string(d.param)});
  // Some exporters name all extents alike that they do not know ("?"): two axes of one tensor need not agree.
  for (size_t i = 0; i < s.dims.size(); ++i) {
    bool again = false;
    for (size_t j = i + 1; j < s.dims.size() && !s.dims[i].name.empty(); ++j) {
      if (s.dims[j].name != s.dims[i].name) continue;
      s.dims[j].name.clear();
      again = true;
    }
    if (again) s.dims[i].name.clear();
  }
  return s;
}

}  // namespace

Result<ImportedModel> GraphImporter::run() {
  if (!model_.has_graph) return data_loss("no graph in the file: it is no ONNX model, or it is truncated");
  if (model_.ir_version < 1) return data_loss("the model names no IR version");
  ImportedModel out;
  out.graph = std::make_shared<Graph>();
  out.format = "onnx";
  out.producer = cat(model_.producer, model_.producer_version.empty() ? "" : " ", model_.producer_version);
  for (const auto& [k, v] : model_.metadata) out.metadata.emplace_back(k, v);
  OpWriter writer(*out.graph);
  Scope scope{*out.graph, writer, nullptr, {}, {}};
  OAR_RETURN_IF_ERROR(initializers(model_.graph, scope));
  for (const ValueMsg& v : model_.graph.inputs) {
    const std::string name(v.name);
    const auto init = scope.names.find(name);
    // Listed as an input too (always, before IR version 4): a constant all the same. Replacing it per run is
    // an ONNX subtlety nobody uses, and would keep weights from being folded and packed.
    if (init != scope.names.end()) {
      if (out.graph->value(init->second.id).kind != ValueKind::kConstant) {
        return invalid_argument(cat("input '", name, "' is listed twice"));
      }
      continue;
    }
    out.inputs.push_back(spec_of(v));
    scope.names[name] = {add_graph_input(*out.graph, out.inputs.back())};
  }
  OAR_RETURN_IF_ERROR(nodes(model_.graph.nodes, scope, model_.opsets, nullptr));
  for (const ValueMsg& v : model_.graph.outputs) {
    const Val value = lookup(scope, std::string(v.name));
    if (!value) return invalid_argument(cat("output '", v.name, "' is computed by no node"));
    out.graph->add_output(std::string(v.name), value.id);
    out.outputs.push_back(spec_of(v));
  }
  if (widened_ > 0) {
    out.warnings.push_back(cat(
        widened_, " MatMulNBits layers compute in f32 and take ", held_ >> 20, " MiB of memory instead of ",
        stored_ >> 20, ": 8-bit activations are not allowed (accuracy_level is not 4), or no kernel has ",
        "their blocks (block_size 16, a K that is no multiple, 8 bits with zero points)"));
  }
  return out;
}

}  // namespace onnx

Result<ImportedModel> import_onnx_bytes(Buffer bytes, const std::string& name, const std::string& path,
                                        const ImportOptions& options) {
  const std::string_view view(static_cast<const char*>(bytes.data()), bytes.size());
  auto model = [&]() -> Result<ImportedModel> {
    OAR_ASSIGN(onnx::ModelMsg msg, onnx::read_model(view));
    // Before IR version 3 a model named no operator set: version 1.
    if (msg.opsets.empty() && msg.ir_version < 3) msg.opsets.push_back({"", 1});
    onnx::TensorSource source(bytes, path, options);
    OAR_ASSIGN(ImportedModel imported, onnx::GraphImporter(msg, source).run());
    imported.files = source.external_files();
    return imported;
  }();
  if (!model.ok()) return Status(model.status().code(), cat(name, ": ", model.status().message()));
  return model;
}

Result<ImportedModel> import_onnx(const std::string& path, const ImportOptions& options) {
  FileOptions file;
  file.mmap = options.mmap;
  OAR_ASSIGN(const auto mapped, MappedFile::open(path, file));
  OAR_ASSIGN(ImportedModel model,
             import_onnx_bytes(file_slice(mapped, 0, mapped->size()), path, path, options));
  model.files.push_back(path);
  return model;
}

}  // namespace oar
