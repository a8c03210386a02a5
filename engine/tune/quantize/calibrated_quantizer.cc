#include "engine/tune/quantize/calibrated_quantizer.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "kernels/conv.h"
#include "quant/calibrate/channel_scales.h"
#include "quant/calibrate/descent.h"
#include "quant/calibrate/gptq.h"
#include "quant/calibrate/grid_format.h"

namespace oar {

struct SharedFactor {
  calibrate::GptqFactor gptq;
};

InputStatistics::InputStatistics(int64_t cols)
    : cols_(cols),
      hessian_(static_cast<size_t>(cols * cols)),
      maximum_(static_cast<size_t>(cols)),
      absolute_(static_cast<size_t>(cols)) {}

// The sum of outer products is X^T X, a product of f32 matrices: the kernel of convolution computes it, whose
// operands are the columns of X as rows, and the same as packed filters. A block of rows of the upper
// triangle at a time; its corner below the diagonal is computed too and means nothing.
Status InputStatistics::add(std::span<const float> rows, Backend& backend) {
  constexpr int64_t kBlock = 256;  // rows of the triangle, a multiple of every panel width
  const int64_t n = cols_, count = static_cast<int64_t>(rows.size()) / std::max<int64_t>(n, 1);
  if (count == 0) return ok_status();
  samples_ += count;
  ThreadPool& pool = backend.host_pool();
  const Kernel* product = backend.host().find_kernel({KernelFamily::kConv, Format::f32()});
  OAR_CHECK(product != nullptr, "kernel family without a kernel");
  const int64_t width = panel_width(product->isa);
  OAR_ASSIGN(Tensor columns, Tensor::allocate({n, count}, Format::f32()));
  OAR_ASSIGN(Tensor filters, Tensor::allocate({packed_filter_floats(n, 1, 1, count, width)}, Format::f32()));
  float* const column = columns.mutable_values<float>().data();
  float* const filter = filters.mutable_values<float>().data();
  pool.parallel_for((n + width - 1) / width, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * width, last = std::min(n, end * width);
    pack_filters(filter + first * count, rows.data() + first, last - first, 1, 1, count, 1, n, 0, width);
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t j = first; j < last; ++j) column[j * count + t] = rows[static_cast<size_t>(t * n + j)];
    }
    for (int64_t j = first; j < last; ++j) {
      const auto at = static_cast<size_t>(j);
      for (int64_t t = 0; t < count; ++t) {
        const float a = std::abs(column[j * count + t]);
        absolute_[at] += static_cast<double>(a);
        maximum_[at] = std::max(maximum_[at], a);
      }
    }
  });
  for (int64_t i = 0; i < n; i += kBlock) {
    ConvArgs a;
    a.window.N = a.window.H = a.window.OH = 1;
    a.window.W = a.window.OW = std::min(kBlock, n - i);
    a.x = column + i * count, a.ldx = a.C = count;
    a.w = filter + i * count, a.M = n - i, a.panel = width;
    a.out = hessian_.data() + i * n + i, a.ldo = n;
    a.residual = a.out;
    KernelPlan plan;
    product->plan(&a, pool.workers(), &plan);
    const auto floats = static_cast<int64_t>(plan.shared_scratch / sizeof(float) + 1);
    OAR_ASSIGN(Tensor shared, Tensor::allocate({floats}, Format::f32()));
    pool.reserve_scratch(plan.worker_scratch);
    pool.run(*product, &a, plan, shared.mutable_data());
  }
  return ok_status();
}

void InputStatistics::finish() {
  const auto n = static_cast<size_t>(cols_);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) hessian_[i * n + j] = hessian_[j * n + i];
  }
}

std::vector<float> InputStatistics::power() const {
  std::vector<float> out(static_cast<size_t>(cols_));
  for (size_t j = 0; j < out.size(); ++j) {
    out[j] = hessian_[j * out.size() + j] / static_cast<float>(std::max<int64_t>(samples_, 1));
  }
  return out;
}

std::vector<float> InputStatistics::magnitude() const {
  std::vector<float> out(absolute_.size());
  for (size_t j = 0; j < out.size(); ++j) {
    out[j] = static_cast<float>(absolute_[j] / static_cast<double>(std::max<int64_t>(samples_, 1)));
  }
  return out;
}

void InputStatistics::divide(std::span<const float> scale) {
  const auto n = static_cast<size_t>(cols_);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) hessian_[i * n + j] /= scale[i] * scale[j];
    maximum_[i] /= scale[i];
    absolute_[i] /= static_cast<double>(scale[i]);
  }
}

Result<Tensor> scale_columns(const Tensor& w, std::span<const float> scale) {
  OAR_ASSIGN(Tensor out, to_f32(w));
  if (!out.buffer().writable() || out.data() == w.data()) {
    OAR_ASSIGN(Tensor copy, Tensor::allocate(w.shape(), Format::f32()));
    std::copy_n(out.values<float>().data(), out.numel(), copy.mutable_values<float>().data());
    out = std::move(copy);
  }
  const auto values = out.mutable_values<float>();
  for (size_t i = 0; i < values.size(); ++i) values[i] *= scale[i % scale.size()];
  return out;
}

CalibratedQuantizer::CalibratedQuantizer(const QuantizeOptions& options, const InputStatistics& statistics,
                                         const InputStatistics& held, ThreadPool& pool)
    : options_(options), statistics_(statistics), held_(held), pool_(pool) {}
CalibratedQuantizer::~CalibratedQuantizer() = default;

Result<CalibratedWeight> CalibratedQuantizer::quantize(const Tensor& w, Format format) {
  const bool feedback = options_.method == "gptq" && calibrate::find_grid_format(format) != nullptr;
  OAR_ASSIGN(CalibratedWeight made, attempt(w, format, feedback, statistics_.power()));
  if (!feedback || !judged()) return made;
  OAR_ASSIGN(CalibratedWeight rounded, attempt(w, format, false, {}));
  if (made.error.output_error < rounded.error.output_error) return made;
  rounded.error.fell_back = true;
  return rounded;
}

Result<CalibratedWeight> CalibratedQuantizer::attempt(const Tensor& w, Format format, bool feedback,
                                                      std::span<const float> importance) {
  const int64_t rows = w.shape()[0], cols = w.shape()[1];
  const calibrate::GridFormat* grid = calibrate::find_grid_format(format);
  const std::span<const float> samples = judged() ? held_.hessian() : statistics_.hessian();
  if (feedback && factor_ == nullptr) {
    factor_ = std::make_unique<SharedFactor>();
    const calibrate::GptqOptions gptq{options_.damping, options_.activation_order,
                                      [&](int64_t count, const auto& fn) {
                                        pool_.parallel_for(count, 1, [&](int64_t b, int64_t e) { fn(b, e); });
                                      }};
    if (!calibrate::gptq_factor(statistics_.hessian(), cols, gptq, factor_->gptq)) {
      return data_loss("the calibration text gives NaN or infinite activations; use a method without it");
    }
  }
  CalibratedWeight out;
  OAR_ASSIGN(out.tensor, Tensor::allocate(w.shape(), format));
  const int64_t from_bytes = *w.format().row_bytes(cols), to_bytes = *format.row_bytes(cols);
  const auto* from = static_cast<const std::byte*>(w.data());
  auto* to = static_cast<std::byte*>(out.tensor.mutable_data());
  constexpr int64_t kTile = 16;  // rows that gptq_rows() takes side by side
  const int64_t tiles = (rows + kTile - 1) / kTile;
  struct Sums {
    double lost = 0, all = 0, output_lost = 0, output_all = 0;
  };
  std::vector<Sums> sums(static_cast<size_t>(tiles));
  pool_.parallel_for(tiles, 1, [&](int64_t begin, int64_t end) {
    const auto n = static_cast<size_t>(cols);
    const size_t groups = grid != nullptr ? static_cast<size_t>(grid->spec.groups(cols)) : 0;
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTile, count = std::min(kTile, rows - first);
      const auto total = static_cast<size_t>(count);
      std::vector<float> original(total * n), read(total * n), scale(total * groups), zero(total * groups);
      std::vector<int8_t> levels(grid != nullptr ? total * n : 0);
      for (size_t r = 0; r < total; ++r) {
        const auto row = std::span(original).subspan(r * n, n);
        w.format().decode_row(from + (first + static_cast<int64_t>(r)) * from_bytes, cols, row.data());
        if (grid == nullptr) continue;
        const auto s = std::span(scale).subspan(r * groups, groups),
                   z = std::span(zero).subspan(r * groups, groups);
        calibrate::fit_row(row, importance, grid->spec, {}, s, z);
        if (!feedback) { calibrate::round_row(row, grid->spec, s, z, std::span(levels).subspan(r * n, n)); }
      }
      if (feedback) {
        calibrate::gptq_rows(original, count, grid->spec, scale, zero, factor_->gptq, levels);
        calibrate::descend_rows(original, count, grid->spec, scale, zero, statistics_.hessian(), cols,
                                {.damping = factor_->gptq.damping}, levels);
      }
      Sums& sum = sums[static_cast<size_t>(tile)];
      for (size_t r = 0; r < total; ++r) {
        std::byte* bytes = to + (first + static_cast<int64_t>(r)) * to_bytes;
        float* row = original.data() + r * n;
        if (grid != nullptr) {
          grid->pack(std::span(levels).subspan(r * n, n), std::span(scale).subspan(r * groups, groups),
                     std::span(zero).subspan(r * groups, groups), bytes);
        } else {
          format.encode_row(row, cols, bytes);
        }
        format.decode_row(bytes, cols, read.data() + r * n);
      }
      sum.output_all = calibrate::output_error(original, count, samples, cols);
      for (size_t i = 0; i < original.size(); ++i) {
        sum.all += static_cast<double>(original[i]) * static_cast<double>(original[i]);
        read[i] = original[i] - read[i];
        sum.lost += static_cast<double>(read[i]) * static_cast<double>(read[i]);
      }
      sum.output_lost = calibrate::output_error(read, count, samples, cols);
    }
  });
  Sums total;
  for (const Sums& s : sums) {
    total.lost += s.lost;
    total.all += s.all;
    total.output_lost += s.output_lost;
    total.output_all += s.output_all;
  }
  if (!std::isfinite(total.all) || !std::isfinite(total.output_all)) {
    return data_loss("NaN or infinite weights or activations, which cannot be quantized");
  }
  out.error.format = format.name();
  out.error.weight_error = total.all > 0 ? std::sqrt(total.lost / total.all) : 0;
  out.error.output_error =
      total.output_all > 0 ? std::sqrt(std::max(total.output_lost, 0.0) / total.output_all) : 0;
  return out;
}

Result<std::vector<float>> channel_scales(const QuantizeOptions& options, const InputStatistics& statistics,
                                          const std::vector<std::pair<Tensor, Format>>& weights,
                                          ThreadPool& pool) {
  const auto n = static_cast<size_t>(statistics.cols());
  if (options.method == "smoothquant") {
    std::vector<float> largest(n);
    for (const auto& [w, format] : weights) {
      OAR_ASSIGN(const Tensor values, to_f32(w));
      const auto v = values.values<float>();
      for (size_t i = 0; i < v.size(); ++i) largest[i % n] = std::max(largest[i % n], std::abs(v[i]));
    }
    return calibrate::smoothquant_scales(statistics.maximum(), largest, options.smoothquant_alpha);
  }
  Status failed;
  const auto loss = [&](std::span<const float> scale) {
    double total = 0;
    QuantizeOptions plain = options;
    plain.method = "rtn";
    InputStatistics scaled = statistics;
    scaled.divide(scale);
    for (const auto& [w, format] : weights) {
      auto columns = scale_columns(w, scale);
      auto made =
          columns.ok()
              ? CalibratedQuantizer(plain, scaled, InputStatistics(0), pool).quantize(*columns, format)
              : Result<CalibratedWeight>(columns.status());
      if (!made.ok()) {
        failed = made.status();
        return std::nan("");
      }
      // Relative errors of one input's matrices; W X is the same for every scale, so sums compare.
      total += made->error.output_error * made->error.output_error;
    }
    return total;
  };
  const std::vector<float> magnitude = statistics.magnitude();
  calibrate::ChannelScales best = calibrate::awq_scales(magnitude, 20, loss);
  OAR_RETURN_IF_ERROR(failed);
  return best.scale;
}

}  // namespace oar
