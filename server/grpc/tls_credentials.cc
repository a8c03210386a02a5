// gRPC's file watcher hands its handshaker whatever the files hold, and the server then refuses every client
// until they are mended. Here its certificate fetcher is used instead (part of the C interface alone): asked
// at each handshake, it answers with texts that were tried before.
#include "server/grpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include "engine/base/status.h"

namespace oar::grpc_api {
namespace {

class Credentials final : public grpc::ServerCredentials {
 public:
  explicit Credentials(std::shared_ptr<tls::ServerContext> context) : context_(std::move(context)) {
    const bool mutual = !context_->files().client_ca.empty();
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                   : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            fetch, this));
  }
  ~Credentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    OAR_CHECK(false, "keys are checked by the calls");
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }
  // gRPC holds a lock of the port meanwhile, so `seen_` needs none.
  static grpc_ssl_certificate_config_reload_status fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config) {
    auto& c = *static_cast<Credentials*>(self);
    const std::shared_ptr<const tls::Pem> pem = c.context_->newer(c.seen_);
    if (!pem) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {pem->key.c_str(), pem->certificate.c_str()};
    // gRPC insists on authorities for its clients also where it asks no client for a certificate; any will do
    // then.
    const std::string& roots = pem->client_ca.empty() ? pem->certificate : pem->client_ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<tls::ServerContext> context_;
  uint64_t seen_ = 0;
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> make_credentials(std::shared_ptr<tls::ServerContext> context) {
  if (!context) return grpc::InsecureServerCredentials();
  return std::make_shared<Credentials>(std::move(context));
}

}  // namespace oar::grpc_api
