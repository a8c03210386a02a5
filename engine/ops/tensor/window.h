// Sliding windows: what convolution and pooling share. https://onnx.ai/onnx/operators/onnx__Conv.html
#pragma once

#include "engine/ops/tensor/util.h"

namespace oar::tensor {

// The spatial axes of one op: extents, windows, steps. At most Shape::kMaxRank - 2 axes.
struct Window {
  int axes = 0;
  int64_t in[6] = {}, out[6] = {}, kernel[6] = {}, stride[6] = {}, dilation[6] = {}, begin[6] = {},
          end[6] = {};
  int64_t in_size() const { return product(in); }
  int64_t out_size() const { return product(out); }
  int64_t kernel_size() const { return product(kernel); }
  int64_t product(const int64_t* v) const {
    int64_t n = 1;
    for (int k = 0; k < axes; ++k) n *= v[k];
    return n;
  }
};

// From attributes auto_pad, ceil_mode, dilations, pads, strides; `kernel` are the window's extents. Checks
// all ranges: results are positive and sizes do not overflow.
inline Result<Window> make_window(const Attrs& attrs, const Shape& x, std::span<const int64_t> kernel,
                                  bool ceil_mode) {
  Window w;
  w.axes = x.rank() - 2;
  if (w.axes < 1) return invalid_argument(cat("needs (N, C, spatial...), not ", x.to_string()));
  const auto n = static_cast<size_t>(w.axes);
  const std::vector<int64_t> strides = attrs.get_ints("strides"), dilations = attrs.get_ints("dilations"),
                             pads = attrs.get_ints("pads");
  if (kernel.size() != n || (!strides.empty() && strides.size() != n) ||
      (!dilations.empty() && dilations.size() != n) || (!pads.empty() && pads.size() != 2 * n)) {
    return invalid_argument(
        "kernel_shape, strides, dilations or pads have another number of axes than the operand");
  }
  const std::string auto_pad = attrs.get_string("auto_pad", "NOTSET");
  constexpr int64_t kMost = int64_t{1} << 31;
  for (size_t k = 0; k < n; ++k) {
    w.in[k] = x[static_cast<int>(k) + 2];
    w.kernel[k] = kernel[k];
    w.stride[k] = strides.empty() ? 1 : strides[k];
    w.dilation[k] = dilations.empty() ? 1 : dilations[k];
    if (w.kernel[k] < 1 || w.stride[k] < 1 || w.dilation[k] < 1 || w.kernel[k] > kMost ||
        w.stride[k] > kMost || w.dilation[k] > kMost) {
      return invalid_argument("kernel_shape, strides and dilations must be positive");
    }
    const int64_t reach = (w.kernel[k] - 1) * w.dilation[k] + 1;
    if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      w.out[k] = (w.in[k] + w.stride[k] - 1) / w.stride[k];
      const int64_t total = std::max<int64_t>(0, (w.out[k] - 1) * w.stride[k] + reach - w.in[k]);
      w.begin[k] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.end[k] = total - w.begin[k];
      continue;
    }
    if (auto_pad == "NOTSET" && !pads.empty()) w.begin[k] = pads[k], w.end[k] = pads[k + n];
    else if (auto_pad != "NOTSET" && auto_pad != "VALID" && !auto_pad.empty())
      return invalid_argument(cat("unknown auto_pad '", auto_pad, "'"));
    if (std::abs(w.begin[k]) > kMost || std::abs(w.end[k]) > kMost)
      return invalid_argument("pads are out of range");
    const int64_t room = w.in[k] + w.begin[k] + w.end[k] - reach;
    // Paddle's pools, and those that round up: a window that is too large by less than a step is cut.
    const bool cut = room < 0 && -room < w.stride[k] && w.begin[k] < reach &&
                     (ceil_mode || attrs.get_int("cut_windows") != 0);
    if (room < 0 && !cut)
      return invalid_argument(
          cat("a window of ", reach, " does not fit axis ", k + 2, " of extent ", w.in[k], " with its pads"));
    w.out[k] = cut ? 1 : room / w.stride[k] + 1;
    if (ceil_mode && !cut && room % w.stride[k] != 0) {
      // One more, unless that window would begin behind the operand.
      if (w.out[k] * w.stride[k] < w.in[k] + w.begin[k]) ++w.out[k];
    }
  }
  std::vector<int64_t> all(w.out, w.out + w.axes);
  OAR_RETURN_IF_ERROR(checked_shape(all).status());
  OAR_RETURN_IF_ERROR(checked_shape({w.kernel, n}).status());
  return w;
}

// Calls f(kernel index, input index) for each element of window `o` that lies inside the operand.
template <class F>
void walk_window(const Window& w, int64_t o, F&& f) {
  int64_t origin[6];
  for (int k = w.axes - 1; k >= 0; --k) origin[k] = o % w.out[k] * w.stride[k] - w.begin[k], o /= w.out[k];
  const int64_t n = w.kernel_size();
  for (int64_t e = 0; e < n; ++e) {
    int64_t rest = e, at = 0, scale = 1;
    bool inside = true;
    for (int k = w.axes - 1; k >= 0; --k) {
      const int64_t i = origin[k] + rest % w.kernel[k] * w.dilation[k];
      rest /= w.kernel[k];
      inside = inside && i >= 0 && i < w.in[k];
      at += i * scale;
      scale *= w.in[k];
    }
    if (inside) f(e, at);
  }
}

}  // namespace oar::tensor
