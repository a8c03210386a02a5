// What the server needs of a language model: enough to serve a LanguageModel, and small enough that tests
// serve a fake Engine. Shared: whoever answers a request holds it until the answer is complete
// (model_catalog.h).
#pragma once

#include <memory>
#include <string>

#include "engine/runtime/language_model.h"

namespace oar {

namespace api {
class GenerationObserver;
}

struct ModelHandle {
  std::string name;           // what clients call it
  std::string version = "1";  // the number of its folder
  Engine* engine = nullptr;
  std::shared_ptr<const Tokenizer> tokenizer;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none, chat requests are refused
  GenerationDefaults defaults;
  ModelInfo info;
  std::vector<int32_t> end_tokens;                           // what ends its texts
  std::string bos_token, eos_token;                          // as chat templates name them
  std::shared_ptr<grammar::ConstraintCompiler> constraints;  // null: constrained requests are refused
  const tools::ToolStyle* tool_style = nullptr;              // null: tools are refused
  const tools::ReasoningStyle* reasoning_style = nullptr;    // null: reasoning, if any, is text
  std::shared_ptr<const ChatTemplate> given_template;  // in the place of the model's own; owns chat_template
  // Fields of a request and their values where a request does not have them (check_request_defaults()).
  json::object request_defaults;
  bool allow_special_in_text = false;                 // control tokens in the text of chat messages count
  std::shared_ptr<Adapters> adapters;                 // null: the model has no slots for any
  std::string parent;                                 // of an adapter: the name of its model
  std::shared_ptr<const AdapterLease> adapter;        // and what its requests hold
  std::shared_ptr<const void> owner;                  // keeps engine and template; empty: the caller does
  std::shared_ptr<api::GenerationObserver> observer;  // null: nobody counts

  ReplyModel reply_model() const { return {tokenizer, tool_style, reasoning_style, constraints.get()}; }
};
using ModelHandlePtr = std::shared_ptr<const ModelHandle>;

inline ModelHandle make_handle(std::shared_ptr<LanguageModel> model) {
  ModelHandle h;
  h.name = model->info().name;
  h.engine = &model->engine();
  h.tokenizer = model->tokenizer();
  h.chat_template = &model->chat_template();
  h.defaults = model->defaults();
  h.info = model->info();
  h.end_tokens = model->end_tokens();
  h.bos_token = model->bos_token();
  h.eos_token = model->eos_token();
  h.constraints = model->constraints();
  h.tool_style = model->tool_style();
  h.reasoning_style = model->reasoning_style();
  h.allow_special_in_text = model->allows_special_in_text();
  h.adapters = model->adapters();
  h.owner = std::move(model);
  return h;
}

}  // namespace oar
