// matmul(a (..., M, K), b (..., K, N)): the general product over the last two axes, batched over equal
// leading axes. Linear layers have an op of their own (linear.cc), because their weight is stored (N, K) in
// any format.
#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"

namespace oar {
namespace {

Types matmul_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  const DimVector& a = shape_of(g, in[0]);
  const DimVector& b = shape_of(g, in[1]);
  if (a.size() < 2 || a.size() != b.size())
    return invalid_argument("operands need the same number of axes, at least 2");
  for (size_t k = 0; k + 2 < a.size(); ++k) OAR_RETURN_IF_ERROR(check_same(a[k], b[k], "batch extents"));
  OAR_RETURN_IF_ERROR(check_same(a.back(), b[b.size() - 2], "inner extents"));
  DimVector shape = a;
  shape.back() = b.back();
  return std::vector<TensorType>{f32_type(std::move(shape))};
}

}  // namespace

extern const OpDef op_matmul = {.name = "matmul",
                                .infer = matmul_infer,
                                .vjp = gradient::matmul,
                                .evaluate = tensor::matmul,
                                .by_kernels = tensor::products,
                                .prepare = tensor::prepare_matmul};

}  // namespace oar
