// Of convolutions and resizes, in graphs whose extents are numbers. The gradient of what was convolved is the
// transposed convolution of the result's, and the other way round; that of a filter convolves what was read
// with the result's gradient, whose steps and gaps change places. https://arxiv.org/abs/1603.07285
#include "engine/ops/tensor/window.h"
#include "engine/ops/gradient/gradients.h"
#include "engine/ops/tensor/evaluators.h"

namespace oar::gradient {
namespace {

struct Geometry {
  int64_t N = 0, groups = 1;
  Ints in, out, kernel;  // spatial extents; `in` of the larger side, which windows read
  Ints strides, dilations, begin;
  // How much of `in` behind its padding windows reach: stride (out - 1) + reach.
  int64_t reached(size_t k) const { return strides[k] * (out[k] - 1) + (kernel[k] - 1) * dilations[k] + 1; }
  // Pads with which exactly these extents result.
  Ints pads() const {
    Ints v = begin;
    for (size_t k = 0; k < in.size(); ++k) v.push_back(reached(k) - in[k] - begin[k]);
    return v;
  }
  Attrs attrs() const {
    return {{"strides", strides}, {"dilations", dilations}, {"group", groups}, {"pads", pads()}};
  }
};

Ints space_of(const Ints& shape) { return {shape.begin() + 2, shape.end()}; }

// Fused parts have no gradient here, and layouts come later.
void check(const Pullback& p) {
  for (const char* fused : {"activation", "layout", "precision", "output_shape"}) {
    if (p.attrs.has(fused))
      p.b.fail(unimplemented(
          cat("the gradient of a convolution with '", fused, "'; differentiate before passes")));
  }
}

// (small channels, big channels / groups, kernel) of big (N, C, in) and small (N, M, out): as many groups of
// N channels each in one convolution.
Val filter_gradient(Builder& b, const Geometry& g, Val big, Val small) {
  const Ints shape = extents(b, big);
  if (!b.status().ok()) return {};
  const int64_t per = shape[1] / g.groups;
  Ints split{g.N, g.groups, per}, joined{per, g.groups * g.N}, perm{2, 1, 0}, swap{1, 0};
  for (size_t k = 0; k < g.in.size(); ++k) {
    split.push_back(g.in[k]), joined.push_back(g.in[k]);
    perm.push_back(static_cast<int64_t>(k) + 3), swap.push_back(static_cast<int64_t>(k) + 2);
  }
  const auto as = [&](Val v, const Ints& dims) { return shaped(b, v, DimVector(dims.begin(), dims.end())); };
  const Val rows = as(turned(b, as(big, split), perm), joined);
  Geometry turned_over = g;
  std::swap(turned_over.strides, turned_over.dilations);
  std::swap(turned_over.out, turned_over.kernel);
  return turned(b, b.op("conv", {rows, turned(b, small, swap)}, turned_over.attrs()), swap);
}

Val sum_of_channels(Builder& b, Val d) {
  Ints axes{0};
  for (size_t k = 2; b.status().ok() && k < b.shape(d).size(); ++k) axes.push_back(static_cast<int64_t>(k));
  return b.op("reduce_sum", {d}, {{"axes", std::move(axes)}, {"keepdims", int64_t{0}}});
}

}  // namespace

Vals conv(const Pullback& p) {
  Builder& b = p.b;
  check(p);
  const Ints x = extents(b, p.in[0]), w = extents(b, p.in[1]), y = extents(b, p.out[0]);
  Vals out(p.in.size());
  if (!b.status().ok()) return out;
  const auto window = tensor::make_window(p.attrs, Shape(x), space_of(w), false);
  if (!window.ok()) return b.fail(window.status()), out;
  const auto n = static_cast<size_t>(window->axes);
  Geometry g{x[0],
             p.attrs.get_int("group", 1),
             space_of(x),
             space_of(y),
             space_of(w),
             Ints(window->stride, window->stride + n),
             Ints(window->dilation, window->dilation + n),
             Ints(window->begin, window->begin + n)};
  if (wants(p, 0)) {
    // What lies behind the last window has no gradient, and is there all the same.
    Attrs attrs = g.attrs();
    Ints pads = g.pads(), extra(n, 0);
    for (size_t k = 0; k < n; ++k) {
      if (pads[n + k] < 0) extra[k] = -pads[n + k], pads[n + k] = 0;
    }
    attrs.set("pads", pads), attrs.set("output_padding", extra);
    out[0] = b.op("conv_transpose", {p.d[0], p.in[1]}, std::move(attrs));
  }
  if (wants(p, 1)) out[1] = filter_gradient(b, g, p.in[0], p.d[0]);
  if (wants(p, 2)) out[2] = sum_of_channels(b, p.d[0]);
  if (wants(p, 3)) out[3] = p.d[0];
  return out;
}

Vals conv_transpose(const Pullback& p) {
  Builder& b = p.b;
  check(p);
  const std::string auto_pad = p.attrs.get_string("auto_pad", "NOTSET");
  if (auto_pad != "NOTSET" && auto_pad != "VALID" && !auto_pad.empty())
    b.fail(unimplemented(cat("the gradient of a transposed convolution with auto_pad '", auto_pad, "'")));
  const Ints x = extents(b, p.in[0]), w = extents(b, p.in[1]), y = extents(b, p.out[0]);
  Vals out(p.in.size());
  if (!b.status().ok()) return out;
  const size_t n = x.size() - 2;
  const auto list = [&](const char* name, int64_t none) {
    Ints v = p.attrs.get_ints(name);
    return v.empty() ? Ints(n, none) : v;
  };
  const Ints pads = p.attrs.get_ints("pads");
  const Geometry g{x[0],
                   p.attrs.get_int("group", 1),
                   space_of(y),
                   space_of(x),
                   space_of(w),
                   list("strides", 1),
                   list("dilations", 1),
                   pads.empty() ? Ints(n, 0) : Ints(pads.begin(), pads.begin() + static_cast<int64_t>(n))};
  if (wants(p, 0)) out[0] = b.op("conv", {p.d[0], p.in[1]}, g.attrs());
  if (wants(p, 1)) out[1] = filter_gradient(b, g, p.d[0], p.in[0]);
  if (wants(p, 2)) out[2] = sum_of_channels(b, p.d[0]);
  return out;
}

// Every axis was multiplied by a matrix of constants; its transpose takes the gradient back.
Vals resize(const Pullback& p) {
  Builder& b = p.b;
  Vals out(p.in.size());
  for (size_t k = 1; k < p.in.size(); ++k)
    if (wants(p, k)) b.fail(unimplemented("the gradient of a resize's region, scales or sizes"));
  const Ints x = extents(b, p.in[0]);
  if (!b.status().ok()) return out;
  std::vector<ValueId> operands;
  for (const Val v : p.in) operands.push_back(v.id);
  const auto matrices = tensor::resize_matrices(b.graph(), operands, p.attrs, Shape(x));
  if (!matrices.ok()) return b.fail(matrices.status()), out;
  Val d = p.d[0];
  for (const auto& [axis, matrix] : *matrices) {
    // f32 by a cast, so that in double the weights have all their digits.
    const Val by = b.op("cast", {b.constant("", matrix)}, {{"to", std::string("f32")}});
    const Val columns = swapped(b, d, axis, x.size() - 1);
    const Val product = b.op("matmul", {rows_of(b, columns), by});
    if (!b.status().ok()) return out;
    DimVector shape = b.shape(columns);
    shape.back() = Dim(x[axis]);
    d = swapped(b, shaped(b, product, shape), axis, x.size() - 1);
  }
  out[0] = d;
  return out;
}

}  // namespace oar::gradient
