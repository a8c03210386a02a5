// Convolutions of integers, by samples at computed places, and of patches back into images. Exact sums for
// integers, double for floats. Dense float convolution is in conv_f32.cc.
#include "engine/ops/tensor/conv.h"
#include "engine/ops/tensor/quantized.h"

namespace oar::tensor {

Result<Conv> plan_conv(const Attrs& attrs, const Shape& x, const Shape& weight) {
  Conv c;
  if (weight.rank() != x.rank() || x.rank() < 3)
    return invalid_argument("the weight has another number of axes than the operand");
  const std::vector<int64_t> given = attrs.get_ints("kernel_shape");
  const std::span<const int64_t> kernel(weight.begin() + 2, static_cast<size_t>(weight.rank() - 2));
  if (!given.empty() && !std::equal(given.begin(), given.end(), kernel.begin(), kernel.end())) {
    return invalid_argument("kernel_shape contradicts the weight");
  }
  OAR_ASSIGN(c.w, make_window(attrs, x, kernel, false));
  c.N = x[0], c.C = x[1], c.M = weight[0], c.groups = attrs.get_int("group", 1);
  if (c.groups < 1 || c.C % c.groups != 0 || c.M % c.groups != 0 || weight[1] != c.C / c.groups) {
    return invalid_argument(
        cat("weight ", weight.to_string(), " and ", c.groups, " groups do not match ", c.C, " channels"));
  }
  std::vector<int64_t> dims{c.N, c.M};
  dims.insert(dims.end(), c.w.out, c.w.out + c.w.axes);
  OAR_ASSIGN(c.out, checked_shape(dims));
  return c;
}

Result<Tensor> integer_conv(const EvalContext& ctx, const Conv& c, const Tensor& x, const Tensor& w,
                            const std::vector<int64_t>& x_zero, const std::vector<int64_t>& w_zero) {
  if (!is_byte(x) || !is_byte(w)) return invalid_argument("operands must be i8 or u8");
  // As i32 both dtypes are one case.
  const auto centered = [](const Tensor& t, const std::vector<int64_t>& zero, int64_t per) {
    std::vector<int32_t> v(static_cast<size_t>(t.numel()));
    for (size_t k = 0; k < v.size(); ++k) {
      const auto at = static_cast<int64_t>(k);
      v[k] = static_cast<int32_t>(element_as_int(t, at) -
                                  zero[zero.size() == 1 ? 0 : static_cast<size_t>(at / per)]);
    }
    return v;
  };
  OAR_ASSIGN(Tensor y, ctx.allocate(c.out, DType::kI32));
  const int64_t per = c.C / c.groups, outs = c.w.out_size(), ins = c.w.in_size(), kernel = c.w.kernel_size();
  const auto xs = centered(x, x_zero, 1), ws = centered(w, w_zero, std::max<int64_t>(per * kernel, 1));
  int32_t* const to = mutable_elements<int32_t>(y);
  ctx.parallel(c.N * c.M, static_cast<double>(outs * per * kernel) * 3, [&](int64_t begin, int64_t end) {
    for (int64_t nm = begin; nm < end; ++nm) {
      const int64_t n = nm / c.M, m = nm % c.M, g = m / (c.M / c.groups);
      const int32_t* const image = xs.data() + (n * c.C + g * per) * ins;
      const int32_t* const filter = ws.data() + m * per * kernel;
      for (int64_t o = 0; o < outs; ++o) {
        uint64_t sum = 0;
        walk_window(c.w, o, [&](int64_t e, int64_t at) {
          for (int64_t k = 0; k < per; ++k)
            sum += static_cast<uint64_t>(int64_t{image[k * ins + at]} * filter[k * kernel + e]);
        });
        to[nm * outs + o] = static_cast<int32_t>(sum);
      }
    }
  });
  return y;
}
namespace {

// Constant filters of one or two axes; `zero` is the operand of their zero points.
Result<std::shared_ptr<const void>> prepare_filters(PrepareContext& ctx, size_t operand, size_t zero) {
  const Tensor* const w = ctx.constant(operand);
  const int rank = w != nullptr ? w->shape().rank() : 0;
  if (rank < 3 || rank > 4 || !is_byte(*w) || w->numel() == 0 || ctx.node().attrs.get_int("group", 1) != 1)
    return std::shared_ptr<const void>();
  const int64_t M = w->shape()[0], C = w->shape()[1], taps = extent(w->shape(), 2, rank);
  return prepare_integer_weights(ctx, operand, zero, {M, taps, C, C * taps, 1, taps});
}

// i32 (N, M, ...) = sums of (x - x_zero)(w - w_zero) by the kernel, which wants channels together.
Result<Tensor> packed_conv(const KernelContext& ctx, const Conv& c, const Tensor& x, int64_t x_zero,
                           const std::vector<int64_t>& w_zero, const IntegerWeights& p) {
  const int64_t ins = c.w.in_size(), outs = c.w.out_size();
  OAR_ASSIGN(Tensor pixels, ctx.allocate({c.N, ins, c.C}, dtype_of(x)));
  turn_bytes(ctx, elements<uint8_t>(x), mutable_elements<uint8_t>(pixels), c.N, c.C, ins);
  OAR_ASSIGN(const Tensor sums, integer_sums(ctx, p, kernel_window(c.w, c.N), c.C, pixels,
                                             static_cast<int32_t>(x_zero), w_zero));
  pixels = {};
  OAR_ASSIGN(Tensor y, ctx.allocate(c.out, DType::kI32));
  // Bands of pixels, so that a line of the cache is read once.
  constexpr int64_t kBand = 64;
  const int64_t bands = (outs + kBand - 1) / kBand;
  ctx.parallel(c.N * bands, 1.0 * static_cast<double>(kBand * c.M), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t n = u / bands, o0 = u % bands * kBand, o1 = std::min(outs, o0 + kBand);
      const int32_t* from = elements<int32_t>(sums) + n * outs * c.M;
      int32_t* to = mutable_elements<int32_t>(y) + n * c.M * outs;
      for (int64_t m = 0; m < c.M; ++m) {
        for (int64_t o = o0; o < o1; ++o) to[m * outs + o] = from[o * c.M + m];
      }
    }
  });
  return y;
}

// With filters that prepare_filters() packed.
Result<Tensor> integer_conv(const KernelContext& ctx, const Conv& c, const Tensor& x, const Tensor& w,
                            const std::vector<int64_t>& x_zero, const std::vector<int64_t>& w_zero) {
  const EvalContext& plain = ctx;
  if (!is_byte(x) || c.C == 0 || c.out.numel() == 0) return integer_conv(plain, c, x, w, x_zero, w_zero);
  return packed_conv(ctx, c, x, x_zero[0], w_zero, *ctx.prepared<IntegerWeights>());
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
template <class Context>
Status conv_integer_with(Context& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(const Conv c, plan_conv(ctx.attrs(), x.shape(), w.shape()));
  OAR_ASSIGN(const auto xz, zero_points(ctx, 2, 1));
  OAR_ASSIGN(const auto wz, zero_points(ctx, 3, c.M));
  OAR_ASSIGN(Tensor y, integer_conv(ctx, c, x, w, xz, wz));
  ctx.set(0, std::move(y));
  return ok_status();
}

// qlinear_conv(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias?)
template <class Context>
Status qlinear_conv_with(Context& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(3));
  OAR_ASSIGN(const Conv c, plan_conv(ctx.attrs(), x.shape(), w.shape()));
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
  OAR_ASSIGN(const Tensor y, integer_conv(ctx, c, x, w, xz, wz));
  Tensor bias;
  if (ctx.has(8)) {
    OAR_ASSIGN(bias, ctx.tensor(8));
    if (bias.numel() != c.M || dtype_of(bias) != DType::kI32)
      return invalid_argument("the bias must be i32, one per filter");
  }
  const int32_t* const sums = elements<int32_t>(y);
  std::vector<double> out(static_cast<size_t>(y.numel()));
  const auto zero = static_cast<double>(element_as_int(zy, 0));
  for (size_t k = 0; k < out.size(); ++k) {
    const int64_t m = static_cast<int64_t>(k) / c.w.out_size() % c.M;
    const auto sum =
        static_cast<double>(sums[k] + (bias.defined() ? int64_t{elements<int32_t>(bias)[m]} : int64_t{0}));
    out[k] = std::nearbyint(sum * sx * element_as_double(sw, sw.numel() == 1 ? 0 : m) / sy) + zero;
  }
  ctx.set(0, from_doubles(ctx, c.out, dtype_of(zy), out));
  return ok_status();
}

Status conv_integer(EvalContext& ctx) { return conv_integer_with(ctx); }
Status qlinear_conv(EvalContext& ctx) { return qlinear_conv_with(ctx); }
template <Status (*kConv)(KernelContext&)>
Result<bool> by_packed_filters(KernelContext& ctx) {
  if (ctx.prepared<IntegerWeights>() == nullptr) return false;
  OAR_RETURN_IF_ERROR(kConv(ctx));
  return true;
}

Result<std::shared_ptr<const void>> prepare_conv_integer(PrepareContext& ctx) {
  return prepare_filters(ctx, 1, 3);
}
// Of a device; qlinear_conv becomes a layer of fuse_quantized, or stays with the processor.
Lowered lower_conv_integer(LowerContext& ctx) {
  const ValueInfo& x = ctx.operands[0];
  if (ctx.backend.memory() != MemoryKind::kDevice || ctx.prepared == nullptr || !is_byte(x))
    return not_lowered();
  const auto c = plan_conv(ctx.node.attrs, x.shape, ctx.operands[1].shape);
  if (!c.ok() || c->C == 0 || c->out.numel() == 0) return not_lowered();
  return lower_integers(ctx, kernel_window(c->w, c->N), c->C, c->out);
}
Result<std::shared_ptr<const void>> prepare_qlinear_conv(PrepareContext& ctx) {
  return prepare_filters(ctx, 3, 5);
}

// deform_conv(x, w, offset, bias?, mask?): samples bilinearly at shifted places.
// https://arxiv.org/abs/1811.11168
Status deform_conv(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(const Tensor offset, ctx.tensor(2));
  OAR_ASSIGN(const Conv c, plan_conv(ctx.attrs(), x.shape(), w.shape()));
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
OAR_ROUNDING_OP(conv_integer, tensor::conv_integer,
                .by_kernels = tensor::by_packed_filters<tensor::conv_integer_with<KernelContext>>,
                .prepare = tensor::prepare_conv_integer, .lower = tensor::lower_conv_integer);
OAR_TENSOR_OP(deform_conv, tensor::deform_conv);
OAR_ROUNDING_OP(qlinear_conv, tensor::qlinear_conv,
                .by_kernels = tensor::by_packed_filters<tensor::qlinear_conv_with<KernelContext>>,
                .prepare = tensor::prepare_qlinear_conv);
}  // namespace oar
