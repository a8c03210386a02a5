// The text side: oar_tokenize(), oar_detokenize(), oar_chat_prompt().
#include "engine/base/json.h"
#include "engine/capi/call.h"
#include "engine/capi/chat.h"
#include "engine/capi/handles.h"
#include "engine/capi/model.h"
#include "engine/text/tools/conversation.h"

namespace oar::capi {
namespace {

Result<json::array> parse_array(const char* text, const char* name) {
  OAR_ASSIGN(json::value v, parse_json(text, name));
  if (!v.is_array()) return invalid_argument(cat(name, " is no JSON array; pass [{...}, ...]"), name);
  return std::move(v.get_array());
}

}  // namespace

Result<ChatPrompt> chat_prompt(LanguageModel& model, const char* messages, const char* tools) {
  if (tools == nullptr) return chat_prompt(model, messages, static_cast<const json::array*>(nullptr));
  OAR_ASSIGN(const json::array list, parse_array(tools, "tools"));
  return chat_prompt(model, messages, &list);
}

Result<ChatPrompt> chat_prompt(LanguageModel& model, const char* messages, const json::array* tools) {
  if (messages == nullptr) return null_argument("messages");
  OAR_ASSIGN(const json::array conversation, parse_array(messages, "messages"));
  if (conversation.empty())
    return invalid_argument("messages is empty; pass at least one message", "messages");
  for (size_t i = 0; i < conversation.size(); ++i) {
    const json::object* m = conversation[i].if_object();
    const json::value* role = m == nullptr ? nullptr : m->if_contains("role");
    if (role == nullptr || !role->is_string())
      return invalid_argument(
          cat("messages[", i, R"(] is no object with a string "role"; pass {"role": "user", )",
              R"("content": "..."})"),
          "messages");
  }
  ChatTemplateOptions options;
  options.bos_token = model.bos_token();
  options.eos_token = model.eos_token();
  options.allow_special_in_text = model.allows_special_in_text();
  return tools::render_conversation(model.chat_template(), conversation, tools, options);
}

}  // namespace oar::capi

using namespace oar;        // NOLINT: the functions below are C
using namespace oar::capi;  // NOLINT

extern "C" {

oar_status oar_tokenize(oar_model model, const char* text, size_t length, int add_special, int32_t* ids,
                        size_t capacity, size_t* count) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    if (text == nullptr) return null_argument("text");
    if (count == nullptr) return null_argument("count");
    const std::string_view view(text, length == SIZE_MAX ? std::strlen(text) : length);
    OAR_ASSIGN(const std::vector<int32_t> tokens,
               object->language_model().tokenizer()->encode(view, {.add_special_tokens = add_special != 0}));
    *count = tokens.size();
    if (ids == nullptr && capacity == 0) return ok_status();
    if (ids == nullptr) return null_argument("ids");
    if (capacity < tokens.size())
      return Status(
          StatusCode::kOutOfRange,
          cat("capacity is ", capacity, " but the text has ", tokens.size(), " tokens; give a larger buffer"),
          "capacity");
    std::copy(tokens.begin(), tokens.end(), ids);
    return ok_status();
  });
}

oar_status oar_detokenize(oar_model model, const int32_t* ids, size_t count, int skip_special, char* text,
                          size_t capacity, size_t* length) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    if (ids == nullptr && count > 0) return null_argument("ids");
    return write_text(object->language_model().tokenizer()->decode({ids, count}, skip_special != 0), text,
                      capacity, length);
  });
}

oar_status oar_chat_prompt(oar_model model, const char* messages, const char* tools, char* text,
                           size_t capacity, size_t* length) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    OAR_ASSIGN(const ChatPrompt prompt, chat_prompt(object->language_model(), messages, tools));
    return write_text(prompt.text, text, capacity, length);
  });
}

}  // extern "C"
