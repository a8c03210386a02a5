#include "server/api/anthropic_answer.h"

#include "server/api/event_record.h"
#include "server/api/status_table.h"

namespace oar::api {

AnthropicAnswer::AnthropicAnswer(const GenerationSpec& spec)
    : id_(spec.request.id),
      model_(spec.model->name),
      prompt_tokens_(static_cast<int64_t>(spec.prompts.front().size())) {}

void AnthropicAnswer::note_finish(const TextEvent& event) {
  if (event.finish == FinishReason::kNone) return;
  end_.finish = event.finish;
  end_.stop_match = event.stop_match;
  end_.call_count = event.call_count;
  end_.stats = event.stats;
  failure_ = failure_of(event);
  finished_ = true;
}

void AnthropicAnswer::append_head(JsonWriter& w) const {
  w.key("id").string(id_).key("type").string("message").key("role").string("assistant");
  w.key("model").string(model_);
}

void AnthropicAnswer::append_stop(JsonWriter& w) const {
  const bool stopped = !end_.stop_match.empty();
  w.key("stop_reason")
      .string(end_.finish == FinishReason::kLength ? "max_tokens"
              : end_.call_count > 0                ? "tool_use"
              : stopped                            ? "stop_sequence"
                                                   : "end_turn");
  w.key("stop_sequence").string_or_null(end_.stop_match);
}

// Tokens of the prompt that were found in the cache are counted apart.
void AnthropicAnswer::append_usage(JsonWriter& w) const {
  const int64_t cached = end_.stats.cached_tokens;
  w.key("usage").begin_object();
  w.key("input_tokens").number(prompt_tokens_ - cached);
  w.key("cache_creation_input_tokens").number(int64_t{0});
  w.key("cache_read_input_tokens").number(cached);
  w.key("output_tokens").number(end_.stats.completion_tokens);
  w.end_object();
}

// ---- streaming ----

void AnthropicAnswer::start() {
  started_ = true;
  append_record(out_, "message_start", [&](JsonWriter& w) {
    w.key("message").begin_object();
    append_head(w);
    w.key("content").begin_array().end_array();
    w.key("stop_reason").null().key("stop_sequence").null();
    append_usage(w);
    w.end_object();
  });
}

void AnthropicAnswer::opened(size_t part) {
  const ReplyPart& p = parts_[part];
  append_record(out_, "content_block_start", [&](JsonWriter& w) {
    w.key("index").number(static_cast<uint64_t>(part)).key("content_block").begin_object();
    switch (p.kind) {
      case ReplyPart::Kind::kText: w.key("type").string("text").key("text").string(""); break;
      case ReplyPart::Kind::kReasoning:
        w.key("type").string("thinking").key("thinking").string("").key("signature").string("");
        break;
      case ReplyPart::Kind::kCall:
        w.key("type").string("tool_use").key("id").string(p.id).key("name").string(p.name);
        w.key("input").begin_object().end_object();
        break;
    }
    w.end_object();
  });
}

void AnthropicAnswer::grown(size_t part, std::string_view piece) {
  append_record(out_, "content_block_delta", [&](JsonWriter& w) {
    w.key("index").number(static_cast<uint64_t>(part)).key("delta").begin_object().key("type");
    switch (parts_[part].kind) {
      case ReplyPart::Kind::kText: w.string("text_delta").key("text").string(piece); break;
      case ReplyPart::Kind::kReasoning: w.string("thinking_delta").key("thinking").string(piece); break;
      case ReplyPart::Kind::kCall: w.string("input_json_delta").key("partial_json").string(piece); break;
    }
    w.end_object();
  });
}

void AnthropicAnswer::closed(size_t part) {
  append_record(out_, "content_block_stop",
                [&](JsonWriter& w) { w.key("index").number(static_cast<uint64_t>(part)); });
}

void AnthropicAnswer::finish() {
  parts_.close(this);
  append_record(out_, "message_delta", [&](JsonWriter& w) {
    w.key("delta").begin_object();
    append_stop(w);
    w.end_object();
    append_usage(w);
  });
  append_record(out_, "message_stop", [](JsonWriter&) {});
}

std::string AnthropicAnswer::on_event(int32_t, const TextEvent& event) {
  if (finished_) return {};
  out_.clear();
  note_finish(event);
  if (!failure_.ok()) return "event: error\ndata: " + anthropic_error(failure_) + "\n\n";
  if (!started_) start();
  parts_.add(event, this);
  if (finished_) finish();
  return std::move(out_);
}

// ---- whole ----

void AnthropicAnswer::collect(int32_t, const TextEvent& event) {
  note_finish(event);
  parts_.add(event, nullptr);
}

std::string AnthropicAnswer::body() const {
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  append_head(w);
  w.key("content").begin_array();
  for (const ReplyPart& p : parts_.all()) {
    w.begin_object();
    switch (p.kind) {
      case ReplyPart::Kind::kText: w.key("type").string("text").key("text").string(p.text); break;
      case ReplyPart::Kind::kReasoning:
        w.key("type").string("thinking").key("thinking").string(p.text).key("signature").string("");
        break;
      case ReplyPart::Kind::kCall:
        w.key("type").string("tool_use").key("id").string(p.id).key("name").string(p.name).key("input");
        write_call_input(w, p.text);
        break;
    }
    w.end_object();
  }
  w.end_array();
  append_stop(w);
  append_usage(w);
  w.end_object();
  return out;
}

}  // namespace oar::api
