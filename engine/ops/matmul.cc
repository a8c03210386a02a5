// matmul(a (..., M, K), b (..., K, N)): the general product over the last two axes, batched over equal
// leading axes. Linear layers have an op of their own (linear.cc), because their weight is stored (N, K) in
// any format.
#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"

namespace oar {
namespace {

Types infer(const Graph& g, Ids in, const Attrs&) {
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

Status reference(HostInputs in, const Attrs&, std::span<HostValue> out) {
  const Shape& a = in[0]->shape;
  if (!in[0]->is_float() || !in[1]->is_float()) return invalid_argument("operands must be floating point");
  const auto M = static_cast<size_t>(a[a.rank() - 2]), K = static_cast<size_t>(a.cols());
  const auto N = static_cast<size_t>(in[1]->shape.cols());
  const size_t batch = M * N > 0 ? out[0].f.size() / (M * N) : 0;
  for (size_t z = 0; z < batch; ++z) {
    for (size_t m = 0; m < M; ++m) {
      for (size_t n = 0; n < N; ++n) {
        double sum = 0;
        for (size_t k = 0; k < K; ++k) sum += in[0]->f[(z * M + m) * K + k] * in[1]->f[(z * K + k) * N + n];
        out[0].f[(z * M + m) * N + n] = sum;
      }
    }
  }
  return ok_status();
}

}  // namespace

extern const OpDef op_matmul = {.name = "matmul",
                                .infer = infer,
                                .vjp = gradient::matmul,
                                .reference = reference,
                                .evaluate = tensor::matmul,
                                .by_kernels = tensor::products,
                                .prepare = tensor::prepare_matmul};

}  // namespace oar
