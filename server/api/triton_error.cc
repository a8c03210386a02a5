#include "server/api/triton_error.h"

#include <charconv>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "server/api/auth.h"
#include "server/api/json_writer.h"
#include "server/api/status_table.h"

namespace oar::api {
namespace {

// What contradicts another field is no wrong field there. `when`: a word of ours that tells it from others.
struct Contradiction {
  std::string_view param, when, words;
};
constexpr Contradiction kContradictions[] = {
    {"tool_choice", "", ""},
    {"stream_options", "stream is true", "`stream_options` can only be used when `stream` is True"},
    {"top_logprobs", "needs logprobs", "`top_logprobs` can only be used when `logprobs` is True"},
};

const Contradiction* contradiction(const Status& status) {
  for (const Contradiction& c : kContradictions)
    if (status.param() == c.param && status.message().find(c.when) != std::string::npos) return &c;
  return nullptr;
}

// The bound that a number passes, of a message that names both: "... in [a, b], got ..."
std::string passed_bound(std::string_view message, double sent, bool& above) {
  const size_t begin = message.find(" in ["), comma = message.find(", ", begin),
               end = message.find(']', comma);
  if (begin == std::string_view::npos || end == std::string_view::npos) return {};
  const std::string_view low = message.substr(begin + 5, comma - begin - 5);
  const std::string_view high = message.substr(comma + 2, end - comma - 2);
  double most = 0;
  if (std::from_chars(high.begin(), high.end(), most).ec != std::errc()) return {};
  above = sent > most;
  return std::string(above ? high : low);
}

struct FieldError {
  const char* type;
  std::string text;
};

// FastAPI's words for a field, where it has any.
FieldError field_error(const Status& status, const json::value* sent) {
  const std::string& message = status.message();
  const auto says = [&](std::string_view words) { return message.find(words) != std::string::npos; };
  const bool union_of_types = status.param() == "input";
  if (says(" is missing") && !(sent && sent->is_null())) return {"missing", "Field required"};
  if (sent && sent->is_array() && sent->get_array().empty())
    return {"too_short",
            cat(union_of_types ? "Value" : "List", " should have at least 1 item after validation, not 0")};
  if (sent && sent->is_number()) {
    bool above = false;
    const std::string bound = passed_bound(message, sent->to_number<double>(), above);
    if (!bound.empty())
      return {above ? "less_than_equal" : "greater_than_equal",
              cat("Input should be ", above ? "less" : "greater", " than or equal to ", bound)};
  }
  if (sent && !sent->is_string() && (says(" must be a string") || says(" is missing")))
    return {"string_type", "Input should be a valid string"};
  return {"value_error", message};
}

// The member of a body that an error is about; null: there is none.
const json::value* member_of(const Result<json::value>& body, const std::string& param) {
  return body.ok() && body->is_object() ? body->get_object().if_contains(param) : nullptr;
}

}  // namespace

WordedError triton_error(const Status& status, int http, bool asks_with_body, std::string_view body) {
  const std::string& param = status.param();
  const Result<json::value> asked = parse_json(body, "request body");
  const json::value* sent = member_of(asked, param);
  const bool empty_text = sent && sent->is_string() && sent->get_string().empty();
  const bool no_model = param == "model" && (status.code() == StatusCode::kNotFound ||
                                             status.code() == StatusCode::kUnavailable || empty_text);
  const Contradiction* against = contradiction(status);
  // An empty text is one: what its handlers refuse is 400.
  const bool wrong_field =
      status.code() == StatusCode::kInvalidArgument && http == 400 && !against && !empty_text;
  const bool control_off = status.message() == model_control_off().message();
  WordedError out{wrong_field ? 422 : (no_model && asks_with_body) || control_off ? 400 : http, {}};
  JsonWriter w(out.body);
  w.begin_object().key("error");
  write_openai_error(w, status, http);
  w.key("detail");
  if (wrong_field) {  // a list, as FastAPI has it
    const FieldError error = field_error(status, sent);
    w.begin_array().begin_object().key("type").string(error.type).key("loc").begin_array().string("body");
    if (!param.empty()) w.string(param);
    w.end_array().key("msg").string(error.text).end_object().end_array();
  } else if (no_model) {
    w.string(cat("Unknown model: ", sent && sent->is_string() ? std::string_view(sent->get_string().data(),
                                                                                 sent->get_string().size())
                                                              : std::string_view(status.message())));
  } else {
    w.string(against && !against->words.empty() ? against->words : std::string_view(status.message()));
  }
  w.end_object();
  return out;
}

}  // namespace oar::api
