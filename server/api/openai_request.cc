#include "server/api/openai_request.h"

#include "engine/base/format.h"
#include "server/api/message_parts.h"
#include "server/api/metadata_field.h"
#include "server/api/tool_fields.h"

namespace oar::api {
namespace {

constexpr size_t kMaxModelName = 256;
constexpr size_t kNoLimit = SIZE_MAX;  // the body's size bounds it already

void read_streaming(Fields& f, StreamOptions& out) {
  f.boolean("stream", out.stream);
  const json::object* options = f.object("stream_options");
  if (!options) return;
  if (!out.stream) return f.fail("stream_options", "stream_options is only allowed when stream is true");
  read_stream_options(f, *options, out);
}

// What check_conversation() has no say in: that there is a content, and what it is made of.
Result<ChatMessage> read_message(const json::value& v, const std::string& path) {
  if (!v.is_object()) return invalid_argument(cat(path, " must be an object, got ", describe(v)), path);
  Fields f(v.get_object(), path + ".");
  ChatMessage message;
  f.string("role", message.role, 64);
  if (!f.ok()) return f.status();
  const json::value* content = f.find("content");
  if (!content) {
    const bool may_lack = message.role == "assistant" && (f.find("tool_calls") || f.find("function_call") ||
                                                          f.find("refusal") || f.find("reasoning_content"));
    if (!may_lack)
      return invalid_argument(cat(path, ".content is missing; give a string"), path + ".content");
  } else {
    OAR_ASSIGN(message.content, text_of_content(*content, path + ".content", {"text", "refusal"}));
  }
  for (const auto& member : v.get_object())
    if (member.key() != "role" && member.key() != "content") message.other[member.key()] = member.value();
  return message;
}

void read_messages(Fields& f, const ApiLimits& limits, Conversation& out) {
  f.require("messages", "send a list of messages");
  const json::array* list = f.array("messages");
  if (!list) return;
  out.messages.reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    Result<ChatMessage> message = read_message((*list)[i], cat("messages[", i, "]"));
    if (!message.ok()) return f.fail(message.status().param(), message.status().message());
    out.messages.push_back(std::move(*message));
  }
  if (const Status s = check_conversation(out, limits, "messages"); !s.ok()) f.fail(s.param(), s.message());
}

// chat_template_kwargs reach the template as variables, so they must not replace what the server itself
// passes.
void read_template_kwargs(Fields& f, json::object& out) {
  const json::object* kwargs = f.object("chat_template_kwargs");
  std::string effort;
  f.string("reasoning_effort", effort, 64);
  if (!effort.empty()) out["reasoning_effort"] = effort;  // what reads it is a template
  if (!kwargs) return;
  for (const char* name : {"messages", "tools", "documents", "bos_token", "eos_token",
                           "add_generation_prompt", "continue_final_message", "chat_template"}) {
    if (kwargs->contains(name)) {
      return f.fail("chat_template_kwargs", cat("chat_template_kwargs may not set ", name));
    }
  }
  for (const auto& entry : *kwargs) out[entry.key()] = entry.value();
}

void read_tools(Fields& f, Conversation& c) {
  bool parallel = true;
  f.boolean("parallel_tool_calls", parallel);
  const json::value *tools = f.find("tools"), *choice = f.find("tool_choice");
  Result<tools::ToolRequest> request = tools::read_tool_request(tools, choice, parallel);
  if (!request.ok()) return f.fail(request.status().param(), request.status().message());
  c.reply.tools = std::move(*request);
}

// vLLM's, SGLang's and llama.cpp's ways to say what becomes of the model's reasoning.
void read_reasoning(Fields& f, const ModelHandle& model, ReplyRequest& r) {
  // vLLM's name, then those of others. -1: no bound.
  for (const char* name : {"thinking_token_budget", "thinking_budget", "thinking_budget_tokens",
                           "reasoning_budget", "reasoning_budget_tokens"}) {
    int64_t budget = -1;
    f.integer(name, budget, -1, INT32_MAX);
    if (budget < 0) continue;
    r.thinking_budget = budget;
    r.thinking_field = name;
    require_reasoning_style(f, name, model);
  }
  ReasoningOptions& out = r.reasoning;
  f.boolean("include_reasoning", out.include);
  if (!out.include) require_reasoning_style(f, "include_reasoning", model);
  f.boolean("separate_reasoning", out.separate);
  std::string format;
  f.string("reasoning_format", format, 64);
  if (format == "none") out.separate = false;
  else if (!format.empty() && format != "auto" && format != "deepseek")
    f.fail("reasoning_format", cat("reasoning_format is ", describe(json::value(format)),
                                   "; use auto, deepseek (apart from the answer) or none (in it)"));
}

Result<Prompt> read_token_prompt(const json::array& ids, const std::string& path, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  tokens.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const json::value& v = ids[i];
    if (!v.is_int64() || v.get_int64() < 0 || v.get_int64() >= vocab_size) {
      return token_error(path, i, vocab_size, describe(v));
    }
    tokens.push_back(static_cast<int32_t>(v.get_int64()));
  }
  if (tokens.empty()) return no_tokens_error(path);
  return Prompt(std::move(tokens));
}

// How many alternatives are to be told of a token; -1, which is vLLM's: all there are.
void read_alternatives(Fields& f, const char* name, const RequestLimits& engine,
                       std::optional<int64_t>& count) {
  f.integer(name, count, -1, engine.max_logprobs);
  if (!f.ok() || count != -1) return;
  count = engine.vocab_size;
  if (engine.max_logprobs < engine.vocab_size)
    f.fail(name, cat(name, " is -1, all tokens, of which the model has ", engine.vocab_size,
                     "; this server tells at most ", engine.max_logprobs, " (oar serve --max-logprobs)"));
}

// vLLM's own, beside what `echo` with `logprobs` reports.
void read_prompt_logprobs(Fields& f, const RequestLimits& engine, GenerationRequest& r) {
  std::optional<int64_t> count;
  read_alternatives(f, "prompt_logprobs", engine, count);
  if (!count) return;
  if (r.streaming.stream)
    return f.fail("prompt_logprobs", "prompt_logprobs come with the whole answer; leave stream out");
  r.prompt_logprobs = std::max(static_cast<int32_t>(*count), r.prompt_logprobs.value_or(0));
  r.list_prompt_logprobs = static_cast<int32_t>(*count);
}

// vLLM's: the tokens whose log-probabilities are wanted, in the place of the likeliest. Behind `logprobs`.
void read_logprob_tokens(Fields& f, const RequestLimits& engine, GenerationRequest& r) {
  std::vector<int32_t>& tokens = r.sampling.logprob_tokens;
  f.integers("logprob_token_ids", tokens, engine.max_logprob_tokens, 0, engine.vocab_size - 1);
  if (tokens.empty()) return;
  if (!r.logprobs) f.fail("logprob_token_ids", "logprob_token_ids needs logprobs");
  if (r.best_of > r.n)
    f.fail("logprob_token_ids", "logprob_token_ids does not go with best_of; leave one out");
  r.logprobs = 0;
}

// vLLM's, of chats and completions.
void read_token_ids(Fields& f, GenerationRequest& r) {
  f.boolean("return_token_ids", r.token_ids);
  f.boolean("return_tokens_as_token_ids", r.names_ids);
  std::string side = "left";
  f.string("truncation_side", side, 64);
  if (side != "left" && side != "right")
    f.fail("truncation_side", cat("truncation_side is ", describe(json::value(side)),
                                  "; use left (the last tokens are kept) or right (the first)"));
  r.truncate_end = side == "right";
}

// vLLM's, of routers in front of servers for prompts and others for answers: the tokens that the first made
// of the messages. They are the prompt, and no template is rendered. Caches are not exchanged.
void read_transferred_prompt(Fields& f, const RequestLimits& engine, GenerationRequest& r) {
  const json::object* given = f.object("kv_transfer_params");
  if (!given) return;
  const std::string path = "kv_transfer_params.prompt_token_ids";
  for (const auto& member : *given)
    if (member.key() != "prompt_token_ids" && !member.value().is_null())
      return f.fail("kv_transfer_params", cat("kv_transfer_params.", std::string_view(member.key()),
                                              " is not supported: caches are "
                                              "not exchanged between servers; send prompt_token_ids alone"));
  const json::value* ids = given->if_contains("prompt_token_ids");
  if (!ids || ids->is_null()) return;
  if (!ids->is_array())
    return f.fail("kv_transfer_params", cat(path, " must be an array of token ids, got ", describe(*ids)));
  Result<Prompt> prompt = read_token_prompt(ids->get_array(), path, engine.vocab_size);
  if (!prompt.ok()) return f.fail("kv_transfer_params", prompt.status().message());
  r.prompts.push_back(std::move(*prompt));
}

// Everything but refuse_rest(); a fault is in `f`.
void read_chat(Fields& f, const ModelHandle& model, const ApiLimits& limits, GenerationRequest& r) {
  const RequestLimits& engine = model.engine->request_limits();
  Conversation& c = r.conversation.emplace();
  r.prompt_field = "messages";
  r.add_special_tokens = false;  // the template writes them itself
  f.string("model", r.model, kMaxModelName);
  read_streaming(f, r.streaming);
  read_telemetry(f, r);
  read_params(f, engine, limits, r);
  bool logprobs = false;
  f.boolean("logprobs", logprobs);
  std::optional<int64_t> top;
  read_alternatives(f, "top_logprobs", engine, top);
  if (top.value_or(0) > 0 && !logprobs) f.fail("top_logprobs", "top_logprobs needs logprobs: true");
  if (logprobs) r.logprobs = static_cast<int32_t>(top.value_or(0));
  read_logprob_tokens(f, engine, r);
  read_prompt_logprobs(f, engine, r);
  f.boolean("echo", r.echo);
  f.boolean("verbose", r.verbose);
  f.boolean("request_metrics", r.metrics);
  read_token_ids(f, r);
  f.boolean("add_generation_prompt", c.add_generation_prompt);
  f.boolean("continue_final_message", c.continue_final_message);
  if (c.continue_final_message && f.find("add_generation_prompt") && c.add_generation_prompt)
    f.fail("continue_final_message", "continue_final_message and add_generation_prompt exclude each other");
  f.boolean("add_special_tokens", r.add_special_tokens);
  read_template_kwargs(f, c.template_kwargs);
  read_tools(f, c);
  read_reasoning(f, model, c.reply);
  f.boolean("prefill_assistant", r.prefills);
  f.boolean("store", r.store);
  if (r.store) read_metadata(f, r.metadata);
  else (void)f.find("metadata");  // labels nothing
  read_messages(f, limits, c);
  read_transferred_prompt(f, engine, r);
  if (!r.prompts.empty() && r.echo)
    f.fail("echo",
           "echo repeats the last message, and kv_transfer_params has another prompt; leave echo out");
  const auto is_answer = [](const ChatMessage& m) { return m.role == "assistant"; };
  if (!f.ok() || !r.prefills || f.find("continue_final_message") || f.find("add_generation_prompt") ||
      !is_answer(c.messages.back()) || c.messages.back().other.contains("tool_calls"))
    return;
  if (c.messages.size() > 1 && is_answer(c.messages[c.messages.size() - 2]))
    return f.fail("messages",
                  "messages ends with two messages of the assistant; with prefill_assistant the last one is "
                  "the beginning of the answer, so send one");
  c.continue_final_message = true;
}

}  // namespace

Result<std::vector<Prompt>> read_prompts(const json::value* v, int64_t vocab_size, size_t max_prompts) {
  std::vector<Prompt> prompts;
  if (v->is_string()) {
    prompts.emplace_back(std::string(v->get_string()));
    return prompts;
  }
  if (!v->is_array()) {
    return invalid_argument(
        cat("prompt must be a string, an array of strings or token ids, or an array of those, got ",
            describe(*v)),
        "prompt");
  }
  const json::array& list = v->get_array();
  if (list.empty()) return invalid_argument("prompt is an empty array; send at least one prompt", "prompt");
  if (list[0].is_number()) {
    OAR_ASSIGN(Prompt tokens, read_token_prompt(list, "prompt", vocab_size));
    prompts.push_back(std::move(tokens));
    return prompts;
  }
  if (list.size() > max_prompts) {
    return invalid_argument(
        cat("prompt has ", list.size(), " elements; at most ", max_prompts, " are accepted"), "prompt");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = cat("prompt[", i, "]");
    if (list[i].kind() != list[0].kind() || !(list[i].is_string() || list[i].is_array())) {
      return invalid_argument(
          cat(path, " must be ", list[0].is_array() ? "an array of token ids" : "a string",
              " like the first element, got ", describe(list[i])),
          path);
    }
    if (list[i].is_string()) {
      prompts.emplace_back(std::string(list[i].get_string()));
    } else {
      OAR_ASSIGN(Prompt tokens, read_token_prompt(list[i].get_array(), path, vocab_size));
      prompts.push_back(std::move(tokens));
    }
  }
  return prompts;
}

Result<json::object> parse_body(std::string_view body) {
  if (body.empty()) return invalid_argument("the request body is empty; send a JSON object");
  OAR_ASSIGN(json::value v, parse_json(body, "request body", {.max_depth = 100}));
  if (!v.is_object())
    return invalid_argument(cat("the request body must be a JSON object, got ", describe(v)));
  return std::move(v.get_object());
}

Result<std::string> parse_model_field(const RequestBody& body) {
  Fields f(body);
  std::string model;
  f.string("model", model, kMaxModelName);
  if (!f.ok()) return f.status();
  return model;
}

namespace {

// Where the string ends that begins behind the quote at `open`: at its other quote. npos: nowhere.
size_t string_end(std::string_view text, size_t open) {
  for (size_t at = text.find('"', open + 1); at != std::string_view::npos; at = text.find('"', at + 1)) {
    size_t escapes = 0;
    while (text[at - 1 - escapes] == '\\') ++escapes;
    if (escapes % 2 == 0) return at;
  }
  return std::string_view::npos;
}

}  // namespace

std::optional<std::string_view> find_model_field(std::string_view body) {
  constexpr const char* kSpace = " \t\r\n";
  int depth = 0;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c != '"') continue;
    const size_t end = string_end(body, i);
    if (end == std::string_view::npos) return std::nullopt;
    const bool is_model = depth == 1 && body.substr(i + 1, end - i - 1) == "model";
    i = end;
    if (!is_model) continue;
    const size_t colon = body.find_first_not_of(kSpace, end + 1);
    if (colon == std::string_view::npos || body[colon] != ':') continue;  // the value of another field
    const size_t value = body.find_first_not_of(kSpace, colon + 1);
    if (value == std::string_view::npos || body[value] != '"') return std::nullopt;
    const size_t last = string_end(body, value);
    if (last == std::string_view::npos) return std::nullopt;
    const std::string_view name = body.substr(value + 1, last - value - 1);
    return name.find('\\') == std::string_view::npos ? std::optional(name) : std::nullopt;
  }
  return std::nullopt;
}

Result<GenerationRequest> parse_chat_request(const RequestBody& body, const ModelHandle& model,
                                             const ApiLimits& limits) {
  GenerationRequest r = request_for(model);
  Fields f(body);
  read_chat(f, model, limits, r);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return r;
}

Result<GenerationRequest> parse_completion_request(const RequestBody& body, const ModelHandle& model,
                                                   const ApiLimits& limits) {
  GenerationRequest r = request_for(model);
  if (r.default_max_tokens == 0) r.default_max_tokens = kCompletionMaxTokens;
  const RequestLimits& engine = model.engine->request_limits();
  Fields f(body);
  f.string("model", r.model, kMaxModelName);
  read_streaming(f, r.streaming);
  read_telemetry(f, r);
  f.boolean("echo", r.echo);
  f.boolean("verbose", r.verbose);
  f.boolean("request_metrics", r.metrics);
  read_token_ids(f, r);
  read_params(f, engine, limits, r);
  if (const json::value* logprobs = f.find("logprobs"); logprobs && logprobs->is_bool()) {
    if (logprobs->get_bool())
      f.fail("logprobs", "logprobs must be an integer here: how many alternatives to report, for instance 0");
  } else {
    std::optional<int64_t> count;
    read_alternatives(f, "logprobs", engine, count);
    if (count) r.logprobs = static_cast<int32_t>(*count);
  }
  if (r.echo) r.prompt_logprobs = r.logprobs;
  f.boolean("add_special_tokens", r.add_special_tokens);
  f.integer("best_of", r.best_of, 1, engine.max_n);
  if (r.best_of > 0 && r.best_of < r.n)
    f.fail("best_of", cat("best_of is ", r.best_of, ", less than n (", r.n, "); give at least n"));
  if (r.best_of > r.n && r.streaming.stream)
    f.fail("best_of", "best_of: the best are known when all have ended; leave stream out");
  f.string("suffix", r.suffix, kNoLimit);
  read_logprob_tokens(f, engine, r);
  read_prompt_logprobs(f, engine, r);
  if (r.echo && !r.suffix.empty()) f.fail("echo", "echo and suffix exclude each other");
  if (r.echo && r.truncate_to)
    f.fail("echo",
           "echo repeats the whole prompt, and truncate_prompt_tokens cuts it; leave one of them out");
  const json::value* prompt = f.find("prompt");
  f.require("prompt", "send a text, token ids, or a list of either");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  OAR_ASSIGN(r.prompts, read_prompts(prompt, engine.vocab_size, limits.max_prompts));
  if (!r.suffix.empty() && std::holds_alternative<std::vector<int32_t>>(r.prompts[0]))
    return invalid_argument("suffix wants a prompt of text, and prompt has token ids", "prompt");
  OAR_RETURN_IF_ERROR(check_choices(r, limits, r.best_of > r.n ? "best_of" : "n"));
  return r;
}

Result<TokenizeRequest> parse_tokenize_request(const RequestBody& body, const ModelHandle& model,
                                               const ApiLimits& limits) {
  TokenizeRequest r;
  Fields f(body);
  f.boolean("return_token_strs", r.return_token_strs);
  // llama.cpp's words: no special tokens are added unless it says so.
  std::string content;
  bool add_special = false, parse_special = true;
  f.string("content", content, kNoLimit);
  f.boolean("add_special", add_special);
  f.boolean("parse_special", parse_special);
  f.boolean("with_pieces", r.with_pieces);
  r.llama = f.find("content") != nullptr;
  for (const char* name : {"add_special", "parse_special", "with_pieces"})
    if (!r.llama && f.find(name)) f.fail(name, cat(name, " goes with content; leave it out"));
  if (!parse_special)
    f.fail("parse_special", "parse_special false is not offered: the text of a control token is that token");
  if (r.llama) {
    f.string("model", r.prompt.model, kMaxModelName);
    r.prompt.prompt_field = "content";
    r.prompt.add_special_tokens = add_special;
    r.prompt.prompts.emplace_back(std::move(content));
  } else if (f.find("messages")) {
    read_chat(f, model, limits, r.prompt);
  } else {
    f.string("model", r.prompt.model, kMaxModelName);
    f.boolean("add_special_tokens", r.prompt.add_special_tokens);
    if (!f.find("prompt")) f.fail("prompt", "prompt is missing; send prompt (a string) or messages");
    std::string text;
    f.string("prompt", text, kNoLimit);
    r.prompt.prompts.emplace_back(std::move(text));
  }
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return r;
}

Result<DetokenizeRequest> parse_detokenize_request(const RequestBody& body, const ModelHandle& model) {
  DetokenizeRequest r;
  Fields f(body);
  f.string("model", r.model, kMaxModelName);
  f.boolean("skip_special_tokens", r.skip_special_tokens);
  f.require("tokens", "send an array of token ids");
  f.integers("tokens", r.tokens, kNoLimit, 0, model.engine->request_limits().vocab_size - 1);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return r;
}

}  // namespace oar::api
