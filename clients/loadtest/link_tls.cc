#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <cstring>

#include "clients/loadtest/link.h"
#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

namespace asio = boost::asio;
using Context = std::shared_ptr<SSL_CTX>;

class TlsLink final : public Link, public std::enable_shared_from_this<TlsLink> {
 public:
  TlsLink(asio::io_context& io, SSL* session) : stream_(tcp::socket(io), session) {}
  tcp::socket& socket() override { return stream_.next_layer(); }
  void async_open(Handler done) override {
    stream_.async_handshake(asio::ssl::stream_base::client, std::move(done));
  }
  void async_write(asio::const_buffer bytes, Handler done) override {
    asio::async_write(stream_, bytes, [done = std::move(done)](error_code ec, size_t) { done(ec); });
  }
  // Whether bytes lie ready cannot be asked of TLS: a record is read, and handed out from here.
  void async_wait_readable(Handler done) override {
    if (begin_ < end_ || failed_) {
      asio::post(stream_.get_executor(), [done = std::move(done)] { done({}); });
      return;
    }
    stream_.async_read_some(asio::buffer(record_),
                            [self = shared_from_this(), done = std::move(done)](error_code ec, size_t bytes) {
                              self->begin_ = 0, self->end_ = bytes, self->failed_ = ec;
                              done({});
                            });
  }
  size_t read_some(char* into, size_t most, error_code& ec) override {
    const size_t bytes = std::min(most, end_ - begin_);
    ec = bytes > 0 ? error_code() : failed_ ? failed_ : asio::error::would_block;
    // A server that ends without close_notify ended all the same; HTTP's own framing says whether too early.
    if (ec == asio::ssl::error::stream_truncated) ec = asio::error::eof;
    if (bytes > 0) std::memcpy(into, record_.data() + begin_, bytes);
    begin_ += bytes;
    return bytes;
  }

 private:
  asio::ssl::stream<tcp::socket> stream_;
  std::array<char, 16 << 10> record_;
  size_t begin_ = 0, end_ = 0;
  error_code failed_;
};

class TlsMaker final : public LinkMaker {
 public:
  TlsMaker(Context context, std::string host) : context_(std::move(context)), host_(std::move(host)) {
    boost::system::error_code ec;
    asio::ip::make_address(host_, ec);
    is_address_ = !ec;
  }
  std::shared_ptr<Link> make(asio::io_context& io) const override {
    SSL* session = SSL_new(context_.get());
    OAR_CHECK(session != nullptr, "no memory for a TLS session");
    if (is_address_) {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host_.c_str());
    } else {
      SSL_set1_host(session, host_.c_str());
      SSL_set_tlsext_host_name(session, host_.c_str());
    }
    return std::make_shared<TlsLink>(io, session);
  }

 private:
  Context context_;
  std::string host_;
  bool is_address_ = false;
};

Status bad(const char* option, const std::string& file, const char* what) {
  struct stat there = {};
  if (stat(file.c_str(), &there) != 0) return not_found(cat(option, ": ", file, " cannot be read"));
  const char* reason = ERR_reason_error_string(ERR_peek_error());
  ERR_clear_error();
  return invalid_argument(cat(option, ": ", file, " ", what, reason == nullptr ? "" : cat(" (", reason, ")")),
                          option);
}

}  // namespace

Result<std::shared_ptr<const LinkMaker>> LinkMaker::tls(const std::string& host, const TlsOptions& o) {
  ERR_clear_error();
  Context c(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  OAR_CHECK(c != nullptr, "no memory for a TLS context");
  SSL_CTX_set_min_proto_version(c.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(c.get(), SSL_MODE_RELEASE_BUFFERS);  // of ten thousand open streams
  if (o.ca.empty()) {
    SSL_CTX_set_default_verify_paths(c.get());
  } else if (SSL_CTX_load_verify_locations(c.get(), o.ca.c_str(), nullptr) != 1) {
    return bad("tls-ca", o.ca, "holds no certificate in PEM form");
  }
  SSL_CTX_set_verify(c.get(), o.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  if (o.certificate.empty() != o.key.empty())
    return invalid_argument(
        "tls-cert: a client's certificate and its key go together; give --tls-cert and --tls-key",
        "tls-cert");
  if (!o.certificate.empty()) {
    if (SSL_CTX_use_certificate_chain_file(c.get(), o.certificate.c_str()) != 1)
      return bad("tls-cert", o.certificate, "holds no certificate in PEM form");
    if (SSL_CTX_use_PrivateKey_file(c.get(), o.key.c_str(), SSL_FILETYPE_PEM) != 1)
      return bad("tls-key", o.key, "is not the certificate's private key in PEM form");
  }
  return std::shared_ptr<const LinkMaker>(std::make_shared<TlsMaker>(std::move(c), host));
}

}  // namespace oar::loadtest
