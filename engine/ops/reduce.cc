// Reductions {axes, keepdims}: of the last axis, which stays with extent 1, where a graph knows its types; of
// ordinary models of any (tensor/reduce.cc).
#include <cmath>

#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"

namespace oar {
namespace {

Types infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 1));
  DimVector shape = shape_of(g, in[0]);
  if (shape.empty()) return invalid_argument("a scalar has no axis to reduce");
  const std::vector<int64_t> axes = attrs.get_ints("axes");
  const auto last = static_cast<int64_t>(shape.size()) - 1;
  if (axes.size() != 1 || (axes[0] != -1 && axes[0] != last) || !attrs.get_bool("keepdims", true))
    return invalid_argument("reduces the last axis alone, and keeps it");
  shape.back() = Dim(1);
  return std::vector<TensorType>{f32_type(std::move(shape))};
}

enum class Kind { kSum, kMean, kMax };

template <Kind kKind>
Status reference(HostInputs in, const Attrs&, std::span<HostValue> out) {
  const auto cols = static_cast<size_t>(in[0]->shape.cols());
  for (size_t r = 0; r < out[0].f.size(); ++r) {
    const double* x = in[0]->f.data() + r * cols;
    double acc = kKind == Kind::kMax ? -INFINITY : 0;
    for (size_t c = 0; c < cols; ++c)
      acc = kKind == Kind::kMax ? (x[c] > acc || std::isnan(x[c]) ? x[c] : acc) : acc + x[c];
    out[0].f[r] = kKind == Kind::kMean ? acc / static_cast<double>(cols) : acc;
  }
  return ok_status();
}

template <Kind kKind>
constexpr OpDef reduce(const char* name, Status (*evaluate)(EvalContext&)) {
  OpDef d{};
  d.name = name;
  d.infer = infer;
  d.reference = reference<kKind>;
  d.evaluate = evaluate;
  return d;
}

}  // namespace

extern const OpDef op_reduce_sum = reduce<Kind::kSum>("reduce_sum", tensor::reduce_sum);
extern const OpDef op_reduce_mean = reduce<Kind::kMean>("reduce_mean", tensor::reduce_mean);
extern const OpDef op_reduce_max = reduce<Kind::kMax>("reduce_max", tensor::reduce_max);

}  // namespace oar
