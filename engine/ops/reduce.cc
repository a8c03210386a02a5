// Reductions {axes, keepdims, noop_with_empty_axes} over any axes, all where none are named. Of ordinary
// models also by operands and of integers (tensor/reduce.cc).
#include <algorithm>

#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"
#include "engine/ops/reduce.h"
#include "engine/ops/tensor/evaluators.h"

namespace oar {
namespace {

// By axis: whether it is reduced.
Result<std::vector<bool>> reduced_axes(const Attrs& attrs, size_t rank) {
  const std::vector<int64_t> axes = attrs.get_ints("axes");
  std::vector<bool> gone(rank, axes.empty() && !attrs.get_bool("noop_with_empty_axes"));
  for (const int64_t a : axes) {
    OAR_ASSIGN(const int axis, checked_axis(a, static_cast<int>(rank)));
    gone[static_cast<size_t>(axis)] = true;
  }
  return gone;
}

// The result's extents; extent(k) is the operand's.
template <class Dims, class Extent>
Dims kept_extents(const std::vector<bool>& gone, const Attrs& attrs, Extent&& extent) {
  const bool keep = attrs.get_bool("keepdims", true);
  Dims dims;
  for (size_t k = 0; k < gone.size(); ++k) {
    if (!gone[k]) dims.push_back(extent(k));
    else if (keep) dims.emplace_back(1);
  }
  return dims;
}

Types reduce_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 2));
  if (given(in, 1)) return invalid_argument("axes are an attribute where types are known");
  const DimVector& x = shape_of(g, in[0]);
  OAR_ASSIGN(const std::vector<bool> gone, reduced_axes(attrs, x.size()));
  return std::vector<TensorType>{
      f32_type(kept_extents<DimVector>(gone, attrs, [&](size_t k) { return x[k]; }))};
}

}  // namespace

Lowered reduce_lower(LowerContext& ctx, ReduceOp op) {
  const Known x = ctx.known(0);
  if (!x.f32() || ctx.given(1)) return not_lowered();
  OAR_ASSIGN(const std::vector<bool> gone, reduced_axes(ctx.node.attrs, static_cast<size_t>(x.rank())));
  const auto first = std::find(gone.begin(), gone.end(), true), last = std::find(first, gone.end(), false);
  if (first == gone.end() || std::find(last, gone.end(), true) != gone.end()) return not_lowered();
  ReduceArgs args;
  args.op = op;
  OAR_ASSIGN(auto call, lower_kernel(ctx, {KernelFamily::kReduce}, args,
                                     [from = first - gone.begin(), to = last - gone.begin()](
                                         ReduceArgs& a, const Operand* in, const Operand* out) {
                                       a.out = out[0].as<float>();
                                       a.x = in[0].as<const float>();
                                       a.outer = a.n = a.inner = 1;
                                       for (int k = 0; k < in[0].rank; ++k)
                                         (k < from ? a.outer : k < to ? a.n : a.inner) *= in[0].dims[k];
                                     }));
  if (call == nullptr || !ctx.in_run()) return call;
  const Shape& shape = ctx.operands[0].shape;
  const auto dims = kept_extents<std::vector<int64_t>>(gone, ctx.node.attrs,
                                                       [&](size_t k) { return shape[static_cast<int>(k)]; });
  ctx.results->assign(1, {Format::f32(), Shape(dims), true});
  call->nanoseconds = 0.1 * static_cast<double>(shape.numel());
  return call;
}

namespace {

template <ReduceOp kOp>
constexpr OpDef reduce(const char* name, Status (*reduce_evaluate)(EvalContext&), decltype(OpDef::vjp) vjp) {
  OpDef d{};
  d.name = name;
  d.infer = reduce_infer;
  d.vjp = vjp;
  d.evaluate = reduce_evaluate;
  d.lower = [](LowerContext& ctx) { return reduce_lower(ctx, kOp); };
  d.no_gradient_of = kComputedAxes;
  return d;
}

}  // namespace

extern const OpDef op_reduce_sum =
    reduce<ReduceOp::kSum>("reduce_sum", tensor::reduce_sum, gradient::reduce_sum);
extern const OpDef op_reduce_mean =
    reduce<ReduceOp::kMean>("reduce_mean", tensor::reduce_mean, gradient::reduce_mean);
extern const OpDef op_reduce_max =
    reduce<ReduceOp::kMax>("reduce_max", tensor::reduce_max, gradient::reduce_max);

}  // namespace oar
