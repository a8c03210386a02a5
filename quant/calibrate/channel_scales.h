// Scales on the input channels of a group of linear layers that share an input: x / s and W diag(s) give the
// same product, and s decides who carries the difficulty. The 1 / s goes into the norm or the linear before
// (the caller's affair). Searches and formulas only; nothing here knows layers.
//
// AWQ: https://arxiv.org/abs/2306.00978   SmoothQuant: https://arxiv.org/abs/2211.10438
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace oar::calibrate {

struct ChannelScales {
  std::vector<float> scale;  // one per input channel, positive
  double exponent = 0;       // of the best candidate; 0: all ones
  double loss = 0;           // what `loss` said of it
};

// s = magnitude^a / sqrt(max s * min s) for a = 0, 1/steps .. 1 - 1/steps; the first of equals wins, so a
// scale is only taken where it helps. `magnitude`: mean |x| of each channel; channels never used count as the
// least that was. `loss` measures a candidate: the output error after quantizing W diag(s).
ChannelScales awq_scales(std::span<const float> magnitude, int steps,
                         const std::function<double(std::span<const float> scale)>& loss);

// s_j = max|x_j|^alpha / max|W_j|^(1 - alpha); 1 where either is 0.
std::vector<float> smoothquant_scales(std::span<const float> input_max, std::span<const float> weight_max,
                                      double alpha);

}  // namespace oar::calibrate
