// An observer of a model's requests and steps that writes them into a trace and passes them on.
#pragma once

#include <memory>

#include "server/api/generation.h"
#include "server/api/trace_file.h"

namespace oar::api {

// `next` is told everything, too, and has the sums.
std::shared_ptr<GenerationObserver> traced(std::shared_ptr<TraceFile> trace, const ModelHandle& model,
                                           std::shared_ptr<GenerationObserver> next);

}  // namespace oar::api
