// One ONNX node as an import function sees it: operands as values of our graph, attributes by name and type,
// and the writer. Attributes that nobody asked for are an error afterwards, so a forgotten one is never
// silently dropped.
#pragma once

#include <set>

#include "engine/import/onnx.h"
#include "engine/import/onnx_proto.h"
#include "engine/import/onnx_tensor.h"

namespace oar::onnx {

class GraphImporter;

// A branch or body: its graph, and the values of the surrounding graphs that it reads, in the order of the
// inputs that follow its formal ones.
struct Subgraph {
  std::shared_ptr<Graph> graph;
  std::vector<Val> captured;
};

class OnnxNode {
 public:
  OnnxNode(const NodeMsg& msg, std::vector<Val> inputs, int64_t opset, OpWriter& writer,
           GraphImporter& importer, const std::vector<AttrMsg>* function_attrs);

  const NodeMsg& msg() const { return msg_; }
  int64_t opset() const { return opset_; }
  OpWriter& w() { return writer_; }

  size_t num_inputs() const { return inputs_.size(); }
  size_t num_outputs() const { return msg_.outputs.size(); }
  Val in(size_t i) const { return i < inputs_.size() ? inputs_[i] : Val{}; }
  const std::vector<Val>& ins() const { return inputs_; }
  void out(size_t i, Val v) {
    if (i < outputs_.size()) outputs_[i] = v;
  }
  void outs(const std::vector<Val>& v) {
    for (size_t k = 0; k < v.size(); ++k) out(k, v[k]);
  }
  const std::vector<Val>& results() const { return outputs_; }

  bool has(std::string_view name) { return find(name) != nullptr; }
  int64_t get_int(std::string_view name, int64_t fallback);
  double get_float(std::string_view name, double fallback);
  std::string get_string(std::string_view name, std::string fallback = {});
  std::vector<int64_t> get_ints(std::string_view name);
  // A tensor attribute; an error when absent.
  Result<Tensor> get_tensor(std::string_view name);
  Result<Subgraph> get_graph(std::string_view name);
  // Those of `spec` (OnnxOp::attrs) that are there, as ours; fails where one has another type.
  Attrs get_all(std::string_view spec);
  // All that there are; fails where one is no number, string or list of these.
  Attrs get_all();
  const AttrMsg* find(std::string_view name);  // marks it as read

  TensorSource& tensors();
  void fail(Status s) { writer_.fail(std::move(s)); }
  // Weights that the file holds in `stored` bytes will take `held` in memory.
  void widened(uint64_t stored, uint64_t held);
  // An attribute that no function asked for; empty when all were read.
  std::string_view unread() const;

 private:
  const AttrMsg* typed(std::string_view name, AttrType type);
  // Scalars, strings and lists of them; nullopt when absent.
  std::optional<AttrValue> get_any(std::string_view name);
  const NodeMsg& msg_;
  std::vector<Val> inputs_;
  std::vector<Val> outputs_;
  int64_t opset_;
  OpWriter& writer_;
  GraphImporter& importer_;
  const std::vector<AttrMsg>* function_attrs_;
  std::set<std::string_view> read_;
};

// A line of the op table. Where several lines have the same op, the one with the highest `since` not above
// the model's opset holds.
struct OnnxOp {
  const char* name;
  int since;             // opset of ai.onnx
  const char* graph_op;  // all operands and results in order; or:
  // Attributes handed on under their names, "axis:i pads:I mode:s alpha:f": i int, f float, s string, and
  // lists of them I F S.
  const char* attrs;
  void (*import)(OnnxNode& n);
};

// Null when no line has this name; `newest` tells a name that exists in later opsets only.
const OnnxOp* find_onnx_op(std::string_view name, int64_t opset, bool* newer);
// The same table from right to left, for the export: a line that renames `ours`, the newest up to `opset`,
// else the oldest after it; null when there is none.
const OnnxOp* find_onnx_spelling(std::string_view ours, int64_t opset);
// Of com.microsoft, what onnxruntime's optimizer and quantizer write (onnx_ops_contrib.cc).
const OnnxOp* find_contrib_op(std::string_view name);

}  // namespace oar::onnx
