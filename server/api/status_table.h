// The one table between Status, HTTP and gRPC. Skins never invent a code of their own.
#pragma once

#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "server/api/generation_request.h"

namespace oar::api {

struct ErrorKind {
  StatusCode code;          // numerically gRPC's
  int http;                 // HTTP status
  const char* openai_type;  // error.type of the OpenAI error object
  const char* openai_code;  // error.code; null: JSON null
  const char* anthropic_type;
};

const ErrorKind& error_kind(StatusCode code);
// The closest Status code of an HTTP status the transport itself produced (404, 405, 413, ...).
StatusCode status_code_of_http(int http);

// {"error":{"message":...,"type":...,"param":...,"code":...}}: always these four keys. `http` overrides the
// table's status for the type (a 405 is no 400), 0: the table's.
std::string openai_error(const Status& status, int http = 0);
// How errors below OpenAI's paths are worded: as OpenAI does, or as Triton's frontend for them, which is
// written in FastAPI. There a wrong field is 422, a model that is not there 400, and a `detail` stands beside
// `error`.
enum class ErrorStyle { kOpenAi, kTriton };
struct WordedError {
  int http;
  std::string body;
};
// `http`: the status that OpenAI's words have, `asks_with_body`: the model was named in a body.
WordedError triton_error(const Status& status, int http, bool asks_with_body);
// {"type":"error","error":{"type":...,"message":...}}, Anthropic's; `http` as above.
std::string anthropic_error(const Status& status, int http = 0);
// {"error":{"code":HTTP status,"message":...,"type":...}}, llama.cpp's; `http` as above. What is known of a
// prompt that is too long stands beside.
std::string llama_error(const Status& status, int http = 0, const PromptExcess& excess = {});
// OpenAI's, with llama.cpp's type and numbers of a prompt that is too long.
std::string openai_excess_error(const Status& status, const PromptExcess& excess);
// {"error":"..."}, the Open Inference Protocol's and Ollama's.
std::string oip_error(const Status& status);

}  // namespace oar::api
