#include "server/api/reply_parts.h"

namespace oar::api {

void ReplyParts::add(const TextEvent& event, Watcher* watcher) {
  grow(ReplyPart::Kind::kReasoning, event.reasoning, watcher);
  grow(ReplyPart::Kind::kText, event.text, watcher);
  for (const ToolCallDelta& call : event.calls) {
    if (!call.name.empty()) open({ReplyPart::Kind::kCall, {}, call.id, call.name}, watcher);
    grow(ReplyPart::Kind::kCall, call.arguments, watcher);
  }
}

void ReplyParts::close(Watcher* watcher) {
  if (open_ && watcher) watcher->closed(parts_.size() - 1);
  open_ = false;
}

void ReplyParts::open(ReplyPart part, Watcher* watcher) {
  close(watcher);
  parts_.push_back(std::move(part));
  open_ = true;
  if (watcher) watcher->opened(parts_.size() - 1);
}

void ReplyParts::grow(ReplyPart::Kind kind, std::string_view piece, Watcher* watcher) {
  if (piece.empty()) return;
  if (!open_ || parts_.back().kind != kind) open({kind, {}, {}, {}}, watcher);
  parts_.back().text += piece;
  if (watcher) watcher->grown(parts_.size() - 1, piece);
}

void write_call_input(JsonWriter& w, const std::string& arguments) {
  const Result<json::value> parsed = parse_json(arguments.empty() ? "{}" : arguments, "arguments");
  if (parsed.ok() && parsed->is_object()) {
    w.value(*parsed);
    return;
  }
  w.begin_object().key("arguments").string(arguments).end_object();
}

}  // namespace oar::api
