#include "tests/server/tls_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>

namespace oar_test {
namespace {

std::shared_ptr<BIO> memory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

}  // namespace

TlsClient::TlsClient(int port, const Options& o)
    : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free), session_(nullptr) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets the server has closed
  ERR_clear_error();
  X509* ca = PEM_read_bio_X509(memory(o.ca).get(), nullptr, nullptr, nullptr);
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), ca);
  X509_free(ca);
  if (!o.certificate.empty()) {
    X509* own = PEM_read_bio_X509(memory(o.certificate).get(), nullptr, nullptr, nullptr);
    EVP_PKEY* key = PEM_read_bio_PrivateKey(memory(o.key).get(), nullptr, nullptr, nullptr);
    SSL_CTX_use_certificate(context_.get(), own);
    SSL_CTX_use_PrivateKey(context_.get(), key);
    X509_free(own);
    EVP_PKEY_free(key);
  }
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
  if (o.most_version != 0) SSL_CTX_set_max_proto_version(context_.get(), o.most_version);
  session_.reset(SSL_new(context_.get()), SSL_free);
  SSL_set1_host(session_.get(), o.host.c_str());
  SSL_set_tlsext_host_name(session_.get(), o.host.c_str());

  fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit{5, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    error_ = "no connection";
    return;
  }
  SSL_set_fd(session_.get(), fd_);
  connected_ = SSL_connect(session_.get()) == 1;
  if (!connected_) {
    const char* reason = ERR_reason_error_string(ERR_peek_error());
    error_ = reason != nullptr ? reason : "the connection broke";
  }
}

TlsClient::~TlsClient() {
  if (connected_) SSL_shutdown(session_.get());
  session_.reset();
  if (fd_ >= 0) ::close(fd_);
}

std::string TlsClient::peer() const {
  X509* c = SSL_get1_peer_certificate(session_.get());
  if (c == nullptr) return {};
  char name[128] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(c), NID_commonName, name, sizeof name);
  X509_free(c);
  return name;
}

bool TlsClient::send(std::string_view bytes) {
  size_t n = 0;
  return SSL_write_ex(session_.get(), bytes.data(), bytes.size(), &n) == 1 && n == bytes.size();
}

std::string TlsClient::read_until(std::string_view text) {
  std::string out;
  char buffer[4096];
  size_t n = 0;
  while (out.find(text) == std::string::npos && SSL_read_ex(session_.get(), buffer, sizeof buffer, &n) == 1)
    out.append(buffer, n);
  return out;
}

std::string TlsClient::read_to_end(std::string& into) {
  char buffer[4096];
  while (true) {
    ERR_clear_error();
    size_t n = 0;
    const int r = SSL_read_ex(session_.get(), buffer, sizeof buffer, &n);
    if (r == 1) {
      into.append(buffer, n);
      continue;
    }
    if (SSL_get_error(session_.get(), r) == SSL_ERROR_ZERO_RETURN) return {};
    const char* reason = ERR_reason_error_string(ERR_peek_error());
    return reason != nullptr ? reason : "the connection broke";
  }
}

}  // namespace oar_test
