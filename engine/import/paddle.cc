#include "engine/import/paddle.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "engine/import/paddle_node.h"
#include "engine/loader/byte_reader.h"
#include "engine/ops/custom.h"

namespace oar {
namespace paddle {
namespace {

std::string_view strip(std::string_view name) {
  if (name.size() > 1 && name.back() == '_') name.remove_suffix(1);  // the in-place spelling of the same op
  return name;
}

std::array<std::span<const OpEntry>, 6> op_tables() {
  return {math_ops(), shape_ops(), layer_ops(), detection_ops(), quantize_ops(), control_ops()};
}
const OpEntry* find_entry(std::string_view name) {
  for (auto part : op_tables()) {
    for (const OpEntry& e : part) {
      if (name == e.name) return &e;
    }
  }
  return nullptr;
}

template <class T>
const T* data_if(const Attr* a) {
  return a ? std::get_if<T>(&a->data) : nullptr;
}

}  // namespace

Tensor filled(const std::vector<int64_t>& dims, DType dtype, std::span<const double> values) {
  Tensor t = must(allocate_elements(Shape(std::span<const int64_t>(dims)), dtype));
  dispatch_number(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    for (size_t k = 0; k < values.size(); ++k) {
      if constexpr (std::is_integral_v<C>)
        mutable_elements<T>(t)[k] = Element<T>::store(saturate_cast<C>(values[k]));
      else mutable_elements<T>(t)[k] = Element<T>::store(static_cast<C>(values[k]));
    }
  });
  return t;
}

// ---- ops of whoever embeds Oar

namespace {

// All operands and results in their order, lists one after the other, and all attributes.
void import_custom(Node& n, const OpDef& def) {
  std::vector<Val> inputs;
  for (size_t i = 0; i < n.num_inputs(); ++i) {
    const std::vector<Val> given = n.list(i);
    if (given.empty()) inputs.push_back({});
    inputs.insert(inputs.end(), given.begin(), given.end());
  }
  Attrs attrs;
  for (const Attr& a : n.op().attrs) {
    n.ignore(a.name);
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, bool>) attrs.set(a.name, int64_t{v});
          else if constexpr (!std::is_same_v<T, std::monostate>) attrs.set(a.name, v);
        },
        a.data);
  }
  size_t results = 0, next = 0;
  for (const Slot& s : n.op().outputs) results += s.values.size();
  const std::vector<Val> made = n.w().ops(def.name, std::move(inputs), results, std::move(attrs));
  for (size_t i = 0; i < n.num_outputs(); ++i) {
    const size_t count = n.op().outputs[i].values.size();
    n.out_list(
        i, {made.begin() + static_cast<int64_t>(next), made.begin() + static_cast<int64_t>(next + count)});
    next += count;
  }
}

}  // namespace

// ---- Scope

std::vector<Val> Scope::lookup(ValueIndex v) {
  if (values_[v]) return *values_[v];
  if (!outer_) return {};
  std::vector<Val> vals;
  for (Val outside : outer_->lookup(v)) {
    if (const Tensor* t = outer_->writer_.constant_of(outside)) {
      vals.push_back(writer_.constant(*t, program_.values[v].name));
      continue;
    }
    captured_.push_back(outside);
    vals.push_back(add_formal(program_.values[v].name));
  }
  if (!vals.empty()) values_[v] = vals;
  return vals;
}

Status Scope::run(const Block& block, std::vector<ValueIndex>* yielded) {
  constexpr int kDeepest = 64;
  if (depth_ > kDeepest) return unimplemented(cat(program_.file, ": blocks nest deeper than ", kDeepest));
  for (const Op& raw : block.ops) {
    Op renamed;
    const Op* op = &raw;
    const OpDef* const own = find_custom_op("paddle", strip(raw.type));
    if (program_.kind == Program::Kind::kLegacy && own == nullptr) {
      OAR_ASSIGN(renamed, from_legacy(program_, raw));
      op = &renamed;
    }
    if (op->type == "cf.yield") {
      if (!yielded) return data_loss(cat(program_.where(*op), " outside a region"));
      for (const Slot& s : op->inputs) {
        if (s.values.empty()) return data_loss(cat(program_.where(*op), ": an operand is missing"));
        yielded->push_back(s.values[0]);
      }
      return ok_status();
    }
    const OpEntry* entry = find_entry(strip(op->type));
    if (!entry && !own) { return unimplemented(cat(program_.where(raw), ": this op is not supported")); }
    for (const Slot& s : op->inputs) {
      for (ValueIndex v : s.values) {
        if (lookup(v).empty() && program_.values[v].type.kind == ValueType::Kind::kTensor &&
            (own || entry->import != nullptr) && raw.blocks.empty() && raw.type != "select_input") {
          return data_loss(cat(program_.where(raw), ": ", show_name(program_.values[v].name),
                               " is used before it is computed"));
        }
      }
    }
    Node node(*op, *this);
    writer_.set_node_name(op->outputs.empty() || op->outputs[0].values.empty()
                              ? op->type
                              : program_.values[op->outputs[0].values[0]].name);
    if (own) import_custom(node, *own);
    else entry->import(node);
    if (writer_.status().ok()) writer_.fail(node.all_read());
    if (!writer_.status().ok()) {
      const Status& s = writer_.status();
      return {s.code(), cat(program_.where(raw), ": ", s.message())};
    }
  }
  return ok_status();
}

// ---- Node

Node::Node(const Op& op, Scope& scope)
    : op_(op), scope_(scope), attrs_read_(op.attrs.size()), inputs_read_(op.inputs.size()) {}
OpWriter& Node::w() { return scope_.writer(); }

std::vector<Val> Node::list(size_t i) {
  std::vector<Val> vals;
  if (!has_in(i)) return vals;
  inputs_read_[i] = true;
  for (ValueIndex v : op_.inputs[i].values) {
    for (Val x : scope_.lookup(v)) vals.push_back(x);
  }
  return vals;
}
Val Node::in(size_t i) {
  const std::vector<Val> vals = list(i);
  if (vals.empty()) return {};
  if (vals.size() > 1)
    fail(invalid_argument(cat("operand ", i, " is a list of ", vals.size(), " where one value is meant")));
  return vals[0];
}

const ValueType* Node::in_type(size_t i) const {
  if (!has_in(i)) return nullptr;
  const ValueType& t = scope_.program().values[op_.inputs[i].values[0]].type;
  return t.kind == ValueType::Kind::kTensor ? &t : nullptr;
}
const ValueType* Node::out_type(size_t i) const {
  if (i >= op_.outputs.size() || op_.outputs[i].values.empty()) return nullptr;
  const ValueType& t = scope_.program().values[op_.outputs[i].values[0]].type;
  return t.kind == ValueType::Kind::kTensor ? &t : nullptr;
}
int Node::rank(size_t i) {
  const ValueType* t = in_type(i);
  if (t) return static_cast<int>(t->dims.size());
  fail(invalid_argument(cat("the program does not declare the rank of operand ", i)));
  return 1;
}
DType Node::dtype(size_t i) {
  const ValueType* t = in_type(i);
  const auto d = t ? dtype_named(t->dtype) : std::nullopt;
  if (d) return *d;
  fail(invalid_argument(cat("operand ", i, " has element type ",
                            t && !t->dtype.empty() ? t->dtype : "unknown", ", which is not supported")));
  return DType::kF32;
}

void Node::out_list(size_t i, std::vector<Val> vals) {
  if (i >= op_.outputs.size() || op_.outputs[i].values.empty()) return;
  const auto& values = op_.outputs[i].values;
  if (values.size() == 1) return scope_.define(values[0], std::move(vals));
  if (values.size() != vals.size()) {
    return fail(
        invalid_argument(cat("result ", i, " is a list of ", values.size(), ", not of ", vals.size())));
  }
  for (size_t k = 0; k < vals.size(); ++k) scope_.define(values[k], {vals[k]});
}
void Node::out(size_t i, Val v) { out_list(i, {v}); }

const Attr* Node::find(std::string_view names) {
  while (!names.empty()) {
    const size_t bar = names.find('|');
    if (const Attr* a = op_.attr(names.substr(0, bar))) {
      attrs_read_[static_cast<size_t>(a - op_.attrs.data())] = true;
      if (!std::holds_alternative<std::monostate>(a->data)) return a;
    }
    if (bar == std::string_view::npos) break;
    names.remove_prefix(bar + 1);
  }
  return nullptr;
}
void Node::ignore(std::string_view names) {
  while (!names.empty()) {
    const size_t bar = names.find('|');
    find(names.substr(0, bar));
    names.remove_prefix(bar == std::string_view::npos ? names.size() : bar + 1);
  }
}
Status Node::all_read() const {
  for (size_t k = 0; k < op_.attrs.size(); ++k) {
    const Attr& a = op_.attrs[k];
    if (attrs_read_[k] || no_effect(op_.type, a)) continue;
    return unimplemented(
        cat("attribute ", show_name(a.name), " (", a.to_string(),
            ") is not supported here; where it changes nothing at inference, remove it from the "
            "program, else export the model without it"));
  }
  for (size_t k = 0; k < op_.inputs.size(); ++k) {
    const Slot& s = op_.inputs[k];
    if (inputs_read_[k] || s.values.empty()) continue;
    return unimplemented(cat("operand ", s.name.empty() ? cat(k) : show_name(s.name), " (",
                             show_name(scope_.program().values[s.values[0]].name),
                             ") is not supported here; export the model without it"));
  }
  return ok_status();
}
int64_t Node::get_int(std::string_view names, int64_t fallback) {
  const Attr* a = find(names);
  if (!a) return fallback;
  if (const auto* i = data_if<int64_t>(a)) return *i;
  if (const auto* b = data_if<bool>(a)) return *b;
  if (const auto* list = data_if<std::vector<int64_t>>(a); list && list->size() == 1) return (*list)[0];
  fail(invalid_argument(cat("attribute ", show_name(a->name), " is no integer")));
  return fallback;
}
double Node::get_float(std::string_view names, double fallback) {
  const Attr* a = find(names);
  if (!a) return fallback;
  if (const auto* d = data_if<double>(a)) return *d;
  if (const auto* i = data_if<int64_t>(a)) return static_cast<double>(*i);
  if (const auto* b = data_if<bool>(a)) return *b;
  fail(invalid_argument(cat("attribute ", show_name(a->name), " is no number")));
  return fallback;
}
std::string Node::get_string(std::string_view names, std::string fallback) {
  const Attr* a = find(names);
  if (!a) return fallback;
  if (const auto* s = data_if<std::string>(a)) return *s;
  fail(invalid_argument(cat("attribute ", show_name(a->name), " is no string")));
  return fallback;
}
std::vector<int64_t> Node::get_ints(std::string_view names) {
  const Attr* a = find(names);
  if (!a) return {};
  if (const auto* list = data_if<std::vector<int64_t>>(a)) return *list;
  if (const auto* i = data_if<int64_t>(a)) return {*i};
  fail(invalid_argument(cat("attribute ", show_name(a->name), " is no list of integers")));
  return {};
}
std::vector<double> Node::get_floats(std::string_view names) {
  const Attr* a = find(names);
  if (!a) return {};
  if (const auto* list = data_if<std::vector<double>>(a)) return *list;
  if (const auto* ints = data_if<std::vector<int64_t>>(a)) return {ints->begin(), ints->end()};
  if (const auto* d = data_if<double>(a)) return {*d};
  fail(invalid_argument(cat("attribute ", show_name(a->name), " is no list of numbers")));
  return {};
}
DType Node::get_dtype(std::string_view names, DType fallback) {
  const Attr* a = find(names);
  if (!a) return fallback;
  std::string word;
  if (const auto* s = data_if<std::string>(a)) word = *s;
  else if (const auto* i = data_if<int64_t>(a)) {
    if (*i < 0) return fallback;
    word = dtype_word(*i);
  }
  if (word.starts_with("Undefined")) return fallback;
  if (const auto d = dtype_named(word)) return *d;
  fail(unimplemented(cat("attribute ", show_name(a->name), " names the element type ", show_name(word))));
  return fallback;
}

Val Node::ints_in(size_t i, std::string_view attr) {
  if (const auto known = known_ints(i, attr)) return w().ints(*known);
  std::vector<Val> parts = list(i);
  for (Val& v : parts) v = w().op("cast", {v}, {{"to", std::string("i64")}});
  if (parts.size() == 1) return reshape(parts[0], {-1});
  for (Val& v : parts) v = reshape(v, {1});
  return concat(std::move(parts));
}
std::optional<std::vector<int64_t>> Node::known_ints(size_t i, std::string_view attr) {
  if (!has_in(i)) return get_ints(attr);
  ignore(attr);  // the operand holds
  std::vector<int64_t> out;
  for (Val v : list(i)) {
    const Tensor* t = w().constant_of(v);
    if (!t || !dtype_is_integer(t->format().dtype())) return std::nullopt;
    for (int64_t k = 0; k < t->numel(); ++k) out.push_back(element_as_int(*t, k));
  }
  return out;
}
Val Node::scalar_in(size_t i, std::string_view attr, double fallback, DType dtype) {
  if (const auto known = known_scalar(i, attr, fallback)) return number(*known, dtype);
  return reshape(cast(in(i), dtype), {});
}
std::optional<double> Node::known_scalar(size_t i, std::string_view attr, double fallback) {
  if (!has_in(i)) return get_float(attr, fallback);
  ignore(attr);
  const Tensor* t = w().constant_of(in(i));
  if (!t || t->numel() != 1) return std::nullopt;
  return element_as_double(*t, 0);
}

Val Node::as_declared(size_t i, Val v) {
  const ValueType* t = out_type(i);
  if (scope_.program().kind != Program::Kind::kLegacy || !t || t->dims != std::vector<int64_t>{1}) return v;
  return reshape(v, {1});
}

}  // namespace paddle

namespace {

IoSpec spec_of(const paddle::Program& program, const paddle::Port& port) {
  IoSpec spec;
  spec.name = port.name;
  const paddle::ValueType& type = program.values[port.value].type;
  if (type.kind != paddle::ValueType::Kind::kTensor) return spec;
  if (const auto d = paddle::dtype_named(type.dtype)) {
    spec.dtype = *d;
    spec.typed = true;
  }
  spec.ranked = true;
  for (int64_t d : type.dims) spec.dims.push_back({d < 0 ? -1 : d, {}});
  return spec;
}

}  // namespace

bool is_paddle_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path p(path);
  if (fs::is_directory(p, ec)) {
    for (const char* name :
         {"inference.json", "inference.pdmodel", "model.json", "model.pdmodel", "__model__"}) {
      if (fs::is_regular_file(p / name, ec)) return true;
    }
    return false;
  }
  return p.extension() == ".pdmodel" || p.extension() == ".json" || p.filename() == "__model__";
}

namespace {

void any_extent(IoDim& d) {
  if (d.value > 0) d.usual = std::exchange(d.value, -1);
}
// Height and width of images are free: a program declares those of its training, and Paddle runs it at others
// (PP-OCR's angle classifier declares 32 x 100 and is meant for 48 x 192).
bool free_image_size(IoSpec& input) {
  if (!input.ranked || input.dims.size() != 4) return false;
  const auto channels = [&](size_t axis) {
    const int64_t n = input.dims[axis].value;
    return n == 1 || n == 3 || n == 4;
  };
  if (!channels(1) && !channels(3)) return false;
  const bool channels_last = !channels(1);
  IoDim &height = input.dims[channels_last ? 1 : 2], &width = input.dims[channels_last ? 2 : 3];
  const bool fixed = height.value > 0 || width.value > 0;
  any_extent(height);
  any_extent(width);
  return fixed;
}
// What follows from them: maps and sequences, not (batch, classes).
void free_size(IoSpec& output) {
  for (size_t k = 1; output.dims.size() > 2 && k < output.dims.size(); ++k) any_extent(output.dims[k]);
}

// `any_size`: tries images of any size; false in it when the program leaves no choice.
Result<ImportedModel> import_program(const paddle::Model& model, bool& any_size) {
  const paddle::Program& program = model.program;
  paddle::Scope scope(program, nullptr);
  ImportedModel out;
  out.format = program.kind == paddle::Program::Kind::kPir ? "paddle.pir" : "paddle";
  out.producer = cat("PaddlePaddle, program version ", program.version);
  for (size_t k = 0; k < program.parameters.size(); ++k) {
    const paddle::ValueIndex v = program.parameters[k];
    scope.define(v, {scope.writer().constant(model.parameters[k], program.values[v].name)});
  }
  bool freed = false;
  for (const paddle::Port& port : program.inputs) {
    out.inputs.push_back(spec_of(program, port));
    if (any_size && free_image_size(out.inputs.back())) freed = true;
    scope.define(port.value, {Val{add_graph_input(*scope.graph(), out.inputs.back())}});
  }
  OAR_RETURN_IF_ERROR(scope.run(program.blocks[0], nullptr));
  for (const paddle::Port& port : program.outputs) {
    const std::vector<Val> vals = scope.lookup(port.value);
    if (vals.size() != 1) {
      return data_loss(cat(program.file, ": output ", show_name(port.name), " is not computed"));
    }
    out.outputs.push_back(spec_of(program, port));
    if (freed) free_size(out.outputs.back());
    scope.graph()->add_output(port.name, vals[0].id);
  }
  if (out.outputs.empty()) return data_loss(cat(program.file, ": the program has no outputs"));
  out.graph = scope.graph();
  any_size = !(freed && scope.relies_on_extents());
  return out;
}

}  // namespace

Result<ImportedModel> import_paddle_model(const paddle::Model& model) {
  if (model.parameters.size() != model.program.parameters.size()) {
    return invalid_argument(cat(model.program.file, ": ", model.parameters.size(),
                                " parameters for a program of ", model.program.parameters.size()));
  }
  bool any_size = true;
  OAR_ASSIGN(ImportedModel imported, import_program(model, any_size));
  if (!any_size) { OAR_ASSIGN(imported, import_program(model, any_size)); }
  return imported;
}

Result<ImportedModel> import_paddle(const std::string& path, const ImportOptions& options) {
  paddle::OpenOptions open;
  open.file.mmap = options.mmap;
  open.threads = options.threads;
  open.parameters = options.parameters;
  OAR_ASSIGN(const paddle::Model model, paddle::open_model(path, open));
  OAR_ASSIGN(ImportedModel imported, import_paddle_model(model));
  imported.files.push_back(model.program.file);
  namespace fs = std::filesystem;
  std::error_code ec;
  if (fs::is_directory(model.parameter_path, ec)) {
    for (const paddle::ValueIndex v : model.program.parameters) {
      imported.files.push_back((fs::path(model.parameter_path) / model.program.values[v].name).string());
    }
  } else if (!model.parameter_path.empty()) {
    imported.files.push_back(model.parameter_path);
  }
  return imported;
}

}  // namespace oar
