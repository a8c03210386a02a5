// Dense float convolution and its transpose, through the kernels of kernels/conv.h: what may be constant (the
// filters) is packed once, bias, residual and activation are part of the call. Operands that lie as the file
// has them, (N, C, ...), are turned around the kernel; the channels_last pass makes that rare.
#include "engine/ops/tensor/conv.h"
#include "engine/ops/tensor/narrow.h"

namespace oar::tensor {
namespace {

struct PreparedConv {
  Tensor packed;
  bool depthwise = false;
  bool winograd = false;                // packed for KernelFamily::kWinograd
  std::optional<NarrowWeights> narrow;  // instead of `packed`
};

// Floats of transformed operands and products that one call of the Winograd kernel may take: a batch goes
// through in groups of images that the last cache holds.
constexpr int64_t kWinogradFloats = 2 << 20;

// Null where the backend has none.
const Kernel* winograd_kernel(const Backend& backend) {
  return backend.find_kernel({KernelFamily::kWinograd, Format::f32()});
}

// One channel alone is none: those kernels have a lane a channel, and a filter of 256 taps (audio) would run
// on one lane.
bool is_depthwise(int64_t M, int64_t C, int64_t groups) { return groups == C && M == C && C > 1; }

// Filters of three axes as call_frames() has them: what lies along the first axis is channels.
Shape filters_of_kernel(const Shape& w) { return w.rank() == 5 ? Shape{w[0], w[1] * w[2], w[3], w[4]} : w; }

// Filters (M, per, taps) in the kernel's layout: how many floats, and what writes them.
int64_t packed_floats(const Backend& backend, const Shape& shape, int64_t groups) {
  const int64_t M = shape[0], per = shape[1], taps = extent(shape, 2, shape.rank());
  if (is_depthwise(M, per * groups, groups)) return taps * M;
  return packed_filter_floats(M, groups, taps, per, backend.filter_panel());
}
void pack(const Backend& backend, const float* w, const Shape& shape, int64_t groups, float* to) {
  const int64_t M = shape[0], per = shape[1], taps = extent(shape, 2, shape.rank());
  if (!is_depthwise(M, per * groups, groups)) {
    return pack_filters(to, w, M, groups, taps, per, per * taps, taps, 1, backend.filter_panel());
  }
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t t = 0; t < taps; ++t) to[t * M + m] = w[m * taps + t];
  }
}

// Rough nanoseconds of one thread.
double cost_of(const Conv& c, const PreparedConv& p) {
  const auto weights = static_cast<double>(c.M * (c.C / c.groups) * c.w.kernel_size());
  const auto pixels = static_cast<double>(c.N * c.w.out_size());
  if (p.depthwise) return 0.1 * pixels * weights;
  return p.winograd ? 0.01 * pixels * weights : product_ns(pixels, weights, 0.02, 4);
}

// The arguments of a call but for its operands.
DepthwiseArgs depthwise_args(const Conv& c, const PreparedConv& p, const Activation& act) {
  DepthwiseArgs a;
  a.w = elements<float>(p.packed);
  a.window = kernel_window(c.w, c.N);
  a.C = c.C;
  a.epilogue = act.kind, a.alpha = act.alpha, a.beta = act.beta;
  return a;
}
ConvArgs conv_args(const Backend& backend, const Conv& c, const PreparedConv& p, const Activation& act) {
  ConvArgs a;
  a.w = elements<float>(p.packed);
  a.window = kernel_window(c.w, c.N);
  a.C = a.ldx = c.C, a.M = a.ldo = c.M, a.groups = c.groups;
  a.panel = backend.filter_panel();
  a.epilogue = act.kind, a.alpha = act.alpha, a.beta = act.beta;
  return a;
}
// Images that one call of the Winograd kernel takes.
int64_t winograd_images(const Conv& c, const WindowShape& w) {
  const int64_t tiles = ((w.OH + 3) / 4) * ((w.OW + 3) / 4);
  return std::clamp<int64_t>(kWinogradFloats / (36 * tiles * (c.C + c.M)), 1, c.N);
}

// Which operands of the node are what.
constexpr uint8_t kConvX = 0, kConvBias = 2, kConvResidual = 3;

// The calls of kernels on pixels whose results' channels lie together: x (N, H, W, C), or (N, C, H, W) when
// planar; the residual and result 0 are (N, OH, OW, M).
std::unique_ptr<LoweredOp> conv_calls(const Backend& backend, const Conv& c, const PreparedConv& p,
                                      bool planar, const Activation& act) {
  if (p.narrow)
    return narrow_calls(backend, *p.narrow,
                        {kernel_window(c.w, c.N), c.C, c.M, kConvX, kConvBias, kConvResidual, act});
  const double ns = cost_of(c, p);
  const auto one = [&](KernelFamily family, const auto& args, double cost, int64_t x_from, int64_t y_from) {
    const auto fill = [x_from, y_from](auto& a, const Operand* in, const Operand* out) {
      a.out = out[0].as<float>() + y_from, a.x = in[kConvX].as<const float>() + x_from;
      a.bias = in[kConvBias].as<const float>();
      if (in[kConvResidual].data != nullptr) a.residual = in[kConvResidual].as<const float>() + y_from;
    };
    return part_call(f32_kernel(backend, family), args, cost, {kConvX, 1, kConvBias, kConvResidual},
                     {LoweredCall::kResult}, fill);
  };
  if (p.depthwise) return one(KernelFamily::kDepthwise, depthwise_args(c, p, act), ns, 0, 0).op;
  ConvArgs a = conv_args(backend, c, p, act);
  a.planar = planar;
  const int64_t images = p.winograd ? winograd_images(c, a.window) : c.N;
  const KernelFamily family = p.winograd ? KernelFamily::kWinograd : KernelFamily::kConv;
  if (images >= c.N) return one(family, a, ns, 0, 0).op;
  auto op = std::make_unique<LoweredCalls>();
  const int64_t ins = a.window.H * a.window.W * c.C, outs = a.window.OH * a.window.OW * c.M;
  for (int64_t n = 0; n < c.N; n += images) {
    a.window.N = std::min(images, c.N - n);
    op->calls.push_back(
        one(family, a, ns * static_cast<double>(a.window.N) / static_cast<double>(c.N), n * ins, n * outs));
  }
  return op;
}

// The same at once, of what lower_conv() does not take.
Status call(const KernelContext& ctx, const Conv& c, const PreparedConv& p, const float* x, bool planar,
            const float* bias, const float* residual, const Activation& act, float* y) {
  const Operand in[] = {memory_at(x), {}, memory_at(bias), memory_at(residual)}, out[] = {memory_at(y)};
  return run_lowered(*conv_calls(ctx.backend(), c, p, planar, act), in, out, ctx);
}

// The kernel reads planar operands through a padded copy, which must not outgrow the operand by much: pads
// and strides come from a file.
bool may_copy(const Conv& c) {
  const WindowShape w = kernel_window(c.w, c.N);
  const auto reach = [](int64_t out, int64_t stride, int64_t kernel, int64_t dilation) {
    return static_cast<double>(out - 1) * static_cast<double>(stride) +
           static_cast<double>(kernel - 1) * static_cast<double>(dilation) + 1;
  };
  return reach(w.OH, w.stride_h, w.KH, w.dilation_h) <= 2.0 * static_cast<double>(w.H) + 64 &&
         reach(w.OW, w.stride_w, w.KW, w.dilation_w) <= 2.0 * static_cast<double>(w.W) + 64;
}

// y (N, M, ...) = conv of x (N, C, ...), the layout of files.
Status call_planar(const KernelContext& ctx, const Conv& c, const PreparedConv& p, const float* x,
                   const float* bias, const Activation& act, float* y) {
  Tensor turned, out;
  const int64_t ins = c.w.in_size(), outs = c.w.out_size();
  const bool planar = !p.depthwise && may_copy(c);
  if (!planar) {
    OAR_ASSIGN(turned, ctx.allocate({c.N, ins, c.C}, DType::kF32));
    to_channels_last(ctx, x, mutable_elements<float>(turned), c.N, c.C, ins);
    x = elements<float>(turned);
  }
  OAR_ASSIGN(out, ctx.allocate({c.N, outs, c.M}, DType::kF32));
  OAR_RETURN_IF_ERROR(call(ctx, c, p, x, planar, bias, nullptr, act, mutable_elements<float>(out)));
  to_channels_first(ctx, elements<float>(out), y, c.N, c.M, outs);
  return ok_status();
}

// The same of three axes, by kernels of two: the frames that a result sees lie behind each other as channels,
// and those of pads are zeros. In pieces, so that copies stay small.
Status call_frames(const KernelContext& ctx, const Conv& c, const PreparedConv& p, const float* x,
                   const float* bias, const Activation& act, float* y) {
  constexpr int64_t kPieceFloats = 4 << 20;
  const Window& w = c.w;
  const int64_t depth = w.in[0], frames = w.out[0], seen = w.kernel[0];
  Conv two = c;
  two.C = c.C * seen;
  two.w.axes = 2;
  for (int k = 0; k < 2; ++k) {
    two.w.in[k] = w.in[k + 1], two.w.out[k] = w.out[k + 1], two.w.kernel[k] = w.kernel[k + 1];
    two.w.stride[k] = w.stride[k + 1], two.w.dilation[k] = w.dilation[k + 1];
    two.w.begin[k] = w.begin[k + 1], two.w.end[k] = w.end[k + 1];
  }
  const int64_t ins = two.w.in_size(), outs = two.w.out_size(), all = c.N * frames;
  const int64_t piece = std::clamp<int64_t>(kPieceFloats / (two.C * ins + c.M * outs), 1, all);
  OAR_ASSIGN(Tensor copies, ctx.allocate({piece, two.C, ins}, DType::kF32));
  OAR_ASSIGN(Tensor results, ctx.allocate({piece, c.M, outs}, DType::kF32));
  for (int64_t first = 0; first < all; first += piece) {
    two.N = std::min(piece, all - first);
    auto* const copy = mutable_elements<float>(copies);
    ctx.parallel(two.N * c.C, 0.5 * static_cast<double>(seen * ins), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t frame = first + i / c.C, channel = frame / frames * c.C + i % c.C;
        for (int64_t k = 0; k < seen; ++k) {
          const int64_t d = frame % frames * w.stride[0] + k * w.dilation[0] - w.begin[0];
          float* to = copy + (i * seen + k) * ins;
          if (d < 0 || d >= depth) std::fill_n(to, ins, 0.f);
          else std::copy_n(x + (channel * depth + d) * ins, ins, to);
        }
      }
    });
    auto* const result = mutable_elements<float>(results);
    OAR_RETURN_IF_ERROR(call_planar(ctx, two, p, copy, bias, act, result));
    ctx.parallel(two.N * c.M, 0.5 * static_cast<double>(outs), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t frame = first + i / c.M, plane = frame / frames * c.M + i % c.M;
        std::copy_n(result + i * outs, outs, y + (plane * frames + frame % frames) * outs);
      }
    });
  }
  return ok_status();
}

// What a residual of another shape means: activation(y + residual), broadcast.
Result<Tensor> add_residual(const EvalContext& ctx, const Tensor& y, const Tensor& residual,
                            const Activation& act) {
  OAR_RETURN_IF_ERROR(check_same_dtype(y, residual));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&y.shape(), &residual.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), dtype_of(y)));
  dispatch_float(dtype_of(y), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = typename Element<T>::Compute;
    zip_elements<T, T>(ctx, b, y, residual, out, [&](A u, A v) {
      return static_cast<A>(act.given() ? act.apply(static_cast<double>(u + v)) : static_cast<double>(u + v));
    });
  });
  return out;
}

}  // namespace

WindowShape kernel_window(const Window& w, int64_t N) {
  WindowShape k;
  k.N = N;
  const int last = w.axes - 1;
  k.W = w.in[last], k.OW = w.out[last], k.KW = w.kernel[last], k.stride_w = w.stride[last];
  k.dilation_w = w.dilation[last], k.pad_left = w.begin[last], k.pad_right = w.end[last];
  k.H = k.OH = 1;
  if (w.axes == 2) {
    k.H = w.in[0], k.OH = w.out[0], k.KH = w.kernel[0], k.stride_h = w.stride[0];
    k.dilation_h = w.dilation[0], k.pad_top = w.begin[0], k.pad_bottom = w.end[0];
  }
  return k;
}

Result<std::shared_ptr<const void>> prepare_conv(PrepareContext& ctx) {
  if (!ctx.constant(1)) return std::shared_ptr<const void>();
  const Tensor& w = *ctx.constant(1);
  const int64_t groups = ctx.node().attrs.get_int("group", 1);
  if (!dtype_is_float(dtype_of(w)) || dtype_of(w) == DType::kF64 || w.shape().rank() < 3 ||
      w.shape().rank() > 5 || groups < 1 || w.shape()[0] % groups != 0 || w.numel() == 0) {
    return std::shared_ptr<const void>();
  }
  const Shape filters = filters_of_kernel(w.shape());
  int64_t channels;
  if (__builtin_mul_overflow(filters[1], groups, &channels)) return std::shared_ptr<const void>();
  auto p = std::make_shared<PreparedConv>();
  const int64_t M = filters[0], C = filters[1];
  p->depthwise = is_depthwise(M, channels, groups);
  // On a device: what it has no kernels for is not sent there.
  const KernelFamily family = p->depthwise ? KernelFamily::kDepthwise : KernelFamily::kConv;
  const bool device = ctx.backend().memory() == MemoryKind::kDevice;
  if (ctx.backend().find_kernel({family, Format::f32()}) == nullptr ||
      (device && (!(w.format() == Format::f32()) || w.shape().rank() == 5)))
    return std::shared_ptr<const void>();
  // The passes have seen that the node fits (3x3, stride 1, dilation 1, one group, channels last).
  p->winograd = ctx.node().attrs.get_int("winograd") != 0 && winograd_kernel(ctx.backend()) != nullptr &&
                w.shape().rank() == 4 && w.shape()[2] == 3 && w.shape()[3] == 3 && groups == 1;
  const bool narrow = has_narrow_kernels(ctx.backend(), precision_of(ctx.node().attrs)) &&
                      w.shape().rank() == 4 && w.format() == Format::f32() && groups == 1 &&
                      is_nhwc(ctx.node().attrs) && ctx.node().attrs.get_int("planar_input") == 0;
  if (narrow) {
    const int64_t taps = extent(w.shape(), 2, 4);
    OAR_ASSIGN(p->narrow, prepare_narrow(ctx, {1, M, taps, C, C * taps, 1, taps}));
  } else if (p->winograd) {
    const int64_t width = ctx.backend().filter_panel();
    OAR_ASSIGN(p->packed,
               ctx.pack(1, "winograd", {winograd_filter_floats(M, C, width)}, DType::kF32, [&](Tensor& t) {
                 const Tensor f32 = must(as_f32(w));
                 pack_winograd(mutable_elements<float>(t), elements<float>(f32), M, C, width);
               }));
  } else {
    OAR_ASSIGN(p->packed,
               ctx.pack(1, cat("filters of ", groups, " groups"),
                        {packed_floats(ctx.backend(), filters, groups)}, DType::kF32, [&](Tensor& t) {
                          const Tensor f32 = must(as_f32(w));
                          pack(ctx.backend(), elements<float>(f32), filters, groups,
                               mutable_elements<float>(t));
                        }));
  }
  ctx.spend(1);
  return std::shared_ptr<const void>(std::move(p));
}

namespace {

// What evaluation and kernels begin with.
struct ConvCall {
  Tensor x, w, bias, residual;  // the last two may be left out
  Conv c;
  Activation act;
  bool nhwc = false, planar = false;  // how the result and how x lie
  Shape shape;                        // of the result
};
Result<ConvCall> conv_call(const EvalContext& ctx) {
  ConvCall o;
  OAR_ASSIGN(o.x, ctx.tensor(0));
  OAR_ASSIGN(o.w, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_same_dtype(o.x, o.w));
  if (!dtype_is_float(dtype_of(o.x))) return bad_dtype(o.x);
  o.nhwc = is_nhwc(ctx.attrs()), o.planar = !o.nhwc || ctx.attrs().get_int("planar_input") != 0;
  const Shape& x = o.x.shape();
  if (o.nhwc && x.rank() != 4) return invalid_argument("channels-last convolution needs four axes");
  OAR_ASSIGN(o.c, plan_conv(ctx.attrs(), o.planar ? x : channels_first(x), o.w.shape()));
  OAR_ASSIGN(o.act, activation_of(ctx.attrs()));
  if (ctx.has(2)) {
    OAR_ASSIGN(o.bias, ctx.tensor(2));
    OAR_RETURN_IF_ERROR(check_same_dtype(o.x, o.bias));
    if (o.bias.numel() != o.c.M) return invalid_argument("the bias needs one value per filter");
  }
  if (ctx.has(3)) { OAR_ASSIGN(o.residual, ctx.tensor(3)); }
  o.shape = o.nhwc ? channels_last(o.c.out) : o.c.out;
  return o;
}

}  // namespace

// Sums in double, with bias and activation rounded once.
Status conv(EvalContext& ctx) {
  OAR_ASSIGN(const ConvCall o, conv_call(ctx));
  const Conv& c = o.c;
  // The activation follows the residual.
  const Activation now = o.residual.defined() ? Activation() : o.act;
  OAR_ASSIGN(Tensor y, ctx.allocate(o.shape, dtype_of(o.x)));
  const bool known = dispatch_float(dtype_of(o.x), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto number = [](const T& v) { return static_cast<double>(Element<T>::load(v)); };
    const T *x = elements<T>(o.x), *w = elements<T>(o.w);
    const T* bias = o.bias.defined() ? elements<T>(o.bias) : nullptr;
    T* out = mutable_elements<T>(y);
    const int64_t per = c.C / c.groups, outs = c.w.out_size(), ins = c.w.in_size(),
                  kernel = c.w.kernel_size();
    const int64_t x_pixel = o.planar ? 1 : c.C, x_channel = o.planar ? ins : 1;
    const double cost = 3.0 * static_cast<double>(outs * per * kernel);
    ctx.parallel(c.N * c.M, cost, [&](int64_t begin, int64_t end) {
      for (int64_t nm = begin; nm < end; ++nm) {
        const int64_t n = nm / c.M, m = nm % c.M, g = m / (c.M / c.groups);
        const T* image = x + n * c.C * ins + g * per * x_channel;
        for (int64_t p = 0; p < outs; ++p) {
          double sum = bias != nullptr ? number(bias[m]) : 0;
          walk_window(c.w, p, [&](int64_t e, int64_t at) {
            for (int64_t k = 0; k < per; ++k)
              sum += number(image[at * x_pixel + k * x_channel]) * number(w[(m * per + k) * kernel + e]);
          });
          out[o.nhwc ? (n * outs + p) * c.M + m : nm * outs + p] =
              Element<T>::store(static_cast<typename Element<T>::Compute>(now.apply(sum)));
        }
      }
    });
  });
  if (!known) return bad_dtype(o.x);
  if (o.residual.defined()) { OAR_ASSIGN(y, add_residual(ctx, y, o.residual, o.act)); }
  ctx.set(0, std::move(y));
  return ok_status();
}

namespace {

// f32 of one to three axes, and 16-bit floats by way of it, in whatever layout.
Result<bool> conv_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const ConvCall o, conv_call(ctx));
  const Conv& c = o.c;
  const DType dtype = dtype_of(o.x);
  // Something to sum.
  if (dtype == DType::kF64 || c.w.axes > 3 || c.C == 0) return false;
  const bool fused = o.residual.defined() && o.nhwc && dtype == DType::kF32 &&
                     o.residual.shape() == o.shape && dtype_of(o.residual) == dtype;
  // The activation follows the residual: it waits where the kernel does not add it.
  const Activation now = o.residual.defined() && !fused ? Activation() : o.act;
  OAR_ASSIGN(const Tensor x, as_f32(ctx, o.x));
  Tensor y, bias;
  if (o.bias.defined()) { OAR_ASSIGN(bias, as_f32(ctx, o.bias)); }
  const float* const b = bias.defined() ? elements<float>(bias) : nullptr;
  if (fused) {
    OAR_ASSIGN(y, ctx.allocate_over(3, o.residual, o.shape, DType::kF32));
  } else {
    OAR_ASSIGN(y, ctx.allocate(o.shape, DType::kF32));
  }
  float* const out = mutable_elements<float>(y);
  PreparedConv own;
  const auto* prepared = ctx.prepared<PreparedConv>();
  if (!prepared) {
    OAR_ASSIGN(const Tensor w, as_f32(ctx, o.w));
    const Shape filters = filters_of_kernel(w.shape());
    own.depthwise = is_depthwise(c.M, filters[1] * c.groups, c.groups);
    OAR_ASSIGN(own.packed, ctx.allocate({packed_floats(ctx.backend(), filters, c.groups)}, DType::kF32));
    if (!ctx.options().sizing) {
      pack(ctx.backend(), elements<float>(w), filters, c.groups, mutable_elements<float>(own.packed));
    }
    prepared = &own;
  }
  const float* const added = fused ? elements<float>(o.residual) : nullptr;
  if (o.shape.numel() == 0) {
    // No image or no pixel: nothing to call.
  } else if (c.w.axes == 3) {
    OAR_RETURN_IF_ERROR(call_frames(ctx, c, *prepared, elements<float>(x), b, now, out));
  } else if (!o.nhwc) {
    OAR_RETURN_IF_ERROR(call_planar(ctx, c, *prepared, elements<float>(x), b, now, out));
  } else if (o.planar && (prepared->depthwise || !may_copy(c))) {
    OAR_ASSIGN(Tensor turned, ctx.allocate(channels_last(x.shape()), DType::kF32));
    to_channels_last(ctx, elements<float>(x), mutable_elements<float>(turned), c.N, c.C, c.w.in_size());
    OAR_RETURN_IF_ERROR(call(ctx, c, *prepared, elements<float>(turned), false, b, added, now, out));
  } else {
    OAR_RETURN_IF_ERROR(call(ctx, c, *prepared, elements<float>(x), o.planar, b, added, now, out));
  }
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  if (o.residual.defined() && !fused) { OAR_ASSIGN(y, add_residual(ctx, y, o.residual, o.act)); }
  ctx.set(0, std::move(y));
  return true;
}

// f32 images whose results' channels lie together, with constant filters. Everything else is evaluated.
Lowered lower_conv(LowerContext& ctx) {
  const auto* p = static_cast<const PreparedConv*>(ctx.prepared);
  const Attrs& attrs = ctx.node.attrs;
  const ValueInfo& x = ctx.operands[0];
  if (!is_nhwc(attrs) || !is_f32(x) || x.shape.rank() != 4) return not_lowered();
  const bool planar = attrs.get_int("planar_input") != 0;
  const auto conv = plan_conv(attrs, planar ? x.shape : channels_first(x.shape), ctx.operands[1].shape);
  if (!conv.ok() || conv->C == 0 || conv->out.numel() == 0) return not_lowered();
  const Conv& c = *conv;
  const Shape shape = channels_last(c.out);
  const bool bias = ctx.given(2), residual = ctx.given(3);
  if (bias && (!is_f32(ctx.operands[2]) || ctx.operands[2].shape.numel() != c.M)) return not_lowered();
  if (residual && (!is_f32(ctx.operands[3]) || !(ctx.operands[3].shape == shape))) return not_lowered();
  OAR_ASSIGN(const Activation act, activation_of(attrs));
  if (p == nullptr || (planar && (p->depthwise || !may_copy(c)))) return not_lowered();
  std::unique_ptr<LoweredOp> op = conv_calls(ctx.backend, c, *p, planar, act);
  op->overwrites = residual ? 1 << kConvResidual : 0;
  ctx.results->assign(1, {Format::f32(), shape, true});
  return op;
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
extern const OpDef op_conv = {.name = "conv",
                              .vjp = gradient::conv,
                              .evaluate = tensor::conv,
                              .by_kernels = tensor::conv_by_kernels,
                              .prepare = tensor::prepare_conv,
                              .lower = tensor::lower_conv};
}  // namespace oar
