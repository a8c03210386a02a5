// Triton's classification extension: of an output the largest values of each row, as texts.
// https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
#pragma once

#include <vector>

#include "server/api/tensor_model.h"

namespace oar::api {

// The bound of a request's `classification`: how many of the largest values; 0: the output as it is.
inline constexpr int64_t kMaxClasses = 1 << 20;

// `wanted`: indices of outputs, and `counts` how many of each are asked for. Replaces those results by BYTES
// of "VALUE:INDEX", largest first, equal ones by index: (count) or, of a model with a batch axis, (batch,
// count), where a row has less than `count` values so many. INVALID_ARGUMENT for outputs that are no numbers.
Status classify(const TensorModelConfig& config, const std::vector<size_t>& wanted,
                const std::vector<int64_t>& counts, std::vector<Datum>& results);

}  // namespace oar::api
