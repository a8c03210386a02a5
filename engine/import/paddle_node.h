// One Paddle op as an import function sees it: operands by position in PIR's order, attributes by PIR's name
// with the older one behind a bar ("transpose_x|trans_x"), and the writer. An attribute that Paddle lets be
// computed ("mutable") is an operand in PIR and either in a ProgramDesc: ints_in() and scalar_in() hide
// which.
//
// A node remembers which attributes and operands were asked for. What is left when its function returns must
// have no effect at inference (no_effect()), or the model is refused: nothing is dropped in silence.
#pragma once

#include "engine/import/paddle.h"

namespace oar::paddle {

class Scope;

// A small tensor of these values (as many as `dims` say).
Tensor filled(const std::vector<int64_t>& dims, DType dtype, std::span<const double> values);

class Node {
 public:
  Node(const Op& op, Scope& scope);

  const Op& op() const { return op_; }
  Scope& scope() { return scope_; }
  OpWriter& w();
  void fail(Status s) { w().fail(std::move(s)); }

  // Operand i, empty when left out; a list where the operand is one.
  Val in(size_t i);
  std::vector<Val> list(size_t i);
  bool has_in(size_t i) const { return i < op_.inputs.size() && !op_.inputs[i].values.empty(); }
  size_t num_inputs() const { return op_.inputs.size(); }
  size_t num_outputs() const { return op_.outputs.size(); }
  // As the program declares them; nullptr where it says nothing.
  const ValueType* in_type(size_t i) const;
  const ValueType* out_type(size_t i) const;
  int rank(size_t i);     // of operand i; fails when it is not declared
  DType dtype(size_t i);  // likewise
  void out(size_t i, Val v);
  void out_list(size_t i, std::vector<Val> v);

  bool has(std::string_view names) { return find(names) != nullptr; }
  int64_t get_int(std::string_view names, int64_t fallback);
  bool get_bool(std::string_view names, bool fallback) { return get_int(names, fallback) != 0; }
  double get_float(std::string_view names, double fallback);
  std::string get_string(std::string_view names, std::string fallback = {});
  std::vector<int64_t> get_ints(std::string_view names);
  std::vector<double> get_floats(std::string_view names);
  // The element type an attribute names, by word (PIR) or number (ProgramDesc); `fallback` when undefined.
  DType get_dtype(std::string_view names, DType fallback);

  // Attributes and operands that change nothing in the case at hand: they count as read.
  void ignore(std::string_view names);
  void ignore_in(size_t i) {
    if (i < op_.inputs.size()) inputs_read_[i] = true;
  }
  // An error that names what nobody read and what is not known to be without effect.
  Status all_read() const;

  // Operand i as i64 of rank 1 (a tensor, a list of tensors of one element), else the attribute.
  Val ints_in(size_t i, std::string_view attr);
  // The same where it is known now; nullopt when it is computed.
  std::optional<std::vector<int64_t>> known_ints(size_t i, std::string_view attr);
  // Operand i (one element) or the attribute, as rank 0 of `dtype`.
  Val scalar_in(size_t i, std::string_view attr, double fallback, DType dtype);
  std::optional<double> known_scalar(size_t i, std::string_view attr, double fallback);

  // Shorthands.
  // Of rank 0; saturates where the dtype is an integer's.
  Val number(double v, DType dtype) { return w().constant(filled({}, dtype, {&v, 1})); }
  Val cast(Val v, DType dtype) { return w().op("cast", {v}, {{"to", std::string(dtype_name(dtype))}}); }
  Val reshape(Val v, const std::vector<int64_t>& shape) { return w().op("reshape", {v, w().ints(shape)}); }
  Val transpose(Val v, std::vector<int64_t> perm) {
    return w().op("transpose", {v}, {{"perm", std::move(perm)}});
  }
  Val shape_of(Val v, int64_t start = 0, int64_t end = INT64_MAX) {
    Attrs a{{"start", start}};
    if (end != INT64_MAX) a.set("end", end);
    return w().op("shape_of", {v}, a);
  }
  Val concat(std::vector<Val> parts, int64_t axis = 0) {
    return w().op("concat", std::move(parts), {{"axis", axis}});
  }
  Val slice(Val v, int64_t axis, int64_t begin, int64_t end, int64_t step = 1) {
    return w().op("slice", {v, w().ints({begin}), w().ints({end}), w().ints({axis}), w().ints({step})});
  }
  Val unsqueeze(Val v, std::vector<int64_t> axes) { return w().op("unsqueeze", {v, w().ints(axes)}); }
  Val squeeze(Val v, std::vector<int64_t> axes) { return w().op("squeeze", {v, w().ints(axes)}); }
  // Results that older programs keep as [1] where today's rank is 0.
  Val as_declared(size_t i, Val v);

 private:
  // The first of `names` that is there; marks it as read.
  const Attr* find(std::string_view names);
  const Op& op_;
  Scope& scope_;
  std::vector<bool> attrs_read_, inputs_read_;
};

// A graph under construction: the program's, or a branch's or body's. Values of the scopes around it that an
// op reads become operands of the node that owns it; constants are copied in.
class Scope {
 public:
  Scope(const Program& program, Scope* outer)
      : program_(program),
        outer_(outer),
        depth_(outer ? outer->depth_ + 1 : 0),
        graph_(std::make_shared<Graph>()),
        writer_(*graph_),
        values_(program.values.size()) {}

  const Program& program() const { return program_; }
  OpWriter& writer() { return writer_; }
  const std::shared_ptr<Graph>& graph() const { return graph_; }
  // Values of the outer scope, in the order of the graph inputs made for them.
  const std::vector<Val>& captured() const { return captured_; }

  // Empty when nothing has defined it.
  std::vector<Val> lookup(ValueIndex v);
  void define(ValueIndex v, std::vector<Val> vals) { values_[v] = std::move(vals); }
  bool defines(ValueIndex v) const { return values_[v].has_value(); }
  Scope* outer() { return outer_; }
  // A formal input of a body.
  Val add_formal(const std::string& name) { return {graph_->add_input(name, TensorType::unknown())}; }
  // Somebody took a declared extent for a fact: the inputs must have those that the program declares.
  void rely_on_extents() { outermost().relies_on_extents_ = true; }
  bool relies_on_extents() { return outermost().relies_on_extents_; }
  // Translates the block's ops; stops at cf.yield, whose operands it hands back.
  Status run(const Block& block, std::vector<ValueIndex>* yielded);

 private:
  Scope& outermost() { return outer_ ? outer_->outermost() : *this; }

  const Program& program_;
  Scope* outer_;
  bool relies_on_extents_ = false;
  int depth_;  // bounded: a hostile file may nest blocks without end
  std::shared_ptr<Graph> graph_;
  OpWriter writer_;
  std::vector<std::optional<std::vector<Val>>> values_;
  std::vector<Val> captured_;
};

struct OpEntry {
  const char* name;  // PIR's, without a trailing underscore
  void (*import)(Node& n);
};

// The table's parts.
std::span<const OpEntry> math_ops();       // elementwise, comparisons, reductions, products
std::span<const OpEntry> shape_ops();      // constants, movement, indexing
std::span<const OpEntry> layer_ops();      // convolution, pooling, normalization, images, recurrent
std::span<const OpEntry> detection_ops();  // boxes: where they may lie, which are chosen
std::span<const OpEntry> quantize_ops();   // to steps of a scale and back
std::span<const OpEntry> control_ops();    // if, while, lists

// True where an attribute of this op (PIR's name) has no effect at inference, or none at this value.
bool no_effect(std::string_view op, const Attr& attr);

// The op under PIR's name with operands in PIR's order; an error when a ProgramDesc op is not in the table.
Result<Op> from_legacy(const Program& program, const Op& op);

}  // namespace oar::paddle
