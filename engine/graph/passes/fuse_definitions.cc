// Fusion by definition: every composite marked `pattern` is traced into a small pattern graph by its own
// `define`, and each place where the graph spells that definition out becomes one node of the composite.
// There is no second list of patterns to keep in step with the ops.
//
// Scalar attributes of the composite (an epsilon) are matched by tracing the definition with a marker value
// no model uses and reading the value found in its place. Larger definitions are tried before smaller ones,
// because a layer_norm has an rms_norm inside, and those that name other composites last, so that swiglu sees
// the silu found just before.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "engine/graph/builder.h"
#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {
namespace {

// A float that is exactly representable, far from any constant a model uses, and survives the trip through
// f32.
constexpr double kMarker = 0x1.5a5a5ap-97;

struct Pattern {
  const OpDef* op = nullptr;
  Graph graph;
  std::vector<ValueId> inputs;
  ValueId output = kNoValue;
  Attrs attrs;         // of what is found
  std::string marked;  // attribute bound by the marker, if any
  int64_t rank = 0;
};

bool commutative(const OpDef* op) {
  const std::string_view n = op->name;
  return n == "add" || n == "mul" || n == "max" || n == "min";
}

bool scalar_value(const Graph& g, ValueId v, double* out) {
  const Value& value = g.value(v);
  if (value.kind != ValueKind::kConstant || value.constant.numel() != 1) return false;
  auto f = to_f32(value.constant);
  if (!f.ok()) return false;
  *out = f->values<float>()[0];
  return true;
}

// Traces `op` for a rank-`rank` operand. Patterns are over elementwise math and reductions of the last axis,
// so symbolic extents stand for any.
bool trace(const OpDef* op, int64_t rank, size_t operands, const Attrs& fixed, Pattern* p) {
  p->op = op;
  p->rank = rank;
  DimVector shape;
  for (int64_t k = 0; k < rank; ++k)
    shape.push_back(p->graph.dim(p->graph.add_symbol("d" + std::to_string(k), 1 << 20)));
  const bool norm = std::string_view(op->name).ends_with("_norm");
  if (norm) p->marked = "epsilon";
  Builder b(p->graph);
  std::vector<Val> vals;
  for (size_t k = 0; k < operands; ++k) {
    const DimVector& own = k > 0 && norm ? DimVector{shape.back()} : shape;
    p->inputs.push_back(p->graph.add_input("p" + std::to_string(k), {Format::f32(), own}));
    vals.push_back({p->inputs.back()});
  }
  p->attrs = fixed;
  Attrs attrs = fixed;
  if (!p->marked.empty()) attrs.set(p->marked, kMarker);
  const std::vector<Val> out = op->define(b, vals, attrs);
  if (!b.status().ok() || out.size() != 1) return false;
  p->output = out[0].id;
  return true;
}

// How many operands, and attributes that change a definition, in each form that an op is looked for.
std::vector<std::pair<size_t, Attrs>> forms_of(std::string_view name) {
  if (name == "layer_norm") return {{3, {}}, {2, {}}, {1, {}}};
  if (name == "rms_norm" || name == "swiglu") return {{2, {}}};
  if (name == "gelu") return {{1, {}}, {1, {{"approximate", std::string("tanh")}}}};
  return {{1, {}}};
}

class DefinitionMatcher {
 public:
  DefinitionMatcher(const Pattern& p, const Graph& g, const std::vector<int>& producer,
                    const std::vector<int>& uses)
      : p_(p), g_(g), producer_(producer), uses_(uses), p_producer_(p.graph.producers()) {}

  bool match(ValueId root) { return match_value(p_.output, root, true); }
  const std::map<ValueId, ValueId>& bound() const { return bound_; }
  double marked = 0;

 private:
  bool match_value(ValueId pv, ValueId gv, bool root) {
    if (gv == kNoValue) return false;
    if (auto it = bound_.find(pv); it != bound_.end()) return it->second == gv;
    const Value& pattern_value = p_.graph.value(pv);
    if (pattern_value.kind == ValueKind::kInput) {
      const DimVector& want = pattern_value.type.shape;
      const TensorType& have = g_.value(gv).type;
      if (have.shape.size() != want.size()) return false;
      bound_[pv] = gv;
      return true;
    }
    double a = 0, b = 0;
    if (scalar_value(p_.graph, pv, &a)) {
      if (!scalar_value(g_, gv, &b)) return false;
      if (a == kMarker) {
        marked = b;
        return true;
      }
      return a == b || std::abs(a - b) <= 1e-6 * std::abs(a);
    }
    const int pi = p_producer_[pv], gi = producer_[gv];
    if (pi < 0 || gi < 0) return false;
    const Node& pn = p_.graph.nodes()[pi];
    const Node& gn = g_.nodes()[gi];
    if (pn.op != gn.op || !(pn.attrs == gn.attrs) || pn.inputs.size() != gn.inputs.size()) return false;
    // An inner value someone else reads would have to be kept, and then nothing is gained.
    if (!root && uses_[gv] != internal_uses(pv)) return false;
    const auto saved = bound_;
    if (match_inputs(pn, gn, false)) {
      bound_[pv] = gv;
      return true;
    }
    bound_ = saved;
    if (commutative(pn.op) && match_inputs(pn, gn, true)) {
      bound_[pv] = gv;
      return true;
    }
    bound_ = saved;
    return false;
  }

  bool match_inputs(const Node& pn, const Node& gn, bool swapped) {
    const size_t n = pn.inputs.size();
    for (size_t k = 0; k < n; ++k) {
      if (!match_value(pn.inputs[k], gn.inputs[swapped ? n - 1 - k : k], false)) return false;
    }
    return true;
  }

  int internal_uses(ValueId pv) const {
    int n = 0;
    for (const Node& node : p_.graph.nodes())
      n += static_cast<int>(std::count(node.inputs.begin(), node.inputs.end(), pv));
    return n;
  }

  const Pattern& p_;
  const Graph& g_;
  const std::vector<int>& producer_;
  const std::vector<int>& uses_;
  std::vector<int> p_producer_;
  std::map<ValueId, ValueId> bound_;
};

}  // namespace

Result<int> fuse_definitions(Graph& graph) {
  std::vector<Pattern> patterns;
  for (const OpDef* op : all_ops()) {
    if (!op->define || !op->pattern) continue;
    for (const auto& [operands, attrs] : forms_of(op->name)) {
      for (int64_t rank : {2, 3}) {
        Pattern p;
        if (trace(op, rank, operands, attrs, &p)) patterns.push_back(std::move(p));
      }
    }
  }
  const auto builds_on_others = [](const Pattern& p) {
    return std::any_of(p.graph.nodes().begin(), p.graph.nodes().end(),
                       [](const Node& n) { return n.op->define != nullptr; });
  };
  std::stable_sort(patterns.begin(), patterns.end(), [&](const Pattern& a, const Pattern& b) {
    const bool x = builds_on_others(a), y = builds_on_others(b);
    return x != y ? y : a.graph.nodes().size() > b.graph.nodes().size();
  });
  int fused = 0;
  for (const Pattern& p : patterns) {
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      const Node& root = graph.nodes()[i];
      if (root.outputs.size() != 1 || root.op == p.op) continue;
      const std::vector<int> producer = graph.producers(), uses = graph.use_counts();
      DefinitionMatcher m(p, graph, producer, uses);
      const ValueId result = root.outputs[0];
      if (!m.match(result)) continue;
      std::vector<ValueId> inputs;
      for (ValueId v : p.inputs) {
        if (!m.bound().count(v))
          return internal_error(std::string(p.op->name) + ": its definition ignores an operand");
        inputs.push_back(m.bound().at(v));
      }
      Attrs attrs = p.attrs;
      if (!p.marked.empty()) attrs.set(p.marked, m.marked);
      // Bound operands may still not satisfy the composite's own shape rule (a broadcast the definition
      // allows).
      auto out = graph.add_node(p.op, std::move(inputs), std::move(attrs));
      if (!out.ok()) continue;
      if (!(graph.value((*out)[0]).type == graph.value(result).type)) {
        std::vector<bool> dead(graph.nodes().size(), false);
        dead.back() = true;
        graph.remove_nodes(dead);
        continue;
      }
      const Node made = graph.nodes().back();
      graph.replace_uses(result, (*out)[0]);
      ++fused;
    }
    OAR_RETURN_IF_ERROR(dce(graph).status());
    graph.sort();
  }
  return fused;
}

}  // namespace oar::passes
