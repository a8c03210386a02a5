// resize: nearest, linear and cubic interpolation, one axis after the other, since every filter is separable.
// https://onnx.ai/onnx/operators/onnx__Resize.html
#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

struct Taps {  // weights of input entries for one output entry
  std::vector<int64_t> at;
  std::vector<double> weight;
  bool outside = false;  // takes the extrapolation value
};

double cubic(double x, double a) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

struct Filter {
  std::string mode, transform, nearest;
  bool antialias = false, exclude_outside = false;
  double a = -0.75;
};

// Where output entry i lies in the input.
double source(const Filter& f, int64_t i, double scale, int64_t n, int64_t m, double roi0, double roi1) {
  const auto x = static_cast<double>(i), size = scale * static_cast<double>(n);
  const auto last = static_cast<double>(n - 1);
  if (f.transform == "align_corners") return size == 1 ? 0 : x * last / (size - 1);
  if (f.transform == "asymmetric") return x / scale;
  if (f.transform == "tf_crop_and_resize")
    return m == 1 ? (roi0 + roi1) * last / 2
                  : roi0 * last + x * (roi1 - roi0) * last / static_cast<double>(m - 1);
  if (f.transform == "pytorch_half_pixel" && size == 1) return -0.5;
  if (f.transform == "half_pixel_symmetric") {
    const double adjustment = static_cast<double>(m) / size, center = static_cast<double>(n) / 2;
    return center * (1 - adjustment) + (x + 0.5) / scale - 0.5;
  }
  return (x + 0.5) / scale - 0.5;
}

Taps taps_at(const Filter& f, double x, double scale, int64_t n) {
  Taps t;
  auto add = [&](int64_t i, double w) {
    if (f.exclude_outside && (i < 0 || i >= n)) return;
    t.at.push_back(std::clamp<int64_t>(i, 0, n - 1));
    t.weight.push_back(w);
  };
  if (f.mode == "nearest") {
    double r;
    if (f.nearest == "floor") r = std::floor(x);
    else if (f.nearest == "ceil") r = std::ceil(x);
    else if (f.nearest == "round_prefer_ceil") r = std::floor(x + 0.5);
    else r = std::ceil(x - 0.5);
    add(std::clamp<int64_t>(static_cast<int64_t>(r), 0, n - 1), 1);
    return t;
  }
  // When shrinking with antialias the filter widens to cover all that falls into an output entry.
  const double stretch = f.antialias ? std::min(scale, 1.0) : 1.0;
  const double reach = (f.mode == "cubic" ? 2 : 1) / stretch;
  const auto from = static_cast<int64_t>(std::floor(x - reach)) + 1,
             to = static_cast<int64_t>(std::ceil(x + reach)) - 1;
  for (int64_t i = from; i <= to; ++i) {
    const double d = (static_cast<double>(i) - x) * stretch;
    add(i, f.mode == "cubic" ? cubic(d, f.a) : std::max(0.0, 1 - std::abs(d)));
  }
  if (f.antialias || f.exclude_outside) {
    double sum = 0;
    for (double w : t.weight) sum += w;
    for (double& w : t.weight) w /= sum == 0 ? 1 : sum;
  }
  return t;
}

// resize(x, roi?, scales?, sizes?)
Status resize(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_RETURN_IF_ERROR(check_number(x));
  const int rank = x.shape().rank();
  const auto n = static_cast<size_t>(rank);
  const Attrs& a = ctx.attrs();
  Filter f{a.get_string("mode", "nearest"),
           a.get_string("coordinate_transformation_mode", "half_pixel"),
           a.get_string("nearest_mode", "round_prefer_floor"),
           a.get_int("antialias") != 0,
           a.get_int("exclude_outside") != 0,
           a.get_float("cubic_coeff_a", -0.75)};
  if (f.mode == "bilinear") f.mode = "linear";
  if (f.mode != "nearest" && f.mode != "linear" && f.mode != "cubic")
    return invalid_argument(cat("unknown mode '", f.mode, "'"));
  std::vector<int64_t> axes = a.get_ints("axes");
  if (axes.empty()) {
    for (int k = 0; k < rank; ++k) axes.push_back(k);
  }
  auto list = [&](size_t operand) -> Result<std::vector<double>> {
    if (!ctx.has(operand)) return std::vector<double>();
    OAR_ASSIGN(const Tensor t, ctx.tensor(operand));
    OAR_RETURN_IF_ERROR(check_number(t));
    return to_doubles(t);
  };
  OAR_ASSIGN(const auto roi_list, list(1));
  OAR_ASSIGN(auto scale_list, list(2));
  OAR_ASSIGN(const auto sizes, list(3));
  if (!sizes.empty()) scale_list.clear();
  if ((sizes.empty() ? scale_list.size() : sizes.size()) != axes.size())
    return invalid_argument("scales or sizes must have one entry per axis");
  std::vector<int64_t> dims = dims_of(x.shape());
  std::vector<double> scales(n, 1), roi0(n, 0), roi1(n, 1);
  const std::string policy = a.get_string("keep_aspect_ratio_policy", "stretch");
  double common = 0;
  for (size_t k = 0; k < axes.size(); ++k) {
    OAR_ASSIGN(const int axis, checked_axis(axes[k], rank));
    const auto i = static_cast<size_t>(axis);
    if (dims[i] == 0) return invalid_argument("an empty axis cannot be resized");
    const auto own = static_cast<double>(dims[i]);
    scales[i] = sizes.empty() ? scale_list[k] : sizes[k] / own;
    if (!(scales[i] > 0) || scales[i] * own > 1e9)
      return invalid_argument(cat("scale ", scales[i], " is out of range"));
    common = k == 0                   ? scales[i]
             : policy == "not_larger" ? std::min(common, scales[i])
                                      : std::max(common, scales[i]);
    if (roi_list.size() == 2 * axes.size()) roi0[i] = roi_list[k], roi1[i] = roi_list[k + axes.size()];
    axes[k] = axis;
  }
  for (size_t k = 0; k < axes.size(); ++k) {
    const auto i = static_cast<size_t>(axes[k]);
    const auto own = static_cast<double>(dims[i]);
    if (!sizes.empty() && policy != "stretch") {
      scales[i] = common;
      dims[i] = static_cast<int64_t>(std::floor(common * own + 0.5));
    } else {
      dims[i] =
          sizes.empty() ? static_cast<int64_t>(std::floor(scales[i] * own)) : static_cast<int64_t>(sizes[k]);
    }
  }
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  const double fill = a.get_float("extrapolation_value", 0);
  std::vector<double> v = to_doubles(x);
  std::vector<int64_t> now = dims_of(x.shape());
  std::vector<std::vector<bool>> outside(n);
  for (int axis = 0; axis < rank; ++axis) {
    const auto i = static_cast<size_t>(axis);
    const int64_t in = now[i], out = dims[i];
    const bool crop = f.transform == "tf_crop_and_resize";
    if (in == out && scales[i] == 1 && !crop) continue;
    std::vector<Taps> taps;
    for (int64_t k = 0; k < out; ++k) {
      const double at = source(f, k, scales[i], in, out, roi0[i], roi1[i]);
      taps.push_back(taps_at(f, at, scales[i], in));
      if (crop) outside[i].push_back(at < 0 || at > static_cast<double>(in - 1));
    }
    int64_t outer = 1, inner = 1;
    for (int k = 0; k < axis; ++k) outer *= now[static_cast<size_t>(k)];
    for (int k = axis + 1; k < rank; ++k) inner *= now[static_cast<size_t>(k)];
    OAR_ASSIGN(const Shape mid, checked_shape(std::vector<int64_t>{outer, out, inner}));
    std::vector<double> next(static_cast<size_t>(mid.numel()), 0);
    ctx.parallel(outer * out, 4.0 * static_cast<double>(inner), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const Taps& t = taps[static_cast<size_t>(r % out)];
        double* to = next.data() + r * inner;
        for (size_t k = 0; k < t.at.size(); ++k) {
          const double* from = v.data() + (r / out * in + t.at[k]) * inner;
          for (int64_t e = 0; e < inner; ++e) to[e] += t.weight[k] * from[e];
        }
      }
    });
    v = std::move(next);
    now[i] = out;
  }
  const auto strides = strides_of(shape);
  for (size_t i = 0; i < n; ++i) {
    if (std::find(outside[i].begin(), outside[i].end(), true) == outside[i].end()) continue;
    for (size_t k = 0; k < v.size(); ++k) {
      if (outside[i][static_cast<size_t>(static_cast<int64_t>(k) / strides[i] % shape[static_cast<int>(i)])])
        v[k] = fill;
    }
  }
  if (dtype_is_integer(dtype_of(x))) {
    for (double& e : v) e = std::nearbyint(e);
  }
  ctx.set(0, from_doubles(ctx, shape, dtype_of(x), v));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(resize, tensor::resize);
}  // namespace oar
