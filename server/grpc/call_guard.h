// What is true of every call and no handler of ours gets to say: that a message is ill-formed, and that
// gRPC's own reflection service asks for the key as well. Private to the gRPC room.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <vector>

#include "server/grpc/call_support.h"

namespace oar::grpc_api {

// For ServerBuilder. `services` outlives the server.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> call_guards(
    const Services& services);

}  // namespace oar::grpc_api
