// Linear quantization and what computes with quantized operands: over the numbers that codes stand for,
// rounded half to even where the op rounds.
#include "engine/ops/define/definitions.h"
#include "engine/ops/tensor/quantized.h"
#include "engine/ops/tensor/util.h"

namespace oar::definition {
namespace {

using Vals = std::span<const Val>;

// Shape of `rank` axes of extent 1, but for `axis` of n entries.
Ints along(size_t rank, int64_t axis, int64_t n) {
  Ints shape(rank, 1);
  shape[static_cast<size_t>(axis)] = n;
  return shape;
}

// v, one number or a list, as what broadcasts along `axis` of `rank` axes; wider ones as they are.
Val listed(Builder& b, Val v, size_t rank, int64_t axis) {
  const Ints dims = extents(b, v);
  int64_t count = 1;
  for (const int64_t d : dims) count *= d;
  if (count == 1) return reshaped(b, real(b, v), {});
  return dims.size() == 1 ? reshaped(b, real(b, v), along(rank, axis, count)) : real(b, v);
}

// A scale or zero point beside x: one, one per entry of {axis}, or one per {block_size} entries of it.
Val beside(Builder& b, Val s, Val x, const Attrs& attrs) {
  const Ints dims = extents(b, x), own = extents(b, s);
  if (!b.status().ok()) return {};
  const auto rank = static_cast<int64_t>(dims.size());
  if (own.empty() || (own.size() == 1 && own[0] == 1)) return reshaped(b, real(b, s), {});
  int64_t axis = attrs.get_int("axis", 1);
  axis += axis < 0 ? rank : 0;
  if (axis < 0 || axis >= rank) return b.fail(invalid_argument("the axis of scales is outside")), Val{};
  const int64_t n = dims[static_cast<size_t>(axis)], block = attrs.get_int("block_size");
  if (block == 0) return reshaped(b, real(b, s), along(dims.size(), axis, n));
  auto blocks = Tensor::allocate({n}, Format::of(DType::kI32));
  if (!blocks.ok()) return b.fail(blocks.status()), Val{};
  for (int64_t k = 0; k < n; ++k)
    blocks->mutable_values<int32_t>()[static_cast<size_t>(k)] = static_cast<int32_t>(k / block);
  return b.op("gather", {real(b, s), b.constant("", std::move(*blocks))}, {{"axis", axis}});
}

Val less(Builder& b, Val v, Val zero) { return zero ? b.op("sub", {real(b, v), zero}) : real(b, v); }

// The codes of r: integers are rounded and held within their range, where NaN is 0; floats are only cast.
Val coded(Builder& b, Val r, Val zero, DType to, const Attrs& attrs) {
  Attrs cast{{"to", std::string(dtype_name(to))}};
  double low = 0, high = 0;
  if (!tensor::integer_range(to, &low, &high)) {
    if (attrs.has("saturate")) cast.set("saturate", attrs.get_int("saturate"));
    return b.op("cast", {zero ? b.op("add", {r, zero}) : r}, std::move(cast));
  }
  Val q = b.op("round", {r});
  if (zero) q = b.op("add", {q, zero});
  q = b.op("min", {b.op("max", {q, b.scalar(low)}), b.scalar(high)});
  return b.op("cast", {b.op("where", {b.op("is_nan", {r}), b.scalar(0), q})}, std::move(cast));
}

// The element type that codes beside `zero` have; else as the attribute says.
DType code_type(Builder& b, Val zero, const Attrs& attrs) {
  if (zero) return b.type(zero).format.dtype();
  const auto named = Format::find(attrs.get_string("output_dtype", "u8"));
  if (!named) b.fail(invalid_argument(cat("unknown type '", attrs.get_string("output_dtype"), "'")));
  return named ? named->dtype() : DType::kU8;
}

Val product(Builder& b, Val a, Val a_zero, Val x, Val x_zero) {
  const size_t rank_a = b.shape(a).size(), rank_x = b.shape(x).size();
  const auto row = static_cast<int64_t>(rank_a) - 2, column = static_cast<int64_t>(rank_x) - 1;
  const Val zero_a = a_zero ? listed(b, a_zero, rank_a, std::max<int64_t>(row, 0)) : Val{};
  const Val zero_x = x_zero ? listed(b, x_zero, rank_x, column) : Val{};
  // With as many axes each, and equal ones in front of the last two.
  const Ints shape_a = extents(b, a), shape_x = extents(b, x);
  const size_t rank = std::max(rank_a, rank_x);
  const auto at = [&](const Ints& dims, size_t k) {
    return k + dims.size() < rank ? 1 : dims[k + dims.size() - rank];
  };
  const auto spread = [&](Val v, const Ints& own) {
    Ints shape;
    for (size_t k = 0; k < rank; ++k) shape.push_back(at(own, k));
    v = reshaped(b, v, shape);
    bool wider = false;
    for (size_t k = 0; k + 2 < rank; ++k) {
      const int64_t batch = at(shape_a, k) == 1 ? at(shape_x, k) : at(shape_a, k);
      wider |= batch != shape[k];
      shape[k] = batch;
    }
    return wider && b.status().ok() ? b.op("add", {v, filled(b, shape, 0)}) : v;
  };
  return b.op("matmul", {spread(less(b, a, zero_a), shape_a), spread(less(b, x, zero_x), shape_x)});
}

// One zero point, or one a filter, of w.
Val convolved(Builder& b, Val x, Val x_zero, Val w, Val w_zero, const Attrs& attrs) {
  const Val zero_x = x_zero ? reshaped(b, real(b, x_zero), {}) : Val{};
  const Val zero_w = w_zero ? listed(b, w_zero, b.shape(w).size(), 0) : Val{};
  return b.op("conv", {less(b, x, zero_x), less(b, w, zero_w)}, attrs);
}

const Attrs kToI32{{"to", std::string("i32")}};

// --- layers of codes, as passes make them: engine/ops/tensor/quantized.cc ---

// {low, high} of real values
Val bounded(Builder& b, Val t, const Attrs& attrs) {
  if (attrs.has("low")) t = b.op("max", {t, b.scalar(attrs.get_float("low"))});
  return attrs.has("high") ? b.op("min", {t, b.scalar(attrs.get_float("high"))}) : t;
}

// {activation, act_alpha, act_beta}
Val activated(Builder& b, Val t, const Attrs& attrs) {
  if (!attrs.has("activation")) return t;
  const std::string name = attrs.get_string("activation");
  const double alpha = attrs.get_float("act_alpha"), beta = attrs.get_float("act_beta");
  if (name == "clip") return b.op("min", {b.op("max", {t, b.scalar(alpha)}), b.scalar(beta)});
  if (name == "hard_sigmoid" || name == "hard_swish")
    return b.op(name, {t}, {{"alpha", alpha}, {"beta", beta}});
  if (name == "leaky_relu") return b.op(name, {t}, {{"alpha", alpha}});
  if (name == "gelu_tanh") return b.op("gelu", {t}, {{"approximate", std::string("tanh")}});
  return b.op(name, {t});
}

// What a layer makes of real values t: {y_dtype} f32, or codes of {y_scale, y_zero}.
Val finished(Builder& b, Val t, const Attrs& attrs) {
  const std::string type = attrs.get_string("y_dtype");
  if (type != "u8" && type != "i8") return activated(b, bounded(b, t, attrs), attrs);
  t = bounded(b, activated(b, t, attrs), attrs);
  const Val r = b.op("div", {t, b.scalar(attrs.get_float("y_scale", 1))});
  const Val zero = b.scalar(static_cast<double>(attrs.get_int("y_zero")));
  return coded(b, r, zero, type == "u8" ? DType::kU8 : DType::kI8, {});
}

// The real values of sums of codes, whose results lie along `axis`; a bias of integers counts in their units.
Val scaled(Builder& b, Val sums, Vals in, const Attrs& attrs, int64_t axis) {
  if (!b.status().ok()) return {};
  const size_t rank = b.shape(sums).size();
  const Val bias = given(in, 3);
  const bool units = bias && b.type(bias).format == Format::of(DType::kI32);
  if (units) sums = b.op("add", {sums, listed(b, bias, rank, axis)});
  const Val x_scale = given(in, 5) ? real(b, in[5]) : b.scalar(attrs.get_float("x_scale", 1));
  const Val scale = b.op("mul", {listed(b, in[2], rank, axis), x_scale});
  const Val t = b.op("mul", {sums, scale});
  return bias && !units ? b.op("add", {t, listed(b, bias, rank, axis)}) : t;
}

Val without_zero(Builder& b, Val x, const Attrs& attrs, const char* zero) {
  return less(b, x, b.scalar(static_cast<double>(attrs.get_int(zero))));
}

// A layer's operand less its zero point, a run's or an attribute; and its weights, whose filters lie along
// `axis`, less theirs.
Val operand_of(Builder& b, Vals in, const Attrs& attrs) {
  return given(in, 6) ? less(b, in[0], real(b, in[6])) : without_zero(b, in[0], attrs, "x_zero");
}
Val weights_of_layer(Builder& b, Vals in, int64_t axis) {
  if (!given(in, 7)) return real(b, in[1]);
  return less(b, in[1], listed(b, in[7], b.shape(in[1]).size(), axis));
}

Val sum_of_codes(Builder& b, Val x, Val y, const Attrs& attrs) {
  const auto real_value = [&](Val v, const char* scale, const char* zero) {
    return b.op("mul", {without_zero(b, v, attrs, zero), b.scalar(attrs.get_float(scale, 1))});
  };
  return finished(b, b.op("add", {real_value(x, "a_scale", "a_zero"), real_value(y, "b_scale", "b_zero")}),
                  attrs);
}

// --- rows of few bits: engine/ops/tensor/nbits.cc ---

// (rows, n) numbers of {bits}: bytes of them, low bits first, or an element each.
Val unpacked(Builder& b, Val codes, int64_t rows, int64_t n, bool bytes, const Attrs& attrs) {
  if (!bytes || attrs.get_int("bits") != 4) return cut(b, reshaped(b, real(b, codes), {rows, -1}), 1, 0, n);
  const Val all = reshaped(b, real(b, codes), {rows, -1, 1});
  const Val high = b.op("floor", {b.op("div", {all, b.scalar(16)})});
  const Val low = b.op("sub", {all, b.op("mul", {high, b.scalar(16)})});
  return cut(b, reshaped(b, joined(b, std::vector<Val>{low, high}, 2), {rows, -1}), 1, 0, n);
}

// (rows, n) weights of `codes`, `scales` and `zeros`, in blocks of {block_size}.
Val weights_of(Builder& b, Val codes, Val scales, Val zeros, int64_t rows, int64_t n, const Attrs& attrs) {
  if (!b.status().ok()) return {};
  const int64_t block = attrs.get_int("block_size");
  if (block < 1) return b.fail(invalid_argument("block_size must be above 0")), Val{};
  const bool bytes = b.type(codes).format == Format::of(DType::kU8);
  const int64_t blocks = (n + block - 1) / block;
  const Attrs along_row{{"axis", int64_t{1}}, {"block_size", block}};
  Val q = unpacked(b, codes, rows, n, bytes, attrs);
  if (!zeros) {
    if (bytes) q = b.op("sub", {q, b.scalar(attrs.get_int("bits") == 4 ? 8 : 128)});
  } else {
    const bool packed = bytes && b.type(zeros).format == Format::of(DType::kU8);
    q = less(b, q, beside(b, unpacked(b, zeros, rows, blocks, packed, attrs), q, along_row));
  }
  return b.op("mul", {q, beside(b, reshaped(b, real(b, scales), {rows, blocks}), q, along_row)});
}

}  // namespace

// (x - zero) scale
std::vector<Val> dequantize_linear(Builder& b, Vals in, const Attrs& attrs) {
  const Val scale = beside(b, in[1], in[0], attrs);
  const Val zero = given(in, 2) ? beside(b, in[2], in[0], attrs) : Val{};
  const Val y = b.op("mul", {less(b, in[0], zero), scale});
  const std::string to = attrs.get_string("output_dtype", "f32");
  return {to == "f32" ? y : b.op("cast", {y}, {{"to", to}})};
}

// round(x / scale) + zero within the range of its type
std::vector<Val> quantize_linear(Builder& b, Vals in, const Attrs& attrs) {
  const Val zero = given(in, 2) ? beside(b, in[2], in[0], attrs) : Val{};
  const Val r = b.op("div", {real(b, in[0]), beside(b, in[1], in[0], attrs)});
  if (!b.status().ok()) return {};
  return {coded(b, r, zero, code_type(b, given(in, 2), attrs), attrs)};
}

// To u8 over the range of the values and 0; codes, scale and zero point.
std::vector<Val> dynamic_quantize_linear(Builder& b, Vals in, const Attrs& attrs) {
  const Attrs all{{"keepdims", int64_t{0}}};
  const Val low = b.op("min", {b.op("reduce_min", {in[0]}, all), b.scalar(0)}),
            high = b.op("max", {b.op("reduce_max", {in[0]}, all), b.scalar(0)});
  const Val scale = b.op("div", {b.op("sub", {high, low}), b.scalar(255)});
  const Val by = b.op("where", {b.op("equal", {scale, b.scalar(0)}), b.scalar(1), scale});
  const Val zero = coded(b, b.op("div", {b.op("neg", {low}), by}), {}, DType::kU8, attrs);
  return {coded(b, b.op("div", {in[0], by}), real(b, zero), DType::kU8, attrs), scale, zero};
}

// (a - a_zero) . (b - b_zero) as i32
std::vector<Val> matmul_integer(Builder& b, Vals in, const Attrs&) {
  return {b.op("cast", {product(b, in[0], given(in, 2), in[1], given(in, 3))}, kToI32)};
}

// conv(x - x_zero, w - w_zero) as i32
std::vector<Val> conv_integer(Builder& b, Vals in, const Attrs& attrs) {
  return {b.op("cast", {convolved(b, in[0], given(in, 2), in[1], given(in, 3), attrs)}, kToI32)};
}

// The product of what both stand for, quantized
std::vector<Val> qlinear_matmul(Builder& b, Vals in, const Attrs& attrs) {
  const Val sums = product(b, in[0], in[2], in[3], in[5]);
  if (!b.status().ok()) return {};
  const size_t rank = b.shape(sums).size();
  const auto row = std::max<int64_t>(static_cast<int64_t>(rank) - 2, 0),
             column = static_cast<int64_t>(rank) - 1;
  const Val scaled =
      b.op("mul", {b.op("mul", {sums, listed(b, in[1], rank, row)}), listed(b, in[4], rank, column)});
  const Val r = b.op("div", {scaled, reshaped(b, real(b, in[6]), {})});
  return {coded(b, r, reshaped(b, real(b, in[7]), {}), code_type(b, in[7], attrs), attrs)};
}

// The convolution of what both stand for, quantized; a bias counts in units of both scales.
std::vector<Val> qlinear_conv(Builder& b, Vals in, const Attrs& attrs) {
  Val sums = convolved(b, in[0], in[2], in[3], in[5], attrs);
  if (!b.status().ok()) return {};
  const size_t rank = b.shape(sums).size();
  if (given(in, 8)) sums = b.op("add", {sums, listed(b, in[8], rank, 1)});
  const Val scaled =
      b.op("mul", {b.op("mul", {sums, reshaped(b, real(b, in[1]), {})}), listed(b, in[4], rank, 1)});
  const Val r = b.op("div", {scaled, reshaped(b, real(b, in[6]), {})});
  return {coded(b, r, reshaped(b, real(b, in[7]), {}), code_type(b, in[7], attrs), attrs)};
}

// The sum of what both stand for, quantized
std::vector<Val> quantized_add(Builder& b, Vals in, const Attrs& attrs) {
  return {sum_of_codes(b, in[0], in[1], attrs)};
}

std::vector<Val> quantized_conv(Builder& b, Vals in, const Attrs& attrs) {
  Attrs window;
  for (const auto& [name, value] : attrs.items()) {
    for (const char* own : {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}) {
      if (name == own) window.set(name, value);
    }
  }
  const bool nhwc = attrs.get_string("layout") == "nhwc";
  Val x = operand_of(b, in, attrs);
  if (nhwc) x = turned(b, x, {0, 3, 1, 2});
  Val y = scaled(b, b.op("conv", {x, weights_of_layer(b, in, 0)}, window), in, attrs, 1);
  if (nhwc) y = turned(b, y, {0, 2, 3, 1});
  const std::string to = attrs.get_string("y_dtype");
  const bool residual = given(in, 4) && to != "u8" && to != "i8";
  y = finished(b, residual ? b.op("add", {y, in[4]}) : y, attrs);
  if (!given(in, 4) || residual) return {y};
  return {sum_of_codes(b, y, in[4], tensor::sum_attrs(attrs))};
}

std::vector<Val> quantized_linear(Builder& b, Vals in, const Attrs& attrs) {
  Ints dims = extents(b, in[0]);
  if (!b.status().ok() || dims.empty())
    return b.fail(invalid_argument("a layer needs rows")), std::vector<Val>{};
  const Val rows = reshaped(b, operand_of(b, in, attrs), {-1, dims.back()});
  const Val w = weights_of_layer(b, in, attrs.get_int("input_major"));
  const Val sums = b.op("matmul", {rows, attrs.get_int("input_major") != 0 ? w : turned(b, w, {1, 0})});
  const Val t = scaled(b, sums, in, attrs, 1);
  if (!b.status().ok()) return {};
  dims.back() = extents(b, t).back();
  const Val y = reshaped(b, t, dims);
  return {finished(b, given(in, 4) ? b.op("add", {y, in[4]}) : y, attrs)};
}

// Rows of a table of few bits; a negative index counts from the end.
std::vector<Val> gather_nbits(Builder& b, Vals in, const Attrs& attrs) {
  const Ints dims = extents(b, in[0]);
  if (!b.status().ok() || dims.size() != 2)
    return b.fail(invalid_argument("a table has two axes")), std::vector<Val>{};
  const bool halves = b.type(in[0]).format == Format::of(DType::kU8) && attrs.get_int("bits") == 4;
  const Val table = weights_of(b, in[0], in[2], given(in, 3), dims[0], dims[1] * (halves ? 2 : 1), attrs);
  const Val at = real(b, in[1]), from_end = b.op("add", {at, b.scalar(static_cast<double>(dims[0]))});
  const Val row = b.op("where", {b.op("less", {at, b.scalar(0)}), from_end, at});
  return {b.op("gather", {table, b.op("cast", {row}, kToI32)}, {{"axis", int64_t{0}}})};
}

// x . w^T + bias of weights of few bits
std::vector<Val> matmul_nbits(Builder& b, Vals in, const Attrs& attrs) {
  Ints dims = extents(b, in[0]);
  if (!b.status().ok() || dims.empty())
    return b.fail(invalid_argument("a layer needs rows")), std::vector<Val>{};
  const int64_t N = attrs.get_int("N"), K = attrs.get_int("K");
  const Val w = weights_of(b, in[1], in[2], given(in, 3), N, K, attrs);
  const Val y = b.op("matmul", {reshaped(b, real(b, in[0]), {-1, K}), turned(b, w, {1, 0})});
  dims.back() = N;
  const Val shaped = reshaped(b, y, dims);
  return {given(in, 4) ? b.op("add", {shaped, real(b, in[4])}) : shaped};
}

}  // namespace oar::definition
