// resize: nearest, linear and cubic interpolation, one axis after the other, since every filter is separable.
// f32 along up to two neighbouring axes by a kernel (kernels/resize.h), and 16-bit floats as f32. Where every
// entry is a copy of one (nearest), all axes go at once and any element type is moved as it is. Evaluation
// sums in double. https://onnx.ai/onnx/operators/onnx__Resize.html
#include "kernels/resize.h"
#include "engine/graph/bound_call.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/kernel_call.h"

namespace oar::tensor {
namespace {

struct Taps {  // weights of input entries for one output entry
  std::vector<int64_t> at;
  std::vector<double> weight;
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

// The taps of every output entry along one axis.
struct AxisTaps {
  int axis = 0;
  int64_t in = 0, out = 0;
  std::vector<int64_t> first;  // out + 1 of them: where each entry's taps begin in the lists below
  std::vector<int64_t> at;
  std::vector<double> weight;
  std::vector<uint8_t> outside;  // per entry: takes the extrapolation value; empty: none does
  bool copies() const {
    return outside.empty() && static_cast<int64_t>(at.size()) == out &&
           std::all_of(weight.begin(), weight.end(), [](double w) { return w == 1; });
  }
};
using ResizedAxes = std::vector<AxisTaps>;

AxisTaps axis_taps(const Filter& f, int axis, double scale, int64_t in, int64_t out, double roi0, double roi1,
                   bool crop) {
  AxisTaps a;
  a.axis = axis, a.in = in, a.out = out;
  a.first.push_back(0);
  for (int64_t k = 0; k < out; ++k) {
    const double x = source(f, k, scale, in, out, roi0, roi1);
    const Taps t = taps_at(f, x, scale, in);
    a.at.insert(a.at.end(), t.at.begin(), t.at.end());
    a.weight.insert(a.weight.end(), t.weight.begin(), t.weight.end());
    a.first.push_back(static_cast<int64_t>(a.at.size()));
    if (crop) a.outside.push_back(x < 0 || x > static_cast<double>(in - 1));
  }
  return a;
}

// n elements of W bytes each from here to there: a switch for the compiler's sake, no call per element.
template <int W>
void copy_run(std::byte* to, const std::byte* from, int64_t n) {
  std::memcpy(to, from, static_cast<size_t>(n * W));
}

// Every output entry is one of the input's.
template <int W>
void pick_as(const EvalContext& ctx, const Tensor& x, Tensor& y, const ResizedAxes& plan) {
  const Shape& shape = y.shape();
  const int last = plan.back().axis;
  const int64_t inner = extent(shape, last + 1, shape.rank()), out = shape[last];
  const auto strides = strides_of(x.shape());
  const AxisTaps* of[Shape::kMaxRank] = {};
  for (const AxisTaps& t : plan) of[t.axis] = &t;
  const auto* px = elements<std::byte>(x);
  auto* py = mutable_elements<std::byte>(y);
  const int64_t* at = of[last]->at.data();
  ctx.parallel(
      extent(shape, 0, last), 0.3 * static_cast<double>(out * inner) + 10, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          int64_t rest = r, from = 0;
          for (int k = last - 1; k >= 0; --k) {
            const int64_t i = rest % shape[k];
            rest /= shape[k];
            from += (of[k] ? of[k]->at[static_cast<size_t>(i)] : i) * strides[static_cast<size_t>(k)];
          }
          const std::byte* row = px + from * W;
          std::byte* to = py + r * out * inner * W;
          if (inner == 1) {
            for (int64_t k = 0; k < out; ++k) copy_run<W>(to + k * W, row + at[k] * W, 1);
          } else {
            for (int64_t k = 0; k < out; ++k) copy_run<W>(to + k * inner * W, row + at[k] * inner * W, inner);
          }
        }
      });
}

Result<Tensor> pick(const EvalContext& ctx, const Tensor& x, const Shape& shape, const ResizedAxes& plan) {
  if (plan.empty()) return x;
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(x)));
  switch (x.format().block_bytes()) {
    case 1: pick_as<1>(ctx, x, y, plan); break;
    case 2: pick_as<2>(ctx, x, y, plan); break;
    case 4: pick_as<4>(ctx, x, y, plan); break;
    case 8: pick_as<8>(ctx, x, y, plan); break;
    default: return bad_dtype(x);
  }
  return y;
}

// y = x, of f64, with one axis filtered.
Result<Tensor> filter_axis(const EvalContext& ctx, const Tensor& x, const AxisTaps& t) {
  std::vector<int64_t> dims = dims_of(x.shape());
  dims[static_cast<size_t>(t.axis)] = t.out;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.zeros(shape, DType::kF64));
  const int64_t inner = extent(shape, t.axis + 1, shape.rank());
  const double cost = static_cast<double>(t.at.size()) / static_cast<double>(std::max<int64_t>(t.out, 1));
  ctx.parallel(extent(shape, 0, t.axis) * t.out, cost * static_cast<double>(inner) + 5,
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   const auto k = static_cast<size_t>(r % t.out);
                   const double* image = elements<double>(x) + r / t.out * t.in * inner;
                   double* to = mutable_elements<double>(y) + r * inner;
                   for (auto i = static_cast<size_t>(t.first[k]); i < static_cast<size_t>(t.first[k + 1]);
                        ++i) {
                     for (int64_t e = 0; e < inner; ++e) to[e] += t.weight[i] * image[t.at[i] * inner + e];
                   }
                 }
               });
  return y;
}

// Entries of y, of f64, that lie outside of the region take the extrapolation value.
void fill_outside(const EvalContext& ctx, Tensor& y, const ResizedAxes& plan, double fill) {
  for (const AxisTaps& t : plan) {
    if (std::find(t.outside.begin(), t.outside.end(), 1) == t.outside.end()) continue;
    const int64_t inner = extent(y.shape(), t.axis + 1, y.shape().rank());
    ctx.parallel(extent(y.shape(), 0, t.axis) * t.out, static_cast<double>(inner),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r) {
                     if (t.outside[static_cast<size_t>(r % t.out)] != 0)
                       std::fill_n(mutable_elements<double>(y) + r * inner, inner, fill);
                   }
                 });
  }
}

// What a node makes of an operand of one shape.
struct Resizing {
  Shape shape;       // of the result
  ResizedAxes axes;  // those that change
};

// `roi`, `scales` and `sizes` as the operands have them; empty: left out.
Result<Resizing> plan_resize(const Attrs& a, const Shape& x, const std::vector<double>& roi_list,
                             std::vector<double> scale_list, const std::vector<double>& sizes) {
  const int rank = x.rank();
  const auto n = static_cast<size_t>(rank);
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
  if (!sizes.empty()) scale_list.clear();
  if ((sizes.empty() ? scale_list.size() : sizes.size()) != axes.size())
    return invalid_argument("scales or sizes must have one entry per axis");
  std::vector<int64_t> dims = dims_of(x);
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
  Resizing out;
  OAR_ASSIGN(out.shape, checked_shape(dims));
  // Taps of a hostile size are not written down.
  OAR_RETURN_IF_ERROR(element_bytes(out.shape, DType::kF64, EvalOptions().tensor_limit).status());
  for (int axis = 0; axis < rank; ++axis) {
    const auto i = static_cast<size_t>(axis);
    const bool crop = f.transform == "tf_crop_and_resize";
    if (x[axis] == dims[i] && scales[i] == 1 && !crop) continue;
    out.axes.push_back(axis_taps(f, axis, scales[i], x[axis], dims[i], roi0[i], roi1[i], crop));
  }
  return out;
}

bool by_kernel(const Resizing& r) {
  const bool neighbours = r.axes.size() == 1 || (r.axes.size() == 2 && r.axes[0].axis + 1 == r.axes[1].axis);
  return neighbours && r.shape.numel() > 0 &&
         std::all_of(r.axes.begin(), r.axes.end(), [](const AxisTaps& t) {
           return t.outside.empty() && t.in < INT32_MAX && t.at.size() < INT32_MAX;
         });
}

// Lists one behind the other.
struct Table {
  std::vector<std::byte> host;
  // Values as T; where they begin.
  template <class T, class U>
  size_t add(const std::vector<U>& values) {
    const size_t at = host.size();
    host.resize(at + values.size() * sizeof(T));
    for (size_t k = 0; k < values.size(); ++k) {
      const T v = static_cast<T>(values[k]);
      std::memcpy(host.data() + at + k * sizeof(T), &v, sizeof(T));
    }
    return at;
  }
};

// The call of a kernel, which keeps the taps in memory of the backend.
Result<std::unique_ptr<LoweredOp>> resize_call(Backend& backend, const Kernel& kernel, const Resizing& r) {
  Table table;
  ResizeArgs a;
  struct Places {
    ResizeAxis* axis;
    size_t first, at, weight;
  };
  std::vector<Places> places;
  double taps = 0;
  for (const AxisTaps& t : r.axes) {
    ResizeAxis& axis = t.axis == r.axes.back().axis && r.axes.size() == 2 ? a.cols : a.rows;
    axis.in = t.in, axis.out = t.out;
    places.push_back(
        {&axis, table.add<int32_t>(t.first), table.add<int32_t>(t.at), table.add<float>(t.weight)});
    taps += static_cast<double>(t.at.size()) / static_cast<double>(t.out);
  }
  const int first = r.axes.front().axis, last = r.axes.back().axis;
  a.outer = extent(r.shape, 0, first), a.inner = extent(r.shape, last + 1, r.shape.rank());
  // One axis whose entries are single values: rows would be that short.
  if (r.axes.size() == 1 && a.inner == 1) {
    std::swap(a.rows, a.cols);
    places.front().axis = &a.cols;
  }
  OAR_ASSIGN(Buffer buffer, backend.allocate(table.host.size()));
  OAR_RETURN_IF_ERROR(backend.upload(buffer.mutable_data(), table.host.data(), table.host.size()));
  const auto* const base = static_cast<const std::byte*>(buffer.data());
  for (const Places& p : places) {
    p.axis->first = reinterpret_cast<const int32_t*>(base + p.first);
    p.axis->at = reinterpret_cast<const int32_t*>(base + p.at);
    p.axis->weight = reinterpret_cast<const float*>(base + p.weight);
  }
  return part_call(kernel, a, 0.3 * taps * static_cast<double>(r.shape.numel()), {}, {},
                   [buffer](ResizeArgs& args, const Operand* in, const Operand* out) {
                     args.x = in[0].as<const float>(), args.out = out[0].as<float>();
                   })
      .op;
}

Result<Resizing> resizing_of(const EvalContext& ctx, const Tensor& x) {
  OAR_RETURN_IF_ERROR(check_number(x));
  std::vector<double> lists[3];
  for (size_t k = 0; k < 3; ++k) {
    if (!ctx.has(k + 1)) continue;
    OAR_ASSIGN(const Tensor t, ctx.tensor(k + 1));
    OAR_RETURN_IF_ERROR(check_number(t));
    lists[k] = to_doubles(t);
  }
  OAR_ASSIGN(Resizing r, plan_resize(ctx.attrs(), x.shape(), lists[0], lists[1], lists[2]));
  OAR_RETURN_IF_ERROR(ctx.check_size(r.shape, DType::kF64));
  return r;
}

bool copies(const Resizing& r) {
  return std::all_of(r.axes.begin(), r.axes.end(), [](const AxisTaps& t) { return t.copies(); });
}

// Floats by the kernel of f32.
Result<bool> resize_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Resizing r, resizing_of(ctx, x));
  const DType dtype = dtype_of(x);
  if (copies(r) || !dtype_is_float(dtype) || dtype == DType::kF64 || !by_kernel(r)) return false;
  OAR_ASSIGN(const Tensor wide, as_f32(ctx, x));
  OAR_ASSIGN(Tensor y, ctx.allocate(r.shape, DType::kF32));
  OAR_ASSIGN(const auto call,
             resize_call(ctx.backend(), f32_kernel(ctx.backend(), KernelFamily::kResize), r));
  const Operand in[] = {memory_at(wide.data())}, out[] = {memory_at(y.data())};
  OAR_RETURN_IF_ERROR(run_lowered(*call, in, out, ctx));
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return true;
}

// resize(x, roi?, scales?, sizes?)
Status resize(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Resizing r, resizing_of(ctx, x));
  const DType dtype = dtype_of(x);
  if (copies(r)) {
    OAR_ASSIGN(Tensor y, pick(ctx, x, r.shape, r.axes));
    return ctx.set(0, std::move(y)), ok_status();
  }
  OAR_ASSIGN(Tensor y, as_f64(ctx, x));
  for (const AxisTaps& t : r.axes) { OAR_ASSIGN(y, filter_axis(ctx, y, t)); }
  fill_outside(ctx, y, r.axes, ctx.attrs().get_float("extrapolation_value", 0));
  std::vector<double> v = to_doubles(y);
  if (dtype_is_integer(dtype)) {
    for (double& e : v) e = std::nearbyint(e);
  }
  ctx.set(0, from_doubles(ctx, r.shape, dtype, v));
  return ok_status();
}

// Of a node whose region, scales and sizes are constants.
Result<Resizing> planned_resize(const Graph& g, std::span<const ValueId> in, const Attrs& attrs,
                                const Shape& x) {
  std::vector<double> lists[3];
  for (size_t k = 0; k < 3; ++k) {
    if (k + 1 >= in.size() || in[k + 1] == kNoValue) continue;
    const Value& v = g.value(in[k + 1]);
    if (v.kind != ValueKind::kConstant) return unimplemented("its sizes are computed");
    OAR_RETURN_IF_ERROR(check_number(v.constant));
    lists[k] = to_doubles(v.constant);
  }
  return plan_resize(attrs, x, lists[0], lists[1], lists[2]);
}

// f32, by sizes that are constants.
Lowered lower_resize(LowerContext& ctx) {
  const ValueInfo& x = ctx.operands[0];
  const Kernel* const kernel = ctx.backend.find_kernel({KernelFamily::kResize});
  if (kernel == nullptr || !is_f32(x)) return not_lowered();
  const auto r = planned_resize(ctx.graph, ctx.node.inputs, ctx.node.attrs, x.shape);
  if (!r.ok() || !by_kernel(*r)) return not_lowered();
  OAR_ASSIGN(auto op, resize_call(ctx.backend, *kernel, *r));
  ctx.results->assign(1, {Format::f32(), r->shape, true});
  return op;
}

}  // namespace

Result<std::vector<AxisMatrix>> resize_matrices(const Graph& g, std::span<const ValueId> in,
                                                const Attrs& attrs, const Shape& x) {
  OAR_ASSIGN(const Resizing r, planned_resize(g, in, attrs, x));
  std::vector<AxisMatrix> out;
  for (const AxisTaps& t : r.axes) {
    OAR_ASSIGN(Tensor matrix, Tensor::zeros({t.out, t.in}, Format::of(DType::kF64)));
    double* row = matrix.mutable_values<double>().data();
    for (size_t k = 0; k < static_cast<size_t>(t.out); ++k, row += t.in) {
      if (!t.outside.empty() && t.outside[k] != 0) continue;  // what lies there is no entry's
      for (auto i = static_cast<size_t>(t.first[k]); i < static_cast<size_t>(t.first[k + 1]); ++i)
        row[t.at[i]] += t.weight[i];
    }
    out.push_back({static_cast<size_t>(t.axis), std::move(matrix)});
  }
  return out;
}

}  // namespace oar::tensor

namespace oar {
OAR_SMOOTH_OP(resize, tensor::resize, .by_kernels = tensor::resize_by_kernels, .lower = tensor::lower_resize,
              .no_gradient_of = "the region");
}  // namespace oar
