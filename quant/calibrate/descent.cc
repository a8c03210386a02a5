#include "quant/calibrate/descent.h"

#include <vector>

#include "quant/calibrate/for_each_isa.h"

namespace oar::calibrate {
namespace {

// to += factor * from, n numbers that do not overlap.
struct Scaled {
  float* to;
  const float* from;
  float factor;
  size_t n;
};
OAR_BODY void accumulate_body(const Scaled& a) {
  using Floats [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
  size_t i = 0;
  for (; i + 16 <= a.n; i += 16) {
    *reinterpret_cast<Floats*>(a.to + i) += a.factor * *reinterpret_cast<const Floats*>(a.from + i);
  }
  for (; i < a.n; ++i) a.to[i] += a.factor * a.from[i];
}
OAR_FOR_EACH_ISA(accumulate, accumulate_body, const Scaled)

}  // namespace

void descend_rows(std::span<const float> rows, int64_t count, const GridSpec& spec,
                  std::span<const float> scale, std::span<const float> zero, std::span<const float> hessian,
                  int64_t size, const DescentOptions& options, std::span<int8_t> levels) {
  const auto n = static_cast<size_t>(size), total = static_cast<size_t>(count);
  const auto groups = static_cast<size_t>(spec.groups(size)), width = static_cast<size_t>(spec.columns(size));
  const auto damping = static_cast<float>(options.damping);
  std::vector<float> lost(total * n), pull(total * n, 0.f);  // d, and d H
  for (size_t r = 0; r < total; ++r) {
    read_row(levels.subspan(r * n, n), spec, scale.subspan(r * groups, groups),
             zero.subspan(r * groups, groups), std::span(lost).subspan(r * n, n));
  }
  for (size_t i = 0; i < lost.size(); ++i) lost[i] = rows[i] - lost[i];
  // A row of H is read once for all rows of W.
  for (size_t k = 0; k < n; ++k) {
    for (size_t r = 0; r < total; ++r) {
      if (lost[r * n + k] != 0) {
        accumulate({pull.data() + r * n, hessian.data() + k * n, lost[r * n + k], n});
      }
    }
  }
  for (size_t r = 0; r < total; ++r) {
    float* d = lost.data() + r * n;
    float* p = pull.data() + r * n;
    bool changed = true;
    for (int sweep = 0; sweep < options.sweeps && changed; ++sweep) {
      changed = false;
      for (size_t j = 0; j < n; ++j) {
        const float curvature = hessian[j * n + j] + damping;
        const float s = scale[r * groups + j / width], z = zero[r * groups + j / width];
        if (!(curvature > 0) || s == 0) continue;
        const float q = rows[r * n + j] - d[j];
        const int level = level_of(spec, q + (p[j] + damping * d[j]) / curvature, reciprocal(s), z);
        int8_t& stored = levels[r * n + j];
        if (static_cast<int8_t>(level) == stored) continue;
        const float step = s * (static_cast<float>(level) - z) - q;
        stored = static_cast<int8_t>(level);
        d[j] -= step;
        accumulate({p, hessian.data() + j * n, -step, n});
        changed = true;
      }
    }
  }
}

}  // namespace oar::calibrate
