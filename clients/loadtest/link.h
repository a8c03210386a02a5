// One connection to a server under test, plain or TLS, behind the few calls that an exchange needs. OpenSSL
// is behind link_tls.cc; a build without it has link_tls_absent.cc, which says so.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/status.h"

namespace oar::loadtest {

// How to trust a server and be trusted by it. Paths of PEM files.
struct TlsOptions {
  std::string ca;                // instead of the system's authorities
  std::string certificate, key;  // the client's own, for mutual TLS
  bool verify = true;            // false: any certificate will do
};

// One connection. Its handlers run on the io_context; closing the socket ends what is outstanding with an
// error.
class Link {
 public:
  using tcp = boost::asio::ip::tcp;
  using error_code = boost::system::error_code;
  using Handler = std::function<void(error_code)>;

  virtual ~Link() = default;
  // Of the TCP connection: to connect, set options, close.
  virtual tcp::socket& socket() = 0;
  // Behind a connected socket: the TLS handshake, or nothing.
  virtual void async_open(Handler done) = 0;
  // All of `bytes`, which must stay until then.
  virtual void async_write(boost::asio::const_buffer bytes, Handler done) = 0;
  // Until read_some() has something to give, or an error.
  virtual void async_wait_readable(Handler done) = 0;
  // Never blocks: would_block; eof at the end.
  virtual size_t read_some(char* into, size_t most, error_code& ec) = 0;
};

// Makes the links to one server. Any thread.
class LinkMaker {
 public:
  virtual ~LinkMaker() = default;
  virtual std::shared_ptr<Link> make(boost::asio::io_context& io) const = 0;

  static std::shared_ptr<const LinkMaker> plain();
  // For a server that is called `host` (a name or an address). INVALID_ARGUMENT or NOT_FOUND names the file;
  // UNIMPLEMENTED without OpenSSL.
  static Result<std::shared_ptr<const LinkMaker>> tls(const std::string& host, const TlsOptions& options);
};

}  // namespace oar::loadtest
