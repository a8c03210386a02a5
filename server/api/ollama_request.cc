#include "server/api/ollama_request.h"

#include "engine/base/format.h"
#include "server/api/tool_fields.h"

namespace oar::api {
namespace {

constexpr size_t kMaxName = 1024;
constexpr size_t kNoLimit = SIZE_MAX;  // the body's size bounds it already

void fail_as(Fields& f, const Status& s) { f.fail(s.param(), s.message()); }

// Models stay until they are unloaded, so a time to keep one has no effect. One of none, without anything to
// answer, would unload it.
void read_keep_alive(Fields& f, bool loads_only) {
  const json::value* v = f.find("keep_alive");
  if (!v) return;
  if (!v->is_number() && !v->is_string())
    return f.fail("keep_alive", cat("keep_alive must be seconds or a text like \"5m\", got ", describe(*v)));
  const bool none = v->is_number() ? v->to_number<double>() == 0 : *v == "0" || *v == "0s" || *v == "0m";
  if (none && loads_only)
    f.fail("keep_alive",
           "keep_alive 0 without a prompt unloads a model: POST to "
           "/v2/repository/models/{model}/unload instead");
}

void read_options(Fields& f, const ModelHandle& model, const ApiLimits& limits, GenerationRequest& r) {
  static const json::object kNone;
  const json::object* given = f.object("options");
  const RequestLimits& engine = model.engine->request_limits();
  Fields o(given ? *given : kNone, "options.");
  // -1 and -2: as many as the context holds.
  std::optional<int64_t> predict, context;
  o.integer("num_predict", predict, -2, INT32_MAX);
  if (predict == 0) o.fail("num_predict", "options.num_predict is 0; give how many tokens, or -1");
  if (predict && *predict > 0) r.max_tokens = predict;
  o.integer("num_ctx", context, 1, engine.max_context);  // the model's own holds as many
  read_params(o, engine, limits, r);
  if (r.sampling.seed == UINT64_MAX) r.sampling.seed.reset();  // -1: any will do
  if (r.n != 1) o.fail("n", cat("options.n is ", r.n, "; an answer is one text here: leave it out"));
  o.refuse_rest();
  if (!o.ok()) fail_as(f, o.status());
}

// "json" or a schema.
void read_format(Fields& f, grammar::ConstraintSpec& out) {
  using Kind = grammar::ConstraintSpec::Kind;
  const json::value* v = f.find("format");
  if (!v || *v == "") return;
  if (*v != "json" && !v->is_object())
    return f.fail("format", cat("format must be \"json\" or a JSON schema, got ", describe(*v)));
  if (out.kind != Kind::kNone)
    return f.fail("format",
                  cat("format and ", out.field, " exclude each other; a request has one constraint"));
  if (v->is_object()) out = {Kind::kJsonSchema, json::serialize(*v), {}, "format"};
  else out = {Kind::kJsonObject, {}, {}, "format"};
}

// true, false, or how much.
void read_think(Fields& f, const ModelHandle& model, Conversation& c) {
  const json::value* v = f.find("think");
  if (!v) return;
  if (!v->is_bool() && *v != "low" && *v != "medium" && *v != "high")
    return f.fail("think", cat("think must be true, false, low, medium or high, got ", describe(*v)));
  const bool on = !v->is_bool() || v->get_bool();
  if (on) require_reasoning_style(f, "think", model);
  if (v->is_string()) c.template_kwargs["reasoning_effort"] = *v;
  set_thinking(c, on);
  c.reply.reasoning.include = on;
}

void read_logprobs(Fields& f, const RequestLimits& engine, GenerationRequest& r) {
  bool logprobs = false;
  f.boolean("logprobs", logprobs);
  int32_t top = 0;
  f.integer("top_logprobs", top, 0, engine.max_logprobs);
  if (top > 0 && !logprobs) f.fail("top_logprobs", "top_logprobs needs logprobs: true");
  if (logprobs) r.logprobs = top;
}

Result<ChatMessage> read_message(const json::value& v, const std::string& path) {
  if (!v.is_object()) return invalid_argument(cat(path, " must be an object, got ", describe(v)), path);
  Fields m(v.get_object(), path + ".");
  ChatMessage out;
  m.string("role", out.role, 64);
  const bool calls = m.array("tool_calls") != nullptr;
  if (!calls || m.find("content")) m.string("content", out.content.emplace(), kNoLimit);
  std::string thinking, tool, id;
  m.string("thinking", thinking, kNoLimit);
  for (const char* name : {"name", "tool_name"}) m.string(name, tool, kMaxName);
  m.string("tool_call_id", id, kMaxName);
  m.refuse_rest();  // images, for instance
  if (!m.ok()) return m.status();
  if (calls) {
    json::array list = v.get_object().at("tool_calls").get_array();
    for (json::value& call : list)
      if (json::object* o = call.if_object(); o && !o->contains("type")) (*o)["type"] = "function";
    out.other["tool_calls"] = std::move(list);
  }
  if (!thinking.empty()) out.other["reasoning_content"] = thinking;
  if (!tool.empty()) out.other["name"] = tool;
  if (!id.empty()) out.other["tool_call_id"] = id;
  return out;
}

void read_messages(Fields& f, const ApiLimits& limits, Conversation& c) {
  const json::array* list = f.array("messages");
  if (!list) return;
  for (size_t i = 0; i < list->size(); ++i) {
    Result<ChatMessage> message = read_message((*list)[i], cat("messages[", i, "]"));
    if (!message.ok()) return fail_as(f, message.status());
    c.messages.push_back(std::move(*message));
  }
  if (c.messages.empty()) return;
  if (const Status s = check_conversation(c, limits, "messages"); !s.ok()) return fail_as(f, s);
  // An answer that is begun is continued.
  const ChatMessage& last = c.messages.back();
  c.continue_final_message =
      last.role == "assistant" && last.content && !last.content->empty() && last.other.empty();
}

void read_common(Fields& f, const ModelHandle& model, const ApiLimits& limits, GenerationRequest& r) {
  f.string("model", r.model, kMaxName);
  r.streaming.stream = true;
  f.boolean("stream", r.streaming.stream);
  read_options(f, model, limits, r);
  read_format(f, r.constraint);
  read_logprobs(f, model.engine->request_limits(), r);
}

// Both embedding requests; `plural`: texts in `input`, else one in `prompt`.
Result<EmbeddingRequest> parse_embed(const RequestBody& body, bool plural) {
  EmbeddingRequest out;
  Fields f(body);
  f.string("model", out.model, kMaxName);
  std::vector<std::string> texts;
  const char* field = plural ? "input" : "prompt";
  f.require(field, plural ? "send a text or a list of texts" : "send a text");
  bool truncate = true;
  if (plural) {
    f.strings("input", texts, kNoLimit, kNoLimit);
    f.boolean("truncate", truncate);
    f.integer("dimensions", out.dimensions, 1, 1 << 20);
  } else {
    f.string("prompt", texts.emplace_back(), kNoLimit);
  }
  read_keep_alive(f, false);
  if (const json::object* options = f.object("options")) {
    Fields o(*options, "options.");
    o.refuse_rest();
    if (!o.ok()) fail_as(f, o.status());
  }
  f.refuse_rest();
  if (!f.ok()) return f.status();
  if (truncate) out.truncate_to = INT64_MAX;
  for (std::string& text : texts) out.inputs.emplace_back(std::move(text));
  if (const Status s = check_inputs(out); !s.ok()) return invalid_argument(s.message(), field);
  return out;
}

}  // namespace

bool loads_only(const GenerationRequest& r) {
  return r.conversation ? r.conversation->messages.empty() : r.prompts.empty();
}

Result<GenerationRequest> parse_ollama_chat(const RequestBody& body, const ModelHandle& model,
                                            const ApiLimits& limits) {
  GenerationRequest r = request_for(model);
  Fields f(body);
  Conversation& c = r.conversation.emplace();
  r.prompt_field = "messages";
  r.add_special_tokens = false;  // the template writes them itself
  read_common(f, model, limits, r);
  read_think(f, model, c);
  Result<tools::ToolRequest> tools = tools::read_tool_request(f.find("tools"), nullptr, true);
  if (tools.ok()) c.reply.tools = std::move(*tools);
  else fail_as(f, tools.status());
  read_messages(f, limits, c);
  read_keep_alive(f, c.messages.empty());
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return r;
}

Result<GenerationRequest> parse_ollama_generate(const RequestBody& body, const ModelHandle& model,
                                                const ApiLimits& limits) {
  GenerationRequest r = request_for(model);
  Fields f(body);
  read_common(f, model, limits, r);
  bool raw = false;
  f.boolean("raw", raw);
  std::string prompt, system;
  f.string("prompt", prompt, kNoLimit);
  f.string("suffix", r.suffix, kNoLimit);
  f.string("system", system, kNoLimit);
  raw = raw || !r.suffix.empty() || (model.chat_template == nullptr && system.empty());
  if (raw && !system.empty())
    f.fail("system", "system has no place in a prompt that is taken as it is; leave out raw and suffix");
  Conversation c;
  read_think(f, model, c);
  if (raw && c.template_kwargs.if_contains("thinking") && c.reply.reasoning.include)
    f.fail("think", "think has no effect on a prompt that is taken as it is; leave it out");
  read_keep_alive(f, prompt.empty() && r.suffix.empty());
  f.refuse_rest();
  if (!f.ok()) return f.status();
  if (prompt.empty() && r.suffix.empty()) return r;
  if (raw) {
    r.prompts.emplace_back(std::move(prompt));
    return r;
  }
  if (!system.empty()) c.messages.push_back({"system", std::move(system), {}});
  c.messages.push_back({"user", std::move(prompt), {}});
  r.add_special_tokens = false;
  r.conversation = std::move(c);
  return r;
}

Result<EmbeddingRequest> parse_ollama_embed(const RequestBody& body) { return parse_embed(body, true); }
Result<EmbeddingRequest> parse_ollama_embeddings(const RequestBody& body) { return parse_embed(body, false); }

Result<OllamaShowRequest> parse_ollama_show(const RequestBody& body) {
  OllamaShowRequest out;
  Fields f(body);
  for (const char* name : {"name", "model"}) f.string(name, out.model, kMaxName);
  f.boolean("verbose", out.verbose);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return out;
}

}  // namespace oar::api
