// Ordinary models on the device beside the processor: opening both, what a run says of detours, and how far
// their results are apart.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/cuda/device_memory.h"
#include "tests/import/onnx_predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/kernels/matmul_problem.h"

namespace oar_test {

inline oar::PredictorOptions options_on(const std::string& device) {
  oar::PredictorOptions o;
  o.threads = 2;
  o.reference = true;
  o.device = device;
  return o;
}

inline oar::Datum random_input(const oar::Shape& shape, uint32_t seed) {
  return input(shape, random_values(static_cast<size_t>(shape.numel()), Values::kNormal, seed));
}

// A stem of 7 x 7, a pool, bottlenecks with a projection and without, and a classifier: ResNet-50's layers,
// of any number and width. Weights are of the size that keeps activations at that of 1.
class Bottlenecks {
 public:
  struct Stage {
    int64_t width;  // of the 3 x 3; four times that come out
    int blocks;     // the first of all stages but the first halves the image
  };
  // As an ONNX file, for images of (3, height, width).
  std::string bytes(int64_t height, int64_t width, int64_t stem, const std::vector<Stage>& stages,
                    int64_t classes);

 private:
  Proto weight(const std::string& name, const std::vector<int64_t>& dims, int64_t terms);
  std::string named(const std::string& op) { return op + std::to_string(nodes_.size()); }
  std::string relu(const std::string& x);
  std::string conv(const std::string& x, int64_t C, int64_t M, int64_t k, int64_t stride);
  std::string block(const std::string& x, int64_t C, int64_t inside, int64_t stride);
  std::vector<Proto> nodes_, weights_;
  uint32_t seed_ = 0;
};

// Each of `steps` steps rounds sums of at most `terms` products, whose magnitudes add up to no more than
// `terms` times the largest result; what one adds the next ones keep.
void check_near(const oar::TensorRunner& device, const oar::TensorRunner& cpu,
                const std::vector<oar::Datum>& in, double steps, double terms);

// How far `device` is from `cpu`, relative to the norm of all results.
double distance(const oar::TensorRunner& device, const oar::TensorRunner& cpu,
                const std::vector<oar::Datum>& in);

// What a predictor said of ops that waited for the processor.
class Detours {
 public:
  oar::Logger logger() {
    return oar::Logger([this](oar::LogLevel, std::string_view text) {
      if (text.find("cudnn does convolutions") != std::string_view::npos) cudnn_ = true;
      if (text.find("waited for it") != std::string_view::npos ||
          text.find("no kernel") != std::string_view::npos)
        said_ += std::string(text) + "\n";
    });
  }
  const std::string& said() const { return said_; }
  bool cudnn() const { return cudnn_; }  // takes part

 private:
  std::string said_;
  bool cudnn_ = false;
};

// A model on the processor and on the device, and what was said of detours. Stays where it is: so the log
// does.
struct BothSides {
  explicit BothSides(const std::string& bytes)
      : cpu(open_test_model(bytes, options_on("cpu"))), device(open_test_model(bytes, logged(detours))) {}
  BothSides(const BothSides&) = delete;

  Detours detours;
  const std::unique_ptr<oar::Predictor> cpu, device;

 private:
  static oar::PredictorOptions logged(Detours& detours) {
    oar::PredictorOptions o = options_on(kCudaPlugin);
    o.log = detours.logger();
    return o;
  }
};

// Every step is the device's, and nothing was said of detours. Returns the steps' groups.
std::vector<oar::StepGroup> check_all_on_device(BothSides& sides, const oar::Shape& x);

}  // namespace oar_test
