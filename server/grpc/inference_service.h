// inference.GRPCInferenceService for ordinary and language models. Private to the gRPC room.
#pragma once

#include "inference/grpc_service.grpc.pb.h"
#include "server/grpc/call_support.h"

namespace oar::grpc_api {

class InferenceService final : public inference::GRPCInferenceService::CallbackService {
 public:
  InferenceService(const Services& services, StreamRegistry& registry)
      : services_(services), registry_(registry) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* ServerLive(Context*, const inference::ServerLiveRequest*, inference::ServerLiveResponse*) override;
  Unary* ServerReady(Context*, const inference::ServerReadyRequest*,
                     inference::ServerReadyResponse*) override;
  Unary* ModelReady(Context*, const inference::ModelReadyRequest*, inference::ModelReadyResponse*) override;
  Unary* ServerMetadata(Context*, const inference::ServerMetadataRequest*,
                        inference::ServerMetadataResponse*) override;
  Unary* ModelMetadata(Context*, const inference::ModelMetadataRequest*,
                       inference::ModelMetadataResponse*) override;
  Unary* ModelConfig(Context*, const inference::ModelConfigRequest*,
                     inference::ModelConfigResponse*) override;
  Unary* ModelStatistics(Context*, const inference::ModelStatisticsRequest*,
                         inference::ModelStatisticsResponse*) override;
  Unary* RepositoryIndex(Context*, const inference::RepositoryIndexRequest*,
                         inference::RepositoryIndexResponse*) override;
  Unary* RepositoryModelLoad(Context*, const inference::RepositoryModelLoadRequest*,
                             inference::RepositoryModelLoadResponse*) override;
  Unary* RepositoryModelUnload(Context*, const inference::RepositoryModelUnloadRequest*,
                               inference::RepositoryModelUnloadResponse*) override;
  Unary* SystemSharedMemoryStatus(Context*, const inference::SystemSharedMemoryStatusRequest*,
                                  inference::SystemSharedMemoryStatusResponse*) override;
  Unary* SystemSharedMemoryRegister(Context*, const inference::SystemSharedMemoryRegisterRequest*,
                                    inference::SystemSharedMemoryRegisterResponse*) override;
  Unary* SystemSharedMemoryUnregister(Context*, const inference::SystemSharedMemoryUnregisterRequest*,
                                      inference::SystemSharedMemoryUnregisterResponse*) override;
  Unary* CudaSharedMemoryStatus(Context*, const inference::CudaSharedMemoryStatusRequest*,
                                inference::CudaSharedMemoryStatusResponse*) override;
  Unary* CudaSharedMemoryRegister(Context*, const inference::CudaSharedMemoryRegisterRequest*,
                                  inference::CudaSharedMemoryRegisterResponse*) override;
  Unary* CudaSharedMemoryUnregister(Context*, const inference::CudaSharedMemoryUnregisterRequest*,
                                    inference::CudaSharedMemoryUnregisterResponse*) override;
  Unary* TraceSetting(Context*, const inference::TraceSettingRequest*,
                      inference::TraceSettingResponse*) override;
  Unary* LogSettings(Context*, const inference::LogSettingsRequest*,
                     inference::LogSettingsResponse*) override;
  Unary* ModelInfer(Context*, const inference::ModelInferRequest*, inference::ModelInferResponse*) override;
  grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
  ModelStreamInfer(Context*) override;

 private:
  const Services& services_;
  StreamRegistry& registry_;
};

}  // namespace oar::grpc_api
