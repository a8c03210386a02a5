// From a validated request to a GenerationSpec: which model, which prompt tokens, which deadline. Knows
// whether the server takes requests and which run. Const after construction but for its two switches; any
// thread.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/api/generation.h"
#include "server/api/item_page.h"
#include "server/api/model_catalog.h"
#include "server/api/openai_answer.h"
#include "server/api/openai_request.h"
#include "server/api/response_store.h"
#include "server/api/tenant.h"

namespace oar::api {

// What the transport knows of a request.
struct RequestContext {
  std::string id;                                 // how the caller calls it; made up when empty
  std::string trace;                              // its traceparent (trace_parent.h); empty: none
  std::optional<Clock::time_point> deadline;      // the transport's own
  std::shared_ptr<Tenant> tenant;                 // whose key it came with; null: no key is asked for
  std::string peer;                               // its address without the port
  std::shared_ptr<const std::atomic<bool>> gone;  // set when the caller leaves; null: nobody knows
  std::shared_ptr<PromptExcess> excess;           // told when a prompt is too long; null: nobody asks
  // Work that nobody waits for: its requests go behind others, and name no priority above those.
  bool background = false;
  bool llama_chat = false;  // a chat under llama.cpp's own path

  // The name of the key that what is stored belongs to; empty where none is asked for.
  std::string owner() const { return tenant ? tenant->name() : std::string(); }
};

struct Prepared {
  std::optional<std::string> done;  // the answer, where there is nothing to generate; the rest is empty then
  GenerationSpec spec;
  std::unique_ptr<AnswerWriter> answer;
  bool stream = false;
};

class Frontend {
 public:
  // `catalog` is borrowed.
  Frontend(ModelCatalog& catalog, ApiLimits limits) : catalog_(catalog), limits_(limits) {}

  const ApiLimits& limits() const { return limits_; }

  // A server that is about to stop first says that it is not ready, then takes no more.
  void announce_ready(bool ready) { announced_ = ready; }
  void set_accepting(bool accepting) { accepting_ = accepting; }
  bool accepting() const { return accepting_; }
  RunningGenerations& running() { return running_; }
  // Before the first request; null: none is kept.
  void set_request_log(std::unique_ptr<RequestLog> log) { log_ = std::move(log); }
  // Announced, accepting, and every engine has produced a token and still makes progress.
  bool ready() const;
  static bool ready(const ModelHandle& model) { return model.engine->health() == EngineHealth::kReady; }

  // On a worker thread, before a model is looked for: waits until one that is loaded on demand is there, its
  // load has failed, or `deadline`; others are not held up.
  void wait_for_model(std::string_view name, std::optional<Clock::time_point> deadline,
                      ModelKind kind = ModelKind::kLanguage) const;
  // The encoder of a request, waited for.
  Result<TensorModelPtr> find_encoder(std::string_view name, std::optional<Clock::time_point> deadline) const;

  // To be asked before anything is done for a request, and kept until it has ended. UNAVAILABLE while the
  // server stops, RESOURCE_EXHAUSTED at a limit of the tenant.
  Result<AdmissionPtr> admit(const RequestContext& context) const;
  // The refusal of a generation whose model takes no more, as prepare() would refuse it; null: it goes on to
  // prepare(). For the connection's thread: what is refused crosses no other. Of its body no more is read
  // than which model is asked, and not even that where all have room.
  std::optional<Status> refuse_early(const std::string& body, const RequestContext& context) const;
  // The line in the request log of a generation that was refused before it reached an engine; returns `why`.
  // `model` is how the caller calls it.
  Status refused(Status why, std::string_view model, const RequestContext& context) const;
  // From a parsed request to the engine's: admission, tokens, what the context has room for, the deadline.
  Result<GenerationSpec> prepare(ModelHandlePtr model, GenerationRequest request,
                                 const RequestContext& context) const;
  // The bodies of /v1/chat/completions and /v1/completions.
  Result<Prepared> prepare_chat(const json::object& body, const RequestContext& context) const;
  Result<Prepared> prepare_completion(const json::object& body, const RequestContext& context) const;
  // SGLang's /v1/score of a language model.
  Result<Prepared> prepare_label_scores(const json::object& body, const RequestContext& context) const;
  // OpenAI's /v1/decisions.
  Result<Prepared> prepare_decisions(const json::object& body, const RequestContext& context) const;
  // Of SageMaker's /invocations: a chat where there are messages, else a completion.
  Result<Prepared> prepare_invocation(const json::object& body, const RequestContext& context) const;
  // Ollama's /api/chat and /api/generate.
  Result<Prepared> prepare_ollama_chat(const json::object& body, const RequestContext& context) const;
  Result<Prepared> prepare_ollama_generate(const json::object& body, const RequestContext& context) const;
  // llama.cpp's /completion and /infill.
  Result<Prepared> prepare_llama_completion(const json::object& body, const RequestContext& context) const;
  Result<Prepared> prepare_llama_infill(const json::object& body, const RequestContext& context) const;
  // Of /v1/responses and /v1/messages.
  Result<Prepared> prepare_responses(const json::object& body, const RequestContext& context) const;
  Result<Prepared> prepare_messages(const json::object& body, const RequestContext& context) const;

  // Of /v1/responses/{id}: what is kept of one that has ended, the items it was asked with, and its end.
  // NOT_FOUND as ResponseStore says it.
  Result<std::string> stored_response(const std::string& id, const RequestContext& context) const;
  Result<std::string> stored_input(const std::string& id, const ItemPage& page,
                                   const RequestContext& context) const;
  Result<std::string> erase_response(const std::string& id, const RequestContext& context) const;

  // Of /v1/chat/completions and what lies below: chats that were to be stored.
  Result<std::string> stored_chat(const std::string& id, const RequestContext& context) const;
  // Of one model, unless that is empty, and with these labels.
  Result<std::string> stored_chats(const ItemPage& page, const std::string& model,
                                   const json::object& metadata, const RequestContext& context) const;
  Result<std::string> stored_messages(const std::string& id, const ItemPage& page,
                                      const RequestContext& context) const;
  Result<std::string> label_chat(const std::string& id, const json::object& body,
                                 const RequestContext& context) const;
  Result<std::string> erase_chat(const std::string& id, const RequestContext& context) const;

  // Of /v1/conversations and what lies below (conversations.cc).
  Result<std::string> make_conversation(const json::object& body, const RequestContext& context) const;
  Result<std::string> stored_conversation(const std::string& id, const RequestContext& context) const;
  Result<std::string> label_conversation(const std::string& id, const json::object& body,
                                         const RequestContext& context) const;
  Result<std::string> erase_conversation(const std::string& id, const RequestContext& context) const;
  Result<std::string> conversation_items(const std::string& id, const ItemPage& page,
                                         const RequestContext& context) const;
  Result<std::string> conversation_item(const std::string& id, const std::string& item,
                                        const RequestContext& context) const;
  Result<std::string> add_conversation_items(const std::string& id, const json::object& body,
                                             const RequestContext& context) const;
  Result<std::string> erase_conversation_item(const std::string& id, const std::string& item,
                                              const RequestContext& context) const;

  // {"tokens":[...],"count":n,"max_model_len":m} and {"prompt":"...","content":"..."}; llama.cpp's, which has
  // the text in `content`, wants the tokens alone.
  Result<std::string> tokenize_json(const json::object& body) const;
  Result<std::string> detokenize_json(const json::object& body) const;
  // {"prompt":"..."}: a chat request's messages through the template.
  Result<std::string> apply_template_json(const json::object& body) const;
  // {"object":"response.input_tokens","input_tokens":n}: what a chat request or a response would read.
  Result<std::string> count_chat_tokens(const json::object& body) const;
  Result<std::string> count_response_tokens(const json::object& body) const;
  // {"input_tokens":n}, of /v1/messages/count_tokens.
  Result<std::string> count_message_tokens(const json::object& body) const;

 private:
  // The start of a request's way to the engine: who asks, and whether there is room. A refusal is told.
  Result<GenerationSpec> let_in(ModelHandlePtr model, std::string id, const RequestContext& context) const;
  Result<ModelHandlePtr> find_in(const json::object& body, const RequestContext* context = nullptr) const;
  Result<Prepared> prepare_ollama(ModelHandlePtr model, Result<GenerationRequest> request, bool chat,
                                  const RequestContext& context) const;
  Result<Prepared> prepare_llama(const json::object& body, const RequestContext& context, bool infill) const;
  // prepare() of a request whose max_tokens, called `field`, is a promise that there is room.
  Result<GenerationSpec> prepare_promised(ModelHandlePtr model, GenerationRequest request,
                                          const RequestContext& context, const char* field) const;
  // Puts the conversation that a response's body names before its input, and takes the name out; empty: none.
  Result<std::string> take_up(json::object& body, const RequestContext& context) const;
  // What adds a response's input and output to a conversation when it is complete.
  std::function<void(std::string)> grow(const std::string& id, json::array items,
                                        const RequestContext& context) const;
  Result<std::string> label(ResponseStore& store, const std::string& id, const json::object& body,
                            const RequestContext& context) const;
  Result<Prepared> prepare_openai(ModelHandlePtr model, GenerationRequest request, AnswerOptions answer,
                                  const RequestContext& context) const;

  ModelCatalog& catalog_;
  const ApiLimits limits_;
  std::atomic<bool> announced_{true}, accepting_{true};
  mutable RunningGenerations running_;
  mutable ResponseStore responses_{limits_.max_stored_bytes};
  mutable ResponseStore chats_{limits_.max_stored_bytes, "completion"};
  mutable ResponseStore conversations_{limits_.max_stored_bytes, "conversation"};
  std::unique_ptr<RequestLog> log_;
};

// So many units of priority background work is behind requests that name none (fair_shares.h).
inline constexpr int32_t kBackgroundPriority = 100;

// An identifier: the prefix, and what the caller calls the request or else 128 random bits in hexadecimal.
std::string make_id(const char* prefix, const std::string& given = {});

}  // namespace oar::api
