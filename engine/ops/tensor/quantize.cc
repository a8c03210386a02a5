// Linear quantization: y = saturate(round(x / scale) + zero) and back, per tensor, per axis or in blocks.
#include <limits>

#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/kernel_call.h"
#include "kernels/narrow.h"
#include "kernels/quantize.h"

namespace oar::tensor {

bool integer_range(DType t, double* low, double* high) {
  const int bits = dtype_bits(t);
  if (!dtype_is_integer(t) || bits > 32) return false;
  const bool is_signed =
      t == DType::kI8 || t == DType::kI16 || t == DType::kI32 || t == DType::kI4 || t == DType::kI2;
  *low = is_signed ? -std::ldexp(1.0, bits - 1) : 0;
  *high = std::ldexp(1.0, is_signed ? bits - 1 : bits) - 1;
  return true;
}

namespace {

// Which scale belongs to element k: one, one per entry of `axis`, or one per `block` entries of it.
struct ScaleOf {
  int64_t count = 1, n = 1, inner = 1, block = 0, blocks = 1;
  int64_t operator()(int64_t k) const {
    if (count == 1) return 0;
    const int64_t i = k / inner % n;
    if (block == 0) return i;
    return (k / inner / n * blocks + i / block) * inner + k % inner;
  }
};

Result<ScaleOf> scales_for(const EvalContext& ctx, const Shape& x, const Tensor& scale) {
  ScaleOf s;
  s.count = scale.numel();
  if (s.count == 1 && scale.shape().rank() < 2) return s;
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis", 1), x.rank()));
  s.n = x[axis], s.inner = extent(x, axis + 1, x.rank());
  s.block = ctx.attrs().get_int("block_size");
  if (s.block < 0) return invalid_argument("block_size is negative");
  if (s.block == 0) {
    if (s.count == s.n) return s;
    return invalid_argument(cat(s.count, " scales for an axis of ", s.n));
  }
  s.blocks = (s.n + s.block - 1) / s.block;
  s.count = 2;  // never the short cut
  std::vector<int64_t> dims = dims_of(x);
  dims[static_cast<size_t>(axis)] = s.blocks;
  if (!(scale.shape() == Shape(dims))) return invalid_argument("scales do not match the blocks");
  return s;
}

// Bytes with one scale as f32, from a table of all there are.
template <class Q>
void dequantize_bytes(const EvalContext& ctx, const Q* x, float* y, int64_t n, float scale, int32_t zero) {
  float value[256];
  for (int b = 0; b < 256; ++b)
    value[b] = static_cast<float>(static_cast<int32_t>(static_cast<Q>(b)) - zero) * scale;
  ctx.parallel(n, 0.3, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) y[k] = value[static_cast<uint8_t>(x[k])];
  });
}
// One f32 scale and one zero point, or none, of a byte type.
bool single_scale(const EvalContext& ctx, const Tensor& scale, int32_t& zero, DType& bytes) {
  if (dtype_of(scale) != DType::kF32 || scale.numel() != 1 || ctx.attrs().get_int("block_size") != 0)
    return false;
  if (!ctx.has(2)) return bytes == DType::kU8 || bytes == DType::kI8;
  const Result<Tensor> z = ctx.tensor(2);
  if (!z.ok() || z->numel() != 1) return false;
  bytes = dtype_of(*z);
  if (bytes != DType::kU8 && bytes != DType::kI8) return false;
  zero = static_cast<int32_t>(element_as_int(*z, 0));
  return true;
}

// round(x / scale) + zero of f32 as bytes, by the kernel.
Status narrow_bytes(const KernelContext& ctx, const Tensor& x, float scale, int32_t zero, Tensor& y) {
  NarrowArgs a;
  a.out = mutable_elements<std::byte>(y), a.x = elements<float>(x), a.rows = 1, a.n = x.numel();
  a.divisor = scale, a.offset = zero, a.least = dtype_of(y) == DType::kI8 ? -128 : 0;
  return run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kNarrow), &a,
                    0.2 * static_cast<double>(a.n));
}

// f32 of one scale to bytes.
Result<bool> quantize_by_kernel(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor scale, ctx.tensor(1));
  OAR_ASSIGN(DType to, dtype_attr(ctx, "output_dtype", DType::kU8));
  int32_t zero = 0;
  if (dtype_of(x) != DType::kF32 || x.numel() == 0 || !single_scale(ctx, scale, zero, to)) return false;
  const float s = elements<float>(scale)[0];
  if (!(s > 0) || !std::isfinite(s)) return false;
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), to));
  OAR_RETURN_IF_ERROR(narrow_bytes(ctx, x, s, zero, y));
  ctx.set(0, std::move(y));
  return true;
}

// quantize_linear(x, scale, zero?) {axis, block_size, output_dtype, saturate}
Status quantize_linear(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor scale, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_number(x));
  OAR_RETURN_IF_ERROR(check_number(scale));
  OAR_ASSIGN(DType to, dtype_attr(ctx, "output_dtype", DType::kU8));
  std::vector<double> zero;
  if (ctx.has(2)) {
    OAR_ASSIGN(const Tensor z, ctx.tensor(2));
    OAR_RETURN_IF_ERROR(check_number(z));
    if (z.numel() != scale.numel()) return invalid_argument("zero points and scales differ in number");
    to = dtype_of(z);
    zero = to_doubles(z);
  }
  OAR_ASSIGN(const ScaleOf which, scales_for(ctx, x.shape(), scale));
  const std::vector<double> s = to_doubles(scale), v = to_doubles(x);
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), to));
  double low = 0, high = 0;
  const bool integer = integer_range(to, &low, &high);
  const bool single = dtype_of(x) != DType::kF64 && dtype_of(scale) != DType::kF64;
  const bool saturate = ctx.attrs().get_int("saturate", 1) != 0;
  std::vector<double> q(v.size());
  for (size_t k = 0; k < v.size(); ++k) {
    const auto w = static_cast<size_t>(which(static_cast<int64_t>(k)));
    // The division is the operands' own.
    double r =
        single ? static_cast<double>(static_cast<float>(v[k]) / static_cast<float>(s[w])) : v[k] / s[w];
    if (dtype_of(x) == DType::kF16) r = static_cast<double>(to_f32(to_f16(static_cast<float>(r))));
    const double z = zero.empty() ? 0 : zero[w];
    if (integer) q[k] = std::isnan(r) ? 0 : std::clamp(std::nearbyint(r) + z, low, high);
    else q[k] = r + z;
  }
  if (!integer && !saturate) {
    Node node;
    node.op = find_op("cast");
    node.attrs = {{"to", std::string(dtype_name(to))}, {"saturate", int64_t{0}}};
    node.outputs.resize(1);
    const Datum d(from_doubles(ctx, x.shape(), DType::kF32, q));
    const Datum* in[] = {&d};
    OAR_ASSIGN(auto out, evaluate_op(node, in, ctx.options()));
    ctx.set(0, std::move(out[0]));
    return ok_status();
  }
  ctx.set(0, from_doubles(ctx, x.shape(), to, q));
  return ok_status();
}

Status dequantize_linear(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor scale, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_number(x));
  OAR_RETURN_IF_ERROR(check_number(scale));
  OAR_ASSIGN(const DType to, dtype_attr(ctx, "output_dtype", dtype_of(scale)));
  DType bytes = dtype_of(x);
  if (int32_t z = 0; to == DType::kF32 && single_scale(ctx, scale, z, bytes) && bytes == dtype_of(x)) {
    OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), DType::kF32));
    const float s = elements<float>(scale)[0];
    if (bytes == DType::kU8)
      dequantize_bytes(ctx, elements<uint8_t>(x), mutable_elements<float>(y), x.numel(), s, z);
    else dequantize_bytes(ctx, elements<int8_t>(x), mutable_elements<float>(y), x.numel(), s, z);
    ctx.set(0, std::move(y));
    return ok_status();
  }
  std::vector<double> zero;
  if (ctx.has(2)) {
    OAR_ASSIGN(const Tensor z, ctx.tensor(2));
    OAR_RETURN_IF_ERROR(check_number(z));
    if (z.numel() != scale.numel()) return invalid_argument("zero points and scales differ in number");
    zero = to_doubles(z);
  }
  OAR_ASSIGN(const ScaleOf which, scales_for(ctx, x.shape(), scale));
  const std::vector<double> s = to_doubles(scale);
  std::vector<double> v = to_doubles(x);
  for (size_t k = 0; k < v.size(); ++k) {
    const auto w = static_cast<size_t>(which(static_cast<int64_t>(k)));
    v[k] = (v[k] - (zero.empty() ? 0 : zero[w])) * s[w];
  }
  OAR_RETURN_IF_ERROR(ctx.check_size(x.shape(), to));
  ctx.set(0, from_doubles(ctx, x.shape(), to, v));
  return ok_status();
}

// The range of f32 values, which always includes 0, as a scale and zero point of u8.
struct Range {
  float low = 0, high = 0;
  float scale() const { return (high - low) / 255.0f; }
  float zero() const { return scale() == 0 ? 0 : std::clamp(std::nearbyint(-low / scale()), 0.0f, 255.0f); }
};
void set_range(EvalContext& ctx, const Range& r) {
  ctx.set(1, from_doubles(ctx, {}, DType::kF32, {static_cast<double>(r.scale())}));
  ctx.set(2, from_doubles(ctx, {}, DType::kU8, {static_cast<double>(r.zero())}));
}

// dynamic_quantize_linear(x) -> u8, its scale and its zero point.
Status dynamic_quantize_linear(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  if (dtype_of(x) != DType::kF32) return bad_dtype(x);
  Range r;
  const float* in = elements<float>(x);
  for (int64_t k = 0; k < x.numel() && !ctx.options().sizing; ++k)
    r = {std::min(r.low, in[k]), std::max(r.high, in[k])};
  OAR_ASSIGN(Tensor y, ctx.zeros(x.shape(), DType::kU8));
  // The division is the operands' own.
  for (int64_t k = 0; k < x.numel() && r.scale() > 0; ++k)
    mutable_elements<uint8_t>(y)[k] =
        saturate_cast<uint8_t>(static_cast<double>(std::nearbyint(in[k] / r.scale()) + r.zero()));
  ctx.set(0, std::move(y));
  set_range(ctx, r);
  return ok_status();
}

// --- on a device ---

// Null where the device has no such kernel; the processor has those above. Result 0 has `type` and x's shape.
template <class Fill>
Lowered lower_quantized(LowerContext& ctx, const QuantizeArgs& args, DType type, Fill fill) {
  ctx.results->assign(1, {Format::of(type), ctx.operands[0].shape, true});
  return lower_kernel(ctx, quantize_key(), args, std::move(fill));
}

// Scales that are one, or one for each entry of an axis, and zero points as many, of `type`. False of others.
bool set_scales(const LowerContext& ctx, DType type, QuantizeArgs& a) {
  if (ctx.backend.memory() != MemoryKind::kDevice || !ctx.given(1)) return false;
  const ValueInfo &x = ctx.operands[0], &scale = ctx.operands[1];
  if (x.shape.numel() == 0 || !is_f32(scale) || scale.shape.rank() > 1 ||
      ctx.node.attrs.get_int("block_size") != 0 || (type != DType::kU8 && type != DType::kI8))
    return false;
  a.n = x.shape.numel(), a.is_signed = type == DType::kI8;
  a.count = scale.shape.numel();
  if (ctx.given(2) &&
      (ctx.operands[2].shape.numel() != a.count || ctx.operands[2].format != Format::of(type)))
    return false;
  if (a.count == 1) return true;
  const auto axis = checked_axis(ctx.node.attrs.get_int("axis", 1), x.shape.rank());
  if (!axis.ok() || x.shape[*axis] != a.count) return false;
  a.inner = extent(x.shape, *axis + 1, x.shape.rank());
  return true;
}

Lowered lower_quantize(LowerContext& ctx) {
  const Attrs& attrs = ctx.node.attrs;
  DType type = DType::kU8;
  if (ctx.given(2) && ctx.operands[2].format.plain()) type = ctx.operands[2].format.dtype();
  else if (attrs.has("output_dtype"))
    type = parse_dtype(attrs.get_string("output_dtype")).value_or(DType::kF32);
  QuantizeArgs a;
  if (!is_f32(ctx.operands[0]) || !set_scales(ctx, type, a)) return not_lowered();
  return lower_quantized(ctx, a, type, [](QuantizeArgs& q, const Operand* in, const Operand* out) {
    q.values = in[0].as<float>(), q.codes = out[0].data;
    q.scale = in[1].as<const float>(), q.zero = in[2].as<const uint8_t>();
  });
}

Lowered lower_dequantize(LowerContext& ctx) {
  const Attrs& attrs = ctx.node.attrs;
  const ValueInfo& x = ctx.operands[0];
  QuantizeArgs a;
  if (!x.given || !x.format.plain() || !set_scales(ctx, x.format.dtype(), a) ||
      (attrs.has("output_dtype") && parse_dtype(attrs.get_string("output_dtype")) != DType::kF32))
    return not_lowered();
  a.to_values = true;
  return lower_quantized(ctx, a, DType::kF32, [](QuantizeArgs& q, const Operand* in, const Operand* out) {
    q.codes = in[0].data, q.values = out[0].as<float>();
    q.scale = in[1].as<const float>(), q.zero = in[2].as<const uint8_t>();
  });
}

// The processor's, then a device's.
Lowered call_own_range(LowerContext& ctx) {
  const int64_t n = ctx.operands[0].shape.numel();
  if (ctx.backend.memory() == MemoryKind::kDevice) {
    QuantizeArgs a;
    a.n = n;
    return lower_kernel(ctx, quantize_key(), a, [](QuantizeArgs& q, const Operand* in, const Operand* out) {
      q.values = in[0].as<float>(), q.codes = out[0].data;
      q.own_scale = out[1].as<float>(), q.own_zero = out[2].as<uint8_t>();
    });
  }
  NarrowArgs a;
  a.rows = 1, a.n = n;
  OAR_ASSIGN(auto op, lower_kernel(ctx, {KernelFamily::kNarrow}, a,
                                   [](NarrowArgs& q, const Operand* in, const Operand* out) {
                                     q.x = in[0].as<const float>(), q.out = out[0].data;
                                     q.own_scale = out[1].as<float>(), q.own_zero = out[2].as<uint8_t>();
                                   }));
  if (op != nullptr) op->nanoseconds = 0.2 * static_cast<double>(n);
  return op;
}

Lowered lower_dynamic_quantize(LowerContext& ctx) {
  const ValueInfo& x = ctx.operands[0];
  if (!is_f32(x) || x.shape.numel() == 0) return not_lowered();
  const Format u8 = Format::of(DType::kU8);
  ctx.results->assign({{u8, x.shape, true}, {Format::f32(), Shape(), true}, {u8, Shape(), true}});
  return call_own_range(ctx);
}

}  // namespace

Lowered lower_cast(LowerContext& ctx) {
  if (!ctx.in_run() || ctx.backend.memory() != MemoryKind::kDevice) return not_lowered();
  const ValueInfo& x = ctx.operands[0];
  if (ctx.given(1) ? !is_f32(ctx.operands[1]) : parse_dtype(ctx.node.attrs.get_string("to")) != DType::kF32)
    return not_lowered();
  if (!x.given || !x.format.plain() || x.shape.numel() == 0) return not_lowered();
  const DType from = x.format.dtype();
  if (from != DType::kI32 && from != DType::kU8 && from != DType::kI8) return not_lowered();
  QuantizeArgs a;
  a.n = x.shape.numel(), a.to_values = true, a.is_signed = from == DType::kI8;
  ctx.results->assign(1, {Format::f32(), x.shape, true});
  return lower_kernel(ctx, from == DType::kI32 ? integers_key() : quantize_key(), a,
                      [](QuantizeArgs& q, const Operand* in, const Operand* out) {
                        q.codes = in[0].data, q.values = out[0].as<float>();
                      });
}

}  // namespace oar::tensor

namespace oar {
OAR_DEFINED_OP(dequantize_linear, tensor::dequantize_linear, .lower = tensor::lower_dequantize);
OAR_ROUNDING_OP(dynamic_quantize_linear, tensor::dynamic_quantize_linear,
                .lower = tensor::lower_dynamic_quantize);
OAR_ROUNDING_OP(quantize_linear, tensor::quantize_linear, .by_kernels = tensor::quantize_by_kernel,
                .lower = tensor::lower_quantize);
}  // namespace oar
