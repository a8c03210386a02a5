// OpenSSL between a connection and its socket. Private to connection.cc.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>

namespace oar::http {

// TLS gives no "readable": a read is always under way, into a buffer of the connection's own.
struct TlsLayer {
  // Takes `session` over.
  TlsLayer(boost::asio::ip::tcp::socket& socket, SSL* session) : stream(socket, session) {}
  boost::asio::ssl::stream<boost::asio::ip::tcp::socket&> stream;
  std::array<char, 16 << 10> buffer;  // one record
};

}  // namespace oar::http
