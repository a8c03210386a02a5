#include "server/tls/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "engine/base/format.h"

namespace oar::tls {
namespace {

constexpr std::chrono::seconds kLookAgain{1};
// Sessions are resumed only under the same name; a server that asks for client certificates must give one.
constexpr unsigned char kSessionContext[] = "oar";

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

// The oldest entry of OpenSSL's error queue: the cause; what follows are its consequences.
std::string why() {
  const unsigned long code = ERR_peek_error();
  char text[256] = "unknown error";
  if (code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : text;
}

Status bad(const char* option, const std::string& file, const std::string& what) {
  struct stat there = {};
  if (stat(file.c_str(), &there) != 0) return not_found(cat(option, ": ", file, " cannot be read"));
  return invalid_argument(cat(option, ": ", file, " ", what, " (", why(), ")"), option);
}

// A key that asks for a passphrase cannot be used by a server that nobody sits in front of.
int no_passphrase(char*, int, int, void*) { return 0; }

Result<std::shared_ptr<SSL_CTX>> make_context(const Files& f) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> c(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!c) return Status(StatusCode::kResourceExhausted, cat("tls: ", why()));
  SSL_CTX_set_min_proto_version(c.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(c.get(),
                      SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(c.get(), SSL_MODE_RELEASE_BUFFERS);  // idle connections keep no record buffers
  SSL_CTX_set_default_passwd_cb(c.get(), no_passphrase);
  SSL_CTX_set_session_id_context(c.get(), kSessionContext, sizeof kSessionContext - 1);
  if (SSL_CTX_use_certificate_chain_file(c.get(), f.certificate.c_str()) != 1)
    return bad("tls-cert", f.certificate, "holds no certificate in PEM form");
  if (SSL_CTX_use_PrivateKey_file(c.get(), f.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return bad("tls-key", f.key,
               cat("is no private key without passphrase for the certificate ", f.certificate));
  if (SSL_CTX_check_private_key(c.get()) != 1)
    return bad("tls-key", f.key, cat("does not belong to the certificate ", f.certificate));
  if (!f.client_ca.empty()) {
    STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(f.client_ca.c_str());
    if (names == nullptr || SSL_CTX_load_verify_locations(c.get(), f.client_ca.c_str(), nullptr) != 1) {
      if (names != nullptr) sk_X509_NAME_pop_free(names, X509_NAME_free);
      return bad("tls-client-ca", f.client_ca, "holds no certificate in PEM form");
    }
    SSL_CTX_set_client_CA_list(c.get(), names);
    SSL_CTX_set_verify(c.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return c;
}

// Until when the context's certificate is valid, in words.
std::string validity(SSL_CTX* context) {
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (certificate == nullptr) return "no certificate";
  const ASN1_TIME* end = X509_get0_notAfter(certificate);
  tm t = {};
  if (ASN1_TIME_to_tm(end, &t) != 1) return "valid for an unknown time";
  char day[32];
  strftime(day, sizeof day, "%Y-%m-%d %H:%M UTC", &t);
  return cat(X509_cmp_current_time(end) < 0 ? "EXPIRED on " : "valid until ", day);
}

}  // namespace

Result<std::shared_ptr<ServerContext>> ServerContext::load(const Files& files, Logger log) {
  if (!files.enabled()) return std::shared_ptr<ServerContext>();
  if (files.certificate.empty())
    return invalid_argument("tls-cert: TLS needs a certificate; give --tls-cert FILE", "tls-cert");
  if (files.key.empty())
    return invalid_argument("tls-key: TLS needs the certificate's private key; give --tls-key FILE",
                            "tls-key");
  std::shared_ptr<ServerContext> out(new ServerContext());
  out->files_ = files;
  out->log_ = std::move(log);
  out->seen_ = out->look();
  out->looked_ = std::chrono::steady_clock::now();
  OAR_ASSIGN(out->context_, make_context(files));
  out->log_(LogLevel::kInfo, cat("tls: certificate ", files.certificate, ", ", validity(out->context_.get()),
                                 files.client_ca.empty() ? "" : "; clients must show a certificate"));
  return out;
}

ServerContext::Seen ServerContext::look() const {
  Seen s;
  stat(files_.certificate.c_str(), &s.certificate);
  stat(files_.key.c_str(), &s.key);
  if (!files_.client_ca.empty()) stat(files_.client_ca.c_str(), &s.client_ca);
  return s;
}

ServerContext::Context ServerContext::current() {
  std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookAgain) return context_;
  looked_ = now;
  const Seen there = look();
  if (same_file(there.certificate, seen_.certificate) && same_file(there.key, seen_.key) &&
      same_file(there.client_ca, seen_.client_ca))
    return context_;
  seen_ = there;
  auto fresh = make_context(files_);
  if (fresh.ok()) {
    context_ = std::move(*fresh);
    log_(LogLevel::kInfo, cat("tls: certificate read again, ", validity(context_.get())));
  } else {
    log_(LogLevel::kError, cat("tls: ", fresh.status().message(), "; the certificate stays as it was"));
  }
  return context_;
}

ssl_st* ServerContext::new_session() { return SSL_new(current().get()); }

}  // namespace oar::tls
