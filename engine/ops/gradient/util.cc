#include <numeric>

#include "engine/ops/gradient/gradients.h"
#include "engine/tensor/element.h"

namespace oar::gradient {

Val shaped(Builder& b, Val v, const DimVector& shape) {
  if (!b.status().ok() || b.shape(v) == shape) return v;
  const DimVector from = b.shape(v);
  Ints to;
  bool derived = false;
  for (size_t k = 0; k < shape.size(); ++k) {
    if (k < from.size() && from[k] == shape[k]) {
      to.push_back(0);
    } else if (shape[k].is_const() && shape[k].const_value() > 0) {
      to.push_back(shape[k].const_value());
    } else if (!derived) {
      to.push_back(-1), derived = true;
    } else {
      b.fail(unimplemented("the gradient of a reshape between several symbols"));
    }
  }
  return b.op("reshape", {v}, {{"shape", std::move(to)}});
}

Val rows_of(Builder& b, Val v) {
  if (!b.status().ok() || b.shape(v).size() == 2) return v;
  Dim rows = 1;
  const DimVector shape = b.shape(v);
  for (size_t k = 0; k + 1 < shape.size(); ++k) rows = rows * shape[k];
  return shaped(b, v, {rows, shape.back()});
}

Val sum_to(Builder& b, Val v, Val like) {
  if (!b.status().ok() || b.shape(v) == b.shape(like)) return v;
  const DimVector from = b.shape(v), to = b.shape(like);
  Ints front(from.size() - to.size()), repeated;
  std::iota(front.begin(), front.end(), 0);
  for (size_t k = 0; k < to.size(); ++k) {
    if (!(to[k] == from[k + front.size()])) repeated.push_back(static_cast<int64_t>(k));
  }
  if (!front.empty()) v = b.op("reduce_sum", {v}, {{"axes", std::move(front)}, {"keepdims", int64_t{0}}});
  return repeated.empty() ? v : b.op("reduce_sum", {v}, {{"axes", std::move(repeated)}});
}

std::vector<bool> reduced_axes(Builder& b, Val v, const Attrs& attrs) {
  const Ints axes = attrs.get_ints("axes");
  std::vector<bool> gone(b.shape(v).size(), axes.empty() && !attrs.get_bool("noop_with_empty_axes"));
  for (const int64_t a : axes) gone[static_cast<size_t>(axis_of(b, v, a))] = true;
  return gone;
}

Val spread(Builder& b, Val v, Val like, const Attrs& attrs) {
  if (!b.status().ok()) return v;
  DimVector kept = b.shape(like);
  const std::vector<bool> gone = reduced_axes(b, like, attrs);
  for (size_t k = 0; k < kept.size(); ++k) {
    if (gone[k]) kept[k] = Dim(1);
  }
  v = shaped(b, v, kept);
  return kept == b.shape(like) ? v : b.op("expand", {v, {}, like});
}

int64_t axis_of(Builder& b, Val v, int64_t axis) {
  const auto rank = static_cast<int64_t>(b.shape(v).size());
  if (axis < -rank || axis >= rank) return b.fail(invalid_argument(cat("there is no axis ", axis))), 0;
  return axis < 0 ? axis + rank : axis;
}

Ints ints(const Pullback& p, size_t k, const char* attr) {
  const Val v = given(p.in, k);
  if (!v) return p.attrs.get_ints(attr);
  const Value& value = p.b.graph().value(v.id);
  Ints out;
  if (value.kind != ValueKind::kConstant || !dtype_is_integer(value.constant.format().dtype()))
    return p.b.fail(unimplemented(cat("the gradient where '", attr, "' are computed"))), out;
  for (int64_t i = 0; i < value.constant.numel(); ++i) out.push_back(element_as_int(value.constant, i));
  return out;
}

Ints extents(Builder& b, Val v) {
  Ints out;
  if (!b.status().ok()) return out;
  for (const Dim& d : b.shape(v)) {
    if (!d.is_const()) b.fail(unimplemented("this gradient needs extents that are numbers"));
    out.push_back(d.is_const() ? d.const_value() : 1);
  }
  return out;
}

Val swapped(Builder& b, Val v, size_t i, size_t j) {
  if (!b.status().ok() || i == j) return v;
  Ints perm(b.shape(v).size());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[i], perm[j]);
  return turned(b, v, std::move(perm));
}

}  // namespace oar::gradient
