#include "engine/graph/passes/recompute.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace oar::passes {
namespace {

// -1: none.
int layer_of(std::string_view name) {
  for (size_t dot = 0; dot != std::string_view::npos;
       name.remove_prefix(std::min(dot, name.size() - 1) + 1)) {
    dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    int number = -1;
    const auto r = std::from_chars(part.data(), part.data() + part.size(), number);
    if (r.ec == std::errc() && r.ptr == part.data() + part.size()) return number;
    if (dot == std::string_view::npos) break;
  }
  return -1;
}

// A number of its results costs a few operations.
bool is_cheap(const Node& n) {
  constexpr std::string_view kOps[] = {"cast",          "gelu",        "layer_norm", "relu",  "rms_norm",
                                       "rows_rms_norm", "rows_swiglu", "silu",       "swiglu"};
  return n.op->view || std::find(std::begin(kOps), std::end(kOps), n.op->name) != std::end(kOps);
}

class Recomputation {
 public:
  // Groups of `size` layers: what crosses from one into another is kept.
  Recomputation(Graph& g, size_t forward, const std::vector<int>& layer, int size, const OpDef& barrier)
      : g_(g),
        barrier_(barrier),
        forward_(forward),
        state_(g.num_values(), kKept),
        again_(g.num_values(), kNoValue) {
    const auto group = [&](int l) { return l < 0 ? -1 : l / size; };
    std::vector<uint8_t> crosses(g.num_values(), 0), depends(g.num_values(), 0);
    const auto each = [&](auto&& f) {
      for (size_t i = 0; i < forward; ++i) f(g.nodes()[i]);
    };
    each([&](const Node& n) {
      const int own = n.outputs.empty() ? -1 : layer[static_cast<size_t>(n.outputs[0])];
      for (const ValueId v : n.inputs)
        if (v != kNoValue && group(layer[static_cast<size_t>(v)]) < group(own))
          crosses[static_cast<size_t>(v)] = 1;
    });
    each([&](const Node& n) {
      // What only states and constants go into, such as a rounded weight, belongs to who reads it.
      const bool stored = !n.inputs.empty() && std::all_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) {
        return v != kNoValue &&
               (g.value(v).kind == ValueKind::kState || g.value(v).kind == ValueKind::kConstant);
      });
      const bool inside = stored || std::any_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) {
                            return v != kNoValue && depends[static_cast<size_t>(v)] != 0;
                          });
      for (const ValueId v : n.outputs) {
        if (v == kNoValue) continue;
        const auto k = static_cast<size_t>(v);
        depends[k] = inside || crosses[k] != 0 ? 1 : 0;
        if (depends[k] != 0) state_[k] = crosses[k] != 0 ? kBorder : kInside;
      }
    });
  }

  // Of values that cost nothing beside a product: those that come from others which the backward part reads
  // anyway.
  Recomputation(Graph& g, size_t forward, const OpDef& barrier)
      : g_(g),
        barrier_(barrier),
        forward_(forward),
        state_(g.num_values(), kKept),
        again_(g.num_values(), kNoValue) {
    std::vector<uint8_t> read(g.num_values(), 0);
    for (size_t i = forward + 1; i < g.nodes().size(); ++i)
      for (const ValueId v : g.nodes()[i].inputs)
        if (v != kNoValue) read[static_cast<size_t>(v)] = 1;
    std::vector<uint8_t> there(g.num_values(), 0);
    for (size_t v = 0; v < there.size(); ++v)
      there[v] = g.value(static_cast<ValueId>(v)).kind != ValueKind::kResult ? 1 : 0;
    for (size_t i = 0; i < forward; ++i) {
      const Node& n = g.nodes()[i];
      const bool can = is_cheap(n) && std::all_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) {
                         return v == kNoValue || there[static_cast<size_t>(v)] != 0;
                       });
      for (const ValueId v : n.outputs) {
        if (v == kNoValue) continue;
        const auto k = static_cast<size_t>(v);
        there[k] = can || read[k] != 0 ? 1 : 0;
        if (can) state_[k] = kInside;
        else if (read[k] != 0) state_[k] = kBorder;
      }
    }
  }

  Status run() {
    old_ = std::move(g_.nodes());
    g_.nodes().clear();
    producer_.assign(g_.num_values(), 0);
    for (size_t i = 0; i < old_.size(); ++i)
      for (const ValueId v : old_[i].outputs)
        if (v != kNoValue) producer_[static_cast<size_t>(v)] = i;
    for (size_t i = 0; i < old_.size(); ++i) {
      Node node = old_[i];
      for (ValueId& v : node.inputs)
        if (i > forward_) { OAR_ASSIGN(v, again(v)); }
      g_.nodes().push_back(std::move(node));
    }
    return ok_status();
  }

 private:
  enum : uint8_t { kKept, kBorder, kInside };

  // What a node of the backward part reads in the place of `v`.
  Result<ValueId> again(ValueId v) {
    if (v == kNoValue || static_cast<size_t>(v) >= state_.size() || state_[static_cast<size_t>(v)] == kKept)
      return v;
    const auto k = static_cast<size_t>(v);
    if (again_[k] != kNoValue) return again_[k];
    if (state_[k] == kBorder) {
      OAR_ASSIGN(const auto made, g_.add_node(&barrier_, {v, g_.nodes().back().outputs[0]}));
      return again_[k] = made[0];
    }
    const Node& node = old_[producer_[k]];
    std::vector<ValueId> inputs = node.inputs;
    for (ValueId& in : inputs) { OAR_ASSIGN(in, again(in)); }
    OAR_ASSIGN(const auto made, g_.add_node(node.op, std::move(inputs), node.attrs));
    g_.nodes().back().outputs.resize(node.outputs.size());
    for (size_t j = 0; j < node.outputs.size(); ++j)
      if (node.outputs[j] != kNoValue) again_[static_cast<size_t>(node.outputs[j])] = made[j];
    return again_[k];
  }

  Graph& g_;
  const OpDef& barrier_;
  const size_t forward_;
  std::vector<uint8_t> state_;  // by value that was there
  std::vector<ValueId> again_;  // likewise
  std::vector<Node> old_;
  std::vector<size_t> producer_;
};

}  // namespace

const std::vector<std::string>& recompute_names() {
  static const std::vector<std::string> names{"none", "activations", "layers", "full"};
  return names;
}

Status recompute(Graph& g, size_t forward, Recompute how, const OpDef& barrier) {
  if (how == Recompute::kNone) return ok_status();
  if (how == Recompute::kActivations) return Recomputation(g, forward, barrier).run();
  std::vector<int> layer(g.num_values(), -1);
  for (size_t v = 0; v < layer.size(); ++v) layer[v] = layer_of(g.value(static_cast<ValueId>(v)).name);
  for (size_t i = 0; i < forward; ++i) {
    int last = -1;
    for (const ValueId v : g.nodes()[i].inputs)
      if (v != kNoValue) last = std::max(last, layer[static_cast<size_t>(v)]);
    for (const ValueId v : g.nodes()[i].outputs)
      if (v != kNoValue) layer[static_cast<size_t>(v)] = last;
  }
  const int layers = *std::max_element(layer.begin(), layer.end()) + 1;
  if (layers == 0) return ok_status();
  OAR_RETURN_IF_ERROR(Recomputation(g, forward, layer, 1, barrier).run());
  // The inputs of layers between those that are kept, once more.
  const int root = static_cast<int>(std::ceil(std::sqrt(layers)));
  layer.resize(g.num_values(), -1);
  return how == Recompute::kFull && root > 1 ? Recomputation(g, forward, layer, root, barrier).run()
                                             : ok_status();
}

}  // namespace oar::passes
