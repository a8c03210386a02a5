// What our convolutions, pools, normalizations and images are in Paddle (phi/ops/yaml/ops.yaml). Paddle's
// windows have two or three axes: one axis is two, the first of extent 1.
#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/export/paddle_writer.h"

namespace oar::paddle {
namespace {

using Ints = std::vector<int64_t>;

// ---- windows

struct Window {
  Ints kernel, strides, dilations, paddings;  // paddings: before and after of each axis
  std::string algorithm = "EXPLICIT";

  std::vector<Attr> attrs() const {
    return {{"strides", strides}, {"paddings", paddings}, {"padding_algorithm", algorithm}};
  }
  // As over one more axis of extent 1, in front.
  void widen() {
    kernel.insert(kernel.begin(), 1), strides.insert(strides.begin(), 1);
    dilations.insert(dilations.begin(), 1);
    paddings.insert(paddings.begin(), 2, 0);
  }
  // Places of the window along axis k of `extent`.
  int64_t places(size_t k, int64_t extent, bool ceil = false) const {
    if (extent < 0 || strides[k] < 1) return -1;
    if (algorithm == "SAME") return (extent + strides[k] - 1) / strides[k];
    const int64_t span = extent + paddings[2 * k] + paddings[2 * k + 1] - dilations[k] * (kernel[k] - 1) - 1;
    return (span + (ceil ? strides[k] - 1 : 0)) / strides[k] + 1;
  }
};

// From the attributes strides, dilations, pads, auto_pad over spatial `extents`.
Window window_of(NodeWriter& n, const Ints& kernel, const Ints& extents) {
  Window w;
  const size_t axes = kernel.size();
  w.kernel = kernel;
  w.strides = n.attrs().get_ints("strides"), w.dilations = n.attrs().get_ints("dilations");
  if (w.strides.empty()) w.strides.assign(axes, 1);
  if (w.dilations.empty()) w.dilations.assign(axes, 1);
  w.paddings.assign(2 * axes, 0);
  const Ints pads = n.attrs().get_ints("pads");
  const std::string automatic = n.attrs().get_string("auto_pad", "NOTSET");
  if (w.strides.size() != axes || w.dilations.size() != axes || (!pads.empty() && pads.size() != 2 * axes)) {
    n.fail("a window whose strides, dilations or pads do not fit its axes");
    w.strides.assign(axes, 1), w.dilations.assign(axes, 1);
    return w;
  }
  for (size_t k = 0; k < axes; ++k) {
    if (automatic == "NOTSET" && !pads.empty())
      w.paddings[2 * k] = pads[k], w.paddings[2 * k + 1] = pads[axes + k];
    if (!automatic.starts_with("SAME")) continue;
    const int64_t reach = w.dilations[k] * (kernel[k] - 1) + 1, extent = extents[k], stride = w.strides[k];
    int64_t total = reach - 1;  // of stride 1, whatever the extent
    if (stride != 1) {
      if (extent < 0) {
        const bool plain = automatic == "SAME_UPPER" && std::all_of(w.dilations.begin(), w.dilations.end(),
                                                                    [](int64_t d) { return d == 1; });
        if (!plain) n.fail(cat("auto_pad ", automatic, " over an unknown extent"));
        w.algorithm = "SAME";
        w.paddings.assign(2 * axes, 0);
        return w;
      }
      total = std::max<int64_t>(((extent + stride - 1) / stride - 1) * stride + reach - extent, 0);
    }
    const bool upper = automatic == "SAME_UPPER";
    w.paddings[2 * k] = upper ? total / 2 : total - total / 2;
    w.paddings[2 * k + 1] = total - w.paddings[2 * k];
  }
  return w;
}
Ints spatial(const Declared& t) { return {t.dims.begin() + std::min(2, t.rank()), t.dims.end()}; }

// Adds operand i, one value per channel.
ValueIndex with_bias(NodeWriter& n, ValueIndex y, size_t i) {
  if (!n.has(i)) return y;
  const Declared t = n.type(y);
  Ints shape(t.dims.size(), 1);
  shape[1] = t.dims[1] < 0 ? -1 : t.dims[1];
  return n.binary("add", y, n.in_shaped(i, shape));
}

// conv(x, w, b?) and conv_transpose(x, w, b?)
void convolution(NodeWriter& n, bool transposed) {
  n.expect_attrs({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides", "output_padding",
                  "output_shape"});
  const Declared filter = n.in_type(1);
  const auto axes = static_cast<size_t>(std::max(filter.rank() - 2, 0));
  Declared x = n.in_type(0);
  const Ints kernel = spatial(filter);
  if (axes < 1 || axes > 3 || (transposed && axes > 2) || x.rank() != filter.rank() || !count_of(kernel))
    return n.fail(cat("a window of ", axes, " axes, or of unknown size"));
  if (!n.attrs().get_ints("output_shape").empty()) return n.fail("attribute 'output_shape' is set");
  if (transposed && n.attrs().get_string("auto_pad", "NOTSET").starts_with("SAME"))
    return n.fail("attribute 'auto_pad' of a transposed convolution");
  Window w = window_of(n, kernel, spatial(x));
  Ints extra = n.attrs().get_ints("output_padding");
  ValueIndex input = n.in(0), weight = n.in(1);
  if (axes == 1) {
    w.widen();
    input = n.unsqueeze(input, {2});
    Ints wide = filter.dims;
    wide.insert(wide.begin() + 2, 1);
    weight = n.in_shaped(1, wide);
    x.dims.insert(x.dims.begin() + 2, 1);
    if (!extra.empty()) extra.insert(extra.begin(), 0);
  }
  const int64_t groups = n.attrs().get_int("group", 1);
  const int64_t outputs = transposed ? (filter.dims[1] < 0 ? -1 : filter.dims[1] * groups) : filter.dims[0];
  Declared t{x.dtype, {x.dims[0], outputs}};
  for (size_t k = 0; k < w.kernel.size(); ++k) {
    const int64_t d = x.dims[k + 2];
    if (!transposed) t.dims.push_back(w.places(k, d));
    else
      t.dims.push_back(d < 0
                           ? -1
                           : (d - 1) * w.strides[k] + w.dilations[k] * (w.kernel[k] - 1) + 1 -
                                 w.paddings[2 * k] - w.paddings[2 * k + 1] + (extra.empty() ? 0 : extra[k]));
  }
  std::vector<Attr> attrs = w.attrs();
  attrs.push_back({"dilations", w.dilations});
  attrs.push_back({"groups", groups});
  ValueIndex y;
  if (transposed) {
    attrs.push_back({"output_padding", extra});
    y = n.op("conv2d_transpose", {input, weight, n.ints({})}, std::move(attrs), t);
  } else {
    const bool depthwise = axes < 3 && groups > 1 && groups == x.dims[1] && filter.dims[1] == 1;
    y = n.op(axes == 3   ? "conv3d"
             : depthwise ? "depthwise_conv2d"
                         : "conv2d",
             {input, weight}, std::move(attrs), t);
  }
  if (axes == 1) y = n.squeeze(y, {2});
  n.out(0, with_bias(n, y, 2));
}
// deform_conv(x, w, offset, b?, mask?)
void deform_conv(NodeWriter& n) {
  n.expect_attrs({"dilations", "group", "kernel_shape", "offset_group", "pads", "strides"});
  const Declared x = n.in_type(0), filter = n.in_type(1);
  if (x.rank() != 4 || !count_of(spatial(filter))) return n.fail("a window of other than two axes");
  const Window w = window_of(n, spatial(filter), spatial(x));
  if (w.paddings[0] != w.paddings[1] || w.paddings[2] != w.paddings[3]) return n.fail("pads that differ");
  const Declared t{x.dtype, {x.dims[0], filter.dims[0], w.places(0, x.dims[2]), w.places(1, x.dims[3])}};
  const ValueIndex y = n.op("deformable_conv", {n.in(0), n.in(2), n.in(1), n.in(4)},
                            {{"strides", w.strides},
                             {"paddings", Ints{w.paddings[0], w.paddings[2]}},
                             {"dilations", w.dilations},
                             {"deformable_groups", n.attrs().get_int("offset_group", 1)},
                             {"groups", n.attrs().get_int("group", 1)}},
                            t);
  n.out(0, with_bias(n, y, 3));
}

ValueIndex pool_op(NodeWriter& n, ValueIndex x, const Window& w, std::vector<Attr> attrs, const Declared& t) {
  for (Attr& a : w.attrs()) attrs.push_back(std::move(a));
  if (w.kernel.size() == 2) return n.op("pool2d", {x, n.ints(w.kernel)}, std::move(attrs), t);
  attrs.push_back({"kernel_size", w.kernel});
  return n.op("pool3d", {x}, std::move(attrs), t);
}
void pool(NodeWriter& n, const char* kind) {
  // Of windows too large for their operand (cut_windows) Paddle cuts all.
  n.expect_attrs({"auto_pad", "ceil_mode", "count_include_pad", "cut_windows", "dilations", "kernel_shape",
                  "pads", "storage_order", "strides"});
  if (n.wants(1)) return n.fail("the places of the maxima");
  Declared x = n.in_type(0);
  const Ints kernel = n.attrs().get_ints("kernel_shape");
  const size_t axes = kernel.size();
  if (axes < 1 || axes > 3 || x.rank() != static_cast<int>(axes) + 2)
    return n.fail(cat("a window of ", axes, " axes over ", x.rank()));
  Window w = window_of(n, kernel, spatial(x));
  for (const int64_t d : w.dilations)
    if (d != 1) return n.fail("a dilated pool");
  ValueIndex input = n.in(0);
  if (axes == 1) {
    w.widen();
    input = n.unsqueeze(input, {2});
    x.dims.insert(x.dims.begin() + 2, 1);
  }
  const bool ceil = n.attrs().get_bool("ceil_mode", false);
  // Paddle counts no more of the padding behind than there is in front: zeros of their own are counted all.
  const bool counted = n.attrs().get_bool("count_include_pad", false) && kind == std::string_view("avg");
  bool even = w.algorithm == "EXPLICIT";
  for (size_t k = 0; k < w.kernel.size(); ++k) even = even && w.paddings[2 * k] == w.paddings[2 * k + 1];
  if (counted && !even) {
    if (ceil || w.algorithm != "EXPLICIT") return n.fail("pads that are counted, differ, and may be cut");
    Ints zeros(4, 0);
    zeros.insert(zeros.end(), w.paddings.begin(), w.paddings.end());
    for (size_t k = 0; k < w.kernel.size(); ++k)
      if (x.dims[k + 2] >= 0) x.dims[k + 2] += w.paddings[2 * k] + w.paddings[2 * k + 1];
    input = n.op("pad", {input, n.number(0, x.dtype)}, {{"paddings", zeros}}, x);
    std::fill(w.paddings.begin(), w.paddings.end(), 0);
  }
  Declared t = x;
  for (size_t k = 0; k < w.kernel.size(); ++k) t.dims[k + 2] = w.places(k, x.dims[k + 2], ceil);
  const ValueIndex y = pool_op(n, input, w,
                               {{"pooling_type", std::string(kind)},
                                {"ceil_mode", ceil},
                                {"exclusive", !n.attrs().get_bool("count_include_pad", false)}},
                               t);
  n.out(0, axes == 1 ? n.squeeze(y, {2}) : y);
}
void global_pool(NodeWriter& n, const char* kind) {
  n.expect_attrs({});
  Declared t = n.in_type(0);
  const int rank = t.rank();
  if (rank < 3 || rank > 5) return n.fail(cat("a pool over ", rank, " axes"));
  const size_t axes = rank == 5 ? 3 : 2;
  const ValueIndex input = rank == 3 ? n.unsqueeze(n.in(0), {2}) : n.in(0);
  if (rank == 3) t.dims.insert(t.dims.begin() + 2, 1);
  std::fill(t.dims.begin() + 2, t.dims.end(), 1);
  // Paddle's own exporters write "adaptive" for means; its maxima do not know it.
  const char* whole = kind == std::string_view("max") ? "global_pooling" : "adaptive";
  const Window all{Ints(axes, 1), Ints(axes, 1), Ints(axes, 1), Ints(2 * axes, 0)};
  const ValueIndex y = pool_op(n, input, all, {{"pooling_type", std::string(kind)}, {whole, true}}, t);
  n.out(0, rank == 3 ? n.squeeze(y, {2}) : y);
}

// ---- normalization

// batch_norm(x, scale, bias, mean, variance)
void batch_norm(NodeWriter& n) {
  n.expect_attrs({"epsilon", "momentum", "training_mode"});
  if (n.attrs().get_bool("training_mode", false) || n.wants(1) || n.wants(2))
    return n.fail("statistics of the batch");
  const Declared x = n.in_type(0), each = n.in_type(4);
  n.out(0, n.emit("batch_norm_", {n.in(0), n.in(3), n.in(4), n.in(1), n.in(2)},
                  {{"epsilon", n.attrs().get_float("epsilon", 1e-5)}},
                  {{x}, {each}, {each}, {each}, {each}, {{DType::kU8, {-1}}}})[0][0]);
}
// layer_norm(x, scale, bias?): one vector each there, whatever the axes.
void layer_norm(NodeWriter& n) {
  n.expect_attrs({"axis", "epsilon", "stash_type"});
  if (n.wants(1) || n.wants(2)) return n.fail("mean and deviation as results");
  const Declared x = n.in_type(0);
  const auto at = positive_axes({n.attrs().get_int("axis", -1)}, x.rank());
  if (!at) return n.fail("an axis out of range");
  const auto axis = (*at)[0];
  for (size_t i = 1; i < 3; ++i) {
    if (!n.has(i)) continue;
    const Ints own = n.in_type(i).dims, normal(x.dims.begin() + axis, x.dims.end());
    const bool whole =
        own.size() == normal.size() && (!count_of(normal) || count_of(own) == count_of(normal));
    if (!whole) return n.fail("a scale or bias that does not cover the axes that are normalized");
  }
  const auto vector = [&](size_t i) {
    return !n.has(i) ? kAbsent : n.in_type(i).rank() == 1 ? n.in(i) : n.in_shaped(i, {-1});
  };
  const Declared rows{DType::kF32, {x.dims.begin(), x.dims.begin() + axis}};
  n.out(0, n.emit("layer_norm", {n.in(0), vector(1), vector(2)},
                  {{"epsilon", n.attrs().get_float("epsilon", 1e-5)}, {"begin_norm_axis", axis}},
                  {{x}, {rows}, {rows}})[0][0]);
}
void instance_norm(NodeWriter& n) {
  n.expect_attrs({"epsilon"});
  const Declared x = n.in_type(0), rows{DType::kF32, {-1}};
  n.out(0, n.emit("instance_norm", {n.in(0), n.in(1), n.in(2)},
                  {{"epsilon", n.attrs().get_float("epsilon", 1e-5)}}, {{x}, {rows}, {rows}})[0][0]);
}
void group_norm(NodeWriter& n) {
  n.expect_attrs({"epsilon", "num_groups", "stash_type"});
  const Declared x = n.in_type(0);
  const int64_t groups = n.attrs().get_int("num_groups", 1);
  if (x.rank() < 3 || x.dims[1] < 0 || n.in_type(1).dims != Ints{x.dims[1]})
    return n.fail("a scale for each group instead of each channel");
  const Declared each{DType::kF32, {x.dims[0], groups}};
  n.out(0, n.emit("group_norm", {n.in(0), n.in(1), n.in(2)},
                  {{"epsilon", n.attrs().get_float("epsilon", 1e-5)}, {"groups", groups}},
                  {{x}, {each}, {each}})[0][0]);
}
// x / sqrt(mean(x^2) + eps) * scale
void rms_norm(NodeWriter& n) {
  n.expect_attrs({"axis", "epsilon", "stash_type"});
  const ValueIndex x = n.in(0);
  const Declared t = n.type(x);
  const auto at = positive_axes({n.attrs().get_int("axis", -1)}, t.rank());
  if (!at) return n.fail("an axis out of range");
  if (t.dtype != DType::kF32 && t.dtype != DType::kF64) return n.fail("a narrow type computed in f32");
  Ints axes;
  for (int64_t a = (*at)[0]; a < t.rank(); ++a) axes.push_back(a);
  const ValueIndex mean = n.reduce("mean", n.same("square", x), axes, true);
  const ValueIndex root =
      n.same("rsqrt", n.binary("add", mean, n.scalar(n.attrs().get_float("epsilon", 1e-5), t.dtype)));
  n.out(0, n.binary("multiply", n.binary("multiply", x, root), n.in(1)));
}

// ---- images

// resize(x, roi?, scales?, sizes?)
void resize(NodeWriter& n) {
  n.expect_attrs({"mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "antialias",
                  "exclude_outside", "extrapolation_value", "axes", "keep_aspect_ratio_policy"});
  const Attrs& a = n.attrs();
  const Declared x = n.in_type(0);
  const std::string mode = a.get_string("mode", "nearest"),
                    place = a.get_string("coordinate_transformation_mode", "half_pixel"),
                    nearest = a.get_string("nearest_mode", "round_prefer_floor");
  if (x.rank() < 3 || x.rank() > 5 || a.get_bool("antialias", false) ||
      a.get_bool("exclude_outside", false) || !a.get_ints("axes").empty() ||
      a.get_string("keep_aspect_ratio_policy", "stretch") != "stretch")
    return n.fail(
        cat("a resize of ", x.rank(), " axes, or one with antialias, exclude_outside, axes or ratio"));
  const auto axes = static_cast<size_t>(x.rank() - 2);
  const bool corners = place == "align_corners", half = place == "half_pixel",
             from_zero = place == "asymmetric";
  std::string name, method;
  if (mode == "nearest") {
    const bool exact = (from_zero && nearest == "floor") || (corners && nearest == "round_prefer_ceil");
    if (!exact || axes != 2) return n.fail(cat("'nearest' with ", place, " and ", nearest));
    name = "nearest_interp", method = "nearest";
  } else if (mode == "linear" && (corners || half || from_zero)) {
    name = axes == 1 ? "linear_interp" : axes == 2 ? "bilinear_interp" : "trilinear_interp";
    method = axes == 1 ? "linear" : axes == 2 ? "bilinear" : "trilinear";
  } else if (mode == "cubic" && axes == 2 && (corners || half) &&
             a.get_float("cubic_coeff_a", -0.75) == -0.75) {
    name = "bicubic_interp", method = "bicubic";
  } else {
    return n.fail(cat("mode '", mode, "' with ", place));
  }
  std::vector<Attr> attrs{{"interp_method", method},
                          {"align_corners", corners},
                          {"align_mode", int64_t{from_zero ? 1 : 0}},
                          {"data_format", std::string(axes == 1   ? "NCW"
                                                      : axes == 2 ? "NCHW"
                                                                  : "NCDHW")}};
  Declared t = x;
  ValueIndex size = kAbsent;
  if (n.has(3)) {
    if (const auto sizes = n.known_ints(3)) {
      if (sizes->size() != x.dims.size()) return n.fail("sizes that do not fit the axes");
      constexpr const char* kSides[] = {"out_d", "out_h", "out_w"};
      for (size_t k = 0; k < axes; ++k) {
        t.dims[k + 2] = (*sizes)[k + 2];
        attrs.push_back({kSides[3 - axes + k], (*sizes)[k + 2]});
      }
    } else {
      const Ints known = n.extents(n.in(3));
      std::fill(t.dims.begin() + 2, t.dims.end(), -1);
      if (known.size() == x.dims.size()) std::copy(known.begin() + 2, known.end(), t.dims.begin() + 2);
      size = n.cast(n.slice(n.in(3), 0, 2, x.rank()), DType::kI32);
    }
  } else {
    const Tensor* scales = n.known(2);
    if (scales == nullptr || scales->numel() != x.rank()) return n.fail("scales that are computed");
    std::vector<double> scale;
    for (int64_t k = 0; k < x.rank(); ++k) {
      const double s = element_as_double(*scales, k);
      if (k < 2 && s != 1) return n.fail("a scale of batch or channels");
      int64_t& d = t.dims[static_cast<size_t>(k)];
      if (d >= 0) d = static_cast<int64_t>(std::floor(static_cast<double>(d) * s));
      if (k >= 2) scale.push_back(s);
    }
    attrs.push_back({"scale", scale});
  }
  n.out(0, n.op(name, {n.in(0), size, kAbsent, kAbsent}, std::move(attrs), t));
}
void grid_sample(NodeWriter& n) {
  n.expect_attrs({"mode", "padding_mode", "align_corners"});
  const Declared x = n.in_type(0), grid = n.in_type(1);
  const std::string mode = n.attrs().get_string("mode", "linear");
  if (x.rank() != 4 || grid.rank() != 4 || (mode != "linear" && mode != "bilinear" && mode != "nearest"))
    return n.fail(cat("mode '", mode, "' or an image of ", x.rank(), " axes"));
  n.out(0, n.op("grid_sample", {n.in(0), n.in(1)},
                {{"mode", std::string(mode == "nearest" ? "nearest" : "bilinear")},
                 {"padding_mode", n.attrs().get_string("padding_mode", "zeros")},
                 {"align_corners", n.attrs().get_bool("align_corners", false)}},
                {x.dtype, {x.dims[0], x.dims[1], grid.dims[1], grid.dims[2]}}));
}

void dropout(NodeWriter& n) {
  n.expect_attrs({"seed"});
  if (n.wants(1) || (n.has(2) && n.known_number(2) != 0.0)) return n.fail("dropout while training");
  n.out(0, n.same("assign", n.in(0)));
}

constexpr OpWriterEntry kLayerWriters[] = {
    {"average_pool", [](NodeWriter& n) { pool(n, "avg"); }},
    {"batch_norm", batch_norm},
    {"conv", [](NodeWriter& n) { convolution(n, false); }},
    {"conv_transpose", [](NodeWriter& n) { convolution(n, true); }},
    {"deform_conv", deform_conv},
    {"dropout", dropout},
    {"global_average_pool", [](NodeWriter& n) { global_pool(n, "avg"); }},
    {"global_max_pool", [](NodeWriter& n) { global_pool(n, "max"); }},
    {"grid_sample", grid_sample},
    {"group_norm", group_norm},
    {"instance_norm", instance_norm},
    {"layer_norm", layer_norm},
    {"max_pool", [](NodeWriter& n) { pool(n, "max"); }},
    {"resize", resize},
    {"rms_norm", rms_norm},
};

}  // namespace

std::span<const OpWriterEntry> layer_writers() { return kLayerWriters; }

}  // namespace oar::paddle
