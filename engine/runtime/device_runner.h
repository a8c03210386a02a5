// DeviceRunner: the ModelRunner of a device that draws tokens itself. Logits stay there; what comes back of a
// step are its draws, and log-probabilities where they are asked for. Two copies bring a step: its rows, and,
// once the step before has been committed, what to draw from them. At depth 1 the tokens that the step before
// drew are put in their places on the device.
#pragma once

#include <memory>
#include <vector>

#include "engine/runtime/plan_runner.h"

namespace oar {

// Bytes that drawing takes on the plan's device from the start; 0: its backend does not draw.
uint64_t sampling_bytes(const ServingPlan& serving);

// A DeviceRunner of this depth where the plan's backend draws tokens, else one that has the host draw.
Result<std::unique_ptr<ModelRunner>> make_serving_runner(ServingPlan serving, std::vector<int32_t> num_blocks,
                                                         int32_t depth);

}  // namespace oar
