// What balances the channels of attention heads, computed from weights alone (graph/passes/rotate.h says
// what for). Only weight expressions hold these ops; no step of a model runs them.
//
//   row_power(w (R, C), gain (C), bias (R), head_norm (D); the last three or none) {begin, end} -> (end -
//   begin)
//     the mean square of rows begin .. of a linear layer's output (end 0: all), for inputs that are
//     independent and of mean square gain^2 (1 where there is none); behind an RMS norm of each head of D
//     with this weight.
//   column_power(w (R, C)) -> (C)
//     how much noise of mean square 1 in a column's input adds to the output, over all rows.
//   equalizing_scale(kept (K D), read (H D), bias (K D) or none, inv_freq (F) or none) {head, interleaved,
//   page} -> (K D)
//     kept: mean squares of the channels of K heads of `head`, which are stored with a noise as large for
//     each channel of a head; read: the weight of that noise, summed over the H / K heads that share one.
//     Noise is proportional to sum(kept / s^2), what it does to sum(read s^2); the product is least for
//         s = (kept / read)^(1/4),
//     by Cauchy and Schwarz never more than without s; each head is normalized to keep sum(kept). As both are
//     estimates, s moves only where they differ by more than kUnsure.
//     inv_freq: the heads go through rope, which mixes pairs of channels; both have the pair's mean.
//     bias: a constant added to each channel before rope. Over a cache that takes the mean off every `page`
//     tokens what counts is its turning within them; else (0) all of it.
#include <algorithm>
#include <cmath>

#include "engine/ops/op_util.h"
#include "kernels/thread_pool.h"

namespace oar {
namespace {

// What the logarithm of kept / read may be wrong by: so much is taken off its distance from the head's
// middle, and what is nearer is left alone. Inputs of trained models are not all of one size; taken at its
// word the estimate made the default model's 4-bit cache lose 5 % more, while a ratio of e that is left in
// place costs at most cosh(1/2)^2 = 1.27 of the least there is, 1 dB.
constexpr double kUnsure = 1;

Status check_matrix(const Graph& g, Ids in) {
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 2, "w"));
  for (const Dim& d : shape_of(g, in[0])) {
    if (!d.is_const()) return invalid_argument("w has a symbolic size");
  }
  return ok_status();
}

Status check_vector(const Graph& g, Ids in, size_t k, int64_t n, const char* what) {
  if (!given(in, k)) return ok_status();
  OAR_RETURN_IF_ERROR(check_rank(g, in, k, 1, what));
  return check_same(shape_of(g, in[k])[0], Dim(n), what);
}

struct Range {
  int64_t begin, end;
};
Range rows_of(const Attrs& attrs, int64_t rows) {
  return {attrs.get_int("begin"), attrs.get_int("end") > 0 ? attrs.get_int("end") : rows};
}

Types row_power_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 4));
  OAR_RETURN_IF_ERROR(check_matrix(g, in));
  const int64_t rows = shape_of(g, in[0])[0].const_value(), cols = shape_of(g, in[0])[1].const_value();
  OAR_RETURN_IF_ERROR(check_vector(g, in, 1, cols, "gain and columns"));
  OAR_RETURN_IF_ERROR(check_vector(g, in, 2, rows, "bias and rows"));
  const auto [begin, end] = rows_of(attrs, rows);
  if (begin < 0 || end > rows || begin >= end)
    return invalid_argument(cat("[", begin, ", ", end, ") is outside ", rows, " rows"));
  if (given(in, 3)) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, 3, 1, "head norm"));
    const int64_t head = shape_of(g, in[3])[0].const_value();
    if (head < 1 || (end - begin) % head != 0)
      return invalid_argument(cat("heads of ", head, " do not fill ", end - begin, " rows"));
  }
  return std::vector<TensorType>{f32_type({Dim(end - begin)})};
}

Types column_power_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 1));
  OAR_RETURN_IF_ERROR(check_matrix(g, in));
  return std::vector<TensorType>{f32_type({shape_of(g, in[0])[1]})};
}

// What an RMS norm makes of the mean squares of each head's channels.
void normalize_heads(std::span<double> power, std::span<const double> norm) {
  const size_t D = norm.size();
  for (size_t first = 0; D > 0 && first < power.size(); first += D) {
    double mean = 0;
    for (size_t i = 0; i < D; ++i) mean += power[first + i] / static_cast<double>(D);
    for (size_t i = 0; i < D; ++i) power[first + i] *= mean > 0 ? norm[i] * norm[i] / mean : 0;
  }
}

Status row_power_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const auto cols = static_cast<size_t>(in[0]->shape[1]);
  const auto [begin, end] = rows_of(attrs, in[0]->shape[0]);
  const auto operand = [&](size_t k) { return k < in.size() ? in[k] : nullptr; };
  out[0].f.assign(static_cast<size_t>(end - begin), 0);
  for (size_t r = 0; r < out[0].f.size(); ++r) {
    const size_t row = static_cast<size_t>(begin) + r;
    for (size_t c = 0; c < cols; ++c)
      out[0].f[r] += std::pow(in[0]->f[row * cols + c] * (operand(1) ? in[1]->f[c] : 1), 2);
    if (operand(2)) out[0].f[r] += std::pow(in[2]->f[row], 2);
  }
  if (operand(3)) normalize_heads(out[0].f, in[3]->f);
  return ok_status();
}
Status row_power_evaluate(EvalContext& ctx) { return evaluate_as(ctx, row_power_infer, row_power_reference); }

Status column_power_reference(HostInputs in, const Attrs&, std::span<HostValue> out) {
  const auto rows = static_cast<size_t>(in[0]->shape[0]), cols = static_cast<size_t>(in[0]->shape[1]);
  out[0].f.assign(cols, 0);
  for (size_t i = 0; i < rows * cols; ++i) out[0].f[i % cols] += in[0]->f[i] * in[0]->f[i];
  return ok_status();
}
Status column_power_evaluate(EvalContext& ctx) {
  return evaluate_as(ctx, column_power_infer, column_power_reference);
}

Result<std::vector<double>> doubles(std::span<const Tensor> operands, size_t k) {
  std::vector<double> out;
  if (k >= operands.size() || !operands[k].defined()) return out;
  OAR_ASSIGN(const Tensor f32, to_f32(operands[k]));
  const auto values = f32.values<float>();
  out.assign(values.begin(), values.end());
  return out;
}

// Folding looks at about so many numbers of a long row or column, evenly spread, and scales their sum: it is
// off by sqrt(2 / 512) = 6 % or so, which is nothing beside kUnsure, and all of an 8B model's attention would
// take a second.
constexpr int64_t kSample = 512;

// Blocks [first, last) of every row begin, begin + step, .. below end, as numbers: take(row, column of the
// first, numbers).
template <class Take>
void each_row(const Tensor& w, int64_t begin, int64_t end, int64_t step, int64_t first, int64_t last,
              Take&& take) {
  const Format format = w.format();
  const int64_t block = format.block_elems(), stride = format.stride(w.shape()[1]);
  std::vector<float> numbers(static_cast<size_t>((last - first) * block));
  const auto* bytes = static_cast<const std::byte*>(w.data());
  for (int64_t r = begin; r < end; r += step) {
    format.info().decode(bytes + r * stride, first, last - first, numbers.data());
    take(r, first * block, std::span<const float>(numbers));
  }
}

// Sixteen sums, as wide as a vector; their order is fixed.
double weighted_squares(std::span<const float> x, std::span<const float> weight) {
  float part[16] = {};
  size_t c = 0;
  for (; c + 16 <= x.size(); c += 16) {
    for (size_t k = 0; k < 16; ++k) part[k] += x[c + k] * x[c + k] * weight[c + k];
  }
  double sum = 0;
  for (; c < x.size(); ++c) sum += static_cast<double>(x[c] * x[c] * weight[c]);
  for (const float p : part) sum += static_cast<double>(p);
  return sum;
}

Result<Tensor> f32_tensor(std::span<const double> values) {
  OAR_ASSIGN(Tensor t, Tensor::allocate({static_cast<int64_t>(values.size())}, Format::f32()));
  std::transform(values.begin(), values.end(), t.mutable_values<float>().begin(),
                 [](double v) { return static_cast<float>(v); });
  return t;
}

Result<Tensor> row_power_fold(std::span<const Tensor> in, const Attrs& attrs, ThreadPool& pool) {
  const Tensor& w = in[0];
  const int64_t cols = w.shape()[1], block = w.format().block_elems(), blocks = cols / block;
  const int64_t run = std::max<int64_t>(1, 64 / block), stride = run * std::max<int64_t>(1, cols / kSample);
  const Range part = rows_of(attrs, w.shape()[0]);
  OAR_ASSIGN(const std::vector<double> gain, doubles(in, 1));
  OAR_ASSIGN(const std::vector<double> bias, doubles(in, 2));
  OAR_ASSIGN(const std::vector<double> norm, doubles(in, 3));
  std::vector<float> weight(static_cast<size_t>(cols), 1.f);
  for (size_t c = 0; c < gain.size(); ++c) weight[c] = static_cast<float>(gain[c] * gain[c]);
  std::vector<double> power(static_cast<size_t>(part.end - part.begin));
  int64_t sampled = 0;
  for (int64_t k = 0; k < blocks; k += stride) sampled += (std::min(blocks, k + run) - k) * block;
  const double all = static_cast<double>(cols) / static_cast<double>(sampled);
  pool.parallel_for(part.end - part.begin, std::max<int64_t>(1, 65536 / cols), [&](int64_t from, int64_t to) {
    for (int64_t k = 0; k < blocks; k += stride) {
      each_row(w, part.begin + from, part.begin + to, 1, k, std::min(blocks, k + run),
               [&](int64_t r, int64_t column, std::span<const float> x) {
                 power[static_cast<size_t>(r - part.begin)] +=
                     weighted_squares(x, std::span(weight).subspan(static_cast<size_t>(column), x.size()));
               });
    }
    for (int64_t r = from; r < to; ++r) {
      const double b = bias.empty() ? 0 : bias[static_cast<size_t>(part.begin + r)];
      power[static_cast<size_t>(r)] = power[static_cast<size_t>(r)] * all + b * b;
    }
  });
  normalize_heads(power, norm);
  return f32_tensor(power);
}

Result<Tensor> column_power_fold(std::span<const Tensor> in, const Attrs&, ThreadPool& pool) {
  const Tensor& w = in[0];
  const int64_t block = w.format().block_elems(), blocks = w.shape()[1] / block;
  const int64_t rows = w.shape()[0], step = std::max<int64_t>(1, rows / kSample);
  const double all = static_cast<double>(rows) / static_cast<double>((rows + step - 1) / step);
  const int64_t run = std::max<int64_t>(1, 256 / block);  // columns that one task keeps in the first cache
  std::vector<double> power(static_cast<size_t>(w.shape()[1]), 0);
  pool.parallel_for((blocks + run - 1) / run, 1, [&](int64_t from, int64_t to) {
    for (int64_t k = from; k < to; ++k) {
      each_row(w, 0, rows, step, k * run, std::min(blocks, (k + 1) * run),
               [&](int64_t, int64_t column, std::span<const float> x) {
                 double* sum = power.data() + column;
                 for (size_t c = 0; c < x.size(); ++c) sum[c] += static_cast<double>(x[c] * x[c]);
               });
    }
  });
  for (double& p : power) p *= all;
  return f32_tensor(power);
}

Types scale_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 4));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 1, "kept"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 1, "read"));
  const int64_t kept = shape_of(g, in[0])[0].const_value(), read = shape_of(g, in[1])[0].const_value();
  const int64_t head = attrs.get_int("head");
  if (head < 1 || kept < 1 || kept % head != 0 || read % kept != 0)
    return invalid_argument(cat(read, " channels that read ", kept, " in heads of ", head));
  OAR_RETURN_IF_ERROR(check_vector(g, in, 2, kept, "bias and kept channels"));
  if (given(in, 3)) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, 3, 1, "inv_freq"));
    if (2 * shape_of(g, in[3])[0].const_value() > head)
      return invalid_argument("inv_freq rotates more channels than a head has");
  }
  return std::vector<TensorType>{f32_type({Dim(kept)})};
}

// Of the power of a constant that turns by `angle` from token to token, what is left when the mean over
// `page` of them is taken off: 1 - |sum exp(i angle t) / page|^2.
double left_by_mean(double angle, int64_t page) {
  if (page <= 0) return 1;
  const double half = std::sin(angle / 2), n = static_cast<double>(page);
  if (std::abs(half) < 1e-9) return 0;
  return 1 - std::pow(std::sin(angle / 2 * n) / (n * half), 2);
}

// s of one head's channels.
void balance(std::span<double> kept, std::span<double> read, std::span<double> scale) {
  const auto n = static_cast<double>(kept.size());
  double all_kept = 0, all_read = 0;
  for (const double p : kept) all_kept += p;
  for (const double p : read) all_read += p;
  std::fill(scale.begin(), scale.end(), 1.0);
  if (!(all_kept > 0 && all_read > 0) || !std::isfinite(all_kept) || !std::isfinite(all_read)) return;
  // How much more each channel holds than is asked of it, against the middle one. A channel that is never
  // used or never read would have none: no power counts as less than 1e-8 of the head's mean.
  std::vector<double> excess(scale.size());
  for (size_t i = 0; i < excess.size(); ++i)
    excess[i] = std::log(std::max(kept[i] / all_kept, 1e-8 / n) / std::max(read[i] / all_read, 1e-8 / n));
  std::vector<double> sorted = excess;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  double after = 0;
  for (size_t i = 0; i < scale.size(); ++i) {
    const double e = excess[i] - *middle, sure = std::max(std::abs(e) - kUnsure, 0.0);
    scale[i] = std::exp(std::copysign(sure, e) / 4);
    after += kept[i] / all_kept / (scale[i] * scale[i]);
  }
  for (double& s : scale) s *= std::sqrt(after);
}

Status scale_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const auto D = static_cast<size_t>(attrs.get_int("head"));
  const int64_t page = attrs.get_int("page");
  const bool interleaved = attrs.get_bool("interleaved");
  const size_t channels = in[0]->f.size(), heads = channels / D, sharing = in[1]->f.size() / channels;
  const HostValue* bias = in.size() > 2 ? in[2] : nullptr;
  const HostValue* inv_freq = in.size() > 3 ? in[3] : nullptr;
  out[0].f.assign(channels, 1);
  std::vector<double> kept(D), read(D);
  for (size_t h = 0; h < heads; ++h) {
    const double* b = bias ? bias->f.data() + h * D : nullptr;
    for (size_t i = 0; i < D; ++i) {
      kept[i] = in[0]->f[h * D + i] + (b ? b[i] * b[i] * left_by_mean(0, page) : 0);
      read[i] = 0;
      for (size_t g = 0; g < sharing; ++g) read[i] += in[1]->f[(h * sharing + g) * D + i];
    }
    const size_t pairs = inv_freq ? inv_freq->f.size() : 0;
    for (size_t p = 0; p < pairs; ++p) {
      const size_t u = interleaved ? 2 * p : p, v = interleaved ? u + 1 : p + pairs;
      double power = (in[0]->f[h * D + u] + in[0]->f[h * D + v]) / 2;
      if (b) power += (b[u] * b[u] + b[v] * b[v]) / 2 * left_by_mean(inv_freq->f[p], page);
      kept[u] = kept[v] = power;
      read[u] = read[v] = (read[u] + read[v]) / 2;
    }
    balance(kept, read, std::span(out[0].f).subspan(h * D, D));
  }
  return ok_status();
}
Status scale_evaluate(EvalContext& ctx) { return evaluate_as(ctx, scale_infer, scale_reference); }

}  // namespace

extern const OpDef op_row_power = {
    .name = "row_power", .infer = row_power_infer, .evaluate = row_power_evaluate, .fold = row_power_fold};
extern const OpDef op_column_power = {.name = "column_power",
                                      .infer = column_power_infer,
                                      .evaluate = column_power_evaluate,
                                      .fold = column_power_fold};
extern const OpDef op_equalizing_scale = {
    .name = "equalizing_scale", .infer = scale_infer, .evaluate = scale_evaluate};

}  // namespace oar
