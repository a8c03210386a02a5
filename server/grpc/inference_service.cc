// The calls of GRPCInferenceService that answer at once; inference runs in infer_calls.cc.
#include "server/grpc/inference_service.h"

#include "engine/base/format.h"
#include "server/api/repository_load.h"
#include "server/api/tensor_wire.h"
#include "server/api/version.h"
#include "server/grpc/infer_calls.h"
#include "server/grpc/model_messages.h"

namespace oar::grpc_api {

using namespace inference;  // NOLINT: this file is about that package's messages

namespace {

template <class RepositoryRequest>
Status refuse_repository_name(const RepositoryRequest& request) {
  if (request.repository_name().empty()) return ok_status();
  return unimplemented(cat("repository_name is ", api::in_quotes(request.repository_name()),
                           "; there is one repository: leave it out"));
}

// Of a load or unload; no other field is passed over.
template <class ControlRequest>
Result<api::RepositoryLoad> read_control(const ControlRequest& request, bool loads) {
  OAR_RETURN_IF_ERROR(refuse_repository_name(request));
  api::RepositoryLoad out;
  for (const auto& [name, value] : request.parameters()) {
    const bool flag = value.bool_param();
    OAR_RETURN_IF_ERROR(api::read_parameter(name, value.has_string_param() ? &value.string_param() : nullptr,
                                            value.has_bool_param() ? &flag : nullptr, loads, out));
  }
  return out;
}

}  // namespace

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
    OAR_ASSIGN(const bool ready, services_.models->ready(request->name(), request->version()));
    response->set_ready(ready);
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(Context* context, const ServerMetadataRequest*,
                                                           ServerMetadataResponse* response) {
  return answer_now(services_, context, "ServerMetadata", false, [&] {
    response->set_name(services_.name);
    response->set_version(api::kVersion);
    for (const char* extension : api::kExtensions) response->add_extensions(extension);
    if (services_.memory->enabled()) response->add_extensions(api::kMemoryExtension);
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(Context* context,
                                                          const ModelMetadataRequest* request,
                                                          ModelMetadataResponse* response) {
  return answer_now(services_, context, "ModelMetadata", false, [&]() -> Status {
    OAR_ASSIGN(const api::ModelMetadata model,
               services_.models->metadata(request->name(), request->version()));
    describe(model, *response);
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelConfig(Context* context, const ModelConfigRequest* request,
                                                        ModelConfigResponse* response) {
  return answer_now(services_, context, "ModelConfig", false, [&]() -> Status {
    OAR_ASSIGN(const api::TensorModelConfig config,
               services_.models->config(request->name(), request->version()));
    configure(config, *response->mutable_config());
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelStatistics(Context* context,
                                                            const ModelStatisticsRequest* request,
                                                            ModelStatisticsResponse* response) {
  return answer_now(services_, context, "ModelStatistics", false, [&]() -> Status {
    OAR_ASSIGN(const std::vector<api::ModelStatistics> all,
               services_.models->statistics(request->name(), request->version()));
    for (const api::ModelStatistics& m : all) add_statistics(m, *response->add_model_stats());
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(Context* context,
                                                            const RepositoryIndexRequest* request,
                                                            RepositoryIndexResponse* response) {
  return answer_now(services_, context, "RepositoryIndex", false, [&]() -> Status {
    OAR_RETURN_IF_ERROR(refuse_repository_name(*request));
    for (const api::ModelIndexEntry& e : services_.catalog->index(request->ready())) {
      auto* m = response->add_models();
      m->set_name(e.name);
      m->set_version(e.version);
      m->set_state(e.state);
      m->set_reason(e.reason);
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelLoad(Context* context,
                                                                const RepositoryModelLoadRequest* request,
                                                                RepositoryModelLoadResponse*) {
  return control_models(services_, context, "RepositoryModelLoad", [this, request]() -> Status {
    OAR_ASSIGN(const api::RepositoryLoad asked, read_control(*request, true));
    return api::load_as_asked(*services_.catalog, request->model_name(), asked);
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelUnload(Context* context,
                                                                  const RepositoryModelUnloadRequest* request,
                                                                  RepositoryModelUnloadResponse*) {
  return control_models(services_, context, "RepositoryModelUnload", [this, request]() -> Status {
    OAR_ASSIGN(const api::RepositoryLoad asked, read_control(*request, false));
    return services_.catalog->unload(request->model_name(), asked.dependents);
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
