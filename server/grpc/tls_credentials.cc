#include "server/grpc/tls_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace oar::grpc_api {

std::shared_ptr<grpc::ServerCredentials> make_credentials(const tls::Files& files) {
  if (!files.enabled()) return grpc::InsecureServerCredentials();
  constexpr unsigned kLookAgainSeconds = 1;
  namespace g = grpc::experimental;
  grpc::experimental::TlsServerCredentialsOptions options(std::make_shared<g::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.client_ca, kLookAgainSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return g::TlsServerCredentials(options);
}

}  // namespace oar::grpc_api
