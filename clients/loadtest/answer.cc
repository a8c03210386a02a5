#include "clients/loadtest/answer.h"

#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

constexpr size_t kMaxBody = size_t{256} << 20;

std::string_view view(const json::string& s) { return {s.data(), s.size()}; }

const json::string* text_of(const json::object& o, const char* key) {
  const json::value* v = o.if_contains(key);
  return v == nullptr ? nullptr : v->if_string();
}

// {"error": {"message": ...}}, {"error": "..."} or {"message": ...}, cut to what a report can show.
std::string error_text(const json::object& o) {
  const json::value* e = o.if_contains("error");
  const json::string* s = nullptr;
  if (e != nullptr && e->is_object()) s = text_of(e->get_object(), "message");
  else if (e != nullptr) s = e->if_string();
  else s = text_of(o, "message");
  return s == nullptr ? std::string("unknown error") : std::string(view(*s).substr(0, 300));
}

}  // namespace

int Answer::push(std::string_view bytes, bool event_stream) {
  if (!event_stream) {
    if (body_.size() + bytes.size() > kMaxBody) error_ = "the answer has more than 256 MiB";
    else body_ += bytes;
    return 0;
  }
  int pieces = 0;
  const Status status = sse_.push(bytes, [&](std::string_view data) { pieces += event(data); });
  if (!status.ok() && error_.empty()) error_ = status.message();
  chunks_ += pieces;
  return pieces;
}

bool Answer::event(std::string_view data) {
  if (!error_.empty()) return false;
  if (data == "[DONE]") {
    done_ = true;
    return false;
  }
  if (done_) {
    error_ = "events follow [DONE]";
    return false;
  }
  // An arena on the stack: an event is parsed for every token of every stream.
  unsigned char arena[4096];
  json::monotonic_resource memory(arena);
  json::error_code ec;
  const json::value v = json::parse(json::string_view(data.data(), data.size()), ec, &memory);
  if (ec || !v.is_object()) {
    error_ = cat("an event is no JSON object: ", data.substr(0, 80));
    return false;
  }
  const json::object& o = v.get_object();
  if (o.contains("error")) {
    error_ = cat("error in the stream: ", error_text(o));
    return false;
  }
  return read(o);
}

void Answer::read_usage(const json::object& o) {
  const json::value* usage = o.if_contains("usage");
  if (usage == nullptr || !usage->is_object()) return;
  json::error_code ec;
  if (const json::value* n = usage->get_object().if_contains("prompt_tokens"))
    prompt_tokens_ = n->to_number<int64_t>(ec);
  if (const json::value* n = usage->get_object().if_contains("completion_tokens")) {
    const int64_t tokens = n->to_number<int64_t>(ec);
    if (!ec && tokens >= 0) output_tokens_ = tokens;
  }
}

bool Answer::read(const json::object& o) {
  const auto add = [&](const json::string* s) {
    if (s == nullptr || s->empty()) return false;
    if (keep_text_) text_ += view(*s);
    return true;
  };
  if (endpoint_ == Endpoint::kGenerateStream) {
    done_ = false;  // a stream of this kind ends with its connection's message
    finish_reason_ = true;
    return add(text_of(o, "text_output"));
  }
  read_usage(o);
  const json::value* choices = o.if_contains("choices");
  if (choices == nullptr || !choices->is_array()) return false;
  bool output = false;
  for (const json::value& c : choices->get_array()) {
    const json::object* choice = c.if_object();
    if (choice == nullptr) continue;
    if (const json::value* f = choice->if_contains("finish_reason")) finish_reason_ |= f->is_string();
    if (endpoint_ == Endpoint::kCompletions) {
      output |= add(text_of(*choice, "text"));
      continue;
    }
    for (const char* part : {"delta", "message"}) {
      const json::value* d = choice->if_contains(part);
      if (d == nullptr || !d->is_object()) continue;
      output |= add(text_of(d->get_object(), "content"));
      output |= add(text_of(d->get_object(), "reasoning_content"));
      const json::value* calls = d->get_object().if_contains("tool_calls");
      output |= calls != nullptr && calls->is_array() && !calls->get_array().empty();
    }
  }
  return output;
}

void Answer::finish(unsigned http_status, bool event_stream) {
  if (!error_.empty()) return;
  if (event_stream && http_status == 200) {
    if (sse_.incomplete()) error_ = "the stream ended in the middle of an event";
    else if (!done_ && !finish_reason_) error_ = "the stream ended before its answer did";
    return;
  }
  if (http_status == 200 && endpoint_ == Endpoint::kInfer) return;  // tensors may be binary
  json::error_code ec;
  const json::value v = json::parse(body_, ec);
  const json::object* o = ec ? nullptr : v.if_object();
  if (http_status != 200) {
    error_ = cat("HTTP ", http_status, ": ", o == nullptr ? body_.substr(0, 200) : error_text(*o));
  } else if (o == nullptr) {
    error_ = "the answer is no JSON object";
  } else {
    read(*o);
  }
}

}  // namespace oar::loadtest
