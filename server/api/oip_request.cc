#include "server/api/oip_request.h"

#include "engine/base/format.h"
#include "server/api/fields.h"

namespace oar::api {
namespace {

bool is_text_field(std::string_view name) { return name == "stop" || name == "cache_salt"; }

json::value unquote(std::string_view name, const json::value& v) {
  if (!v.is_string() || is_text_field(name)) return v;
  const auto& text = v.get_string();
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  json::error_code ec;
  json::value parsed = json::parse(text, ec);
  return !ec && parsed.is_number() ? parsed : v;
}

std::string_view view(const json::string& s) { return {s.data(), s.size()}; }
std::string_view view(json::string_view s) { return {s.data(), s.size()}; }

}  // namespace

Status merge_sampling_parameters(std::string_view text, json::object& fields) {
  if (text.empty()) return ok_status();
  Result<json::value> parsed = parse_json(text, "sampling_parameters");
  if (!parsed.ok()) return invalid_argument(parsed.status().message(), "sampling_parameters");
  if (!parsed->is_object()) {
    return invalid_argument(cat("sampling_parameters must hold a JSON object, got ", describe(*parsed)),
                            "sampling_parameters");
  }
  for (const auto& entry : parsed->get_object()) {
    fields[entry.key()] = unquote(view(entry.key()), entry.value());
  }
  return ok_status();
}

Status merge_parameter(std::string_view name, const json::value& value, OipTextRequest& request) {
  const auto read_bool = [&](auto& out) {
    if (!value.is_bool())
      return invalid_argument(cat(name, " must be true or false, got ", describe(value)), std::string(name));
    out = value.get_bool();
    return ok_status();
  };
  if (name == "stream") return read_bool(request.stream);
  if (name == "exclude_input_in_output") return read_bool(request.exclude_input);
  if (name == "triton_enable_empty_final_response") return read_bool(request.empty_final);
  if (name == "sampling_parameters" && value.is_string()) {
    return merge_sampling_parameters(view(value.get_string()), request.fields);
  }
  if (name == "sampling_parameters" && value.is_object()) {
    for (const auto& entry : value.get_object()) request.fields[entry.key()] = entry.value();
    return ok_status();
  }
  if (name == "timeout") {
    json::error_code ec;
    const double microseconds = value.to_number<double>(ec);
    if (ec || !(microseconds >= 0)) {
      return invalid_argument(cat("timeout must be a number of microseconds, got ", describe(value)),
                              "timeout");
    }
    if (microseconds > 0) request.fields["timeout"] = std::max(microseconds * 1e-6, 0.001);
    return ok_status();
  }
  request.fields[json::string_view(name.data(), name.size())] = value;
  return ok_status();
}

Status check_oip_request(const OipTextRequest& request) {
  if (request.stream && request.prepends_input()) {
    return invalid_argument(
        "exclude_input_in_output false cannot be combined with stream true; leave one out",
        "exclude_input_in_output");
  }
  return ok_status();
}

Result<GenerationRequest> text_generation(const OipTextRequest& request, const ModelHandle& model,
                                          const ApiLimits& limits) {
  GenerationRequest r = request_for(model);
  r.default_max_tokens = kCompletionMaxTokens;
  r.prompts.emplace_back(request.text);
  r.prompt_field = "text_input";
  Fields f(request.fields);
  f.boolean("add_special_tokens", r.add_special_tokens);
  read_params(f, model.engine->request_limits(), limits, r);
  if (const json::value* logprobs = f.find("logprobs"); logprobs && *logprobs != false)
    f.fail("logprobs", "logprobs have no place in text_output; use /v1/completions, or oar.v1 over gRPC");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  if (r.n != 1)
    return invalid_argument("n must be 1 here: text_output is one text; use /v1/completions", "n");
  return r;
}

Result<OipTextRequest> parse_generate_body(const json::object& body, bool stream) {
  OipTextRequest r;
  Fields f(body);
  f.string("id", r.id, 256);
  if (!f.find("text_input")) f.fail("text_input", "text_input is missing; send the prompt as a string");
  f.string("text_input", r.text, SIZE_MAX);
  const json::object* parameters = f.object("parameters");
  if (!f.ok()) return f.status();
  for (const auto& entry : body) {
    const std::string_view name = view(entry.key());
    if (name == "id" || name == "text_input" || name == "parameters" || entry.value().is_null()) continue;
    OAR_RETURN_IF_ERROR(merge_parameter(name, entry.value(), r));
  }
  if (parameters) {
    for (const auto& entry : *parameters) {
      if (!entry.value().is_null()) OAR_RETURN_IF_ERROR(merge_parameter(view(entry.key()), entry.value(), r));
    }
  }
  if (r.stream && !stream)
    return invalid_argument("stream is true, but generate has one answer; POST to generate_stream", "stream");
  r.stream = stream;
  OAR_RETURN_IF_ERROR(check_oip_request(r));
  return r;
}

}  // namespace oar::api
