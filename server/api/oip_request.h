// A text request of the Open Inference Protocol, whatever it travelled in: inputs text_input, stream,
// sampling_parameters (JSON) and exclude_input_in_output as Triton's vLLM backend names them, plus request
// parameters.
#pragma once

#include <optional>
#include <string>

#include "server/api/generation_request.h"

namespace oar::api {

struct OipTextRequest {
  std::string id;
  std::string text;
  bool stream = false;
  bool empty_final = false;           // a stream ends with a response of its own, without output if need be
  std::optional<bool> exclude_input;  // absent: excluded when streaming, included otherwise
  json::object fields;                // generation fields, merged

  bool prepends_input() const { return !exclude_input.value_or(stream); }
};

// Merges the JSON text of `sampling_parameters` into `fields`. Numbers and booleans written as strings
// ("0.1"), which that backend's published examples use, are read as what they say.
Status merge_sampling_parameters(std::string_view text, json::object& fields);
// Merges one request parameter; `timeout` is microseconds there.
Status merge_parameter(std::string_view name, const json::value& value, OipTextRequest& request);
// Contradictions between fields.
Status check_oip_request(const OipTextRequest& request);

// The request of the model, checked.
Result<GenerationRequest> text_generation(const OipTextRequest& request, const ModelHandle& model,
                                          const ApiLimits& limits);

// Body of POST /v2/models/{m}/generate: {"id","text_input","parameters":{...}, more parameters}.
Result<OipTextRequest> parse_generate_body(const json::object& body, bool stream);

}  // namespace oar::api
