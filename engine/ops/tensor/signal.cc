// Signal ops: windows, discrete Fourier transforms, mel filters. Transforms by definition, O(n^2) per line,
// with twiddles from a table.
#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

constexpr double kTau = 6.283185307179586476925;

// window(size) {kind: hann, hamming, blackman; periodic; dtype}
Status window(EvalContext& ctx) {
  OAR_ASSIGN(const int64_t n, ctx.scalar_int(0));
  OAR_ASSIGN(const DType dtype, dtype_attr(ctx, "dtype", DType::kF32));
  const std::string kind = ctx.attrs().get_string("kind");
  const int64_t dims[] = {n};
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  if (dtype == DType::kString) return invalid_argument("a window holds numbers");
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  const double period = static_cast<double>(ctx.attrs().get_int("periodic", 1) ? n : n - 1);
  std::vector<double> v(static_cast<size_t>(n));
  for (int64_t k = 0; k < n; ++k) {
    const double a = n == 1 ? 0 : kTau * static_cast<double>(k) / period;
    v[static_cast<size_t>(k)] = kind == "hann"      ? 0.5 - 0.5 * std::cos(a)
                                : kind == "hamming" ? 25.0 / 46 - 21.0 / 46 * std::cos(a)
                                                    : 0.42 - 0.5 * std::cos(a) + 0.08 * std::cos(2 * a);
  }
  ctx.set(0, from_doubles(ctx, shape, dtype, v));
  return ok_status();
}

struct Twiddles {
  std::vector<double> cosine, sine;
  explicit Twiddles(int64_t n) : cosine(static_cast<size_t>(n)), sine(static_cast<size_t>(n)) {
    for (size_t k = 0; k < cosine.size(); ++k) {
      cosine[k] = std::cos(kTau * static_cast<double>(k) / static_cast<double>(n));
      sine[k] = std::sin(kTau * static_cast<double>(k) / static_cast<double>(n));
    }
  }
};

// One line of n complex numbers; m results.
void transform(const double* re, const double* im, int64_t n, bool inverse, const Twiddles& w, double* out_re,
               double* out_im, int64_t m) {
  for (int64_t f = 0; f < m; ++f) {
    double a = 0, b = 0;
    int64_t at = 0;  // f t mod n
    for (int64_t t = 0; t < n; ++t) {
      const double c = w.cosine[static_cast<size_t>(at)],
                   s = inverse ? w.sine[static_cast<size_t>(at)] : -w.sine[static_cast<size_t>(at)];
      a += re[t] * c - im[t] * s;
      b += re[t] * s + im[t] * c;
      at += f;
      if (at >= n) at -= n;
    }
    const double scale = inverse ? 1.0 / static_cast<double>(n) : 1;
    out_re[f] = a * scale, out_im[f] = b * scale;
  }
}

// dft(x (..., 1 or 2), length?, axis?) {inverse, onesided}
Status dft(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const int rank = x.shape().rank();
  if (rank < 2 || !dtype_is_float(dtype_of(x)) || (x.shape().cols() != 1 && x.shape().cols() != 2))
    return invalid_argument("the last axis must hold 1 (real) or 2 (complex) floats");
  int64_t wanted = -2;
  if (ctx.has(2)) { OAR_ASSIGN(wanted, ctx.scalar_int(2)); }
  OAR_ASSIGN(const int axis, checked_axis(wanted, rank));
  if (axis == rank - 1) return invalid_argument("the last axis holds the parts of a number");
  const int64_t parts = x.shape().cols(), have = x.shape()[axis];
  int64_t n = have;
  const bool inverse = ctx.attrs().get_int("inverse") != 0, onesided = ctx.attrs().get_int("onesided") != 0;
  if (ctx.has(1)) {
    OAR_ASSIGN(n, ctx.scalar_int(1));
  } else if (onesided && inverse) n = 2 * (have - 1);
  if (n < 1 || n > (1 << 20)) return invalid_argument(cat("a transform of length ", n));
  const bool to_real = onesided && inverse;
  const int64_t m = onesided && !inverse ? n / 2 + 1 : n;
  std::vector<int64_t> dims = dims_of(x.shape());
  dims[static_cast<size_t>(axis)] = m, dims.back() = to_real ? 1 : 2;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  const std::vector<double> v = to_doubles(x);
  std::vector<double> y(static_cast<size_t>(shape.numel()), 0);
  const int64_t outer = extent(x.shape(), 0, axis), inner = extent(x.shape(), axis + 1, rank - 1),
                width = dims.back();
  const Twiddles w(n);
  std::vector<double> re(static_cast<size_t>(n)), im(re), fr(re), fi(re);
  for (int64_t l = 0; l < outer * inner; ++l) {
    auto at = [&](int64_t t) { return ((l / inner * have + t) * inner + l % inner) * parts; };
    for (int64_t t = 0; t < n; ++t) {
      const auto k = static_cast<size_t>(t);
      // One-sided input of an inverse: the other half is its conjugate.
      const bool mirrored = to_real && t > n / 2;
      const int64_t from = mirrored ? n - t : t;
      re[k] = from < have ? v[static_cast<size_t>(at(from))] : 0;
      im[k] = from < have && parts == 2 ? v[static_cast<size_t>(at(from) + 1)] : 0;
      if (mirrored) im[k] = -im[k];
    }
    transform(re.data(), im.data(), n, inverse, w, fr.data(), fi.data(), m);
    for (int64_t t = 0; t < m; ++t) {
      const auto to = static_cast<size_t>(((l / inner * m + t) * inner + l % inner) * width);
      y[to] = fr[static_cast<size_t>(t)];
      if (width == 2) y[to + 1] = fi[static_cast<size_t>(t)];
    }
  }
  ctx.set(0, from_doubles(ctx, shape, dtype_of(x), y));
  return ok_status();
}

// stft(x (B, L, 1 or 2), step, window?, length?) {onesided} -> (B, frames, bins, 2)
Status stft(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const int64_t step, ctx.scalar_int(1));
  if (x.shape().rank() < 2 || x.shape().rank() > 3 || !dtype_is_float(dtype_of(x)) || step < 1)
    return invalid_argument("needs (B, L, 1 or 2) of floats and a positive step");
  std::vector<double> win;
  int64_t n = 0;
  if (ctx.has(2)) {
    OAR_ASSIGN(const Tensor t, ctx.tensor(2));
    if (!dtype_is_float(dtype_of(t))) return bad_dtype(t);
    win = to_doubles(t), n = t.numel();
  }
  if (ctx.has(3)) { OAR_ASSIGN(n, ctx.scalar_int(3)); }
  if (n < 1 || n > (1 << 20) || (!win.empty() && static_cast<int64_t>(win.size()) != n))
    return invalid_argument("the frame length does not match the window");
  const int64_t B = x.shape()[0], L = x.shape()[1], parts = x.shape().rank() == 3 ? x.shape()[2] : 1;
  const bool onesided = ctx.attrs().get_int("onesided", 1) != 0;
  if ((parts != 1 && parts != 2) || L < n) return invalid_argument("the signal is shorter than a frame");
  const int64_t frames = 1 + (L - n) / step, bins = onesided ? n / 2 + 1 : n;
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{B, frames, bins, 2}));
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  const std::vector<double> v = to_doubles(x);
  std::vector<double> y(static_cast<size_t>(shape.numel())), re(static_cast<size_t>(n)), im(re), fr(re),
      fi(re);
  const Twiddles w(n);
  for (int64_t f = 0; f < B * frames; ++f) {
    for (int64_t t = 0; t < n; ++t) {
      const auto at = static_cast<size_t>((f / frames * L + f % frames * step + t) * parts),
                 k = static_cast<size_t>(t);
      const double g = win.empty() ? 1 : win[k];
      re[k] = v[at] * g, im[k] = parts == 2 ? v[at + 1] * g : 0;
    }
    transform(re.data(), im.data(), n, false, w, fr.data(), fi.data(), bins);
    for (int64_t b = 0; b < bins; ++b) {
      y[static_cast<size_t>((f * bins + b) * 2)] = fr[static_cast<size_t>(b)];
      y[static_cast<size_t>((f * bins + b) * 2 + 1)] = fi[static_cast<size_t>(b)];
    }
  }
  ctx.set(0, from_doubles(ctx, shape, dtype_of(x), y));
  return ok_status();
}

// mel_weight_matrix(bins, dft length, sample rate, lower edge, upper edge): triangular filters.
Status mel_weight_matrix(EvalContext& ctx) {
  OAR_ASSIGN(const int64_t bins, ctx.scalar_int(0));
  OAR_ASSIGN(const int64_t length, ctx.scalar_int(1));
  OAR_ASSIGN(const double rate, ctx.scalar(2));
  OAR_ASSIGN(const double low, ctx.scalar(3));
  OAR_ASSIGN(const double high, ctx.scalar(4));
  OAR_ASSIGN(const DType dtype, dtype_attr(ctx, "output_datatype", DType::kF32));
  if (bins < 1 || bins > (1 << 20) || length < 1 || length > (1 << 24) || !(rate > 0) ||
      !dtype_is_float(dtype))
    return invalid_argument("sizes and rate must be positive");
  const int64_t rows = length / 2 + 1;
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{rows, bins}));
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  auto mel = [](double hz) { return 2595 * std::log10(1 + hz / 700); };
  std::vector<int64_t> edge;
  const double step = (mel(high) - mel(low)) / static_cast<double>(bins + 2);
  for (int64_t k = 0; k < bins + 2; ++k) {
    const double hz = 700 * (std::pow(10, (mel(low) + static_cast<double>(k) * step) / 2595) - 1);
    edge.push_back(saturate_cast<int64_t>(std::floor(static_cast<double>(length + 1) * hz / rate)));
  }
  std::vector<double> v(static_cast<size_t>(shape.numel()), 0);
  for (int64_t b = 0; b < bins; ++b) {
    const int64_t from = edge[static_cast<size_t>(b)], mid = edge[static_cast<size_t>(b) + 1],
                  to = edge[static_cast<size_t>(b) + 2];
    auto put = [&](int64_t r, double w) {
      if (r >= 0 && r < rows) v[static_cast<size_t>(r * bins + b)] = w;
    };
    if (mid == from) put(mid, 1);
    else {
      for (int64_t r = std::max<int64_t>(from, 0); r <= std::min(mid, rows); ++r)
        put(r, static_cast<double>(r - from) / static_cast<double>(mid - from));
    }
    for (int64_t r = std::max<int64_t>(mid, 0); to > mid && r < std::min(to, rows); ++r)
      put(r, static_cast<double>(to - r) / static_cast<double>(to - mid));
  }
  ctx.set(0, from_doubles(ctx, shape, dtype, v));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(dft, tensor::dft);
OAR_TENSOR_OP(mel_weight_matrix, tensor::mel_weight_matrix);
OAR_TENSOR_OP(stft, tensor::stft);
OAR_TENSOR_OP(window, tensor::window);
}  // namespace oar
