// oar.v1.Generation: messages become the JSON fields every protocol shares, so that one validator serves them
// all.
#include "server/grpc/generation_service.h"

#include "engine/base/format.h"
#include "server/api/text_tools.h"
#include "server/grpc/stream_writer.h"

namespace oar::grpc_api {

namespace {

using Generation = api::Generation;
using v1::GenerateChunk;
using v1::GenerateRequest;

json::array to_json(const v1::Conversation& conversation) {
  json::array messages;
  for (const v1::Message& m : conversation.messages()) {
    messages.push_back(
        json::object{{"role", json::string(m.role())}, {"content", json::string(m.content())}});
  }
  return messages;
}

json::object to_fields(const GenerateRequest& r) {
  json::object f;
  const v1::SamplingParams& s = r.sampling();
  if (s.has_temperature()) f["temperature"] = s.temperature();
  if (s.has_top_k()) f["top_k"] = s.top_k();
  if (s.has_top_p()) f["top_p"] = s.top_p();
  if (s.has_min_p()) f["min_p"] = s.min_p();
  if (s.has_repetition_penalty()) f["repetition_penalty"] = s.repetition_penalty();
  if (s.has_presence_penalty()) f["presence_penalty"] = s.presence_penalty();
  if (s.has_frequency_penalty()) f["frequency_penalty"] = s.frequency_penalty();
  if (s.has_seed()) f["seed"] = static_cast<int64_t>(s.seed());  // read back modulo 2^64
  if (s.logit_bias_size() > 0) {
    json::object bias;
    for (const auto& [id, value] : s.logit_bias()) bias[cat(id)] = value;
    f["logit_bias"] = std::move(bias);
  }
  const v1::StopParams& stop = r.stopping();
  if (stop.has_max_tokens()) f["max_tokens"] = stop.max_tokens();
  f["min_tokens"] = stop.min_tokens();
  if (stop.stop_size() > 0) {
    json::array strings;
    for (const std::string& text : stop.stop()) strings.emplace_back(json::string(text));
    f["stop"] = std::move(strings);
  }
  if (stop.stop_token_ids_size() > 0) {
    json::array ids;
    for (const int32_t id : stop.stop_token_ids()) ids.emplace_back(id);
    f["stop_token_ids"] = std::move(ids);
  }
  f["ignore_eos"] = stop.ignore_eos();
  f["include_stop_str_in_output"] = stop.include_stop_in_output();
  if (r.n() != 0) f["n"] = r.n();
  if (!r.cache_salt().empty()) f["cache_salt"] = json::string(r.cache_salt());
  if (r.has_skip_special_tokens()) f["skip_special_tokens"] = r.skip_special_tokens();
  return f;
}

// The prompt's tokens of a request's or a tokenization's oneof, and the field they came from.
struct PromptTokens {
  std::vector<int32_t> ids;
  std::string param;
};

Result<PromptTokens> conversation_tokens(const Services& services, const ModelHandle& model,
                                         const v1::Conversation& conversation) {
  json::object body{{"messages", to_json(conversation)},
                    {"continue_final_message", conversation.continue_final_message()}};
  OAR_ASSIGN(const api::ChatRequest chat, api::parse_chat_request(body, model, services.frontend->limits()));
  OAR_ASSIGN(const ChatPrompt prompt, api::render_chat(model, chat, services.frontend->limits()));
  OAR_ASSIGN(std::vector<int32_t> ids, api::tokenize(model, prompt, false));
  return PromptTokens{std::move(ids), "conversation"};
}

template <class Message>  // GenerateRequest or TokenizeRequest
Result<PromptTokens> prompt_tokens(const Services& services, const ModelHandle& model, const Message& m) {
  if (m.has_conversation()) return conversation_tokens(services, model, m.conversation());
  if constexpr (std::is_same_v<Message, GenerateRequest>) {
    if (m.has_tokens()) return PromptTokens{{m.tokens().ids().begin(), m.tokens().ids().end()}, "tokens"};
  }
  if (m.input_case() == Message::INPUT_NOT_SET) {
    return invalid_argument("the input is missing; set prompt, tokens or conversation", "prompt");
  }
  const bool special = m.has_add_special_tokens() ? m.add_special_tokens() : true;
  OAR_ASSIGN(std::vector<int32_t> ids, api::tokenize(model, m.prompt(), special));
  return PromptTokens{std::move(ids), "prompt"};
}

class GenerateCall final : public StreamWriter<grpc::ServerWriteReactor<GenerateChunk>, GenerateChunk> {
 public:
  GenerateCall(const Services& services, StreamRegistry& registry, grpc::CallbackServerContext* context,
               const GenerateRequest& request)
      : StreamWriter(services, registry, context, "Generate"),
        request_(request),
        about_(context_of(*context)) {}

 private:
  void started() override {
    if (const Status s = authorize(services_, *context()); !s.ok()) return end(to_grpc(s));
    services_.workers->post([self = shared()] {
      if (const Status s = self->run(); !s.ok()) self->end(to_grpc(s));
    });
  }
  Status run() {
    OAR_RETURN_IF_ERROR(refuse_unknown_fields(request_));
    OAR_ASSIGN(const ModelHandle* model, services_.frontend->find(request_.model()));
    OAR_ASSIGN(PromptTokens prompt, prompt_tokens(services_, *model, request_));
    json::object fields = to_fields(request_);
    want_logprobs_ = request_.sampling().has_logprobs();
    if (want_logprobs_) fields["logprobs"] = request_.sampling().logprobs();
    OAR_ASSIGN(api::GenerationSpec spec, services_.frontend->prepare_tokens(*model, std::move(prompt.ids),
                                                                            fields, about_, prompt.param, 0));
    if (!request_.request_id().empty()) spec.id = request_.request_id().substr(0, 128);
    OAR_ASSIGN(auto generation,
               Generation::start(std::move(spec), services_.writers->executor(),
                                 [self = shared()](Generation& g, int32_t, TextEvent&& event) {
                                   self->on_event(g, event);
                                 }));
    bool gone;
    {
      std::lock_guard lock(state_);
      gone = gone_;
      if (!gone) generation_ = generation;
    }
    if (gone) generation->cancel();
    return ok_status();
  }
  void on_event(Generation& generation, const TextEvent& event) {
    if (const Status failure = api::failure_of(event); !failure.ok()) {
      end(to_grpc(failure));
      return generation.cancel();
    }
    GenerateChunk chunk;
    chunk.set_request_id(generation.spec().id);
    chunk.set_index(event.index);
    chunk.set_text(event.text);
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
    chunk.set_finish_reason(event.finish == FinishReason::kStop ? v1::FINISH_REASON_STOP
                                                                : v1::FINISH_REASON_LENGTH);
    chunk.set_stop_match(event.stop_match);
    if (event.stop_token >= 0) chunk.set_stop_token(event.stop_token);
    auto* usage = chunk.mutable_usage();
    usage->set_prompt_tokens(event.stats.prompt_tokens);
    usage->set_cached_tokens(event.stats.cached_tokens);
    usage->set_completion_tokens(event.stats.completion_tokens);
  }
  void on_gone() override {
    std::shared_ptr<Generation> generation;
    {
      std::lock_guard lock(state_);
      gone_ = true;
      generation.swap(generation_);
    }
    if (generation) generation->cancel();
  }
  std::shared_ptr<GenerateCall> shared() {
    return std::static_pointer_cast<GenerateCall>(shared_from_this());
  }

  const GenerateRequest request_;  // a copy: the call may end while it is being prepared
  const api::RequestContext about_;
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
  OAR_ASSIGN(const ModelHandle* model, services.frontend->find(request.model()));
  OAR_ASSIGN(const PromptTokens tokens, prompt_tokens(services, *model, request));
  response.mutable_ids()->Add(tokens.ids.begin(), tokens.ids.end());
  response.set_max_context(model->engine->request_limits().max_context);
  return ok_status();
}

Status detokenize(const Services& services, const v1::DetokenizeRequest& request,
                  v1::DetokenizeResponse& response) {
  OAR_ASSIGN(const ModelHandle* model, services.frontend->find(request.model()));
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
    for (const ModelHandle& model : services_.frontend->models()) {
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
