// row_parts (ops.h): a matrix that a checkpoint keeps among others, as experts in a stack are.
#include <numeric>

#include "engine/ops/define/definitions.h"
#include "engine/ops/op_util.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

Types parts_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 1));
  const DimVector& x = shape_of(g, in[0]);
  const std::vector<int64_t> rows = attrs.get_ints("rows");
  int64_t there = x.size() < 2 ? -1 : 1;
  for (size_t k = 0; k + 1 < x.size(); ++k) there *= x[k].const_value();
  if (rows.empty() || std::any_of(rows.begin(), rows.end(), [](int64_t n) { return n < 0; }) ||
      std::accumulate(rows.begin(), rows.end(), int64_t{0}) != there)
    return invalid_argument(cat("the parts do not add up to the rows of ", g.type_string(type_of(g, in[0]))));
  std::vector<TensorType> out;
  for (const int64_t n : rows) out.push_back({type_of(g, in[0]).format, {Dim(n), x.back()}});
  return out;
}

std::vector<Val> parts_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val all = definition::reshaped(b, in[0], {-1, b.dim(in[0], -1).const_value()});
  std::vector<Val> out;
  int64_t first = 0;
  for (const int64_t n : attrs.get_ints("rows")) {
    out.push_back(definition::cut(b, all, 0, first, first + n));
    first += n;
  }
  return out;
}

// Views: nothing is moved.
Status parts_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const std::vector<int64_t> rows = ctx.attrs().get_ints("rows");
  OAR_ASSIGN(const Tensor all,
             x.reshape({std::accumulate(rows.begin(), rows.end(), int64_t{0}), x.shape().cols()}));
  int64_t first = 0;
  for (size_t k = 0; k < rows.size(); ++k) {
    ctx.set(k, all.slice(first, first + rows[k]));
    first += rows[k];
  }
  return ok_status();
}

// The parts' gradients one below the other: a sum of as many padded ones would cost their number squared.
std::vector<Val> parts_vjp(const Pullback& p) {
  Builder& b = p.b;
  std::vector<Val> parts;
  std::vector<int64_t> dims;
  for (const Dim& d : b.shape(p.in[0])) dims.push_back(d.const_value());
  const std::vector<int64_t> rows = p.attrs.get_ints("rows");
  for (size_t k = 0; k < rows.size(); ++k)
    parts.push_back(p.d[k] ? p.d[k] : definition::filled(b, {rows[k], dims.back()}, 0));
  const Val all = parts.size() == 1 ? parts[0] : b.op("concat", parts, {{"axis", int64_t{0}}});
  return {definition::reshaped(b, all, dims)};
}

}  // namespace

const OpDef op_row_parts = {.name = "row_parts",
                            .infer = parts_infer,
                            .define = parts_define,
                            .vjp = parts_vjp,
                            .evaluate = parts_evaluate};

}  // namespace oar::train
