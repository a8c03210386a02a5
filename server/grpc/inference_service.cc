// The calls of GRPCInferenceService that answer at once; inference runs in infer_calls.cc.
#include "server/grpc/inference_service.h"

#include "engine/base/format.h"
#include "server/api/version.h"
#include "server/grpc/infer_calls.h"

namespace oar::grpc_api {

using namespace inference;  // NOLINT: this file is about that package's messages

namespace {

constexpr const char* kPlatform = "oar";

void add_tensor(google::protobuf::RepeatedPtrField<ModelMetadataResponse::TensorMetadata>* list,
                const char* name, const char* datatype) {
  auto* t = list->Add();
  t->set_name(name);
  t->set_datatype(datatype);
  t->add_shape(1);
}

void set(StatisticDuration* d, uint64_t count, uint64_t ns) {
  d->set_count(count);
  d->set_ns(ns);
}

}  // namespace

Result<const ModelHandle*> find_model(const Services& services, const std::string& name,
                                      const std::string& version) {
  if (name.empty()) return invalid_argument("model_name is missing", "model_name");
  OAR_ASSIGN(const ModelHandle* model, services.frontend->find(name));
  if (!version.empty() && version != "1") {
    return Status(StatusCode::kNotFound,
                  cat("model ", name, " has no version ", api::describe(json::value(version)),
                      "; leave it out or say \"1\""),
                  "model_version");
  }
  return model;
}

grpc::ServerUnaryReactor* InferenceService::ServerLive(Context* context, const ServerLiveRequest*,
                                                       ServerLiveResponse* response) {
  return answer_now(services_, context, "ServerLive", true, [&] {
    response->set_live(true);
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ServerReady(Context* context, const ServerReadyRequest*,
                                                        ServerReadyResponse* response) {
  return answer_now(services_, context, "ServerReady", true, [&] {
    response->set_ready(services_.frontend->ready());
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelReady(Context* context, const ModelReadyRequest* request,
                                                       ModelReadyResponse* response) {
  return answer_now(services_, context, "ModelReady", true, [&]() -> Status {
    OAR_ASSIGN(const ModelHandle* model, find_model(services_, request->name(), request->version()));
    response->set_ready(services_.frontend->accepting() && api::Frontend::ready(*model));
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(Context* context, const ServerMetadataRequest*,
                                                           ServerMetadataResponse* response) {
  return answer_now(services_, context, "ServerMetadata", false, [&] {
    response->set_name("oar");
    response->set_version(api::kVersion);
    for (const char* extension : {"parameters", "statistics", "model_configuration", "model_repository"}) {
      response->add_extensions(extension);
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(Context* context,
                                                          const ModelMetadataRequest* request,
                                                          ModelMetadataResponse* response) {
  return answer_now(services_, context, "ModelMetadata", false, [&]() -> Status {
    OAR_ASSIGN(const ModelHandle* model, find_model(services_, request->name(), request->version()));
    response->set_name(model->name);
    response->add_versions("1");
    response->set_platform(kPlatform);
    add_tensor(response->mutable_inputs(), "text_input", "BYTES");
    add_tensor(response->mutable_inputs(), "stream", "BOOL");
    add_tensor(response->mutable_inputs(), "sampling_parameters", "BYTES");
    add_tensor(response->mutable_inputs(), "exclude_input_in_output", "BOOL");
    add_tensor(response->mutable_outputs(), "text_output", "BYTES");
    auto& properties = *response->mutable_properties();
    properties["architecture"] = model->info.architecture;
    properties["max_context"] = cat(model->engine->request_limits().max_context);
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelConfig(Context* context, const ModelConfigRequest* request,
                                                        ModelConfigResponse* response) {
  return answer_now(services_, context, "ModelConfig", false, [&]() -> Status {
    OAR_ASSIGN(const ModelHandle* model, find_model(services_, request->name(), request->version()));
    auto* config = response->mutable_config();
    config->set_name(model->name);
    config->set_platform(kPlatform);
    config->set_backend(kPlatform);
    const auto input = [&](const char* name, DataType type, bool optional) {
      auto* i = config->add_input();
      i->set_name(name);
      i->set_data_type(type);
      i->add_dims(1);
      i->set_optional(optional);
    };
    input("text_input", TYPE_STRING, false);
    input("stream", TYPE_BOOL, true);
    input("sampling_parameters", TYPE_STRING, true);
    input("exclude_input_in_output", TYPE_BOOL, true);
    auto* output = config->add_output();
    output->set_name("text_output");
    output->set_data_type(TYPE_STRING);
    output->add_dims(1);
    config->mutable_model_transaction_policy()->set_decoupled(true);
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelStatistics(Context* context,
                                                            const ModelStatisticsRequest* request,
                                                            ModelStatisticsResponse* response) {
  return answer_now(services_, context, "ModelStatistics", false, [&]() -> Status {
    if (!request->name().empty()) {
      const auto found = find_model(services_, request->name(), request->version());
      if (!found.ok()) return found.status();
    }
    const auto& models = services_.frontend->models();
    for (size_t i = 0; i < models.size(); ++i) {
      if (!request->name().empty() && models[i].name != request->name()) continue;
      const RequestTotals t = services_.metrics->totals(i);
      auto* s = response->add_model_stats();
      s->set_name(models[i].name);
      s->set_version("1");
      s->set_last_inference(t.last_finish_ms);
      s->set_inference_count(t.success);
      s->set_execution_count(models[i].engine->stats().steps);
      auto* stats = s->mutable_inference_stats();
      set(stats->mutable_success(), t.success, t.success_ns);
      set(stats->mutable_fail(), t.failure, t.failure_ns);
      set(stats->mutable_queue(), t.success, t.queue_ns);
      set(stats->mutable_compute_infer(), t.success, t.compute_ns);
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(Context* context,
                                                            const RepositoryIndexRequest* request,
                                                            RepositoryIndexResponse* response) {
  return answer_now(services_, context, "RepositoryIndex", false, [&] {
    for (const ModelHandle& model : services_.frontend->models()) {
      const bool ready = api::Frontend::ready(model);
      if (request->ready() && !ready) continue;
      auto* m = response->add_models();
      m->set_name(model.name);
      m->set_version("1");
      m->set_state(ready ? "READY" : "UNAVAILABLE");
      if (!ready) m->set_reason("the engine is not ready");
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelInfer(Context* context, const ModelInferRequest* request,
                                                       ModelInferResponse* response) {
  return begin_infer(services_, context, request, response);
}

grpc::ServerBidiReactor<ModelInferRequest, ModelStreamInferResponse>* InferenceService::ModelStreamInfer(
    Context* context) {
  return begin_stream_infer(services_, registry_, context);
}

}  // namespace oar::grpc_api
