// An answer that is kept when it is complete, also one that leaves as a stream.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/api/answer_writer.h"

namespace oar::api {

class StoredAnswer final : public AnswerWriter {
 public:
  using Keep = std::function<void(std::string body)>;
  // `whole`: the same answer, collected while `answer` is streamed; null: it is not.
  StoredAnswer(std::unique_ptr<AnswerWriter> answer, std::unique_ptr<AnswerWriter> whole, Keep keep)
      : answer_(std::move(answer)), whole_(std::move(whole)), keep_(std::move(keep)) {}

  std::string on_event(int32_t choice, const TextEvent& event) override {
    if (whole_ && !finished_) whole_->collect(choice, event);
    std::string out = answer_->on_event(choice, event);
    settle();
    return out;
  }
  void collect(int32_t choice, const TextEvent& event) override {
    answer_->collect(choice, event);
    settle();
  }
  std::string body() const override { return answer_->body(); }
  const char* content_type() const override { return answer_->content_type(); }

 private:
  void settle() {
    failure_ = answer_->failure();
    finished_ = answer_->finished();
    if (finished_ && failure_.ok() && keep_)
      std::exchange(keep_, nullptr)((whole_ ? whole_ : answer_)->body());
  }
  const std::unique_ptr<AnswerWriter> answer_, whole_;
  Keep keep_;
};

}  // namespace oar::api
