// The events of one generation as one of OpenAI's responses: items of reasoning, text and calls, whole or as
// the events that build them up.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/answer_writer.h"
#include "server/api/json_writer.h"
#include "server/api/reply_parts.h"
#include "server/api/response_store.h"
#include "server/api/responses_request.h"

namespace oar::api {

class ResponsesAnswer final : public AnswerWriter, ReplyParts::Watcher {
 public:
  // `kept`: the conversation that the answer ends, and its request's items; with the answer they go to
  // `store` when that has come to its end. Null: they are not kept. `owner` as ResponseStore has it.
  ResponsesAnswer(const GenerationSpec& spec, ResponsesOptions options, StoredResponse kept,
                  ResponseStore* store, std::string owner);

  std::string on_event(int32_t choice, const TextEvent& event) override;
  void collect(int32_t choice, const TextEvent& event) override;
  std::string body() const override;

 private:
  enum class State { kRunning, kDone, kIncomplete, kFailed };
  void opened(size_t part) override;
  void grown(size_t part, std::string_view piece) override;
  void closed(size_t part) override;
  void note_finish(const TextEvent& event);
  void keep();
  // One event: its name, and a document that begins with its type and number.
  template <class F>
  void record(std::string_view type, F&& members);
  // The same of a part: whose it is.
  template <class F>
  void part_record(std::string_view type, size_t part, F&& members);
  void response_record(std::string_view type);
  void append_response(JsonWriter& w) const;
  void append_item(JsonWriter& w, size_t part, bool whole) const;
  void append_content(JsonWriter& w, size_t part, bool whole) const;
  void append_usage(JsonWriter& w) const;
  void append_raw(JsonWriter& w, const char* key, const std::vector<int32_t>& ids) const;
  void note_tokens(const TextEvent& event);
  std::string claim_tokens(size_t part);
  std::string logprobs_of(size_t part, bool whole) const;
  std::string item_id(size_t part) const;

  std::string id_, model_;
  int64_t created_, prompt_tokens_;
  const bool timings_;
  const TextEvent* at_hand_ = nullptr;  // that a record is made of
  ResponsesOptions options_;
  const ModelHandlePtr spec_model_;
  const std::vector<int32_t> prompt_;  // for raw messages, as is the next
  std::vector<int32_t> reply_;
  const bool want_logprobs_;
  std::string fresh_;                  // tokens that no part has yet, as elements of a list
  std::vector<std::string> logprobs_;  // likewise, of each part
  StoredResponse kept_;
  ResponseStore* store_;
  std::string owner_;
  ReplyParts parts_;
  TextEvent end_;  // the last event
  State state_ = State::kRunning;
  std::string out_;  // of the event at hand
  int64_t sequence_ = 0;
  bool started_ = false;
};

}  // namespace oar::api
