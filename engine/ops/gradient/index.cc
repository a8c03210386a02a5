// Of choices by indices: what was taken gives back, what was written over gives nothing.
#include "engine/ops/gradient/gradients.h"

namespace oar::gradient {
namespace {

const Attrs kAdd{{"reduction", std::string("add")}};

// Rows d added up at `indices` of the first axis of what is shaped like `like`.
Val add_rows(Builder& b, Val like, Val indices, Val d) {
  if (!b.status().ok()) return {};
  DimVector column = b.shape(indices);
  column.emplace_back(1);
  return b.op("scatter_nd", {zeros_like(b, like), shaped(b, indices, column), d}, kAdd);
}

// Axes [from, from + n) of v to the front.
Val fronted(Builder& b, Val v, size_t from, size_t n) {
  Ints perm;
  for (size_t k = 0; k < n; ++k) perm.push_back(static_cast<int64_t>(from + k));
  for (size_t k = 0; k < b.shape(v).size(); ++k) {
    if (k < from || k >= from + n) perm.push_back(static_cast<int64_t>(k));
  }
  return turned(b, v, std::move(perm));
}

// Of scatter_elements and scatter_nd, whose gathers are `gather`.
Vals scattered(const Pullback& p, const char* scatter, const char* gather) {
  Builder& b = p.b;
  const std::string reduction = p.attrs.get_string("reduction", "none");
  const bool sums = reduction == "add";
  if (!sums && reduction != "none" && !reduction.empty())
    b.fail(unimplemented(cat("the gradient of a scatter by '", reduction, "'")));
  Attrs attrs;
  if (p.attrs.has("axis")) attrs.set("axis", p.attrs.get_int("axis"));
  Vals out(3);
  if (wants(p, 0)) out[0] = sums ? p.d[0] : b.op(scatter, {p.d[0], p.in[1], zeros_like(b, p.in[2])}, attrs);
  if (wants(p, 2)) out[2] = b.op(gather, {p.d[0], p.in[1]}, attrs);
  return out;
}

}  // namespace

Vals embedding(const Pullback& p) {
  const double scale = p.attrs.get_float("scale", 1);
  return {add_rows(p.b, p.in[0], p.in[1], scale == 1 ? p.d[0] : times(p.b, p.d[0], scale)), {}};
}

Vals gather(const Pullback& p) {
  Builder& b = p.b;
  if (!b.status().ok()) return {};
  const auto axis = static_cast<size_t>(axis_of(b, p.in[0], p.attrs.get_int("axis")));
  if (axis == 0) return {add_rows(b, p.in[0], p.in[1], p.d[0]), {}};
  // Indices in front, as rows are added; the axis that they chose from goes back where it was.
  const Val rows = fronted(b, p.in[0], axis, 1), d = fronted(b, p.d[0], axis, b.shape(p.in[1]).size());
  const Val sum = add_rows(b, rows, p.in[1], d);
  Ints perm(b.shape(p.in[0]).size());
  for (size_t k = 0; k < perm.size(); ++k)
    perm[k] = k == axis ? 0 : static_cast<int64_t>(k < axis ? k + 1 : k);
  return {turned(b, sum, std::move(perm)), {}};
}

Vals gather_elements(const Pullback& p) {
  Attrs attrs = kAdd;
  attrs.set("axis", p.attrs.get_int("axis"));
  return {p.b.op("scatter_elements", {zeros_like(p.b, p.in[0]), p.in[1], p.d[0]}, std::move(attrs)), {}};
}

Vals gather_nd(const Pullback& p) {
  if (p.attrs.get_int("batch_dims") != 0)
    p.b.fail(unimplemented("the gradient of gather_nd with batch_dims"));
  return {p.b.op("scatter_nd", {zeros_like(p.b, p.in[0]), p.in[1], p.d[0]}, kAdd), {}};
}

Vals scatter_elements(const Pullback& p) { return scattered(p, "scatter_elements", "gather_elements"); }
Vals scatter_nd(const Pullback& p) { return scattered(p, "scatter_nd", "gather_nd"); }

}  // namespace oar::gradient
