// The calls of GRPCInferenceService that answer at once; inference runs in infer_calls.cc.
#include "server/grpc/inference_service.h"

#include "engine/base/format.h"
#include "server/api/version.h"
#include "server/grpc/infer_calls.h"
#include "server/grpc/model_messages.h"

namespace oar::grpc_api {

using namespace inference;  // NOLINT: this file is about that package's messages

Result<ServedModel> find_model(const Services& services, const std::string& name,
                               const std::string& version) {
  if (name.empty()) return invalid_argument("model_name is missing", "model_name");
  ServedModel out;
  if (services.tensors->has(name)) {
    OAR_ASSIGN(out.tensor, services.tensors->find(name, version));
    return out;
  }
  OAR_ASSIGN(out.language, services.frontend->find(name));
  if (!version.empty() && version != "1") {
    return Status(StatusCode::kNotFound,
                  cat("model ", name, " has no version ", api::describe(json::value(version)),
                      "; leave it out or say \"1\""),
                  "model_version");
  }
  return out;
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
    const Result<ServedModel> model = find_model(services_, request->name(), request->version());
    if (model.status().code() == StatusCode::kUnavailable)
      return ok_status();  // known and not loaded: not ready
    OAR_RETURN_IF_ERROR(model.status());
    response->set_ready(services_.frontend->accepting() &&
                        (model->tensor || api::Frontend::ready(*model->language)));
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ServerMetadata(Context* context, const ServerMetadataRequest*,
                                                           ServerMetadataResponse* response) {
  return answer_now(services_, context, "ServerMetadata", false, [&] {
    response->set_name("oar");
    response->set_version(api::kVersion);
    for (const char* extension : {"parameters", "statistics", "model_configuration", "model_repository",
                                  "binary_tensor_data", "schedule_policy"}) {
      response->add_extensions(extension);
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelMetadata(Context* context,
                                                          const ModelMetadataRequest* request,
                                                          ModelMetadataResponse* response) {
  return answer_now(services_, context, "ModelMetadata", false, [&]() -> Status {
    OAR_ASSIGN(const ServedModel model, find_model(services_, request->name(), request->version()));
    if (model.language) {
      describe(*model.language, *response);
    } else {
      describe(*model.tensor, api::versions_of(services_.tensors->loaded(), request->name()), *response);
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelConfig(Context* context, const ModelConfigRequest* request,
                                                        ModelConfigResponse* response) {
  return answer_now(services_, context, "ModelConfig", false, [&]() -> Status {
    OAR_ASSIGN(const ServedModel model, find_model(services_, request->name(), request->version()));
    if (model.language) {
      configure(*model.language, *response->mutable_config());
    } else {
      configure(*model.tensor, *response->mutable_config());
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::ModelStatistics(Context* context,
                                                            const ModelStatisticsRequest* request,
                                                            ModelStatisticsResponse* response) {
  return answer_now(services_, context, "ModelStatistics", false, [&]() -> Status {
    if (!request->name().empty()) {
      OAR_ASSIGN(const ServedModel model, find_model(services_, request->name(), request->version()));
      if (model.tensor && !request->version().empty()) {
        add_statistics(*model.tensor, *response->add_model_stats());
        return ok_status();
      }
    }
    const auto wanted = [&](const std::string& name) {
      return request->name().empty() || request->name() == name;
    };
    const auto& models = services_.frontend->models();
    for (size_t i = 0; i < models.size(); ++i) {
      if (wanted(models[i].name))
        add_statistics(models[i], services_.metrics->totals(i), *response->add_model_stats());
    }
    for (const api::TensorModelPtr& model : services_.tensors->loaded()) {
      if (wanted(model->config.name)) add_statistics(*model, *response->add_model_stats());
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryIndex(Context* context,
                                                            const RepositoryIndexRequest* request,
                                                            RepositoryIndexResponse* response) {
  return answer_now(services_, context, "RepositoryIndex", false, [&] {
    const auto add = [&](const api::ModelIndexEntry& e) {
      if (request->ready() && e.state != "READY") return;
      auto* m = response->add_models();
      m->set_name(e.name);
      m->set_version(e.version);
      m->set_state(e.state);
      m->set_reason(e.reason);
    };
    for (const ModelHandle& model : services_.frontend->models()) {
      const bool ready = api::Frontend::ready(model);
      add({model.name, "1", ready ? "READY" : "UNAVAILABLE", ready ? "" : "the engine is not ready"});
    }
    for (const api::ModelIndexEntry& e : services_.tensors->index()) add(e);
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelLoad(Context* context,
                                                                const RepositoryModelLoadRequest* request,
                                                                RepositoryModelLoadResponse*) {
  return control_models(services_, context, "RepositoryModelLoad", [this, request]() -> Status {
    std::string config;
    for (const auto& [name, value] : request->parameters()) {
      if (name != "config") {
        return unimplemented(cat("the parameter ", api::describe(json::value(name)),
                                 " is not offered; models are loaded from the server's own folder"));
      }
      config = value.string_param();
    }
    return services_.tensors->load(request->model_name(), config);
  });
}

grpc::ServerUnaryReactor* InferenceService::RepositoryModelUnload(Context* context,
                                                                  const RepositoryModelUnloadRequest* request,
                                                                  RepositoryModelUnloadResponse*) {
  return control_models(services_, context, "RepositoryModelUnload",
                        [this, request] { return services_.tensors->unload(request->model_name()); });
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
