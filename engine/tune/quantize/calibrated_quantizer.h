// The quantizers that look at data, for the linear layers that share one input: statistics are gathered row
// by row of calibration activations, then each matrix is quantized with them. One object per shared input;
// the algorithms are quant/calibrate's.
#pragma once

#include <span>
#include <vector>

#include "engine/runtime/quantize_weights.h"
#include "engine/tensor/backend.h"
#include "engine/tune/quantize/quantize.h"

namespace oar {

class InputStatistics {
 public:
  explicit InputStatistics(int64_t cols);
  // Rows (count, cols) of activations, twice whose size is allocated for the call; sums are spread over
  // the threads of the host and the same for any number of them.
  Status add(std::span<const float> rows, Backend& backend);

  int64_t cols() const { return cols_; }
  int64_t samples() const { return samples_; }
  std::span<const float> hessian() const { return hessian_; }  // X X^T, (cols, cols)
  std::vector<float> power() const;                            // mean square by channel
  std::vector<float> magnitude() const;                        // mean absolute value
  const std::vector<float>& maximum() const { return maximum_; }
  // As if the inputs had been divided by `scale`.
  void divide(std::span<const float> scale);
  // Both triangles, once all rows are in.
  void finish();

 private:
  int64_t cols_, samples_ = 0;
  std::vector<float> hessian_, maximum_;
  std::vector<double> absolute_;
};

struct CalibratedWeight {
  Tensor tensor;
  LayerError error;
};

// One matrix, by options.method gptq or (rounding alone) rtn. Formats that are no integer grid are rounded by
// their own encode(). `factor` is made on first use and shared by the matrices of one input. `held` has the
// samples that gptq is judged by (QuantizeOptions::method); none: it is not.
struct SharedFactor;
class CalibratedQuantizer {
 public:
  CalibratedQuantizer(const QuantizeOptions& options, const InputStatistics& statistics,
                      const InputStatistics& held, ThreadPool& pool);
  ~CalibratedQuantizer();
  Result<CalibratedWeight> quantize(const Tensor& w, Format format);

 private:
  // `importance` by column, see calibrate::fit_row().
  Result<CalibratedWeight> attempt(const Tensor& w, Format format, bool feedback,
                                   std::span<const float> importance);
  bool judged() const { return held_.samples() > 0; }

  const QuantizeOptions& options_;
  const InputStatistics &statistics_, &held_;
  ThreadPool& pool_;
  std::unique_ptr<SharedFactor> factor_;
};

// Scales for the channels of a shared input, by options.method awq or smoothquant; all ones where they do not
// help. `weights` read the input, each to be quantized in its format.
Result<std::vector<float>> channel_scales(const QuantizeOptions& options, const InputStatistics& statistics,
                                          const std::vector<std::pair<Tensor, Format>>& weights,
                                          ThreadPool& pool);

// W diag(scale) in f32.
Result<Tensor> scale_columns(const Tensor& w, std::span<const float> scale);

}  // namespace oar
