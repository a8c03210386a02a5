// Ops that move elements of any dtype and compute nothing: shapes, slices, concatenation, padding, tiling.
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/tensor/moved.h"

namespace oar::tensor {
namespace {

Status reshape_to(EvalContext& ctx, const Tensor& x, std::span<const int64_t> dims) {
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, x.reshape(shape));
  ctx.set(0, std::move(y));
  return ok_status();
}

Status flatten(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const int rank = x.shape().rank();
  int64_t axis = ctx.attrs().get_int("axis", 1);
  if (axis < -rank || axis > rank) return invalid_argument(cat("axis ", axis, " is out of range"));
  if (axis < 0) axis += rank;
  const int64_t dims[] = {extent(x.shape(), 0, static_cast<int>(axis)),
                          extent(x.shape(), static_cast<int>(axis), rank)};
  return reshape_to(ctx, x, dims);
}

Status squeeze(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const std::vector<int64_t> axes, ctx.ints_or_attr(1, "axes"));
  const int rank = x.shape().rank();
  std::vector<bool> drop(static_cast<size_t>(rank), false);
  for (int64_t a : axes) {
    OAR_ASSIGN(const int axis, checked_axis(a, rank));
    if (x.shape()[axis] != 1)
      return invalid_argument(cat("axis ", a, " has extent ", x.shape()[axis], ", not 1"));
    drop[static_cast<size_t>(axis)] = true;
  }
  std::vector<int64_t> dims;
  for (int k = 0; k < rank; ++k) {
    const bool gone = axes.empty() ? x.shape()[k] == 1 : drop[static_cast<size_t>(k)];
    if (!gone) dims.push_back(x.shape()[k]);
  }
  return reshape_to(ctx, x, dims);
}

Status unsqueeze(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const std::vector<int64_t> axes, ctx.ints_or_attr(1, "axes"));
  const auto rank =
      static_cast<int>(std::min<size_t>(64, static_cast<size_t>(x.shape().rank()) + axes.size()));
  std::vector<int64_t> dims(static_cast<size_t>(rank), -1);
  for (int64_t a : axes) {
    OAR_ASSIGN(const int axis, checked_axis(a, rank));
    if (dims[static_cast<size_t>(axis)] == 1) return invalid_argument(cat("axis ", a, " is named twice"));
    dims[static_cast<size_t>(axis)] = 1;
  }
  int next = 0;
  for (int64_t& d : dims) {
    if (d == -1) d = x.shape()[next++];
  }
  return reshape_to(ctx, x, dims);
}

Status expand_to(EvalContext& ctx, const Shape& shape) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &shape}));
  if (b.shape() == x.shape()) return ctx.set(0, x), ok_status();
  OAR_ASSIGN(Tensor y, ctx.allocate(b.shape(), dtype_of(x)));
  dispatch_move(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.parallel(b.numel(), 0.5, [&](int64_t begin, int64_t end) {
      b.runs(begin, end, [&](int64_t at, const auto& from, int64_t n, const auto& step) {
        const T* p = elements<T>(x) + from[0];
        T* o = mutable_elements<T>(y) + at;
        for (int64_t k = 0; k < n; ++k) o[k] = p[k * step[0]];
      });
    });
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

// expand(x, shape or none, like or none) {shape}: x repeated to the shape, or to that of `like`, whose values
// are not read.
Status expand(EvalContext& ctx) {
  if (!ctx.has(2)) {
    OAR_ASSIGN(const std::vector<int64_t> dims, ctx.ints_or_attr(1, "shape"));
    OAR_ASSIGN(const Shape shape, checked_shape(dims));
    return expand_to(ctx, shape);
  }
  if (ctx.has(1)) return invalid_argument("a shape is given, and a value that has one");
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor like, ctx.tensor(2));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &like.shape()}));
  if (!(b.shape() == like.shape()))
    return invalid_argument(cat(x.shape().to_string(), " does not repeat to ", like.shape().to_string()));
  return expand_to(ctx, like.shape());
}

// Copies a strided box: out[i...] = x[base + sum i_k * stride_k].
void gather_box(const EvalContext& ctx, const Tensor& x, const Tensor& y, int64_t base,
                std::span<const int64_t> strides) {
  const Shape& s = y.shape();
  const int rank = s.rank();
  if (y.numel() == 0) return;
  const int64_t inner = rank > 0 ? s[rank - 1] : 1,
                step = rank > 0 ? strides[static_cast<size_t>(rank - 1)] : 1;
  dispatch_move(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* in = elements<T>(x);
    T* out = mutable_elements<T>(y);
    ctx.parallel(y.numel() / inner, 0.5 * static_cast<double>(inner), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        int64_t rest = r, at = base;
        for (int k = rank - 2; k >= 0; --k) at += rest % s[k] * strides[static_cast<size_t>(k)], rest /= s[k];
        T* o = out + r * inner;
        if (step == 1) std::copy_n(in + at, inner, o);
        else {
          for (int64_t k = 0; k < inner; ++k) o[k] = in[at + k * step];
        }
      }
    });
  });
}

// split(x, sizes?) {axis}: as many parts as the node has results, of the sizes given or as equal as can be.
Status split(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis"), x.shape().rank()));
  OAR_ASSIGN(std::vector<int64_t> sizes, ctx.ints_or_attr(1, "sizes"));
  const auto parts = static_cast<int64_t>(ctx.num_outputs());
  const int64_t n = x.shape()[axis];
  if (sizes.empty()) {
    const int64_t each = (n + parts - 1) / parts;
    for (int64_t k = 0, left = n; k < parts; ++k, left -= sizes.back()) sizes.push_back(std::min(each, left));
  }
  int64_t total = 0;
  for (int64_t s : sizes) total = s < 0 || s > n ? INT64_MIN : total + s;
  if (static_cast<int64_t>(sizes.size()) != parts || total != n) {
    return invalid_argument(
        cat("the parts do not add up to the ", n, " entries of the axis, or are not ", parts));
  }
  const int64_t outer = extent(x.shape(), 0, axis), inner = extent(x.shape(), axis + 1, x.shape().rank());
  int64_t at = 0;
  for (size_t p = 0; p < sizes.size(); ++p) {
    std::vector<int64_t> dims = dims_of(x.shape());
    dims[static_cast<size_t>(axis)] = sizes[p];
    OAR_ASSIGN(Tensor y, ctx.allocate(Shape(dims), dtype_of(x)));
    for (int64_t o = 0; o < outer; ++o) {
      copy_elements(x, (o * n + at) * inner, y, o * sizes[p] * inner, sizes[p] * inner);
    }
    at += sizes[p];
    ctx.set(p, std::move(y));
  }
  return ok_status();
}

Status tile(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(std::vector<int64_t> repeats, ctx.ints_or_attr(1, "repeats"));
  std::vector<int64_t> own = dims_of(x.shape());
  // Lists of different lengths align at the last axis.
  while (own.size() < repeats.size()) own.insert(own.begin(), 1);
  while (repeats.size() < own.size()) repeats.insert(repeats.begin(), 1);
  std::vector<int64_t> dims;
  for (size_t k = 0; k < repeats.size(); ++k) {
    int64_t d = -1;
    if (repeats[k] < 0 || __builtin_mul_overflow(own[k], repeats[k], &d))
      return invalid_argument("a repeat is out of range");
    dims.push_back(d);
  }
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(x)));
  if (shape.numel() == 0) return ctx.set(0, std::move(y)), ok_status();
  OAR_ASSIGN(const Shape from, checked_shape(own));
  const auto strides = strides_of(from);
  const int rank = shape.rank();
  const int64_t inner = rank > 0 ? from[rank - 1] : 1, copies = rank > 0 ? repeats.back() : 1;
  for (int64_t r = 0; r < shape.numel() / (inner * copies); ++r) {
    int64_t rest = r, at = 0;
    for (int k = rank - 2; k >= 0; --k)
      at += rest % shape[k] % from[k] * strides[static_cast<size_t>(k)], rest /= shape[k];
    for (int64_t c = 0; c < copies; ++c) copy_elements(x, at, y, (r * copies + c) * inner, inner);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// pad(x, pads, value?, axes?) {mode: constant, reflect, edge, wrap}; negative pads crop.
Status pad(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const std::vector<int64_t> pads, ctx.ints_or_attr(1, "pads"));
  OAR_ASSIGN(std::vector<int64_t> axes, ctx.ints_or_attr(3, "axes"));
  const std::string mode = ctx.attrs().get_string("mode", "constant");
  const int rank = x.shape().rank();
  if (!ctx.has(3)) {
    axes.clear();
    for (int k = 0; k < rank; ++k) axes.push_back(k);
  }
  if (pads.size() != 2 * axes.size()) return invalid_argument("pads must hold two numbers for each axis");
  std::vector<int64_t> dims = dims_of(x.shape()), before(static_cast<size_t>(rank), 0);
  for (size_t k = 0; k < axes.size(); ++k) {
    OAR_ASSIGN(const int axis, checked_axis(axes[k], rank));
    const auto a = static_cast<size_t>(axis);
    before[a] = pads[k];
    if (__builtin_add_overflow(dims[a], pads[k], &dims[a]) ||
        __builtin_add_overflow(dims[a], pads[k + axes.size()], &dims[a])) {
      return invalid_argument("a pad overflows");
    }
  }
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  if (ctx.options().sizing) {
    OAR_ASSIGN(Tensor sized, ctx.zeros(shape, dtype_of(x)));
    return ctx.set(0, std::move(sized)), ok_status();
  }
  // Which element each index of each axis shows; -1: the value.
  std::vector<std::vector<int64_t>> source(static_cast<size_t>(rank));
  uint64_t entries = 0;
  for (int k = 0; k < rank; ++k) entries += static_cast<uint64_t>(shape[k]);
  if (entries > ctx.options().tensor_limit / 8) return resource_exhausted("the result is too large");
  for (int k = 0; k < rank; ++k) {
    const auto a = static_cast<size_t>(k);
    const int64_t n = x.shape()[k];
    for (int64_t i = 0; i < shape[k]; ++i) {
      int64_t j = i - before[a];
      if (j < 0 || j >= n) {
        if (mode == "constant") j = -1;
        else if (n == 0) return invalid_argument("nothing to pad with");
        else if (mode == "edge") j = std::clamp<int64_t>(j, 0, n - 1);
        else if (mode == "wrap") j = ((j % n) + n) % n;
        else if (mode == "reflect") {
          const int64_t period = std::max<int64_t>(1, 2 * (n - 1));
          j = ((j % period) + period) % period;
          if (j >= n) j = period - j;
        } else {
          return invalid_argument(cat("unknown mode '", mode, "'"));
        }
      }
      source[a].push_back(j);
    }
  }
  OAR_ASSIGN(Tensor y, ctx.zeros(shape, dtype_of(x)));
  Tensor value;
  if (mode == "constant" && ctx.has(2)) {
    OAR_ASSIGN(value, ctx.tensor(2));
    OAR_RETURN_IF_ERROR(check_same_dtype(x, value));
    if (value.numel() != 1) return invalid_argument("the value must be a scalar");
  }
  const auto strides = strides_of(x.shape());
  dispatch_move(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T fill = value.defined() ? *elements<T>(value) : T{};
    T* out = mutable_elements<T>(y);
    const int64_t inner = rank > 0 ? shape[rank - 1] : 1;
    if (shape.numel() == 0) return;
    for (int64_t r = 0; r < shape.numel() / inner; ++r) {
      int64_t rest = r, at = 0;
      bool outside = false;
      for (int k = rank - 2; k >= 0; --k) {
        const int64_t j = source[static_cast<size_t>(k)][static_cast<size_t>(rest % shape[k])];
        rest /= shape[k];
        outside = outside || j < 0;
        at += j * strides[static_cast<size_t>(k)];
      }
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t j = rank > 0 ? source[static_cast<size_t>(rank - 1)][static_cast<size_t>(i)] : 0;
        out[r * inner + i] = outside || j < 0 ? fill : elements<T>(x)[at + j];
      }
    }
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

Status shape_of(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const int64_t rank = x.shape().rank();
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank); };
  const int64_t begin = clamp(std::max<int64_t>(ctx.attrs().get_int("start", 0), -rank));
  const int64_t end = clamp(std::max<int64_t>(ctx.attrs().get_int("end", rank), -rank - 1));
  const int64_t n = std::max<int64_t>(0, end - begin);
  OAR_ASSIGN(Tensor y, ctx.zeros({n}, DType::kI64));
  for (int64_t k = 0; k < n; ++k) mutable_elements<int64_t>(y)[k] = x.shape()[static_cast<int>(begin + k)];
  ctx.set(0, std::move(y));
  return ok_status();
}

Status size_of(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.zeros({}, DType::kI64));
  *mutable_elements<int64_t>(y) = x.numel();
  ctx.set(0, std::move(y));
  return ok_status();
}

Status constant_of_shape(EvalContext& ctx) {
  OAR_ASSIGN(const std::vector<int64_t> dims, ctx.ints(0));
  OAR_ASSIGN(const Tensor value, ctx.tensor(1));
  if (value.numel() != 1) return invalid_argument("the value must be one element");
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(value)));
  dispatch_move(value, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::fill_n(mutable_elements<T>(y), y.numel(), *elements<T>(value));
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

Status range(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor start, ctx.tensor(0));
  OAR_ASSIGN(const Tensor limit, ctx.tensor(1));
  OAR_ASSIGN(const Tensor delta, ctx.tensor(2));
  OAR_RETURN_IF_ERROR(check_same_dtype(start, limit));
  OAR_RETURN_IF_ERROR(check_same_dtype(start, delta));
  if (start.numel() != 1 || limit.numel() != 1 || delta.numel() != 1)
    return invalid_argument("operands must be scalars");
  Status status;
  if (!dispatch_numeric(dtype_of(start), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        const C a = Element<T>::load(*elements<T>(start)), d = Element<T>::load(*elements<T>(delta));
        const double count =
            std::ceil((static_cast<double>(Element<T>::load(*elements<T>(limit))) - static_cast<double>(a)) /
                      static_cast<double>(d));
        if (!(count < 1e15)) {
          status = invalid_argument("the range has no end");
          return;
        }
        auto y =
            ctx.allocate({std::max<int64_t>(0, static_cast<int64_t>(std::max(count, 0.0)))}, dtype_of(start));
        if (!y.ok()) {
          status = y.status();
          return;
        }
        for (int64_t k = 0; k < y->numel(); ++k) {
          C v;
          if constexpr (std::is_integral_v<C>)
            v = static_cast<C>(static_cast<uint64_t>(a) +
                               static_cast<uint64_t>(k) * static_cast<uint64_t>(d));
          else v = a + static_cast<C>(k) * d;
          mutable_elements<T>(*y)[k] = Element<T>::store(v);
        }
        ctx.set(0, std::move(*y));
      })) {
    return bad_dtype(start);
  }
  return status;
}

// (N, C b b, H, W) <-> (N, C, H b, W b), mode DCR (depth, column, row) or CRD.
Status shuffle_blocks(EvalContext& ctx, bool to_space) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const int64_t b = ctx.attrs().get_int("blocksize");
  const bool crd = ctx.attrs().get_string("mode", "DCR") == "CRD";
  if (x.shape().rank() != 4 || b < 1 || b > 65536)
    return invalid_argument("needs a tensor of 4 axes and a blocksize");
  const int64_t N = x.shape()[0], C = x.shape()[1], H = x.shape()[2], W = x.shape()[3];
  if (to_space ? C % (b * b) != 0 : H % b != 0 || W % b != 0)
    return invalid_argument("blocksize does not divide the extents");
  const int64_t c = to_space ? C / (b * b) : C, h = to_space ? H : H / b, w = to_space ? W : W / b;
  // Offset of (depth block y, x, channel) on the deep side.
  OAR_ASSIGN(const Shape shape, to_space ? checked_shape(std::vector<int64_t>{N, c, h * b, w * b})
                                         : checked_shape(std::vector<int64_t>{N, c * b * b, h, w}));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(x)));
  dispatch_move(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* in = elements<T>(x);
    T* out = mutable_elements<T>(y);
    for (int64_t n = 0; n < N; ++n)
      for (int64_t k = 0; k < c; ++k)
        for (int64_t i = 0; i < h; ++i)
          for (int64_t by = 0; by < b; ++by)
            for (int64_t j = 0; j < w; ++j)
              for (int64_t bx = 0; bx < b; ++bx) {
                const int64_t deep = crd ? (k * b + by) * b + bx : (by * b + bx) * c + k;
                const int64_t at_deep = ((n * c * b * b + deep) * h + i) * w + j;
                const int64_t at_wide = ((n * c + k) * h * b + i * b + by) * w * b + j * b + bx;
                if (to_space) out[at_wide] = in[at_deep];
                else out[at_deep] = in[at_wide];
              }
  });
  ctx.set(0, std::move(y));
  return ok_status();
}
Status depth_to_space(EvalContext& ctx) { return shuffle_blocks(ctx, true); }
Status space_to_depth(EvalContext& ctx) { return shuffle_blocks(ctx, false); }

Status center_crop_pad(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const std::vector<int64_t> wanted, ctx.ints(1));
  std::vector<int64_t> axes = ctx.attrs().get_ints("axes");
  const int rank = x.shape().rank();
  if (axes.empty()) {
    for (int k = 0; k < rank; ++k) axes.push_back(k);
  }
  if (axes.size() != wanted.size()) return invalid_argument("axes and shape differ in length");
  std::vector<int64_t> dims = dims_of(x.shape()), from(dims.size(), 0), to(dims.size(), 0), take = dims;
  for (size_t k = 0; k < axes.size(); ++k) {
    OAR_ASSIGN(const int axis, checked_axis(axes[k], rank));
    const auto a = static_cast<size_t>(axis);
    const int64_t n = dims[a], m = wanted[k];
    if (m < 0) return invalid_argument("a negative extent");
    dims[a] = m;
    take[a] = std::min(n, m);
    if (n > m) from[a] = (n - m) / 2;
    else to[a] = (m - n) / 2;
  }
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.zeros(shape, dtype_of(x)));
  const Shape box(take);
  const auto sx = strides_of(x.shape()), sy = strides_of(shape);
  const int64_t inner = rank > 0 ? box[rank - 1] : 1;
  for (int64_t r = 0; box.numel() > 0 && r < box.numel() / inner; ++r) {
    int64_t rest = r, ax = 0, ay = 0;
    for (int k = rank - 1; k >= 0; --k) {
      const auto a = static_cast<size_t>(k);
      const int64_t i = k == rank - 1 ? 0 : rest % box[k];
      if (k != rank - 1) rest /= box[k];
      ax += (i + from[a]) * sx[a];
      ay += (i + to[a]) * sy[a];
    }
    copy_elements(x, ax, y, ay, inner);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// trilu(x, k?) {upper}: the upper or lower triangle of the last two axes.
Status trilu(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  int64_t k = 0;
  if (ctx.has(1)) { OAR_ASSIGN(k, ctx.scalar_int(1)); }
  k = std::clamp<int64_t>(k, -(int64_t{1} << 40), int64_t{1} << 40);
  const bool upper = ctx.attrs().get_int("upper", 1) != 0;
  const int rank = x.shape().rank();
  if (rank < 2) return invalid_argument("needs a matrix");
  OAR_ASSIGN(Tensor y, ctx.zeros(x.shape(), dtype_of(x)));
  const int64_t rows = x.shape()[rank - 2], cols = x.shape()[rank - 1];
  for (int64_t r = 0; cols > 0 && r < x.numel() / cols; ++r) {
    const int64_t edge = std::clamp<int64_t>(r % rows + k + (upper ? 0 : 1), 0, cols);
    if (upper) copy_elements(x, r * cols + edge, y, r * cols + edge, cols - edge);
    else copy_elements(x, r * cols, y, r * cols, edge);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

Status reverse_sequence(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const std::vector<int64_t> lengths, ctx.ints(1));
  const int64_t batch_axis = ctx.attrs().get_int("batch_axis", 1),
                time_axis = ctx.attrs().get_int("time_axis", 0);
  if (x.shape().rank() < 2 || batch_axis + time_axis != 1 || batch_axis * time_axis != 0) {
    return invalid_argument("batch_axis and time_axis must be 0 and 1");
  }
  const int64_t A = x.shape()[0], B = x.shape()[1], inner = extent(x.shape(), 2, x.shape().rank());
  const int64_t batch = batch_axis == 0 ? A : B, time = batch_axis == 0 ? B : A;
  if (static_cast<int64_t>(lengths.size()) != batch)
    return invalid_argument("one length per batch entry is needed");
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), dtype_of(x)));
  for (int64_t n = 0; n < batch; ++n) {
    const int64_t length = lengths[static_cast<size_t>(n)];
    if (length < 0 || length > time) return invalid_argument(cat("length ", length, " is out of range"));
    for (int64_t t = 0; t < time; ++t) {
      const int64_t s = t < length ? length - 1 - t : t;
      const int64_t to = batch_axis == 0 ? n * B + t : t * B + n,
                    from = batch_axis == 0 ? n * B + s : s * B + n;
      copy_elements(x, from * inner, y, to * inner, inner);
    }
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

Status eye_like(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const DType dtype, dtype_attr(ctx, "dtype", dtype_of(x)));
  const int64_t k = ctx.attrs().get_int("k");
  if (x.shape().rank() != 2 || dtype == DType::kString) return invalid_argument("needs a matrix of numbers");
  std::vector<double> v(static_cast<size_t>(x.numel()), 0);
  const int64_t rows = x.shape()[0], cols = x.shape()[1];
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    if (!__builtin_add_overflow(r, k, &c) && c >= 0 && c < cols) v[static_cast<size_t>(r * cols + c)] = 1;
  }
  ctx.set(0, from_doubles(ctx, x.shape(), dtype, v));
  return ok_status();
}

}  // namespace

Status reshape(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(std::vector<int64_t> dims, ctx.ints_or_attr(1, "shape"));
  const bool zero = ctx.attrs().get_int("allowzero") != 0;
  int64_t known = 1, unknown = -1;
  for (size_t k = 0; k < dims.size(); ++k) {
    if (dims[k] == 0 && !zero) {
      if (static_cast<int>(k) >= x.shape().rank())
        return invalid_argument(cat("there is no extent ", k, " to keep"));
      dims[k] = x.shape()[static_cast<int>(k)];
    }
    if (dims[k] == -1) {
      if (unknown >= 0) return invalid_argument("more than one extent of -1");
      unknown = static_cast<int64_t>(k);
    } else if (dims[k] < 0 || __builtin_mul_overflow(known, dims[k], &known)) {
      return invalid_argument(cat("extent ", dims[k], " is out of range"));
    }
  }
  if (unknown >= 0) {
    if (known == 0 ? x.numel() != 0 : x.numel() % known != 0) {
      return invalid_argument(
          cat("the element count of ", x.shape().to_string(), " is no multiple of ", known));
    }
    dims[static_cast<size_t>(unknown)] = known == 0 ? 0 : x.numel() / known;
  }
  return reshape_to(ctx, x, dims);
}

Result<SliceBox> slice_box(std::span<const int64_t> dims, std::span<const int64_t> starts,
                           std::span<const int64_t> ends, std::vector<int64_t> axes,
                           std::vector<int64_t> steps) {
  const auto rank = static_cast<int>(dims.size());
  if (axes.empty()) {
    for (size_t k = 0; k < starts.size(); ++k) axes.push_back(static_cast<int64_t>(k));
  }
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
    return invalid_argument("starts, ends, axes and steps differ in length");
  }
  SliceBox box{std::vector<int64_t>(dims.size(), 0), std::vector<int64_t>(dims.size(), 1),
               std::vector<int64_t>(dims.begin(), dims.end()), std::vector<bool>(dims.size(), false)};
  for (size_t k = 0; k < starts.size(); ++k) {
    OAR_ASSIGN(const int axis, checked_axis(axes[k], rank));
    const auto a = static_cast<size_t>(axis);
    if (box.cut[a]) return invalid_argument(cat("axis ", axes[k], " is named twice"));
    box.cut[a] = true;
    const int64_t n = dims[a], step = steps[k];
    if (step == 0 || step == INT64_MIN) return invalid_argument("a step must not be 0");
    auto clamp = [&](int64_t v, int64_t low, int64_t high) {
      if (v < 0) v = v < -n ? -1 : v + n;  // below the first: clamped by `low`
      return std::clamp(v, low, high);
    };
    if (step > 0) {
      box.start[a] = clamp(starts[k], 0, n);
      const int64_t end = clamp(ends[k], 0, n);
      box.count[a] = end > box.start[a] ? (end - box.start[a] - 1) / step + 1 : 0;
    } else {
      box.start[a] = clamp(starts[k], -1, n - 1);
      const int64_t end = ends[k] < -n ? -1 : clamp(ends[k], -1, n - 1);
      box.count[a] = box.start[a] > end ? (box.start[a] - end - 1) / -step + 1 : 0;
    }
    box.step[a] = step;
  }
  return box;
}

Status slice(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const std::vector<int64_t> starts, ctx.ints_or_attr(1, "starts"));
  OAR_ASSIGN(const std::vector<int64_t> ends, ctx.ints_or_attr(2, "ends"));
  OAR_ASSIGN(std::vector<int64_t> axes, ctx.ints_or_attr(3, "axes"));
  OAR_ASSIGN(std::vector<int64_t> steps, ctx.ints_or_attr(4, "steps"));
  OAR_ASSIGN(const SliceBox box,
             slice_box(dims_of(x.shape()), starts, ends, std::move(axes), std::move(steps)));
  const auto own = strides_of(x.shape());
  std::vector<int64_t> strides(own.begin(), own.begin() + x.shape().rank());
  int64_t base = 0;
  for (size_t a = 0; a < strides.size(); ++a) {
    if (box.count[a] > 0) base += box.start[a] * own[a];
    if (__builtin_mul_overflow(strides[a], box.step[a], &strides[a])) strides[a] = 0;  // one element at most
  }
  OAR_ASSIGN(const Shape shape, checked_shape(box.count));
  if (shape == x.shape() && std::all_of(box.step.begin(), box.step.end(), [](int64_t s) { return s > 0; })) {
    return ctx.set(0, x), ok_status();
  }
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(x)));
  gather_box(ctx, x, y, base, strides);
  ctx.set(0, std::move(y));
  return ok_status();
}

Status transpose(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const int rank = x.shape().rank();
  std::vector<int64_t> perm = ctx.attrs().get_ints("perm");
  if (perm.empty()) {
    for (int k = rank - 1; k >= 0; --k) perm.push_back(k);
  }
  std::vector<bool> used(static_cast<size_t>(rank), false);
  if (perm.size() != used.size()) return invalid_argument("perm must name every axis once");
  std::vector<int64_t> dims, strides;
  const auto own = strides_of(x.shape());
  for (int64_t p : perm) {
    OAR_ASSIGN(const int axis, checked_axis(p, rank));
    if (used[static_cast<size_t>(axis)]) return invalid_argument("perm must name every axis once");
    used[static_cast<size_t>(axis)] = true;
    dims.push_back(x.shape()[axis]);
    strides.push_back(own[static_cast<size_t>(axis)]);
  }
  // Where the axes that are longer than one stay in order nothing moves.
  int64_t last = -1;
  bool in_order = true;
  for (int64_t p : perm) {
    const int axis = static_cast<int>(p < 0 ? p + rank : p);
    if (x.shape()[axis] == 1) continue;
    in_order = in_order && axis > last;
    last = axis;
  }
  if (in_order) {
    OAR_ASSIGN(Tensor same, view(x, Shape(dims)));
    return ctx.set(0, std::move(same)), ok_status();
  }
  OAR_ASSIGN(Tensor y, ctx.allocate(Shape(dims), dtype_of(x)));
  gather_box(ctx, x, y, 0, strides);
  ctx.set(0, std::move(y));
  return ok_status();
}

Status concat(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor first, ctx.tensor(0));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis"), first.shape().rank()));
  std::vector<int64_t> dims = dims_of(first.shape());
  int64_t& total = dims[static_cast<size_t>(axis)];
  total = 0;
  std::vector<Tensor> parts;
  for (size_t i = 0; i < ctx.num_inputs(); ++i) {
    OAR_ASSIGN(Tensor t, ctx.tensor(i));
    OAR_RETURN_IF_ERROR(check_same_dtype(first, t));
    bool fits = t.shape().rank() == first.shape().rank();
    for (int k = 0; fits && k < t.shape().rank(); ++k) fits = k == axis || t.shape()[k] == first.shape()[k];
    if (!fits) return invalid_argument(cat("operand ", i, " differs beside axis ", axis));
    if (__builtin_add_overflow(total, t.shape()[axis], &total)) return invalid_argument("the axis overflows");
    parts.push_back(std::move(t));
  }
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(first)));
  const int64_t outer = extent(shape, 0, axis), inner = extent(shape, axis + 1, shape.rank());
  const int64_t row = shape[axis] * inner;
  // Elements of the result, cut anywhere: one long row and many short ones divide alike.
  ctx.parallel(outer * row, 0.3, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t o = begin / row;
      int64_t start = o * row;
      for (const Tensor& t : parts) {
        const int64_t n = t.shape()[axis] * inner, stop = std::min(start + n, end);
        if (begin < stop) {
          copy_elements(t, o * n + begin - start, y, begin, stop - begin);
          begin = stop;
        }
        start += n;
      }
    }
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(center_crop_pad, tensor::center_crop_pad);
OAR_STEP_OP(constant_of_shape, tensor::constant_of_shape);
OAR_SMOOTH_OP(depth_to_space, tensor::depth_to_space, .lower = tensor::lower_depth_to_space);
extern const OpDef op_expand = {.name = "expand",
                                .infer = expand_infer,
                                .vjp = gradient::expand,
                                .evaluate = tensor::expand,
                                .lower = tensor::lower_expand};
OAR_STEP_OP(eye_like, tensor::eye_like);
extern const OpDef op_flatten = {
    .name = "flatten", .vjp = gradient::reshape, .evaluate = tensor::flatten, .view = true};
extern const OpDef op_pad = {.name = "pad",
                             .infer = pad_infer,
                             .vjp = gradient::pad,
                             .evaluate = tensor::pad,
                             .lower = tensor::lower_pad,
                             .no_gradient_of = "other modes than constant, the value, axes in an operand"};
OAR_STEP_OP(range, tensor::range, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(reverse_sequence, tensor::reverse_sequence);
OAR_STEP_OP(shape_of, tensor::shape_of, .sizes = SizesFrom::kItself);
OAR_STEP_OP(size_of, tensor::size_of, .sizes = SizesFrom::kItself);
OAR_SMOOTH_OP(space_to_depth, tensor::space_to_depth, .lower = tensor::lower_space_to_depth);
OAR_TENSOR_OP(split, tensor::split, .lower = tensor::lower_split);
extern const OpDef op_squeeze = {
    .name = "squeeze", .vjp = gradient::reshape, .evaluate = tensor::squeeze, .view = true};
OAR_SMOOTH_OP(tile, tensor::tile, .lower = tensor::lower_tile);
OAR_SMOOTH_OP(trilu, tensor::trilu);
extern const OpDef op_unsqueeze = {
    .name = "unsqueeze", .vjp = gradient::reshape, .evaluate = tensor::unsqueeze, .view = true};
}  // namespace oar
