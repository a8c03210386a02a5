// The text side of a request: prompts to token ids and token ids to text, through the model's tokenizer and
// chat template. The only place of the server that calls either.
#pragma once

#include <string>
#include <vector>

#include "server/api/generation_request.h"
#include "server/api/model_handle.h"

namespace oar::api {

// The tokens of a request's prompts, or the one prompt of its conversation. In a raw prompt the text of a
// special token is that token; in a conversation only what the template wrote is. INVALID_ARGUMENT when the
// template refuses the messages.
Result<std::vector<std::vector<int32_t>>> prompt_tokens(const ModelHandle& model,
                                                        const GenerationRequest& request,
                                                        const ApiLimits& limits);
std::string detokenize(const ModelHandle& model, const std::vector<int32_t>& tokens,
                       bool skip_special_tokens);
// The bytes a token stands for, possibly part of a UTF-8 sequence; special tokens as their text.
std::string token_bytes(const ModelHandle& model, int32_t token);

}  // namespace oar::api
