// Sums of products over named axes.
#include "engine/ops/define/definitions.h"
#include "engine/ops/tensor/equation.h"

namespace oar::definition {
namespace {

// x without the axes at which a letter comes again: its diagonal. `letters` lose them.
Val diagonal(Builder& b, Val x, std::string& letters) {
  for (size_t i = 0; i < letters.size(); ++i) {
    for (size_t j = letters.size(); j-- > i + 1;) {
      if (letters[j] != letters[i]) continue;
      const Ints dims = extents(b, x);
      if (!b.status().ok()) return x;
      const int64_t e = dims[i];
      if (e == dims[j] && e > 1) {
        Ints eye(dims.size(), 1);
        eye[i] = eye[j] = e;
        auto t = Tensor::zeros(Shape({e, e}), Format::f32());
        if (!t.ok()) return b.fail(t.status()), x;
        for (int64_t k = 0; k < e; ++k) t->mutable_values<float>()[static_cast<size_t>(k * e + k)] = 1;
        x = b.op("mul", {x, reshaped(b, b.constant("", std::move(*t)), eye)});
        x = b.op("reduce_sum", {x}, {{"axes", Ints{static_cast<int64_t>(j)}}, {"keepdims", int64_t{0}}});
        letters.erase(j, 1);
      } else {  // an axis of one repeats along the other
        const size_t gone = dims[i] == 1 ? i : j;
        Ints left = dims;
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(gone));
        x = reshaped(b, x, left);
        letters.erase(gone, 1);
        j = letters.size();
      }
    }
  }
  return x;
}

}  // namespace

// The product of the operands over all axes, summed over those that the result lacks.
std::vector<Val> einsum(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  std::vector<Shape> shapes;
  for (const Val x : in) shapes.emplace_back(extents(b, x));
  if (!b.status().ok()) return {};
  const auto equation = tensor::read_equation(attrs.get_string("equation"), shapes);
  if (!equation.ok()) return b.fail(equation.status()), std::vector<Val>{};
  const std::string& order = equation->order;
  Val all;
  for (size_t k = 0; k < in.size(); ++k) {
    std::string letters = equation->terms[k];
    Val x = diagonal(b, real(b, in[k]), letters);
    const Ints own = extents(b, x);
    if (!b.status().ok()) return {};
    Ints perm, shape;
    for (const char c : order) {
      const size_t at = letters.find(c);
      shape.push_back(at == std::string::npos ? 1 : own[at]);
      if (at != std::string::npos) perm.push_back(static_cast<int64_t>(at));
    }
    if (!perm.empty()) x = turned(b, x, perm);
    x = reshaped(b, x, shape);
    all = k == 0 ? x : b.op("mul", {all, x});
  }
  const auto kept = static_cast<int64_t>(equation->right.size()), rank = static_cast<int64_t>(order.size());
  if (kept == rank) return {all};
  return {b.op("reduce_sum", {all}, {{"axes", axes_from(kept, rank)}, {"keepdims", int64_t{0}}})};
}

}  // namespace oar::definition
