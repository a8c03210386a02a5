// Transposed convolution. Windows that do not overlap (kernel = stride, no pads), as networks that enlarge
// images have them, are one product per window row. Others are plain convolutions, one for each place of a
// result pixel within a step: pixels that lie a step apart meet the same elements of the filter. What these
// do not cover (f64, dilation, three axes) is evaluated: it scatters each element times its filter.
#include <optional>

#include "engine/ops/tensor/conv.h"

namespace oar::tensor {
namespace {

// Filters of a transposed convolution without overlap: for each window row a matrix (C, KW M).
struct PreparedTranspose {
  Tensor packed;        // (KH, packed (C, KW M))
  int64_t row = 0;      // floats of one of them
  bool phases = false;  // instead: what PhaseFilters::pack() wrote
};

// Whether kernel = stride and nothing else is asked for.
bool separate_windows(const Attrs& a, const Shape& w) {
  if (w.rank() != 4 || a.get_int("group", 1) != 1 || w.numel() == 0) return false;
  const auto all = [](const std::vector<int64_t>& v, int64_t value) {
    return std::all_of(v.begin(), v.end(), [&](int64_t e) { return e == value; });
  };
  const std::vector<int64_t> strides = a.get_ints("strides");
  const std::string auto_pad = a.get_string("auto_pad", "NOTSET");
  return strides.size() == 2 && strides[0] == w[2] && strides[1] == w[3] && all(a.get_ints("pads"), 0) &&
         all(a.get_ints("output_padding"), 0) && all(a.get_ints("dilations"), 1) &&
         a.get_ints("output_shape").empty() &&
         (auto_pad == "NOTSET" || auto_pad == "VALID" || auto_pad.empty());
}

// The elements of a filter that one place within a step meets: every stride-th one from `at` on.
struct Phase {
  int64_t taps = 0;
  static Phase make(int64_t kernel, int64_t stride, int64_t at) {
    return {at < kernel ? (kernel - at + stride - 1) / stride : 0};
  }
};
// Filters (C, M / groups, KH, KW) of f32 taken apart by phases (SH, SW), each packed by groups.
struct PhaseFilters {
  int64_t C, per_out, groups, KH, KW, SH, SW, width;
  int64_t floats(int64_t i, int64_t j) const {  // of a phase
    const int64_t taps = Phase::make(KH, SH, i).taps * Phase::make(KW, SW, j).taps;
    return packed_filter_floats(groups * per_out, groups, taps, C / groups, width);
  }
  int64_t begin(int64_t i, int64_t j) const {
    int64_t at = 0;
    for (int64_t p = 0; p < i * SW + j; ++p) at += floats(p / SW, p % SW);
    return at;
  }
  int64_t all() const { return begin(SH, 0); }
  void pack(const float* w, float* to) const;
  bool reaches(const Window& v) const;
};
void PhaseFilters::pack(const float* w, float* to) const {
  const int64_t per_in = C / groups, M = groups * per_out;
  std::vector<float> own;  // (M, TH, TW, per_in), last elements first, as a convolution reads them
  for (int64_t p = 0; p < SH * SW; ++p) {
    const int64_t i = p / SW, j = p % SW, TH = Phase::make(KH, SH, i).taps, TW = Phase::make(KW, SW, j).taps;
    own.resize(static_cast<size_t>(M * TH * TW * per_in));
    float* t = own.data();
    for (int64_t m = 0; m < M; ++m) {
      const float* from = w + (m / per_out * per_in * per_out + m % per_out) * KH * KW;
      for (int64_t a = TH; a-- > 0;)
        for (int64_t b = TW; b-- > 0;)
          for (int64_t c = 0; c < per_in; ++c) *t++ = from[(c * per_out * KH + i + a * SH) * KW + j + b * SW];
    }
    if (!own.empty())
      pack_filters(to, own.data(), M, groups, TH * TW, per_in, TH * TW * per_in, 1, per_in, width);
    to += floats(i, j);
  }
}

// Those of a node, if phases are for it; strides come from a file.
std::optional<PhaseFilters> phase_filters(const Backend& backend, const Attrs& a, const Tensor& w) {
  const Shape& s = w.shape();
  const int64_t groups = a.get_int("group", 1);
  const DType dtype = dtype_of(w);
  const bool narrow = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  if (!narrow || s.rank() < 3 || s.rank() > 4 || w.numel() == 0 || groups < 1 || s[0] % groups != 0)
    return std::nullopt;
  std::vector<int64_t> strides = a.get_ints("strides");
  if (strides.empty()) strides.assign(static_cast<size_t>(s.rank() - 2), 1);
  if (static_cast<int>(strides.size()) != s.rank() - 2) return std::nullopt;
  for (const int64_t e : strides) {
    if (e < 1 || e > 16) return std::nullopt;
  }
  for (const int64_t e : a.get_ints("dilations")) {
    if (e != 1) return std::nullopt;
  }
  const bool plane = s.rank() == 4;
  return PhaseFilters{s[0],
                      s[1],
                      groups,
                      plane ? s[2] : 1,
                      s[s.rank() - 1],
                      plane ? strides[0] : 1,
                      strides.back(),
                      backend.filter_panel()};
}

// Result pixels o = r (mod stride) along one axis: their filter's phase, and the pads of their convolution.
struct Line {
  int64_t phase, taps, pad, out;
  static Line make(int64_t r, int64_t begin, int64_t kernel, int64_t stride, int64_t out) {
    const int64_t phase = (r + begin) % stride, taps = Phase::make(kernel, stride, phase).taps;
    return {phase, taps, taps - 1 - (r + begin) / stride, (out - r + stride - 1) / stride};
  }
};

// False where pads reach beyond a filter.
bool PhaseFilters::reaches(const Window& v) const {
  const int last = v.axes - 1;
  const bool plane = v.axes == 2;
  const int64_t pad_h = plane ? v.begin[0] : 0, pad_w = v.begin[last];
  if (pad_h < 0 || pad_w < 0) return false;
  for (int64_t p = 0; p < SH * SW; ++p) {
    const Line h = Line::make(p / SW, pad_h, KH, SH, plane ? v.in[0] : 1),
               w = Line::make(p % SW, pad_w, KW, SW, v.in[last]);
    if (h.taps > 0 && w.taps > 0 && (h.pad < 0 || w.pad < 0)) return false;
  }
  return true;
}

// x (N, H, W, C) -> y (N, OH, OW, M). `v` has the roles of in and out exchanged.
Status by_phases(const KernelContext& ctx, const PhaseFilters& f, const float* packed, const Window& v,
                 int64_t N, const float* x, const float* bias, const Activation& act, float* y) {
  const int last = v.axes - 1;
  const bool plane = v.axes == 2;
  const int64_t H = plane ? v.out[0] : 1, W = v.out[last], OH = plane ? v.in[0] : 1, OW = v.in[last];
  const int64_t pad_h = plane ? v.begin[0] : 0, pad_w = v.begin[last], M = f.per_out * f.groups;
  const Kernel& kernel = f32_kernel(ctx.backend(), KernelFamily::kConv);
  for (int64_t u = 0; u < N * f.SH * f.SW; ++u) {
    const int64_t n = u / (f.SH * f.SW), rh = u / f.SW % f.SH, rw = u % f.SW;
    const Line h = Line::make(rh, pad_h, f.KH, f.SH, OH), w = Line::make(rw, pad_w, f.KW, f.SW, OW);
    if (h.out <= 0 || w.out <= 0) continue;
    float* out = y + ((n * OH + rh) * OW + rw) * M;
    if (h.taps == 0 || w.taps == 0) {  // between the windows: the bias alone
      std::vector<float> pixel(static_cast<size_t>(M), 0.f);
      for (int64_t m = 0; m < M; ++m)
        pixel[static_cast<size_t>(m)] =
            static_cast<float>(act.apply(bias ? static_cast<double>(bias[m]) : 0));
      ctx.parallel(h.out * w.out, 0.2 * static_cast<double>(M), [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o)
          std::copy_n(pixel.data(), M, out + (o / w.out * f.SH * OW + o % w.out * f.SW) * M);
      });
      continue;
    }
    ConvArgs a;
    a.out = out, a.x = x + n * H * W * f.C, a.w = packed + f.begin(h.phase, w.phase), a.bias = bias;
    a.window.N = 1, a.window.H = H, a.window.W = W, a.window.OH = h.out, a.window.OW = w.out;
    a.window.KH = h.taps, a.window.KW = w.taps, a.window.pad_top = h.pad, a.window.pad_left = w.pad;
    a.window.pad_bottom = std::max<int64_t>(0, h.out - 1 + h.taps - H - h.pad);
    a.window.pad_right = std::max<int64_t>(0, w.out - 1 + w.taps - W - w.pad);
    a.C = a.ldx = f.C, a.M = M, a.groups = f.groups;
    a.ldo = f.SW * M, a.out_row = f.SH * OW * M;
    a.panel = f.width;
    a.epilogue = act.kind, a.alpha = act.alpha, a.beta = act.beta;
    OAR_RETURN_IF_ERROR(
        run_kernel(ctx, kernel, &a,
                   product_ns(static_cast<double>(h.out * w.out),
                              static_cast<double>(h.taps * w.taps * f.C * f.per_out), 0.02, 4)));
  }
  return ok_status();
}

Result<std::shared_ptr<const void>> prepare(PrepareContext& ctx) {
  if (!ctx.constant(1)) return std::shared_ptr<const void>();
  const Tensor& w = *ctx.constant(1);
  if (dtype_of(w) != DType::kF32 || !separate_windows(ctx.node().attrs, w.shape())) {
    const auto filters = phase_filters(ctx.backend(), ctx.node().attrs, w);
    if (!filters) return std::shared_ptr<const void>();
    auto p = std::make_shared<PreparedTranspose>();
    p->phases = true;
    OAR_ASSIGN(p->packed,
               ctx.pack(1, cat("phases of ", filters->groups, " groups, ", filters->SH, "x", filters->SW),
                        {filters->all()}, DType::kF32, [&](Tensor& t) {
                          const Tensor f32 = must(as_f32(w));
                          filters->pack(elements<float>(f32), mutable_elements<float>(t));
                        }));
    return std::shared_ptr<const void>(std::move(p));
  }
  const int64_t C = w.shape()[0], M = w.shape()[1], KH = w.shape()[2], KW = w.shape()[3];
  auto p = std::make_shared<PreparedTranspose>();
  p->row = packed_filter_floats(KW * M, 1, 1, C, ctx.backend().filter_panel());
  const auto fill = [&](Tensor& t) {
    std::vector<float> matrix(static_cast<size_t>(C * KW * M));  // (C, KW, M) of one window row
    for (int64_t i = 0; i < KH; ++i) {
      for (int64_t c = 0; c < C; ++c)
        for (int64_t j = 0; j < KW; ++j)
          for (int64_t m = 0; m < M; ++m)
            matrix[static_cast<size_t>((c * KW + j) * M + m)] =
                elements<float>(w)[((c * M + m) * KH + i) * KW + j];
      pack_filters(mutable_elements<float>(t) + i * p->row, matrix.data(), KW * M, 1, 1, C, 1, KW * M, 0,
                   ctx.backend().filter_panel());
    }
  };
  OAR_ASSIGN(p->packed, ctx.pack(1, "rows of windows", {KH * p->row}, DType::kF32, fill));
  return std::shared_ptr<const void>(std::move(p));
}

// x (N, H, W, C) -> y (N, H KH, W KW, M): input row h makes output rows h KH + i.
Status enlarge(const KernelContext& ctx, const PreparedTranspose& p, const float* x, const Shape& in,
               const Shape& w, const float* bias, const Activation& act, float* y) {
  const int64_t N = in[0], C = in[1], H = in[2], W = in[3], M = w[1], KH = w[2], KW = w[3];
  std::vector<float> spread;  // the bias once per column of the window
  for (int64_t j = 0; bias && j < KW; ++j) spread.insert(spread.end(), bias, bias + M);
  const Kernel& kernel = f32_kernel(ctx.backend(), KernelFamily::kConv);
  for (int64_t i = 0; i < KH; ++i) {
    ConvArgs a;
    a.out = y + i * W * KW * M;
    a.x = x, a.w = elements<float>(p.packed) + i * p.row;
    a.bias = bias ? spread.data() : nullptr;
    a.window.N = N, a.window.H = a.window.OH = H, a.window.W = a.window.OW = W;
    a.C = a.ldx = C, a.M = a.ldo = KW * M, a.out_row = KH * W * KW * M;
    a.panel = ctx.backend().filter_panel();
    a.epilogue = act.kind, a.alpha = act.alpha, a.beta = act.beta;
    OAR_RETURN_IF_ERROR(
        run_kernel(ctx, kernel, &a, 0.02 * static_cast<double>(N * H * W) * static_cast<double>(C * KW * M)));
  }
  return ok_status();
}

// What evaluation and kernels begin with.
struct TransposeCall {
  Tensor x, w, bias;  // the last may be left out
  Activation act;
  bool nhwc = false;
  Shape in, out;  // with channels first
  Window v;       // with the roles of in and out exchanged: v.out are the operand's extents
  int64_t groups = 1, N = 0, C = 0, M = 0;
};
Result<TransposeCall> transpose_call(const EvalContext& ctx) {
  TransposeCall o;
  OAR_ASSIGN(o.x, ctx.tensor(0));
  OAR_ASSIGN(o.w, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_same_dtype(o.x, o.w));
  OAR_ASSIGN(o.act, activation_of(ctx.attrs()));
  o.nhwc = is_nhwc(ctx.attrs());
  if (o.nhwc && o.x.shape().rank() != 4) return invalid_argument("channels-last convolution needs four axes");
  o.in = o.nhwc ? channels_first(o.x.shape()) : o.x.shape();
  const int axes = o.in.rank() - 2;
  const Attrs& a = ctx.attrs();
  o.groups = a.get_int("group", 1);
  if (axes < 1 || o.w.shape().rank() != o.in.rank() || o.groups < 1 || o.in[1] != o.w.shape()[0] ||
      o.in[1] % o.groups != 0) {
    return invalid_argument("the weight does not match the operand");
  }
  if (!dtype_is_float(dtype_of(o.x))) return bad_dtype(o.x);
  o.N = o.in[0], o.C = o.in[1], o.M = o.w.shape()[1] * o.groups;
  const auto n = static_cast<size_t>(axes);
  auto list = [&](const char* name, int64_t fallback) {
    std::vector<int64_t> v = a.get_ints(name);
    if (v.empty()) v.assign(n, fallback);
    return v;
  };
  const auto strides = list("strides", 1), dilations = list("dilations", 1),
             extra = list("output_padding", 0);
  std::vector<int64_t> pads = a.get_ints("pads"), wanted = a.get_ints("output_shape");
  if (pads.empty()) pads.assign(2 * n, 0);
  if (wanted.size() == n + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  if (strides.size() != n || dilations.size() != n || extra.size() != n || pads.size() != 2 * n ||
      (!wanted.empty() && wanted.size() != n)) {
    return invalid_argument("attributes have another number of axes than the operand");
  }
  const std::string auto_pad = a.get_string("auto_pad", "NOTSET");
  Window& v = o.v;
  v.axes = axes;
  std::vector<int64_t> dims{o.N, o.M};
  for (size_t k = 0; k < n; ++k) {
    constexpr int64_t kMost = int64_t{1} << 31;
    v.out[k] = o.in[static_cast<int>(k) + 2], v.kernel[k] = o.w.shape()[static_cast<int>(k) + 2];
    v.stride[k] = strides[k], v.dilation[k] = dilations[k];
    if (v.stride[k] < 1 || v.dilation[k] < 1 || v.kernel[k] < 1 || v.stride[k] > kMost ||
        v.dilation[k] > kMost || v.out[k] > kMost || v.kernel[k] > kMost || std::abs(extra[k]) > kMost ||
        std::abs(pads[k]) > kMost || std::abs(pads[k + n]) > kMost) {
      return invalid_argument("strides, dilations and pads are out of range");
    }
    const int64_t full = v.stride[k] * (v.out[k] - 1) + extra[k] + (v.kernel[k] - 1) * v.dilation[k] + 1;
    if (!wanted.empty() || auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      v.in[k] = wanted.empty() ? v.out[k] * v.stride[k] : wanted[k];
      const int64_t total = std::max<int64_t>(0, full - v.in[k]);  // a larger result grows at its end
      v.begin[k] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    } else {
      v.begin[k] = pads[k];
      v.in[k] = full - pads[k] - pads[k + n];
    }
    dims.push_back(v.in[k]);
  }
  OAR_ASSIGN(o.out, checked_shape(dims));
  if (ctx.has(2)) {
    OAR_ASSIGN(o.bias, ctx.tensor(2));
    if (o.bias.numel() != o.M || !(o.bias.format() == o.x.format()))
      return invalid_argument("the bias needs one value per filter");
  }
  return o;
}

// f32 of one or two axes, and 16-bit floats by way of it.
Result<bool> transpose_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const TransposeCall o, transpose_call(ctx));
  const DType dtype = dtype_of(o.x);
  const auto* p = ctx.prepared<PreparedTranspose>();
  const bool separate = p != nullptr && !p->phases && dtype == DType::kF32;
  if (o.v.axes > 2 || o.out.numel() == 0) return false;
  std::optional<PhaseFilters> filters;
  if (!separate) {
    filters = phase_filters(ctx.backend(), ctx.attrs(), o.w);
    if (!filters || !filters->reaches(o.v)) return false;
  }
  Tensor own, bias, turned, y;
  OAR_ASSIGN(const Tensor x, as_f32(ctx, o.x));
  if (o.bias.defined()) { OAR_ASSIGN(bias, as_f32(ctx, o.bias)); }
  if (!separate && (p == nullptr || !p->phases)) {
    OAR_ASSIGN(own, ctx.allocate({filters->all()}, DType::kF32));
    OAR_ASSIGN(const Tensor w, as_f32(ctx, o.w));
    if (!ctx.options().sizing) filters->pack(elements<float>(w), mutable_elements<float>(own));
  }
  OAR_ASSIGN(y, ctx.allocate(o.nhwc ? channels_last(o.out) : o.out, DType::kF32));
  const int64_t ins = o.v.out_size(), outs = o.v.in_size();
  const float *px = elements<float>(x), *pb = bias.defined() ? elements<float>(bias) : nullptr;
  float* py = mutable_elements<float>(y);
  Tensor last;
  if (!o.nhwc) {
    OAR_ASSIGN(turned, ctx.allocate({o.N, ins, o.C}, DType::kF32));
    OAR_ASSIGN(last, ctx.allocate({o.N, outs, o.M}, DType::kF32));
    to_channels_last(ctx, px, mutable_elements<float>(turned), o.N, o.C, ins);
    px = elements<float>(turned), py = mutable_elements<float>(last);
  }
  if (separate) {
    OAR_RETURN_IF_ERROR(enlarge(ctx, *p, px, o.in, o.w.shape(), pb, o.act, py));
  } else {
    const float* packed = elements<float>(own.defined() ? own : p->packed);
    OAR_RETURN_IF_ERROR(by_phases(ctx, *filters, packed, o.v, o.N, px, pb, o.act, py));
  }
  if (!o.nhwc) to_channels_first(ctx, py, mutable_elements<float>(y), o.N, o.M, outs);
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return true;
}

// Windows that do not overlap, on a device, whose filters lie one after the other: for each place within a
// window one product, whose results lie a window apart. Everything else is evaluated.
Lowered lower_conv_transpose(LowerContext& ctx) {
  const auto* p = static_cast<const PreparedTranspose*>(ctx.prepared);
  const ValueInfo& x = ctx.operands[0];
  const Attrs& attrs = ctx.node.attrs;
  if (p == nullptr || p->phases || ctx.backend.filter_panel() != 1 || !is_nhwc(attrs) || !is_f32(x) ||
      x.shape.rank() != 4 || x.shape.numel() == 0)
    return not_lowered();
  const Shape& w = ctx.operands[1].shape;
  const int64_t N = x.shape[0], H = x.shape[1], W = x.shape[2], C = x.shape[3], M = w[1], KH = w[2],
                KW = w[3];
  if (C != w[0] || (ctx.given(2) && (!is_f32(ctx.operands[2]) || ctx.operands[2].shape.numel() != M)))
    return not_lowered();
  OAR_ASSIGN(const Activation act, activation_of(attrs));
  const int64_t dims[] = {N, H * KH, W * KW, M};
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  const Kernel& kernel = f32_kernel(ctx.backend, KernelFamily::kConv);
  ConvArgs a;
  a.window.N = N, a.window.H = a.window.OH = H, a.window.W = a.window.OW = W;
  a.C = a.ldx = C, a.M = M, a.groups = 1, a.ldo = KW * M, a.out_row = KH * W * KW * M;
  a.panel = 1;
  a.epilogue = act.kind, a.alpha = act.alpha, a.beta = act.beta;
  const double ns = 0.02 * static_cast<double>(N * H * W) * static_cast<double>(C * M);
  auto op = std::make_unique<LoweredCalls>();
  for (int64_t place = 0; place < KH * KW; ++place) {
    const int64_t i = place / KW, j = place % KW, to = (i * W * KW + j) * M;
    a.w = elements<float>(p->packed) + i * p->row + j * M * C;
    op->calls.push_back(part_call(kernel, a, ns, {0, 2}, {LoweredCall::kResult},
                                  [to](ConvArgs& c, const Operand* in, const Operand* out) {
                                    c.out = out[0].as<float>() + to, c.x = in[0].as<const float>();
                                    c.bias = in[1].as<const float>();
                                  }));
  }
  ctx.taken.push_back(1);
  ctx.results->assign(1, {Format::f32(), shape, true});
  return std::unique_ptr<LoweredOp>(std::move(op));
}

// conv_transpose(x (N, C, ...), weight (C, M / groups, ...), bias?): scatters each element times its filter.
Status conv_transpose(EvalContext& ctx) {
  OAR_ASSIGN(const TransposeCall o, transpose_call(ctx));
  const Window& v = o.v;
  const int64_t outs = v.in_size(), ins = v.out_size(), kernel = v.kernel_size(), M = o.M;
  const int64_t per_out = M / o.groups, per_in = o.C / o.groups;
  const int64_t pixel = o.nhwc ? o.C : 1, channel = o.nhwc ? 1 : ins;  // steps in x
  const std::vector<double> px = to_doubles(o.x), pw = to_doubles(o.w),
                            pb = o.bias.defined() ? to_doubles(o.bias) : std::vector<double>();
  OAR_RETURN_IF_ERROR(ctx.check_size(o.out, DType::kF64));
  std::vector<double> y(static_cast<size_t>(o.out.numel()), 0);
  ctx.parallel(o.N * M, static_cast<double>(per_in * ins * kernel), [&](int64_t begin, int64_t end) {
    std::vector<double> plane(static_cast<size_t>(outs));
    for (int64_t nm = begin; nm < end; ++nm) {
      const int64_t image = nm / M, m = nm % M, g = m / per_out;
      std::fill(plane.begin(), plane.end(), pb.empty() ? 0.0 : pb[static_cast<size_t>(m)]);
      for (int64_t k = 0; k < per_in; ++k) {
        const double* src = px.data() + image * o.C * ins + (g * per_in + k) * channel;
        const double* filter = pw.data() + ((g * per_in + k) * per_out + m % per_out) * kernel;
        for (int64_t i = 0; i < ins; ++i) {
          walk_window(v, i, [&](int64_t e, int64_t at) {
            plane[static_cast<size_t>(at)] += src[i * pixel] * filter[e];
          });
        }
      }
      for (int64_t i = 0; i < outs; ++i)
        y[static_cast<size_t>(o.nhwc ? (image * outs + i) * M + m : nm * outs + i)] =
            o.act.apply(plane[static_cast<size_t>(i)]);
    }
  });
  ctx.set(0, from_doubles(ctx, o.nhwc ? channels_last(o.out) : o.out, dtype_of(o.x), y));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
extern const OpDef op_conv_transpose = {.name = "conv_transpose",
                                        .vjp = gradient::conv_transpose,
                                        .evaluate = tensor::conv_transpose,
                                        .by_kernels = tensor::transpose_by_kernels,
                                        .prepare = tensor::prepare,
                                        .lower = tensor::lower_conv_transpose,
                                        .no_gradient_of = "auto_pad SAME, output_shape"};
}  // namespace oar
