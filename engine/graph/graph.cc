#include "engine/graph/graph.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/evaluated_types.h"
#include "engine/graph/op.h"

namespace oar {

bool Node::is(std::string_view op_name) const { return op_name == op->name; }

SymbolId Graph::add_symbol(std::string name, int64_t max) {
  symbols_.push_back({std::move(name), max});
  return static_cast<SymbolId>(symbols_.size() - 1);
}

ValueId Graph::add_value(Value v) {
  values_.push_back(std::move(v));
  return static_cast<ValueId>(values_.size() - 1);
}

ValueId Graph::add_input(std::string name, TensorType type) {
  inputs_.push_back(add_value({ValueKind::kInput, std::move(name), std::move(type), {}}));
  return inputs_.back();
}

ValueId Graph::add_state(std::string name, TensorType type) {
  states_.push_back(add_value({ValueKind::kState, std::move(name), std::move(type), {}}));
  return states_.back();
}

ValueId Graph::add_constant(std::string name, Tensor tensor) {
  TensorType type{tensor.format(), {}};
  for (int64_t d : tensor.shape()) type.shape.emplace_back(d);
  return add_value({ValueKind::kConstant, std::move(name), std::move(type), std::move(tensor)});
}

void Graph::become_constant(ValueId input, Tensor tensor) {
  Value& v = values_[input];
  v.kind = ValueKind::kConstant;
  v.type = {tensor.format(), {}};
  for (const int64_t d : tensor.shape()) v.type.shape.emplace_back(d);
  v.constant = std::move(tensor);
}

Result<std::vector<ValueId>> Graph::add_node(const OpDef* op, std::vector<ValueId> inputs, Attrs attrs) {
  auto types =
      op->infer != nullptr ? op->infer(*this, inputs, attrs) : evaluated_types(*this, *op, inputs, attrs);
  if (!types.ok()) {
    std::string operands;
    for (ValueId v : inputs) {
      if (!operands.empty()) operands += ", ";
      operands += v == kNoValue ? "none" : type_string(values_[v].type);
    }
    return Status(types.status().code(), cat(op->name, "(", operands, "): ", types.status().message()));
  }
  Node node{op, std::move(inputs), {}, std::move(attrs), {}, {}};
  for (TensorType& t : *types) node.outputs.push_back(add_value({ValueKind::kResult, "", std::move(t), {}}));
  nodes_.push_back(std::move(node));
  return nodes_.back().outputs;
}

std::vector<ValueId> Graph::append(const OpDef* op, std::vector<ValueId> inputs, size_t outputs, Attrs attrs,
                                   std::vector<std::shared_ptr<const Graph>> subgraphs, std::string name) {
  OAR_CHECK(op && op->evaluate, "op has no evaluation");
  Node node{op, std::move(inputs), {}, std::move(attrs), std::move(subgraphs), std::move(name)};
  for (size_t k = 0; k < outputs; ++k) {
    node.outputs.push_back(add_value({ValueKind::kResult, "", TensorType::unknown(), {}}));
  }
  nodes_.push_back(std::move(node));
  return nodes_.back().outputs;
}

void Graph::add_output(std::string name, ValueId value) { outputs_.push_back({std::move(name), value}); }

void Graph::replace_uses(ValueId from, ValueId to) {
  for (Node& n : nodes_) std::replace(n.inputs.begin(), n.inputs.end(), from, to);
  for (Output& o : outputs_) {
    if (o.value == from) o.value = to;
  }
}

void Graph::replace_uses(std::span<const ValueId> to) {
  const auto replace = [&](ValueId& v) {
    if (v != kNoValue && static_cast<size_t>(v) < to.size()) v = to[static_cast<size_t>(v)];
  };
  for (Node& n : nodes_) std::for_each(n.inputs.begin(), n.inputs.end(), replace);
  for (Output& o : outputs_) replace(o.value);
}

std::vector<int> Graph::use_counts() const {
  std::vector<int> uses(values_.size(), 0);
  for (const Node& n : nodes_) {
    for (ValueId v : n.inputs) {
      if (v != kNoValue) ++uses[v];
    }
  }
  for (const Output& o : outputs_) ++uses[o.value];
  return uses;
}

std::vector<int> Graph::producers() const {
  std::vector<int> producer(values_.size(), -1);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (ValueId v : nodes_[i].outputs) producer[v] = static_cast<int>(i);
  }
  return producer;
}

void Graph::remove_nodes(const std::vector<bool>& dead) {
  size_t kept = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (dead[i]) continue;
    if (kept != i) nodes_[kept] = std::move(nodes_[i]);
    ++kept;
  }
  nodes_.resize(kept);
}

void Graph::sort() {
  // Depth-first over operands. Writes of a state are values of their own (kv_append returns the state after
  // it), so operands are all the order there is.
  const std::vector<int> producer = producers();
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> state(nodes_.size(), kNew);
  std::vector<int> order, stack;
  for (size_t root = 0; root < nodes_.size(); ++root) {
    stack.push_back(static_cast<int>(root));
    while (!stack.empty()) {
      const int i = stack.back();
      if (state[i] == kDone) {
        stack.pop_back();
        continue;
      }
      if (state[i] == kOpen) {
        state[i] = kDone;
        order.push_back(i);
        stack.pop_back();
        continue;
      }
      state[i] = kOpen;
      auto need = [&](int j) {
        if (j < 0 || j == i || state[j] == kDone) return;
        OAR_CHECK(state[j] != kOpen, "cycle in graph");
        stack.push_back(j);
      };
      for (auto it = nodes_[i].inputs.rbegin(); it != nodes_[i].inputs.rend(); ++it) {
        if (*it != kNoValue) need(producer[*it]);
      }
    }
  }
  std::vector<Node> sorted;
  sorted.reserve(nodes_.size());
  for (int i : order) sorted.push_back(std::move(nodes_[i]));
  nodes_ = std::move(sorted);
}

std::string Graph::type_string(const TensorType& t) const {
  if (!t.known) return "?";
  std::string s = cat(t.format.name(), "[");
  for (size_t i = 0; i < t.shape.size(); ++i) s += cat(i ? ", " : "", t.shape[i].to_string(symbols_));
  return s + "]";
}

std::string Graph::to_string() const {
  auto ref = [&](ValueId v) {
    if (v == kNoValue) return std::string("none");
    const Value& value = values_[v];
    return value.kind == ValueKind::kResult || value.name.empty() ? cat("%", v) : cat("@", value.name);
  };
  std::string out;
  for (const Symbol& s : symbols_) out += cat("symbol ", s.name, " <= ", s.max, "\n");
  for (ValueId v : inputs_) out += cat("input ", ref(v), " : ", type_string(values_[v].type), "\n");
  for (ValueId v : states_) out += cat("state ", ref(v), " : ", type_string(values_[v].type), "\n");
  for (const Node& n : nodes_) {
    for (size_t i = 0; i < n.outputs.size(); ++i) out += cat(i ? ", " : "", ref(n.outputs[i]));
    out += cat(n.outputs.empty() ? "" : " = ", n.op->name, "(");
    for (size_t i = 0; i < n.inputs.size(); ++i) out += cat(i ? ", " : "", ref(n.inputs[i]));
    out += ")";
    if (!n.attrs.items().empty()) {
      out += " {";
      bool first = true;
      for (const auto& [key, value] : n.attrs.items()) {
        out += cat(first ? "" : ", ", key, ": ");
        first = false;
        std::visit(
            [&](const auto& v) {
              using V = std::decay_t<decltype(v)>;
              if constexpr (std::is_arithmetic_v<V> || std::is_same_v<V, std::string>) {
                out += cat(v);
              } else {
                out += "[";
                for (size_t i = 0; i < v.size(); ++i) out += cat(i ? ", " : "", v[i]);
                out += "]";
              }
            },
            value);
      }
      out += "}";
    }
    if (!n.outputs.empty()) out += " : ";
    for (size_t i = 0; i < n.outputs.size(); ++i)
      out += cat(i ? ", " : "", type_string(values_[n.outputs[i]].type));
    out += "\n";
  }
  for (const Output& o : outputs_) out += cat("output ", o.name, " = ", ref(o.value), "\n");
  return out;
}

}  // namespace oar
