// Observers that write a model's requests, and its steps or runs, into a trace.
#pragma once

#include <memory>

#include "server/api/generation.h"
#include "server/api/server_settings.h"
#include "server/api/tensor_model.h"
#include "server/api/trace_file.h"

namespace oar::api {

// `gate` says what of it is wanted at the moment.
// Of a language model. `next` is told everything, too, and has the sums.
std::shared_ptr<GenerationObserver> traced(std::shared_ptr<TraceFile> trace, const ModelHandle& model,
                                           std::shared_ptr<GenerationObserver> next,
                                           std::shared_ptr<TraceSwitch> gate);

// Of an ordinary model or an encoder.
std::shared_ptr<InferObserver> traced(std::shared_ptr<TraceFile> trace, const TensorModel& model,
                                      std::shared_ptr<TraceSwitch> gate);

}  // namespace oar::api
