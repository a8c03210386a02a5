// Of products, and of the weights of routes.
#include "engine/graph/cut.h"
#include "engine/ops/gradient/gradients.h"

namespace oar::gradient {
namespace {

Val across(Builder& b, Val v) {
  const size_t rank = b.status().ok() ? b.shape(v).size() : 2;
  return swapped(b, v, rank - 2, rank - 1);
}

}  // namespace

// d b^T and a^T d
Vals matmul(const Pullback& p) {
  return {wants(p, 0) ? p.b.op("matmul", {p.d[0], across(p.b, p.in[1])}) : Val{},
          wants(p, 1) ? p.b.op("matmul", {across(p.b, p.in[0]), p.d[0]}) : Val{}};
}

// Of x by the same weights read the other way, in whatever format they are stored; of a weight d^T x.
Vals linear(const Pullback& p) {
  Builder& b = p.b;
  Vals out(p.in.size());
  for (const char* fused : {"activation", "precision"}) {
    if (p.attrs.has(fused))
      b.fail(unimplemented(cat("the gradient of a layer with a fused '", fused, "'; differentiate first")));
  }
  const bool input_major = p.attrs.get_bool("input_major");
  Attrs turned_weight{{"input_major", int64_t{input_major ? 0 : 1}}};
  if (p.attrs.has("format")) turned_weight.set("format", p.attrs.get_string("format"));
  if (wants(p, 1)) out[1] = p.d[0];
  int64_t column = 0;
  for (size_t k = 2; k < p.in.size() && b.status().ok(); k += 2) {
    const int64_t n = b.shape(p.in[k])[input_major ? 1 : 0].const_value();
    const Val d = p.in.size() == 4 ? p.d[0] : b.op("slice", {p.d[0]}, cut_attrs(-1, column, column + n));
    column += n;
    if (wants(p, 0)) out[0] = b.op("linear", {d, out[0], p.in[k], Val{}}, turned_weight);
    if (!wants(p, k) && !wants(p, k + 1)) continue;
    const Val rows = rows_of(b, d), x = rows_of(b, p.in[0]);
    if (wants(p, k))
      out[k] = input_major ? b.op("matmul", {across(b, x), rows}) : b.op("matmul", {across(b, rows), x});
    if (wants(p, k + 1))
      out[k + 1] = b.op("reduce_sum", {rows}, {{"axes", Ints{0}}, {"keepdims", int64_t{0}}});
  }
  return out;
}

// An orthonormal matrix times factors: its transpose is what `inverse` applies, and the other way round.
Vals hadamard(const Pullback& p) {
  if (wants(p, 1)) p.b.fail(unimplemented("the gradient of a Hadamard transform's factors"));
  Attrs attrs = p.attrs;
  attrs.set("inverse", int64_t{p.attrs.get_bool("inverse") ? 0 : 1});
  Vals operands{p.d[0]}, out(p.in.size());
  operands.insert(operands.end(), p.in.begin() + 1, p.in.end());
  out[0] = p.b.op("hadamard", operands, std::move(attrs));
  return out;
}

// The choice is piecewise constant, the weights of the chosen are smooth in all logits: w = scale s / sum of
// the chosen s, or scale s, of scores s, and times a factor of the expert where there are such. Which expert
// a slot belongs to is how many begin at or before it.
Vals moe_route(const Pullback& p) {
  Builder& b = p.b;
  Vals out(p.in.size());
  if (!p.d[2] || !b.status().ok()) return out;
  const DimVector logits = b.shape(p.in[0]), slots = b.shape(p.out[1]);
  const int64_t X = logits[1].const_value();
  const Attrs f32{{"to", std::string("f32")}}, last{{"axes", Ints{-1}}}, by_row{{"axis", int64_t{1}}};
  const Val begins = b.op("cast", {b.op("slice", {p.out[3]}, cut_attrs(0, 1, X + 1))}, f32);
  const Val slot = shaped(b, b.op("cast", {p.out[1]}, f32), {slots[0], slots[1], Dim(1)});
  const Val behind = b.op("cast", {b.op("greater_equal", {slot, begins})}, f32);
  Attrs flat = last;
  flat.set("keepdims", int64_t{0});
  const Val expert = b.op("cast", {b.op("reduce_sum", {behind}, flat)}, {{"to", std::string("i32")}});
  const std::string kind = p.attrs.get_string("score", "softmax");
  const Val score = kind == "softmax"   ? b.op("softmax", {p.in[0]})
                    : kind == "sigmoid" ? b.op("sigmoid", {p.in[0]})
                                        : b.op("sqrt", {b.op("softplus", {p.in[0]})});
  Val d = times(b, p.d[2], p.attrs.get_float("scale", 1));
  const bool factors = p.in.size() > 2 && p.in[2];
  Val weight = b.op("gather_elements", {score, expert}, by_row), sum;
  if (p.attrs.get_bool("normalize", true)) {
    sum = b.op("reduce_sum", {weight}, last);
    weight = b.op("div", {weight, sum});
  }
  Attrs adding = by_row;
  adding.set("reduction", std::string("add"));
  const auto by_expert = [&](Val v) {
    return b.op("scatter_elements", {zeros_like(b, score), expert, v}, adding);
  };
  if (factors && wants(p, 2)) {
    out[2] = b.op("reduce_sum", {by_expert(b.op("mul", {d, weight}))},
                  {{"axes", Ints{0}}, {"keepdims", int64_t{0}}});
  }
  if (factors) d = b.op("mul", {d, b.op("gather", {p.in[2], expert})});
  if (sum) d = b.op("div", {b.op("sub", {d, b.op("reduce_sum", {b.op("mul", {d, weight})}, last)}), sum});
  const Val ds = by_expert(d);
  if (kind == "softmax") {
    const Val mean = b.op("reduce_sum", {b.op("mul", {ds, score})}, last);
    out[0] = b.op("mul", {score, b.op("sub", {ds, mean})});
  } else {
    // s' = s (1 - s), and of sqrt(softplus) sigmoid / (2 s)
    const Val gate = b.op("sigmoid", {p.in[0]});
    out[0] = kind == "sigmoid" ? b.op("mul", {ds, b.op("mul", {score, b.op("sub", {b.scalar(1), score})})})
                               : b.op("div", {b.op("mul", {ds, times(b, gate, 0.5)}), score});
  }
  return out;
}

}  // namespace oar::gradient
