// gRPC's own TLS on the files of server/tls.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/tls/tls.h"

namespace oar::grpc_api {

// Plain text when `files` asks for no TLS. The files are read again when they change, by a thread of gRPC's
// that looks once a second; connections that stand keep their certificate.
std::shared_ptr<grpc::ServerCredentials> make_credentials(const tls::Files& files);

}  // namespace oar::grpc_api
