// DeviceRunner: the ModelRunner of a device that draws tokens itself. Logits stay there; what comes back of a
// step are its draws, and log-probabilities where they are asked for. What to draw from a step is known once
// the one before has been committed. At depth 1 one copy brings it with the next step's rows; the device
// draws, puts the tokens in those rows' places and goes on. Where no step comes behind, as in lockstep, it
// has a copy of its own: rows do not wait there until masks are known.
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
