#include "server/api/anthropic_request.h"

#include "engine/base/format.h"
#include "server/api/message_parts.h"
#include "server/api/tool_fields.h"

namespace oar::api {
namespace {

constexpr size_t kMaxBlockName = 256;

// The blocks of one message in the terms of chats: results of tools are messages of their own, before the
// text.
class BlockReader {
 public:
  BlockReader(std::string role, std::vector<ChatMessage>& out) : out_(out) {
    message_.role = std::move(role);
  }

  Status read(const json::value& content, const std::string& path) {
    if (content.is_string()) {
      message_.content = std::string(content.get_string());
    } else if (!content.is_array()) {
      return invalid_argument(cat(path, " must be a string or an array of blocks, got ", describe(content)),
                              path);
    } else {
      const json::array& blocks = content.get_array();
      for (size_t i = 0; i < blocks.size(); ++i)
        OAR_RETURN_IF_ERROR(read_block(blocks[i], cat(path, "[", i, "]")));
    }
    if (!calls_.empty()) message_.other["tool_calls"] = std::move(calls_);
    const bool empty = !message_.content && message_.other.empty();
    if (empty && answered_) return ok_status();
    if (!message_.content && !by_assistant()) message_.content.emplace();
    out_.push_back(std::move(message_));
    return ok_status();
  }

 private:
  bool by_assistant() const { return message_.role == "assistant"; }

  Status read_block(const json::value& v, const std::string& path) {
    if (!v.is_object()) return invalid_argument(cat(path, " must be an object, got ", describe(v)), path);
    Fields f(v.get_object(), path + ".");
    std::string type;
    f.string("type", type, 64);
    f.find("cache_control");  // prefixes are found by their tokens
    if (!f.ok()) return f.status();
    if (type == "text") {
      std::string text;
      f.string("text", text, SIZE_MAX);
      f.find("citations");  // of an earlier answer
      if (message_.content) *message_.content += '\n' + text;
      else message_.content = std::move(text);
    } else if (type == "tool_result" && message_.role == "user") {
      OAR_RETURN_IF_ERROR(read_result(f, path));
    } else if (type == "tool_use" && by_assistant()) {
      read_call(f);
    } else if (type == "thinking" && by_assistant()) {
      std::string thinking;
      f.string("thinking", thinking, SIZE_MAX);
      f.find("signature");  // nothing here signs
      message_.other["reasoning_content"] = thinking;
    } else {
      f.fail("type",
             cat(path, ".type is ", describe(json::value(type)), "; in messages of the ", message_.role,
                 by_assistant() ? " it is text, thinking or tool_use" : " it is text or tool_result"));
    }
    f.refuse_rest();
    return f.status();
  }

  void read_call(Fields& f) {
    std::string id, name;
    f.string("id", id, kMaxBlockName);
    f.string("name", name, kMaxBlockName);
    const json::object* input = f.object("input");
    if (f.ok() && name.empty()) f.fail("name", cat(f.path_of("name"), " is missing"));
    const std::string arguments = input ? json::serialize(*input) : "{}";
    calls_.push_back(json::object{
        {"id", id},
        {"type", "function"},
        {"function", json::object{{"name", json::string(name)}, {"arguments", json::string(arguments)}}}});
  }

  Status read_result(Fields& f, const std::string& path) {
    ChatMessage result{"tool", std::string(), {}};
    std::string id;
    bool failed = false;
    f.string("tool_use_id", id, kMaxBlockName);
    f.boolean("is_error", failed);
    if (const json::value* content = f.find("content")) {
      OAR_ASSIGN(*result.content, text_of_content(*content, path + ".content", {"text"}));
    }
    if (failed) result.content = "Error: " + *result.content;  // templates know no other way to say it
    result.other["tool_call_id"] = id;
    if (f.ok()) out_.push_back(std::move(result));
    answered_ = true;
    return ok_status();
  }

  std::vector<ChatMessage>& out_;
  ChatMessage message_;
  json::array calls_;
  bool answered_ = false;  // there were results
};

void read_turns(Fields& f, Conversation& c) {
  if (const json::value* system = f.find("system")) {
    Result<std::string> text = text_of_content(*system, "system", {"text"});
    if (!text.ok()) return f.fail(text.status().param(), text.status().message());
    c.messages.push_back({"system", std::move(*text), {}});
  }
  f.require("messages", "send a list of messages");
  const json::array* list = f.array("messages");
  if (!list) return;
  std::string role;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = cat("messages[", i, "]");
    const json::object* one = (*list)[i].if_object();
    if (!one) return f.fail(path, cat(path, " must be an object, got ", describe((*list)[i])));
    Fields m(*one, path + ".");
    m.string("role", role, 64);
    const json::value* content = m.find("content");
    // Instructions in the middle, which Claude's tools send; at the beginning they are `system`.
    if (m.ok() && role != "user" && role != "assistant" && (role != "system" || i == 0))
      m.fail("role", cat(path, ".role is ", describe(json::value(role)),
                         i == 0 && role == "system" ? "; send the first instructions as system"
                                                    : "; use user, assistant or system"));
    if (m.ok() && !content) m.fail("content", cat(path, ".content is missing; give a string or blocks"));
    m.refuse_rest();
    Status s = m.status();
    if (s.ok()) s = BlockReader(role, c.messages).read(*content, path + ".content");
    if (!s.ok()) return f.fail(s.param(), s.message());
  }
  // An answer that is begun is continued.
  const bool begun = role == "assistant" && c.messages.back().content && c.messages.back().other.empty();
  c.continue_final_message = begun;
}

// {"name": ..., "input_schema": {...}} as chats have it.
json::array custom_tools(Fields& f, const json::array& list) {
  json::array out;
  for (size_t i = 0; i < list.size() && f.ok(); ++i) {
    const std::string path = cat("tools[", i, "]");
    if (!list[i].is_object()) {
      f.fail(path, cat(path, " must be an object, got ", describe(list[i])));
      break;
    }
    Fields t(list[i].get_object(), path + ".");
    std::string type = "custom";
    t.string("type", type, 64);
    if (type != "custom")
      t.fail("type", cat(path, ".type is ", describe(json::value(type)), "; only custom tools are offered"));
    json::object function;
    for (const char* name : {"name", "description", "strict"})
      if (const json::value* v = t.find(name)) function[name] = *v;
    if (const json::object* schema = t.object("input_schema")) function["parameters"] = *schema;
    t.find("cache_control");
    t.refuse_rest();
    if (!t.ok()) f.fail(t.status().param(), t.status().message());
    out.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void read_custom_tools(Fields& f, ReplyRequest& reply) {
  json::value definitions, choice;
  if (const json::array* list = f.array("tools")) definitions = custom_tools(f, *list);
  bool parallel = true;
  if (const json::object* asked = f.object("tool_choice")) {
    Fields c(*asked, "tool_choice.");
    std::string type, name;
    c.string("type", type, 64);
    c.string("name", name, kMaxBlockName);
    bool one = false;
    c.boolean("disable_parallel_tool_use", one);
    parallel = !one;
    if (type == "auto" || type == "none") choice = json::string(type);
    else if (type == "any") choice = "required";
    else if (type == "tool") choice = function_choice(name);
    else
      c.fail("type",
             cat("tool_choice.type is ", describe(json::value(type)), "; use auto, any, tool or none"));
    c.refuse_rest();
    if (!c.ok()) return f.fail(c.status().param(), c.status().message());
  }
  read_tool_request(f, definitions, choice, parallel, "input_schema", reply.tools);
}

// Without `thinking` an answer has none: templates that can leave it out do, and what comes all the same is
// not shown.
void read_thinking(Fields& f, Conversation& c) {
  bool on = false;
  if (const json::object* thinking = f.object("thinking")) {
    Fields t(*thinking, "thinking.");
    std::string type;
    t.string("type", type, 64);
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      t.fail("type",
             cat("thinking.type is ", describe(json::value(type)), "; use enabled, adaptive or disabled"));
    on = type == "enabled" || type == "adaptive";
    std::optional<int64_t> budget;
    t.integer("budget_tokens", budget, 0, INT32_MAX);
    if (on) c.reply.thinking_budget = budget;
    c.reply.thinking_field = "thinking.budget_tokens";
    std::string display = "summarized";
    t.string("display", display, 64);
    if (display == "omitted") on = false;
    else if (display != "summarized") t.fail("display", "thinking.display is summarized or omitted");
    set_thinking(c, type != "disabled");
    t.refuse_rest();
    if (!t.ok()) return f.fail(t.status().param(), t.status().message());
  } else {
    set_thinking(c, false);
  }
  c.reply.reasoning.include = on;
}

}  // namespace

Result<GenerationRequest> parse_messages_request(const RequestBody& body, const ModelHandle& model,
                                                 const ApiLimits& limits, bool counting) {
  GenerationRequest r = request_for(model);
  Fields f(body);
  Conversation& c = r.conversation.emplace();
  r.prompt_field = "messages";
  r.add_special_tokens = false;  // the template writes them itself
  f.string("model", r.model, kMaxBlockName);
  f.boolean("stream", r.streaming.stream);
  if (!counting) f.require("max_tokens", "say how many tokens the answer may have");
  if (const json::value* stops = f.find("stop_sequences"); stops && !stops->is_array())
    f.fail("stop_sequences", cat("stop_sequences must be an array of strings, got ", describe(*stops)));
  read_params(f, model.engine->request_limits(), limits, r);
  f.strings("stop_sequences", r.text.stop, limits.max_stop_strings, limits.max_stop_bytes);
  if (r.n != 1) f.fail("n", cat("n is ", r.n, "; a message is one answer: leave it out"));
  read_output_format(f, "output_format", r.constraint);
  if (const json::object* config = f.object("output_config")) {
    Fields o(*config, "output_config.");
    read_output_format(o, "format", r.constraint);
    if (const json::value* effort = o.find("effort")) c.template_kwargs["reasoning_effort"] = *effort;
    o.refuse_rest();
    if (!o.ok()) f.fail(o.status().param(), o.status().message());
  }
  read_custom_tools(f, c.reply);
  read_thinking(f, c);
  if (f.ok()) read_turns(f, c);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  OAR_RETURN_IF_ERROR(check_conversation(c, limits, "messages"));
  return r;
}

}  // namespace oar::api
