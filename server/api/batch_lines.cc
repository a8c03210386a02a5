#include "server/api/batch_lines.h"

#include <filesystem>

#include "engine/base/format.h"
#include "engine/base/strip.h"

namespace oar::api {
namespace {

Status wrong(int64_t line, const char* field, const std::string& what) {
  return invalid_argument(cat("line ", line, ": ", field, ": ", what), field);
}

}  // namespace

Result<BatchRequest> parse_batch_line(std::string_view text, int64_t line, const std::string& set_model) {
  OAR_ASSIGN(json::value v, parse_json(text, cat("line ", line)));
  json::object* o = v.if_object();
  if (o == nullptr) return wrong(line, "line", "must be a JSON object");
  BatchRequest r;
  r.line = line;
  const json::value* id = o->if_contains("custom_id");
  if (id == nullptr || !id->is_string() || id->get_string().empty())
    return wrong(line, "custom_id", "must be a string that names this request");
  r.custom_id = id->get_string();
  if (const json::value* m = o->if_contains("method"); m != nullptr && *m != "POST")
    return wrong(line, "method", "must be POST");
  const json::value* url = o->if_contains("url");
  if (url == nullptr || !url->is_string() || !url->get_string().starts_with("/v1/") ||
      url->get_string().find_first_of(" \r\n\t") != json::string::npos)
    return wrong(line, "url", "must be an endpoint such as /v1/chat/completions");
  r.url = url->get_string();
  json::value* body = o->if_contains("body");
  if (body == nullptr || !body->is_object()) return wrong(line, "body", "must be the request's JSON object");
  if (const json::value* stream = body->get_object().if_contains("stream");
      stream != nullptr && !stream->is_null() && *stream != false)
    return wrong(line, "body.stream", "must be false or absent: a batch has whole answers");
  if (!set_model.empty()) body->get_object()["model"] = set_model;
  r.body = json::serialize(*body);
  return r;
}

std::string batch_output_line(const std::string& custom_id, unsigned status, const std::string& body) {
  json::error_code ec;
  json::value parsed = json::parse(body, ec);
  if (ec) parsed = json::value(json::string(body.substr(0, 4096)));
  std::string request_id;
  if (const json::object* p = parsed.if_object())
    if (const json::value* i = p->if_contains("id"); i != nullptr && i->is_string())
      request_id = i->get_string();
  json::object o{{"id", "batch_req_" + custom_id}, {"custom_id", custom_id}};
  o["response"] = {{"status_code", status}, {"request_id", request_id}, {"body", std::move(parsed)}};
  o["error"] = nullptr;
  return json::serialize(o);
}

std::string batch_error_line(const std::string& custom_id, const char* code, const std::string& message) {
  return json::serialize(json::object{{"id", "batch_req_" + custom_id},
                                      {"custom_id", custom_id},
                                      {"response", nullptr},
                                      {"error", {{"code", code}, {"message", message}}}});
}

Result<BatchCheck> check_batch(const std::string& path, const BatchRules& rules) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return not_found(cat("input: ", path, " cannot be read"));
  BatchCheck out;
  int64_t number = 0;
  const auto look = [&](const std::string& text) -> Status {
    OAR_ASSIGN(BatchRequest r, parse_batch_line(text, number));
    if (!rules.endpoint.empty() && r.url != rules.endpoint)
      return wrong(number, "url", cat("is ", r.url, ", and the batch's endpoint is ", rules.endpoint));
    if (!out.ids.insert(r.custom_id).second)
      return wrong(number, "custom_id", cat("'", r.custom_id, "' was used before; each must be its own"));
    if (rules.max_requests > 0 && out.requests == rules.max_requests)
      return wrong(number, "line", cat("a batch has at most ", rules.max_requests, " requests"));
    ++out.requests;
    return ok_status();
  };
  for (std::string line; out.faults.size() < rules.max_faults && std::getline(in, line);) {
    ++number;
    if (is_blank(line)) continue;
    if (Status s = look(line); !s.ok()) out.faults.push_back({number, std::move(s)});
  }
  if (out.requests == 0 && out.faults.empty())
    out.faults.push_back({0, invalid_argument("input: the file holds no request", "input")});
  return out;
}

Result<std::unique_ptr<BatchInput>> BatchInput::open(const std::string& path, const std::string& set_model,
                                                     std::unordered_set<std::string> done) {
  OAR_ASSIGN(const BatchCheck whole, check_batch(path, {}));
  if (!whole.faults.empty()) return whole.faults[0].why;
  OAR_ASSIGN(auto out, open(path, whole, std::move(done)));
  out->set_model_ = set_model;
  return out;
}

Result<std::unique_ptr<BatchInput>> BatchInput::open(const std::string& path, const BatchCheck& checked,
                                                     std::unordered_set<std::string> done) {
  auto out = std::make_unique<BatchInput>();
  out->in_.open(path, std::ios::binary);
  if (!out->in_) return not_found(cat("input: ", path, " cannot be read"));
  out->total_ = checked.requests;
  for (const std::string& id : checked.ids) out->left_ += !done.contains(id);
  out->done_ = std::move(done);
  return out;
}

std::optional<BatchRequest> BatchInput::next() {
  const std::lock_guard lock(mutex_);
  for (std::string line; std::getline(in_, line);) {
    ++line_;
    if (is_blank(line)) continue;
    auto r =
        parse_batch_line(line, line_, set_model_);  // was good when it was opened; a changed file is left out
    if (r.ok() && !done_.contains(r->custom_id)) return std::move(*r);
  }
  return std::nullopt;
}

Result<std::unique_ptr<BatchOutput>> BatchOutput::open(const std::string& path, Keep keep,
                                                       std::unordered_set<std::string>& done) {
  auto out = std::make_unique<BatchOutput>();
  out->path_ = path;
  const std::string fresh = path + ".new";
  out->out_.open(fresh, std::ios::binary | std::ios::trunc);
  if (!out->out_) return unavailable(cat("output: ", path, " cannot be written"));
  std::ifstream before(path, std::ios::binary);
  for (std::string line; keep != Keep::kNothing && std::getline(before, line);) {
    json::error_code ec;
    const json::value v = json::parse(line, ec);
    const json::object* o = ec ? nullptr : v.if_object();
    const json::value* id = o == nullptr ? nullptr : o->if_contains("custom_id");
    if (id == nullptr || !id->is_string()) continue;
    if (keep == Keep::kGood) {
      const json::value* response = o->if_contains("response");
      if (response == nullptr || !response->is_object()) continue;
      const json::value* status = response->get_object().if_contains("status_code");
      if (status == nullptr || *status != 200) continue;
    }
    if (!done.insert(std::string(id->get_string())).second) continue;
    out->out_ << line << '\n';
  }
  out->out_.flush();
  std::error_code ec;
  if (out->out_) std::filesystem::rename(fresh, path, ec);  // the stream goes on in the renamed file
  if (!out->out_ || ec) return unavailable(cat("output: ", path, " cannot be written"));
  return out;
}

Status BatchOutput::append(const std::string& line) {
  const std::lock_guard lock(mutex_);
  out_ << line << '\n';
  out_.flush();
  return out_ ? ok_status() : unavailable(cat("output: ", path_, " cannot be written; is the disk full?"));
}

}  // namespace oar::api
