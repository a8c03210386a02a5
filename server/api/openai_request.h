// OpenAI request bodies as structs: parsing and validation, no templating and no tokens yet (frontend.h does
// those). Unknown harmless fields are ignored, wrong types refused, and fields that would change the answer
// in a way this server does not offer are refused too: silently ignoring those would answer another question.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api/generation_params.h"

namespace oar::api {

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;           // one more chunk with the usage before [DONE]
  bool continuous_usage_stats = false;  // the usage so far in every chunk
};

struct ChatRequest {
  std::string model;
  json::array messages;  // validated, content flattened to a string or null
  StreamOptions streaming;
  GenerationParams params;
  bool logprobs = false;
  bool echo = false;  // the last message's text before the answer
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;  // the template writes them itself
  json::object template_kwargs;
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  std::string model;
  std::vector<Prompt> prompts;
  StreamOptions streaming;
  GenerationParams params;
  bool echo = false;
  bool add_special_tokens = true;
};

struct TokenizeRequest {
  std::string model;
  bool is_chat = false;
  std::string prompt;
  ChatRequest chat;  // when is_chat
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
  bool skip_special_tokens = false;
};

// The body as a JSON object, or why it is none.
Result<json::object> parse_body(std::string_view body);
// The "model" field; empty when absent. It decides which model's limits and defaults the rest is read with.
Result<std::string> parse_model_field(const json::object& body);

Result<ChatRequest> parse_chat_request(const json::object& body, const ModelHandle& model,
                                       const ApiLimits& limits);
Result<CompletionRequest> parse_completion_request(const json::object& body, const ModelHandle& model,
                                                   const ApiLimits& limits);
Result<TokenizeRequest> parse_tokenize_request(const json::object& body, const ModelHandle& model,
                                               const ApiLimits& limits);
Result<DetokenizeRequest> parse_detokenize_request(const json::object& body, const ModelHandle& model);

}  // namespace oar::api
