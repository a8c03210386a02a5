// Reductions {axes, keepdims, noop_with_empty_axes} over any axes, all where none are named. Of ordinary
// models also by operands and of integers (tensor/reduce.cc).
#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"
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

Types reduce_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 2));
  if (given(in, 1)) return invalid_argument("axes are an attribute where types are known");
  const DimVector& x = shape_of(g, in[0]);
  OAR_ASSIGN(const std::vector<bool> gone, reduced_axes(attrs, x.size()));
  DimVector shape;
  for (size_t k = 0; k < x.size(); ++k) {
    if (!gone[k]) shape.push_back(x[k]);
    else if (attrs.get_bool("keepdims", true)) shape.emplace_back(1);
  }
  return std::vector<TensorType>{f32_type(std::move(shape))};
}

constexpr OpDef reduce(const char* name, Status (*reduce_evaluate)(EvalContext&), decltype(OpDef::vjp) vjp) {
  OpDef d{};
  d.name = name;
  d.infer = reduce_infer;
  d.vjp = vjp;
  d.evaluate = reduce_evaluate;
  return d;
}

}  // namespace

extern const OpDef op_reduce_sum = reduce("reduce_sum", tensor::reduce_sum, gradient::reduce_sum);
extern const OpDef op_reduce_mean = reduce("reduce_mean", tensor::reduce_mean, gradient::reduce_mean);
extern const OpDef op_reduce_max = reduce("reduce_max", tensor::reduce_max, gradient::reduce_max);

}  // namespace oar
