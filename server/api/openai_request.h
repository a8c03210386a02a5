// OpenAI request bodies: parsing and validation, no templating and no tokens yet (frontend.h does those).
// Fields that cannot change an answer are ignored (unread_fields.h). Wrong types are refused, and so is every
// field that is not honoured: passing over one in silence would answer another question.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/generation_request.h"

namespace oar::api {

struct TokenizeRequest {
  GenerationRequest prompt;  // its prompt or conversation; the rest is of no interest
  bool return_token_strs = false;
  bool llama = false;        // asked in llama.cpp's words, by `content`
  bool with_pieces = false;  // and its way to have the texts of the tokens
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
  bool skip_special_tokens = false;
};

// The body as a JSON object, or why it is none.
Result<json::object> parse_body(std::string_view body);
// The "model" field; empty when absent. It decides which model's limits and defaults the rest is read with.
Result<std::string> parse_model_field(const RequestBody& body);
// The same from the text alone, in a fraction of the time: a request that will be refused for want of room is
// not worth more. Null where the field does not stand there plainly; whether the rest is JSON is not asked.
std::optional<std::string_view> find_model_field(std::string_view body);

// The value of a prompt: string | [string] | [int] | [[int]].
Result<std::vector<Prompt>> read_prompts(const json::value* v, int64_t vocab_size, size_t max_prompts);

Result<GenerationRequest> parse_chat_request(const RequestBody& body, const ModelHandle& model,
                                             const ApiLimits& limits);
Result<GenerationRequest> parse_completion_request(const RequestBody& body, const ModelHandle& model,
                                                   const ApiLimits& limits);
Result<TokenizeRequest> parse_tokenize_request(const RequestBody& body, const ModelHandle& model,
                                               const ApiLimits& limits);
Result<DetokenizeRequest> parse_detokenize_request(const RequestBody& body, const ModelHandle& model);

}  // namespace oar::api
