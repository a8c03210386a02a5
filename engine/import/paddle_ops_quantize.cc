// Quantization as PaddleSlim writes it: numbers rounded to steps of scale / (2^(bits-1) - 1), kept as steps
// or turned back at once. Formulas: phi/kernels/impl/quantize_linear_impl.h, phi/kernels/cpu/fake_quantize_*.
#include <cmath>

#include "engine/import/paddle_node.h"

namespace oar::paddle {
namespace {

double steps_of(int64_t bits) { return std::ldexp(1.0, static_cast<int>(bits) - 1) - 1; }
double steps(Node& n) {
  const int64_t bits = n.get_int("bit_length", 8);
  if (bits < 2 || bits > 32) n.fail(invalid_argument(cat("attribute 'bit_length' is ", bits)));
  return steps_of(std::min<int64_t>(bits, 32));
}

// quantize_linear and its counterpart have the largest step itself; older programs only the bits.
double linear_steps(Node& n) {
  const double by_bits = steps(n);
  return n.get_float("qmax", by_bits);
}

// Scales, one per entry of `axis` or one for all (axis < 0), in the shape that meets x.
Val per_channel(Node& n, Val scale, int64_t axis) {
  if (axis < 0) return n.reshape(scale, {});
  const int rank = n.rank(0);
  if (axis >= rank) {
    n.fail(invalid_argument(cat("attribute 'quant_axis' is ", axis, " for an operand of rank ", rank)));
    return scale;
  }
  std::vector<int64_t> shape(static_cast<size_t>(rank), 1);
  shape[static_cast<size_t>(axis)] = -1;
  return n.reshape(scale, shape);
}
// The largest magnitude, of all or of each entry of `axis`.
Val largest(Node& n, int64_t axis) {
  std::vector<int64_t> axes;
  for (int k = 0; axis >= 0 && k < n.rank(0); ++k) {
    if (k != axis) axes.push_back(k);
  }
  return n.w().op("reduce_max", {n.w().op("abs", {n.in(0)}), n.w().ints(axes)}, {{"keepdims", int64_t{0}}});
}

// Steps of x as whole numbers. Round type 0 takes ties to even and may end one step lower; 1 takes them away
// from zero.
Val to_steps(Node& n, Val scale, double count) {
  const DType d = n.dtype(0);
  const Val x = n.in(0);
  const Val tiny = n.w().op("less_equal", {scale, n.number(1e-30, d)});
  const Val safe = n.w().op("where", {tiny, n.w().op("add", {scale, n.number(1e-6, d)}), scale});
  const Val factor = n.w().op("mul", {n.number(count, d), n.w().op("reciprocal", {safe})});
  if (n.get_int("round_type", 1) == 0) {
    const Val y = n.w().op("round", {n.w().op("mul", {factor, x})});
    return n.w().op("clip", {y, n.number(-count - 1, d), n.number(count, d)});
  }
  const Val low = n.w().op("neg", {scale});
  const Val inside = n.w().op("min", {n.w().op("max", {x, low}), scale});
  const Val y = n.w().op("mul", {factor, inside});
  const Val whole = n.w().op("floor", {n.w().op("add", {n.w().op("abs", {y}), n.number(0.5, d)})});
  return n.w().op("mul", {n.w().op("sign", {y}), whole});
}
Val from_steps(Node& n, Val y, Val scale, double count) {
  return n.w().op("div", {n.w().op("mul", {y, scale}), n.number(count, n.dtype(0))});
}

void fake_quantize(Node& n, Val scale, int64_t axis, bool back) {
  const double count = steps(n);
  const Val shaped = per_channel(n, scale, axis);
  const Val y = to_steps(n, shaped, count);
  n.out(0, back ? from_steps(n, y, shaped, count) : y);
  n.out(1, axis < 0 ? n.reshape(scale, {1}) : scale);
}
void by_range(Node& n, bool back) { fake_quantize(n, largest(n, -1), -1, back); }
void by_ranges(Node& n, bool back) {
  const int64_t axis = n.get_int("quant_axis", 0);
  fake_quantize(n, largest(n, axis), axis, back);
}
// With a scale that training left behind: operand 1; what follows are training's own running sums.
void by_given(Node& n, bool back) {
  if (!n.get_bool("is_test", true))
    return n.fail(unimplemented("ranges that are still learnt; export the model for inference"));
  n.ignore("moving_rate|window_size");
  n.ignore_in(2);
  n.ignore_in(3);
  fake_quantize(n, n.in(1), -1, back);
}
void abs_max(Node& n) { by_range(n, false); }
void abs_max_back(Node& n) { by_range(n, true); }
void channels_abs_max(Node& n) { by_ranges(n, false); }
void channels_abs_max_back(Node& n) { by_ranges(n, true); }
void moving_average(Node& n) { by_given(n, false); }
void moving_average_back(Node& n) { by_given(n, true); }

// fake_dequantize_max_abs(x, scale; max_range)
void dequantize_max_abs(Node& n) {
  n.out(0, n.w().op("div", {n.w().op("mul", {n.in(0), n.reshape(n.in(1), {})}),
                            n.number(n.get_float("max_range", 127), n.dtype(0))}));
}
// fake_channel_wise_dequantize_max_abs(x, scales[]; quant_bits, quant_axis): by channels, then by all.
void channels_dequantize_max_abs(Node& n) {
  const std::vector<Val> scales = n.list(1);
  const std::vector<int64_t> bits = n.get_ints("quant_bits");
  const int64_t axis = n.get_int("quant_axis", 0), split = n.get_int("x_num_col_dims", 1);
  if (scales.empty() || scales.size() > 2 || bits.size() < scales.size())
    return n.fail(invalid_argument(cat(scales.size(), " scales and ", bits.size(), " numbers of bits")));
  // With two scales the channels are those behind the first `x_num_col_dims` axes.
  double count = steps_of(bits[0]);
  Val y = n.w().op("mul", {n.in(0), per_channel(n, scales[0], scales.size() == 2 ? split : axis)});
  if (scales.size() == 2) {
    y = n.w().op("mul", {y, n.reshape(scales[1], {})});
    count *= steps_of(bits[1]);
  }
  n.out(0, n.w().op("div", {y, n.number(count, n.dtype(0))}));
}

// quantize_linear and dequantize_linear(x, scale, zero, accumulated, state)
bool linear_operands(Node& n) {
  n.ignore("qmin|is_test");  // one step below -qmax
  n.ignore_in(3);
  n.ignore_in(4);
  const Tensor* zero = n.w().constant_of(n.in(2));
  bool none = !n.has_in(2) || zero != nullptr;
  for (int64_t k = 0; zero != nullptr && k < zero->numel(); ++k)
    none = none && element_as_double(*zero, k) == 0;
  if (!none) n.fail(unimplemented("a zero point other than 0"));
  return none;
}
void quantize_linear(Node& n) {
  const int64_t axis = n.get_int("quant_axis", 0);
  const double count = linear_steps(n);
  if (!linear_operands(n)) return;
  if (n.get_bool("only_observer", false)) return n.ignore("round_type"), n.ignore_in(1), n.out(0, n.in(0));
  n.out(0, to_steps(n, per_channel(n, n.in(1), axis), count));
}
void dequantize_linear(Node& n) {
  const int64_t axis = n.get_int("quant_axis", 0);
  const double count = linear_steps(n);
  n.ignore("round_type");
  if (!linear_operands(n)) return;
  if (n.get_bool("only_observer", false)) return n.ignore_in(1), n.out(0, n.in(0));
  const DType d = n.dtype(1);  // of the scale; x may be bytes
  const Val x = n.dtype(0) == d ? n.in(0) : n.cast(n.in(0), d);
  const Val y = n.w().op("mul", {x, per_channel(n, n.in(1), axis)});
  n.out(0, n.w().op("div", {y, n.number(count, d)}));
}

constexpr OpEntry kQuantizeOps[] = {
    {"dequantize_linear", dequantize_linear},
    {"fake_channel_wise_dequantize_max_abs", channels_dequantize_max_abs},
    {"fake_channel_wise_quantize_abs_max", channels_abs_max},
    {"fake_channel_wise_quantize_dequantize_abs_max", channels_abs_max_back},
    {"fake_dequantize_max_abs", dequantize_max_abs},
    {"fake_quantize_abs_max", abs_max},
    {"fake_quantize_dequantize_abs_max", abs_max_back},
    {"fake_quantize_dequantize_moving_average_abs_max", moving_average_back},
    {"fake_quantize_moving_average_abs_max", moving_average},
    {"fake_quantize_range_abs_max", moving_average},
    {"quantize_linear", quantize_linear},
};

}  // namespace

std::span<const OpEntry> quantize_ops() { return kQuantizeOps; }

}  // namespace oar::paddle
