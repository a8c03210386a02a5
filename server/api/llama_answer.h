// The events of one generation in the words of llama.cpp's /completion: chunks of server-sent events with no
// mark at the end, or a document; a list of them for several prompts. And /props and /slots.
#pragma once

#include <string>
#include <vector>

#include "server/api/answer_writer.h"
#include "server/api/json_writer.h"
#include "server/api/model_card.h"

namespace oar::api {

class LlamaAnswer final : public AnswerWriter {
 public:
  // `fields`: the only members of an answer, or of a stream's last chunk; empty: all.
  LlamaAnswer(const GenerationSpec& spec, bool return_tokens, std::vector<std::string> fields);

  std::string on_event(int32_t choice, const TextEvent& event) override;
  void collect(int32_t choice, const TextEvent& event) override;
  std::string body() const override;

 private:
  struct Choice {
    std::string text, probabilities;  // elements of a list
    std::vector<int32_t> tokens;
    int64_t predicted = 0;
    TextEvent end;  // the last event, without its text and tokens
  };
  void note(int32_t choice, const TextEvent& event);
  void append(JsonWriter& w, int32_t choice, const Choice& c, bool last, std::string_view text) const;
  void append_all(JsonWriter& w, int32_t choice, const Choice& c, bool last, std::string_view text) const;
  std::string picked(const std::string& answer) const;
  void append_settings(JsonWriter& w) const;

  const ModelHandlePtr model_;
  const std::vector<std::vector<int32_t>> prompts_;
  const GenerationRequest request_;
  const bool return_tokens_;
  const std::vector<std::string> fields_;
  std::vector<Choice> choices_;
  const TextEvent* at_hand_ = nullptr;  // that a stream's chunk is made of
  std::vector<bool> newline_;           // whether the choice's text has one
  size_t open_;
};

// What a model is, and what its requests have unless they say otherwise.
std::string llama_props(const ModelCard& model);
// Sequences share pages here, so there are as many slots as sequences may run at once, and what runs takes
// the first.
std::string llama_slots(const ModelHandle& model);

}  // namespace oar::api
