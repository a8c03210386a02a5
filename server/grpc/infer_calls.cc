#include "server/grpc/infer_calls.h"

#include <map>

#include "engine/base/format.h"
#include "server/grpc/infer_codec.h"
#include "server/grpc/shared_tensors.h"
#include "server/grpc/stream_writer.h"
#include "server/grpc/tensor_calls.h"

namespace oar::grpc_api {
namespace {

using api::Generation;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

// From message to engine request, for language models; runs on a worker thread.
struct PreparedInfer {
  api::OipTextRequest request;
  api::GenerationSpec spec;
};

Result<PreparedInfer> prepare(const Services& services, const ModelHandlePtr& model,
                              const ModelInferRequest& message, const api::RequestContext& context) {
  PreparedInfer out;
  const auto make = [&]() -> Status {
    OAR_ASSIGN(out.request, read_text_request(message));
    OAR_RETURN_IF_ERROR(api::check_oip_request(out.request));
    OAR_ASSIGN(api::GenerationRequest wanted,
               api::text_generation(out.request, *model, services.frontend->limits()));
    OAR_ASSIGN(out.spec, services.frontend->prepare(model, std::move(wanted), context));
    return ok_status();
  };
  if (Status s = make(); !s.ok()) return services.frontend->refused(std::move(s), model->name, context);
  return out;
}

void set_model(ModelInferResponse& response, const ModelHandle& model, const std::string& id) {
  response.set_model_name(model.name);
  response.set_model_version(model.version);
  response.set_id(id);
}

// ---- ModelInfer ----

class InferCall final : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<InferCall> {
 public:
  InferCall(const Services& services, grpc::CallbackServerContext* context, ModelHandlePtr model,
            const ModelInferRequest* request, ModelInferResponse* response)
      : services_(services),
        context_(context),
        model_(std::move(model)),
        request_(request),
        response_(response),
        timer_(services, "ModelInfer") {}

  void begin() {
    self_ = shared_from_this();
    preparing_ = true;
    services_.workers->post([self = shared_from_this()] {
      const Status s = self->run();
      self->prepared(s);
    });
  }

 private:
  // gRPC's request and context are valid until Finish, which therefore waits for this.
  Status run() {
    const api::RequestContext about = context_of(services_, *context_);
    if (SharedTensors::in(*request_)) {
      own_ = std::make_unique<ModelInferRequest>(*request_);
      OAR_ASSIGN(shared_, SharedTensors::take(*own_, access_of(services_, about)));
      request_ = own_.get();
    }
    OAR_ASSIGN(PreparedInfer prepared, prepare(services_, model_, *request_, about));
    if (prepared.request.stream) {
      return invalid_argument("stream is true, but ModelInfer has one response; call ModelStreamInfer",
                              "stream");
    }
    auto text = std::make_shared<std::string>(prepared.request.prepends_input() ? prepared.request.text : "");
    OAR_ASSIGN(auto generation, Generation::start(std::move(prepared.spec), services_.writers->executor(),
                                                  [self = shared_from_this(), text, id = request_->id()](
                                                      Generation&, int32_t, TextEvent&& event) {
                                                    *text += event.text;
                                                    if (event.finish == FinishReason::kNone) return;
                                                    self->finish(api::failure_of(event), self->model_.get(),
                                                                 id, *text);
                                                  }));
    std::lock_guard lock(mutex_);
    generation_ = std::move(generation);
    return ok_status();
  }
  void prepared(const Status& status) {
    bool cancelled, answered;
    {
      std::lock_guard lock(mutex_);
      preparing_ = false;
      cancelled = cancelled_;
      answered = answered_;
    }
    if (!status.ok()) return finish(status);
    if (cancelled) return OnCancel();
    if (answered) finish(final_);
  }
  // With a model: the answer goes into the response, unless the call is over already.
  void finish(Status status, const ModelHandle* model = nullptr, const std::string& id = {},
              std::string_view text = {}) {
    {
      std::lock_guard lock(mutex_);
      if (finished_) return;
      if (model && status.ok()) {
        set_model(*response_, *model, id);
        add_text_output(*response_, text);
        if (shared_) status = shared_->place(*response_);
      }
      if (preparing_) {  // an answer before run() has returned: prepared() delivers it
        answered_ = true;
        final_ = status;
        return;
      }
      finished_ = true;
    }
    const grpc::Status s = to_grpc(status);
    timer_.done(s.error_code());
    Finish(s);
  }
  void OnCancel() override {
    std::shared_ptr<Generation> generation;
    {
      std::lock_guard lock(mutex_);
      cancelled_ = true;
      if (preparing_) return;
      generation = generation_;
    }
    if (generation) generation->cancel(api::caller_left());
    finish(Status(StatusCode::kCancelled, "cancelled"));
  }
  void OnDone() override {
    const std::shared_ptr<InferCall> self = std::move(self_);
    std::lock_guard lock(mutex_);
    generation_.reset();
  }

  const Services& services_;
  grpc::CallbackServerContext* context_;
  const ModelHandlePtr model_;
  const ModelInferRequest* request_;
  ModelInferResponse* response_;
  std::unique_ptr<ModelInferRequest> own_;  // with what lay in shared memory
  std::shared_ptr<const SharedTensors> shared_;
  CallTimer timer_;
  std::shared_ptr<InferCall> self_;
  std::mutex mutex_;
  std::shared_ptr<Generation> generation_;
  Status final_;
  bool preparing_ = false, cancelled_ = false, answered_ = false, finished_ = false;
};

// ---- ModelStreamInfer ----

class StreamInferCall final
    : public StreamWriter<grpc::ServerBidiReactor<ModelInferRequest, ModelStreamInferResponse>,
                          ModelStreamInferResponse> {
 public:
  using StreamWriter::StreamWriter;

 private:
  // What can be done to a request in flight; both empty until it has started.
  struct Handles {
    std::function<void()> cancel;
    std::function<void()> wake;  // of a generation, when the client has caught up
  };
  // One request of the stream, between its arrival and its last response.
  struct Item {
    std::string id;
    bool stream = false, empty_final = false;
    std::string prefix;  // collected text when not streaming
    ModelHandlePtr model;
  };

  void started() override {
    if (const Status s = authorize(services_, *context()); !s.ok()) return end(to_grpc(s));
    start_read();
  }
  void start_read() {
    incoming_.set_id(kUnread);
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        std::lock_guard lock(state_);
        half_closed_ = true;
        // gRPC says the same of the stream's end and of bytes that are no message. Parsing clears first.
        if (incoming_.id() != kUnread) outcome_ = ill_formed_message("ModelStreamInfer");
      }
      return end_if_idle();
    }
    uint64_t key;
    bool room;
    {
      std::lock_guard lock(state_);
      key = ++last_key_;
      active_.emplace(key, Handles());
      room = active_.size() < static_cast<size_t>(services_.limits.max_requests_per_stream);
      reading_paused_ = !room;
    }
    auto message = std::make_shared<ModelInferRequest>(std::move(incoming_));
    incoming_.Clear();
    api::RequestContext about = context_of(services_, *context());
    about.gone = left_;
    services_.workers->post([self = shared(), message, key, about = std::move(about)] {
      if (const Status s = self->run(message, key, about); !s.ok()) self->fail(key, *message, s);
    });
    if (room) read_next();
  }
  void read_next() {
    if (!hold()) return;
    start_read();
    release();
  }

  Status run(const std::shared_ptr<ModelInferRequest>& message, uint64_t key,
             const api::RequestContext& about) {
    services_.frontend->wait_for_model(message->model_name(), about.deadline);
    OAR_ASSIGN(const api::ServedModel model,
               services_.models->find(message->model_name(), message->model_version()));
    return model.tensor ? run_tensors(model.tensor, message, key, about)
                        : run_text(model.language, *message, key, about);
  }

  Status run_tensors(const api::TensorModelPtr& model, const std::shared_ptr<ModelInferRequest>& message,
                     uint64_t key, const api::RequestContext& about) {
    OAR_ASSIGN(api::AdmissionPtr admission, services_.frontend->admit(about));
    OAR_ASSIGN(auto placed, SharedTensors::take(*message, access_of(services_, about)));
    OAR_ASSIGN(TensorRequest r, read_tensor_request(*model, *message, about, message));
    r.job.done = [self = shared(), model, key, placed = std::move(placed), admission = std::move(admission),
                  id = message->id(), outputs = std::move(r.outputs),
                  classes = std::move(r.classes)](Result<std::vector<Datum>> results) {
      ModelStreamInferResponse out;
      Status status = results.status();
      if (results.ok()) {
        auto& response = *out.mutable_infer_response();
        (*response.mutable_parameters())["triton_final_response"].set_bool_param(true);
        status = write_tensor_response(*model, id, std::move(*results), outputs, classes, response);
        if (status.ok() && placed) status = placed->place(response);
      }
      if (status.ok()) {
        self->enqueue(std::move(out));
      } else {
        self->respond_error(id, model->config.name, status);
      }
      self->done(key);
    };
    OAR_ASSIGN(const uint64_t ticket, model->runner->submit(std::move(r.job)));
    started_one(key, {[model, ticket] { model->runner->cancel(ticket); }, {}});
    return ok_status();
  }

  Status run_text(const ModelHandlePtr& model, const ModelInferRequest& message, uint64_t key,
                  const api::RequestContext& about) {
    if (SharedTensors::in(message))
      return unimplemented(
          "shared_memory_region: streams of language models carry their texts themselves; call ModelInfer, "
          "or "
          "leave it out");
    OAR_ASSIGN(PreparedInfer prepared, prepare(services_, model, message, about));
    auto item = std::make_shared<Item>();
    item->id = message.id();
    item->stream = prepared.request.stream;
    if (prepared.request.prepends_input()) item->prefix = prepared.request.text;
    item->model = model;
    item->empty_final = prepared.request.empty_final;
    OAR_ASSIGN(auto generation, Generation::start(
                                    std::move(prepared.spec), services_.writers->executor(),
                                    [self = shared(), item, key](Generation&, int32_t, TextEvent&& event) {
                                      self->on_event(*item, key, event);
                                    },
                                    reads_along(item->stream)));
    started_one(key, {[generation] { generation->cancel(api::caller_left()); },
                      [generation] { generation->wake(); }});
    return ok_status();
  }
  Generation::Ready reads_along(bool streaming) {
    if (!streaming) return {};
    return [self = shared()] { return !self->behind(); };
  }
  // What has been started can be cancelled: when the client leaves, or now when it has left already. And the
  // client may have caught up before there was anybody to wake.
  void started_one(uint64_t key, const Handles& handles) {
    bool gone;
    {
      std::lock_guard lock(state_);
      gone = client_gone_;
      if (const auto it = active_.find(key); it != active_.end()) it->second = handles;
    }
    if (gone) handles.cancel();
    else if (handles.wake) handles.wake();
  }

  void on_event(Item& item, uint64_t key, const TextEvent& event) {
    const bool last = event.finish != FinishReason::kNone;
    if (const Status failure = api::failure_of(event); !failure.ok()) {
      respond_error(item.id, item.model->name, failure);
      return done(key);
    }
    if (!item.stream) {
      item.prefix += event.text;
      if (last) respond(item, item.prefix, true, true);
    } else if (!event.text.empty()) {
      respond(item, event.text, true, last);
    } else if (last && item.empty_final) {
      respond(item, {}, false, true);
    }
    if (last) done(key);
  }

  void respond(const Item& item, std::string_view text, bool has_output, bool final) {
    ModelStreamInferResponse out;
    auto& response = *out.mutable_infer_response();
    set_model(response, *item.model, item.id);
    (*response.mutable_parameters())["triton_final_response"].set_bool_param(final);
    if (has_output) add_text_output(response, text);
    enqueue(std::move(out));
  }
  void respond_error(const std::string& id, const std::string& model, const Status& status) {
    ModelStreamInferResponse out;
    out.set_error_message(status.message());
    out.mutable_infer_response()->set_id(id);
    out.mutable_infer_response()->set_model_name(model);
    (*out.mutable_infer_response()->mutable_parameters())["triton_final_response"].set_bool_param(true);
    enqueue(std::move(out));
  }
  void fail(uint64_t key, const ModelInferRequest& message, const Status& status) {
    respond_error(message.id(), message.model_name(), status);
    done(key);
  }

  void done(uint64_t key) {
    bool resume;
    {
      std::lock_guard lock(state_);
      active_.erase(key);
      resume = reading_paused_ && !client_gone_;
      if (resume) reading_paused_ = false;
    }
    if (resume) read_next();
    end_if_idle();
  }
  void end_if_idle() {
    Status outcome;
    {
      std::lock_guard lock(state_);
      if (!half_closed_ || !active_.empty()) return;
      outcome = outcome_;
    }
    end(to_grpc(outcome));
  }
  void on_gone() override {
    std::map<uint64_t, Handles> active;
    {
      std::lock_guard lock(state_);
      client_gone_ = true;
      active.swap(active_);
    }
    *left_ = true;
    for (const auto& [key, handles] : active)
      if (handles.cancel) handles.cancel();
  }
  void on_drained() override {
    std::vector<std::function<void()>> waiting;
    {
      std::lock_guard lock(state_);
      for (const auto& [key, handles] : active_)
        if (handles.wake) waiting.push_back(handles.wake);
    }
    for (const auto& wake : waiting) wake();
  }
  std::shared_ptr<StreamInferCall> shared() {
    return std::static_pointer_cast<StreamInferCall>(shared_from_this());
  }

  static constexpr const char* kUnread = "not read";  // the id of `incoming_` while nothing has come
  ModelInferRequest incoming_;                        // being read
  std::mutex state_;
  std::map<uint64_t, Handles> active_;
  const std::shared_ptr<std::atomic<bool>> left_ = std::make_shared<std::atomic<bool>>(false);
  uint64_t last_key_ = 0;
  bool half_closed_ = false, client_gone_ = false, reading_paused_ = false;
  Status outcome_;  // of the whole stream
};

}  // namespace

grpc::ServerUnaryReactor* begin_infer(const Services& services, grpc::CallbackServerContext* context,
                                      const ModelInferRequest* request, ModelInferResponse* response) {
  const auto refuse = [&](const Status& status) {
    return answer_now(services, context, "ModelInfer", true, [&] { return status; });
  };
  if (const Status s = authorize(services, *context); !s.ok()) return refuse(s);
  // Here nobody may wait: a model that comes is UNAVAILABLE, and who asks again finds it.
  (void)services.catalog->bring(request->model_name());
  const Result<api::ServedModel> model =
      services.models->find(request->model_name(), request->model_version());
  if (!model.ok()) return refuse(model.status());
  if (model->tensor) return begin_tensor_infer(services, context, model->tensor, request, response);
  auto call = std::make_shared<InferCall>(services, context, model->language, request, response);
  call->begin();
  return call.get();
}

grpc::ServerBidiReactor<ModelInferRequest, ModelStreamInferResponse>* begin_stream_infer(
    const Services& services, StreamRegistry& registry, grpc::CallbackServerContext* context) {
  auto call = std::make_shared<StreamInferCall>(services, registry, context, "ModelStreamInfer");
  call->begin();
  return call.get();
}

}  // namespace oar::grpc_api
