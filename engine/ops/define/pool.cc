// Pools over windows: each place of a window is a slice of the padded operand with steps. Attributes are
// those of engine/ops/tensor/window.h.
#include <cmath>

#include "engine/ops/define/definitions.h"
#include "engine/ops/tensor/window.h"

namespace oar::definition {
namespace {

using Vals = std::span<const Val>;

struct Pool {
  tensor::Window w;
  std::vector<Val> places;  // of a window, row by row: (N, C, out...)
};

// `outside`: what padding shows.
std::optional<Pool> pool_of(Builder& b, Val x, const Attrs& attrs, double outside) {
  if (attrs.has("layout")) b.fail(unimplemented("the definition of a pool is that of (N, C, ...)"));
  const Ints shape = extents(b, x);
  if (!b.status().ok()) return std::nullopt;
  const auto window =
      tensor::make_window(attrs, Shape(shape), attrs.get_ints("kernel_shape"), attrs.get_bool("ceil_mode"));
  if (!window.ok()) return b.fail(window.status()), std::nullopt;
  Pool p{*window, {}};
  const tensor::Window& w = p.w;
  const auto n = static_cast<size_t>(w.axes);
  Ints pads(2 * (n + 2), 0), axes, steps(w.stride, w.stride + n);
  for (size_t k = 0; k < n; ++k) {
    axes.push_back(static_cast<int64_t>(k) + 2);
    pads[k + 2] = w.begin[k];
    const int64_t reached = w.stride[k] * (w.out[k] - 1) + (w.kernel[k] - 1) * w.dilation[k] + 1;
    pads[k + n + 4] = reached - w.in[k] - w.begin[k];
  }
  const Val padded = b.op("pad", {x, Val{}, b.scalar(outside)}, {{"pads", pads}});
  for (int64_t place = 0; place < w.kernel_size(); ++place) {
    Ints starts(n), ends(n);
    int64_t rest = place;
    for (size_t k = n; k-- > 0; rest /= w.kernel[k]) {
      starts[k] = rest % w.kernel[k] * w.dilation[k];
      ends[k] = starts[k] + w.stride[k] * (w.out[k] - 1) + 1;
    }
    p.places.push_back(
        b.op("slice", {padded}, {{"axes", axes}, {"starts", starts}, {"ends", ends}, {"steps", steps}}));
  }
  return p;
}

Val sum_of(Builder& b, const std::vector<Val>& places) {
  Val sum = places[0];
  for (size_t k = 1; k < places.size(); ++k) sum = b.op("add", {sum, places[k]});
  return sum;
}

}  // namespace

// Of equal places the first counts.
std::vector<Val> max_pool(Builder& b, Vals in, const Attrs& attrs) {
  const auto p = pool_of(b, in[0], attrs, -INFINITY);
  if (!p) return {};
  Val most = p->places[0];
  for (size_t k = 1; k < p->places.size(); ++k) most = b.op("max", {p->places[k], most});
  return {most};
}

// Over the places inside the operand, or with {count_include_pad} inside its padding.
std::vector<Val> average_pool(Builder& b, Vals in, const Attrs& attrs) {
  const auto p = pool_of(b, in[0], attrs, 0);
  if (!p) return {};
  const tensor::Window& w = p->w;
  const bool pads = attrs.get_bool("count_include_pad");
  Ints dims(w.out, w.out + w.axes);
  auto t = Tensor::allocate(Shape(dims), Format::f32());
  if (!t.ok()) return b.fail(t.status()), std::vector<Val>{};
  for (int64_t o = 0; o < t->numel(); ++o) {
    int64_t count = 1, rest = o;
    for (int k = w.axes - 1; k >= 0; rest /= w.out[k], --k) {
      int64_t own = 0;
      for (int64_t e = 0; e < w.kernel[k]; ++e) {
        const int64_t at = rest % w.out[k] * w.stride[k] - w.begin[k] + e * w.dilation[k];
        own += pads ? at < w.in[k] + w.end[k] : at >= 0 && at < w.in[k];
      }
      count *= own;
    }
    t->mutable_values<float>()[static_cast<size_t>(o)] = static_cast<float>(std::max<int64_t>(count, 1));
  }
  return {b.op("div", {sum_of(b, p->places), b.constant("", std::move(*t))})};
}

// {p: 2} (sum |x|^p)^(1/p)
std::vector<Val> lp_pool(Builder& b, Vals in, const Attrs& attrs) {
  const auto power = static_cast<double>(attrs.get_int("p", 2));
  const auto p = pool_of(b, b.op("pow", {b.op("abs", {in[0]}), b.scalar(power)}), attrs, 0);
  if (!p) return {};
  return {b.op("pow", {sum_of(b, p->places), b.scalar(1 / power)})};
}

}  // namespace oar::definition
