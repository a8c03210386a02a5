#include "engine/ops/tensor/narrow.h"

#include <bit>
#include <cstring>
#include <limits>

#include "kernels/narrow.h"
#include "kernels/quantized_conv.h"

namespace oar::tensor {

Precision precision_of(const Attrs& attrs) {
  const auto p = parse_precision(attrs.get_string("precision", "f32"));
  return p.ok() ? *p : Precision::kF32;
}

namespace {

bool is_device(const Backend& backend) { return backend.memory() == MemoryKind::kDevice; }

// The first 19 bits of a finite number, to nearest, and away from zero between two.
float to_tf32(float x) { return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000u) & ~0x1fffu); }

// Filters one after the other, each with zeros up to a multiple of kQuantizedStep bytes.
void round_filters(Tensor& to, const float* w, const NarrowFilters& f, Precision precision) {
  const int64_t K = f.taps * f.C, row = to.numel() / f.M;
  std::memset(to.mutable_data(), 0, to.bytes());
  const auto round = [&](auto* out, const auto& rounded) {
    for (int64_t m = 0; m < f.M; ++m) {
      for (int64_t k = 0; k < K; ++k)
        out[m * row + k] = rounded(w[m * f.stride_m + k / f.C * f.stride_tap + k % f.C * f.stride_c]);
    }
  };
  if (precision == Precision::kTf32) round(mutable_elements<float>(to), to_tf32);
  else if (precision == Precision::kF16)
    round(mutable_elements<uint16_t>(to), [](float x) { return to_f16(x).bits; });
  else round(mutable_elements<uint16_t>(to), [](float x) { return to_bf16(x).bits; });
}

std::unique_ptr<LoweredOp> rounded_calls(const Backend& backend, const NarrowWeights& w,
                                         const NarrowLayer& c) {
  ConvArgs a;
  a.w = static_cast<const float*>(w.packed.data());
  a.window = c.window;
  a.C = a.ldx = c.C, a.M = a.ldo = c.M;
  a.groups = a.panel = 1;
  a.epilogue = c.activation.kind, a.alpha = c.activation.alpha, a.beta = c.activation.beta;
  return part_call(kernel_of(backend, rounded_conv_key(w.precision)), a, 0, {}, {},
                   [x = c.x, bias = c.bias, residual = c.residual](ConvArgs& args, const Operand* in,
                                                                   const Operand* out) {
                     args.x = in[x].as<const float>(), args.out = out[0].as<float>();
                     args.bias = in[bias].as<const float>(), args.residual = in[residual].as<const float>();
                   })
      .op;
}

}  // namespace

bool has_narrow_kernels(const Backend& backend, Precision precision) {
  if (precision == Precision::kF32) return false;
  const KernelKey rounding{KernelFamily::kNarrow, Format::f32()};
  return backend.find_kernel(is_device(backend) ? rounded_conv_key(precision) : rounding) != nullptr;
}

Result<NarrowWeights> prepare_narrow(PrepareContext& ctx, const NarrowFilters& f) {
  NarrowWeights p;
  p.precision = precision_of(ctx.node().attrs);
  const int64_t K = f.taps * f.C;
  const auto from = [&] { return elements<float>(*ctx.constant(f.operand)); };
  if (is_device(ctx.backend())) {
    const Format format = rounded_conv_key(p.precision).weight;
    const int64_t width = format.block_bytes();
    OAR_ASSIGN(p.packed, ctx.pack(f.operand, cat(precision_name(p.precision), " ", f.stride_m),
                                  {f.M * quantized_k(K, width) / width}, format.dtype(),
                                  [&](Tensor& t) { round_filters(t, from(), f, p.precision); }));
    return p;
  }
  if (p.precision == Precision::kBf16) {
    OAR_ASSIGN(p.packed, ctx.pack(f.operand, cat("bf16 ", f.stride_m), {quantized_filter_bytes(f.M, K, 2)},
                                  DType::kI8, [&](Tensor& t) {
                                    pack_bf16_filters(mutable_elements<int8_t>(t), from(), f.M, f.taps, f.C,
                                                      f.stride_m, f.stride_tap, f.stride_c);
                                  }));
    return p;
  }
  // One packing makes all three; each is asked for by name, so that a cache can hold it.
  Tensor packed, sums, scale;
  const auto fill = [&] {
    if (packed.defined()) return;
    packed = must(allocate_elements({quantized_filter_bytes(f.M, K)}, DType::kI8));
    sums = must(allocate_elements({f.M}, DType::kI32));
    scale = must(allocate_elements({f.M}, DType::kF32));
    pack_rounded_filters(mutable_elements<int8_t>(packed), mutable_elements<int32_t>(sums),
                         mutable_elements<float>(scale), from(), f.M, f.taps, f.C, f.stride_m, f.stride_tap,
                         f.stride_c);
  };
  const auto copy = [&](Tensor& to, const Tensor& made) {
    std::memcpy(to.mutable_data(), made.data(), made.bytes());
  };
  OAR_ASSIGN(p.packed, ctx.pack(f.operand, cat("int8 ", f.stride_m), {quantized_filter_bytes(f.M, K)},
                                DType::kI8, [&](Tensor& t) { fill(), copy(t, packed); }));
  OAR_ASSIGN(p.sums, ctx.pack(f.operand, cat("int8 sums ", f.stride_m), {f.M}, DType::kI32,
                              [&](Tensor& t) { fill(), copy(t, sums); }));
  OAR_ASSIGN(p.scale, ctx.pack(f.operand, cat("int8 scales ", f.stride_m), {f.M}, DType::kF32,
                               [&](Tensor& t) { fill(), copy(t, scale); }));
  return p;
}

std::unique_ptr<LoweredOp> narrow_calls(const Backend& backend, const NarrowWeights& w,
                                        const NarrowLayer& c) {
  if (is_device(backend)) return rounded_calls(backend, w, c);
  const WindowShape& v = c.window;
  const bool bf16 = w.precision == Precision::kBf16;
  NarrowArgs n;
  n.rows = v.N, n.n = v.H * v.W * c.C;
  n.bf16 = bf16;
  QuantizedConvArgs a;
  a.w = elements<int8_t>(w.packed);
  a.window = v, a.C = c.C, a.M = c.M;
  a.out_type = QuantizedOut::kF32;
  const bool clamp = c.activation.kind == Epilogue::kClamp;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  a.low = clamp ? c.activation.alpha : -kInfinity, a.high = clamp ? c.activation.beta : kInfinity;
  a.epilogue = c.activation.kind, a.alpha = c.activation.alpha, a.beta = c.activation.beta;
  auto op = std::make_unique<LoweredCalls>();
  constexpr uint8_t kX = LoweredCall::kBetween, kScale = kX + 1, kZero = kX + 2;
  const auto between = [&](DType dtype, int64_t count) {
    op->between.push_back({Format::of(dtype), Shape({count}), true});
  };
  between(bf16 ? DType::kBF16 : DType::kU8, n.rows * n.n);
  if (!bf16) {
    a.w_sums = elements<int32_t>(w.sums), a.scale = elements<float>(w.scale);
    between(DType::kF32, n.rows);
    between(DType::kI32, n.rows);
  }
  op->calls.push_back(part_call(f32_kernel(backend, KernelFamily::kNarrow), n,
                                0.2 * static_cast<double>(n.rows * n.n), {c.x}, {kX, kScale, kZero},
                                [](NarrowArgs& args, const Operand* in, const Operand* out) {
                                  args.x = in[0].as<const float>(), args.out = out[0].data;
                                  args.scale = out[1].as<float>(), args.zero = out[2].as<int32_t>();
                                }));
  const auto pixels = static_cast<double>(v.N * v.OH * v.OW);
  const auto weights = static_cast<double>(c.M * v.KH * v.KW * c.C);
  op->calls.push_back(part_call(
      kernel_of(backend, bf16 ? bf16_conv_key() : int8_conv_key()), a,
      product_ns(pixels, weights, bf16 ? 0.01 : 0.005, bf16 ? 2 : 1), {kX, kScale, kZero, c.bias, c.residual},
      {LoweredCall::kResult}, [](QuantizedConvArgs& args, const Operand* in, const Operand* out) {
        args.x = in[0].as<const uint8_t>(), args.out = out[0].data;
        args.x_scale = in[1].as<const float>(), args.x_zeros = in[2].as<const int32_t>();
        args.shift = in[3].as<const float>(), args.residual = in[4].as<const float>();
      }));
  return op;
}

}  // namespace oar::tensor
