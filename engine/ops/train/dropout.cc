// counted_dropout (ops.h): which numbers are dropped is a function of a draw, a site and a number's place, so
// that nothing is kept for the way back, and a run that goes on drops what it would have dropped.
#include <cmath>

#include "engine/base/random.h"
#include "engine/graph/evaluate.h"
#include "engine/ops/op_util.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

Types dropout_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  const double rate = attrs.get_float("rate");
  if (!(rate >= 0 && rate < 1)) return invalid_argument(cat("rate ", rate, " is not from 0 to below 1"));
  return same_as_first(g, in, attrs);
}

Status dropout_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor draw, ctx.tensor(1));
  if (!(x.format() == Format::f32()) || !(draw.format() == Format::of(DType::kI64)) || draw.numel() != 1)
    return invalid_argument("x is f32 and the draw one i64");
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), DType::kF32));
  if (!ctx.options().sizing) {
    const double rate = ctx.attrs().get_float("rate");
    const auto scale = static_cast<float>(1 / (1 - rate));
    const auto least = static_cast<uint64_t>(std::ldexp(rate, 32));  // of a word that is kept
    const auto key = static_cast<uint64_t>(draw.values<int64_t>()[0]);
    const auto site = static_cast<uint32_t>(ctx.attrs().get_int("site"));
    const float* const from = elements<float>(x);
    float* const to = mutable_elements<float>(y);
    const int64_t n = x.numel();
    ctx.parallel((n + 3) / 4, 20, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const auto c = static_cast<uint64_t>(block);
        const auto words = philox4x32({static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), site, 0},
                                      {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
        for (int64_t k = 4 * block; k < std::min(n, 4 * block + 4); ++k)
          to[k] = words[static_cast<size_t>(k & 3)] >= least ? from[k] * scale : 0;
      }
    });
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// Linear in x, by the same choice.
std::vector<Val> dropout_vjp(const Pullback& p) {
  const Val in[] = {p.d[0], p.in[1]};
  std::vector<Val> out = emit(p.b, op_counted_dropout, in, p.attrs);
  out.resize(2);
  return out;
}

}  // namespace

const OpDef op_counted_dropout = {
    .name = "counted_dropout", .infer = dropout_infer, .vjp = dropout_vjp, .evaluate = dropout_evaluate};

}  // namespace oar::train
