#include "server/api/responses_answer.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "engine/base/format.h"
#include "server/api/event_record.h"
#include "server/api/status_table.h"
#include "server/api/text_tools.h"
#include "server/api/timings.h"
#include "server/api/token_logprob.h"

namespace oar::api {

ResponsesAnswer::ResponsesAnswer(const GenerationSpec& spec, ResponsesOptions options, StoredResponse kept,
                                 ResponseStore* store, std::string owner)
    : id_(spec.request.id),
      model_(spec.model->name),
      created_(static_cast<int64_t>(std::time(nullptr))),
      prompt_tokens_(static_cast<int64_t>(spec.prompts.front().size())),
      timings_(spec.request.timings),
      options_(std::move(options)),
      spec_model_(spec.model),
      prompt_(options_.raw_messages ? spec.prompts.front() : std::vector<int32_t>()),
      want_logprobs_(spec.request.logprobs.has_value()),
      kept_(std::move(kept)),
      store_(store),
      owner_(std::move(owner)) {}

void ResponsesAnswer::note_finish(const TextEvent& event) {
  if (event.finish == FinishReason::kNone) return;
  end_.finish = event.finish;
  end_.stats = event.stats;
  end_.reasoning_tokens = event.reasoning_tokens;
  failure_ = failure_of(event);
  state_ = !failure_.ok()                          ? State::kFailed
           : event.finish == FinishReason::kLength ? State::kIncomplete
                                                   : State::kDone;
  finished_ = true;
}

// The answer as one message, as a later request would send it.
void ResponsesAnswer::keep() {
  if (store_ == nullptr) return;
  ChatMessage answer{"assistant", std::nullopt, {}};
  std::string reasoning;
  json::array calls;
  for (const ReplyPart& p : parts_.all()) {
    if (p.kind == ReplyPart::Kind::kReasoning) reasoning += p.text;
    if (p.kind == ReplyPart::Kind::kText) answer.content = answer.content.value_or("") + p.text;
    if (p.kind == ReplyPart::Kind::kCall)
      calls.push_back(json::object{
          {"id", json::string(p.id)},
          {"type", "function"},
          {"function", json::object{{"name", json::string(p.name)}, {"arguments", json::string(p.text)}}}});
  }
  if (!answer.content && calls.empty()) answer.content.emplace();
  if (!reasoning.empty()) answer.other["reasoning_content"] = json::string(reasoning);
  if (!calls.empty()) answer.other["tool_calls"] = std::move(calls);
  kept_.messages.push_back(std::move(answer));
  kept_.body = body();
  store_->put(owner_, id_, std::move(kept_));
}

// ---- log-probabilities: those of a text's tokens, where they are asked for ----

void ResponsesAnswer::note_tokens(const TextEvent& event) {
  if (options_.raw_messages) {
    for (const TextEvent::Token& token : event.tokens) reply_.push_back(token.id);
    if (event.stop_token >= 0) reply_.push_back(event.stop_token);
  }
  if (!want_logprobs_) return;
  for (const TextEvent::Token& token : event.tokens) {
    if (!fresh_.empty()) fresh_ += ',';
    std::string one;
    JsonWriter element(one);
    write_token_logprob(element, *spec_model_, token);
    fresh_ += one;
  }
}

// What has come since the last piece is that of this one, the part's from now on; what stands before
// reasoning and calls, and they themselves, is nobody's.
std::string ResponsesAnswer::claim_tokens(size_t part) {
  std::string fresh = std::exchange(fresh_, {});
  if (parts_[part].kind != ReplyPart::Kind::kText) return {};
  logprobs_.resize(std::max(logprobs_.size(), part + 1));
  std::string& all = logprobs_[part];
  if (!all.empty() && !fresh.empty()) all += ',';
  all += fresh;
  return fresh;
}

std::string ResponsesAnswer::logprobs_of(size_t part, bool whole) const {
  return cat("[", whole && part < logprobs_.size() ? logprobs_[part] : "", "]");
}

// ---- pieces shared by both forms ----

// Items are called after their response and their place in it.
std::string ResponsesAnswer::item_id(size_t part) const {
  const ReplyPart::Kind kind = parts_[part].kind;
  const char* prefix = kind == ReplyPart::Kind::kText   ? "msg_"
                       : kind == ReplyPart::Kind::kCall ? "fc_"
                                                        : "rs_";
  return cat(prefix, std::string_view(id_).substr(id_.find('_') + 1), "_", part);
}

void ResponsesAnswer::append_content(JsonWriter& w, size_t index, bool whole) const {
  const ReplyPart& part = parts_[index];
  const std::string_view text = whole ? std::string_view(part.text) : std::string_view();
  w.begin_object();
  if (part.kind == ReplyPart::Kind::kReasoning) {
    w.key("type").string("reasoning_text").key("text").string(text);
  } else {
    w.key("type").string("output_text").key("text").string(text);
    w.key("annotations").begin_array().end_array().key("logprobs").raw(logprobs_of(index, whole));
  }
  w.end_object();
}

void ResponsesAnswer::append_item(JsonWriter& w, size_t part, bool whole) const {
  const ReplyPart& p = parts_[part];
  const bool last = part + 1 == parts_.all().size();
  const char* status = !whole                                 ? "in_progress"
                       : last && state_ == State::kIncomplete ? "incomplete"
                                                              : "completed";
  w.begin_object().key("id").string(item_id(part));
  switch (p.kind) {
    case ReplyPart::Kind::kText:
      w.key("type").string("message").key("status").string(status).key("role").string("assistant");
      w.key("content").begin_array();
      if (whole) append_content(w, part, true);
      w.end_array();
      break;
    case ReplyPart::Kind::kReasoning:
      w.key("type").string("reasoning").key("status").string(status);
      w.key("summary").begin_array().end_array().key("content").begin_array();
      if (whole) append_content(w, part, true);
      w.end_array();
      break;
    case ReplyPart::Kind::kCall:
      w.key("type").string("function_call").key("status").string(status).key("call_id").string(p.id);
      w.key("name").string(p.name).key("arguments").string(whole ? std::string_view(p.text) : "");
      break;
  }
  w.end_object();
}

void ResponsesAnswer::append_usage(JsonWriter& w) const {
  if (state_ == State::kRunning) {
    w.null();
    return;
  }
  const int64_t output = end_.stats.completion_tokens;
  w.begin_object();
  w.key("input_tokens").number(prompt_tokens_);
  w.key("input_tokens_details")
      .begin_object()
      .key("cached_tokens")
      .number(end_.stats.cached_tokens)
      .end_object();
  w.key("output_tokens").number(output);
  w.key("output_tokens_details").begin_object();
  w.key("reasoning_tokens").number(end_.reasoning_tokens).end_object();
  w.key("total_tokens").number(prompt_tokens_ + output);
  w.end_object();
}

// vLLM's words for a text as tokens.
void ResponsesAnswer::append_raw(JsonWriter& w, const char* key, const std::vector<int32_t>& ids) const {
  w.key(key).begin_array().begin_object().key("type").string("raw_message_tokens");
  w.key("message").string(detokenize(*spec_model_, ids, false)).key("tokens").begin_array();
  for (const int32_t id : ids) w.number(id);
  w.end_array().end_object().end_array();
}

void ResponsesAnswer::append_response(JsonWriter& w) const {
  static constexpr const char* kNames[] = {"in_progress", "completed", "incomplete", "failed"};
  w.begin_object();
  w.key("id").string(id_).key("object").string("response").key("created_at").number(created_);
  w.key("status").string(kNames[static_cast<size_t>(state_)]).key("background").boolean(false);
  w.key("error");
  if (state_ == State::kFailed) {
    w.begin_object()
        .key("code")
        .string("server_error")
        .key("message")
        .string(failure_.message())
        .end_object();
  } else {
    w.null();
  }
  w.key("incomplete_details");
  if (state_ == State::kIncomplete) w.begin_object().key("reason").string("max_output_tokens").end_object();
  else w.null();
  w.key("instructions").string_or_null(options_.instructions);
  w.key("model").string(model_);
  w.key("output").begin_array();
  if (state_ != State::kRunning)
    for (size_t i = 0; i < parts_.all().size(); ++i) append_item(w, i, true);
  w.end_array();
  w.key("previous_response_id").string_or_null(options_.previous_id);
  w.key("store").boolean(options_.store).key("truncation").string("disabled");
  for (const auto& member : options_.echoed) w.key(member.key()).value(member.value());
  w.key("usage");
  append_usage(w);
  if (options_.raw_messages && state_ != State::kRunning) {
    append_raw(w, "input_messages", prompt_);
    append_raw(w, "output_messages", reply_);
  }
  w.end_object();
}

// ---- streaming ----

template <class F>
void ResponsesAnswer::record(std::string_view type, F&& members) {
  append_record(out_, type, [&](JsonWriter& w) {
    w.key("sequence_number").number(sequence_++);
    members(w);
  });
}

template <class F>
void ResponsesAnswer::part_record(std::string_view type, size_t part, F&& members) {
  record(type, [&](JsonWriter& w) {
    w.key("item_id").string(item_id(part)).key("output_index").number(static_cast<uint64_t>(part));
    if (parts_[part].kind != ReplyPart::Kind::kCall) w.key("content_index").number(int64_t{0});
    members(w);
  });
}

void ResponsesAnswer::response_record(std::string_view type) {
  record(type, [&](JsonWriter& w) {
    w.key("response");
    append_response(w);
    if (at_hand_ == nullptr) return;
    if (at_hand_->progress) write_progress(w, at_hand_->stats);
    if (timings_) write_timings(w, at_hand_->stats);
  });
}

void ResponsesAnswer::opened(size_t part) {
  record("response.output_item.added", [&](JsonWriter& w) {
    w.key("output_index").number(static_cast<uint64_t>(part)).key("item");
    append_item(w, part, false);
  });
  if (parts_[part].kind == ReplyPart::Kind::kCall) return;
  part_record("response.content_part.added", part, [&](JsonWriter& w) {
    w.key("part");
    append_content(w, part, false);
  });
}

void ResponsesAnswer::grown(size_t part, std::string_view piece) {
  const ReplyPart::Kind kind = parts_[part].kind;
  const std::string tokens = claim_tokens(part);
  part_record(kind == ReplyPart::Kind::kText        ? "response.output_text.delta"
              : kind == ReplyPart::Kind::kReasoning ? "response.reasoning_text.delta"
                                                    : "response.function_call_arguments.delta",
              part, [&](JsonWriter& w) {
                w.key("delta").string(piece);
                if (timings_ && at_hand_) write_timings(w, at_hand_->stats);
                if (kind == ReplyPart::Kind::kText) w.key("logprobs").raw(cat("[", tokens, "]"));
              });
}

void ResponsesAnswer::closed(size_t part) {
  const ReplyPart& p = parts_[part];
  if (p.kind == ReplyPart::Kind::kCall) {
    part_record("response.function_call_arguments.done", part,
                [&](JsonWriter& w) { w.key("name").string(p.name).key("arguments").string(p.text); });
  } else {
    part_record(
        p.kind == ReplyPart::Kind::kText ? "response.output_text.done" : "response.reasoning_text.done", part,
        [&](JsonWriter& w) {
          w.key("text").string(p.text);
          if (p.kind == ReplyPart::Kind::kText) w.key("logprobs").raw(logprobs_of(part, true));
        });
    part_record("response.content_part.done", part, [&](JsonWriter& w) {
      w.key("part");
      append_content(w, part, true);
    });
  }
  record("response.output_item.done", [&](JsonWriter& w) {
    w.key("output_index").number(static_cast<uint64_t>(part)).key("item");
    append_item(w, part, true);
  });
}

std::string ResponsesAnswer::on_event(int32_t, const TextEvent& event) {
  if (finished_) return {};
  out_.clear();
  if (!started_) {
    started_ = true;
    response_record("response.created");
    response_record("response.in_progress");
  }
  at_hand_ = &event;
  note_tokens(event);
  if (event.progress) response_record("response.in_progress");
  parts_.add(event, this);
  note_finish(event);
  if (!finished_) {
    at_hand_ = nullptr;
    return std::move(out_);
  }
  parts_.close(this);
  if (failure_.ok()) keep();
  response_record(state_ == State::kFailed       ? "response.failed"
                  : state_ == State::kIncomplete ? "response.incomplete"
                                                 : "response.completed");
  at_hand_ = nullptr;
  return std::move(out_);
}

// ---- whole ----

void ResponsesAnswer::collect(int32_t, const TextEvent& event) {
  note_tokens(event);
  parts_.add(event, nullptr);
  if (!event.text.empty() && !parts_.all().empty()) claim_tokens(parts_.all().size() - 1);
  note_finish(event);
  if (finished_ && failure_.ok()) keep();
}

std::string ResponsesAnswer::body() const {
  std::string out;
  JsonWriter w(out);
  append_response(w);
  return out;
}

}  // namespace oar::api
