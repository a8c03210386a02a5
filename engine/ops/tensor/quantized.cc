// Layers of 8-bit integers that the pass fuse_quantized makes of what files spell as DequantizeLinear, an op
// of floats and QuantizeLinear, or as QLinearConv and QLinearMatMul: exact sums of integers, scaled and
// rounded once (kernels/quantized_conv.h).
#include <bit>
#include <limits>

#include "engine/ops/tensor/conv.h"
#include "engine/ops/tensor/quantized.h"
#include "kernels/integer_conv.h"

namespace oar::tensor {
namespace {

// The constants of a layer for the kernel, in memory of the backend; undefined where there are none.
struct PreparedQuantized {
  Tensor packed;        // bytes
  Tensor sums, bias;    // [M] of i32
  Tensor scale, shift;  // [M] of f32
  Tensor zeros;         // [M] of i32: of weights
  Shape weight;         // (M, C, KH, KW), or (M, K) of a matrix
  bool depthwise = false;
};

bool has_integer_kernels(const Backend& backend) { return backend.find_kernel(int8_conv_key()) != nullptr; }

// Which operands of a layer are what: `other` is the second side of a sum, or a residual. A run brings its
// own scale and zero point of x instead of attributes.
constexpr uint8_t kLayerX = 0, kLayerOther = 4, kRunScale = 5, kRunZero = 6, kLayerZeros = 7;

// constants: x, w, w_scale, bias, and the weights' zero points.
Result<std::shared_ptr<const void>> prepare_quantized(PrepareContext& ctx) {
  if (!has_integer_kernels(ctx.backend())) return std::shared_ptr<const void>();
  const Node& node = ctx.node();
  const Tensor *w = ctx.constant(1), *ws = ctx.constant(2), *bias = ctx.constant(3),
               *zeros = ctx.constant(kLayerZeros);
  const bool matrix = node.is("quantized_linear"), turned = matrix && node.attrs.get_int("input_major") != 0;
  if (!w || dtype_of(*w) != DType::kI8 || w->shape().rank() != (matrix ? 2 : 4) || !ws ||
      dtype_of(*ws) != DType::kF32) {
    return invalid_argument("a quantized layer needs a constant i8 weight and its f32 scales");
  }
  auto p = std::make_shared<PreparedQuantized>();
  const Shape& s = w->shape();
  p->weight = turned ? Shape({s[1], s[0]}) : s;
  const int64_t M = p->weight[0], C = p->weight[1], taps = extent(p->weight, 2, p->weight.rank());
  if ((ws->numel() != 1 && ws->numel() != M) || (bias && bias->numel() != M) ||
      (bias && dtype_of(*bias) != DType::kI32 && dtype_of(*bias) != DType::kF32)) {
    return invalid_argument("scales or bias of a quantized layer do not match its weight");
  }
  if (ctx.given(kLayerZeros) &&
      (!zeros || dtype_of(*zeros) != DType::kI8 || (zeros->numel() != 1 && zeros->numel() != M)))
    return invalid_argument("zero points of weights are constants of i8, one for all or one per filter");
  const int64_t groups = matrix ? 1 : node.attrs.get_int("group", 1);
  p->depthwise = groups != 1;
  if (p->depthwise && (C != 1 || groups != M))
    return invalid_argument("a quantized convolution has one group, or one per channel with one filter each");
  const auto copy = [](Tensor& to, const Tensor& made) {
    std::memcpy(to.mutable_data(), made.data(), made.bytes());
  };
  const auto weights = [&] { return elements<int8_t>(*ctx.constant(1)); };
  if (p->depthwise) {
    OAR_ASSIGN(p->packed, ctx.pack(1, "i8 of channels", {taps, M}, DType::kI8, [&](Tensor& to) {
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t t = 0; t < taps; ++t) mutable_elements<int8_t>(to)[t * M + m] = weights()[m * taps + t];
      }
    }));
  } else {
    // One packing makes both; each is asked for by name, so that a cache can hold it.
    Tensor packed, sums;
    const auto fill = [&] {
      if (packed.defined()) return;
      packed = must(allocate_elements({quantized_filter_bytes(M, taps * C)}, DType::kI8));
      sums = must(allocate_elements({M}, DType::kI32));
      pack_quantized_filters(mutable_elements<int8_t>(packed), mutable_elements<int32_t>(sums), weights(), M,
                             taps, C, turned ? 1 : C * taps, 1, turned ? M : taps);
    };
    const std::string layout = turned ? "i8 of columns" : "i8";
    OAR_ASSIGN(p->packed, ctx.pack(1, layout, {quantized_filter_bytes(M, taps * C)}, DType::kI8,
                                   [&](Tensor& t) { fill(), copy(t, packed); }));
    OAR_ASSIGN(p->sums,
               ctx.pack(1, layout + " sums", {M}, DType::kI32, [&](Tensor& t) { fill(), copy(t, sums); }));
  }
  // Behind an activation the real value is needed first (kernels/quantized_conv.h).
  const bool units = y_dtype(node.attrs) != DType::kF32 && !node.attrs.has("activation");
  const double sx = node.attrs.get_float("x_scale", 1), sy = units ? node.attrs.get_float("y_scale", 1) : 1;
  // Two layers may share a constant, and not the scales beside it.
  const std::string by = cat(std::bit_cast<uint64_t>(sx), " ", std::bit_cast<uint64_t>(sy));
  OAR_ASSIGN(p->scale, ctx.pack(2, cat("scales of ", M, " by ", by), {M}, DType::kF32, [&](Tensor& t) {
    const Tensor& from = *ctx.constant(2);
    for (int64_t m = 0; m < M; ++m) {
      const auto sw = static_cast<double>(elements<float>(from)[from.numel() == 1 ? 0 : m]);
      mutable_elements<float>(t)[m] = static_cast<float>(sx * sw / sy);
    }
  }));
  if (bias && dtype_of(*bias) == DType::kI32) {
    OAR_ASSIGN(p->bias, ctx.pack(3, "bias", {M}, DType::kI32, [&](Tensor& t) { copy(t, *ctx.constant(3)); }));
  } else if (bias) {
    OAR_ASSIGN(p->shift, ctx.pack(3, cat("shift by ", by), {M}, DType::kF32, [&](Tensor& t) {
      for (int64_t m = 0; m < M; ++m)
        mutable_elements<float>(t)[m] =
            static_cast<float>(static_cast<double>(elements<float>(*ctx.constant(3))[m]) / sy);
    }));
  }
  if (zeros) {
    OAR_ASSIGN(p->zeros, ctx.pack(kLayerZeros, cat("zeros of ", M), {M}, DType::kI32, [&](Tensor& t) {
      const Tensor& from = *ctx.constant(kLayerZeros);
      for (int64_t m = 0; m < M; ++m)
        mutable_elements<int32_t>(t)[m] = elements<int8_t>(from)[from.numel() == 1 ? 0 : m];
    }));
    ctx.spend(kLayerZeros);
  }
  for (size_t operand = 1; operand <= 3; ++operand) ctx.spend(operand);
  return std::shared_ptr<const void>(std::move(p));
}

// What conv and dense share: the layer's numbers into the kernel's arguments.
Status set_layer(QuantizedConvArgs& a, const PreparedQuantized& p, const Attrs& attrs) {
  const auto given = [](const Tensor& t, auto* to) {
    return t.defined() ? static_cast<decltype(to)>(t.data()) : nullptr;
  };
  a.w = given(p.packed, a.w), a.w_sums = given(p.sums, a.w_sums);
  a.depthwise = p.depthwise;
  a.bias = given(p.bias, a.bias);
  a.scale = given(p.scale, a.scale), a.shift = given(p.shift, a.shift);
  a.x_zero = static_cast<int32_t>(attrs.get_int("x_zero")),
  a.y_zero = static_cast<int32_t>(attrs.get_int("y_zero"));
  const DType to = y_dtype(attrs);
  a.out_type = to == DType::kI8   ? QuantizedOut::kI8
               : to == DType::kU8 ? QuantizedOut::kU8
                                  : QuantizedOut::kF32;
  // Bounds of an activation hold for the rounded value as well as for the value: rounding keeps order.
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double low = attrs.get_float("low", -kInfinity), high = attrs.get_float("high", kInfinity);
  if (to != DType::kF32) {
    const double sy = attrs.get_float("y_scale", 1), zero = a.y_zero, least = to == DType::kI8 ? -128 : 0;
    low = std::clamp(std::nearbyint(low / sy), least - zero, least + 255 - zero);
    high = std::clamp(std::nearbyint(high / sy), least - zero, least + 255 - zero);
  }
  a.low = static_cast<float>(low), a.high = static_cast<float>(high);
  OAR_ASSIGN(const Activation act, activation_of(attrs));
  a.epilogue = act.kind, a.alpha = act.alpha, a.beta = act.beta;
  a.y_inverse = static_cast<float>(1 / attrs.get_float("y_scale", 1));
  return ok_status();
}

// The call of a layer, whose arguments are whole but for what the node brings. `w_zeros` may be null.
std::unique_ptr<LoweredOp> quantized_call(const Backend& backend, const QuantizedConvArgs& a,
                                          const int32_t* w_zeros, bool run, bool sum) {
  const WindowShape& w = a.window;
  const auto pixels = static_cast<double>(w.N * w.OH * w.OW);
  const auto weights = static_cast<double>(a.M * w.KH * w.KW * (a.depthwise ? 1 : a.C));
  const double nanoseconds = product_ns(pixels, weights, a.depthwise ? 0.1 : 0.005, 1);
  const Kernel& kernel = kernel_of(backend, int8_conv_key());
  const auto fill = [sum](QuantizedConvArgs& args, const Operand* in, const Operand* out) {
    args.out = out[0].data, args.x = in[kLayerX].as<const uint8_t>();
    if (sum) args.sum.other = in[kLayerOther].as<const uint8_t>();
    else args.residual = in[kLayerOther].as<const float>();
  };
  if (w_zeros == nullptr && !run) return part_call(kernel, a, nanoseconds, {}, {}, fill).op;
  RunConvArgs all;
  static_cast<QuantizedConvArgs&>(all) = a;
  all.size = sizeof all;
  all.w_zeros = w_zeros;
  return part_call(kernel, all, nanoseconds, {}, {},
                   [fill](RunConvArgs& args, const Operand* in, const Operand* out) {
                     fill(args, in, out);
                     args.run_scale = in[kRunScale].as<const float>();
                     args.run_zero = in[kRunZero].as<const uint8_t>();
                   })
      .op;
}
// The same at once, of what is not lowered.
struct QuantizedOperands {
  Tensor x, other, run_scale, run_zero;  // all but x may be undefined
};
Status run_quantized(const KernelContext& ctx, const QuantizedConvArgs& a, const int32_t* w_zeros, bool sum,
                     const QuantizedOperands& operands, const Tensor& y) {
  if (y.numel() == 0 || a.C == 0) return ok_status();
  Operand in[kRunZero + 1];
  const auto put = [&](size_t at, const Tensor& t) {
    if (t.defined()) in[at] = memory_at(t.data());
  };
  put(kLayerX, operands.x), put(kLayerOther, operands.other);
  put(kRunScale, operands.run_scale), put(kRunZero, operands.run_zero);
  const Operand out[] = {memory_at(y.data())};
  return run_lowered(*quantized_call(ctx.backend(), a, w_zeros, operands.run_scale.defined(), sum), in, out,
                     ctx);
}

// One side of a sum: its real value is (q - zero) scale.
struct Side {
  float scale, zero;
};

// How the sum is bounded and rounded.
struct Rounding {
  float scale, low, high;
  int32_t zero;
};

template <class A, class B, class Y>
void add_quantized(const EvalContext& ctx, const Broadcast& shape, const Tensor& a, const Tensor& b,
                   Tensor& y, Side sa, Side sb, Rounding to) {
  constexpr float kRound = 12582912.f;  // 1.5 2^23: added and taken, rounds half to even what is below 2^22
  const auto one = [=](float p, float q) {
    float t = ((p - sa.zero) * sa.scale + (q - sb.zero) * sb.scale) / to.scale;
    t = t > to.low ? t : to.low;
    t = t < to.high ? t : to.high;
    return static_cast<Y>(static_cast<int32_t>((t + kRound) - kRound) + to.zero);
  };
  ctx.parallel(shape.numel(), 0.3, [&](int64_t begin, int64_t end) {
    shape.runs(begin, end, [&](int64_t at, const auto& from, int64_t n, const auto& step) {
      const A* pa = elements<A>(a) + from[0];
      const B* pb = elements<B>(b) + from[1];
      Y* py = mutable_elements<Y>(y) + at;
      if (step[0] == 1 && step[1] == 1) {
        for (int64_t k = 0; k < n; ++k) py[k] = one(static_cast<float>(pa[k]), static_cast<float>(pb[k]));
      } else {
        for (int64_t k = 0; k < n; ++k)
          py[k] = one(static_cast<float>(pa[k * step[0]]), static_cast<float>(pb[k * step[1]]));
      }
    });
  });
}

// Operation by operation as its parts would be, in f32.
Result<Tensor> added(const EvalContext& ctx, const Attrs& attrs, const Tensor& a, const Tensor& b) {
  for (const Tensor* t : {&a, &b}) {
    if (dtype_of(*t) != DType::kU8 && dtype_of(*t) != DType::kI8) return bad_dtype(*t);
  }
  const auto side = [&](const char* scale, const char* zero) {
    return Side{static_cast<float>(attrs.get_float(scale, 1)), static_cast<float>(attrs.get_int(zero))};
  };
  const Side sa = side("a_scale", "a_zero"), sb = side("b_scale", "b_zero");
  QuantizedConvArgs bounds;
  OAR_RETURN_IF_ERROR(set_layer(bounds, PreparedQuantized(), attrs));
  const DType to = y_dtype(attrs);
  if (to == DType::kF32) return invalid_argument("a quantized sum is u8 or i8");
  OAR_ASSIGN(const Broadcast shape, Broadcast::make({&a.shape(), &b.shape()}));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape.shape(), to));
  const Rounding rounding{static_cast<float>(attrs.get_float("y_scale", 1)), bounds.low, bounds.high,
                          bounds.y_zero};
  const auto run = [&]<class A, class B, class Y>() {
    add_quantized<A, B, Y>(ctx, shape, a, b, y, sa, sb, rounding);
  };
  const auto second = [&]<class A, class B>() {
    if (to == DType::kU8) run.template operator()<A, B, uint8_t>();
    else run.template operator()<A, B, int8_t>();
  };
  const auto first = [&]<class A>() {
    if (dtype_of(b) == DType::kU8) second.template operator()<A, uint8_t>();
    else second.template operator()<A, int8_t>();
  };
  if (dtype_of(a) == DType::kU8) first.template operator()<uint8_t>();
  else first.template operator()<int8_t>();
  return y;
}

Result<bool> add_by_loop(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor a, ctx.tensor(0));
  OAR_ASSIGN(const Tensor b, ctx.tensor(1));
  OAR_ASSIGN(Tensor y, added(ctx, ctx.attrs(), a, b));
  ctx.set(0, std::move(y));
  return true;
}

Status set_sum(QuantizedConvArgs& a, const Attrs& sum, bool other_signed) {
  QuantizedConvArgs bounds;
  OAR_RETURN_IF_ERROR(set_layer(bounds, PreparedQuantized(), sum));
  a.sum.other_signed = other_signed;
  a.sum.scale = static_cast<float>(sum.get_float("a_scale", 1));
  a.sum.other_scale = static_cast<float>(sum.get_float("b_scale", 1));
  a.sum.other_zero = static_cast<float>(sum.get_int("b_zero"));
  a.sum.sum_scale = static_cast<float>(sum.get_float("y_scale", 1));
  a.sum.low = bounds.low, a.sum.high = bounds.high, a.sum.zero = bounds.y_zero;
  a.out_type = bounds.out_type;
  return ok_status();
}

// A device adds as a layer of one channel whose filter is 1, with scale 1: what it adds is the other operand.
Lowered lower_quantized_add(LowerContext& ctx) {
  const ValueInfo &a = ctx.operands[0], &b = ctx.operands[1];
  if (ctx.backend.memory() != MemoryKind::kDevice || !has_integer_kernels(ctx.backend) || !is_byte(a) ||
      !is_byte(b) || !(a.shape == b.shape) || a.shape.numel() == 0)
    return not_lowered();
  const Attrs& attrs = ctx.node.attrs;
  QuantizedConvArgs args;
  OAR_RETURN_IF_ERROR(set_sum(args, attrs, b.format.dtype() == DType::kI8));
  if (args.out_type == QuantizedOut::kF32) return not_lowered();
  const auto one = [&](const char* key, DType type, const auto& value) {
    return ctx.weights.get(key, [&]() -> Result<StoredWeight> {
      OAR_ASSIGN(Tensor t, allocate_elements({1}, type));
      std::memcpy(t.mutable_data(), &value, sizeof value);
      return ctx.weights.place(t, true);
    });
  };
  OAR_ASSIGN(const StoredWeight* filter, one("a filter of 1", DType::kI8, int8_t{1}));
  OAR_ASSIGN(const StoredWeight* scale, one("a scale of 1", DType::kF32, 1.f));
  args.w = static_cast<const int8_t*>(filter->data()), args.scale = static_cast<const float*>(scale->data());
  args.window.N = args.window.H = args.window.OH = 1;
  args.window.W = args.window.OW = a.shape.numel();
  args.C = args.M = 1, args.depthwise = true;
  args.x_zero = static_cast<int32_t>(attrs.get_int("a_zero"));
  args.x_signed = a.format.dtype() == DType::kI8;
  args.low = -255, args.high = 255;  // no difference of bytes is beyond
  ctx.results->assign(1, {Format::of(y_dtype(attrs)), a.shape, true});
  return part_call(kernel_of(ctx.backend, int8_conv_key()), args, 0, {}, {},
                   [](QuantizedConvArgs& q, const Operand* in, const Operand* out) {
                     q.out = out[0].data, q.x = in[0].as<const uint8_t>();
                     q.sum.other = in[1].as<const uint8_t>();
                   })
      .op;
}

// The arguments of a call but for what the node brings.
Result<QuantizedConvArgs> conv_args(const PreparedQuantized& p, const Conv& c, const Attrs& attrs, DType x) {
  QuantizedConvArgs a;
  a.window = kernel_window(c.w, c.N);
  a.C = c.C, a.M = c.M, a.x_signed = x == DType::kI8;
  OAR_RETURN_IF_ERROR(set_layer(a, p, attrs));
  return a;
}
Result<QuantizedConvArgs> product_args(const PreparedQuantized& p, int64_t rows, const Attrs& attrs,
                                       DType x) {
  QuantizedConvArgs a;
  a.window.N = a.window.H = a.window.OH = 1;
  a.window.W = a.window.OW = rows;
  a.C = p.weight[1], a.M = p.weight[0], a.x_signed = x == DType::kI8;
  OAR_RETURN_IF_ERROR(set_layer(a, p, attrs));
  return a;
}

const int32_t* zeros_of(const PreparedQuantized& p) {
  return p.zeros.defined() ? elements<int32_t>(p.zeros) : nullptr;
}

// What a layer's node brings. An operand x that no kernel takes is an error; of scales of a run that none
// takes nothing comes.
Result<std::optional<QuantizedOperands>> operands_of(const KernelContext& ctx) {
  QuantizedOperands in;
  OAR_ASSIGN(in.x, ctx.tensor(kLayerX));
  if (!is_byte(in.x)) return bad_dtype(in.x);
  if (ctx.has(kLayerOther)) { OAR_ASSIGN(in.other, ctx.tensor(kLayerOther)); }
  if (ctx.has(kRunScale) != ctx.has(kRunZero) || (ctx.has(kRunScale) && y_dtype(ctx.attrs()) != DType::kF32))
    return invalid_argument("a scale of the run goes with a zero point and an f32 result");
  if (!ctx.has(kRunScale)) return std::optional(in);
  OAR_ASSIGN(in.run_scale, ctx.tensor(kRunScale));
  OAR_ASSIGN(in.run_zero, ctx.tensor(kRunZero));
  const bool fit = in.run_scale.numel() == 1 && dtype_of(in.run_scale) == DType::kF32 &&
                   in.run_zero.numel() == 1 && dtype_of(in.run_zero) == dtype_of(in.x);
  return fit ? std::optional(in) : std::nullopt;
}

// y + residual, broadcast, and then the bounds that `a` had.
Result<Tensor> with_residual(const EvalContext& ctx, const Tensor& y, const Tensor& residual, float low,
                             float high) {
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&y.shape(), &residual.shape()}));
  OAR_ASSIGN(Tensor sum, ctx.allocate(b.shape(), DType::kF32));
  zip_elements<float, float>(ctx, b, y, residual, sum, [low, high](float u, float v) {
    const float t = u + v;
    return t < low ? low : t > high ? high : t;  // NaN stays
  });
  return sum;
}

// A layer at once. `y` is where its call writes: pixels with channels together, f32 or bytes; `laid` turns
// that where it is wanted otherwise. A residual, or the second side of a sum, is `other`; it goes into the
// call where it lies as the result does, else it is added behind it, where it may broadcast.
Result<bool> layer_by_kernel(KernelContext& ctx, QuantizedConvArgs a, const PreparedQuantized& p,
                             QuantizedOperands in, const Shape& shape, bool as_it_lies,
                             const std::function<Result<Tensor>(Tensor)>& laid) {
  const Tensor other = in.other;
  const Attrs& attrs = ctx.attrs();
  const DType to = y_dtype(attrs);
  const bool real = to == DType::kF32;
  Attrs sum;  // of quantized_add
  if (other.defined() && !real) sum = sum_attrs(attrs);
  if (other.defined() && real && dtype_of(other) != DType::kF32) return bad_dtype(other);
  const bool fused = other.defined() && as_it_lies && other.shape() == shape &&
                     (real || (is_byte(other) && y_dtype(sum) != DType::kF32));
  if (!fused) in.other = Tensor();
  const float low = a.low, high = a.high;
  Tensor y;
  if (fused) {
    OAR_ASSIGN(y, ctx.allocate_over(kLayerOther, other, shape, real ? to : y_dtype(sum)));
    if (!real) OAR_RETURN_IF_ERROR(set_sum(a, sum, dtype_of(other) == DType::kI8));
  } else {
    OAR_ASSIGN(y, ctx.allocate(shape, to));
    if (other.defined() && real) {
      if (a.epilogue != Epilogue::kNone) return false;
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      a.low = -kInfinity, a.high = kInfinity;
    }
  }
  OAR_RETURN_IF_ERROR(run_quantized(ctx, a, zeros_of(p), fused && !real, in, y));
  OAR_ASSIGN(y, laid(std::move(y)));
  if (other.defined() && !fused && real) {
    OAR_ASSIGN(y, with_residual(ctx, y, other, low, high));
  } else if (other.defined() && !fused) {
    OAR_ASSIGN(y, added(ctx, sum, y, other));
  }
  ctx.set(0, std::move(y));
  return true;
}

// In whatever layout.
Result<bool> conv_by_kernel(KernelContext& ctx) {
  const auto* p = ctx.prepared<PreparedQuantized>();
  if (!p) return false;
  OAR_ASSIGN(auto in, operands_of(ctx));
  if (!in) return false;
  const DType bytes = dtype_of(in->x);
  if (in->x.shape().rank() != 4) return invalid_argument("a quantized convolution needs four axes");
  const bool nhwc = is_nhwc(ctx.attrs());
  OAR_ASSIGN(const Conv c,
             plan_conv(ctx.attrs(), nhwc ? channels_first(in->x.shape()) : in->x.shape(), p->weight));
  if (!nhwc) {
    OAR_ASSIGN(Tensor turned, ctx.allocate(channels_last(in->x.shape()), bytes));
    turn_bytes(ctx, elements<uint8_t>(in->x), mutable_elements<uint8_t>(turned), c.N, c.C, c.w.in_size());
    in->x = std::move(turned);
  }
  OAR_ASSIGN(const QuantizedConvArgs a, conv_args(*p, c, ctx.attrs(), bytes));
  return layer_by_kernel(ctx, a, *p, *in, channels_last(c.out), nhwc, [&](Tensor y) -> Result<Tensor> {
    if (nhwc) return y;
    OAR_ASSIGN(Tensor turned, ctx.allocate(c.out, dtype_of(y)));
    if (dtype_of(y) == DType::kF32)
      to_channels_first(ctx, elements<float>(y), mutable_elements<float>(turned), c.N, c.M, c.w.out_size());
    else turn_bytes(ctx, elements<uint8_t>(y), mutable_elements<uint8_t>(turned), c.N, c.w.out_size(), c.M);
    return turned;
  });
}

Result<bool> linear_by_kernel(KernelContext& ctx) {
  const auto* p = ctx.prepared<PreparedQuantized>();
  if (!p) return false;
  OAR_ASSIGN(const auto in, operands_of(ctx));
  if (!in) return false;
  const Shape& x = in->x.shape();
  const int rank = x.rank();
  const int64_t M = p->weight[0], K = p->weight[1];
  if (rank < 1 || x[rank - 1] != K || (ctx.attrs().get_int("matrix") != 0 && rank != 2))
    return invalid_argument(cat("inner extents differ: ", x.to_string(), " . [", K, ", ", M, "]"));
  std::vector<int64_t> dims = dims_of(x);
  dims.back() = M;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(const QuantizedConvArgs a,
             product_args(*p, K > 0 ? x.numel() / K : 0, ctx.attrs(), dtype_of(in->x)));
  return layer_by_kernel(ctx, a, *p, *in, shape, true, [](Tensor y) -> Result<Tensor> { return y; });
}

// The call whose result 0 has `shape`, where a kernel takes what else the node brings.
Lowered quantized_result(LowerContext& ctx, QuantizedConvArgs a, const Shape& shape) {
  const auto& p = *static_cast<const PreparedQuantized*>(ctx.prepared);
  const Attrs& attrs = ctx.node.attrs;
  const bool run = ctx.given(kRunScale), real = y_dtype(attrs) == DType::kF32;
  const bool on_device = ctx.backend.memory() == MemoryKind::kDevice;
  if (run != ctx.given(kRunZero) || (on_device && (run || ctx.given(kLayerZeros)))) return not_lowered();
  if (run) {
    const ValueInfo &scale = ctx.operands[kRunScale], &zero = ctx.operands[kRunZero];
    if (!real || !is_f32(scale) || scale.shape.numel() != 1 || zero.format != ctx.operands[kLayerX].format ||
        zero.shape.numel() != 1)
      return not_lowered();
  }
  DType type = y_dtype(attrs);
  const bool sum = ctx.given(kLayerOther) && !real;
  if (ctx.given(kLayerOther)) {
    const ValueInfo& other = ctx.operands[kLayerOther];
    if (!(other.shape == shape) || !(real ? is_f32(other) : is_byte(other))) return not_lowered();
    const Attrs of_sum = sum ? sum_attrs(attrs) : Attrs();
    if (sum && y_dtype(of_sum) == DType::kF32) return not_lowered();
    if (sum) OAR_RETURN_IF_ERROR(set_sum(a, of_sum, other.format.dtype() == DType::kI8));
    if (sum) type = y_dtype(of_sum);
  }
  std::unique_ptr<LoweredOp> op = quantized_call(ctx.backend, a, zeros_of(p), run, sum);
  op->overwrites = ctx.given(kLayerOther) ? 1 << kLayerOther : 0;
  ctx.results->assign(1, {Format::of(type), shape, true});
  return op;
}

// Images whose channels lie together.
Lowered lower_quantized_conv(LowerContext& ctx) {
  const auto* p = static_cast<const PreparedQuantized*>(ctx.prepared);
  const Attrs& attrs = ctx.node.attrs;
  const ValueInfo& x = ctx.operands[kLayerX];
  if (p == nullptr || !is_nhwc(attrs) || !is_byte(x) || x.shape.rank() != 4) return not_lowered();
  const auto conv = plan_conv(attrs, channels_first(x.shape), p->weight);
  if (!conv.ok() || conv->C == 0 || conv->out.numel() == 0) return not_lowered();
  OAR_ASSIGN(const QuantizedConvArgs a, conv_args(*p, *conv, attrs, x.format.dtype()));
  return quantized_result(ctx, a, channels_last(conv->out));
}

Lowered lower_quantized_linear(LowerContext& ctx) {
  const auto* p = static_cast<const PreparedQuantized*>(ctx.prepared);
  const ValueInfo& x = ctx.operands[kLayerX];
  const int rank = x.shape.rank();
  if (p == nullptr || !is_byte(x) || rank < 1 || x.shape.numel() == 0 || p->weight[0] == 0 ||
      x.shape[rank - 1] != p->weight[1] || (ctx.node.attrs.get_int("matrix") != 0 && rank != 2))
    return not_lowered();
  std::vector<int64_t> dims = dims_of(x.shape);
  dims.back() = p->weight[0];
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(const QuantizedConvArgs a,
             product_args(*p, x.shape.numel() / p->weight[1], ctx.node.attrs, x.format.dtype()));
  return quantized_result(ctx, a, shape);
}

}  // namespace

Attrs sum_attrs(const Attrs& attrs) {
  Attrs out;
  for (const auto& [name, value] : attrs.items()) {
    if (name.starts_with("sum.")) out.set(name.substr(4), value);
  }
  return out;
}

namespace {

// Null where operand i of zero points is computed, empty where it is left out.
const Tensor* zero_of(const PrepareContext& ctx, size_t i) {
  static const Tensor none = must(allocate_elements({0}, DType::kI8));
  return ctx.given(i) ? ctx.constant(i) : &none;
}

// What is taken from each weight, so that it is i8.
int32_t shift_of(const Tensor& w) { return dtype_of(w) == DType::kU8 ? 128 : 0; }

// One filter after the other.
std::vector<int8_t> shifted_filters(const Tensor& w, const IntegerFilters& f) {
  const int64_t K = f.taps * f.C;
  const int32_t shift = shift_of(w);
  std::vector<int8_t> filters(static_cast<size_t>(f.M * K));
  for (int64_t m = 0; m < f.M; ++m) {
    for (int64_t t = 0; t < f.taps; ++t) {
      for (int64_t c = 0; c < f.C; ++c) {
        const int64_t at = m * f.stride_m + t * f.stride_tap + c * f.stride_c;
        const int32_t v = shift != 0 ? elements<uint8_t>(w)[at] : elements<int8_t>(w)[at];
        filters[static_cast<size_t>((m * f.taps + t) * f.C + c)] = static_cast<int8_t>(v - shift);
      }
    }
  }
  return filters;
}

// The same weights for kernels/integer_conv.h, in memory of the device.
struct DeviceIntegers {
  Tensor packed, sums, zeros;  // zeros: undefined where all are 0
  int64_t M = 0;
};

Result<std::shared_ptr<const void>> prepare_device_integers(PrepareContext& ctx, size_t operand, size_t zero,
                                                            const IntegerFilters& f) {
  const Tensor *w = ctx.constant(operand), *z = zero_of(ctx, zero);
  if (ctx.backend().find_kernel(integer_conv_key()) == nullptr || z == nullptr ||
      (z->numel() > 1 && z->numel() != f.M) || (z->numel() > 0 && dtype_of(*z) != dtype_of(*w)))
    return std::shared_ptr<const void>();
  auto p = std::make_shared<DeviceIntegers>();
  p->M = f.M;
  const int64_t K = f.taps * f.C;
  // One packing makes both; each is asked for by name, so that a cache can hold it.
  Tensor packed, sums;
  const auto fill = [&](Tensor& to, const Tensor& made) {
    if (!packed.defined()) {
      packed = must(allocate_elements({quantized_filter_bytes(f.M, K)}, DType::kI8));
      sums = must(allocate_elements({f.M}, DType::kI32));
      const std::vector<int8_t> filters = shifted_filters(*ctx.constant(operand), f);
      pack_quantized_filters(mutable_elements<int8_t>(packed), mutable_elements<int32_t>(sums),
                             filters.data(), f.M, f.taps, f.C, K, f.C, 1);
    }
    std::memcpy(to.mutable_data(), made.data(), made.bytes());
  };
  const std::string layout = cat("integers ", f.taps, " ", f.stride_m, " ", f.stride_c);
  OAR_ASSIGN(p->packed, ctx.pack(operand, layout, {quantized_filter_bytes(f.M, K)}, DType::kI8,
                                 [&](Tensor& t) { fill(t, packed); }));
  OAR_ASSIGN(p->sums,
             ctx.pack(operand, layout + " sums", {f.M}, DType::kI32, [&](Tensor& t) { fill(t, sums); }));
  const int32_t shift = shift_of(*w);
  const auto left = [&](int64_t m) {
    if (z->numel() == 0) return -shift;
    return static_cast<int32_t>(element_as_int(*z, z->numel() == 1 ? 0 : m)) - shift;
  };
  bool any = false;
  for (int64_t m = 0; m < f.M; ++m) any = any || left(m) != 0;
  if (any) {
    OAR_ASSIGN(p->zeros, ctx.pack(ctx.given(zero) ? zero : operand, cat("zeros of ", f.M, " less ", shift),
                                  {f.M}, DType::kI32, [&](Tensor& t) {
                                    for (int64_t m = 0; m < f.M; ++m)
                                      mutable_elements<int32_t>(t)[m] = left(m);
                                  }));
  }
  ctx.spend(operand);
  if (ctx.given(zero)) ctx.spend(zero);
  return std::shared_ptr<const void>(std::move(p));
}

}  // namespace

Result<std::shared_ptr<const void>> prepare_integer_weights(PrepareContext& ctx, size_t operand,
                                                            size_t of_zero, const IntegerFilters& f) {
  if (ctx.backend().memory() == MemoryKind::kDevice) return prepare_device_integers(ctx, operand, of_zero, f);
  const Tensor* const w = ctx.constant(operand);
  auto p = std::make_shared<IntegerWeights>();
  p->M = f.M, p->K = f.taps * f.C;
  p->shift = shift_of(*w);
  const std::vector<int8_t> filters = shifted_filters(*w, f);
  OAR_ASSIGN(p->packed, allocate_elements({quantized_filter_bytes(f.M, p->K)}, DType::kI8));
  p->sums.resize(static_cast<size_t>(f.M));
  pack_quantized_filters(mutable_elements<int8_t>(p->packed), p->sums.data(), filters.data(), f.M, f.taps,
                         f.C, p->K, f.C, 1);
  return std::shared_ptr<const void>(std::move(p));
}

Lowered lower_integers(LowerContext& ctx, const WindowShape& window, int64_t C, const Shape& result) {
  constexpr uint8_t kX = 0, kXZero = 2;
  const ValueInfo& x = ctx.operands[kX];
  if (ctx.given(kXZero) &&
      (ctx.operands[kXZero].format != x.format || ctx.operands[kXZero].shape.numel() != 1))
    return not_lowered();
  const auto* p = static_cast<const DeviceIntegers*>(ctx.prepared);
  IntegerConvArgs a;
  a.w = elements<int8_t>(p->packed), a.w_sums = elements<int32_t>(p->sums);
  if (p->zeros.defined()) a.w_zeros = elements<int32_t>(p->zeros);
  a.window = window;
  a.C = C, a.M = p->M, a.x_signed = x.format.dtype() == DType::kI8;
  ctx.results->assign(1, {Format::i32(), result, true});
  const auto pixels = static_cast<double>(window.N * window.OH * window.OW);
  return part_call(kernel_of(ctx.backend, integer_conv_key()), a,
                   product_ns(pixels, static_cast<double>(a.M * window.KH * window.KW * C), 0.005, 1), {}, {},
                   [](IntegerConvArgs& args, const Operand* in, const Operand* out) {
                     args.out = out[0].as<int32_t>(), args.x = in[kX].as<const uint8_t>();
                     args.x_zero = in[kXZero].as<const uint8_t>();
                   })
      .op;
}

Result<Tensor> integer_sums(const KernelContext& ctx, const IntegerWeights& w, const WindowShape& window,
                            int64_t C, const Tensor& x, int32_t x_zero, const std::vector<int64_t>& w_zero) {
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{window.N * window.OH * window.OW, w.M}));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kI32));
  // What is left of zero points where weights have less.
  std::vector<int32_t> left(static_cast<size_t>(w.M), -w.shift);
  bool any = false;
  for (size_t m = 0; m < left.size(); ++m) {
    if (!w_zero.empty()) left[m] += static_cast<int32_t>(w_zero[w_zero.size() == 1 ? 0 : m]);
    any = any || left[m] != 0;
  }
  QuantizedConvArgs a;
  a.w = elements<int8_t>(w.packed), a.w_sums = w.sums.data();
  a.window = window;
  a.C = C, a.M = w.M, a.x_zero = x_zero, a.x_signed = dtype_of(x) == DType::kI8;
  a.out_type = QuantizedOut::kI32;
  OAR_RETURN_IF_ERROR(run_quantized(ctx, a, any ? left.data() : nullptr, false, {x, {}, {}, {}}, y));
  return y;
}

}  // namespace oar::tensor

namespace oar {
OAR_ROUNDING_OP(quantized_add, tensor::quantized_add, .by_kernels = tensor::add_by_loop,
                .lower = tensor::lower_quantized_add);
OAR_ROUNDING_OP(quantized_conv, tensor::quantized_conv, .by_kernels = tensor::conv_by_kernel,
                .prepare = tensor::prepare_quantized, .lower = tensor::lower_quantized_conv);
OAR_ROUNDING_OP(quantized_linear, tensor::quantized_linear, .by_kernels = tensor::linear_by_kernel,
                .prepare = tensor::prepare_quantized, .lower = tensor::lower_quantized_linear);
}  // namespace oar
