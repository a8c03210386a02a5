// Import: a model file of another framework becomes a Graph of our ops (engine/graph/graph.h, run by
// engine/graph/evaluate.h through runtime/predictor.h). One reader per format (onnx.h, the Paddle readers);
// what they share is here: the result, the writer, and the shape of their op tables.
//
// An op table has one line per foreign op: either only names, where the foreign op is one of ours under other
// attribute names, or a function that emits what it means. Unknown ops, attributes or versions are errors
// that name the node and its byte offset; nothing is skipped silently.
//
// Files are hostile until checked: every count is bounded by the bytes that are there. Constants are views of
// the mapped file wherever their alignment allows.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"
#include "engine/tensor/load_threads.h"

namespace oar {

// An extent of an input or output as the file declares it.
struct IoDim {
  int64_t value = -1;  // -1: any
  std::string name;    // of the symbol ("batch"), where the file gives one
  int64_t usual = -1;  // where any will do: the extent the model was made for, if the file says; else -1
  int64_t declared() const { return value >= 0 ? value : usual; }
};

// A named input or output. Names are the file's own.
struct IoSpec {
  enum class Kind : uint8_t { kTensor, kSequence, kOptional };
  std::string name;
  Kind kind = Kind::kTensor;
  DType dtype = DType::kF32;  // of the tensor, or of the elements of a sequence
  bool typed = false;         // false: the file does not say
  bool ranked = false;        // false: `dims` means nothing
  std::vector<IoDim> dims;
  std::string to_string() const;  // "x: f32[batch, 3, ~224, ~224]", ~ before usual extents
};

struct ImportedModel {
  std::shared_ptr<Graph> graph;  // inputs and outputs in the order of the specs below
  std::vector<IoSpec> inputs, outputs;
  std::string format;    // "onnx", "paddle", "paddle.pir"
  std::string producer;  // as the file says
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> files;     // that were read: the model's own and those with its weights
  std::vector<std::string> warnings;  // what is right but costs more than the file suggests, for people
};

struct ImportOptions {
  bool mmap = true;
  int threads = 1;  // that copy what cannot be viewed in the file
  // Paddle: the file with the parameters, or the folder with one file each; empty: looked for beside the
  // program.
  std::string parameters = {};
};

// Reads a model file, by its content and name. NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS or UNIMPLEMENTED with
// the file, the node and the offset.
Result<ImportedModel> import_model(const std::string& path, const ImportOptions& options = {});

// The same of a model in memory, told apart by its bytes: ONNX without external data, or a Paddle program
// (either generation) and its parameter file. `name` stands for it in messages. What may view the bytes does.
Result<ImportedModel> import_model_bytes(Buffer model, Buffer parameters, const std::string& name,
                                         const ImportOptions& options = {});

// Emits nodes into a Graph for an importer. Like Builder (graph/builder.h) without shape rules: keeps the
// first error, so that import functions read as equations; check status() at the end of each foreign node.
class OpWriter {
 public:
  explicit OpWriter(Graph& graph) : graph_(graph) {}
  Graph& graph() { return graph_; }
  const Status& status() const { return status_; }
  void fail(Status s) {
    if (status_.ok()) status_ = std::move(s);
  }
  // Name given to the nodes that follow (the foreign node's).
  void set_node_name(std::string name) { name_ = std::move(name); }

  // One result; an op that does not exist is an error. An empty Val leaves an optional operand out.
  Val op(std::string_view name, std::vector<Val> inputs, Attrs attrs = {});
  // What most calls are, without vectors to make and free where they stand: importers are thousands of them.
  Val op(std::string_view name, std::initializer_list<Val> inputs);
  Val op(std::string_view name, std::initializer_list<Val> inputs, const Attrs& attrs);
  std::vector<Val> ops(std::string_view name, std::vector<Val> inputs, size_t outputs, Attrs attrs = {},
                       std::vector<std::shared_ptr<const Graph>> subgraphs = {});

  Val constant(Tensor t, std::string name = {}) {
    return {graph_.add_constant(std::move(name), std::move(t))};
  }
  Val ints(const std::vector<int64_t>& values);  // i64 of rank 1
  Val int_scalar(int64_t value);                 // i64 of rank 0
  Val float_scalar(double value, DType dtype = DType::kF32);
  // The constant behind a value, or null: importers may fold what a file spells as operands.
  const Tensor* constant_of(Val v) const {
    if (!v || graph_.value(v.id).kind != ValueKind::kConstant) return nullptr;
    return &graph_.value(v.id).constant;
  }

 private:
  Graph& graph_;
  Status status_;
  std::string name_;
};

// A loop whose body maps (trip, condition, states..., captured...) to (condition, states..., stacked...). A
// state that the body hands on as it came is none: the body reads it from around the loop, as a constant
// where it is one, so that layers in the body have their weights packed.
std::vector<Val> write_loop(OpWriter& w, Val trips, Val condition, const std::vector<Val>& states,
                            const std::vector<Val>& captured, const std::shared_ptr<Graph>& body,
                            size_t outputs);

// Adds a graph input for `spec`, with a symbol for each named or unknown extent (equal names: one symbol).
ValueId add_graph_input(Graph& graph, const IoSpec& spec);

// A tensor of numbers made of bytes: views `buffer` where it is aligned for the dtype, copies otherwise; with
// `later` given the copy may wait there for its run().
// The bytes are dense elements, one per byte also for types narrower than a byte.
Result<Tensor> tensor_from_bytes(const Shape& shape, DType dtype, Buffer buffer,
                                 DeferredCopies* later = nullptr);

}  // namespace oar
