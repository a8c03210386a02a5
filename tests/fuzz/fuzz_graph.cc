// Any bytes as a graph in JSON form:
//
//   {"values": [["f32", [2, 3]], ["i64", [2], [0, 1]], ...],      inputs, and constants with their values
//    "nodes": [["softmax", [0], {"axis": 1}], ...]}               an op, its operands by number, attributes
//
// A node's result is numbered behind the values and the nodes before it; the last one is the output. The
// graph is built twice: with types, lowered to a Program and run, and without, through the passes of ordinary
// models and evaluated. Neither may crash or ask for much memory; where both have a result, its shape is one.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "engine/graph/run.h"
#include "engine/tensor/element.h"
#include "tests/fuzz/target.h"

namespace {
using namespace oar;

constexpr int64_t kMostElements = 1 << 14;
constexpr size_t kMostValues = 64;

// Attributes by name: importers see to their types, so a graph has no others.
const std::map<std::string_view, char>& attribute_types() {
  static const std::map<std::string_view, char> types{{"activations", 'S'},
                                                      {"allowzero", 'i'},
                                                      {"alpha", 'f'},
                                                      {"approximate", 's'},
                                                      {"axes", 'I'},
                                                      {"axis", 'i'},
                                                      {"beta", 'f'},
                                                      {"bias", 'f'},
                                                      {"clip", 'f'},
                                                      {"direction", 's'},
                                                      {"ends", 'I'},
                                                      {"epsilon", 'f'},
                                                      {"flatten", 'i'},
                                                      {"group", 'i'},
                                                      {"ignore_index", 'i'},
                                                      {"input_forget", 'i'},
                                                      {"interleaved", 'i'},
                                                      {"is_causal", 'i'},
                                                      {"keepdims", 'i'},
                                                      {"kernel_shape", 'I'},
                                                      {"kv_num_heads", 'i'},
                                                      {"layout", 'i'},
                                                      {"linear_before_reset", 'i'},
                                                      {"momentum", 'f'},
                                                      {"norm_eps", 'f'},
                                                      {"noop_with_empty_axes", 'i'},
                                                      {"num_groups", 'i'},
                                                      {"num_heads", 'i'},
                                                      {"p", 'i'},
                                                      {"pads", 'I'},
                                                      {"perm", 'I'},
                                                      {"q_num_heads", 'i'},
                                                      {"reduction", 's'},
                                                      {"rotary_dim", 'i'},
                                                      {"rows", 's'},
                                                      {"scale", 'f'},
                                                      {"shape", 'I'},
                                                      {"size", 'i'},
                                                      {"softcap", 'f'},
                                                      {"starts", 'I'},
                                                      {"steps", 'I'},
                                                      {"strides", 'I'},
                                                      {"to", 's'},
                                                      {"training_mode", 'i'},
                                                      {"left_window_size", 'i'},
                                                      {"right_window_size", 'i'}};
  return types;
}

std::optional<std::vector<int64_t>> integers(const json::value& v) {
  const json::array* list = v.if_array();
  if (list == nullptr || list->size() > 64) return std::nullopt;
  std::vector<int64_t> out;
  for (const json::value& e : *list) {
    if (!e.is_int64()) return std::nullopt;
    out.push_back(e.get_int64());
  }
  return out;
}

std::optional<AttrValue> attribute(std::string_view name, const json::value& v) {
  const auto type = attribute_types().find(name);
  if (type == attribute_types().end()) return std::nullopt;
  const auto text = [](const json::value& e) { return std::string(std::string_view(e.get_string())); };
  switch (type->second) {
    case 'i': return v.is_int64() ? std::optional<AttrValue>(v.get_int64()) : std::nullopt;
    case 'f': return v.is_number() ? std::optional<AttrValue>(v.to_number<double>()) : std::nullopt;
    case 's': return v.is_string() ? std::optional<AttrValue>(text(v)) : std::nullopt;
    case 'I': {
      auto list = integers(v);
      return list ? std::optional<AttrValue>(std::move(*list)) : std::nullopt;
    }
    default: {
      const json::array* list = v.if_array();
      std::vector<std::string> out;
      for (size_t k = 0; list != nullptr && k < list->size(); ++k) {
        if (!(*list)[k].is_string()) return std::nullopt;
        out.push_back(text((*list)[k]));
      }
      return list != nullptr ? std::optional<AttrValue>(std::move(out)) : std::nullopt;
    }
  }
}

// A body comes with the graph around it, which this form has none of.
bool has_bodies(const OpDef& op) {
  const std::string_view name = op.name;
  return name == "if" || name == "loop" || name == "scan" || name == "sequence_map";
}

struct GraphValue {
  Tensor tensor;
  bool constant = false;
};
struct GraphNode {
  const OpDef* op = nullptr;
  std::vector<int64_t> inputs;
  Attrs attrs;
};
struct Parsed {
  std::vector<GraphValue> values;
  std::vector<GraphNode> nodes;
};

// Small numbers of every sign, or those given.
bool fill(Tensor& t, const std::vector<int64_t>* given) {
  return dispatch_number(t.format().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    for (int64_t k = 0; k < t.numel(); ++k) {
      const int64_t v = given != nullptr ? (*given)[static_cast<size_t>(k)] : k % 5 - 2;
      const bool plain = t.format().dtype() == DType::kBool || std::is_integral_v<C>;
      mutable_elements<T>(t)[k] = Element<T>::store(given != nullptr ? static_cast<C>(v)
                                                    : plain          ? static_cast<C>(k % 2)
                                                                     : static_cast<C>(0.5 * double(v)));
    }
  });
}

std::optional<Parsed> parse(std::string_view bytes) {
  const auto root = parse_json(bytes, "a graph");
  const json::object* o = root.ok() ? root->if_object() : nullptr;
  const json::value *values = o ? o->if_contains("values") : nullptr,
                    *nodes = o ? o->if_contains("nodes") : nullptr;
  if (!values || !values->is_array() || !nodes || !nodes->is_array() ||
      values->get_array().size() + nodes->get_array().size() > kMostValues)
    return std::nullopt;
  Parsed p;
  for (const json::value& v : values->get_array()) {
    const json::array* a = v.if_array();
    if (a == nullptr || a->size() < 2 || a->size() > 3 || !(*a)[0].is_string()) return std::nullopt;
    const auto dtype = parse_dtype(std::string_view((*a)[0].get_string()));
    const auto dims = integers((*a)[1]);
    if (!dtype || *dtype == DType::kBytes || *dtype == DType::kString || !dims) return std::nullopt;
    const auto shape = checked_shape(*dims);
    if (!shape.ok() || shape->numel() > kMostElements) return std::nullopt;
    auto t = allocate_elements(*shape, *dtype);
    const auto given = a->size() == 3 ? integers((*a)[2]) : std::nullopt;
    if (!t.ok() || (a->size() == 3 && (!given || static_cast<int64_t>(given->size()) != shape->numel())))
      return std::nullopt;
    if (!fill(*t, given ? &*given : nullptr)) return std::nullopt;
    p.values.push_back({std::move(*t), given.has_value()});
  }
  for (const json::value& v : nodes->get_array()) {
    const json::array* a = v.if_array();
    if (a == nullptr || a->size() != 3 || !(*a)[0].is_string() || !(*a)[2].is_object()) return std::nullopt;
    GraphNode n;
    n.op = find_op(std::string_view((*a)[0].get_string()));
    const auto inputs = integers((*a)[1]);
    if (n.op == nullptr || n.op->evaluate == nullptr || n.op->impure || has_bodies(*n.op) || !inputs ||
        inputs->empty() || inputs->size() > 8)
      return std::nullopt;
    for (const int64_t i : *inputs) {  // -1: left out
      if (i < -1 || i >= static_cast<int64_t>(p.values.size() + p.nodes.size())) return std::nullopt;
    }
    n.inputs = *inputs;
    for (const auto& [name, value] : (*a)[2].get_object()) {
      const auto attr = attribute(name, value);
      if (!attr) return std::nullopt;
      n.attrs.set(name, *attr);
    }
    p.nodes.push_back(std::move(n));
  }
  return p.nodes.empty() ? std::nullopt : std::optional(std::move(p));
}

// Adds values and nodes by `add`, which returns the result or kNoValue to stop.
template <class Add>
bool build(const Parsed& p, Graph& g, bool typed, Add&& add) {
  std::vector<ValueId> ids;
  for (size_t k = 0; k < p.values.size(); ++k) {
    const Tensor& t = p.values[k].tensor;
    TensorType type{t.format(), {}};
    for (const int64_t d : t.shape()) type.shape.emplace_back(d);
    ids.push_back(p.values[k].constant ? g.add_constant("", t)
                                       : g.add_input(cat("x", k), typed ? type : TensorType::unknown()));
  }
  for (const GraphNode& n : p.nodes) {
    std::vector<ValueId> in;
    for (const int64_t i : n.inputs) in.push_back(i < 0 ? kNoValue : ids[static_cast<size_t>(i)]);
    ids.push_back(add(n, in));
    if (ids.back() == kNoValue) return false;
  }
  g.add_output("y", ids.back());
  return true;
}

// With types, as a Program.
std::optional<Shape> planned(const Parsed& p, Backend& backend) {
  Graph g;
  const bool built = build(p, g, true, [&](const GraphNode& n, const std::vector<ValueId>& in) {
    // Shape rules are asked by builders, who leave out nothing that is needed.
    if (std::find(in.begin(), in.end(), kNoValue) != in.end() && n.op->infer != nullptr) return kNoValue;
    const auto made = g.add_node(n.op, in, n.attrs);
    if (!made.ok()) return kNoValue;
    int64_t elements = 1;
    for (const Dim& d : g.value((*made)[0]).type.shape) {
      elements = std::min<int64_t>(elements * std::min<int64_t>(d.const_value(), 1 << 20), 1 << 20);
    }
    // Graphs with types have no empty values.
    return elements == 0 || elements > kMostElements ? kNoValue : (*made)[0];
  });
  if (!built || std::any_of(p.values.begin(), p.values.end(),
                            [](const GraphValue& v) { return v.tensor.numel() == 0; }))
    return std::nullopt;
  const auto program = Program::create(std::move(g), backend, {});
  if (!program.ok()) return std::nullopt;
  const auto run = Run::create(*program);
  if (!run.ok()) return std::nullopt;
  std::vector<const void*> bytes;
  for (const GraphValue& v : p.values) {
    if (!v.constant) bytes.push_back(v.tensor.data());
  }
  if (!(*run)->run(std::vector<int64_t>{}, bytes).ok()) return std::nullopt;
  const Operand y = (*run)->output(0);
  return Shape(std::span(y.dims, static_cast<size_t>(y.rank)));
}

// Without, by the passes and an Evaluator.
std::optional<Shape> evaluated(const Parsed& p, Backend& backend) {
  Graph g;
  build(p, g, false, [&](const GraphNode& n, const std::vector<ValueId>& in) {
    return g.append(n.op, in, 1, n.attrs)[0];
  });
  if (!run_passes(g, tensor_passes(), {}).ok()) return std::nullopt;
  const auto evaluator = Evaluator::create(std::make_shared<const Graph>(std::move(g)), backend);
  if (!evaluator.ok()) return std::nullopt;
  EvalOptions options;
  options.backend = &backend;
  options.tensor_limit = 1 << 20;
  options.loop_limit = 20;
  std::vector<Datum> inputs;
  for (const GraphValue& v : p.values) {
    if (!v.constant) inputs.emplace_back(v.tensor);
  }
  const auto out = (*evaluator)->run(std::move(inputs), options);
  return out.ok() && (*out)[0].is_tensor() ? std::optional((*out)[0].tensor.shape()) : std::nullopt;
}

void run_both(const Parsed& p, Backend& backend) {
  const auto a = planned(p, backend), b = evaluated(p, backend);
  if (!a || !b || *a == *b) return;
  std::fprintf(stderr, "planned %s, evaluated %s\n", a->to_string().c_str(), b->to_string().c_str());
  std::abort();
}

// One thing of the graph becomes another.
class Editor {
  template <class List>
  auto& any(List& list) {
    return list[random_() % list.size()];
  }

 public:
  explicit Editor(uint64_t seed) : random_(seed) {}
  void edit(Parsed& p) {
    GraphNode& n = any(p.nodes);
    switch (random_() % 4) {
      case 0: any(n.inputs) = static_cast<int64_t>(random_() % (p.values.size() + index_of(p, n))); return;
      case 1: return resize(any(p.values));
      case 2: return change(n.attrs);
      default: n.op = any(ops());
    }
  }

 private:
  static size_t index_of(const Parsed& p, const GraphNode& n) {
    return static_cast<size_t>(&n - p.nodes.data());
  }
  static const std::vector<const OpDef*>& ops() {
    static const std::vector<const OpDef*> some = [] {
      std::vector<const OpDef*> out;
      for (const OpDef* op : all_ops()) {
        if (op->evaluate != nullptr && !op->impure && !has_bodies(*op)) out.push_back(op);
      }
      return out;
    }();
    return some;
  }
  void resize(GraphValue& v) {
    static constexpr int64_t kExtents[] = {0, 1, 2, 3, 5, 7, 33};
    std::vector<int64_t> dims(v.tensor.shape().begin(), v.tensor.shape().end());
    if (dims.empty() || random_() % 8 == 0) dims.push_back(2);
    else if (random_() % 8 == 0) dims.pop_back();
    else any(dims) = kExtents[random_() % std::size(kExtents)];
    const auto shape = checked_shape(dims);
    if (!shape.ok() || shape->numel() > kMostElements) return;
    auto t = allocate_elements(*shape, v.tensor.format().dtype());
    if (t.ok() && fill(*t, nullptr)) v.tensor = std::move(*t);
  }
  void change(Attrs& attrs) {
    static constexpr int64_t kNumbers[] = {-7, -2, -1, 0, 1, 2, 3, 5, INT32_MAX, INT64_MAX, INT64_MIN};
    const auto number = [&] { return kNumbers[random_() % std::size(kNumbers)]; };
    if (attrs.items().empty()) return attrs.set("axis", number());
    const auto [name, value] = attrs.items()[random_() % attrs.items().size()];
    if (std::holds_alternative<int64_t>(value)) attrs.set(name, number());
    if (std::holds_alternative<double>(value)) attrs.set(name, 0.5 * static_cast<double>(number()));
    auto list = value;
    if (auto* ints = std::get_if<std::vector<int64_t>>(&list)) {
      if (ints->empty() || random_() % 4 == 0) ints->push_back(number());
      else any(*ints) = number();
      attrs.set(name, *ints);
    }
  }
  std::mt19937_64 random_;
};

}  // namespace

OAR_FUZZ_TARGET(graph) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto parsed = parse(bytes);
  if (!parsed) return 0;
  static const auto backend =
      make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 1}), best_isa());
  run_both(*parsed, *backend);
  Editor editor(std::hash<std::string_view>{}(bytes));
  for (int k = 0; k < 30; ++k) {
    Parsed p = *parsed;
    for (int edits = 0; edits <= k % 3; ++edits) editor.edit(p);
    run_both(p, *backend);
  }
  return 0;
}
