// The native requests of llama.cpp's server: /completion and /infill. Everything but the prompt and what is
// reported is read as for completions; n_predict is -1 (what the context has room for) unless it is said.
#pragma once

#include "server/api/generation_request.h"

namespace oar::api {

struct LlamaRequest {
  GenerationRequest request;
  bool return_tokens = false;
  std::vector<std::string> response_fields;  // the only ones of the answer; empty: all
};
// `infill`: the prompt is the text around a gap (input_prefix, input_suffix) and what the gap begins with.
Result<LlamaRequest> parse_llama_request(const RequestBody& body, const ModelHandle& model,
                                         const ApiLimits& limits, bool infill);

}  // namespace oar::api
