// TLS of the server: which files, whether they fit together, and the OpenSSL context made from them, read
// again when they change. All cryptography is OpenSSL's; gRPC has its own stack on the same texts
// (grpc/tls_credentials.cc).
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "engine/base/log.h"
#include "engine/base/status.h"

struct ssl_ctx_st;
struct ssl_st;

namespace oar::tls {

// PEM files. Empty certificate and key: no TLS.
struct Files {
  std::string certificate;  // the server's, its intermediates behind it
  std::string key;          // of the first certificate
  std::string client_ca;    // not empty: clients must show a certificate of one of these (mutual TLS)
  bool enabled() const { return !certificate.empty() || !key.empty() || !client_ca.empty(); }
};

// What the files held when they were last found to fit together.
struct Pem {
  std::string certificate, key, client_ca;
};

// New connections get the newest certificate; those that stand keep theirs. The files are looked at when a
// connection comes and a second has passed: a mounted secret can be replaced under a running server. Files
// that cannot be used leave everything as it was, and are logged once per change. Any thread.
class ServerContext {
 public:
  // Null when `files` asks for no TLS. INVALID_ARGUMENT or NOT_FOUND names the option and the file.
  static Result<std::shared_ptr<ServerContext>> load(const Files& files, Logger log = {});

  // A session for one accepted connection, to be freed by the caller (SSL_free); null when memory is short.
  ssl_st* new_session();
  // For a stack that makes its own sessions: the newest texts that can be used, unless the caller has them,
  // which the number in `seen` says (0: has none; updated). Null when there is nothing newer.
  std::shared_ptr<const Pem> newer(uint64_t& seen);
  const Files& files() const { return files_; }

 private:
  using Context = std::shared_ptr<ssl_ctx_st>;
  struct Seen {
    struct stat certificate = {}, key = {}, client_ca = {};
  };
  ServerContext() = default;
  Seen look() const;
  void refresh();  // mutex_ held

  Files files_;
  Logger log_;
  std::mutex mutex_;
  Context context_;  // guarded by mutex_, as is all below
  std::shared_ptr<const Pem> pem_;
  uint64_t version_ = 1;  // counts the texts in pem_
  Seen seen_;
  std::chrono::steady_clock::time_point looked_;
};

}  // namespace oar::tls
