// Bodies of Anthropic's /v1/messages and /v1/messages/count_tokens: parsing and validation. They become the
// same GenerationRequest as everybody's; what is not honoured is refused by name.
#pragma once

#include "server/api/generation_request.h"

namespace oar::api {

// `counting`: of a body whose tokens are to be counted, which asks for no answer.
Result<GenerationRequest> parse_messages_request(const RequestBody& body, const ModelHandle& model,
                                                 const ApiLimits& limits, bool counting);

}  // namespace oar::api
