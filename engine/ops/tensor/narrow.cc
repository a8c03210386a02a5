#include "engine/ops/tensor/narrow.h"

#include <limits>

#include "kernels/narrow.h"
#include "kernels/quantized_conv.h"

namespace oar::tensor {

Precision precision_of(const Attrs& attrs) {
  const std::string name = attrs.get_string("precision", "");
  return name == "bf16" ? Precision::kBf16 : name == "int8" ? Precision::kInt8 : Precision::kF32;
}

bool has_narrow_kernels(const Backend& backend) {
  return backend.find_kernel({KernelFamily::kNarrow, Format::f32()}) != nullptr;
}

Result<NarrowWeights> prepare_narrow(PrepareContext& ctx, const NarrowFilters& f) {
  NarrowWeights p;
  p.bf16 = precision_of(ctx.node().attrs) == Precision::kBf16;
  const int64_t K = f.taps * f.C;
  const auto from = [&] { return elements<float>(*ctx.constant(f.operand)); };
  if (p.bf16) {
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
  const WindowShape& v = c.window;
  NarrowArgs n;
  n.rows = v.N, n.n = v.H * v.W * c.C;
  n.bf16 = w.bf16;
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
  between(w.bf16 ? DType::kBF16 : DType::kU8, n.rows * n.n);
  if (!w.bf16) {
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
  op->calls.push_back(part_call(kernel_of(backend, w.bf16 ? bf16_conv_key() : int8_conv_key()), a,
                                product_ns(pixels, weights, w.bf16 ? 0.01 : 0.005, w.bf16 ? 2 : 1),
                                {kX, kScale, kZero, c.bias, c.residual}, {LoweredCall::kResult},
                                [](QuantizedConvArgs& args, const Operand* in, const Operand* out) {
                                  args.x = in[0].as<const uint8_t>(), args.out = out[0].data;
                                  args.x_scale = in[1].as<const float>(),
                                  args.x_zeros = in[2].as<const int32_t>();
                                  args.shift = in[3].as<const float>(),
                                  args.residual = in[4].as<const float>();
                                }));
  return op;
}

}  // namespace oar::tensor
