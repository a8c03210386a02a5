// gRPC's own TLS on the texts of server/tls.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/tls/tls.h"

namespace oar::grpc_api {

// Plain text when `context` is null. Each handshake asks `context` for the newest texts that fit together, so
// gRPC and HTTP change certificates by the same rules: files that cannot be used leave everything as it was.
// The result must outlive the server, and serve one port.
std::shared_ptr<grpc::ServerCredentials> make_credentials(std::shared_ptr<tls::ServerContext> context);

}  // namespace oar::grpc_api
