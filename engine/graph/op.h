// OpDef: what the graph knows of an operation. Two kinds:
//   primitive   carries the semantics: a shape rule and an evaluation in double precision.
//   composite   is defined once in primitives (`define`). That definition is its fallback where there is no
//               kernel, its oracle in tests,
//               and the pattern that fuse_definitions matches.
// Either may have a kernel (`lower`). Ops live in engine/ops, one file each, listed in its CMakeLists.txt.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/graph/graph.h"

namespace oar {

class Builder;
class LoweredOp;       // lowering.h
struct LowerContext;   // lowering.h
class EvalContext;     // evaluate.h
class KernelContext;   // evaluate.h
class PrepareContext;  // packed_weights.h
class ThreadPool;

// A handle on a value of a graph under construction.
struct Val {
  ValueId id = kNoValue;
  explicit operator bool() const { return id != kNoValue; }
};

// A node that is passed backwards: what vjp() below is given. All is in the graph that `b` writes.
struct Pullback {
  Builder& b;
  std::span<const Val> in, out;     // operands and results, empty where left out
  std::span<const Val> d;           // by result: the gradient of what is differentiated; empty: zero
  std::span<const uint8_t> wanted;  // by operand: whether anybody asks for its gradient
  const Attrs& attrs;
};

// What an op of an ordinary model needs before the sizes of its results are known (Evaluator::size()).
enum class SizesFrom : uint8_t {
  kShapes,  // the operands' shapes, and operands read by EvalContext::ints() and scalars
  kValues,  // the operands' values
  kItself,  // the result is an operand's size: known with the shapes, value and all
};

// What a layer with a recurrent state keeps of a sequence (kernels/state.h), in floats.
struct StateFloats {
  int64_t border = 0;  // behind a chunk
  int64_t row = 0;     // of each position of an open one
};

struct OpDef {
  const char* name;
  // Writes its first input, a state value, in place and returns the state after the write; never removed.
  bool effect = false;
  // Bit i: input i may be a view whose rows are farther apart than its columns (a slice of a wider result).
  uint32_t strided_inputs = 0;
  // The same of heads (T, H, D) that lie apart as well, each among the columns of a wider one.
  uint32_t apart_inputs = 0;
  // Result 0 may be written so: where a wider result will have it.
  bool strided_output = false, apart_output = false;

  // Checks operands and attributes, returns the output types. Errors name the operand.
  Result<std::vector<TensorType>> (*infer)(const Graph& g, std::span<const ValueId> inputs,
                                           const Attrs& attrs) = nullptr;
  // Composite: emits the definition and returns its outputs. Null for primitives.
  std::vector<Val> (*define)(Builder& b, std::span<const Val> inputs, const Attrs& attrs) = nullptr;
  // Primitive: the products of the results' gradients with the Jacobian, in ops that differentiate again; one
  // per operand and shaped like it, empty where it is not wanted or is zero. Null with a definition, which is
  // differentiated instead, and where the op has no derivative.
  std::vector<Val> (*vjp)(const Pullback& p) = nullptr;
  // The derivative is zero wherever there is one: choices, comparisons, roundings.
  bool piecewise_constant = false;
  // The definition is also a fusion pattern.
  bool pattern = false;
  // The definition does far more work than a kernel: where a device has none, the processor's is preferred.
  bool costly_definition = false;
  // Runs on concrete host tensors of any dtype; result shapes follow from the values (evaluate.h). Ops of
  // ordinary models have this and need no shape rule; null for ops that need device state. A plain loop, in
  // double or exact integers: it has no kernels to call, and so is what these are held against, and the last
  // resort.
  Status (*evaluate)(EvalContext& ctx) = nullptr;
  // The same on the processor by kernels, called as often as sizes and values say. Asked where lower() has no
  // call for the operands. False, and nothing set: evaluate() does them.
  Result<bool> (*by_kernels)(KernelContext& ctx) = nullptr;
  SizesFrom sizes = SizesFrom::kShapes;
  // Result 0 is operand 0 under another shape: evaluate() does not look at its bytes, wherever they lie.
  bool view = false;
  // Packs what is constant once, for lower() and by_kernels(); null when nothing is worth it.
  Result<std::shared_ptr<const void>> (*prepare)(PrepareContext& ctx) = nullptr;
  // Results depend on more than the operands (random numbers): never folded or merged.
  bool impure = false;
  // Makes the kernel call, or returns null when the backend has no kernel for these operands. A node is
  // lowered by the types of its graph, or by a run's operands (bound_call.h): LowerContext::known() has both.
  Result<std::unique_ptr<LoweredOp>> (*lower)(LowerContext& ctx) = nullptr;
  // Ops of weight expressions (weights.h): computes the result over the f32 tensor `x`, operand 0, at the
  // speed of memory. False, and x untouched, for operands it does not do; the reference does those.
  Result<bool> (*fold_inplace)(Tensor& x, std::span<const Tensor> rest, const Attrs& attrs,
                               ThreadPool& pool) = nullptr;
  // The same for ops that make little of much (sums over a matrix): reads the operands as they lie, in their
  // own formats; those left out are empty tensors.
  Result<Tensor> (*fold)(std::span<const Tensor> operands, const Attrs& attrs, ThreadPool& pool) = nullptr;
  // fold() moves numbers and leaves them in the format of the result's type; else its results are f32.
  bool fold_keeps_format = false;
  // Matrix operands may be weight expressions: lower() reads them through LowerContext::weight().
  bool weight_expressions = false;
  // Ops with a recurrent state, over packed rows whose last operand is their segments. The serve pass
  // replaces them by `served`. That one has kStateOperands in front of the op's own operands but the last,
  // and the attribute `page_tokens` beside the op's own. In front of the op's results it has the borders'
  // state after the write.
  Result<StateFloats> (*state)(const Graph& g, std::span<const ValueId> inputs, const Attrs& attrs) = nullptr;
  const char* served = nullptr;
  // What of it has no gradient though it has one, for people: "reductions mul, min and max". grad() refuses
  // it.
  const char* no_gradient_of = nullptr;
};

// Declared here, defined in engine/ops/registry.cc from its CMake list and of what was registered
// (engine/ops/custom.h). Null when unknown.
const OpDef* find_op(std::string_view name);
// How often an op can be differentiated, for people: "any order", "piecewise constant" or "not";
// OpDef::no_gradient_of says of what not. What is defined by others is as they are, whatever its attributes
// choose among them.
inline const char* differentiability(const OpDef& op) {
  if (op.piecewise_constant) return "piecewise constant";
  return op.vjp != nullptr || op.define != nullptr ? "any order" : "not";
}
std::span<const OpDef* const> all_ops();
// Whether a node can run by itself, on concrete values.
inline bool runs_on_values(const OpDef& op) { return op.evaluate != nullptr || op.by_kernels != nullptr; }

}  // namespace oar
