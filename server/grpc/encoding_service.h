// oar.v1.Encoding. Private to the gRPC room.
#pragma once

#include "oar/v1/oar.grpc.pb.h"
#include "server/grpc/call_support.h"

namespace oar::grpc_api {

class EncodingService final : public oar::v1::Encoding::CallbackService {
 public:
  explicit EncodingService(const Services& services) : services_(services) {}

  using Context = grpc::CallbackServerContext;
  grpc::ServerUnaryReactor* Embed(Context*, const oar::v1::EmbedRequest*, oar::v1::EmbedResponse*) override;
  grpc::ServerUnaryReactor* Rerank(Context*, const oar::v1::RerankRequest*,
                                   oar::v1::RerankResponse*) override;

 private:
  const Services& services_;
};

}  // namespace oar::grpc_api
