#include "server/api/frontend.h"

#include <algorithm>
#include <random>

#include "engine/base/format.h"
#include "server/api/text_tools.h"

namespace oar::api {
namespace {

constexpr int64_t kCompletionMaxTokens = 16;  // the legacy completions default, and Triton's

}  // namespace

std::string make_id(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}() ^ (uint64_t{std::random_device{}()} << 32)};
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id = prefix;
  for (int word = 0; word < 2; ++word) {
    uint64_t bits = random();
    for (int i = 0; i < 16; ++i, bits >>= 4) id += kHex[bits & 15];
  }
  return id;
}

Frontend::Frontend(std::vector<ModelHandle> models, std::vector<GenerationObserver*> observers,
                   ApiLimits limits)
    : models_(std::move(models)), observers_(std::move(observers)), limits_(limits) {}

Result<const ModelHandle*> Frontend::find(std::string_view name) const {
  if (name.empty() && !models_.empty()) return &models_.front();
  std::string served;
  for (const ModelHandle& m : models_) {
    if (m.name == name) return &m;
    served += (served.empty() ? "" : ", ") + m.name;
  }
  return Status(
      StatusCode::kNotFound,
      cat("the model ", describe(json::value(json::string_view(name.data(), name.size()))),
          " is not served here; ", served.empty() ? "there is no language model" : cat("there is: ", served)),
      "model");
}

Result<const ModelHandle*> Frontend::find_in(const json::object& body) const {
  OAR_ASSIGN(const std::string name, parse_model_field(body));
  return find(name);
}

bool Frontend::ready() const {
  return accepting_ &&
         std::all_of(models_.begin(), models_.end(), [](const ModelHandle& m) { return ready(m); });
}

Result<GenerationSpec> Frontend::make_spec(const ModelHandle& model,
                                           std::vector<std::vector<int32_t>> prompts, GenerationParams params,
                                           const RequestContext& context, const char* id_prefix,
                                           const std::string& param, int64_t default_max_tokens) const {
  if (!accepting_) return unavailable("the server is shutting down; send the request to another one");
  const int64_t context_size = model.engine->request_limits().max_context;
  int64_t longest = 0;
  for (const auto& p : prompts) {
    const auto size = static_cast<int64_t>(p.size());
    if (size == 0) return invalid_argument("the prompt has no tokens; send at least one", param);
    if (size >= context_size) {
      return Status(StatusCode::kOutOfRange,
                    cat("the prompt has ", size, " tokens but the model's context holds ", context_size,
                        ", answer included; shorten the prompt"),
                    param);
    }
    longest = std::max(longest, size);
  }
  if (!params.max_tokens_given) {
    params.stop.max_tokens = default_max_tokens > 0 ? default_max_tokens : context_size - longest;
    params.stop.max_tokens = std::max(params.stop.max_tokens, params.stop.min_tokens);
  }
  GenerationSpec spec;
  spec.model = &model;
  spec.prompts = std::move(prompts);
  spec.id = make_id(id_prefix);
  spec.deadline = context.deadline;
  if (params.timeout_seconds) {
    const auto own = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(*params.timeout_seconds));
    spec.deadline = spec.deadline ? std::min(*spec.deadline, own) : own;
  }
  spec.params = std::move(params);
  const auto index = static_cast<size_t>(&model - models_.data());
  if (index < observers_.size()) spec.observer = observers_[index];
  return spec;
}

Result<Prepared> Frontend::prepare_chat(const json::object& body, const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandle* model, find_in(body));
  OAR_ASSIGN(ChatRequest r, parse_chat_request(body, *model, limits_));
  OAR_ASSIGN(const ChatPrompt prompt, render_chat(*model, r, limits_));
  Prepared out;
  out.answer.chat = true;
  out.answer.streaming = r.streaming;
  out.answer.echo = r.echo;
  if (r.echo) {
    const json::value& last = r.messages.back().at("content");
    out.answer.echoes.push_back({last.is_string() ? std::string(last.get_string()) : std::string()});
  }
  OAR_ASSIGN(std::vector<int32_t> tokens, tokenize(*model, prompt, r.add_special_tokens));
  std::vector<std::vector<int32_t>> prompts;
  prompts.push_back(std::move(tokens));
  OAR_ASSIGN(out.spec,
             make_spec(*model, std::move(prompts), std::move(r.params), context, "chatcmpl-", "messages", 0));
  return out;
}

Result<Prepared> Frontend::prepare_completion(const json::object& body, const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandle* model, find_in(body));
  OAR_ASSIGN(CompletionRequest r, parse_completion_request(body, *model, limits_));
  Prepared out;
  out.answer.streaming = r.streaming;
  out.answer.echo = r.echo;
  std::vector<std::vector<int32_t>> prompts;
  for (Prompt& prompt : r.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      OAR_ASSIGN(std::vector<int32_t> tokens, tokenize(*model, *text, r.add_special_tokens));
      prompts.push_back(std::move(tokens));
      if (r.echo)
        out.answer.echoes.push_back({*text, true, r.add_special_tokens && model->tokenizer->adds_bos()});
    } else {
      prompts.push_back(std::move(std::get<std::vector<int32_t>>(prompt)));
      const bool skip = r.params.text.skip_special_tokens;
      if (r.echo) out.answer.echoes.push_back({detokenize(*model, prompts.back(), skip), !skip});
    }
  }
  OAR_ASSIGN(out.spec, make_spec(*model, std::move(prompts), std::move(r.params), context, "cmpl-", "prompt",
                                 kCompletionMaxTokens));
  return out;
}

Result<GenerationSpec> Frontend::prepare_text(const ModelHandle& model, const std::string& text,
                                              const json::object& fields,
                                              const RequestContext& context) const {
  bool special = true;
  Fields f(fields);
  f.boolean("add_special_tokens", special);
  if (!f.ok()) return f.status();
  OAR_ASSIGN(std::vector<int32_t> tokens, tokenize(model, text, special));
  return prepare_fields(model, std::move(tokens), f, context, "text_input", kCompletionMaxTokens);
}

Result<GenerationSpec> Frontend::prepare_tokens(const ModelHandle& model, std::vector<int32_t> tokens,
                                                const json::object& fields, const RequestContext& context,
                                                const std::string& param, int64_t default_max_tokens) const {
  Fields f(fields);
  return prepare_fields(model, std::move(tokens), f, context, param, default_max_tokens);
}

Result<GenerationSpec> Frontend::prepare_fields(const ModelHandle& model, std::vector<int32_t> tokens,
                                                Fields& f, const RequestContext& context,
                                                const std::string& param, int64_t default_max_tokens) const {
  GenerationParams params = default_params(model.defaults);
  const RequestLimits& engine = model.engine->request_limits();
  read_params(f, engine, limits_, 1, params);
  if (const json::value* logprobs = f.find("logprobs")) {
    // true means the chosen tokens' own, a number also that many alternatives.
    if (logprobs->is_bool()) params.sampling.logprobs = logprobs->get_bool() ? 0 : -1;
    else f.integer("logprobs", params.sampling.logprobs, 0, engine.max_logprobs);
  }
  f.refuse_rest();
  if (!f.ok()) return f.status();
  std::vector<std::vector<int32_t>> prompts;
  prompts.push_back(std::move(tokens));
  return make_spec(model, std::move(prompts), std::move(params), context, "gen-", param, default_max_tokens);
}

Result<std::string> Frontend::tokenize_json(const json::object& body) const {
  OAR_ASSIGN(const ModelHandle* model, find_in(body));
  OAR_ASSIGN(TokenizeRequest r, parse_tokenize_request(body, *model, limits_));
  ChatPrompt prompt{std::move(r.prompt), {}};
  if (r.is_chat) { OAR_ASSIGN(prompt, render_chat(*model, r.chat, limits_)); }
  OAR_ASSIGN(const std::vector<int32_t> tokens, tokenize(*model, prompt, r.add_special_tokens));
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  w.key("count").number(static_cast<uint64_t>(tokens.size()));
  w.key("max_model_len").number(model->engine->request_limits().max_context);
  w.key("tokens").begin_array();
  for (const int32_t id : tokens) w.number(id);
  w.end_array();
  w.key("token_strs");
  if (r.return_token_strs) {
    w.begin_array();
    for (const int32_t id : tokens) w.string(token_bytes(*model, id));
    w.end_array();
  } else {
    w.null();
  }
  w.end_object();
  return out;
}

Result<std::string> Frontend::detokenize_json(const json::object& body) const {
  OAR_ASSIGN(const ModelHandle* model, find_in(body));
  OAR_ASSIGN(const DetokenizeRequest r, parse_detokenize_request(body, *model));
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("prompt").string(detokenize(*model, r.tokens, r.skip_special_tokens)).end_object();
  return out;
}

}  // namespace oar::api
