#include "engine/text/chat_template.h"

#include <algorithm>
#include <new>

#include "engine/base/format.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/parser.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

// A template file past this size is none; the largest known are about 30 KB.
constexpr size_t kMaxSource = size_t{1} << 20;

Status to_status(const jinja::Failure& f) {
  return {f.code, f.line > 0 ? cat("chat template, line ", f.line, ": ", f.message)
                             : cat("chat template: ", f.message)};
}

Status out_of_memory() { return resource_exhausted("chat template: out of memory"); }

jinja::ClockTime clock_time(const std::optional<std::tm>& given) {
  std::tm t{};
  if (given.has_value()) {
    t = *given;
  } else {
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &t);
  }
  // A caller's tm may hold anything; dates past these bounds have no name.
  jinja::ClockTime c;
  c.year = std::clamp(t.tm_year, -1900, 8099) + 1900;
  c.month = std::clamp(t.tm_mon, 0, 11) + 1;
  c.day = std::clamp(t.tm_mday, 1, 31);
  c.hour = std::clamp(t.tm_hour, 0, 23);
  c.minute = std::clamp(t.tm_min, 0, 59);
  c.second = std::clamp(t.tm_sec, 0, 60);
  return c;
}

// What the server defines; a request's own variables must not replace it.
constexpr std::string_view kReserved[] = {
    "messages",        "tools",  "add_generation_prompt", "bos_token", "eos_token",
    "raise_exception", "range",  "strftime_now",          "namespace", "dict",
    "cycler",          "joiner", "chat_template"};

// Templates make control tokens of roles ('<|' + role + '|>') and of switches. A plain word is none by
// itself.
jinja::Value trusted_word(const jinja::Value& v) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (!v.is_string() || !std::all_of(v.str().begin(), v.str().end(), plain)) return v;
  return jinja::Value::borrowed(v.str());
}

jinja::Value message_value(jinja::Heap& heap, const json::value& message) {
  jinja::Value v = heap.from_json(message);
  if (!v.is(jinja::Type::kDict)) return v;
  if (const jinja::Value* role = v.dict()->find("role"))
    v.dict()->set(heap, jinja::Value::borrowed("role"), trusted_word(*role));
  return v;
}

}  // namespace

const char kDefaultChatTemplate[] =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  if (source.size() > kMaxSource)
    return invalid_argument(cat("chat template: ", format_bytes(source.size()), " is past the limit of ",
                                format_bytes(kMaxSource)));
  if (!is_valid_utf8(source)) return invalid_argument("chat template: the text is not valid UTF-8");
  try {
    ChatTemplate t;
    t.template_ = std::make_shared<const jinja::Template>(jinja::parse_template(source));
    t.source_ = std::make_shared<const std::string>(std::move(source));
    return t;
  } catch (const jinja::Failure& f) { return to_status(f); } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Result<ChatPrompt> ChatTemplate::render(const json::array& messages, const json::array* tools,
                                        const ChatTemplateOptions& options) const {
  return render(messages, tools, options, jinja::Limits{});
}

Result<ChatPrompt> ChatTemplate::render(const json::array& messages, const json::array* tools,
                                        const ChatTemplateOptions& options,
                                        const jinja::Limits& limits) const {
  for (const std::string_view name : kReserved)
    if (options.extra.contains(name))
      return invalid_argument(
          cat("chat_template_kwargs.", name, " cannot be set: the server defines it; rename the variable"),
          "chat_template_kwargs");
  try {
    jinja::Interpreter in(*template_, limits, clock_time(options.now));
    const auto define = [&](std::string_view name, auto&& make) {
      if (in.mentions(name)) in.define(name, make());
    };
    const auto array_value = [&](const json::array& a, auto item) {
      std::vector<jinja::Value> items;
      items.reserve(a.size());
      for (const json::value& v : a) items.push_back(item(v));
      return in.heap().list(std::move(items));
    };
    define("messages", [&] {
      return array_value(messages, [&](const json::value& v) { return message_value(in.heap(), v); });
    });
    if (tools != nullptr) {
      define("tools", [&] {
        return array_value(*tools, [&](const json::value& v) { return in.heap().from_json(v); });
      });
    }
    define("add_generation_prompt", [&] { return jinja::Value::boolean(options.add_generation_prompt); });
    define("bos_token", [&] { return jinja::Value::borrowed(options.bos_token); });
    define("eos_token", [&] { return jinja::Value::borrowed(options.eos_token); });
    for (const auto& [key, value] : options.extra)
      define({key.data(), key.size()}, [&, &v = value] { return trusted_word(in.heap().from_json(v)); });
    jinja::Text text = in.render();
    if (options.allow_special_in_text) text.user.clear();
    return ChatPrompt{std::move(text.bytes), std::move(text.user)};
  } catch (const jinja::Failure& f) { return to_status(f); } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Result<std::optional<std::string>> chat_template_source(const json::object& tokenizer_config, bool with_tools,
                                                        std::string_view name) {
  const json::value* field = tokenizer_config.if_contains("chat_template");
  if (field == nullptr || field->is_null()) return std::optional<std::string>();
  if (const json::string* s = field->if_string())
    return std::optional<std::string>(std::in_place, s->data(), s->size());
  const json::array* list = field->if_array();
  if (list == nullptr)
    return invalid_argument(
        "tokenizer_config.json: chat_template must be a string or a list of {name, template}");
  std::optional<std::string> fallback, tool_use, chosen;
  std::string names;
  for (const json::value& item : *list) {
    const json::object* o = item.if_object();
    const json::value* n = o == nullptr ? nullptr : o->if_contains("name");
    const json::value* t = o == nullptr ? nullptr : o->if_contains("template");
    if (n == nullptr || t == nullptr || !n->is_string() || !t->is_string())
      return invalid_argument(
          "tokenizer_config.json: each item of chat_template needs the strings name and template");
    const std::string_view item_name(n->get_string().data(), n->get_string().size());
    std::string text(t->get_string().data(), t->get_string().size());
    names += cat(names.empty() ? "" : ", ", item_name);
    if (!name.empty() && item_name == name) chosen = text;
    if (item_name == "tool_use") tool_use = text;
    if (item_name == "default") fallback = std::move(text);
  }
  if (!name.empty()) {
    if (chosen.has_value()) return chosen;
    return not_found(cat("tokenizer_config.json has no chat template named '", name, "'; it has: ", names));
  }
  if (with_tools && tool_use.has_value()) return tool_use;
  if (fallback.has_value()) return fallback;
  return not_found(cat("tokenizer_config.json has no chat template named 'default'; it has: ", names));
}

}  // namespace oar
