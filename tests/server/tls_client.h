// A blocking TLS client that checks the server as a browser would.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct ssl_st;
struct ssl_ctx_st;

namespace oar_test {

class TlsClient {
 public:
  struct Options {
    std::string ca, certificate, key;  // PEM texts; certificate and key only for mutual TLS
    std::string host = "localhost";    // the name the server's certificate must bear
    int most_version = 0;              // TLS1_2_VERSION, say
  };
  TlsClient(int port, const Options& options);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool connected() const { return connected_; }
  const std::string& error() const { return error_; }  // of the handshake
  std::string peer() const;                            // common name of the server's certificate
  bool send(std::string_view bytes);
  // What comes until `text` has been seen or the stream ends, at most 5 s of silence.
  std::string read_until(std::string_view text);
  // "": the stream ended with the server's close_notify; otherwise how else.
  std::string read_to_end(std::string& into);

 private:
  std::shared_ptr<ssl_ctx_st> context_;
  std::shared_ptr<ssl_st> session_;
  int fd_ = -1;
  bool connected_ = false;
  std::string error_;
};

}  // namespace oar_test
