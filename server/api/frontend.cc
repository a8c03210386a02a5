#include "server/api/frontend.h"

#include <algorithm>
#include <random>
#include <thread>

#include "engine/base/format.h"
#include "server/api/anthropic_answer.h"
#include "server/api/anthropic_request.h"
#include "server/api/decisions.h"
#include "server/api/label_scores.h"
#include "server/api/llama_answer.h"
#include "server/api/llama_request.h"
#include "server/api/ollama_answer.h"
#include "server/api/ollama_request.h"
#include "server/api/responses_answer.h"
#include "server/api/responses_request.h"
#include "server/api/stored_answer.h"
#include "server/api/stored_items.h"
#include "server/api/tensor_wire.h"
#include "server/api/text_tools.h"
#include "server/api/token_rules.h"

namespace oar::api {
std::string make_id(const char* prefix, const std::string& given) {
  if (!given.empty()) return prefix + given;
  thread_local std::mt19937_64 random{std::random_device{}() ^ (uint64_t{std::random_device{}()} << 32)};
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id = prefix;
  for (int word = 0; word < 2; ++word) {
    uint64_t bits = random();
    for (int i = 0; i < 16; ++i, bits >>= 4) id += kHex[bits & 15];
  }
  return id;
}

void Frontend::wait_for_model(std::string_view name, std::optional<Clock::time_point> deadline,
                              ModelKind kind) const {
  if (!catalog_.bring(name, kind)) return;
  while (catalog_.coming(name, kind)) {
    if (!accepting_ || (deadline && Clock::now() >= *deadline)) return;
    WorkerPool::give_way();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<TensorModelPtr> Frontend::find_encoder(std::string_view name,
                                              std::optional<Clock::time_point> deadline) const {
  wait_for_model(name, deadline, ModelKind::kEncoder);
  Result<TensorModelPtr> found = catalog_.find_encoder(name);
  if (found.status().code() != StatusCode::kUnavailable) return found;  // as in find_in()
  wait_for_model(name, deadline, ModelKind::kEncoder);
  return catalog_.find_encoder(name);
}

Result<ModelHandlePtr> Frontend::find_in(const json::object& body, const RequestContext* context) const {
  OAR_ASSIGN(const std::string name, parse_model_field(body));
  const std::optional<Clock::time_point> deadline = context ? context->deadline : std::nullopt;
  wait_for_model(name, deadline);
  Result<ModelHandlePtr> found = catalog_.find_language(name);
  // It may have fallen asleep meanwhile, or made room for another.
  if (found.status().code() != StatusCode::kUnavailable) return found;
  wait_for_model(name, deadline);
  return catalog_.find_language(name);
}

bool Frontend::ready() const {
  if (!announced_ || !accepting_ || catalog_.asleep()) return false;
  const std::vector<ServedModel> models = catalog_.loaded();
  return std::all_of(models.begin(), models.end(),
                     [](const ServedModel& m) { return !m.language || ready(*m.language); });
}

Result<AdmissionPtr> Frontend::admit(const RequestContext& context) const {
  if (!accepting_) return unavailable("the server is shutting down; send the request to another one");
  if (context.tenant == nullptr) return AdmissionPtr();
  return context.tenant->admit();
}

namespace {

// The last `keep` tokens, or the first; a BOS that the tokenizer wrote stays before them.
void truncate(std::vector<int32_t>& tokens, int64_t keep, bool bos, bool end) {
  const int64_t gone = std::ssize(tokens) - keep;
  if (gone <= 0) return;
  if (end) return tokens.resize(static_cast<size_t>(keep));
  const int64_t stay = bos && keep > 1 ? 1 : 0;
  tokens.erase(tokens.begin() + stay, tokens.begin() + stay + gone);
}

// allowed_token_ids and bad_words, on top of what the answer has to be. Tokens that end a text stay among
// those at which the engine stops only where they are allowed.
Status set_token_rules(const ModelHandle& model, GenerationRequest& request) {
  if (request.allowed_tokens.empty() && request.bad_words.empty()) return ok_status();
  TokenRules rules;
  rules.vocab_size = model.engine->request_limits().vocab_size;
  OAR_ASSIGN(rules.banned, banned_sequences(model, request.bad_words));
  for (const std::vector<int32_t>& banned : rules.banned) {
    const auto& ends = model.end_tokens;
    if (request.stop.ignore_eos || std::find(ends.begin(), ends.end(), banned.back()) == ends.end()) continue;
    return invalid_argument(cat("bad_words: ", in_quotes(token_bytes(model, banned.back())),
                                " ends a text and is no part of one; use ignore_eos or min_tokens"),
                            "bad_words");
  }
  rules.allowed = std::move(request.allowed_tokens);
  if (!rules.allowed.empty()) {
    const auto allowed = [&](int32_t token) {
      return std::find(rules.allowed.begin(), rules.allowed.end(), token) != rules.allowed.end();
    };
    auto& stops = request.stop.stop_token_ids;
    std::erase_if(stops, [&](int32_t token) { return !allowed(token); });
    if (!request.stop.ignore_eos)
      std::copy_if(model.end_tokens.begin(), model.end_tokens.end(), std::back_inserter(stops), allowed);
    request.stop.ignore_eos = true;
    rules.may_end = !stops.empty();
  }
  if (request.compiled == nullptr)
    request.compiled_field = rules.allowed.empty() ? "bad_words" : "allowed_token_ids";
  request.compiled = with_rules(std::move(request.compiled), std::move(rules));
  return ok_status();
}

// What the answer has to be, and for a conversation how it is taken apart.
Status set_reply(const ModelHandle& model, std::span<const int32_t> prompt, GenerationRequest& request) {
  if (request.conversation) {
    ReplyRequest& asked = request.conversation->reply;
    asked.answer = request.constraint;
    OAR_ASSIGN(ReplyPlan plan, plan_reply(model.reply_model(), asked, prompt));
    request.text.reply = std::move(plan.format);
    request.compiled = std::move(plan.constraint);
    request.compiled_field = std::move(plan.constraint_field);
    auto& stops = request.stop.stop_token_ids;
    stops.insert(stops.end(), plan.end_tokens.begin(), plan.end_tokens.end());
    return ok_status();
  }
  if (request.constraint.kind == grammar::ConstraintSpec::Kind::kNone) return ok_status();
  if (model.constraints == nullptr)
    return unimplemented(cat("the model \"", model.name, "\" takes no constraints"));
  OAR_ASSIGN(request.compiled, model.constraints->compile(request.constraint));
  request.compiled_field = request.constraint.field;
  return ok_status();
}

}  // namespace

Result<GenerationSpec> Frontend::let_in(ModelHandlePtr model, std::string id,
                                        const RequestContext& context) const {
  GenerationSpec spec;
  OAR_ASSIGN(spec.admission, admit(context));
  spec.trace = context.trace;
  spec.log = log_.get();
  spec.request.id = id.empty() ? make_id("gen-", context.id) : std::move(id);
  spec.model = std::move(model);
  Status full = spec.model->engine->check_room();
  if (full.ok()) return spec;
  Generation::refuse(std::move(spec), full.code());
  return full;
}

Status Frontend::refused(Status why, std::string_view model, const RequestContext& context) const {
  if (!log_) return why;
  RequestLine line;
  line.id = make_id("gen-", context.id);
  const Result<ModelHandlePtr> found = catalog_.find_language(model);
  line.model = found.ok() ? (*found)->name : std::string(model);
  line.key = context.owner();
  line.finish = "refused";
  line.status = why.code();
  log_->write(line);
  return why;
}

std::optional<Status> Frontend::refuse_early(const std::string& body, const RequestContext& context) const {
  constexpr size_t kQuicklyRead = 16 << 10;  // bytes
  if (body.size() > kQuicklyRead || !catalog_.crowded()) return std::nullopt;
  std::string name;
  if (const auto plain = find_model_field(body)) {
    name = *plain;
  } else {
    const Result<json::object> parsed = parse_body(body);
    if (!parsed.ok()) return std::nullopt;
    Result<std::string> field = parse_model_field(*parsed);
    if (!field.ok()) return std::nullopt;
    name = std::move(*field);
  }
  const Result<ModelHandlePtr> model = catalog_.find_language(name);
  if (!model.ok() || (*model)->engine->has_room()) return std::nullopt;
  const Result<GenerationSpec> spec = let_in(*model, {}, context);
  if (spec.ok()) return std::nullopt;
  return refused(spec.status(), name, context);
}

Result<GenerationSpec> Frontend::prepare(ModelHandlePtr model, GenerationRequest request,
                                         const RequestContext& context) const {
  // Before its prompts are rendered and tokenized, which would take from those that are served.
  OAR_ASSIGN(GenerationSpec spec, let_in(model, request.id, context));
  request.id = spec.request.id;
  request.deadline = context.deadline;
  if (request.timeout_seconds) {
    const auto own = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(*request.timeout_seconds));
    request.deadline = request.deadline ? std::min(*request.deadline, own) : own;
  }
  const std::string field(request.prompt_field);
  const int64_t context_size = model->engine->request_limits().max_context;
  const int64_t most = request.truncate_to ? std::numeric_limits<int64_t>::max() : context_size;
  OAR_ASSIGN(spec.prompts, prompt_tokens(*model, request, limits_,
                                         {most, request.deadline, context.gone, context.excess.get()}));
  if (request.truncate_to) {
    const int64_t room = std::max<int64_t>(1, context_size - request.max_tokens.value_or(1));
    const int64_t keep = *request.truncate_to < 0 ? room : *request.truncate_to;
    const bool bos = request.add_special_tokens && model->tokenizer->adds_bos();
    for (size_t k = 0; k < spec.prompts.size(); ++k) {
      const bool text = request.prompts.empty() || std::holds_alternative<std::string>(request.prompts[k]);
      truncate(spec.prompts[k], keep, bos && text, request.truncate_end);
    }
  }
  int64_t longest = 0;
  for (const auto& p : spec.prompts) {
    const auto size = static_cast<int64_t>(p.size());
    if (size == 0) return invalid_argument("the prompt has no tokens; send at least one", field);
    if (size >= context_size) {
      if (context.excess) *context.excess = {size, context_size};
      return Status(StatusCode::kOutOfRange,
                    cat("the prompt of ", size, " tokens is longer than the model's context length of ",
                        context_size, " allows, answer included; shorten the prompt"),
                    field);
    }
    longest = std::max(longest, size);
  }
  if (request.max_tokens) {
    request.stop.max_tokens = *request.max_tokens;
  } else {
    const int64_t usual = request.default_max_tokens;
    request.stop.max_tokens = std::max(usual > 0 ? usual : context_size - longest, request.stop.min_tokens);
  }
  request.caller = context.tenant ? context.tenant->name() : context.peer;
  if (context.tenant) request.weight = context.tenant->weight();
  if (context.background)
    request.priority = std::min(kMaxPriority, std::max(request.priority, 0) + kBackgroundPriority);
  OAR_RETURN_IF_ERROR(set_reply(*model, spec.prompts.front(), request));
  OAR_RETURN_IF_ERROR(set_token_rules(*model, request));
  request.conversation.reset();
  request.prompts.clear();
  spec.request = std::move(request);
  spec.running = &running_;
  return spec;
}

Result<GenerationSpec> Frontend::prepare_promised(ModelHandlePtr model, GenerationRequest request,
                                                  const RequestContext& context, const char* field) const {
  const std::optional<int64_t> asked = request.max_tokens;
  const int64_t context_size = model->engine->request_limits().max_context;
  OAR_ASSIGN(GenerationSpec spec, prepare(std::move(model), std::move(request), context));
  // These APIs promise room for all that is asked for; the other protocols end at the context.
  for (const std::vector<int32_t>& prompt : spec.prompts) {
    const int64_t room = context_size - std::ssize(prompt);
    if (!asked || *asked <= room) continue;
    return Status(
        StatusCode::kOutOfRange,
        cat(field, " is ", *asked, " and the prompt has ", prompt.size(),
            " tokens, but the model's context holds ", context_size, " in all; ask for at most ", room),
        field);
  }
  return spec;
}

Result<Prepared> Frontend::prepare_openai(ModelHandlePtr model, GenerationRequest request,
                                          AnswerOptions answer, const RequestContext& context) const {
  answer.streaming = request.streaming;
  answer.echo = request.echo;
  Prepared out;
  out.stream = request.streaming.stream;
  OAR_ASSIGN(out.spec, prepare_promised(std::move(model), std::move(request), context, "max_tokens"));
  out.answer = std::make_unique<OpenAiAnswer>(out.spec, std::move(answer));
  return out;
}

Result<Prepared> Frontend::prepare_chat(const json::object& body, const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  OAR_ASSIGN(GenerationRequest r, parse_chat_request(body, *model, limits_));
  AnswerOptions answer;
  answer.chat = true;
  answer.null_start = context.llama_chat;
  answer.named_call = r.conversation->reply.tools.named.has_value();
  if (r.echo) answer.echoes.push_back({r.conversation->messages.back().content.value_or("")});
  // Whoever knows the id of a chat that is stored may have it.
  r.id = make_id("chatcmpl-", r.store ? std::string() : context.id);
  if (!r.store) return prepare_openai(model, std::move(r), std::move(answer), context);
  StoredResponse kept;
  kept.input = listed_messages(body.at("messages").as_array(), r.id);
  AnswerOptions whole = answer;
  whole.echo = r.echo;
  const json::object metadata = std::move(r.metadata);
  OAR_ASSIGN(Prepared out, prepare_openai(model, std::move(r), std::move(answer), context));
  std::unique_ptr<AnswerWriter> collected;
  if (out.stream) collected = std::make_unique<OpenAiAnswer>(out.spec, std::move(whole));
  out.answer =
      std::make_unique<StoredAnswer>(std::move(out.answer), std::move(collected),
                                     [this, owner = context.owner(), id = out.spec.request.id, metadata,
                                      kept = std::move(kept)](const std::string& text) mutable {
                                       kept.body = labelled(text, metadata);
                                       chats_.put(owner, id, std::move(kept));
                                     });
  return out;
}

Result<Prepared> Frontend::prepare_completion(const json::object& body, const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  OAR_ASSIGN(GenerationRequest r, parse_completion_request(body, *model, limits_));
  AnswerOptions answer;
  if (r.echo) {
    for (const Prompt& prompt : r.prompts) {
      if (const auto* text = std::get_if<std::string>(&prompt)) {
        answer.echoes.push_back({*text, true, r.add_special_tokens && model->tokenizer->adds_bos()});
      } else {
        const bool skip = r.text.skip_special_tokens;
        answer.echoes.push_back({detokenize(*model, std::get<std::vector<int32_t>>(prompt), skip), !skip});
      }
    }
  }
  if (r.best_of > r.n) {
    answer.best = std::exchange(r.n, r.best_of);
    answer.hides_logprobs = !r.logprobs;
    if (!r.logprobs) r.logprobs = 0;
  }
  r.id = make_id("cmpl-", context.id);
  return prepare_openai(model, std::move(r), std::move(answer), context);
}

Result<Prepared> Frontend::prepare_label_scores(const json::object& body,
                                                const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  OAR_ASSIGN(LabelRequest r, parse_label_request(body, *model));
  r.request.id = make_id("score-", context.id);
  Prepared out;
  OAR_ASSIGN(out.spec, prepare_promised(model, std::move(r.request), context, "max_tokens"));
  out.answer = label_answer(out.spec, std::move(r.labels), r.softmax);
  return out;
}

Result<Prepared> Frontend::prepare_decisions(const json::object& body, const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  OAR_ASSIGN(DecisionRequest r, parse_decision_request(body, *model, limits_));
  r.request.id = make_id("decision-", context.id);
  OAR_RETURN_IF_ERROR(model->engine->check_room());  // else prompts are rendered for nothing
  const int64_t most = model->engine->request_limits().max_context;
  OAR_RETURN_IF_ERROR(write_decision_prompts(
      *model, limits_, {most, context.deadline, context.gone, context.excess.get()}, r));
  Prepared out;
  OAR_ASSIGN(out.spec, prepare(model, std::move(r.request), context));
  out.answer = decision_answer(out.spec, std::move(r.questions));
  return out;
}

Result<Prepared> Frontend::prepare_invocation(const json::object& body, const RequestContext& context) const {
  return body.contains("messages") ? prepare_chat(body, context) : prepare_completion(body, context);
}

Result<Prepared> Frontend::prepare_responses(const json::object& given, const RequestContext& context) const {
  json::object taken;
  std::string conversation;
  if (given.contains("conversation")) {
    taken = given;
    OAR_ASSIGN(conversation, take_up(taken, context));
  }
  const json::object& body = conversation.empty() ? given : taken;
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  OAR_ASSIGN(ResponsesRequest r, parse_responses_request(body, *model, limits_));
  const std::string owner = context.owner();
  std::vector<ChatMessage>& messages = r.request.conversation->messages;
  const auto behind_instructions =
      messages.begin() + static_cast<std::ptrdiff_t>(r.options.instruction_count);
  if (!r.options.previous_id.empty()) {
    Result<StoredResponse> earlier = responses_.find(owner, r.options.previous_id);
    if (!earlier.ok())
      return Status(
          StatusCode::kNotFound,
          cat("previous_response_id: ", earlier.status().message(), "; send the whole conversation as input"),
          "previous_response_id");
    messages.insert(behind_instructions, std::make_move_iterator(earlier->messages.begin()),
                    std::make_move_iterator(earlier->messages.end()));
    OAR_RETURN_IF_ERROR(check_conversation(*r.request.conversation, limits_, "input"));
  }
  // Whoever knows the id may go on with the conversation: it is nothing that a caller chooses.
  r.request.id = make_id("resp_");
  if (!conversation.empty())
    r.options.echoed["conversation"] = json::object{{"id", json::string(conversation)}};
  StoredResponse kept;
  if (r.options.store) {
    kept.messages.assign(messages.begin() + static_cast<std::ptrdiff_t>(r.options.instruction_count),
                         messages.end());
    kept.input = listed_input(body.at("input"), r.request.id);
  }
  Prepared out;
  out.stream = r.request.streaming.stream;
  OAR_ASSIGN(out.spec, prepare_promised(model, std::move(r.request), context, "max_output_tokens"));
  ResponseStore* store = r.options.store ? &responses_ : nullptr;
  const std::string id = out.spec.request.id;
  out.answer =
      std::make_unique<ResponsesAnswer>(out.spec, std::move(r.options), std::move(kept), store, owner);
  if (conversation.empty()) return out;
  json::array own;
  if (const json::value* input = given.if_contains("input"); input && !input->is_null())
    own = listed_input(*input, id);
  out.answer = std::make_unique<StoredAnswer>(std::move(out.answer), nullptr,
                                              grow(conversation, std::move(own), context));
  return out;
}

Result<Prepared> Frontend::prepare_messages(const json::object& body, const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  OAR_ASSIGN(GenerationRequest r, parse_messages_request(body, *model, limits_, false));
  r.id = make_id("msg_", context.id);
  Prepared out;
  out.stream = r.streaming.stream;
  OAR_ASSIGN(out.spec, prepare_promised(model, std::move(r), context, "max_tokens"));
  out.answer = std::make_unique<AnthropicAnswer>(out.spec);
  return out;
}

Result<Prepared> Frontend::prepare_ollama(ModelHandlePtr model, Result<GenerationRequest> request, bool chat,
                                          const RequestContext& context) const {
  if (!request.ok()) return request.status();
  Prepared out;
  if (loads_only(*request)) {
    out.done = OllamaAnswer::loaded(*model, chat);
    return out;
  }
  out.stream = request->streaming.stream;
  OAR_ASSIGN(out.spec, prepare(std::move(model), std::move(*request), context));
  out.answer = std::make_unique<OllamaAnswer>(out.spec, chat);
  return out;
}

Result<Prepared> Frontend::prepare_ollama_chat(const json::object& body,
                                               const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  return prepare_ollama(model, parse_ollama_chat(body, *model, limits_), true, context);
}

Result<Prepared> Frontend::prepare_ollama_generate(const json::object& body,
                                                   const RequestContext& context) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  return prepare_ollama(model, parse_ollama_generate(body, *model, limits_), false, context);
}

Result<std::string> Frontend::count_message_tokens(const json::object& body) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body));
  OAR_ASSIGN(const GenerationRequest r, parse_messages_request(body, *model, limits_, true));
  OAR_ASSIGN(const std::vector<std::vector<int32_t>> prompts, prompt_tokens(*model, r, limits_));
  return cat("{\"input_tokens\":", prompts.front().size(), "}");
}

namespace {

Result<std::string> counted_input(const ModelHandle& model, const GenerationRequest& request,
                                  const ApiLimits& limits) {
  OAR_ASSIGN(const std::vector<std::vector<int32_t>> prompts, prompt_tokens(model, request, limits));
  return cat(R"({"object":"response.input_tokens","input_tokens":)", prompts.front().size(), "}");
}

}  // namespace

Result<std::string> Frontend::count_chat_tokens(const json::object& body) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body));
  OAR_ASSIGN(const GenerationRequest r, parse_chat_request(body, *model, limits_));
  return counted_input(*model, r, limits_);
}

Result<std::string> Frontend::count_response_tokens(const json::object& body) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body));
  OAR_ASSIGN(const ResponsesRequest r, parse_responses_request(body, *model, limits_));
  if (!r.options.previous_id.empty())
    return invalid_argument("previous_response_id: earlier turns are not counted; send them as input",
                            "previous_response_id");
  return counted_input(*model, r.request, limits_);
}

Result<std::string> Frontend::tokenize_json(const json::object& body) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body));
  OAR_ASSIGN(const TokenizeRequest r, parse_tokenize_request(body, *model, limits_));
  OAR_ASSIGN(const std::vector<std::vector<int32_t>> prompts, prompt_tokens(*model, r.prompt, limits_));
  const std::vector<int32_t>& tokens = prompts.front();
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  if (r.llama) {
    w.key("tokens").begin_array();
    for (const int32_t id : tokens) {
      if (r.with_pieces)
        w.begin_object().key("id").number(id).key("piece").string(token_bytes(*model, id)).end_object();
      else w.number(id);
    }
    w.end_array().end_object();
    return out;
  }
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

Result<std::string> Frontend::apply_template_json(const json::object& body) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body));
  OAR_ASSIGN(const GenerationRequest r, parse_chat_request(body, *model, limits_));
  std::string text;
  if (r.prompts.empty()) {
    OAR_ASSIGN(text, conversation_text(*model, r, limits_));
  } else {
    text = detokenize(*model, std::get<std::vector<int32_t>>(r.prompts[0]), false);
  }
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("prompt").string(text).end_object();
  return out;
}

Result<Prepared> Frontend::prepare_llama(const json::object& body, const RequestContext& context,
                                         bool infill) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body, &context));
  OAR_ASSIGN(LlamaRequest r, parse_llama_request(body, *model, limits_, infill));
  Prepared out;
  out.stream = r.request.streaming.stream;
  OAR_ASSIGN(out.spec, prepare(model, std::move(r.request), context));
  out.answer = std::make_unique<LlamaAnswer>(out.spec, r.return_tokens, std::move(r.response_fields));
  return out;
}

Result<Prepared> Frontend::prepare_llama_completion(const json::object& body,
                                                    const RequestContext& context) const {
  return prepare_llama(body, context, false);
}

Result<Prepared> Frontend::prepare_llama_infill(const json::object& body,
                                                const RequestContext& context) const {
  return prepare_llama(body, context, true);
}

Result<std::string> Frontend::detokenize_json(const json::object& body) const {
  OAR_ASSIGN(const ModelHandlePtr model, find_in(body));
  OAR_ASSIGN(const DetokenizeRequest r, parse_detokenize_request(body, *model));
  std::string out;
  JsonWriter w(out);
  const std::string text = detokenize(*model, r.tokens, r.skip_special_tokens);
  w.begin_object().key("prompt").string(text).key("content").string(text).end_object();
  return out;
}

}  // namespace oar::api
