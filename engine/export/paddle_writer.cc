#include "engine/export/paddle_writer.h"

#include <algorithm>
#include <numeric>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"

namespace oar::paddle {

using Ints = std::vector<int64_t>;

Declared declared(const Tensor& t) {
  const auto extents = t.shape();
  return {t.format().dtype(), std::vector<int64_t>(extents.begin(), extents.end())};
}

// ---- ProgramWriter ----

std::string ProgramWriter::unique(std::string_view wanted) {
  if (wanted.empty()) wanted = "v";
  std::string name(wanted);
  for (int n = 2; !taken.insert(name).second; ++n) name = cat(wanted, "_", n);
  return name;
}

Result<ValueIndex> ProgramWriter::add_value(std::string_view wanted_name, const Declared& type) {
  const std::string_view word = word_of(type.dtype);
  if (word.empty())
    return unimplemented(
        cat("a value of ", dtype_name(type.dtype), ", which Paddle cannot express; write ONNX instead"));
  Value v;
  v.name = unique(wanted_name);
  v.type.kind = ValueType::Kind::kTensor;
  v.type.dtype = word;
  v.type.dims = type.dims;
  program.values.push_back(std::move(v));
  types_.push_back(type);
  return static_cast<ValueIndex>(program.values.size() - 1);
}

Result<ValueIndex> ProgramWriter::add_parameter(const Tensor& t, std::string_view wanted_name) {
  const Declared type = declared(t);
  const auto key = std::tuple(t.data(), type.dtype, type.dims);
  if (const auto it = shared_.find(key); t.bytes() > 0 && it != shared_.end()) return it->second;
  OAR_ASSIGN(const ValueIndex v, add_value(wanted_name.empty() ? "constant" : wanted_name, type));
  shared_[key] = v;
  if (type.dtype == DType::kI64 && type.rank() == 1 && t.numel() <= Shape::kMaxRank)
    for (int64_t k = 0; k < t.numel(); ++k) extents[v].push_back(element_as_int(t, k));
  program.values[static_cast<size_t>(v)].parameter = true;
  program.parameters.push_back(v);
  parameters.push_back(t);
  return v;
}

void ProgramWriter::sort_parameters() {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto name = [&](size_t k) -> const std::string& {
    return program.values[static_cast<size_t>(program.parameters[k])].name;
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return name(a) < name(b); });
  std::vector<ValueIndex> values;
  std::vector<Tensor> tensors;
  for (const size_t k : order) {
    values.push_back(program.parameters[k]);
    tensors.push_back(parameters[k]);
  }
  program.parameters = std::move(values);
  parameters = std::move(tensors);
}

// ---- BlockWriter ----

const Tensor* BlockWriter::known(ValueId id) const {
  const oar::Value& v = graph_.value(id);
  if (v.kind == ValueKind::kConstant) return &v.constant;
  const auto it = known_.find(id);
  return it == known_.end() ? nullptr : &it->second;
}

Result<ValueIndex> BlockWriter::value_of(ValueId id) {
  if (id == kNoValue) return kAbsent;
  if (const auto it = values_.find(id); it != values_.end()) return it->second;
  const oar::Value& v = graph_.value(id);
  const Tensor* t = known(id);
  if (t == nullptr) return unimplemented(cat("'", v.name, "' is computed by nothing that Paddle has"));
  OAR_ASSIGN(const ValueIndex index, file_.add_parameter(*t, v.name));
  return values_[id] = index;
}

Result<Declared> BlockWriter::type_of(ValueId id) {
  if (const Tensor* t = known(id)) return declared(*t);
  OAR_ASSIGN(const ValueIndex v, value_of(id));
  return file_.type(v);
}

// What depends on constants alone is computed here, as long as the file does not grow by it: shapes and axes
// become known, and nobody computes again what never changes.
Result<bool> BlockWriter::fold(const Node& node) {
  constexpr uint64_t kSmall = 4096;
  if (node.op->evaluate == nullptr || node.op->impure || !node.subgraphs.empty()) return false;
  std::vector<Datum> in(node.inputs.size());
  std::vector<const Datum*> operands(in.size(), nullptr);
  uint64_t bytes = 0;
  for (size_t k = 0; k < in.size(); ++k) {
    if (node.inputs[k] == kNoValue) continue;
    const Tensor* t = known(node.inputs[k]);
    if (t == nullptr || !t->has_bytes()) return false;
    bytes += t->bytes();
    in[k] = Datum(*t);
    operands[k] = &in[k];
  }
  EvalOptions options;
  options.tensor_limit = std::max(bytes, kSmall);
  auto results = compute_op(node, operands, options);
  if (!results.ok()) return false;  // the op's own writer, or the other runtime, has the last word
  uint64_t made = 0;
  for (const Datum& d : *results) {
    if (!d.is_tensor() || word_of(d.tensor.format().dtype()).empty()) return false;
    made += d.tensor.bytes();
  }
  if (made > std::max(bytes, kSmall)) return false;
  for (size_t k = 0; k < node.outputs.size(); ++k) set_known(node.outputs[k], (*results)[k].tensor);
  return true;
}

Status BlockWriter::write_nodes() {
  for (const Node& node : graph_.nodes()) {
    OAR_ASSIGN(const bool folded, fold(node));
    if (folded) continue;
    const OpWriterEntry* entry = nullptr;
    for (const auto part : {math_writers(), shape_writers(), index_writers(), layer_writers(),
                            recurrent_writers(), quantize_writers(), control_writers()}) {
      for (const OpWriterEntry& e : part)
        if (e.ours == node.op->name) entry = &e;
    }
    const auto named = [&](const Status& s) {
      if (s.message().starts_with("node '")) return s;  // of a body: it has named itself
      return Status(s.code(), cat("node '", node.name, "' (", node.op->name, "): ", s.message()));
    };
    if (entry == nullptr) return named(unimplemented("Paddle has no op for it; write ONNX instead"));
    NodeWriter n(*this, node);
    entry->write(n);
    if (!n.status().ok()) return named(n.status());
  }
  return ok_status();
}

// ---- NodeWriter: operands ----

void NodeWriter::fail(std::string why) {
  if (status_.ok()) status_ = unimplemented(cat(why, ", which Paddle cannot express; write ONNX instead"));
}

ValueIndex NodeWriter::in(size_t i) {
  if (!has(i)) return kAbsent;
  auto v = block_.value_of(node_.inputs[i]);
  if (v.ok()) return *v;
  fail(v.status());
  return kAbsent;
}

Declared NodeWriter::in_type(size_t i) {
  if (!has(i)) return fail(cat("operand ", i, " is left out")), Declared{};
  auto t = block_.type_of(node_.inputs[i]);
  if (t.ok()) return *t;
  fail(t.status());
  return {};
}

std::optional<std::vector<int64_t>> NodeWriter::known_ints(size_t i) const {
  const Tensor* t = known(i);
  if (t == nullptr || !dtype_is_integer(t->format().dtype())) return std::nullopt;
  std::vector<int64_t> out;
  for (int64_t k = 0; k < t->numel(); ++k) out.push_back(element_as_int(*t, k));
  return out;
}
std::vector<int64_t> NodeWriter::want_ints(size_t i, const char* what) {
  auto v = known_ints(i);
  if (!v) fail(cat("operand ", i, " (", what, ") is ", has(i) ? "computed" : "left out"));
  return v.value_or(std::vector<int64_t>{});
}
std::optional<std::vector<int64_t>> NodeWriter::ints_or_attr(size_t i, const char* attr) {
  if (has(i)) return want_ints(i, attr);
  if (attrs().has(attr)) return attrs().get_ints(attr);
  return std::nullopt;
}
std::optional<double> NodeWriter::known_number(size_t i) const {
  const Tensor* t = known(i);
  if (t == nullptr || t->numel() != 1) return std::nullopt;
  return element_as_double(*t, 0);
}

void NodeWriter::expect_attrs(std::initializer_list<std::string_view> names) {
  for (const auto& [name, value] : attrs().items())
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail(cat("attribute '", name, "' is set"));
}

bool NodeWriter::wants(size_t i) const {
  if (i >= node_.outputs.size()) return false;
  const ValueId id = node_.outputs[i];
  for (const Node& other : block_.graph().nodes())
    if (std::find(other.inputs.begin(), other.inputs.end(), id) != other.inputs.end()) return true;
  for (const Graph::Output& o : block_.graph().outputs())
    if (o.value == id) return true;
  return false;
}
void NodeWriter::out(size_t i, ValueIndex v) {
  if (i < node_.outputs.size() && v != kAbsent) block_.bind(node_.outputs[i], v);
}

// ---- NodeWriter: ops ----

const Declared& NodeWriter::type(ValueIndex v) const {
  static const Declared none;
  return v == kAbsent ? none : block_.file().type(v);
}

std::vector<std::vector<ValueIndex>> NodeWriter::emit(std::string_view name, std::vector<Operand> in,
                                                      std::vector<Attr> attrs,
                                                      const std::vector<std::vector<Declared>>& types) {
  std::vector<std::vector<ValueIndex>> results;
  for (const auto& slot : types) results.emplace_back(slot.size(), kAbsent);
  if (!status_.ok()) return results;
  Op op;
  op.type = name;
  op.attrs = std::move(attrs);
  for (Operand& o : in) op.inputs.push_back({"", std::move(o.values)});
  const std::string_view wanted = node_.name.empty() ? name : std::string_view(node_.name);
  for (size_t k = 0; k < types.size(); ++k) {
    for (size_t j = 0; j < types[k].size(); ++j) {
      auto v = file().add_value(wanted, types[k][j]);
      if (!v.ok()) return fail(v.status()), results;
      results[k][j] = *v;
    }
    op.outputs.push_back({"", results[k]});
  }
  block_.add_op(std::move(op));
  return results;
}
ValueIndex NodeWriter::op(std::string_view name, std::vector<Operand> in, std::vector<Attr> attrs,
                          const Declared& type) {
  return emit(name, std::move(in), std::move(attrs), {{type}})[0][0];
}

ValueIndex NodeWriter::ints(const std::vector<int64_t>& v) {
  return op("full_int_array", {}, {{"value", v}}, {DType::kI64, {static_cast<int64_t>(v.size())}});
}
ValueIndex NodeWriter::number(double v, DType dtype, std::vector<int64_t> shape) {
  return op("full", {}, {{"shape", shape}, {"value", v}, {"dtype", std::string(word_of(dtype))}},
            {dtype, shape});
}
ValueIndex NodeWriter::in_shaped(size_t i, const std::vector<int64_t>& dims) {
  const Tensor* t = known(i);
  if (t == nullptr) return in_type(i).dims == dims ? in(i) : reshape(in(i), dims);
  Ints whole = dims;
  if (whole == Ints{-1}) whole[0] = t->numel();
  auto shaped = Tensor::make(Shape(std::span<const int64_t>(whole)), t->format(), t->buffer());
  if (!shaped.ok()) return fail(shaped.status()), kAbsent;
  return constant(*shaped, block_.graph().value(node_.inputs[i]).name);
}
ValueIndex NodeWriter::constant(const Tensor& t, std::string_view name) {
  if (!status_.ok()) return kAbsent;
  auto v = file().add_parameter(t, name);
  if (v.ok()) return *v;
  fail(v.status());
  return kAbsent;
}
ValueIndex NodeWriter::constant(std::span<const double> v, DType dtype, std::vector<int64_t> dims) {
  Tensor t = must(allocate_elements(Shape(std::span<const int64_t>(dims)), dtype));
  dispatch_number(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    for (size_t k = 0; k < v.size(); ++k) {
      if constexpr (std::is_integral_v<C>)
        mutable_elements<T>(t)[k] = Element<T>::store(saturate_cast<C>(v[k]));
      else mutable_elements<T>(t)[k] = Element<T>::store(static_cast<C>(v[k]));
    }
  });
  return constant(t);
}

// ---- NodeWriter: shorthands ----

ValueIndex NodeWriter::binary(std::string_view name, ValueIndex a, ValueIndex b) {
  const auto dims = broadcast(type(a).dims, type(b).dims);
  if (!dims) return fail("operands of shapes that do not broadcast"), kAbsent;
  if (type(a).dtype != type(b).dtype) b = cast(b, type(a).dtype);
  return op(name, {a, b}, {}, {type(a).dtype, *dims});
}
ValueIndex NodeWriter::compare(std::string_view name, ValueIndex a, ValueIndex b) {
  const auto dims = broadcast(type(a).dims, type(b).dims);
  if (!dims) return fail("operands of shapes that do not broadcast"), kAbsent;
  return op(name, {a, b}, {}, {DType::kBool, *dims});
}
ValueIndex NodeWriter::cast(ValueIndex x, DType to) {
  const std::string_view word = word_of(to);
  if (word.empty()) return fail(cat("a value of ", dtype_name(to))), kAbsent;
  return op("cast", {x}, {{"dtype", std::string(word)}, {"in_dtype", std::string(word_of(type(x).dtype))}},
            {to, type(x).dims});
}
ValueIndex NodeWriter::reshape(ValueIndex x, const std::vector<int64_t>& shape) {
  const Declared& from = type(x);
  std::vector<int64_t> dims = shape;
  for (size_t k = 0; k < dims.size(); ++k)
    if (dims[k] == 0) dims[k] = k < from.dims.size() ? from.dims[k] : -1;
  // The one open extent follows where all others are known.
  const auto open = std::find(dims.begin(), dims.end(), -1);
  const auto all = count_of(from.dims);
  if (open != dims.end() && all && std::count(dims.begin(), dims.end(), -1) == 1) {
    *open = 1;
    const auto rest = count_of(dims);
    *open = rest && *rest > 0 ? *all / *rest : -1;
  }
  return op("reshape", {x, ints(shape)}, {}, {from.dtype, dims});
}
std::vector<int64_t> NodeWriter::extents(ValueIndex shape) {
  const Declared& t = type(shape);
  if (t.rank() != 1 || t.dims[0] < 0) return fail("a shape of unknown length"), std::vector<int64_t>{};
  const auto it = file().extents.find(shape);
  return it != file().extents.end() ? it->second : std::vector<int64_t>(static_cast<size_t>(t.dims[0]), -1);
}
ValueIndex NodeWriter::reshape_to(ValueIndex x, ValueIndex shape) {
  std::vector<int64_t> dims = extents(shape);
  for (int64_t& d : dims) d = d == 0 ? -1 : d;  // "as it was", or none
  return op("reshape", {x, shape}, {}, {type(x).dtype, dims});
}
ValueIndex NodeWriter::transpose(ValueIndex x, const std::vector<int64_t>& perm) {
  Declared t = type(x);
  if (perm.size() != t.dims.size()) return fail(cat("a permutation of ", perm.size(), " axes")), kAbsent;
  for (size_t k = 0; k < perm.size(); ++k) {
    if (perm[k] < 0 || perm[k] >= t.rank()) return fail("a permutation out of range"), kAbsent;
    t.dims[k] = type(x).dims[static_cast<size_t>(perm[k])];
  }
  return op("transpose", {x}, {{"perm", perm}}, t);
}
ValueIndex NodeWriter::squeeze(ValueIndex x, const std::vector<int64_t>& axes) {
  Declared t = type(x);
  const auto at = positive_axes(axes, t.rank());
  if (!at) return fail("axes out of range"), kAbsent;
  std::set<int64_t, std::greater<>> order(at->begin(), at->end());
  for (const int64_t a : order) t.dims.erase(t.dims.begin() + a);
  return op("squeeze", {x, ints(*at)}, {}, t);
}
ValueIndex NodeWriter::unsqueeze(ValueIndex x, const std::vector<int64_t>& axes) {
  Declared t = type(x);
  const auto at = positive_axes(axes, t.rank() + static_cast<int>(axes.size()));
  if (!at) return fail("axes out of range"), kAbsent;
  const std::set<int64_t> order(at->begin(), at->end());
  if (order.size() != at->size()) return fail("an axis that is given twice"), kAbsent;
  for (const int64_t a : order) t.dims.insert(t.dims.begin() + a, 1);
  return op("unsqueeze", {x, ints({order.begin(), order.end()})}, {}, t);
}
ValueIndex NodeWriter::concat(const std::vector<ValueIndex>& parts, int64_t axis) {
  if (parts.empty()) return fail("nothing to concatenate"), kAbsent;
  Declared t = type(parts[0]);
  const auto at = positive_axes({axis}, t.rank());
  if (!at) return fail(cat("axis ", axis, " of rank ", t.rank())), kAbsent;
  const auto a = static_cast<size_t>((*at)[0]);
  for (size_t k = 1; k < parts.size(); ++k) {
    const Declared& p = type(parts[k]);
    if (p.rank() != t.rank()) return fail("operands of different ranks"), kAbsent;
    for (size_t d = 0; d < t.dims.size(); ++d) {
      if (d == a) t.dims[d] = t.dims[d] < 0 || p.dims[d] < 0 ? -1 : t.dims[d] + p.dims[d];
      else if (t.dims[d] < 0) t.dims[d] = p.dims[d];
    }
  }
  const ValueIndex y = op("concat", {parts, number(static_cast<double>(a), DType::kI32)}, {}, t);
  if (t.dtype == DType::kI64 && t.rank() == 1 && t.dims[0] >= 0 && t.dims[0] <= Shape::kMaxRank) {
    std::vector<int64_t> all;
    for (const ValueIndex p : parts)
      for (const int64_t d : extents(p)) all.push_back(d);
    file().extents[y] = std::move(all);
  }
  return y;
}
ValueIndex NodeWriter::shape_of(ValueIndex x) {
  const ValueIndex y = op("shape64", {x}, {}, {DType::kI64, {type(x).rank()}});
  file().extents[y] = type(x).dims;
  return y;
}
ValueIndex NodeWriter::slice(ValueIndex x, int64_t axis, int64_t begin, int64_t end) {
  Declared t = type(x);
  int64_t& extent = t.dims[static_cast<size_t>(axis)];
  if (extent >= 0) {
    const auto at = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + extent : v, 0, extent); };
    extent = std::max<int64_t>(at(end) - at(begin), 0);
  } else if (begin >= 0 && end >= 0 && begin == 0 && end == 1) {
    extent = 1;
  }
  const ValueIndex y =
      op("slice", {x, ints({begin}), ints({std::min<int64_t>(end, INT32_MAX)})},
         {{"axes", std::vector<int64_t>{axis}}, {"infer_flags", std::vector<int64_t>{1}}}, t);
  const auto known = file().extents.find(x);
  if (known != file().extents.end() && t.rank() == 1 && extent >= 0) {
    const auto n = static_cast<int64_t>(known->second.size());
    const int64_t from = std::clamp<int64_t>(begin < 0 ? begin + n : begin, 0, n);
    file().extents[y] = {known->second.begin() + from, known->second.begin() + from + extent};
  }
  return y;
}
ValueIndex NodeWriter::expand(ValueIndex x, const std::vector<int64_t>& dims) {
  Declared t = type(x);
  const size_t head = dims.size() - t.dims.size();
  std::vector<int64_t> result = dims;
  for (size_t k = head; k < dims.size(); ++k)
    if (dims[k] == -1) result[k] = t.dims[k - head];
  t.dims = std::move(result);
  return op("expand", {x, ints(dims)}, {}, t);
}
ValueIndex NodeWriter::expand_to(ValueIndex x, ValueIndex shape) {
  return op("expand", {x, shape}, {}, {type(x).dtype, extents(shape)});
}
ValueIndex NodeWriter::select(ValueIndex condition, ValueIndex a, ValueIndex b) {
  if (type(b).dtype != type(a).dtype) b = cast(b, type(a).dtype);
  const DType dtype = type(a).dtype;
  auto dims = broadcast(type(a).dims, type(b).dims);
  if (dims) dims = broadcast(*dims, type(condition).dims);
  if (!dims) return fail("operands of shapes that do not broadcast"), kAbsent;
  const bool fixed = count_of(*dims).has_value();
  const auto fits = [&](ValueIndex v) { return fixed && type(v).dims == *dims; };
  ValueIndex shape = kAbsent;  // where it has to be computed: that of a sum
  if (!fixed) {
    const bool flags = dtype == DType::kBool;
    const ValueIndex c = flags ? condition : cast(condition, dtype);
    const char* plus = flags ? "logical_or" : "add";
    shape = shape_of(binary(plus, binary(plus, a, b), c));
    file().extents[shape] = *dims;
  }
  const auto spread = [&](ValueIndex v) {
    return fits(v) ? v : fixed ? expand(v, *dims) : expand_to(v, shape);
  };
  return op("where", {spread(condition), spread(a), spread(b)}, {}, {dtype, *dims});
}
ValueIndex NodeWriter::reduce(std::string_view name, ValueIndex x, std::vector<int64_t> axes, bool keep) {
  Declared t = type(x);
  const auto at = positive_axes(std::move(axes), t.rank());
  if (!at) return fail("axes out of range"), kAbsent;
  if (at->empty()) return x;
  const std::set<int64_t, std::greater<>> order(at->begin(), at->end());
  for (const int64_t a : order) {
    if (keep) t.dims[static_cast<size_t>(a)] = 1;
    else t.dims.erase(t.dims.begin() + a);
  }
  std::vector<Attr> attrs{{"keepdim", keep}};
  if (name == "sum") attrs.push_back({"dtype", std::string(word_of(t.dtype))});
  return op(name, {x, ints({order.rbegin(), order.rend()})}, std::move(attrs), t);
}

// ---- extents ----

std::optional<std::vector<int64_t>> broadcast(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> out(std::max(a.size(), b.size()));
  for (size_t k = 0; k < out.size(); ++k) {
    const int64_t x = k < a.size() ? a[a.size() - 1 - k] : 1, y = k < b.size() ? b[b.size() - 1 - k] : 1;
    int64_t& d = out[out.size() - 1 - k];
    if (x == 1) d = y;
    else if (y == 1 || x == y) d = x;
    else if (x < 0) d = y;
    else if (y < 0) d = x;
    else return std::nullopt;
  }
  return out;
}

std::optional<std::vector<int64_t>> positive_axes(std::vector<int64_t> axes, int rank) {
  for (int64_t& a : axes) {
    if (a < -rank || a >= rank) return std::nullopt;
    if (a < 0) a += rank;
  }
  return axes;
}

std::optional<int64_t> count_of(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (const int64_t d : dims)
    if (d < 0 || __builtin_mul_overflow(n, d, &n)) return std::nullopt;
  return n;
}

}  // namespace oar::paddle
