// Static quantization of an ordinary model of f32: a few of the user's own inputs are run, and the ranges of
// the values that convolutions and products read are found. The graph gets 8-bit integers there (QDQ,
// graph/passes/insert_quantization.h). What comes out is an ordinary quantized model: the predictor makes
// integer layers of it, and engine/export writes it for others. Not what --precision int8 does by itself,
// which finds the range of every image in the run (docs/predictor.md compares them).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/import/import.h"
#include "quant/calibrate/activation_range.h"

namespace oar {

using calibrate::RangeMethod;
// INVALID_ARGUMENT, with the names that there are, for any other.
Result<RangeMethod> parse_range_method(std::string_view name);

// Inputs like those that the model will see; a hundred are plenty. Read one at a time, each of them twice.
struct CalibrationSamples {
  std::vector<std::string> names;  // of the samples, for messages: the file or folder of each
  // The values of names[k], in the order of the model's inputs.
  std::function<Result<std::vector<Datum>>(size_t k, const std::vector<IoSpec>& inputs)> read;
  // Says which samples these are, for a cache of what was made with them.
  std::string key;
  RangeMethod method = RangeMethod::kMse;
};

struct CalibrationReport {
  int layers = 0, quantized = 0;  // convolutions and products with constant weights
  int values = 0;                 // that became 8-bit integers
  size_t samples = 0;
};

// Rewrites model.graph, which must be as it was imported. INVALID_ARGUMENT names a sample that does not fit
// the model's inputs, holds a NaN, or with which a value to be quantized is not finite; FAILED_PRECONDITION
// where nothing in the model can be quantized or it is quantized already.
Result<CalibrationReport> quantize_statically(ImportedModel& model, const CalibrationSamples& samples,
                                              Backend& backend = calling_thread_backend());

// One value per input in the model's order, of the declared dtypes, ranks and extents. INVALID_ARGUMENT names
// the input.
Status check_model_inputs(const std::vector<IoSpec>& specs, const std::vector<Datum>& values);

}  // namespace oar
