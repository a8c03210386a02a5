// oar.v1.Generation: messages become GenerationRequests, checked by the rules that all protocols share.
#include "server/grpc/generation_service.h"

#include "engine/base/format.h"
#include "server/api/text_tools.h"
#include "server/grpc/stream_writer.h"

namespace oar::grpc_api {

namespace {

using Generation = api::Generation;
using v1::GenerateChunk;
using v1::GenerateRequest;

// The field's path in GenerateRequest: one of its own, or one of its parts'.
std::string path_of(std::string_view name) {
  if (name == "include_stop_str_in_output") name = "include_stop_in_output";
  const std::string field(name);
  if (v1::SamplingParams::descriptor()->FindFieldByName(field)) return "sampling." + field;
  if (v1::StopParams::descriptor()->FindFieldByName(field)) return "stopping." + field;
  if (v1::Conversation::descriptor()->FindFieldByName(field)) return "conversation." + field;
  return field;
}

void read_sampling(const v1::SamplingParams& s, api::GenerationRequest& r) {
  if (s.has_temperature()) r.sampling.temperature = s.temperature();
  if (s.has_top_k()) r.sampling.top_k = s.top_k();
  if (s.has_top_p()) r.sampling.top_p = s.top_p();
  if (s.has_min_p()) r.sampling.min_p = s.min_p();
  if (s.has_repetition_penalty()) r.sampling.repetition_penalty = s.repetition_penalty();
  if (s.has_presence_penalty()) r.sampling.presence_penalty = s.presence_penalty();
  if (s.has_frequency_penalty()) r.sampling.frequency_penalty = s.frequency_penalty();
  if (s.has_seed()) r.sampling.seed = s.seed();
  r.sampling.logit_bias.assign(s.logit_bias().begin(), s.logit_bias().end());
  if (s.has_logprobs()) r.logprobs = s.logprobs();
}

void read_stopping(const v1::StopParams& s, api::GenerationRequest& r) {
  if (s.has_max_tokens()) r.max_tokens = s.max_tokens();
  r.stop.min_tokens = s.min_tokens();
  r.text.stop.assign(s.stop().begin(), s.stop().end());
  r.stop.stop_token_ids.assign(s.stop_token_ids().begin(), s.stop_token_ids().end());
  r.stop.ignore_eos = s.ignore_eos();
  r.text.include_stop_in_output = s.include_stop_in_output();
}

void read_constraint(const v1::Constraint& c, grammar::ConstraintSpec& out) {
  using Kind = grammar::ConstraintSpec::Kind;
  const auto set = [&](Kind kind, const char* name, const std::string& text) {
    out.kind = kind;
    out.field = cat("constraint.", name);
    out.text = text;
  };
  switch (c.kind_case()) {
    case v1::Constraint::kJsonObject:
      if (c.json_object()) set(Kind::kJsonObject, "json_object", {});
      break;
    case v1::Constraint::kJsonSchema: set(Kind::kJsonSchema, "json_schema", c.json_schema()); break;
    case v1::Constraint::kRegex: set(Kind::kRegex, "regex", c.regex()); break;
    case v1::Constraint::kGrammar: set(Kind::kGrammar, "grammar", c.grammar()); break;
    case v1::Constraint::kStructuralTag:
      set(Kind::kStructuralTag, "structural_tag", c.structural_tag());
      break;
    case v1::Constraint::kChoice:
      set(Kind::kChoice, "choice", {});
      out.choices.assign(c.choice().texts().begin(), c.choice().texts().end());
      break;
    case v1::Constraint::KIND_NOT_SET: break;
  }
}

api::ChatMessage read_message(const v1::Message& m) {
  api::ChatMessage out{m.role(), m.content(), {}};
  if (!m.name().empty()) out.other["name"] = m.name();
  if (!m.tool_call_id().empty()) out.other["tool_call_id"] = m.tool_call_id();
  if (!m.reasoning_content().empty()) out.other["reasoning_content"] = m.reasoning_content();
  if (m.tool_calls().empty()) return out;
  json::array calls;
  for (const v1::ToolCall& call : m.tool_calls()) {
    calls.push_back(
        json::object{{"id", call.id()},
                     {"type", "function"},
                     {"function", json::object{{"name", call.name()}, {"arguments", call.arguments()}}}});
  }
  out.other["tool_calls"] = std::move(calls);
  return out;
}

json::object function_named(const std::string& name) {
  return {{"type", "function"}, {"function", json::object{{"name", name}}}};
}

// In the terms that tools are checked in for every protocol: those of their definitions, which templates
// read.
Result<tools::ToolRequest> read_tools(const v1::Conversation& c) {
  json::array list;
  for (int i = 0; i < c.tools_size(); ++i) {
    const v1::Tool& tool = c.tools(i);
    json::object function{{"name", tool.name()}};
    if (!tool.description().empty()) function["description"] = tool.description();
    if (!tool.parameters().empty()) {
      const std::string path = cat("conversation.tools[", i, "].parameters");
      Result<json::value> schema = parse_json(tool.parameters(), path);
      if (!schema.ok()) return invalid_argument(schema.status().message(), path);
      function["parameters"] = std::move(*schema);
    }
    if (tool.strict()) function["strict"] = true;
    list.push_back(json::object{{"type", "function"}, {"function", std::move(function)}});
  }
  const v1::ToolChoice& choice = c.tool_choice();
  const char* mode = choice.mode() == v1::ToolChoice::REQUIRED ? "required"
                     : choice.mode() == v1::ToolChoice::NONE   ? "none"
                                                               : "auto";
  json::value asked = mode;
  if (!choice.name().empty()) {
    asked = function_named(choice.name());
  } else if (!choice.allowed().empty() && choice.mode() != v1::ToolChoice::NONE) {
    json::array allowed;
    for (const std::string& name : choice.allowed()) allowed.push_back(function_named(name));
    asked = json::object{{"type", "allowed_tools"}, {"mode", mode}, {"tools", std::move(allowed)}};
  }
  const json::value tools(std::move(list));
  return tools::read_tool_request(&tools, &asked, !c.has_parallel_tool_calls() || c.parallel_tool_calls());
}

// The oneof of a request or a tokenization.
template <class Message>
Status read_input(const Message& m, api::GenerationRequest& r) {
  if (m.has_conversation()) {
    api::Conversation& c = r.conversation.emplace();
    for (const v1::Message& message : m.conversation().messages())
      c.messages.push_back(read_message(message));
    OAR_ASSIGN(c.reply.tools, read_tools(m.conversation()));
    c.reply.reasoning.separate = !m.conversation().inline_reasoning();
    c.reply.thinking_field = "conversation.thinking_budget";
    if (m.conversation().has_thinking_budget()) {
      const int64_t budget = m.conversation().thinking_budget();
      if (budget < 0)
        return invalid_argument(
            cat(c.reply.thinking_field, " is ", budget, "; use 0 or more, or leave it out"),
            c.reply.thinking_field);
      c.reply.thinking_budget = budget;
    }
    c.continue_final_message = m.conversation().continue_final_message();
    r.add_special_tokens = false;  // the template writes them itself
    r.prompt_field = "conversation";
    return ok_status();
  }
  if constexpr (std::is_same_v<Message, GenerateRequest>) {
    if (m.has_tokens()) {
      r.prompts.emplace_back(std::vector<int32_t>(m.tokens().ids().begin(), m.tokens().ids().end()));
      r.prompt_field = "tokens.ids";
      return ok_status();
    }
  }
  if (m.input_case() == Message::INPUT_NOT_SET)
    return invalid_argument("the input is missing; set prompt, tokens or conversation", "prompt");
  if (m.has_add_special_tokens()) r.add_special_tokens = m.add_special_tokens();
  r.prompts.emplace_back(m.prompt());
  return ok_status();
}

Result<api::GenerationRequest> read_request(const GenerateRequest& m, const ModelHandle& model,
                                            const api::ApiLimits& limits) {
  api::GenerationRequest r = api::request_for(model);
  OAR_RETURN_IF_ERROR(read_input(m, r));
  read_sampling(m.sampling(), r);
  read_stopping(m.stopping(), r);
  read_constraint(m.constraint(), r.constraint);
  if (m.n() != 0) r.n = m.n();
  r.cache_salt = m.cache_salt();
  if (m.has_skip_special_tokens()) r.text.skip_special_tokens = m.skip_special_tokens();
  r.id = m.request_id().substr(0, 128);
  OAR_RETURN_IF_ERROR(api::check_request(model.engine->request_limits(), limits, path_of, r));
  return r;
}

// On a worker: a model that requests load is waited for.
Result<ModelHandlePtr> find_model(const Services& services, const std::string& name,
                                  std::optional<Clock::time_point> deadline = std::nullopt) {
  services.frontend->wait_for_model(name, deadline);
  return services.catalog->find_language(name);
}

class GenerateCall final : public StreamWriter<grpc::ServerWriteReactor<GenerateChunk>, GenerateChunk> {
 public:
  GenerateCall(const Services& services, StreamRegistry& registry, grpc::CallbackServerContext* context,
               const GenerateRequest& request)
      : StreamWriter(services, registry, context, "Generate"),
        request_(request),
        about_(context_of(services, *context)) {
    about_.gone = left_;
  }

 private:
  void started() override {
    if (const Status s = authorize(services_, *context()); !s.ok()) return end(to_grpc(s));
    services_.workers->post([self = shared()] {
      if (const Status s = self->run(); !s.ok()) self->end(to_grpc(s));
    });
  }
  Status run() {
    Result<api::GenerationSpec> spec = prepare();
    if (!spec.ok()) return services_.frontend->refused(spec.status(), request_.model(), about_);
    OAR_ASSIGN(auto generation,
               Generation::start(
                   std::move(*spec), services_.writers->executor(),
                   [self = shared()](Generation& g, int32_t, TextEvent&& event) { self->on_event(g, event); },
                   [self = shared()] { return !self->behind(); }));
    bool gone;
    {
      std::lock_guard lock(state_);
      gone = gone_;
      if (!gone) generation_ = generation;
    }
    if (gone) generation->cancel(api::caller_left());
    else generation->wake();  // on_drained() may have come before there was anybody to wake
    return ok_status();
  }
  Result<api::GenerationSpec> prepare() {
    OAR_RETURN_IF_ERROR(refuse_unknown_fields(request_));
    OAR_ASSIGN(const ModelHandlePtr model, find_model(services_, request_.model(), about_.deadline));
    OAR_ASSIGN(api::GenerationRequest request, read_request(request_, *model, services_.frontend->limits()));
    want_logprobs_ = request.logprobs.has_value();
    return services_.frontend->prepare(model, std::move(request), about_);
  }
  void on_drained() override {
    std::shared_ptr<Generation> generation;
    {
      std::lock_guard lock(state_);
      generation = generation_;
    }
    if (generation) generation->wake();
  }
  void on_event(Generation& generation, const TextEvent& event) {
    if (const Status failure = api::failure_of(event); !failure.ok()) {
      end(to_grpc(failure));
      return generation.cancel();
    }
    GenerateChunk chunk;
    chunk.set_request_id(generation.spec().request.id);
    chunk.set_index(event.index);
    chunk.set_text(event.text);
    chunk.set_reasoning(event.reasoning);
    for (const ToolCallDelta& call : event.calls) {
      v1::ToolCallDelta* delta = chunk.add_tool_calls();
      delta->set_index(call.index);
      delta->set_id(call.id);
      delta->set_name(call.name);
      delta->set_arguments(call.arguments);
    }
    for (const TextEvent::Token& t : event.tokens) {
      auto* token = chunk.add_tokens();
      token->set_id(t.id);
      if (!want_logprobs_) continue;
      token->set_logprob(t.logprob);
      for (const TokenLogprob& alternative : t.top) {
        auto* top = token->add_top();
        top->set_id(alternative.token);
        top->set_logprob(alternative.logprob);
      }
    }
    if (event.finish != FinishReason::kNone) set_finish(chunk, event);
    enqueue(std::move(chunk));
    if (generation.done()) end(grpc::Status::OK);
  }
  static void set_finish(GenerateChunk& chunk, const TextEvent& event) {
    chunk.set_finish_reason(event.finish != FinishReason::kStop ? v1::FINISH_REASON_LENGTH
                            : event.call_count > 0              ? v1::FINISH_REASON_TOOL_CALLS
                                                                : v1::FINISH_REASON_STOP);
    chunk.set_stop_match(event.stop_match);
    if (event.stop_token >= 0) chunk.set_stop_token(event.stop_token);
    auto* usage = chunk.mutable_usage();
    usage->set_prompt_tokens(event.stats.prompt_tokens);
    usage->set_cached_tokens(event.stats.cached_tokens);
    usage->set_accepted_prediction_tokens(event.stats.accepted_drafts);
    usage->set_rejected_prediction_tokens(event.stats.rejected_drafts);
    usage->set_completion_tokens(event.stats.completion_tokens);
    usage->set_reasoning_tokens(event.reasoning_tokens);
  }
  void on_gone() override {
    std::shared_ptr<Generation> generation;
    {
      std::lock_guard lock(state_);
      gone_ = true;
      generation.swap(generation_);
    }
    *left_ = true;
    if (generation) generation->cancel(api::caller_left());
  }
  std::shared_ptr<GenerateCall> shared() {
    return std::static_pointer_cast<GenerateCall>(shared_from_this());
  }

  const GenerateRequest request_;  // a copy: the call may end while it is being prepared
  const std::shared_ptr<std::atomic<bool>> left_ = std::make_shared<std::atomic<bool>>(false);
  api::RequestContext about_;
  bool want_logprobs_ = false;
  std::mutex state_;
  std::shared_ptr<Generation> generation_;
  bool gone_ = false;
};

// A unary call computed by a worker on copies of gRPC's messages' parts.
template <class Request, class Response>
class WorkerCall final : public grpc::ServerUnaryReactor {
 public:
  using Compute = Status (*)(const Services&, const Request&, Response&);
  WorkerCall(const Services& services, const char* method, const Request* request, Response* response,
             Compute compute)
      : timer_(services, method) {
    // Finish is called by the job alone, so gRPC keeps request and response until then, also for a cancelled
    // call.
    services.workers->post([this, &services, request, response, compute] {
      const Status s = refuse_unknown_fields(*request);
      finish(s.ok() ? compute(services, *request, *response) : s);
    });
  }
  WorkerCall(const Services& services, const char* method, const Status& refusal) : timer_(services, method) {
    finish(refusal);
  }

 private:
  void finish(const Status& status) {
    const grpc::Status s = to_grpc(status);
    timer_.done(s.error_code());
    Finish(s);
  }
  void OnDone() override { delete this; }
  CallTimer timer_;
};

Status tokenize(const Services& services, const v1::TokenizeRequest& request,
                v1::TokenizeResponse& response) {
  OAR_ASSIGN(const ModelHandlePtr model, find_model(services, request.model()));
  const RequestLimits& engine = model->engine->request_limits();
  const api::ApiLimits& limits = services.frontend->limits();
  api::GenerationRequest wanted;
  OAR_RETURN_IF_ERROR(read_input(request, wanted));
  OAR_RETURN_IF_ERROR(api::check_request(engine, limits, path_of, wanted));
  OAR_ASSIGN(const auto prompts, api::prompt_tokens(*model, wanted, limits));
  response.mutable_ids()->Add(prompts.front().begin(), prompts.front().end());
  response.set_max_context(engine.max_context);
  return ok_status();
}

Status detokenize(const Services& services, const v1::DetokenizeRequest& request,
                  v1::DetokenizeResponse& response) {
  OAR_ASSIGN(const ModelHandlePtr model, find_model(services, request.model()));
  const int64_t vocabulary = model->engine->request_limits().vocab_size;
  for (int i = 0; i < request.ids_size(); ++i) {
    if (request.ids(i) >= 0 && request.ids(i) < vocabulary) continue;
    return invalid_argument(
        cat("ids[", i, "] must be a token id in [0, ", vocabulary, "), got ", request.ids(i)), "ids");
  }
  response.set_text(
      api::detokenize(*model, {request.ids().begin(), request.ids().end()}, request.skip_special_tokens()));
  return ok_status();
}

template <class Request, class Response>
grpc::ServerUnaryReactor* on_worker(const Services& services, grpc::CallbackServerContext* context,
                                    const char* method, const Request* request, Response* response,
                                    Status (*compute)(const Services&, const Request&, Response&)) {
  using Call = WorkerCall<Request, Response>;  // deletes itself in OnDone
  if (const Status s = authorize(services, *context); !s.ok()) return new Call(services, method, s);
  return new Call(services, method, request, response, compute);
}

}  // namespace

grpc::ServerWriteReactor<GenerateChunk>* GenerationService::Generate(Context* context,
                                                                     const GenerateRequest* request) {
  auto call = std::make_shared<GenerateCall>(services_, registry_, context, *request);
  call->begin();
  return call.get();
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(Context* context, const v1::TokenizeRequest* request,
                                                      v1::TokenizeResponse* response) {
  return on_worker(services_, context, "Tokenize", request, response, &tokenize);
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(Context* context,
                                                        const v1::DetokenizeRequest* request,
                                                        v1::DetokenizeResponse* response) {
  return on_worker(services_, context, "Detokenize", request, response, &detokenize);
}

grpc::ServerUnaryReactor* GenerationService::ListModels(Context* context, const v1::ListModelsRequest*,
                                                        v1::ListModelsResponse* response) {
  return answer_now(services_, context, "ListModels", false, [&] {
    for (const api::ServedModel& served : services_.catalog->loaded()) {
      if (!served.language) continue;
      const ModelHandle& model = *served.language;
      const RequestLimits& limits = model.engine->request_limits();
      auto* m = response->add_models();
      m->set_name(model.name);
      m->set_architecture(model.info.architecture);
      m->set_max_context(limits.max_context);
      m->set_vocabulary(limits.vocab_size);
      m->set_parameters(model.info.parameters);
      m->set_ready(services_.frontend->accepting() && api::Frontend::ready(model));
    }
    return ok_status();
  });
}

}  // namespace oar::grpc_api
