// Tensors of the Open Inference Protocol as they arrive: every rule about contents, raw contents, shapes and
// datatypes is checked here, before anything is looked at. Errors name the input, the value and the remedy.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/api/oip_request.h"

namespace oar::grpc_api {

// The tensor protocol, whatever the model: one entry of raw_input_contents per input or none, never mixed
// with contents; sizes equal to the shape's; shapes without negative dimensions or overflow.
Status check_tensors(const inference::ModelInferRequest& request);

// Parameters of a request, an input or an output.
json::object parameters_json(const google::protobuf::Map<std::string, inference::InferParameter>& parameters);

// A checked request as the text model's: known inputs, one element each, known outputs.
Result<api::OipTextRequest> read_text_request(const inference::ModelInferRequest& request);

// Adds the output tensor text_output with one BYTES element, raw.
void add_text_output(inference::ModelInferResponse& response, std::string_view text);

}  // namespace oar::grpc_api
