// Of sums and extremes along axes.
#include "engine/ops/gradient/gradients.h"

namespace oar::gradient {
namespace {

Val spread_back(const Pullback& p, Val v) {
  if (given(p.in, 1)) p.b.fail(unimplemented("the gradient of a reduction over axes that are computed"));
  return spread(p.b, v, p.in[0], p.attrs);
}

}  // namespace

Vals reduce_sum(const Pullback& p) { return {spread_back(p, p.d[0])}; }

// The sum's, over how many there are: a number, or counted where an extent is a symbol.
Vals reduce_mean(const Pullback& p) {
  Builder& b = p.b;
  if (!b.status().ok()) return {};
  const std::vector<bool> gone = reduced_axes(b, p.in[0], p.attrs);
  Dim count = 1;
  for (size_t k = 0; k < gone.size(); ++k) {
    if (gone[k]) count = count * b.shape(p.in[0])[k];
  }
  if (count.is_const())
    return {spread_back(p, times(b, p.d[0], 1.0 / static_cast<double>(count.const_value())))};
  const Val counted = b.op("reduce_sum", {b.op("expand", {b.scalar(1), {}, p.in[0]})}, p.attrs);
  return {spread_back(p, b.op("div", {p.d[0], counted}))};
}

// Equal elements share, as many as there are.
Vals reduce_max(const Pullback& p) {
  Builder& b = p.b;
  const Val most =
      b.op("cast", {b.op("equal", {p.in[0], spread_back(p, p.out[0])})}, {{"to", std::string("f32")}});
  const Val share = b.op("div", {p.d[0], b.op("reduce_sum", {most}, p.attrs)});
  return {b.op("mul", {most, spread_back(p, share)})};
}

// The same sum from the other end.
Vals cum_sum(const Pullback& p) {
  Attrs attrs = p.attrs;
  attrs.set("reverse", int64_t{p.attrs.get_bool("reverse") ? 0 : 1});
  Vals operands{p.d[0]};
  operands.insert(operands.end(), p.in.begin() + 1, p.in.end());
  Vals out(p.in.size());
  out[0] = p.b.op("cum_sum", operands, std::move(attrs));
  return out;
}

}  // namespace oar::gradient
