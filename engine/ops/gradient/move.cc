// Of ops that move elements or leave some out: the gradient moves back, and where an element was shown twice
// it is summed.
#include <algorithm>

#include "engine/graph/cut.h"
#include "engine/ops/gradient/gradients.h"
#include "engine/ops/tensor/evaluators.h"

namespace oar::gradient {
namespace {

// Zeros in front of axis k and behind it; negative: that much is cut off.
Val padded(Builder& b, Val v, Ints begin, const Ints& end) {
  begin.insert(begin.end(), end.begin(), end.end());
  return b.op("pad", {v}, {{"pads", std::move(begin)}});
}

// step - 1 zeros behind every entry of an axis.
Val apart(Builder& b, Val v, size_t axis, int64_t step) {
  DimVector shape = b.shape(v);
  const Dim n = shape[axis];
  shape.insert(shape.begin() + static_cast<int64_t>(axis) + 1, Dim(1));
  Ints end(shape.size(), 0);
  end[axis + 1] = step - 1;
  v = padded(b, shaped(b, v, shape), Ints(shape.size(), 0), end);
  shape.erase(shape.begin() + static_cast<int64_t>(axis) + 1);
  shape[axis] = n * Dim(step);
  return shaped(b, v, shape);
}

// Of what keeps some numbers and drops others: the gradient's are kept and dropped by the same operands.
Vals same_of_gradient(const Pullback& p, const char* op) {
  Vals operands{p.d[0]}, out(p.in.size());
  operands.insert(operands.end(), p.in.begin() + 1, p.in.end());
  out[0] = p.b.op(op, operands, p.attrs);
  return out;
}

}  // namespace

Vals identity(const Pullback& p) { return {p.d[0]}; }

Vals reshape(const Pullback& p) {
  Vals out(p.in.size());
  if (p.b.status().ok()) out[0] = shaped(p.b, p.d[0], p.b.shape(p.in[0]));
  return out;
}

// Each undoes the other, by the same attributes.
Vals depth_to_space(const Pullback& p) { return {p.b.op("space_to_depth", {p.d[0]}, p.attrs)}; }
Vals space_to_depth(const Pullback& p) { return {p.b.op("depth_to_space", {p.d[0]}, p.attrs)}; }

Vals expand(const Pullback& p) { return {sum_to(p.b, p.d[0], p.in[0]), {}}; }

Vals transpose(const Pullback& p) {
  const Ints perm = p.attrs.get_ints("perm");
  Ints back(perm.size());
  for (size_t k = 0; k < perm.size(); ++k) back[static_cast<size_t>(perm[k])] = static_cast<int64_t>(k);
  return {turned(p.b, p.d[0], std::move(back))};
}

Vals concat(const Pullback& p) {
  Builder& b = p.b;
  Vals out;
  if (!b.status().ok()) return out;
  const int64_t axis = axis_of(b, p.out[0], p.attrs.get_int("axis"));
  int64_t at = 0;
  for (const Val in : p.in) {
    const Dim n = b.shape(in)[static_cast<size_t>(axis)];
    if (!n.is_const() && p.in.size() > 1)
      return b.fail(unimplemented("the gradient of a concatenation of symbols")), out;
    out.push_back(p.in.size() == 1 ? p.d[0]
                                   : b.op("slice", {p.d[0]}, cut_attrs(axis, at, at + n.const_value())));
    at += n.is_const() ? n.const_value() : 0;
  }
  return out;
}

// Back to where the elements were, with zeros between and around them.
Vals slice(const Pullback& p) {
  Builder& b = p.b;
  Vals out(p.in.size());
  const Ints starts = ints(p, 1, "starts"), ends = ints(p, 2, "ends"), axes = ints(p, 3, "axes"),
             steps = ints(p, 4, "steps");
  if (!b.status().ok()) return out;
  Ints dims;
  for (const Dim& d : b.shape(p.in[0])) dims.push_back(d.is_const() ? d.const_value() : -1);
  const auto box = tensor::slice_box(dims, starts, ends, axes, steps);
  if (!box.ok()) return b.fail(box.status()), out;
  Ints begin(dims.size(), 0), end(dims.size(), 0);
  Val v = p.d[0];
  for (size_t k = 0; k < dims.size(); ++k) {
    if (!box->cut[k]) continue;
    const int64_t count = box->count[k];
    int64_t start = box->start[k], step = box->step[k];
    if (step < 0 && count > 0) {
      v = b.op("slice", {v},
               {{"axes", Ints{static_cast<int64_t>(k)}},
                {"starts", Ints{count - 1}},
                {"ends", Ints{-count - 1}},
                {"steps", Ints{-1}}});
      start += (count - 1) * step, step = -step;
    }
    if (step > 1 && b.status().ok()) v = apart(b, v, k, step);
    begin[k] = start, end[k] = dims[k] - start - count * std::max<int64_t>(step, 1);
  }
  out[0] = padded(b, v, std::move(begin), end);
  return out;
}

// Less padding: negative pads cut.
Vals pad(const Pullback& p) {
  const std::string mode = p.attrs.get_string("mode", "constant");
  if (mode != "constant") p.b.fail(unimplemented(cat("the gradient of padding by '", mode, "'")));
  if (wants(p, 2)) p.b.fail(unimplemented("the gradient of the value that is padded with"));
  if (given(p.in, 3)) p.b.fail(unimplemented("the gradient of padding of axes that an operand names"));
  Ints pads = ints(p, 1, "pads");
  for (int64_t& n : pads) n = -n;
  Vals out(p.in.size());
  out[0] = p.b.op("pad", {p.d[0]}, {{"pads", std::move(pads)}});
  return out;
}

// Sums over the copies of each axis.
Vals tile(const Pullback& p) {
  Builder& b = p.b;
  Vals out(p.in.size());
  Ints repeats = ints(p, 1, "repeats");
  const Ints own = extents(b, p.in[0]);
  if (!b.status().ok()) return out;
  repeats.insert(repeats.begin(), own.size() > repeats.size() ? own.size() - repeats.size() : 0, 1);
  DimVector shape;
  Ints axes;
  for (size_t k = 0; k < repeats.size(); ++k) {
    const size_t before = repeats.size() - own.size();
    axes.push_back(static_cast<int64_t>(shape.size()));
    shape.emplace_back(repeats[k]);
    shape.emplace_back(k < before ? 1 : own[k - before]);
  }
  out[0] = b.op("reduce_sum", {shaped(b, p.d[0], shape)}, {{"axes", axes}});
  if (b.status().ok()) out[0] = shaped(b, out[0], b.shape(p.in[0]));
  return out;
}

Vals trilu(const Pullback& p) { return same_of_gradient(p, "trilu"); }

// The choice follows from the seed and each number's place alone.
Vals dropout(const Pullback& p) {
  if (wants(p, 1)) p.b.fail(unimplemented("the gradient of the share that is dropped"));
  return same_of_gradient(p, "dropout");
}

}  // namespace oar::gradient
