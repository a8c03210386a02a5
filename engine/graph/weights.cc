#include "engine/graph/weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/graph/reference.h"

namespace oar {
namespace {

const Node* producer_of(std::span<const Node> nodes, ValueId value) {
  for (const Node& n : nodes) {
    if (std::find(n.outputs.begin(), n.outputs.end(), value) != n.outputs.end()) return &n;
  }
  return nullptr;
}

// The tensor as f32 in memory of its own, rows in parallel.
Result<Tensor> decoded(const Tensor& t, ThreadPool& pool) {
  OAR_ASSIGN(Tensor out, Tensor::allocate(t.shape(), Format::f32()));
  const int64_t cols = t.shape().cols(), rows = cols > 0 ? t.numel() / cols : 0;
  if (rows == 0) return out;
  const int64_t row_bytes = *t.format().row_bytes(cols);
  const auto* from = static_cast<const std::byte*>(t.data());
  float* to = out.mutable_values<float>().data();
  pool.parallel_for(rows, std::max<int64_t>(1, 16384 / cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) t.format().decode_row(from + r * row_bytes, cols, to + r * cols);
  });
  t.buffer().release_pages();
  return out;
}

// An f32 tensor that may be overwritten: expressions are, constants are copied.
Result<Tensor> own_f32(const Graph& graph, std::span<const Node> nodes, ValueId value, ThreadPool& pool);

Result<Tensor> evaluate_node(const Graph& graph, std::span<const Node> nodes, const Node& node,
                             ThreadPool& pool) {
  if (node.op->fold_inplace) {
    OAR_ASSIGN(Tensor x, own_f32(graph, nodes, node.inputs[0], pool));
    std::vector<Tensor> rest;
    for (size_t k = 1; k < node.inputs.size(); ++k) {
      OAR_ASSIGN(Tensor t, own_f32(graph, nodes, node.inputs[k], pool));
      rest.push_back(std::move(t));
    }
    OAR_ASSIGN(const bool done, node.op->fold_inplace(x, rest, node.attrs, pool));
    if (done) return x;
  }
  std::vector<Tensor> tensors(node.inputs.size());
  for (size_t k = 0; k < tensors.size(); ++k) {
    if (node.inputs[k] == kNoValue) continue;
    OAR_ASSIGN(tensors[k], evaluate_weight(graph, nodes, node.inputs[k], pool));
  }
  if (node.op->fold) return node.op->fold(tensors, node.attrs, pool);
  std::vector<HostValue> values(tensors.size());
  std::vector<const HostValue*> operands(tensors.size(), nullptr);
  for (size_t k = 0; k < tensors.size(); ++k) {
    if (node.inputs[k] == kNoValue) continue;
    OAR_ASSIGN(values[k], host_value(tensors[k]));
    operands[k] = &values[k];
  }
  OAR_ASSIGN(const auto out, oar::evaluate_node(*node.op, operands, node.attrs));
  return to_tensor(out[0]);
}

Result<Tensor> own_f32(const Graph& graph, std::span<const Node> nodes, ValueId value, ThreadPool& pool) {
  const Value& v = graph.value(value);
  if (v.kind == ValueKind::kConstant) return decoded(v.constant, pool);
  OAR_ASSIGN(Tensor t, evaluate_weight(graph, nodes, value, pool));
  if (t.format() == Format::f32()) return t;
  return decoded(t, pool);
}

}  // namespace

std::vector<bool> weight_nodes(const Graph& graph) {
  std::vector<bool> weight(graph.num_values(), false), out(graph.nodes().size(), false);
  for (size_t v = 0; v < weight.size(); ++v)
    weight[v] = graph.value(static_cast<ValueId>(v)).kind == ValueKind::kConstant;
  for (bool changed = true; changed;) {  // nodes may be out of order between passes
    changed = false;
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      const Node& n = graph.nodes()[i];
      if (out[i] || n.op->effect || n.inputs.empty() || n.inputs[0] == kNoValue || n.outputs.size() != 1)
        continue;
      if (!std::all_of(n.inputs.begin(), n.inputs.end(),
                       [&](ValueId v) { return v == kNoValue || weight[v]; }))
        continue;
      out[i] = weight[n.outputs[0]] = changed = true;
    }
  }
  return out;
}

Format weight_format(const Graph& graph, std::span<const Node> nodes, ValueId value) {
  const Value& v = graph.value(value);
  if (v.kind == ValueKind::kConstant) return v.type.format;
  const Node* node = producer_of(nodes, value);
  return node != nullptr && node->op->fold_keeps_format ? v.type.format : Format::f32();
}

Result<Tensor> evaluate_weight(const Graph& graph, std::span<const Node> nodes, ValueId value,
                               ThreadPool& pool) {
  const Value& v = graph.value(value);
  if (v.kind == ValueKind::kConstant) return v.constant;
  const Node* node = producer_of(nodes, value);
  if (node == nullptr) return invalid_argument(cat("value %", value, " is not a weight"));
  return evaluate_node(graph, nodes, *node, pool);
}

ValueId weight_source(const Graph& graph, std::span<const Node> nodes, ValueId value) {
  while (value != kNoValue && graph.value(value).kind != ValueKind::kConstant) {
    const Node* node = producer_of(nodes, value);
    if (node == nullptr || node->inputs.empty()) return kNoValue;
    value = node->inputs[0];
  }
  return value;
}

std::optional<Format> source_format(const Graph& graph, std::span<const Node> nodes, ValueId value) {
  while (value != kNoValue && graph.value(value).kind != ValueKind::kConstant) {
    const Node* node = producer_of(nodes, value);
    if (node == nullptr || node->inputs.empty()) return std::nullopt;
    if (node->op->fold_keeps_format) break;
    value = node->inputs[0];
  }
  if (value == kNoValue) return std::nullopt;
  return graph.value(value).type.format;
}

std::vector<NamedWeight> named_weights(const Graph& graph) {
  const std::vector<bool> expression = weight_nodes(graph);
  std::vector<bool> weight(graph.num_values(), false), seen(graph.num_values(), false);
  for (size_t v = 0; v < weight.size(); ++v)
    weight[v] = graph.value(static_cast<ValueId>(v)).kind == ValueKind::kConstant;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i]) weight[graph.nodes()[i].outputs[0]] = true;
  }
  std::vector<NamedWeight> out;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    if (expression[i]) continue;
    for (ValueId v : graph.nodes()[i].inputs) {
      if (v == kNoValue || !weight[v] || seen[v]) continue;
      seen[v] = true;
      const std::string& own = graph.value(v).name;
      out.push_back({own.empty() ? graph.value(weight_source(graph, graph.nodes(), v)).name : own, v});
    }
  }
  return out;
}

Result<std::vector<Node>> take_weight_nodes(Graph& graph, ThreadPool& pool) {
  const std::vector<bool> expression = weight_nodes(graph);
  std::vector<bool> made(graph.num_values(), false);
  std::vector<Node> taken;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (!expression[i]) continue;
    made[graph.nodes()[i].outputs[0]] = true;
    taken.push_back(graph.nodes()[i]);
  }
  std::set<ValueId> wanted;
  for (size_t i = 0; i < expression.size(); ++i) {
    const Node& n = graph.nodes()[i];
    if (expression[i]) continue;
    for (ValueId v : n.inputs) {
      if (v == kNoValue || !made[v]) continue;
      if (!n.op->weight_expressions || graph.value(v).type.shape.size() < 2) wanted.insert(v);
    }
  }
  for (const auto& o : graph.outputs()) {
    if (made[o.value]) wanted.insert(o.value);
  }
  for (ValueId v : wanted) {
    OAR_ASSIGN(Tensor t, evaluate_weight(graph, taken, v, pool));
    graph.value(v).kind = ValueKind::kConstant;
    graph.value(v).constant = std::move(t);
  }
  graph.remove_nodes(expression);
  return taken;
}

}  // namespace oar
