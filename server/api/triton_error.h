// How errors below OpenAI's paths are worded: as OpenAI does, or as Triton's frontend for them, which is
// written in FastAPI. There a wrong field is 422, a model that is not there 400, and a `detail` stands beside
// `error`, in the words of FastAPI where it has any.
#pragma once

#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace oar::api {

enum class ErrorStyle { kOpenAi, kTriton };
struct WordedError {
  int http;
  std::string body;
};
// `http`: the status that OpenAI's words have; `asks_with_body`: the model was named in `body`.
WordedError triton_error(const Status& status, int http, bool asks_with_body, std::string_view body);

}  // namespace oar::api
