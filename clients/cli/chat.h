// One conversation with a model: what was said, what of it the model still sees, and how answers are drawn.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "clients/cli/prompt.h"
#include "engine/base/json.h"
#include "engine/runtime/language_model.h"

namespace oar::cli {

class Chat {
 public:
  // `interrupted`, set, ends the answer that is being made.
  // `adapter`: of every answer; null: the model without one.
  Chat(LanguageModel& model, SamplingOptions sampling, std::string system, std::atomic<bool>& interrupted,
       std::shared_ptr<const AdapterLease> adapter)
      : model_(model),
        adapter_(std::move(adapter)),
        sampling_(std::move(sampling)),
        system_(std::move(system)),
        interrupted_(interrupted) {}

  // Prints the answer as it comes and keeps both, unless the turn fails. Says on standard error what was cut,
  // and when turns are left out because the context is full.
  Status say(const std::string& text);
  void reset();  // forgets what was said; the system message and the parameters stay

  // Takes part from the next turn on; empty: none.
  void set_system(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }
  SamplingOptions& sampling() { return sampling_; }
  SamplingParams params() const { return sampling_params(sampling_, model_.defaults(), 0.8f); }

  // The whole conversation, also what the model no longer sees: as the "messages" of a request to
  // /v1/chat/completions where the name ends with .json, else as text. Overwrites nothing.
  Status save(const std::string& path) const;

 private:
  // The prompt's tokens. Turns that no longer fit are left out, oldest first.
  Result<std::vector<int32_t>> prompt();
  json::array messages(size_t from) const;
  // `over`: the answer itself begins, or nothing more comes.
  void show_reasoning(const std::string& text, bool over);

  LanguageModel& model_;
  const std::shared_ptr<const AdapterLease> adapter_;
  SamplingOptions sampling_;
  std::string system_;
  std::atomic<bool>& interrupted_;
  std::vector<std::string> said_;  // user, assistant, user, ...
  size_t seen_from_ = 0;           // what lies before it does not fit
  uint64_t turns_ = 0;
  bool reasoning_ = false;  // is being shown
};

}  // namespace oar::cli
