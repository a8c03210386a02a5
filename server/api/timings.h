// How a request went, in llama.cpp's words (`timings`) and vLLM's (`metrics`), and how far its prompt is.
#pragma once

#include <string>

#include "engine/runtime/core/request.h"
#include "server/api/json_writer.h"

namespace oar::api {

// The member "timings": of a sequence that has ended, or so far.
void write_timings(JsonWriter& w, const SequenceStats& stats);
// The member "metrics", vLLM's, of a sequence that has ended. Means of what there were no two of are left
// out.
void write_metrics(JsonWriter& w, const SequenceStats& stats);
// The member "prompt_progress", of an event that tells of it.
void write_progress(JsonWriter& w, const SequenceStats& stats);

}  // namespace oar::api
