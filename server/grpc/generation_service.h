// oar.v1.Generation. Private to the gRPC room.
#pragma once

#include "oar/v1/oar.grpc.pb.h"
#include "server/grpc/call_support.h"

namespace oar::grpc_api {

class GenerationService final : public oar::v1::Generation::CallbackService {
 public:
  GenerationService(const Services& services, StreamRegistry& registry)
      : services_(services), registry_(registry) {}

  using Context = grpc::CallbackServerContext;
  grpc::ServerWriteReactor<oar::v1::GenerateChunk>* Generate(Context*,
                                                             const oar::v1::GenerateRequest*) override;
  grpc::ServerUnaryReactor* Tokenize(Context*, const oar::v1::TokenizeRequest*,
                                     oar::v1::TokenizeResponse*) override;
  grpc::ServerUnaryReactor* Detokenize(Context*, const oar::v1::DetokenizeRequest*,
                                       oar::v1::DetokenizeResponse*) override;
  grpc::ServerUnaryReactor* ListModels(Context*, const oar::v1::ListModelsRequest*,
                                       oar::v1::ListModelsResponse*) override;

 private:
  const Services& services_;
  StreamRegistry& registry_;
};

}  // namespace oar::grpc_api
