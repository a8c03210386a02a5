// Reductions that are sums or extremes of something, softmax and its logarithm, pools over whole images; and
// what definitions share.
#include <algorithm>
#include <cfloat>
#include <numeric>

#include "engine/base/format.h"
#include "engine/graph/cut.h"
#include "engine/ops/define/definitions.h"

namespace oar::definition {

Ints extents(Builder& b, Val v) {
  Ints out;
  if (!b.status().ok()) return out;
  for (const Dim& d : b.shape(v)) {
    if (!d.is_const()) b.fail(invalid_argument("a definition needs extents that are numbers"));
    out.push_back(d.is_const() ? d.const_value() : 1);
  }
  return out;
}

Val real(Builder& b, Val v) {
  if (!v || !b.status().ok() || b.type(v).format == Format::f32()) return v;
  return b.op("cast", {v}, {{"to", std::string("f32")}});
}
Val reshaped(Builder& b, Val v, Ints shape) { return b.op("reshape", {v}, {{"shape", std::move(shape)}}); }
Val turned(Builder& b, Val v, Ints perm) { return b.op("transpose", {v}, {{"perm", std::move(perm)}}); }
Val cut(Builder& b, Val v, int64_t axis, int64_t begin, int64_t end) {
  return b.op("slice", {v}, cut_attrs(axis, begin, end));
}
Val joined(Builder& b, std::span<const Val> parts, int64_t axis) {
  return parts.size() == 1 ? parts[0] : b.op("concat", parts, {{"axis", axis}});
}
Val filled(Builder& b, const Ints& shape, double value) {
  auto t = Tensor::allocate(Shape(shape), Format::f32());
  if (!t.ok()) return b.fail(t.status()), Val{};
  for (float& v : t->mutable_values<float>()) v = static_cast<float>(value);
  return b.constant("", std::move(*t));
}
Val reduced(Builder& b, const char* op, Val v, Ints axes) {
  return b.op(op, {v}, {{"axes", std::move(axes)}});
}
Ints axes_from(int64_t from, int64_t rank) {
  Ints axes(static_cast<size_t>(std::max<int64_t>(rank - from, 0)));
  std::iota(axes.begin(), axes.end(), from);
  return axes;
}

namespace {

using Vals = std::span<const Val>;

// Over the axes the node names. Those of an operand are values.
Val over(Builder& b, const char* op, Val v, Vals in, const Attrs& attrs) {
  if (given(in, 1)) b.fail(invalid_argument("axes are an attribute of definitions"));
  return b.op(op, {v}, attrs);
}

// x less the largest of its row, and the axes of a row.
struct Rows {
  Val x;
  Ints axes;
};
Rows shifted(Builder& b, Val x, const Attrs& attrs) {
  const auto rank = static_cast<int64_t>(b.shape(x).size());
  const int64_t axis = attrs.get_int("axis", -1);
  Rows r{x, {axis}};
  if (attrs.get_bool("flatten")) r.axes = axes_from(axis < 0 ? axis + rank : axis, rank);
  if (rank == 0 || r.axes.empty()) return b.fail(invalid_argument("there is no axis to normalize")), r;
  r.x = b.op("sub", {x, reduced(b, "reduce_max", x, r.axes)});
  return r;
}

Ints image_axes(Builder& b, Val x) { return axes_from(2, static_cast<int64_t>(b.shape(x).size())); }

}  // namespace

// sum |x|
std::vector<Val> reduce_l1(Builder& b, Vals in, const Attrs& attrs) {
  return {over(b, "reduce_sum", b.op("abs", {in[0]}), in, attrs)};
}
// sum x^2
std::vector<Val> reduce_sum_square(Builder& b, Vals in, const Attrs& attrs) {
  return {over(b, "reduce_sum", b.op("square", {in[0]}), in, attrs)};
}
// sqrt(sum x^2)
std::vector<Val> reduce_l2(Builder& b, Vals in, const Attrs& attrs) {
  return {b.op("sqrt", {over(b, "reduce_sum", b.op("square", {in[0]}), in, attrs)})};
}
// log(sum x)
std::vector<Val> reduce_log_sum(Builder& b, Vals in, const Attrs& attrs) {
  return {b.op("log", {over(b, "reduce_sum", in[0], in, attrs)})};
}
// log(sum exp(x)), about the largest where that is finite
std::vector<Val> reduce_log_sum_exp(Builder& b, Vals in, const Attrs& attrs) {
  const auto finite = [&](Val v) {
    return b.op("max", {b.op("min", {v, b.scalar(FLT_MAX)}), b.scalar(-FLT_MAX)});
  };
  Attrs kept = attrs;
  kept.set("keepdims", int64_t{1});
  const Val about = finite(over(b, "reduce_max", in[0], in, kept));
  const Val sum = over(b, "reduce_sum", b.op("exp", {b.op("sub", {in[0], about})}), in, attrs);
  return {b.op("add", {b.op("log", {sum}), finite(over(b, "reduce_max", in[0], in, attrs))})};
}
// -max(-x)
std::vector<Val> reduce_min(Builder& b, Vals in, const Attrs& attrs) {
  return {b.op("neg", {over(b, "reduce_max", b.op("neg", {in[0]}), in, attrs)})};
}

// One factor after the other along each axis: a quotient of the whole would not know what a zero hides.
std::vector<Val> reduce_prod(Builder& b, Vals in, const Attrs& attrs) {
  Attrs kept = attrs;
  kept.set("keepdims", int64_t{1});
  // The shape of any other reduction says which axes go.
  const Val like = over(b, "reduce_sum", in[0], in, kept);
  const Ints from = extents(b, in[0]), to = extents(b, like);
  Val v = in[0];
  for (size_t k = 0; b.status().ok() && k < from.size(); ++k) {
    if (from[k] == to[k]) continue;
    const auto axis = static_cast<int64_t>(k);
    if (from[k] > 4096)
      return b.fail(unimplemented(cat("the definition of a product of ", from[k], " factors"))),
             std::vector<Val>{};
    if (from[k] == 0) {  // of nothing: 1
      v = b.op("add", {reduced(b, "reduce_sum", v, {axis}), b.scalar(1)});
      continue;
    }
    Val product = cut(b, v, axis, 0, 1);
    for (int64_t i = 1; i < from[k]; ++i) product = b.op("mul", {product, cut(b, v, axis, i, i + 1)});
    v = product;
  }
  if (attrs.get_bool("keepdims", true) || !b.status().ok()) return {v};
  Ints shape = extents(b, b.op("reduce_sum", {in[0]}, attrs));
  return {reshaped(b, v, std::move(shape))};
}

// exp(x - max x) / sum
std::vector<Val> softmax(Builder& b, Vals in, const Attrs& attrs) {
  const Rows r = shifted(b, in[0], attrs);
  const Val e = b.op("exp", {r.x});
  return {b.op("div", {e, reduced(b, "reduce_sum", e, r.axes)})};
}
// x - max x - log(sum of exp of it)
std::vector<Val> log_softmax(Builder& b, Vals in, const Attrs& attrs) {
  const Rows r = shifted(b, in[0], attrs);
  return {b.op("sub", {r.x, b.op("log", {reduced(b, "reduce_sum", b.op("exp", {r.x}), r.axes)})})};
}

std::vector<Val> global_average_pool(Builder& b, Vals in, const Attrs&) {
  return {reduced(b, "reduce_mean", in[0], image_axes(b, in[0]))};
}
std::vector<Val> global_max_pool(Builder& b, Vals in, const Attrs&) {
  return {reduced(b, "reduce_max", in[0], image_axes(b, in[0]))};
}
// {p: 2} (sum |x|^p)^(1/p)
std::vector<Val> global_lp_pool(Builder& b, Vals in, const Attrs& attrs) {
  const auto p = static_cast<double>(attrs.get_int("p", 2));
  const Val power = b.op("pow", {b.op("abs", {in[0]}), b.scalar(p)});
  return {b.op("pow", {reduced(b, "reduce_sum", power, image_axes(b, in[0])), b.scalar(1 / p)})};
}

}  // namespace oar::definition
