// Derivatives of primitives: OpDef::vjp of each, under the op's name and file by theme. They are written in
// ops that have derivatives themselves, in graphs that know their types; extents may be symbols unless a
// comment says otherwise. Reverse-mode products: https://arxiv.org/abs/1502.05767
#pragma once

#include "engine/base/format.h"
#include "engine/graph/builder.h"

namespace oar::gradient {

#define OAR_VJP(name) std::vector<Val> name(const Pullback& p)
// elementwise.cc
OAR_VJP(neg);
OAR_VJP(abs);
OAR_VJP(exp);
OAR_VJP(log);
OAR_VJP(sqrt);
OAR_VJP(rsqrt);
OAR_VJP(square);
OAR_VJP(reciprocal);
OAR_VJP(tanh);
OAR_VJP(sigmoid);
OAR_VJP(erf);
OAR_VJP(sin);
OAR_VJP(cos);
OAR_VJP(acos);
OAR_VJP(acosh);
OAR_VJP(asin);
OAR_VJP(asinh);
OAR_VJP(atan);
OAR_VJP(atanh);
OAR_VJP(cosh);
OAR_VJP(sinh);
OAR_VJP(tan);
OAR_VJP(add);
OAR_VJP(sub);
OAR_VJP(mul);
OAR_VJP(div);
OAR_VJP(max);
OAR_VJP(min);
OAR_VJP(pow);
OAR_VJP(clip);
OAR_VJP(prelu);
OAR_VJP(shrink);
OAR_VJP(thresholded_relu);
OAR_VJP(where);
// reduce.cc
OAR_VJP(cum_sum);
OAR_VJP(reduce_max);
OAR_VJP(reduce_mean);
OAR_VJP(reduce_sum);
// move.cc
OAR_VJP(identity);  // also of what copies: the gradient is the result's
OAR_VJP(concat);
OAR_VJP(depth_to_space);
OAR_VJP(dropout);
OAR_VJP(expand);
OAR_VJP(pad);
OAR_VJP(reshape);  // and what else names a shape
OAR_VJP(slice);
OAR_VJP(space_to_depth);
OAR_VJP(tile);
OAR_VJP(transpose);
OAR_VJP(trilu);
// index.cc
OAR_VJP(embedding);
OAR_VJP(gather);
OAR_VJP(gather_elements);
OAR_VJP(gather_nd);
OAR_VJP(scatter_elements);
OAR_VJP(scatter_nd);
// product.cc
OAR_VJP(hadamard);
OAR_VJP(linear);
OAR_VJP(matmul);
OAR_VJP(moe_route);
// window.cc
OAR_VJP(conv);
OAR_VJP(conv_transpose);
OAR_VJP(resize);
#undef OAR_VJP

// ---- what they are written with (util.cc)

using Vals = std::vector<Val>;
using Ints = std::vector<int64_t>;

inline Val times(Builder& b, Val v, double factor) { return b.op("mul", {v, b.scalar(factor)}); }
inline Val plus(Builder& b, Val v, double term) { return b.op("add", {v, b.scalar(term)}); }
inline Val zeros_like(Builder& b, Val v) { return b.op("expand", {b.scalar(0), {}, v}); }
inline Val turned(Builder& b, Val v, Ints perm) {
  return b.op("transpose", {v}, {{"perm", std::move(perm)}});
}
inline bool wants(const Pullback& p, size_t k) { return k < p.wanted.size() && p.wanted[k] != 0; }
inline Val given(std::span<const Val> in, size_t k) { return k < in.size() ? in[k] : Val{}; }
// v under another shape of as many elements. One extent at most may be a symbol that v does not have at the
// same axis.
Val shaped(Builder& b, Val v, const DimVector& shape);
// All axes but the last as one.
Val rows_of(Builder& b, Val v);
// v summed over the axes along which `like` was repeated to become shaped like v.
Val sum_to(Builder& b, Val v, Val like);
// v of a reduction's shape as it was before its axes went.
Val spread(Builder& b, Val v, Val like, const Attrs& attrs);
// The axes that a reduction's attributes name, all if none: by axis of v.
std::vector<bool> reduced_axes(Builder& b, Val v, const Attrs& attrs);
// From the first axis; keeps an error where there is no such axis.
int64_t axis_of(Builder& b, Val v, int64_t axis);
// Integers of operand k, a constant, or of the attribute. Keeps an error where they are computed.
Ints ints(const Pullback& p, size_t k, const char* attr);
// Extents as numbers; keeps an error where one is a symbol.
Ints extents(Builder& b, Val v);
// A transposition of two of v's axes, counted from the first.
Val swapped(Builder& b, Val v, size_t i, size_t j);

}  // namespace oar::gradient
