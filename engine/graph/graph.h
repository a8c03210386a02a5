// Graph: an SSA list of op instances over typed values. Models and importers build it (Builder), passes
// rewrite it (pass.h), a Plan lays it out for a Run (plan.h, run.h), or an Evaluator runs it (evaluate.h).
// Nodes are kept in topological order. Build time only; not thread-safe.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/attrs.h"
#include "engine/graph/dim.h"
#include "engine/tensor/tensor.h"

namespace oar {

struct OpDef;  // op.h
class Graph;

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;
using DimVector = std::vector<Dim>;

struct TensorType {
  Format format;
  DimVector shape;
  // False: dtype and extents are only known when the value is (evaluate.h).
  bool known = true;
  static TensorType unknown() { return {{}, {}, false}; }
  bool operator==(const TensorType& o) const {
    return known == o.known && format == o.format && shape == o.shape;
  }
};

enum class ValueKind : uint8_t {
  kInput,     // bound per run
  kConstant,  // a Tensor, usually a view of the mapped file
  kState,     // device memory that outlives runs (a KV pool); bound by Run::bind_state
  kResult,    // produced by a node
};

struct Value {
  ValueKind kind = ValueKind::kResult;
  std::string name;  // for people; constants carry the checkpoint's tensor name
  TensorType type;
  Tensor constant;  // kConstant
};

struct Node {
  const OpDef* op = nullptr;
  std::vector<ValueId> inputs;  // kNoValue: an optional input left out
  std::vector<ValueId> outputs;
  Attrs attrs;
  // Branches and loop bodies. They see nothing of this graph but the operands the node hands them.
  std::vector<std::shared_ptr<const Graph>> subgraphs;
  std::string name;  // for people: the node's name in the file it came from

  bool is(std::string_view op_name) const;
};

// A language model's rows on a device that computes those of prompts and those of generated tokens in
// different orders (RowClass): the last `prompts` of `rows` rows, or all where there are fewer, are of
// prompts.
struct RowPhases {
  SymbolId rows = 0, prompts = 0;
};

class Graph {
 public:
  SymbolId add_symbol(std::string name, int64_t max);
  // Unset: all rows are computed alike.
  std::optional<RowPhases> phases;
  // Whether a value has a row of its own for each of phases->rows.
  bool has_phases(const TensorType& type) const {
    return phases && type.known && !type.shape.empty() && type.shape[0] == dim(phases->rows);
  }
  Dim dim(SymbolId id) const { return Dim::symbol(id); }
  const SymbolTable& symbols() const { return symbols_; }
  SymbolTable& symbols() { return symbols_; }

  ValueId add_input(std::string name, TensorType type);
  ValueId add_state(std::string name, TensorType type);
  ValueId add_constant(std::string name, Tensor tensor);
  // Infers the output types through the op's shape rule; its error names the op and its operands.
  Result<std::vector<ValueId>> add_node(const OpDef* op, std::vector<ValueId> inputs, Attrs attrs = {});
  // A node of an ordinary model: no shape rule is asked, types of its `outputs` results are unknown until
  // run.
  std::vector<ValueId> append(const OpDef* op, std::vector<ValueId> inputs, size_t outputs, Attrs attrs = {},
                              std::vector<std::shared_ptr<const Graph>> subgraphs = {},
                              std::string name = {});
  void add_output(std::string name, ValueId value);
  void keep_outputs(size_t n) { outputs_.resize(n); }  // the first n
  // What is handed in from now on: inputs of before, in any order. Those left out become constants: see
  // become_constant().
  void set_inputs(std::vector<ValueId> inputs) { inputs_ = std::move(inputs); }
  void become_constant(ValueId input, Tensor tensor);

  const Value& value(ValueId id) const { return values_[id]; }
  Value& value(ValueId id) { return values_[id]; }
  size_t num_values() const { return values_.size(); }
  std::vector<Node>& nodes() { return nodes_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& states() const { return states_; }
  struct Output {
    std::string name;
    ValueId value;
  };
  const std::vector<Output>& outputs() const { return outputs_; }
  void set_outputs(std::vector<Output> outputs) { outputs_ = std::move(outputs); }

  // Rewriting helpers for passes.
  void replace_uses(ValueId from, ValueId to);  // in every node input and graph output: a sweep
  // The same for many in one sweep: v by to[v]. Values past the end of `to` stay.
  void replace_uses(std::span<const ValueId> to);
  std::vector<int> use_counts() const;  // by value, graph outputs included
  std::vector<int> producers() const;   // node index by value, -1 for none
  // Removes nodes whose `dead` flag is set.
  void remove_nodes(const std::vector<bool>& dead);
  // Restores topological order after a rewrite that appended nodes at the end.
  void sort();

  // One line per node: "%5 = rms_norm(%3, %4) {epsilon: 1e-05} : f32[T, 256]".
  std::string to_string() const;
  std::string type_string(const TensorType& t) const;

 private:
  ValueId add_value(Value v);
  SymbolTable symbols_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<ValueId> inputs_, states_;
  std::vector<Output> outputs_;
};

}  // namespace oar
