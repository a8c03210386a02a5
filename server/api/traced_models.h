// Observers that write a model's requests, and its steps or runs, into a trace.
#pragma once

#include <memory>

#include "server/api/generation.h"
#include "server/api/tensor_model.h"
#include "server/api/trace_file.h"

namespace oar::api {

// Of a language model. `next` is told everything, too, and has the sums.
std::shared_ptr<GenerationObserver> traced(std::shared_ptr<TraceFile> trace, const ModelHandle& model,
                                           std::shared_ptr<GenerationObserver> next);

// Of an ordinary model or an encoder.
std::shared_ptr<InferObserver> traced(std::shared_ptr<TraceFile> trace, const TensorModel& model);

}  // namespace oar::api
