// Weight expressions: values that nodes compute from constants alone. Passes that change weights (norm
// folding, rotation) write them as ordinary nodes over the mapped tensors, where they can be printed and
// checked; whoever needs the numbers evaluates one value at a time and lets it go: lower() into a
// kernel's packed layout, the offline quantizer into a file. So no second copy of a model ever exists.
//
// What it is not: fold_constants, which evaluates small expressions once for good.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "kernels/thread_pool.h"

namespace oar {

// By node: whether it is pure and all its operands (those left out aside) are constants or results of such
// nodes.
std::vector<bool> weight_nodes(const Graph& graph);

// The format in which evaluate_weight() gives a constant or an expression.
Format weight_format(const Graph& graph, std::span<const Node> nodes, ValueId value);

// A constant is returned as it lies (its own format, no copy); an expression in new memory, as f32 or, where
// it moves numbers alone (OpDef::fold_keeps_format), in their format. Rows or
// columns are worked on in parallel; at most one f32 copy of the tensor exists beside the result. `nodes`
// hold the expressions: the graph's own, or those a Plan took out of it.
Result<Tensor> evaluate_weight(const Graph& graph, std::span<const Node> nodes, ValueId value,
                               ThreadPool& pool);
inline Result<Tensor> evaluate_weight(const Graph& graph, ValueId value, ThreadPool& pool) {
  return evaluate_weight(graph, graph.nodes(), value, pool);
}

// The mapped tensor an expression was made of: the constant at the end of the chain of first operands;
// kNoValue for a value that is not a weight.
ValueId weight_source(const Graph& graph, std::span<const Node> nodes, ValueId value);
// The format that the numbers at the beginning of that chain have; none for a value that is not a weight.
std::optional<Format> source_format(const Graph& graph, std::span<const Node> nodes, ValueId value);

// Every weight that a node or an output of the graph reads, once, in graph order: plain constants and the
// ends of expressions, under the name of the tensor they were made of: the first operand of each op leads
// there. Such values are written in the tensor's place, so an expression that is no other basis or format of
// it (w + 1, -exp(w)) must not begin with it: models put the number first. A head tied to its embedding has
// the head's name.
struct NamedWeight {
  std::string name;
  ValueId value;
};
std::vector<NamedWeight> named_weights(const Graph& graph);

// Takes expressions out of the graph's nodes for lowering and returns them. Those that are small (rank 0 or
// 1) or read by an op that cannot take an expression (OpDef::weight_expressions) become constants here.
Result<std::vector<Node>> take_weight_nodes(Graph& graph, ThreadPool& pool);

}  // namespace oar
