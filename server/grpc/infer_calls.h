// ModelInfer and ModelStreamInfer: generation by language models, and ordinary models (tensor_calls.h).
// Private to the gRPC room.
#pragma once

#include "inference/grpc_service.grpc.pb.h"
#include "server/grpc/call_support.h"

namespace oar::grpc_api {

// Both return reactors that own themselves until their call is over.
grpc::ServerUnaryReactor* begin_infer(const Services& services, grpc::CallbackServerContext* context,
                                      const inference::ModelInferRequest* request,
                                      inference::ModelInferResponse* response);
grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
begin_stream_infer(const Services& services, StreamRegistry& registry, grpc::CallbackServerContext* context);

}  // namespace oar::grpc_api
