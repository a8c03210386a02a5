#include "engine/text/tools/conversation.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar::tools {
namespace {

// Whether there was anything to do.
bool parse_arguments(json::value& message) {
  const json::object* object = message.if_object();
  if (!object || !object->contains("tool_calls") || !object->at("tool_calls").is_array()) return false;
  bool any = false;
  for (json::value& call : message.get_object().at("tool_calls").get_array()) {
    json::value* function = call.is_object() ? call.get_object().if_contains("function") : nullptr;
    json::value* arguments =
        function && function->is_object() ? function->get_object().if_contains("arguments") : nullptr;
    if (!arguments || !arguments->is_string()) continue;
    const std::string_view text = arguments->get_string();
    Result<json::value> parsed = parse_json(text.empty() ? "{}" : text, "arguments");
    if (!parsed.ok() || !parsed->is_object()) continue;
    *arguments = std::move(*parsed);
    any = true;
  }
  return any;
}

// What gpt-oss's template calls reasoning_content.
bool add_thinking(json::value& message) {
  json::object* object = message.if_object();
  const json::value* reasoning = object ? object->if_contains("reasoning_content") : nullptr;
  return reasoning && object->emplace("thinking", json::value(*reasoning)).second;
}

}  // namespace

Result<ChatPrompt> render_conversation(const ChatTemplate& chat_template, const json::array& messages,
                                       const json::array* tools, const ChatTemplateOptions& options) {
  json::array adapted = messages;
  bool changed = false, parsed = false;
  for (json::value& message : adapted) changed |= add_thinking(message);
  json::array as_text;
  if (changed) as_text = adapted;
  for (json::value& message : adapted) parsed |= parse_arguments(message);
  Result<ChatPrompt> rendered = chat_template.render(changed || parsed ? adapted : messages, tools, options);
  if (rendered.ok() || !parsed) return rendered;
  Result<ChatPrompt> again = chat_template.render(changed ? as_text : messages, tools, options);
  return again.ok() ? std::move(again) : std::move(rendered);  // the first complaint is the truer one
}

std::string left_out(const ChatTemplate& chat_template, const json::array& messages,
                     const json::array* tools) {
  const auto named = [&](std::string_view word) {
    return chat_template.source().find(word) != std::string::npos;
  };
  constexpr std::string_view kFree[] = {"role", "content", "name", "tool_call_id"};
  for (size_t k = 0; k < messages.size(); ++k) {
    for (const auto& [key, value] : messages[k].as_object()) {
      const std::string_view name = key;
      const bool thought = name == "reasoning_content" && named("thinking");  // see add_thinking()
      if (std::ranges::find(kFree, name) == std::end(kFree) && !is_empty(value) && !named(name) && !thought)
        return cat("messages[", k, "] has the key '", name.substr(0, 64), "'");
    }
  }
  // Firefunction's calls them functions.
  const bool lost = tools != nullptr && !tools->empty() && !named("tools") && !named("functions");
  return lost ? "the conversation has 'tools'" : "";
}

}  // namespace oar::tools
