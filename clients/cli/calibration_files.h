// The options --precision and --calibrate of ordinary models, and the folder of samples that the latter
// names:
//
//   DIR/*.npy .pb .bin               one sample each, of a model with one input
//   DIR/SAMPLE/NAME.npy .pb .bin     one file for each of the model's inputs; in NAME,
//                                    what is not a letter, a digit, a dot or a dash
//                                    becomes an underscore
//   DIR/SAMPLE/input_0.pb ...        the same by position, as ONNX's tests lie
//
// in the order of their names.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "engine/runtime/calibration.h"

namespace oar::cli {

void add_precision_option(CLI::App& command, std::string& precision);

struct CalibrationOptions {
  std::string folder, method = "mse";
};
void add_calibration_options(CLI::App& command, CalibrationOptions& options);
// Null where no folder is given. INVALID_ARGUMENT or NOT_FOUND, naming the folder, where it has no samples.
Result<std::shared_ptr<const CalibrationSamples>> calibration_samples(const CalibrationOptions& options);

}  // namespace oar::cli
