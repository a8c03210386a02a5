// Ops on images and boxes: grid_sample, affine_grid, roi_align, max_roi_pool, non_max_suppression.
#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

using Vec = std::vector<double>;

double reflect(double x, double low, double high) {
  const double range = high - low;
  if (range <= 0) return low;
  double d = std::fmod(std::abs(x - low), 2 * range);
  return low + (d > range ? 2 * range - d : d);
}

// Where grid_sample reads an image of up to three axes.
class GridTaps {
 public:
  static constexpr int kMost = 64;  // of four pixels along each of three axes
  int64_t pixel[kMost];
  double weight[kMost];
  int count = 0;

  static Result<GridTaps> create(const Attrs& attrs, const Shape& image) {
    GridTaps t;
    std::string mode = attrs.get_string("mode", "linear");
    const std::string padding = attrs.get_string("padding_mode", "zeros");
    if (mode == "bilinear") mode = "linear";
    if (mode == "bicubic") mode = "cubic";
    if (mode != "linear" && mode != "cubic" && mode != "nearest")
      return invalid_argument(cat("unknown mode '", mode, "'"));
    if (padding != "zeros" && padding != "border" && padding != "reflection")
      return invalid_argument(cat("unknown padding_mode '", padding, "'"));
    t.linear_ = mode == "linear", t.cubic_ = mode == "cubic";
    t.zeros_ = padding == "zeros", t.border_ = padding == "border";
    t.corners_ = attrs.get_int("align_corners") != 0;
    t.axes_ = image.rank() - 2;
    for (int k = 0; k < t.axes_; ++k) t.size_[k] = image[k + 2];
    return t;
  }

  // Of one row of the grid, which holds the last axis first. Pixels that weigh nothing are left out.
  void at(const double* grid) {
    count = 1, pixel[0] = 0, weight[0] = 1;
    for (int k = 0; k < axes_; ++k) {
      int64_t of_axis[4];
      double share[4];
      const int n = along(grid[axes_ - 1 - k], size_[k], of_axis, share);
      int64_t before[kMost];
      double weighed[kMost];
      std::copy_n(pixel, count, before), std::copy_n(weight, count, weighed);
      const int had = std::exchange(count, 0);
      for (int i = 0; i < had; ++i) {
        for (int j = 0; j < n; ++j) {
          if (weighed[i] * share[j] == 0) continue;
          pixel[count] = before[i] * size_[k] + of_axis[j];
          weight[count++] = weighed[i] * share[j];
        }
      }
    }
  }

 private:
  GridTaps() = default;
  double bring_in(double v, double n) const {
    if (zeros_) return v;
    if (border_) return std::clamp(v, 0.0, n - 1);
    return corners_ ? reflect(v, 0, n - 1) : reflect(v, -0.5, n - 0.5);
  }
  int along(double g, int64_t pixels, int64_t* of_axis, double* share) const {
    const auto size = static_cast<double>(pixels);
    double at = corners_ ? (g + 1) / 2 * (size - 1) : ((g + 1) * size - 1) / 2;
    if (!std::isfinite(at) || std::abs(at) > 1e15) at = -1e6;
    if (!cubic_) at = bring_in(at, size);
    const double base = std::floor(at);
    int n = 0;
    const auto tap = [&](double where, double w) {
      double j = bring_in(where, size);
      if (j < 0 || j > size - 1) {
        if (zeros_) w = 0;
        j = std::clamp(j, 0.0, size - 1);
      }
      of_axis[n] = std::clamp<int64_t>(static_cast<int64_t>(std::nearbyint(j)), 0, pixels - 1);
      share[n++] = w;
    };
    if (linear_) {
      tap(base, 1 - (at - base)), tap(base + 1, at - base);
    } else if (!cubic_) {
      tap(std::nearbyint(at), 1);
    } else {
      constexpr double a = -0.75;
      for (int j = -1; j <= 2; ++j) {
        const double d = std::abs(at - base - j);
        tap(base + j,
            d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a);
      }
    }
    return n;
  }
  bool linear_ = false, cubic_ = false, zeros_ = false, border_ = false, corners_ = false;
  int axes_ = 0;
  int64_t size_[3] = {};
};

// grid_sample(x (N, C, spatial...), grid (N, out..., axes)): the grid holds x first, in [-1, 1].
Status grid_sample(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor grid, ctx.tensor(1));
  const int axes = x.shape().rank() - 2;
  if (axes < 1 || axes > 3 || grid.shape().rank() != x.shape().rank() || grid.shape().cols() != axes ||
      grid.shape()[0] != x.shape()[0] || !dtype_is_float(dtype_of(x)) || !dtype_is_float(dtype_of(grid))) {
    return invalid_argument("x must be (N, C, spatial...), the grid (N, out..., axes)");
  }
  OAR_ASSIGN(const GridTaps image, GridTaps::create(ctx.attrs(), x.shape()));
  std::vector<int64_t> dims{x.shape()[0], x.shape()[1]};
  for (int k = 1; k <= axes; ++k) dims.push_back(grid.shape()[k]);
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  const int64_t C = dims[1], outs = extent(shape, 2, shape.rank()),
                ins = extent(x.shape(), 2, x.shape().rank());
  if (ins == 0) return invalid_argument("an empty image");
  const Vec positions = to_doubles(grid);
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(x)));
  dispatch_float(dtype_of(x), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.parallel(dims[0] * outs, 30.0 * axes + 8.0 * static_cast<double>(C), [&](int64_t begin, int64_t end) {
      GridTaps taps = image;
      for (int64_t o = begin; o < end; ++o) {
        taps.at(positions.data() + o * axes);
        const T* from = elements<T>(x) + o / outs * C * ins;
        T* to = mutable_elements<T>(y) + o / outs * C * outs + o % outs;
        for (int64_t c = 0; c < C; ++c, from += ins, to += outs) {
          double sum = 0;
          for (int i = 0; i < taps.count; ++i)
            sum += taps.weight[i] * static_cast<double>(Element<T>::load(from[taps.pixel[i]]));
          *to = Element<T>::store(static_cast<typename Element<T>::Compute>(sum));
        }
      }
    });
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

// affine_grid(theta (N, A, A + 1), size (N, C, spatial...)) -> (N, spatial..., A)
Status affine_grid(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor theta, ctx.tensor(0));
  OAR_ASSIGN(const std::vector<int64_t> size, ctx.ints(1));
  const auto A = static_cast<int64_t>(size.size()) - 2;
  if (A < 1 || A > 3 || theta.shape().rank() != 3 ||
      !(theta.shape() == Shape({std::max<int64_t>(size[0], 0), A, A + 1})) ||
      !dtype_is_float(dtype_of(theta))) {
    return invalid_argument("theta must be (N, axes, axes + 1)");
  }
  std::vector<int64_t> dims{size[0]};
  dims.insert(dims.end(), size.begin() + 2, size.end());
  dims.push_back(A);
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  const bool corners = ctx.attrs().get_int("align_corners") != 0;
  const Vec t = to_doubles(theta);
  Vec y(static_cast<size_t>(shape.numel()));
  const int64_t outs = extent(shape, 1, shape.rank() - 1);
  for (int64_t n = 0; n < size[0]; ++n) {
    for (int64_t o = 0; o < outs; ++o) {
      double p[4] = {0, 0, 0, 0};
      int64_t rest = o;
      for (int64_t k = A; k-- > 0;) {  // the innermost axis is x, the first coordinate
        const auto m = static_cast<double>(size[static_cast<size_t>(k + 2)]);
        const auto i = static_cast<double>(rest % size[static_cast<size_t>(k + 2)]);
        rest /= size[static_cast<size_t>(k + 2)];
        p[A - 1 - k] = corners ? (m > 1 ? -1 + 2 * i / (m - 1) : 0) : (2 * i + 1) / m - 1;
      }
      for (int64_t r = 0; r < A; ++r) {
        double v = t[static_cast<size_t>((n * A + r) * (A + 1) + A)];
        for (int64_t k = 0; k < A; ++k) v += t[static_cast<size_t>((n * A + r) * (A + 1) + k)] * p[k];
        y[static_cast<size_t>((n * outs + o) * A + r)] = v;
      }
    }
  }
  ctx.set(0, from_doubles(ctx, shape, dtype_of(theta), y));
  return ok_status();
}

// Where samples of a region lie along one axis.
struct RoiTap {
  int64_t low, high;  // neighbours
  double part;        // of `high`
  bool inside;
};
std::vector<RoiTap> roi_taps(double start, double bin, int64_t bins, int64_t grid, int64_t extent) {
  std::vector<RoiTap> taps;
  taps.reserve(static_cast<size_t>(bins * grid));
  for (int64_t i = 0; i < bins; ++i)
    for (int64_t a = 0; a < grid; ++a) {
      const double at = start + static_cast<double>(i) * bin +
                        (static_cast<double>(a) + 0.5) * bin / static_cast<double>(grid);
      if (extent == 0 || !(at >= -1 && at <= static_cast<double>(extent))) {
        taps.push_back({0, 0, 0, false});
        continue;
      }
      const double within = std::clamp(at, 0.0, static_cast<double>(extent - 1));
      const auto low = static_cast<int64_t>(within);
      taps.push_back({low, std::min(low + 1, extent - 1), within - static_cast<double>(low), true});
    }
  return taps;
}

// One bin of one channel: the mean or the maximum of its samples, which are `gh` x `gw`.
template <class T>
double roi_bin(const T* plane, int64_t W, const RoiTap* ys, const RoiTap* xs, int64_t gh, int64_t gw,
               bool maximum) {
  double sum = 0, top = -INFINITY;
  for (const RoiTap* y = ys; y < ys + gh; ++y)
    for (const RoiTap* x = xs; x < xs + gw; ++x) {
      if (!y->inside || !x->inside) {
        top = std::max(top, 0.0);
        continue;
      }
      const auto at = [&](int64_t p, int64_t q) {
        return static_cast<double>(Element<T>::load(plane[p * W + q]));
      };
      const double w1 = (1 - y->part) * (1 - x->part) * at(y->low, x->low),
                   w2 = (1 - y->part) * x->part * at(y->low, x->high),
                   w3 = y->part * (1 - x->part) * at(y->high, x->low),
                   w4 = y->part * x->part * at(y->high, x->high);
      sum += w1 + w2 + w3 + w4;
      top = std::max(top, std::max(std::max(w1, w2), std::max(w3, w4)));
    }
  if (maximum) return std::isinf(top) ? 0 : top;
  return sum / std::max<double>(1, static_cast<double>(gh * gw));
}

// roi_align(x (N, C, H, W), rois (R, 4), batch (R)). https://arxiv.org/abs/1703.06870
Status roi_align(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor rois, ctx.tensor(1));
  OAR_ASSIGN(const std::vector<int64_t> batch, ctx.ints(2));
  const int64_t oh = ctx.attrs().get_int("output_height", 1), ow = ctx.attrs().get_int("output_width", 1),
                ratio = ctx.attrs().get_int("sampling_ratio");
  const double scale = ctx.attrs().get_float("spatial_scale", 1);
  const bool half = ctx.attrs().get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  const bool maximum = ctx.attrs().get_string("mode", "avg") == "max";
  const auto R = static_cast<int64_t>(batch.size());
  if (x.shape().rank() != 4 || !(rois.shape() == Shape({R, 4})) || !dtype_is_float(dtype_of(x)) ||
      !dtype_is_float(dtype_of(rois)) || oh < 1 || ow < 1 || ratio < 0 || ratio > 1024) {
    return invalid_argument("x must be (N, C, H, W), rois (R, 4)");
  }
  const int64_t N = x.shape()[0], C = x.shape()[1], H = x.shape()[2], W = x.shape()[3];
  for (const int64_t n : batch) {
    if (n < 0 || n >= N) return invalid_argument(cat("batch index ", n, " is out of range"));
  }
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{R, C, oh, ow}));
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  const Vec boxes = to_doubles(rois);
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(x)));
  const auto region = [&](auto tag, int64_t r) {
    using T = typename decltype(tag)::type;
    const double shift = half ? 0.5 : 0;
    const double* box = boxes.data() + r * 4;
    const double x1 = box[0] * scale - shift, y1 = box[1] * scale - shift;
    double rw = box[2] * scale - shift - x1, rh = box[3] * scale - shift - y1;
    if (!half) rw = std::max(rw, 1.0), rh = std::max(rh, 1.0);
    const double bw = rw / static_cast<double>(ow), bh = rh / static_cast<double>(oh);
    const auto grid = [&](double bin) {
      return ratio > 0 ? ratio : std::clamp<int64_t>(saturate_cast<int64_t>(std::ceil(bin)), 0, 4096);
    };
    const int64_t gh = grid(bh), gw = grid(bw);
    const auto ys = roi_taps(y1, bh, oh, gh, H), xs = roi_taps(x1, bw, ow, gw, W);
    T* to = mutable_elements<T>(y) + r * C * oh * ow;
    for (int64_t c = 0; c < C; ++c) {
      const T* plane = elements<T>(x) + (batch[static_cast<size_t>(r)] * C + c) * H * W;
      for (int64_t i = 0; i < oh; ++i)
        for (int64_t j = 0; j < ow; ++j)
          *to++ = Element<T>::store(static_cast<typename Element<T>::Compute>(
              roi_bin(plane, W, ys.data() + i * gh, xs.data() + j * gw, gh, gw, maximum)));
    }
  };
  dispatch_float(dtype_of(x), [&](auto tag) {
    ctx.parallel(R, 20.0 * static_cast<double>(C * oh * ow), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) region(tag, r);
    });
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

// max_roi_pool(x, rois (R, 5): batch, x1, y1, x2, y2) {pooled_shape, spatial_scale}
Status max_roi_pool(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor rois, ctx.tensor(1));
  const auto pooled = ctx.attrs().get_ints("pooled_shape");
  if (x.shape().rank() != 4 || rois.shape().rank() != 2 || rois.shape()[1] != 5 || pooled.size() != 2 ||
      pooled[0] < 1 || pooled[1] < 1 || !dtype_is_float(dtype_of(x)) || !dtype_is_float(dtype_of(rois))) {
    return invalid_argument("x must be (N, C, H, W), rois (R, 5), pooled_shape two numbers");
  }
  const int64_t C = x.shape()[1], H = x.shape()[2], W = x.shape()[3], R = rois.shape()[0];
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{R, C, pooled[0], pooled[1]}));
  OAR_RETURN_IF_ERROR(ctx.check_size(shape, DType::kF64));
  const double scale = ctx.attrs().get_float("spatial_scale", 1);
  const Vec px = to_doubles(x), pr = to_doubles(rois);
  Vec y(static_cast<size_t>(shape.numel()), 0);
  for (int64_t k = 0; k < shape.numel(); ++k) {
    const int64_t j = k % pooled[1], i = k / pooled[1] % pooled[0], c = k / pooled[1] / pooled[0] % C,
                  r = k / pooled[1] / pooled[0] / C;
    const double* box = pr.data() + r * 5;
    const auto n = saturate_cast<int64_t>(box[0]);
    if (n < 0 || n >= x.shape()[0]) return invalid_argument("a batch index is out of range");
    double b[4];
    for (int e = 0; e < 4; ++e) b[e] = std::clamp(std::round(box[e + 1] * scale), -1e9, 1e9);
    const double bh = std::max(b[3] - b[1] + 1, 1.0) / static_cast<double>(pooled[0]),
                 bw = std::max(b[2] - b[0] + 1, 1.0) / static_cast<double>(pooled[1]);
    auto edge = [](double v, int64_t n) { return std::clamp<int64_t>(static_cast<int64_t>(v), 0, n); };
    const int64_t h0 = edge(std::floor(static_cast<double>(i) * bh) + b[1], H),
                  h1 = edge(std::ceil(static_cast<double>(i + 1) * bh) + b[1], H);
    const int64_t w0 = edge(std::floor(static_cast<double>(j) * bw) + b[0], W),
                  w1 = edge(std::ceil(static_cast<double>(j + 1) * bw) + b[0], W);
    double top = h1 <= h0 || w1 <= w0 ? 0 : -INFINITY;
    for (int64_t p = h0; p < h1; ++p)
      for (int64_t q = w0; q < w1; ++q)
        top = std::max(top, px[static_cast<size_t>(((n * C + c) * H + p) * W + q)]);
    y[static_cast<size_t>(k)] = top;
  }
  ctx.set(0, from_doubles(ctx, shape, dtype_of(x), y));
  return ok_status();
}

// Boxes that were kept, by their corners.
class KeptBoxes {
 public:
  explicit KeptBoxes(double iou) : iou_(iou) {}
  void clear() {
    for (Vec& c : corners_) c.clear();
  }
  int64_t count() const { return static_cast<int64_t>(corners_[0].size()); }
  void keep(const double* box) {  // y1 x1 y2 x2, ordered
    for (size_t k = 0; k < 4; ++k) corners_[k].push_back(box[k]);
  }
  // Whether `box` shares more than iou of its union with one of them. Most meet nowhere, which is found for
  // many at once.
  bool overlap(const double* box) const {
    constexpr size_t kBlock = 32;
    const size_t n = corners_[0].size();
    const double *y1 = corners_[0].data(), *x1 = corners_[1].data(), *y2 = corners_[2].data(),
                 *x2 = corners_[3].data();
    const auto height = [&](size_t i) { return std::min(box[2], y2[i]) - std::max(box[0], y1[i]); };
    const auto width = [&](size_t i) { return std::min(box[3], x2[i]) - std::max(box[1], x1[i]); };
    const double own = (box[2] - box[0]) * (box[3] - box[1]);
    for (size_t begin = 0; begin < n; begin += kBlock) {
      const size_t end = std::min(n, begin + kBlock);
      double largest = -INFINITY;  // of the smaller side that is shared
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::min(height(i), width(i)));
      if (!(largest > 0) && iou_ >= 0) continue;
      for (size_t i = begin; i < end; ++i) {
        const double both = std::max(height(i), 0.0) * std::max(width(i), 0.0);
        const double all = own + (y2[i] - y1[i]) * (x2[i] - x1[i]) - both;
        if (all > 0 && both / all > iou_) return true;
      }
    }
    return false;
  }

 private:
  double iou_;
  Vec corners_[4];
};

// non_max_suppression(boxes (N, B, 4), scores (N, C, B), most?, iou?, score?) -> (selected, 3)
Status non_max_suppression(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor boxes, ctx.tensor(0));
  OAR_ASSIGN(const Tensor scores, ctx.tensor(1));
  if (dtype_of(boxes) != DType::kF32 || dtype_of(scores) != DType::kF32 || boxes.shape().rank() != 3 ||
      scores.shape().rank() != 3 || boxes.shape()[2] != 4 || boxes.shape()[0] != scores.shape()[0] ||
      boxes.shape()[1] != scores.shape()[2]) {
    return invalid_argument("boxes must be f32 (N, B, 4), scores f32 (N, C, B)");
  }
  int64_t most = 0;
  double iou = 0, least = -INFINITY;
  if (ctx.has(2)) { OAR_ASSIGN(most, ctx.scalar_int(2)); }
  if (ctx.has(3)) { OAR_ASSIGN(iou, ctx.scalar(3)); }
  if (ctx.has(4)) { OAR_ASSIGN(least, ctx.scalar(4)); }
  const bool center = ctx.attrs().get_int("center_point_box") != 0;
  const int64_t N = boxes.shape()[0], B = boxes.shape()[1], C = scores.shape()[1];
  Vec corner(static_cast<size_t>(N * B * 4));  // y1 x1 y2 x2, ordered
  for (int64_t b = 0; b < N * B; ++b) {
    const float* p = elements<float>(boxes) + b * 4;
    double* q = corner.data() + b * 4;
    if (center)
      q[0] = p[1] - p[3] / 2, q[2] = p[1] + p[3] / 2, q[1] = p[0] - p[2] / 2, q[3] = p[0] + p[2] / 2;
    else
      q[0] = std::min(p[0], p[2]), q[2] = std::max(p[0], p[2]), q[1] = std::min(p[1], p[3]),
      q[3] = std::max(p[1], p[3]);
  }
  std::vector<std::vector<int64_t>> selected(static_cast<size_t>(N * C));  // by image and class
  ctx.parallel(N * C, 20.0 * static_cast<double>(B), [&](int64_t begin, int64_t end) {
    KeptBoxes kept(iou);
    std::vector<int64_t> order;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t n = k / C;
      const float* s = elements<float>(scores) + k * B;
      order.clear(), kept.clear();
      for (int64_t b = 0; b < B; ++b) {
        if (s[b] > least) order.push_back(b);
      }
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return s[a] > s[b]; });
      for (int64_t b : order) {
        if (kept.count() >= most) break;
        const double* box = corner.data() + (n * B + b) * 4;
        if (kept.overlap(box)) continue;
        kept.keep(box);
        selected[static_cast<size_t>(k)].push_back(b);
      }
    }
  });
  int64_t count = 0;
  for (const auto& of_class : selected) count += static_cast<int64_t>(of_class.size());
  OAR_ASSIGN(Tensor y, ctx.allocate({count, 3}, DType::kI64));
  auto* out = mutable_elements<int64_t>(y);
  for (int64_t k = 0; k < N * C; ++k)
    for (const int64_t b : selected[static_cast<size_t>(k)]) *out++ = k / C, *out++ = k % C, *out++ = b;
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(affine_grid, tensor::affine_grid);
OAR_TENSOR_OP(grid_sample, tensor::grid_sample);
OAR_TENSOR_OP(max_roi_pool, tensor::max_roi_pool);
OAR_TENSOR_OP(non_max_suppression, tensor::non_max_suppression, .sizes = SizesFrom::kValues);
OAR_TENSOR_OP(roi_align, tensor::roi_align);
}  // namespace oar
