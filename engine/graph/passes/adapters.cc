#include "engine/graph/passes/adapters.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/op.h"

namespace oar {
namespace {

const Node* maker_of(const Graph& graph, ValueId value) {
  for (const Node& n : graph.nodes()) {
    if (std::find(n.outputs.begin(), n.outputs.end(), value) != n.outputs.end()) return &n;
  }
  return nullptr;
}

// Which side of a matrix the node changes; null where it is not one side alone.
std::vector<AdapterBasis::Step>* side_of(const Graph& graph, const Node& n, AdapterBasis& basis) {
  if (n.is("hadamard")) return n.attrs.get_int("axis", -1) == 0 ? &basis.outputs : &basis.inputs;
  if (n.is("stored_matrix") && n.attrs.has("parts")) return &basis.outputs;
  // A factor for each column.
  if (n.is("mul") && graph.value(n.inputs[1]).type.shape.size() <= 1) return &basis.inputs;
  return nullptr;
}

}  // namespace

Result<AdapterBasis> adapter_basis(const Graph& graph, ValueId value, ThreadPool& pool) {
  AdapterBasis out;
  while (graph.value(value).kind != ValueKind::kConstant) {
    const Node* n = maker_of(graph, value);
    if (n == nullptr || n->inputs.empty()) return internal_error("adapters of what is no weight");
    // What the file has the other way round is turned before anything else is done to it.
    const bool turned = n->is("transpose") && graph.value(n->inputs[0]).kind == ValueKind::kConstant;
    if (std::vector<AdapterBasis::Step>* steps = side_of(graph, *n, out)) {
      AdapterBasis::Step step{n->op, {}, n->attrs};
      for (size_t k = 1; k < n->inputs.size(); ++k) {
        OAR_ASSIGN(const Tensor operand, evaluate_weight(graph, n->inputs[k], pool));
        OAR_ASSIGN(Tensor f32, to_f32(operand));
        step.operands.push_back(std::move(f32));
      }
      steps->insert(steps->begin(), std::move(step));
    } else if (!turned) {
      out.refusal = cat("the weight goes through '", n->op->name, "', which an adapter cannot follow");
      return out;
    }
    value = n->inputs[0];
  }
  return out;
}

std::vector<NamedWeight> basis_operands(const Graph& graph) {
  std::vector<NamedWeight> out;
  const std::vector<int> producers = graph.producers();
  const auto take = [&](ValueId operand) {
    const bool known = operand == kNoValue || std::any_of(out.begin(), out.end(), [&](const NamedWeight& o) {
                         return o.value == operand;
                       });
    if (!known) out.push_back({graph.value(operand).name, operand});
  };
  for (const Node& layer : graph.nodes()) {
    if (!layer.is("linear")) continue;
    for (size_t k = 2; k < layer.inputs.size(); k += 2) {
      if (weight_source(graph, graph.nodes(), layer.inputs[k]) == kNoValue) continue;
      for (int at = producers[layer.inputs[k]]; at >= 0;) {
        const Node& n = graph.nodes()[static_cast<size_t>(at)];
        std::for_each(n.inputs.begin() + 1, n.inputs.end(), take);
        at = producers[n.inputs[0]];
      }
    }
  }
  return out;
}

void pair_rows(AdapterBasis& basis, int64_t outputs, int64_t head) {
  using Ints = std::vector<int64_t>;
  const OpDef* reshape = find_op("reshape");
  basis.outputs.insert(basis.outputs.begin(),
                       {{reshape, {}, {{"shape", Ints{outputs / head, 2, head / 2, -1}}}},
                        {find_op("transpose"), {}, {{"perm", Ints{0, 2, 1, 3}}}},
                        {reshape, {}, {{"shape", Ints{outputs, -1}}}}});
}

void precede(AdapterBasis& basis, const AdapterBasis& earlier) {
  if (basis.refusal.empty()) basis.refusal = earlier.refusal;
  basis.inputs.insert(basis.inputs.begin(), earlier.inputs.begin(), earlier.inputs.end());
  basis.outputs.insert(basis.outputs.begin(), earlier.outputs.begin(), earlier.outputs.end());
}

Result<Tensor> through(const std::vector<AdapterBasis::Step>& steps, Tensor matrix, ThreadPool& pool) {
  if (steps.empty()) return matrix;
  Graph graph;
  ValueId value = graph.add_constant("", std::move(matrix));
  for (const AdapterBasis::Step& step : steps) {
    std::vector<ValueId> inputs{value};
    for (const Tensor& operand : step.operands) inputs.push_back(graph.add_constant("", operand));
    OAR_ASSIGN(const auto made, graph.add_node(step.op, std::move(inputs), step.attrs));
    value = made[0];
  }
  return evaluate_weight(graph, value, pool);
}

Result<AdapterLayout> insert_adapters(Graph& graph, const std::string& per_row, const AdapterOptions& options,
                                      ThreadPool& pool) {
  AdapterLayout out;
  out.options = options;
  Dim rows;
  for (ValueId v : graph.inputs()) {
    if (graph.value(v).name == per_row) rows = graph.value(v).type.shape[0];
  }
  ValueId index = kNoValue;
  const Dim slots = options.slots, rank = options.rank;
  const auto state = [&](const char* what, TensorType type, size_t& at) {
    const ValueId v = graph.add_state(cat("adapter_", what, out.sites.size()), std::move(type));
    at = graph.states().size() - 1;
    return v;
  };
  const size_t count = graph.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    const Node node = graph.nodes()[i];  // a copy: nodes are appended
    if (!node.is("linear")) continue;
    const DimVector x = graph.value(node.inputs[0]).type.shape;
    if (x.size() != 2 || !(x[0] == rows)) continue;
    int64_t column = 0;
    for (size_t k = 2; k < node.inputs.size(); k += 2) {
      const ValueId weight = node.inputs[k], source = weight_source(graph, graph.nodes(), weight);
      AdapterSite site;
      site.outputs = graph.value(weight).type.shape[0].const_value();
      site.inputs = graph.value(weight).type.shape[1].const_value();
      const int64_t first = column;
      column += site.outputs;
      if (source == kNoValue || graph.value(source).name.empty()) continue;
      site.weight = graph.value(source).name;
      // Folded before (fold_constants): of a matrix, models write no other expression than its transpose.
      if (site.weight.ends_with("'")) site.weight.pop_back();
      OAR_ASSIGN(site.basis, adapter_basis(graph, weight, pool));
      if (index == kNoValue) {
        index = graph.add_input("adapter_index", {Format::i32(), {rows}});
        out.index_input = graph.inputs().size() - 1;
      }
      const ValueId ranks = state("ranks", {Format::i32(), {slots}}, site.ranks);
      const ValueId a = state("a", {options.format, {slots, rank, Dim(site.inputs)}}, site.a);
      const ValueId b = state("b", {options.format, {slots, rank, Dim(site.outputs)}}, site.b);
      // y by whatever came behind it last: ops of one layer stand in a row.
      const ValueId y = node.outputs[0];
      OAR_ASSIGN(const auto made, graph.add_node(find_op("lora"), {y, node.inputs[0], index, ranks, a, b},
                                                 {{"column", first}}));
      const size_t self = graph.nodes().size() - 1;
      graph.replace_uses(y, made[0]);
      graph.nodes()[self].inputs[0] = y;
      out.sites.push_back(std::move(site));
    }
  }
  graph.sort();
  return out;
}

uint64_t adapter_bytes(const AdapterLayout& layout) {
  uint64_t bytes = 0;
  for (const AdapterSite& s : layout.sites) {
    bytes += static_cast<uint64_t>(layout.options.slots) *
             (static_cast<uint64_t>(layout.options.rank * (s.inputs + s.outputs)) *
                  static_cast<uint64_t>(layout.options.format.block_bytes()) +
              sizeof(int32_t));
  }
  return bytes;
}

}  // namespace oar
