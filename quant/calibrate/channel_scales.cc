#include "quant/calibrate/channel_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oar::calibrate {

ChannelScales awq_scales(std::span<const float> magnitude, int steps,
                         const std::function<double(std::span<const float> scale)>& loss) {
  float least = std::numeric_limits<float>::infinity();
  for (const float m : magnitude) {
    if (m > 0) least = std::min(least, m);
  }
  if (!std::isfinite(least)) least = 1;
  ChannelScales best;
  best.loss = std::numeric_limits<double>::infinity();
  std::vector<float> scale(magnitude.size());
  for (int k = 0; k < steps; ++k) {
    const double exponent = static_cast<double>(k) / steps;
    double low = std::numeric_limits<double>::infinity(), high = 0;
    for (size_t j = 0; j < scale.size(); ++j) {
      const double s = std::pow(static_cast<double>(std::max(magnitude[j], least)), exponent);
      scale[j] = static_cast<float>(s);
      low = std::min(low, s);
      high = std::max(high, s);
    }
    const auto normalize = static_cast<float>(1 / std::sqrt(low * high));
    for (float& s : scale) s *= normalize;
    const double now = loss(scale);
    if (now < best.loss) best = {scale, exponent, now};
  }
  if (best.scale.empty()) best.scale.assign(magnitude.size(), 1.f);  // a loss that is never a number
  return best;
}

std::vector<float> smoothquant_scales(std::span<const float> input_max, std::span<const float> weight_max,
                                      double alpha) {
  std::vector<float> scale(input_max.size());
  for (size_t j = 0; j < scale.size(); ++j) {
    const double x = input_max[j], w = weight_max[j];
    scale[j] = x > 0 && w > 0 ? static_cast<float>(std::pow(x, alpha) / std::pow(w, 1 - alpha)) : 1.f;
  }
  return scale;
}

}  // namespace oar::calibrate
