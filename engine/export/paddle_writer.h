// What the writing of a Paddle program needs. A graph of ours becomes a paddle::Program
// (import/paddle_program.h) in PIR's spelling, which paddle_pir_text.cc and paddle_program_desc.cc turn into
// bytes. Paddle wants every value's element type and rank declared and our graphs declare neither: so each op
// that is written says what it yields, from what its operands are.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/import/paddle_program.h"
#include "engine/tensor/element.h"

namespace oar::paddle {

// What the program declares a value to be.
struct Declared {
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // -1: not known
  int rank() const { return static_cast<int>(dims.size()); }
};
Declared declared(const Tensor& t);

inline constexpr ValueIndex kAbsent = -1;

// An operand of an op: one value, none, or a list.
struct Operand {
  Operand(ValueIndex v) {  // NOLINT: implicit by design
    if (v != kAbsent) values.push_back(v);
  }
  Operand(std::vector<ValueIndex> list) : values(std::move(list)) {}  // NOLINT
  std::vector<ValueIndex> values;
};

// The program and its parameters.
class ProgramWriter {
 public:
  Program program;
  std::vector<Tensor> parameters;  // by program.parameters
  std::set<std::string, std::less<>> taken;

  ProgramWriter() { program.blocks.emplace_back(); }
  // UNIMPLEMENTED for an element type that Paddle has not.
  Result<ValueIndex> add_value(std::string_view wanted_name, const Declared& type);
  Result<ValueIndex> add_parameter(const Tensor& t, std::string_view wanted_name);
  const Declared& type(ValueIndex v) const { return types_[static_cast<size_t>(v)]; }
  std::string unique(std::string_view wanted);
  // What is known of the elements of a computed shape, -1 where nothing is: the extents of what is shaped by
  // it can be declared then.
  std::map<ValueIndex, std::vector<int64_t>> extents;
  // Parameters by the bytes of their names, as their file stores them.
  void sort_parameters();

 private:
  std::deque<Declared> types_;  // stay where they are: types are handed out by reference
  // Parameters by bytes and type: what two nodes share is written once.
  std::map<std::tuple<const void*, DType, std::vector<int64_t>>, ValueIndex> shared_;
};

// One graph on its way into one block: the main graph, a branch or a body.
class BlockWriter {
 public:
  BlockWriter(ProgramWriter& file, const Graph& graph, int32_t block)
      : file_(file), graph_(graph), block_(block) {}

  ProgramWriter& file() { return file_; }
  const Graph& graph() const { return graph_; }
  int32_t block() const { return block_; }
  // Ops go where the block stands when they are added.
  void add_op(Op op) { file_.program.blocks[static_cast<size_t>(block_)].ops.push_back(std::move(op)); }

  // The program's value for one of the graph's; kAbsent for an operand left out. Constants become parameters
  // when they are first asked for.
  Result<ValueIndex> value_of(ValueId id);
  void bind(ValueId id, ValueIndex v) { values_[id] = v; }
  // The graph's value is known now: a constant, or computed from constants alone.
  const Tensor* known(ValueId id) const;
  void set_known(ValueId id, Tensor t) { known_[id] = std::move(t); }
  // A constant's or bound value's type.
  Result<Declared> type_of(ValueId id);

  // Every node, in order. Errors name node and op.
  Status write_nodes();

 private:
  Result<bool> fold(const Node& node);
  ProgramWriter& file_;
  const Graph& graph_;
  const int32_t block_;
  std::map<ValueId, ValueIndex> values_;
  std::map<ValueId, Tensor> known_;
};

// One node on its way out. Keeps the first error, so that writers read as equations.
class NodeWriter {
 public:
  NodeWriter(BlockWriter& block, const Node& node) : block_(block), node_(node) {}

  const Node& node() const { return node_; }
  const Attrs& attrs() const { return node_.attrs; }
  BlockWriter& block() { return block_; }
  ProgramWriter& file() { return block_.file(); }
  const Status& status() const { return status_; }
  void fail(std::string why);  // "..., which Paddle cannot express"
  void fail(Status s) {
    if (status_.ok()) status_ = std::move(s);
  }

  // ---- operands of our node
  bool has(size_t i) const { return i < node_.inputs.size() && node_.inputs[i] != kNoValue; }
  ValueIndex in(size_t i);
  Declared in_type(size_t i);
  const Tensor* known(size_t i) const { return has(i) ? block_.known(node_.inputs[i]) : nullptr; }
  // Operand i as integers, where it is known now.
  std::optional<std::vector<int64_t>> known_ints(size_t i) const;
  // Fails with "operand i (`what`) is computed" where it is not.
  std::vector<int64_t> want_ints(size_t i, const char* what);
  // Operand i if given, else the attribute; nullopt without either.
  std::optional<std::vector<int64_t>> ints_or_attr(size_t i, const char* attr);
  // Operand i known and of one element.
  std::optional<double> known_number(size_t i) const;
  // Refuses attributes but these: nothing of a node is left out silently.
  void expect_attrs(std::initializer_list<std::string_view> names);

  // ---- results of our node
  bool wants(size_t i) const;  // somebody may read it
  void out(size_t i, ValueIndex v);

  // ---- ops of Paddle
  const Declared& type(ValueIndex v) const;
  ValueIndex op(std::string_view name, std::vector<Operand> in, std::vector<Attr> attrs,
                const Declared& type);
  // Results by place, each one value or a list.
  std::vector<std::vector<ValueIndex>> emit(std::string_view name, std::vector<Operand> in,
                                            std::vector<Attr> attrs,
                                            const std::vector<std::vector<Declared>>& types);
  // Operands that a ProgramDesc keeps as attributes.
  ValueIndex ints(const std::vector<int64_t>& v);
  ValueIndex number(double v, DType dtype, std::vector<int64_t> shape = {1});
  // A tensor in the parameter file.
  ValueIndex constant(const Tensor& t, std::string_view name = {});
  // Numbers of rank 0 or 1 there, exact in every dtype.
  ValueIndex constant(std::span<const double> v, DType dtype, std::vector<int64_t> dims = {});
  ValueIndex scalar(double v, DType dtype) { return constant({&v, 1}, dtype); }
  // Operand i under another shape of as many elements: reshaped here where it is known.
  ValueIndex in_shaped(size_t i, const std::vector<int64_t>& dims);

  // Shorthands; types follow from the operands.
  ValueIndex same(std::string_view name, ValueIndex x, std::vector<Attr> attrs = {}) {
    return op(name, {x}, std::move(attrs), type(x));
  }
  ValueIndex binary(std::string_view name, ValueIndex a, ValueIndex b);   // broadcasts, of a's dtype
  ValueIndex compare(std::string_view name, ValueIndex a, ValueIndex b);  // broadcasts to bool
  ValueIndex cast(ValueIndex x, DType to);
  ValueIndex reshape(ValueIndex x, const std::vector<int64_t>& shape);
  ValueIndex reshape_to(ValueIndex x, ValueIndex shape);
  ValueIndex transpose(ValueIndex x, const std::vector<int64_t>& perm);
  ValueIndex squeeze(ValueIndex x, const std::vector<int64_t>& axes);
  ValueIndex unsqueeze(ValueIndex x, const std::vector<int64_t>& axes);
  ValueIndex concat(const std::vector<ValueIndex>& parts, int64_t axis);
  ValueIndex shape_of(ValueIndex x);  // i64[rank]
  ValueIndex slice(ValueIndex x, int64_t axis, int64_t begin, int64_t end);
  ValueIndex expand(ValueIndex x, const std::vector<int64_t>& dims);  // -1: as it is
  ValueIndex expand_to(ValueIndex x, ValueIndex shape);
  // Extents that a computed shape gives; fails where not even their number is known.
  std::vector<int64_t> extents(ValueIndex shape);
  // condition ? a : b, spread to their common shape, which Paddle does not do itself.
  ValueIndex select(ValueIndex condition, ValueIndex a, ValueIndex b);
  ValueIndex reduce(std::string_view name, ValueIndex x, std::vector<int64_t> axes, bool keep);

 private:
  BlockWriter& block_;
  const Node& node_;
  Status status_;
};

// Extents of what `a` and `b` broadcast to; nullopt where they cannot.
std::optional<std::vector<int64_t>> broadcast(const std::vector<int64_t>& a, const std::vector<int64_t>& b);
// Negative axes counted from the end; nullopt where one is out of range.
std::optional<std::vector<int64_t>> positive_axes(std::vector<int64_t> axes, int rank);
// Elements where all extents are known.
std::optional<int64_t> count_of(const std::vector<int64_t>& dims);

struct OpWriterEntry {
  std::string_view ours;
  void (*write)(NodeWriter&);
};
// The table's parts.
std::span<const OpWriterEntry> math_writers();       // elementwise, comparisons, reductions, products
std::span<const OpWriterEntry> shape_writers();      // constants, movement
std::span<const OpWriterEntry> index_writers();      // gather, scatter, order
std::span<const OpWriterEntry> layer_writers();      // convolution, pooling, normalization, images
std::span<const OpWriterEntry> recurrent_writers();  // lstm, gru, rnn
std::span<const OpWriterEntry> quantize_writers();   // to integers and back
std::span<const OpWriterEntry> control_writers();    // if, loop

// The bytes of the program's file.
Result<std::string> pir_text(const ProgramWriter& file);
Result<std::string> program_desc_bytes(const ProgramWriter& file);

}  // namespace oar::paddle
