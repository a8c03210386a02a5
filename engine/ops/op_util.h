// What op files share: operand checks for shape rules, and the graph's typed vocabulary for models (ops.h).
#pragma once

#include "engine/base/format.h"
#include "engine/graph/builder.h"
#include "engine/graph/lowering.h"
#include "engine/graph/op.h"
#include "engine/graph/reference.h"
#include "kernels/activation.h"
#include "kernels/rope.h"
#include "kernels/state.h"

namespace oar {

using Types = Result<std::vector<TensorType>>;
using Ids = std::span<const ValueId>;
using HostInputs = std::span<const HostValue* const>;

inline const TensorType& type_of(const Graph& g, ValueId v) { return g.value(v).type; }
inline const DimVector& shape_of(const Graph& g, ValueId v) { return g.value(v).type.shape; }
inline bool given(Ids in, size_t k) { return k < in.size() && in[k] != kNoValue; }

// Between `least` and `most` operands, of which the first `required` must be given.
Status check_operands(Ids in, size_t least, size_t most);
Status check_rank(const Graph& g, Ids in, size_t k, size_t rank, const char* what);
Status check_same(const Dim& a, const Dim& b, const char* what);
Status check_integer(const Graph& g, ValueId v, const char* what);
inline TensorType f32_type(DimVector shape) { return {Format::f32(), std::move(shape)}; }
Dim product(const DimVector& shape, size_t from = 0);

// Operands that served ops with a recurrent state begin with (kernels/state.h): the pools of borders and of
// rows, tables of borders, tables and slots of rows, seq_start, context_len.
inline constexpr size_t kStateOperands = 7;
// Checks these, and that `page_tokens` is given.
Status check_state_operands(const Graph& g, Ids in, const Attrs& attrs);
// What a run gives of these; `page_tokens` is there already.
void fill_state(StateArgs& args, const Operand* in);

// The heads (T, H, D) that a rotation reads and writes.
void fill_heads(RopeArgs& args, const Operand& x, const Operand& out);

// {axis}: how many axes of 1 a second operand gets behind its own, so that these line up with the first one's
// from that axis on. Without it none: they line up at the last axis.
Result<size_t> axes_behind(size_t first, size_t second, const Attrs& attrs);
// A second operand's shape with these, beside a first one of `rank` axes.
Result<DimVector> lined_up(size_t rank, DimVector shape, const Attrs& attrs);

// Shape rule of ops whose single output is f32 shaped like operand 0.
Types same_as_first(const Graph& g, Ids in, const Attrs& attrs);

// Shapes aligned at the last axis, where extents of 1 repeat, as NumPy has it.
Result<DimVector> broadcast(const DimVector& a, const DimVector& b);

// Shape rules of ops whose evaluations lie in tensor/: what gradients are written in, over symbols too.
Types typed_as_first(const Graph& g, Ids in, const Attrs& attrs);
Types condition_infer(const Graph& g, Ids in, const Attrs& attrs);  // two operands that broadcast, to bool
Types where_infer(const Graph& g, Ids in, const Attrs& attrs);
Types gather_elements_infer(const Graph& g, Ids in, const Attrs& attrs);
Types scatter_infer(const Graph& g, Ids in, const Attrs& attrs);
Types pad_infer(const Graph& g, Ids in, const Attrs& attrs);
Types loss_infer(const Graph& g, Ids in, const Attrs& attrs);         // nll_loss
Types scored_loss_infer(const Graph& g, Ids in, const Attrs& attrs);  // and log probabilities
Types expand_infer(const Graph& g, Ids in, const Attrs& attrs);

// evaluate() by a plain loop in double over operands of any float, whose results have the shapes of `infer`.
// Integers among the operands are given as numbers too.
Status evaluate_as(EvalContext& ctx, Types (*infer)(const Graph&, Ids, const Attrs&),
                   Status (*loop)(HostInputs, const Attrs&, std::span<HostValue>));

// A reduction of the last axis, which stays with extent 1.
inline Val reduce_last(Builder& b, const char* op, Val x) {
  return b.op(op, {x}, {{"axes", std::vector<int64_t>{-1}}});
}

// Roughly how long the kernel takes for an element.
double unary_nanoseconds(UnaryOp op);
Lowered lower_unary(LowerContext& ctx, UnaryOp op);
template <UnaryOp kOp>
Lowered lower_unary(LowerContext& ctx) {
  return lower_unary(ctx, kOp);
}

}  // namespace oar
