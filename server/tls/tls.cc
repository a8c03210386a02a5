#include "server/tls/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <vector>

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
  return invalid_argument(cat(option, ": ", file, " ", what, " (", why(), ")"), option);
}

Result<std::string> read_file(const char* option, const std::string& path) {
  constexpr size_t kMost = 4 << 20;  // an authority's bundle has some hundred kilobytes
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), fclose);
  if (!file) return not_found(cat(option, ": ", path, " cannot be read"));
  std::string text(kMost + 1, '\0');
  text.resize(fread(text.data(), 1, text.size(), file.get()));
  if (ferror(file.get()) != 0) return not_found(cat(option, ": ", path, " cannot be read"));
  if (text.size() > kMost) return invalid_argument(cat(option, ": ", path, " is larger than 4 MiB"), option);
  return text;
}

Result<Pem> read_files(const Files& f) {
  Pem out;
  OAR_ASSIGN(out.certificate, read_file("tls-cert", f.certificate));
  OAR_ASSIGN(out.key, read_file("tls-key", f.key));
  if (!f.client_ca.empty()) { OAR_ASSIGN(out.client_ca, read_file("tls-client-ca", f.client_ca)); }
  return out;
}

// A key that asks for a passphrase cannot be used by a server that nobody sits in front of.
int no_passphrase(char*, int, int, void*) { return 0; }

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

// Every certificate of a PEM text in order; empty when there is none or one is broken.
std::vector<Certificate> read_certificates(const std::string& pem) {
  std::vector<Certificate> out;
  const std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                BIO_free);
  while (X509* c = bio ? PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr) : nullptr)
    out.emplace_back(c, X509_free);
  // Each text ends with "no start line", which is no error behind a certificate.
  if (out.empty()) return out;
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) out.clear();
  else ERR_clear_error();
  return out;
}

Status use_certificate(SSL_CTX* c, const Files& f, const Pem& pem) {
  const std::vector<Certificate> chain = read_certificates(pem.certificate);
  bool ok = !chain.empty() && SSL_CTX_use_certificate(c, chain[0].get()) == 1;
  for (size_t i = 1; ok && i < chain.size(); ++i) ok = SSL_CTX_add1_chain_cert(c, chain[i].get()) == 1;
  return ok ? ok_status() : bad("tls-cert", f.certificate, "holds no certificate in PEM form");
}

Status use_key(SSL_CTX* c, const Files& f, const Pem& pem) {
  const std::unique_ptr<BIO, int (*)(BIO*)> bio(
      BIO_new_mem_buf(pem.key.data(), static_cast<int>(pem.key.size())), BIO_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr) : nullptr, EVP_PKEY_free);
  if (!key)
    return bad("tls-key", f.key,
               cat("is no private key without passphrase for the certificate ", f.certificate));
  if (SSL_CTX_use_PrivateKey(c, key.get()) != 1 || SSL_CTX_check_private_key(c) != 1)
    return bad("tls-key", f.key, cat("does not belong to the certificate ", f.certificate));
  return ok_status();
}

Status use_client_ca(SSL_CTX* c, const Files& f, const Pem& pem) {
  const std::vector<Certificate> authorities = read_certificates(pem.client_ca);
  bool ok = !authorities.empty();
  for (size_t i = 0; ok && i < authorities.size(); ++i)
    ok = SSL_CTX_add_client_CA(c, authorities[i].get()) == 1 &&
         X509_STORE_add_cert(SSL_CTX_get_cert_store(c), authorities[i].get()) == 1;
  if (!ok) return bad("tls-client-ca", f.client_ca, "holds no certificate in PEM form");
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return ok_status();
}

Result<std::shared_ptr<SSL_CTX>> make_context(const Files& f, const Pem& pem) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> c(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!c) return Status(StatusCode::kResourceExhausted, cat("tls: ", why()));
  SSL_CTX_set_min_proto_version(c.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(c.get(),
                      SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(c.get(), SSL_MODE_RELEASE_BUFFERS);  // idle connections keep no record buffers
  SSL_CTX_set_session_id_context(c.get(), kSessionContext, sizeof kSessionContext - 1);
  OAR_RETURN_IF_ERROR(use_certificate(c.get(), f, pem));
  OAR_RETURN_IF_ERROR(use_key(c.get(), f, pem));
  if (!f.client_ca.empty()) OAR_RETURN_IF_ERROR(use_client_ca(c.get(), f, pem));
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
  OAR_ASSIGN(Pem pem, read_files(files));
  OAR_ASSIGN(out->context_, make_context(files, pem));
  out->pem_ = std::make_shared<const Pem>(std::move(pem));
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

void ServerContext::refresh() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookAgain) return;
  looked_ = now;
  const Seen there = look();
  if (same_file(there.certificate, seen_.certificate) && same_file(there.key, seen_.key) &&
      same_file(there.client_ca, seen_.client_ca))
    return;
  seen_ = there;
  auto pem = read_files(files_);
  auto fresh = pem.ok() ? make_context(files_, *pem) : Result<Context>(pem.status());
  if (!fresh.ok()) {
    log_(LogLevel::kError, cat("tls: ", fresh.status().message(), "; the certificate stays as it was"));
    return;
  }
  context_ = std::move(*fresh);
  pem_ = std::make_shared<const Pem>(std::move(*pem));
  ++version_;
  log_(LogLevel::kInfo, cat("tls: certificate read again, ", validity(context_.get())));
}

ssl_st* ServerContext::new_session() {
  Context context;
  {
    std::lock_guard lock(mutex_);
    refresh();
    context = context_;
  }
  return SSL_new(context.get());
}

std::shared_ptr<const Pem> ServerContext::newer(uint64_t& seen) {
  std::lock_guard lock(mutex_);
  refresh();
  if (seen == version_) return nullptr;
  seen = version_;
  return pem_;
}

}  // namespace oar::tls
