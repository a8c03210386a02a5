// The events of one generation as one of Anthropic's messages, streamed or whole.
#pragma once

#include <string>

#include "server/api/answer_writer.h"
#include "server/api/json_writer.h"
#include "server/api/reply_parts.h"

namespace oar::api {

class AnthropicAnswer final : public AnswerWriter, ReplyParts::Watcher {
 public:
  explicit AnthropicAnswer(const GenerationSpec& spec);

  std::string on_event(int32_t choice, const TextEvent& event) override;
  void collect(int32_t choice, const TextEvent& event) override;
  std::string body() const override;

 private:
  void opened(size_t part) override;
  void grown(size_t part, std::string_view piece) override;
  void closed(size_t part) override;
  void note_finish(const TextEvent& event);
  void start();
  void finish();
  void append_head(JsonWriter& w) const;
  void append_stop(JsonWriter& w) const;
  void append_usage(JsonWriter& w) const;

  std::string id_, model_;
  int64_t prompt_tokens_;
  ReplyParts parts_;
  TextEvent end_;    // the last event
  std::string out_;  // of the event at hand
  bool started_ = false;
};

}  // namespace oar::api
