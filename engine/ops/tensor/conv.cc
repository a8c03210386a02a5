// Convolutions. f32: patches as rows (im2col) and one product per group, 1x1 without; depthwise directly.
// Other dtypes: f16 and bf16 through f32, f64 and integers directly with exact sums.
#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/window.h"

namespace oar::tensor {
namespace {

struct Conv {
  Window w;
  int64_t N, C, M, groups;
  Shape out;
};

// x (N, C, ...), weight (M, C / groups, ...)
Result<Conv> plan_conv(const EvalContext& ctx, const Shape& x, const Shape& weight) {
  Conv c;
  if (weight.rank() != x.rank() || x.rank() < 3)
    return invalid_argument("the weight has another number of axes than the operand");
  const std::vector<int64_t> given = ctx.attrs().get_ints("kernel_shape");
  const std::span<const int64_t> kernel(weight.begin() + 2, static_cast<size_t>(weight.rank() - 2));
  if (!given.empty() && !std::equal(given.begin(), given.end(), kernel.begin(), kernel.end())) {
    return invalid_argument("kernel_shape contradicts the weight");
  }
  OAR_ASSIGN(c.w, make_window(ctx.attrs(), x, kernel, false));
  c.N = x[0], c.C = x[1], c.M = weight[0], c.groups = ctx.attrs().get_int("group", 1);
  if (c.groups < 1 || c.C % c.groups != 0 || c.M % c.groups != 0 || weight[1] != c.C / c.groups) {
    return invalid_argument(
        cat("weight ", weight.to_string(), " and ", c.groups, " groups do not match ", c.C, " channels"));
  }
  std::vector<int64_t> dims{c.N, c.M};
  dims.insert(dims.end(), c.w.out, c.w.out + c.w.axes);
  OAR_ASSIGN(c.out, checked_shape(dims));
  return c;
}

// Sums of products, exactly for integers (S = int64_t) and in double for floats.
template <class T, class S, class U>
void direct_conv(const EvalContext& ctx, const Conv& c, const T* x, const T* w, U* y, S x_zero,
                 const S* w_zero) {
  const int64_t per = c.C / c.groups, outs = c.w.out_size(), ins = c.w.in_size(), kernel = c.w.kernel_size();
  ctx.parallel(c.N * c.M, static_cast<double>(outs * per * kernel) * 3, [&](int64_t begin, int64_t end) {
    for (int64_t nm = begin; nm < end; ++nm) {
      const int64_t n = nm / c.M, m = nm % c.M, g = m / (c.M / c.groups);
      for (int64_t o = 0; o < outs; ++o) {
        S sum = 0;
        walk_window(c.w, o, [&](int64_t e, int64_t at) {
          for (int64_t k = 0; k < per; ++k) {
            sum += (static_cast<S>(x[(n * c.C + g * per + k) * ins + at]) - x_zero) *
                   (static_cast<S>(w[(m * per + k) * kernel + e]) - (w_zero ? w_zero[m] : S{0}));
          }
        });
        y[nm * outs + o] = static_cast<U>(sum);
      }
    }
  });
}

// Patches of channels [c0, c0 + per) of one image as rows: (outs, per * kernel).
void im2col(const EvalContext& ctx, const Conv& c, const float* x, int64_t per, float* cols) {
  const int64_t ins = c.w.in_size(), kernel = c.w.kernel_size(), width = per * kernel;
  const Window& w = c.w;
  ctx.parallel(w.out_size(), static_cast<double>(width), [&](int64_t begin, int64_t end) {
    if (w.axes == 2) {
      for (int64_t o = begin; o < end; ++o) {
        const int64_t y0 = o / w.out[1] * w.stride[0] - w.begin[0],
                      x0 = o % w.out[1] * w.stride[1] - w.begin[1];
        float* row = cols + o * width;
        for (int64_t k = 0; k < per; ++k) {
          const float* plane = x + k * ins;
          for (int64_t i = 0; i < w.kernel[0]; ++i) {
            const int64_t yy = y0 + i * w.dilation[0];
            for (int64_t j = 0; j < w.kernel[1]; ++j) {
              const int64_t xx = x0 + j * w.dilation[1];
              *row++ = yy >= 0 && yy < w.in[0] && xx >= 0 && xx < w.in[1] ? plane[yy * w.in[1] + xx] : 0.0f;
            }
          }
        }
      }
      return;
    }
    for (int64_t o = begin; o < end; ++o) {
      std::fill_n(cols + o * width, width, 0.0f);
      walk_window(w, o, [&](int64_t e, int64_t at) {
        for (int64_t k = 0; k < per; ++k) cols[o * width + k * kernel + e] = x[k * ins + at];
      });
    }
  });
}

// One channel with its own filter, two axes: a row of outputs at a time.
void depthwise(const EvalContext& ctx, const Conv& c, const float* x, const float* w, const float* bias,
               float* y) {
  const int64_t ins = c.w.in_size(), outs = c.w.out_size(), kernel = c.w.kernel_size(),
                times = c.M / c.groups;
  const Window& v = c.w;
  ctx.parallel(c.N * c.M, static_cast<double>(outs * kernel), [&](int64_t begin, int64_t end) {
    for (int64_t nm = begin; nm < end; ++nm) {
      const int64_t n = nm / c.M, m = nm % c.M;
      const float* plane = x + (n * c.C + m / times) * ins;
      float* out = y + nm * outs;
      std::fill_n(out, outs, bias ? bias[m] : 0.0f);
      for (int64_t oy = 0; oy < v.out[0]; ++oy) {
        float* row = out + oy * v.out[1];
        for (int64_t i = 0; i < v.kernel[0]; ++i) {
          const int64_t yy = oy * v.stride[0] - v.begin[0] + i * v.dilation[0];
          if (yy < 0 || yy >= v.in[0]) continue;
          for (int64_t j = 0; j < v.kernel[1]; ++j) {
            const float f = w[m * kernel + i * v.kernel[1] + j];
            const int64_t shift = j * v.dilation[1] - v.begin[1], s = v.stride[1];
            // Outputs whose element lies inside: 0 <= ox s + shift < in.
            const int64_t first = shift < 0 ? (-shift + s - 1) / s : 0;
            const int64_t last = std::min(v.out[1], v.in[1] - shift > 0 ? (v.in[1] - shift - 1) / s + 1 : 0);
            const float* p = plane + yy * v.in[1] + shift;
            if (s == 1) {
              for (int64_t ox = first; ox < last; ++ox) row[ox] += f * p[ox];
            } else {
              for (int64_t ox = first; ox < last; ++ox) row[ox] += f * p[ox * s];
            }
          }
        }
      }
    }
  });
}

Status conv_f32(const EvalContext& ctx, const Conv& c, const float* x, const float* w, const float* bias,
                float* y) {
  const int64_t per = c.C / c.groups, filters = c.M / c.groups, outs = c.w.out_size(), ins = c.w.in_size();
  const int64_t width = per * c.w.kernel_size();
  if (per == 1 && c.w.axes == 2) return depthwise(ctx, c, x, w, bias, y), ok_status();
  bool pointwise = true;
  for (int k = 0; k < c.w.axes; ++k) {
    pointwise = pointwise && c.w.kernel[k] == 1 && c.w.stride[k] == 1 && c.w.begin[k] == 0 && c.w.end[k] == 0;
  }
  OAR_ASSIGN(const Shape patches, checked_shape(std::vector<int64_t>{outs, width}));
  OAR_ASSIGN(Tensor cols, ctx.allocate(patches, DType::kF32));
  for (int64_t n = 0; n < c.N; ++n) {
    for (int64_t g = 0; g < c.groups; ++g) {
      const float* image = x + (n * c.C + g * per) * ins;
      if (pointwise) transpose_f32(image, mutable_elements<float>(cols), per, outs);
      else im2col(ctx, c, image, per, mutable_elements<float>(cols));
      float* out = y + (n * c.M + g * filters) * outs;
      for (int64_t m = 0; bias && m < filters; ++m) std::fill_n(out + m * outs, outs, bias[g * filters + m]);
      OAR_RETURN_IF_ERROR(gemm_nt(ctx, filters, outs, width, w + g * filters * width, width,
                                  elements<float>(cols), out, outs, bias != nullptr));
    }
  }
  return ok_status();
}

// conv(x, weight, bias?) {auto_pad, dilations, group, kernel_shape, pads, strides, activation}
Status conv(EvalContext& ctx) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor w, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_same_dtype(x, w));
  OAR_ASSIGN(const Conv c, plan_conv(ctx, x.shape(), w.shape()));
  Tensor bias;
  if (ctx.has(2)) {
    OAR_ASSIGN(bias, ctx.tensor(2));
    OAR_RETURN_IF_ERROR(check_same_dtype(x, bias));
    if (bias.numel() != c.M) return invalid_argument("the bias needs one value per filter");
  }
  const DType dtype = dtype_of(x);
  const std::string epilogue = ctx.attrs().get_string("activation");
  if (!epilogue.empty() && epilogue != "relu")
    return invalid_argument(cat("unknown activation '", epilogue, "'"));
  if (dtype == DType::kF64) {
    OAR_ASSIGN(Tensor y, ctx.allocate(c.out, dtype));
    direct_conv<double, double>(ctx, c, elements<double>(x), elements<double>(w), mutable_elements<double>(y),
                                0.0, nullptr);
    for (int64_t k = 0; bias.defined() && k < y.numel(); ++k)
      mutable_elements<double>(y)[k] += elements<double>(bias)[k / c.w.out_size() % c.M];
    for (int64_t k = 0; !epilogue.empty() && k < y.numel(); ++k) {
      double& v = mutable_elements<double>(y)[k];
      v = v < 0 ? 0 : v;
    }
    return ctx.set(0, std::move(y)), ok_status();
  }
  if (!dtype_is_float(dtype)) return bad_dtype(x);
  OAR_ASSIGN(x, as_f32(x));
  OAR_ASSIGN(w, as_f32(w));
  if (bias.defined()) { OAR_ASSIGN(bias, as_f32(bias)); }
  OAR_ASSIGN(Tensor y, ctx.allocate(c.out, DType::kF32));
  OAR_RETURN_IF_ERROR(conv_f32(ctx, c, elements<float>(x), elements<float>(w),
                               bias.defined() ? elements<float>(bias) : nullptr, mutable_elements<float>(y)));
  if (!epilogue.empty()) {
    float* p = mutable_elements<float>(y);
    ctx.parallel(y.numel(), 0.2, [p](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) p[k] = p[k] < 0 ? 0 : p[k];
    });
  }
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return ok_status();
}

// Exact i64 sums of (x - x_zero)(w - w_zero) over 8-bit operands.
Status integer_sums(const EvalContext& ctx, const Conv& c, const Tensor& x, const Tensor& w, int64_t x_zero,
                    const std::vector<int64_t>& w_zero, std::vector<int64_t>& sums) {
  if ((dtype_of(x) != DType::kI8 && dtype_of(x) != DType::kU8) ||
      (dtype_of(w) != DType::kI8 && dtype_of(w) != DType::kU8)) {
    return invalid_argument("operands must be i8 or u8");
  }
  sums.resize(static_cast<size_t>(c.out.numel()));
  std::vector<int64_t> zeros(static_cast<size_t>(c.M));
  for (size_t m = 0; m < zeros.size(); ++m) zeros[m] = w_zero.size() == 1 ? w_zero[0] : w_zero[m];
  // As i16 both dtypes are one case.
  auto widen = [](const Tensor& t) {
    std::vector<int16_t> v(static_cast<size_t>(t.numel()));
    for (size_t k = 0; k < v.size(); ++k)
      v[k] = static_cast<int16_t>(element_as_int(t, static_cast<int64_t>(k)));
    return v;
  };
  const auto xs = widen(x), ws = widen(w);
  direct_conv<int16_t, int64_t>(ctx, c, xs.data(), ws.data(), sums.data(), x_zero, zeros.data());
  return ok_status();
}

Result<std::vector<int64_t>> zero_points(const EvalContext& ctx, size_t operand, int64_t channels) {
  std::vector<int64_t> z{0};
  if (!ctx.has(operand)) return z;
  OAR_ASSIGN(const Tensor t, ctx.tensor(operand));
  if ((t.numel() != 1 && t.numel() != channels) || dtype_of(t) == DType::kString)
    return invalid_argument("zero points do not match the weight");
  z.clear();
  for (int64_t k = 0; k < t.numel(); ++k) z.push_back(element_as_int(t, k));
  return z;
}

// conv_integer(x, w, x_zero?, w_zero?) -> i32
Status conv_integer(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(const Conv c, plan_conv(ctx, x.shape(), w.shape()));
  OAR_ASSIGN(const auto xz, zero_points(ctx, 2, 1));
  OAR_ASSIGN(const auto wz, zero_points(ctx, 3, c.M));
  std::vector<int64_t> sums;
  OAR_RETURN_IF_ERROR(integer_sums(ctx, c, x, w, xz[0], wz, sums));
  OAR_ASSIGN(Tensor y, ctx.allocate(c.out, DType::kI32));
  for (size_t k = 0; k < sums.size(); ++k) mutable_elements<int32_t>(y)[k] = static_cast<int32_t>(sums[k]);
  ctx.set(0, std::move(y));
  return ok_status();
}

// qlinear_conv(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias?)
Status qlinear_conv(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(3));
  OAR_ASSIGN(const Conv c, plan_conv(ctx, x.shape(), w.shape()));
  OAR_ASSIGN(const double sx, ctx.scalar(1));
  OAR_ASSIGN(const Tensor sw, ctx.tensor(4));
  OAR_ASSIGN(const double sy, ctx.scalar(6));
  OAR_ASSIGN(const Tensor zy, ctx.tensor(7));
  OAR_ASSIGN(const auto xz, zero_points(ctx, 2, 1));
  OAR_ASSIGN(const auto wz, zero_points(ctx, 5, c.M));
  if ((sw.numel() != 1 && sw.numel() != c.M) || zy.numel() != 1 || dtype_of(zy) == DType::kString ||
      dtype_of(sw) == DType::kString) {
    return invalid_argument("scales do not match the weight");
  }
  std::vector<int64_t> sums;
  OAR_RETURN_IF_ERROR(integer_sums(ctx, c, x, w, xz[0], wz, sums));
  Tensor bias;
  if (ctx.has(8)) {
    OAR_ASSIGN(bias, ctx.tensor(8));
    if (bias.numel() != c.M || dtype_of(bias) != DType::kI32)
      return invalid_argument("the bias must be i32, one per filter");
  }
  std::vector<double> out(sums.size());
  const auto zero = static_cast<double>(element_as_int(zy, 0));
  for (size_t k = 0; k < sums.size(); ++k) {
    const int64_t m = static_cast<int64_t>(k) / c.w.out_size() % c.M;
    const auto sum = static_cast<double>(sums[k] + (bias.defined() ? elements<int32_t>(bias)[m] : 0));
    out[k] = std::nearbyint(sum * sx * element_as_double(sw, sw.numel() == 1 ? 0 : m) / sy) + zero;
  }
  ctx.set(0, from_doubles(ctx, c.out, dtype_of(zy), out));
  return ok_status();
}

// conv_transpose(x (N, C, ...), weight (C, M / groups, ...), bias?): scatters each element times its filter.
Status conv_transpose(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_same_dtype(x, w));
  const int axes = x.shape().rank() - 2;
  const Attrs& a = ctx.attrs();
  const int64_t groups = a.get_int("group", 1);
  if (axes < 1 || w.shape().rank() != x.shape().rank() || groups < 1 || x.shape()[1] != w.shape()[0] ||
      x.shape()[1] % groups != 0) {
    return invalid_argument("the weight does not match the operand");
  }
  if (!dtype_is_float(dtype_of(x))) return bad_dtype(x);
  const int64_t N = x.shape()[0], C = x.shape()[1], per_out = w.shape()[1], M = per_out * groups,
                per_in = C / groups;
  const auto n = static_cast<size_t>(axes);
  auto list = [&](const char* name, int64_t fallback) {
    std::vector<int64_t> v = a.get_ints(name);
    if (v.empty()) v.assign(n, fallback);
    return v;
  };
  const auto strides = list("strides", 1), dilations = list("dilations", 1),
             extra = list("output_padding", 0);
  std::vector<int64_t> pads = a.get_ints("pads"), wanted = a.get_ints("output_shape");
  if (pads.empty()) pads.assign(2 * n, 0);
  if (wanted.size() == n + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  if (strides.size() != n || dilations.size() != n || extra.size() != n || pads.size() != 2 * n ||
      (!wanted.empty() && wanted.size() != n)) {
    return invalid_argument("attributes have another number of axes than the operand");
  }
  const std::string auto_pad = a.get_string("auto_pad", "NOTSET");
  Window v;  // with the roles of in and out exchanged: v.out are the operand's extents
  v.axes = axes;
  std::vector<int64_t> dims{N, M};
  for (size_t k = 0; k < n; ++k) {
    constexpr int64_t kMost = int64_t{1} << 31;
    v.out[k] = x.shape()[static_cast<int>(k) + 2], v.kernel[k] = w.shape()[static_cast<int>(k) + 2];
    v.stride[k] = strides[k], v.dilation[k] = dilations[k];
    if (v.stride[k] < 1 || v.dilation[k] < 1 || v.kernel[k] < 1 || v.stride[k] > kMost ||
        v.dilation[k] > kMost || v.out[k] > kMost || v.kernel[k] > kMost || std::abs(extra[k]) > kMost ||
        std::abs(pads[k]) > kMost || std::abs(pads[k + n]) > kMost) {
      return invalid_argument("strides, dilations and pads are out of range");
    }
    const int64_t full = v.stride[k] * (v.out[k] - 1) + extra[k] + (v.kernel[k] - 1) * v.dilation[k] + 1;
    if (!wanted.empty() || auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      v.in[k] = wanted.empty() ? v.out[k] * v.stride[k] : wanted[k];
      const int64_t total = std::max<int64_t>(0, full - v.in[k]);  // a larger result grows at its end
      v.begin[k] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    } else {
      v.begin[k] = pads[k];
      v.in[k] = full - pads[k] - pads[k + n];
    }
    dims.push_back(v.in[k]);
  }
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  const int64_t outs = v.in_size(), ins = v.out_size(), kernel = v.kernel_size();
  Tensor bias;
  if (ctx.has(2)) {
    OAR_ASSIGN(bias, ctx.tensor(2));
    if (bias.numel() != M || !(bias.format() == x.format()))
      return invalid_argument("the bias needs one value per filter");
  }
  const std::vector<double> px = to_doubles(x), pw = to_doubles(w),
                            pb = bias.defined() ? to_doubles(bias) : std::vector<double>();
  OAR_RETURN_IF_ERROR(ctx.allocate(shape, DType::kF64).status());
  std::vector<double> y(static_cast<size_t>(shape.numel()), 0);
  ctx.parallel(N * M, static_cast<double>(per_in * ins * kernel), [&](int64_t begin, int64_t end) {
    for (int64_t nm = begin; nm < end; ++nm) {
      const int64_t image = nm / M, m = nm % M, g = m / per_out;
      double* plane = y.data() + nm * outs;
      std::fill_n(plane, outs, pb.empty() ? 0.0 : pb[static_cast<size_t>(m)]);
      for (int64_t k = 0; k < per_in; ++k) {
        const double* src = px.data() + (image * C + g * per_in + k) * ins;
        const double* filter = pw.data() + ((g * per_in + k) * per_out + m % per_out) * kernel;
        for (int64_t i = 0; i < ins; ++i) {
          walk_window(v, i, [&](int64_t e, int64_t at) { plane[at] += src[i] * filter[e]; });
        }
      }
    }
  });
  ctx.set(0, from_doubles(ctx, shape, dtype_of(x), y));
  return ok_status();
}

// deform_conv(x, w, offset, bias?, mask?): samples bilinearly at shifted places.
// https://arxiv.org/abs/1811.11168
Status deform_conv(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(const Tensor offset, ctx.tensor(2));
  OAR_ASSIGN(const Conv c, plan_conv(ctx, x.shape(), w.shape()));
  if (c.w.axes != 2 || !dtype_is_float(dtype_of(x))) return unimplemented("only (N, C, H, W) of floats");
  OAR_RETURN_IF_ERROR(check_same_dtype(x, w));
  OAR_RETURN_IF_ERROR(check_same_dtype(x, offset));
  const int64_t K = c.w.kernel_size(), outs = c.w.out_size(), ins = c.w.in_size(),
                G = ctx.attrs().get_int("offset_group", 1);
  if (G < 1 || c.C % G != 0 || offset.numel() != c.N * G * K * 2 * outs)
    return invalid_argument("offsets do not match");
  const std::vector<double> px = to_doubles(x), pw = to_doubles(w), po = to_doubles(offset);
  std::vector<double> pb, pm;
  if (ctx.has(3)) {
    OAR_ASSIGN(const Tensor b, ctx.tensor(3));
    if (b.numel() != c.M || !dtype_is_float(dtype_of(b)))
      return invalid_argument("the bias needs one value per filter");
    pb = to_doubles(b);
  }
  if (ctx.has(4)) {
    OAR_ASSIGN(const Tensor m, ctx.tensor(4));
    if (m.numel() != c.N * G * K * outs || !dtype_is_float(dtype_of(m)))
      return invalid_argument("the mask does not match");
    pm = to_doubles(m);
  }
  const int64_t H = c.w.in[0], W = c.w.in[1], per = c.C / c.groups;
  std::vector<double> y(static_cast<size_t>(c.out.numel()), 0);
  for (int64_t n = 0; n < c.N; ++n)
    for (int64_t m = 0; m < c.M; ++m)
      for (int64_t o = 0; o < outs; ++o) {
        double sum = pb.empty() ? 0 : pb[static_cast<size_t>(m)];
        for (int64_t k = 0; k < per; ++k) {
          const int64_t ch = m / (c.M / c.groups) * per + k, g = ch / (c.C / G);
          for (int64_t e = 0; e < K; ++e) {
            const auto at = static_cast<size_t>(((n * G + g) * K + e) * 2 * outs + o);
            const double yy = static_cast<double>(o / c.w.out[1] * c.w.stride[0] - c.w.begin[0] +
                                                  e / c.w.kernel[1] * c.w.dilation[0]) +
                              po[at];
            const double xx = static_cast<double>(o % c.w.out[1] * c.w.stride[1] - c.w.begin[1] +
                                                  e % c.w.kernel[1] * c.w.dilation[1]) +
                              po[at + static_cast<size_t>(outs)];
            if (!(yy > -1 && yy < static_cast<double>(H) && xx > -1 && xx < static_cast<double>(W))) continue;
            const auto y0 = static_cast<int64_t>(std::floor(yy)), x0 = static_cast<int64_t>(std::floor(xx));
            double v = 0;
            for (int64_t dy = 0; dy < 2; ++dy)
              for (int64_t dx = 0; dx < 2; ++dx) {
                const int64_t r = y0 + dy, q = x0 + dx;
                if (r < 0 || r >= H || q < 0 || q >= W) continue;
                v += px[static_cast<size_t>((n * c.C + ch) * ins + r * W + q)] *
                     (1 - std::abs(yy - static_cast<double>(r))) *
                     (1 - std::abs(xx - static_cast<double>(q)));
              }
            if (!pm.empty()) v *= pm[static_cast<size_t>(((n * G + g) * K + e) * outs + o)];
            sum += v * pw[static_cast<size_t>((m * per + k) * K + e)];
          }
        }
        y[static_cast<size_t>((n * c.M + m) * outs + o)] = sum;
      }
  ctx.set(0, from_doubles(ctx, c.out, dtype_of(x), y));
  return ok_status();
}

// col2im(x (N, C prod(block), L), image_shape, block_shape): patches added back into images.
Status col2im(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const std::vector<int64_t> image, ctx.ints(1));
  OAR_ASSIGN(const std::vector<int64_t> block, ctx.ints(2));
  if (x.shape().rank() != 3 || !dtype_is_float(dtype_of(x)) || image.size() > 6 ||
      image.size() != block.size()) {
    return invalid_argument("needs (N, C * block, L), an image and a block shape");
  }
  std::vector<int64_t> dims{x.shape()[0], 1};
  dims.insert(dims.end(), image.begin(), image.end());
  OAR_ASSIGN(const Shape probe, checked_shape(dims));
  OAR_ASSIGN(const Window w, make_window(ctx.attrs(), probe, block, false));
  const int64_t K = w.kernel_size(), L = w.out_size(), ins = w.in_size();
  if (x.shape()[1] % K != 0 || x.shape()[2] != L)
    return invalid_argument(cat("expected ", L, " patches of ", K, " elements per channel"));
  dims[1] = x.shape()[1] / K;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  const std::vector<double> in = to_doubles(x);
  std::vector<double> y(static_cast<size_t>(shape.numel()), 0);
  for (int64_t nc = 0; nc < dims[0] * dims[1]; ++nc) {
    for (int64_t o = 0; o < L; ++o) {
      walk_window(w, o, [&](int64_t e, int64_t at) {
        y[static_cast<size_t>(nc * ins + at)] += in[static_cast<size_t>((nc * K + e) * L + o)];
      });
    }
  }
  ctx.set(0, from_doubles(ctx, shape, dtype_of(x), y));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(col2im, tensor::col2im);
OAR_TENSOR_OP(conv, tensor::conv);
OAR_TENSOR_OP(conv_integer, tensor::conv_integer);
OAR_TENSOR_OP(conv_transpose, tensor::conv_transpose);
OAR_TENSOR_OP(deform_conv, tensor::deform_conv);
OAR_TENSOR_OP(qlinear_conv, tensor::qlinear_conv);
}  // namespace oar
