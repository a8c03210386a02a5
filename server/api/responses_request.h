// Bodies of OpenAI's /v1/responses: parsing and validation. They become the same GenerationRequest as
// everybody's; what is not honoured is refused by name.
#pragma once

#include <string>

#include "server/api/generation_request.h"

namespace oar::api {

// What an answer repeats of its request.
struct ResponsesOptions {
  std::string instructions;      // empty: none
  std::string previous_id;       // whose conversation this one goes on with; empty: none
  bool raw_messages = false;     // vLLM's: the answer has prompt and reply as the model read and wrote them
  bool store = true;             // whether another may go on with this one
  json::object echoed;           // further members of the answer, as they were sent or by default
  size_t instruction_count = 0;  // messages of the conversation that are not kept: its instructions
};

struct ResponsesRequest {
  GenerationRequest request;
  ResponsesOptions options;
};

// The conversation has the request's own messages alone, instructions first.
Result<ResponsesRequest> parse_responses_request(const RequestBody& body, const ModelHandle& model,
                                                 const ApiLimits& limits);

// Whether items of an input are such.
Status check_input_items(const json::array& items, const std::string& path);

// The items of a request's `input` as they are listed again: each with an id made of `response`, texts as
// parts.
json::array listed_input(const json::value& input, std::string_view response);

}  // namespace oar::api
