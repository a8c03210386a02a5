#include "engine/graph/passes/grad.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/builder.h"
#include "engine/graph/derived.h"
#include "engine/graph/pass.h"

namespace oar::passes {
namespace {

bool is_float(const TensorType& t) {
  return t.known && (!t.format.plain() || dtype_is_float(t.format.dtype()));
}

std::string called(const Graph& g, ValueId v) {
  const Value& value = g.value(v);
  return value.name.empty() ? cat("%", v) : cat("'", value.name, "'");
}
std::string called(const Node& n) { return n.name.empty() ? n.op->name : cat(n.op->name, " '", n.name, "'"); }

class Differentiator {
 public:
  Differentiator(Graph& g, std::span<const ValueId> inputs) : g_(g), b_(g), leaf_(g.num_values(), 0) {
    for (const ValueId v : inputs) leaf_[static_cast<size_t>(v)] = 1;
    active_ = leaf_;
    mark(0);
  }
  Builder& builder() { return b_; }

  // What flows into v, added up.
  void add(ValueId v, Val d) {
    if (!d || !b_.status().ok()) return;
    if (static_cast<size_t>(v) >= sum_.size()) sum_.resize(static_cast<size_t>(v) + 1);
    Val& sum = sum_[static_cast<size_t>(v)];
    sum = sum ? b_.op("add", {sum, d}) : d;
  }
  Val sum(ValueId v) const {
    return static_cast<size_t>(v) < sum_.size() ? sum_[static_cast<size_t>(v)] : Val{};
  }

  // Nodes [begin, end) from the last to the first.
  Status sweep(size_t begin, size_t end) {
    for (size_t i = end; i-- > begin;) {
      const Node node = g_.nodes()[i];  // a copy: nodes are appended
      OAR_RETURN_IF_ERROR(pass(node));
      if (b_.status().ok()) continue;
      const Status& s = b_.status();
      return Status(s.code(), cat("the gradient of ", called(node), wanting(node), ": ", s.message()));
    }
    return ok_status();
  }

 private:
  // Which values of nodes from `first` on depend on an input by a way that is not piecewise constant.
  void mark(size_t first) {
    active_.resize(g_.num_values(), 0), leaf_.resize(g_.num_values(), 0);
    for (size_t i = first; i < g_.nodes().size(); ++i) {
      const Node& n = g_.nodes()[i];
      if (n.op->piecewise_constant || !any_active(n)) continue;
      for (const ValueId v : n.outputs) {
        if (v == kNoValue) continue;  // left out
        active_[static_cast<size_t>(v)] |= !g_.value(v).type.known || is_float(g_.value(v).type) ? 1 : 0;
      }
    }
  }
  // What was made since the last mark() is no part of what is differentiated.
  bool is_active(ValueId v) const {
    return v != kNoValue && static_cast<size_t>(v) < active_.size() && active_[static_cast<size_t>(v)] != 0;
  }
  bool any_active(const Node& n) const {
    return std::any_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) { return is_active(v); });
  }

  Status pass(const Node& node) {
    std::vector<Val> d;
    bool any = false;
    for (const ValueId v : node.outputs) {
      d.push_back(!is_active(v) || leaf_[static_cast<size_t>(v)] != 0 ? Val{} : sum(v));
      any = any || d.back();
    }
    if (!any || !any_active(node)) return ok_status();
    std::vector<Val> in, out;
    for (const ValueId v : node.inputs) in.push_back({v});
    for (const ValueId v : node.outputs) out.push_back({v});
    if (node.op->vjp != nullptr) return through(node, in, out, d);
    if (node.op->define == nullptr || node.op->effect) {
      return unimplemented(cat(called(node), " has no gradient", wanting(node)));
    }
    const size_t first = g_.nodes().size();
    const std::vector<Val> defined = node.op->define(b_, in, node.attrs);
    if (!b_.status().ok()) return ok_status();  // told by sweep()
    const size_t end = g_.nodes().size();
    mark(first);
    for (size_t k = 0; k < d.size() && k < defined.size(); ++k) add(defined[k].id, d[k]);
    return sweep(first, end);
  }

  Status through(const Node& node, std::span<const Val> in, std::span<const Val> out,
                 std::span<const Val> d) {
    std::vector<uint8_t> wanted;
    for (const ValueId v : node.inputs) wanted.push_back(is_active(v) ? 1 : 0);
    const std::vector<Val> back = node.op->vjp({b_, in, out, d, wanted, node.attrs});
    // Optional operands at the end may be left out, and their gradients are.
    for (size_t k = 0; k < std::min(back.size(), wanted.size()) && b_.status().ok(); ++k) {
      if (!wanted[k] || !back[k]) continue;
      OAR_CHECK(b_.shape(back[k]) == b_.shape(in[k]), "a gradient is shaped like its operand");
      add(in[k].id, back[k]);
    }
    return ok_status();
  }

  // " (a matmul), wanted by 'w'": an input whose gradient would pass here.
  std::string wanting(const Node& node) const {
    const std::vector<int> producer = g_.producers();
    std::vector<uint8_t> seen(g_.num_values(), 0);
    std::vector<ValueId> todo(node.inputs.begin(), node.inputs.end());
    while (!todo.empty()) {
      const ValueId v = todo.back();
      todo.pop_back();
      if (v == kNoValue || seen[static_cast<size_t>(v)]++ != 0 || !is_active(v)) continue;
      if (leaf_[static_cast<size_t>(v)] != 0) return cat(", which input ", called(g_, v), " wants");
      const int p = producer[static_cast<size_t>(v)];
      if (p < 0) continue;
      const Node& maker = g_.nodes()[static_cast<size_t>(p)];
      todo.insert(todo.end(), maker.inputs.begin(), maker.inputs.end());
    }
    return "";
  }

  Graph& g_;
  Builder b_;
  std::vector<uint8_t> leaf_, active_;  // by value
  std::vector<Val> sum_;                // by value
};

// The graph under the same ids, with types of what ordinary models leave unknown.
Status name_types(const Graph& g) {
  for (const Node& n : g.nodes()) {
    for (const ValueId v : n.outputs) {
      if (g.value(v).type.known) continue;
      return invalid_argument(
          cat(called(n),
              " has a result of no known type; typed() (engine/graph/passes/typed.h) finds types out"));
    }
  }
  return ok_status();
}

Status check_values(const Graph& g, std::span<const ValueId> values, const char* what) {
  if (values.empty()) return invalid_argument(cat("there is no ", what, " to differentiate"));
  for (const ValueId v : values) {
    if (v < 0 || static_cast<size_t>(v) >= g.num_values())
      return invalid_argument(cat(what, " %", v, " is no value of the graph"));
    if (!g.value(v).type.known)
      return invalid_argument(
          cat(what, " ", called(g, v),
              " has no known type; typed() (engine/graph/passes/typed.h) finds types out"));
    if (!is_float(g.value(v).type)) {
      return invalid_argument(cat(what, " ", called(g, v), " is ", g.type_string(g.value(v).type),
                                  "; only floating point has a gradient"));
    }
  }
  return ok_status();
}

}  // namespace

Result<Graph> grad(const Graph& graph, std::span<const ValueId> outputs, std::span<const ValueId> inputs,
                   const GradOptions& options) {
  OAR_RETURN_IF_ERROR(check_values(graph, outputs, "output"));
  OAR_RETURN_IF_ERROR(check_values(graph, inputs, "input"));
  if (!options.seeds.empty() && options.seeds.size() != outputs.size())
    return invalid_argument(cat(options.seeds.size(), " seeds for ", outputs.size(), " outputs"));
  Graph g = graph;
  // Outputs that composites' definitions replace are found again where they were asked for.
  const size_t kept = g.outputs().size();
  for (const ValueId v : outputs) g.add_output("", v);
  for (const ValueId v : inputs) g.add_output("", v);
  g.sort();
  if (options.keep) OAR_RETURN_IF_ERROR(decompose(g, options.keep).status());
  std::vector<ValueId> from, to;
  for (size_t k = 0; k < outputs.size(); ++k) from.push_back(g.outputs()[kept + k].value);
  for (size_t k = 0; k < inputs.size(); ++k) to.push_back(g.outputs()[kept + outputs.size() + k].value);
  g.keep_outputs(kept);
  OAR_RETURN_IF_ERROR(name_types(g));

  Differentiator walk(g, to);
  Builder& b = walk.builder();
  for (size_t k = 0; k < from.size(); ++k) {
    const ValueId seed = options.seeds.empty() ? kNoValue : options.seeds[k];
    if (seed == kNoValue) {
      const bool scalar = g.value(from[k]).type.shape.empty();
      walk.add(from[k], scalar ? b.scalar(1) : b.op("expand", {b.scalar(1), {}, {from[k]}}));
    } else if (seed < 0 || static_cast<size_t>(seed) >= graph.num_values() ||
               !(g.value(seed).type.shape == g.value(from[k]).type.shape)) {
      return invalid_argument(cat("the seed of output ", called(g, from[k]), " has another shape"));
    } else {
      walk.add(from[k], {seed});
    }
  }
  OAR_RETURN_IF_ERROR(walk.sweep(0, g.nodes().size()));
  for (size_t k = 0; k < inputs.size(); ++k) {
    Val d = walk.sum(to[k]);
    if (!d) d = b.op("expand", {b.scalar(0), {}, {to[k]}});
    const std::string& own = graph.value(inputs[k]).name;
    const std::string name = options.prefix + (own.empty() ? cat("%", inputs[k]) : own);
    for (const Graph::Output& o : g.outputs()) {
      if (o.name == name)
        return invalid_argument(
            cat("there is an output '", name, "' already; give gradients another prefix"));
    }
    g.add_output(name, d.id);
  }
  OAR_RETURN_IF_ERROR(b.status());
  OAR_RETURN_IF_ERROR(passes::dce(g).status());
  return g;
}

Result<ValueId> find_value(const Graph& graph, std::string_view name) {
  for (const Graph::Output& o : graph.outputs()) {
    if (o.name == name) return o.value;
  }
  for (size_t v = 0; v < graph.num_values(); ++v) {
    const Value& value = graph.value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kResult && value.name == name) return static_cast<ValueId>(v);
  }
  return not_found(cat("the graph has no output, input, state or constant '", name, "'"));
}

}  // namespace oar::passes

namespace oar {

std::vector<Val> derived_gradient(Builder& b, decltype(OpDef::define) forward, std::span<const Val> in,
                                  const Attrs& attrs, std::span<const Val> d, size_t wanted) {
  Graph& g = b.graph();
  std::vector<Val> operands(in.begin(), in.end()), out(wanted);
  std::vector<ValueId> leaves;
  // Values of their own: what is given twice has two gradients.
  for (size_t k = 0; k < wanted && b.status().ok(); ++k) {
    if (!in[k] || !b.type(in[k]).format.plain()) continue;
    operands[k] = b.op("cast", {in[k]}, {{"to", std::string("f32")}});
    leaves.push_back(operands[k].id);
  }
  if (!b.status().ok()) return out;
  const size_t first = g.nodes().size();
  const std::vector<Val> results = forward(b, operands, attrs);
  const size_t end = g.nodes().size();
  if (!b.status().ok()) return out;
  passes::Differentiator walk(g, leaves);
  for (size_t k = 0; k < d.size() && k < results.size(); ++k) walk.add(results[k].id, d[k]);
  if (const Status s = walk.sweep(first, end); !s.ok()) return b.fail(s), out;
  for (size_t k = 0; k < wanted; ++k) {
    if (std::find(leaves.begin(), leaves.end(), operands[k].id) == leaves.end()) continue;
    out[k] = walk.sum(operands[k].id);
    if (!out[k]) out[k] = b.op("expand", {b.scalar(0), {}, operands[k]});
  }
  if (!walk.builder().status().ok()) b.fail(walk.builder().status());
  return out;
}

}  // namespace oar
