// What the evaluations of convolutions share: the checked geometry of one call.
#pragma once

#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/tensor/window.h"

namespace oar::tensor {

struct Conv {
  Window w;
  int64_t N, C, M, groups;
  Shape out;  // (N, M, ...)
};

// x (N, C, ...), weight (M, C / groups, ...), as shapes whatever the layout in memory.
Result<Conv> plan_conv(const Attrs& attrs, const Shape& x, const Shape& weight);

// conv(x, weight, bias?, residual?) {auto_pad, dilations, group, kernel_shape, pads, strides, activation,
// act_alpha, act_beta, layout, planar_input}: activation(conv(x) + bias + residual).
//   layout "nhwc": x and the result are (N, H, W, C), the weight stays (M, C / groups, KH, KW);
//   planar_input: of those, x is (N, C, H, W) all the same.
// conv_transpose(x (N, C, ...), weight (C, M / groups, ...), bias?), same layouts and activations.

// The window of a kernel's arguments for one or two spatial axes.
WindowShape kernel_window(const Window& w, int64_t N);

// (N, C, H, W) of a tensor that lies as (N, H, W, C), and the other way round.
inline Shape channels_first(const Shape& s) { return {s[0], s[3], s[1], s[2]}; }
inline Shape channels_last(const Shape& s) { return {s[0], s[2], s[3], s[1]}; }
inline bool is_nhwc(const Attrs& attrs) {
  return attrs.has("layout") && attrs.get_string("layout") == "nhwc";
}

}  // namespace oar::tensor
