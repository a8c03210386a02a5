// The calls of GRPCInferenceService about settings of logs and traces and about shared memory: messages to
// JSON and back, what they mean stands in server/api.
#include "server/grpc/inference_service.h"

#include "engine/base/format.h"

namespace oar::grpc_api {

using namespace inference;  // NOLINT: this file is about that package's messages

namespace {

Status may_change(const Services& services, const grpc::CallbackServerContext& context) {
  if (!services.control.enabled) return api::settings_are_fixed();
  return authorize_control(services, context);
}

json::value to_json(const LogSettingsRequest::SettingValue& v) {
  switch (v.parameter_choice_case()) {
    case LogSettingsRequest::SettingValue::kBoolParam: return v.bool_param();
    case LogSettingsRequest::SettingValue::kUint32Param: return int64_t{v.uint32_param()};
    case LogSettingsRequest::SettingValue::kStringParam: return json::string(v.string_param());
    default: return nullptr;
  }
}

api::MemoryAccess access_in(const Services& services, const grpc::CallbackServerContext& context) {
  return access_of(services, context_of(services, context));
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::LogSettings(Context* context, const LogSettingsRequest* request,
                                                        LogSettingsResponse* response) {
  return answer_now(services_, context, "LogSettings", false, [&]() -> Status {
    json::object now = services_.settings->log();
    if (!request->settings().empty()) {
      OAR_RETURN_IF_ERROR(may_change(services_, *context));
      json::object changes;
      for (const auto& [name, value] : request->settings()) changes[name] = to_json(value);
      OAR_ASSIGN(now, services_.settings->set_log(changes));
    }
    for (const auto& entry : now) {
      auto& to = (*response->mutable_settings())[std::string(entry.key())];
      const json::value& v = entry.value();
      if (v.is_bool()) to.set_bool_param(v.get_bool());
      else if (v.is_int64()) to.set_uint32_param(static_cast<uint32_t>(v.get_int64()));
      else to.set_string_param(std::string(v.as_string()));
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::TraceSetting(Context* context, const TraceSettingRequest* request,
                                                         TraceSettingResponse* response) {
  return answer_now(services_, context, "TraceSetting", false, [&]() -> Status {
    const std::string& model = request->model_name();
    if (!model.empty()) OAR_RETURN_IF_ERROR(services_.models->find(model, {}).status());
    json::object now = services_.settings->trace(model);
    if (!request->settings().empty()) {
      OAR_RETURN_IF_ERROR(may_change(services_, *context));
      json::object changes;
      for (const auto& [name, value] : request->settings()) {
        json::array list;
        for (const std::string& one : value.value()) list.emplace_back(json::string(one));
        if (list.empty()) changes[name] = nullptr;
        else changes[name] = std::move(list);
      }
      OAR_ASSIGN(now, services_.settings->set_trace(model, changes));
    }
    for (const auto& entry : now) {
      auto& to = (*response->mutable_settings())[std::string(entry.key())];
      if (const json::array* list = entry.value().if_array())
        for (const json::value& one : *list) to.add_value(std::string(one.as_string()));
      else to.add_value(std::string(entry.value().as_string()));
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::SystemSharedMemoryStatus(
    Context* context, const SystemSharedMemoryStatusRequest* request,
    SystemSharedMemoryStatusResponse* response) {
  return answer_now(services_, context, "SystemSharedMemoryStatus", false, [&]() -> Status {
    const api::MemoryAccess access = access_in(services_, *context);
    OAR_ASSIGN(const auto regions, access.memory->list(access.owner, request->name()));
    for (const api::MemoryRegion& region : regions) {
      auto& to = (*response->mutable_regions())[region.name];
      to.set_name(region.name);
      to.set_key(region.key);
      to.set_offset(region.offset);
      to.set_byte_size(region.bytes);
    }
    return ok_status();
  });
}

grpc::ServerUnaryReactor* InferenceService::SystemSharedMemoryRegister(
    Context* context, const SystemSharedMemoryRegisterRequest* request, SystemSharedMemoryRegisterResponse*) {
  return answer_now(services_, context, "SystemSharedMemoryRegister", false, [&] {
    const api::MemoryAccess access = access_in(services_, *context);
    return access.memory->add(access.owner,
                              {request->name(), request->key(), request->offset(), request->byte_size()});
  });
}

grpc::ServerUnaryReactor* InferenceService::SystemSharedMemoryUnregister(
    Context* context, const SystemSharedMemoryUnregisterRequest* request,
    SystemSharedMemoryUnregisterResponse*) {
  return answer_now(services_, context, "SystemSharedMemoryUnregister", false, [&] {
    const api::MemoryAccess access = access_in(services_, *context);
    return access.memory->remove(access.owner, request->name());
  });
}

grpc::ServerUnaryReactor* InferenceService::CudaSharedMemoryStatus(
    Context* context, const CudaSharedMemoryStatusRequest* request, CudaSharedMemoryStatusResponse*) {
  return answer_now(services_, context, "CudaSharedMemoryStatus", false,
                    [&] { return request->name().empty() ? ok_status() : api::no_cuda_memory(); });
}

grpc::ServerUnaryReactor* InferenceService::CudaSharedMemoryRegister(Context* context,
                                                                     const CudaSharedMemoryRegisterRequest*,
                                                                     CudaSharedMemoryRegisterResponse*) {
  return answer_now(services_, context, "CudaSharedMemoryRegister", false,
                    [] { return api::no_cuda_memory(); });
}

grpc::ServerUnaryReactor* InferenceService::CudaSharedMemoryUnregister(
    Context* context, const CudaSharedMemoryUnregisterRequest* request, CudaSharedMemoryUnregisterResponse*) {
  return answer_now(services_, context, "CudaSharedMemoryUnregister", false,
                    [&] { return request->name().empty() ? ok_status() : api::no_cuda_memory(); });
}

}  // namespace oar::grpc_api
