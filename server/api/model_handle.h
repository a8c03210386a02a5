// What the server needs of a model: enough to serve a LanguageModel, and small enough that tests serve a fake
// Engine. A value of borrowed and shared parts; the engine outlives the server.
#pragma once

#include <memory>
#include <string>

#include "engine/runtime/language_model.h"

namespace oar {

struct ModelHandle {
  std::string name;  // what clients call it
  Engine* engine = nullptr;
  std::shared_ptr<const Tokenizer> tokenizer;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none, chat requests are refused
  GenerationDefaults defaults;
  ModelInfo info;
  std::string bos_token, eos_token;    // as chat templates name them
  bool allow_special_in_text = false;  // control tokens in the text of chat messages count
};

inline ModelHandle make_handle(LanguageModel& model) {
  return {model.info().name,      &model.engine(),   model.tokenizer(),
          &model.chat_template(), model.defaults(),  model.info(),
          model.bos_token(),      model.eos_token(), model.allows_special_in_text()};
}

}  // namespace oar
