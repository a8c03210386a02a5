// What the writing of one ONNX graph needs: names that are unique in the whole file, nodes, initializers; and
// one node of ours as an export function sees it.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/export/proto_writer.h"
#include "engine/import/import.h"

namespace oar::onnx {

// AttributeProto by what it holds.
ProtoWriter int_attribute(std::string_view name, int64_t v);
ProtoWriter float_attribute(std::string_view name, double v);
ProtoWriter string_attribute(std::string_view name, std::string_view v);
ProtoWriter ints_attribute(std::string_view name, std::span<const int64_t> v);
ProtoWriter graph_attribute(std::string_view name, const ProtoWriter& graph);
ProtoWriter tensor_attribute(std::string_view name, const std::string& tensor);

// ValueInfoProto: name and type.
Result<ProtoWriter> value_info(const IoSpec& io);

// What all graphs of a file share.
struct FileWriter {
  int64_t opset = 21;
  std::set<std::string, std::less<>> taken;        // of values
  std::set<std::string, std::less<>> taken_nodes;  // one of ours may be several there
  std::map<const void*, std::string>
      outer;                           // constants of the main graph, by their bytes: bodies see them too
  uint64_t inline_bytes = UINT64_MAX;  // 0: every large constant goes into `data`
  std::string data, data_name;

  std::string unique(std::string_view wanted) { return unique_in(taken, wanted); }
  static std::string unique_in(std::set<std::string, std::less<>>& names, std::string_view wanted);
  void require(int64_t version) { opset = std::max(opset, version); }
};

class GraphWriter {
 public:
  // `parent` null: the main graph.
  GraphWriter(FileWriter& file, const Graph& graph, bool main) : file_(file), graph_(graph), main_(main) {}

  FileWriter& file() { return file_; }
  const Graph& graph() const { return graph_; }
  // The name of a value; "" for an operand left out. Constants are written when they are first asked for.
  Result<std::string> name_of(ValueId id);
  void set_name(ValueId id, std::string name) { names_[id] = std::move(name); }
  bool named(ValueId id) const { return names_.count(id) != 0; }
  Result<std::string> add_constant(const Tensor& t, std::string_view wanted);
  void add_node(std::string_view op, const std::vector<std::string>& inputs,
                const std::vector<std::string>& outputs, const std::vector<ProtoWriter>& attributes,
                std::string_view name);
  // The GraphProto; `inputs` and `outputs` are ValueInfoProtos.
  ProtoWriter finish(std::string_view name, const std::vector<ProtoWriter>& inputs,
                     const std::vector<ProtoWriter>& outputs) const;
  // Every node, and Identity where an output is no node's own result.
  Status write_nodes();
  // Names of results that are outputs: `names` one per output of the graph. Before write_nodes().
  void name_outputs(const std::vector<std::string>& names);

 private:
  FileWriter& file_;
  const Graph& graph_;
  const bool main_;
  std::map<ValueId, std::string> names_;
  std::vector<std::pair<ValueId, std::string>> copies_;  // outputs that need an Identity
  std::string nodes_, initializers_;                     // fields of the GraphProto
};

// One node on its way out. Keeps the first error.
class NodeWriter {
 public:
  NodeWriter(GraphWriter& graph, const Node& node) : graph_(graph), node_(node) {}

  const Node& node() const { return node_; }
  const Attrs& attrs() const { return node_.attrs; }
  GraphWriter& graph() { return graph_; }
  FileWriter& file() { return graph_.file(); }
  const Status& status() const { return status_; }
  void fail(std::string why);  // "... , which ONNX cannot express"
  void fail(Status s) {
    if (status_.ok()) status_ = std::move(s);
  }

  bool has(size_t i) const { return i < node_.inputs.size() && node_.inputs[i] != kNoValue; }
  std::string in(size_t i);
  std::vector<std::string> ins();
  std::string out(size_t i);
  std::vector<std::string> outs();
  // The constant behind operand i, or null.
  const Tensor* constant_in(size_t i) const;
  std::string fresh() { return file().unique("t"); }
  std::string constant(const Tensor& t);
  std::string ints(const std::vector<int64_t>& v);  // i64 of rank 1
  std::string number(float v);                      // f32 of rank 0

  // The attributes of the node as `spec` types them ("axis:i mode:s", as in onnx_ops.inc); one that it does
  // not name is an error, unless it stands in `handled`.
  std::vector<ProtoWriter> attributes(std::string_view spec, std::span<const std::string_view> handled = {});
  // Our attribute `from`, a dtype's name, as ONNX's number under `to`; nothing where it is absent.
  void dtype_attribute(std::string_view from, std::string_view to, std::vector<ProtoWriter>& out);
  void emit(std::string_view op, const std::vector<std::string>& inputs,
            const std::vector<std::string>& outputs, const std::vector<ProtoWriter>& attributes = {}) {
    graph_.add_node(op, inputs, outputs, attributes, node_.name);
  }
  // `body` of this node as a GraphProto: `formal` of its inputs are its own, the rest are the operands from
  // `captured` on. `inputs` and `outputs` say what the first of its own are, by type; others stay untyped, as
  // bodies may leave them: a reader infers them from the node.
  Result<ProtoWriter> body(size_t which, size_t formal, size_t captured,
                           const std::vector<IoSpec>& inputs = {}, const std::vector<IoSpec>& outputs = {});
  // What is declared of operand i: its element type where it is an input or a constant of its graph.
  IoSpec operand_spec(size_t i) const;

 private:
  GraphWriter& graph_;
  const Node& node_;
  Status status_;
};

// Writes one node; the error says why, without naming the node.
Status write_onnx_node(GraphWriter& graph, const Node& node);

}  // namespace oar::onnx
