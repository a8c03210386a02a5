// The one table between Status, HTTP and gRPC. Skins never invent a code of their own.
#pragma once

#include <string>
#include <string_view>

#include "engine/base/status.h"
#include "server/api/generation_request.h"

namespace oar::api {

class JsonWriter;

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
// The object that is `error` in it.
void write_openai_error(JsonWriter& w, const Status& status, int http);
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
