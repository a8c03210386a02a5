// Infer of language models over REST: the request's tensors as a text request, and its text as a tensor. The
// tensors are those of ServedModels::config(), so shapes and datatypes are checked as any model's.
#pragma once

#include "server/api/oip_request.h"
#include "server/api/tensor_json.h"

namespace oar::api {

// Takes the request's inputs and parameters.
Result<OipTextRequest> read_text_infer(const TensorModelConfig& config, JsonInferRequest& request);
Result<JsonInferAnswer> write_text_infer(const TensorModelConfig& config, const JsonInferRequest& request,
                                         std::string text);

}  // namespace oar::api
