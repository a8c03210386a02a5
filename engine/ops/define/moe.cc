// Routed experts (engine/ops/moe.cc). Which rows an expert has is a value, so each expert is given all rows
// and the others are dropped: as many times the work as there are experts, of which a kernel does one.
#include "engine/ops/define/definitions.h"

namespace oar::definition {

using Vals = std::span<const Val>;

// The rows of a token's pairs, weighted and summed.
std::vector<Val> moe_combine(Builder& b, Vals in, const Attrs&) {
  const Val weight = b.op("mul", {reshaped(b, in[2], {0, 0, 1}), b.op("gather", {in[0], in[1]})});
  return {b.op("reduce_sum", {weight}, {{"axes", Ints{1}}, {"keepdims", int64_t{0}}})};
}

namespace {

constexpr size_t kFirstExpert = 4;  // operand; in[3] are biases (experts, N) or none

Attrs layer_attrs(const Attrs& attrs) {
  Attrs layer;
  if (attrs.has("format")) layer.set("format", attrs.get_string("format"));
  return layer;
}

// A layer for each row of a token.
Val by_place(Builder& b, Vals in, const Attrs& attrs) {
  const int64_t first = attrs.get_int("first");
  std::vector<Val> rows;
  for (size_t k = kFirstExpert; k < in.size() && b.status().ok(); ++k) {
    const auto e = static_cast<int64_t>(k - kFirstExpert);
    const Val own = cut(b, cut(b, in[0], 1, e, e + 1), 2, first, first + b.dim(in[k], 1).const_value());
    const Val y = b.op("linear", {reshaped(b, own, {0, -1}), Val{}, in[k], Val{}}, layer_attrs(attrs));
    rows.push_back(reshaped(b, y, {0, 1, -1}));
  }
  return joined(b, rows, 1);
}

}  // namespace

std::vector<Val> grouped_linear(Builder& b, Vals in, const Attrs& attrs) {
  if (!in[2]) return {by_place(b, in, attrs)};
  const auto experts = static_cast<size_t>(attrs.get_int("experts"));
  const size_t segments = (in.size() - kFirstExpert) / experts;
  const Val x = in[1] ? b.op("gather", {in[0], in[1]}) : in[0];
  if (!b.status().ok()) return {};
  // 0, 1, ... down the rows
  const Val ones = b.op("expand", {b.scalar(1), {}, reshaped(b, cut(b, x, 1, 0, 1), {-1})});
  auto axis = Tensor::zeros({}, Format::of(DType::kI64));
  if (!axis.ok()) return b.fail(axis.status()), std::vector<Val>{};
  const Val count = b.op("cum_sum", {ones, b.constant("", std::move(*axis))}, {{"exclusive", int64_t{1}}});
  const Val row = reshaped(b, count, {0, 1});
  const Val start = real(b, in[2]);
  const Attrs layer = layer_attrs(attrs);
  Val sum;
  for (size_t e = 0; e < experts; ++e) {
    std::vector<Val> operands{x, Val{}};
    const auto i = static_cast<int64_t>(e);
    int64_t column = 0;
    for (size_t s = 0; s < segments; ++s) {
      const Val w = in[kFirstExpert + e * segments + s];
      const int64_t n = b.dim(w, 0).const_value();
      operands.push_back(w);
      operands.push_back(in[3] ? reshaped(b, cut(b, cut(b, in[3], 0, i, i + 1), 1, column, column + n), {n})
                               : Val{});
      column += n;
    }
    const Val own = b.op("logical_and", {b.op("greater_equal", {row, cut(b, start, 0, i, i + 1)}),
                                         b.op("less", {row, cut(b, start, 0, i + 1, i + 2)})});
    const Val y = b.op("where", {own, b.op("linear", operands, layer), b.scalar(0)});
    sum = sum ? b.op("add", {sum, y}) : y;
  }
  return {sum};
}

}  // namespace oar::definition
