// Chat templates: the Jinja file that comes with a model makes a prompt of a conversation, exactly as Hugging
// Face's apply_chat_template does. That has trim_blocks, lstrip_blocks, loop controls, tojson without HTML
// escapes, raise_exception, strftime_now and {% generation %}. Templates are hostile input: every render is
// bounded in steps, memory, output and depth (jinja::Limits).
//
// What came with the messages is marked in the result, through all that a template does to it. So the
// tokenizer does not read a user's text as control tokens.
//
// Not here: which template a model uses by default in a GGUF, tool-call parsing, tokenization.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/text/text_span.h"

namespace oar {

namespace jinja {
struct Template;
struct Limits;
}  // namespace jinja

struct ChatTemplateOptions {
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
  // The request's chat_template_kwargs: more variables for the template. Naming one that the server itself
  // sets (messages, tools, ...) is refused.
  json::object extra;
  // Leaves ChatPrompt::user empty: control tokens in messages count.
  bool allow_special_in_text = false;
  // Local time for strftime_now; the clock's when not given.
  std::optional<std::tm> now;
};

// A conversation as the model reads it. Tokenize it with Tokenizer::EncodeOptions::plain = user.
struct ChatPrompt {
  std::string text;
  // What came with the request, ascending and apart: texts, names, tool results and definitions. A role, or a
  // variable of the request, counts as the template's own while it is a plain word (letters, digits, _ and
  // -).
  std::vector<TextSpan> user;
};

// Immutable; render() may run on many threads at once.
class ChatTemplate {
 public:
  // INVALID_ARGUMENT with the line for a template that is not valid, or uses what a chat template cannot
  // (include, import, extends, block).
  static Result<ChatTemplate> parse(std::string source);

  // INVALID_ARGUMENT when the template fails (raise_exception, a missing field, a wrong type),
  // RESOURCE_EXHAUSTED when it passes a limit; both with the line. `tools` may be null, and is then undefined
  // in the template (not none: vendors' templates loop over it unasked). The two arrays are only read.
  Result<ChatPrompt> render(const json::array& messages, const json::array* tools,
                            const ChatTemplateOptions& options) const;
  Result<ChatPrompt> render(const json::array& messages, const json::array* tools,
                            const ChatTemplateOptions& options, const jinja::Limits& limits) const;

  const std::string& source() const { return *source_; }

 private:
  ChatTemplate() = default;
  std::shared_ptr<const std::string> source_;
  std::shared_ptr<const jinja::Template> template_;
};

// ChatML, for models that bring no template.
extern const char kDefaultChatTemplate[];

// The template of a tokenizer_config.json: its "chat_template" is a string, or a list of {"name",
// "template"}. `name` picks from a list ("default", "tool_use", ...); when it is empty, "tool_use" is taken
// if `with_tools` and there is one, else "default". nullopt when the file has no chat_template at all.
Result<std::optional<std::string>> chat_template_source(const json::object& tokenizer_config,
                                                        bool with_tools = false, std::string_view name = {});

}  // namespace oar
