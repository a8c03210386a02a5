// A TokenSink that keeps everything and can be waited for.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "engine/runtime/core/request.h"

namespace oar_test {

class CollectSink : public oar::TokenSink {
 public:
  explicit CollectSink(int32_t n = 1) : choices(static_cast<size_t>(n)) {}

  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<oar::TokenEvent> events;
    int finishes = 0;
    oar::FinishReason finish = oar::FinishReason::kNone;
    oar::TokenEvent last;
  };

  void on_event(oar::TokenEvent&& event) noexcept override {
    std::lock_guard lock(mutex_);
    Choice& c = choices[static_cast<size_t>(event.index)];
    if (c.finishes > 0) late = true;
    if (event.has_token) c.tokens.push_back(event.token);
    if (event.finish != oar::FinishReason::kNone) {
      ++c.finishes;
      c.finish = event.finish;
      ++finished_;
      c.last = event;
    }
    c.events.push_back(std::move(event));
    changed_.notify_all();
  }

  bool wait(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return finished_ == choices.size(); });
  }
  // Until some choice has this many tokens, or ended.
  bool wait_tokens(size_t count, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout,
                             [&] { return choices[0].tokens.size() >= count || finished_ > 0; });
  }

  std::vector<Choice> choices;  // read after wait()
  bool late = false;            // something came after a choice's finish event

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t finished_ = 0;
};

}  // namespace oar_test
