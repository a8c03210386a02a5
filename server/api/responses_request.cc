#include "server/api/responses_request.h"

#include "engine/base/format.h"
#include "server/api/message_parts.h"
#include "server/api/metadata_field.h"
#include "server/api/tool_fields.h"

namespace oar::api {
namespace {

constexpr size_t kMaxItemName = 256;

// Items in the terms of chats. What the assistant wrote in a row, reasoning, text and calls, is one message.
class ItemReader {
 public:
  explicit ItemReader(std::vector<ChatMessage>& out) : out_(out) {}

  Status read(const json::value& v, const std::string& path) {
    if (!v.is_object()) return invalid_argument(cat(path, " must be an object, got ", describe(v)), path);
    Fields f(v.get_object(), path + ".");
    std::string type = "message";
    f.string("type", type, 64);
    for (const char* known : {"id", "status", "phase"}) f.find(known);  // of an earlier answer
    if (f.ok()) {
      if (type == "message") read_message(f);
      else if (type == "function_call") read_call(f);
      else if (type == "function_call_output") read_output(f);
      else if (type == "reasoning") read_reasoning(f);
      else
        f.fail("type", cat(path, ".type is ", describe(json::value(type)),
                           "; use message, function_call, function_call_output or reasoning"));
    }
    f.refuse_rest();
    return f.status();
  }

 private:
  ChatMessage& assistant() {
    if (out_.empty() || out_.back().role != "assistant") out_.push_back({"assistant", std::nullopt, {}});
    return out_.back();
  }

  std::string text(Fields& f, std::string_view name, std::initializer_list<std::string_view> types) {
    const json::value* content = f.find(name);
    if (!content) {
      f.fail(name, cat(f.path_of(name), " is missing"));
      return {};
    }
    Result<std::string> made = text_of_content(*content, f.path_of(name), types);
    if (made.ok()) return std::move(*made);
    f.fail(name, std::string(made.status().message()));
    return {};
  }

  void read_message(Fields& f) {
    std::string role;
    f.string("role", role, 64);
    std::string content = text(f, "content", {"input_text", "output_text", "text", "refusal"});
    if (role != "assistant") {
      out_.push_back({std::move(role), std::move(content), {}});
      return;
    }
    // Behind reasoning it is the same turn; text behind text is another.
    if (out_.empty() || out_.back().role != "assistant" || out_.back().content ||
        out_.back().other.contains("tool_calls"))
      out_.push_back({"assistant", std::nullopt, {}});
    out_.back().content = std::move(content);
  }

  void read_call(Fields& f) {
    std::string id, name, arguments;
    f.string("call_id", id, kMaxItemName);
    f.string("name", name, kMaxItemName);
    f.string("arguments", arguments, SIZE_MAX);
    if (name.empty()) f.fail("name", cat(f.path_of("name"), " is missing"));
    json::value& calls = assistant().other["tool_calls"];
    if (!calls.is_array()) calls = json::array();
    calls.get_array().push_back(json::object{
        {"id", json::string(id)},
        {"type", "function"},
        {"function", json::object{{"name", json::string(name)}, {"arguments", json::string(arguments)}}}});
  }

  void read_output(Fields& f) {
    std::string id;
    f.string("call_id", id, kMaxItemName);
    ChatMessage result{"tool", text(f, "output", {"input_text", "output_text", "text"}), {}};
    result.other["tool_call_id"] = json::string(id);
    out_.push_back(std::move(result));
  }

  void read_reasoning(Fields& f) {
    if (f.find("encrypted_content"))
      f.fail("encrypted_content",
             cat(f.path_of("encrypted_content"), " cannot be read; send content, or leave the item out"));
    f.find("summary");  // of the content, which says it all
    if (!f.find("content")) return;
    std::string content = text(f, "content", {"reasoning_text", "text"});
    out_.push_back({"assistant", std::nullopt, {}});
    out_.back().other["reasoning_content"] = json::string(content);
  }

  std::vector<ChatMessage>& out_;
};

void read_input(Fields& f, Conversation& c) {
  const json::value* input = f.find("input");
  f.require("input", "send a string or an array of items");
  if (!input) return;
  if (input->is_string()) {
    c.messages.push_back({"user", std::string(input->get_string()), {}});
    return;
  }
  const json::array* items = f.array("input");
  if (!items) return;
  ItemReader reader(c.messages);
  for (size_t i = 0; i < items->size(); ++i) {
    const Status s = reader.read((*items)[i], cat("input[", i, "]"));
    if (!s.ok()) return f.fail(s.param(), s.message());
  }
}

// {"type":"function","name":...} as chats have it.
json::value flat_tools(Fields& f) {
  const json::array* list = f.array("tools");
  if (!list) return nullptr;
  json::array out;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = cat("tools[", i, "]");
    const json::object* one = (*list)[i].if_object();
    if (!one) {
      f.fail(path, cat(path, " must be an object, got ", describe((*list)[i])));
      break;
    }
    Fields t(*one, path + ".");
    std::string type;
    t.string("type", type, 64);
    if (type != "function")
      t.fail("type", cat(path, ".type is ", describe(json::value(type)), "; only functions are offered"));
    json::object function;
    for (const char* name : {"name", "description", "parameters", "strict"})
      if (const json::value* v = t.find(name)) function[name] = *v;
    t.refuse_rest();
    if (!t.ok()) f.fail(t.status().param(), t.status().message());
    out.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

// As chats have it, where functions have an object of their own.
json::value flat_choice(Fields& f) {
  const json::value* given = f.find("tool_choice");
  if (!given || !given->is_object()) return given ? *given : json::value();
  json::object choice = given->get_object();
  const auto nested = [](const json::value& v) -> json::value {
    const json::object* o = v.if_object();
    const json::value* name = o ? o->if_contains("name") : nullptr;
    return name && name->is_string() ? json::value(function_choice(name->get_string())) : v;
  };
  if (choice.contains("name")) return nested(*given);
  if (json::value* list = choice.if_contains("tools"); list && list->is_array())
    for (json::value& tool : list->get_array()) tool = nested(tool);
  return choice;
}

void read_flat_tools(Fields& f, ReplyRequest& reply, json::object& echoed) {
  bool parallel = true;
  f.boolean("parallel_tool_calls", parallel);
  const json::value definitions = flat_tools(f), choice = flat_choice(f);
  read_tool_request(f, definitions, choice, parallel, "parameters", reply.tools);
  const json::value *tools = f.find("tools"), *given = f.find("tool_choice");
  echoed["tools"] = tools ? *tools : json::value(json::array());
  echoed["tool_choice"] = given ? *given : json::value("auto");
  echoed["parallel_tool_calls"] = parallel;
}

void read_text_options(Fields& f, grammar::ConstraintSpec& constraint, json::object& echoed) {
  echoed["text"] = json::object{{"format", json::object{{"type", "text"}}}};
  const json::object* text = f.object("text");
  if (!text) return;
  Fields t(*text, "text.");
  read_output_format(t, "format", constraint);
  std::string verbosity = "medium";
  t.string("verbosity", verbosity, 64);
  if (verbosity != "medium")
    t.fail("verbosity", cat("text.verbosity is ", describe(json::value(verbosity)),
                            "; only medium is offered: say it in the instructions"));
  t.refuse_rest();
  if (!t.ok()) return f.fail(t.status().param(), t.status().message());
  for (const auto& member : *text)
    if (!member.value().is_null()) echoed["text"].get_object()[member.key()] = member.value();
}

void read_effort(Fields& f, Conversation& c, json::object& echoed) {
  echoed["reasoning"] = json::object{{"effort", nullptr}, {"summary", nullptr}};
  const json::object* reasoning = f.object("reasoning");
  if (!reasoning) return;
  Fields r(*reasoning, "reasoning.");
  std::string effort;
  r.string("effort", effort, 64);
  if (!effort.empty()) c.template_kwargs["reasoning_effort"] = json::string(effort);
  if (effort == "none") set_thinking(c, false);
  std::string summary;
  for (const char* name : {"summary", "generate_summary"}) {
    r.string(name, summary, 64);
    if (!summary.empty() && summary != "auto")
      r.fail(name, cat(r.path_of(name), " is ", describe(json::value(summary)),
                       "; reasoning is given whole: use auto, or leave it out"));
  }
  r.refuse_rest();
  if (!r.ok()) return f.fail(r.status().param(), r.status().message());
  for (const auto& member : *reasoning) echoed["reasoning"].get_object()[member.key()] = member.value();
}

// What asks for nothing, or for what there is.
void read_modes(Fields& f, const RequestLimits& engine, GenerationRequest& r, ResponsesOptions& o) {
  const auto only = [&](const char* name, std::string_view value, const char* remedy) {
    std::string given(value);
    f.string(name, given, 64);
    if (given != value) f.fail(name, cat(name, " is ", describe(json::value(given)), "; ", remedy));
  };
  only("truncation", "disabled", "nothing is left out of a conversation: use disabled");
  bool background = false;
  f.boolean("background", background);
  if (background) f.fail("background", "background is not offered; leave it out and stream the answer");
  std::optional<int64_t> top;
  f.integer("top_logprobs", top, 0, engine.max_logprobs);
  if (top.value_or(0) > 0) r.logprobs = static_cast<int32_t>(*top);
  if (const json::array* include = f.array("include"); include && !include->empty())
    for (const json::value& v : *include) {
      if (v == "message.output_text.logprobs") r.logprobs = static_cast<int32_t>(top.value_or(0));
      else if (v != "reasoning.encrypted_content")  // reasoning is sent in the clear
        f.fail("include", cat("include has ", describe(v), ", which is not offered; leave it out"));
    }
  std::optional<int64_t> calls;
  f.integer("max_tool_calls", calls, 1, INT32_MAX);  // of tools that the server runs: there are none
  json::object metadata;
  read_metadata(f, metadata);
  o.echoed["metadata"] = std::move(metadata);
  f.unsupported("prompt", "send the conversation as input, or previous_response_id");
  // Frontend::take_up() has read it; counting and describing only need to know it.
  if (f.find("conversation"))
    f.fail("conversation", "conversation: what is stored is not counted; send its items as input");
}

}  // namespace

Result<ResponsesRequest> parse_responses_request(const RequestBody& body, const ModelHandle& model,
                                                 const ApiLimits& limits) {
  ResponsesRequest out;
  out.request = request_for(model);
  GenerationRequest& r = out.request;
  ResponsesOptions& o = out.options;
  Fields f(body);
  Conversation& c = r.conversation.emplace();
  r.prompt_field = "input";
  r.add_special_tokens = false;  // the template writes them itself
  f.string("model", r.model, kMaxItemName);
  f.boolean("stream", r.streaming.stream);
  read_telemetry(f, r);
  if (const json::object* options = f.object("stream_options")) {
    Fields s(*options, "stream_options.");
    s.refuse_rest();
    if (!s.ok()) f.fail(s.status().param(), s.status().message());
  }
  read_params(f, model.engine->request_limits(), limits, r);
  f.integer("max_output_tokens", r.max_tokens, 1, int64_t{1} << 31);
  if (r.n != 1) f.fail("n", cat("n is ", r.n, "; a response is one answer: leave it out"));
  f.boolean("store", o.store);
  f.boolean("enable_response_messages", o.raw_messages);
  f.string("previous_response_id", o.previous_id, kMaxItemName);
  if (!o.previous_id.empty() && !o.previous_id.starts_with("resp_"))
    f.fail("previous_response_id", cat("previous_response_id is ", describe(json::value(o.previous_id)),
                                       "; ids of responses begin with resp_"));
  f.string("instructions", o.instructions, SIZE_MAX);
  if (!o.instructions.empty()) {
    c.messages.push_back({"system", o.instructions, {}});
    o.instruction_count = 1;
  }
  read_flat_tools(f, c.reply, o.echoed);
  read_text_options(f, r.constraint, o.echoed);
  read_effort(f, c, o.echoed);
  read_modes(f, model.engine->request_limits(), r, o);
  if (f.ok()) read_input(f, c);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  OAR_RETURN_IF_ERROR(check_conversation(c, limits, "input"));
  o.echoed["temperature"] = r.sampling.temperature;
  o.echoed["top_p"] = r.sampling.top_p;
  if (r.max_tokens) o.echoed["max_output_tokens"] = *r.max_tokens;
  else o.echoed["max_output_tokens"] = nullptr;
  return out;
}

Status check_input_items(const json::array& items, const std::string& path) {
  std::vector<ChatMessage> messages;
  ItemReader reader(messages);
  for (size_t i = 0; i < items.size(); ++i)
    OAR_RETURN_IF_ERROR(reader.read(items[i], cat(path, "[", i, "]")));
  return ok_status();
}

json::array listed_input(const json::value& input, std::string_view response) {
  json::array items;
  if (const json::array* given = input.if_array()) items = *given;
  else items.push_back(json::object{{"role", "user"}, {"content", input}});
  const std::string_view own = response.substr(response.find('_') + 1);
  for (size_t k = 0; k < items.size(); ++k) {
    json::object& item = items[k].as_object();
    if (!item.contains("type")) item["type"] = "message";
    if (!item.contains("id")) item["id"] = json::string(cat("in_", own, "_", k));
    if (!item.contains("status")) item["status"] = "completed";
    json::value* const content = item.if_contains("content");
    if (item.at("type") != "message" || content == nullptr || !content->is_string()) continue;
    const json::value* const role = item.if_contains("role");
    const bool ours = role != nullptr && *role == "assistant";
    *content = json::array{json::object{{"type", ours ? "output_text" : "input_text"}, {"text", *content}}};
  }
  return items;
}

}  // namespace oar::api
