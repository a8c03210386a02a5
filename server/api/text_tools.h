// The text side of a request: prompts to token ids and token ids to text, through the model's tokenizer and
// chat template. The only place of the server that calls either.
#pragma once

#include <string>
#include <vector>

#include "server/api/model_handle.h"
#include "server/api/openai_request.h"

namespace oar::api {

// The prompt of a conversation. INVALID_ARGUMENT when the template refuses it.
Result<ChatPrompt> render_chat(const ModelHandle& model, const ChatRequest& request, const ApiLimits& limits);
// A raw prompt: the text of a special token is that token.
Result<std::vector<int32_t>> tokenize(const ModelHandle& model, std::string_view text,
                                      bool add_special_tokens);
// A conversation: only what the template wrote may be special tokens.
Result<std::vector<int32_t>> tokenize(const ModelHandle& model, const ChatPrompt& prompt,
                                      bool add_special_tokens);
std::string detokenize(const ModelHandle& model, const std::vector<int32_t>& tokens,
                       bool skip_special_tokens);
// The bytes a token stands for, possibly part of a UTF-8 sequence; special tokens as their text.
std::string token_bytes(const ModelHandle& model, int32_t token);

}  // namespace oar::api
