#include "tests/server/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <stdexcept>

namespace oar_test {
namespace {

std::string lower(std::string s) {
  for (char& c : s)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return s;
}

}  // namespace

RawClient::RawClient(int port, int receive_buffer) {
  fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close();
    throw std::runtime_error("cannot connect");
  }
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

RawClient::~RawClient() { close(); }

void RawClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void RawClient::reset() {
  const linger l{1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &l, sizeof l);
  close();
}

void RawClient::shutdown_send() { ::shutdown(fd_, SHUT_WR); }

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd p{fd_, POLLOUT, 0};
    if (::poll(&p, 1, 10'000) <= 0) return false;
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::string RawClient::receive(std::chrono::milliseconds timeout) {
  pollfd p{fd_, POLLIN, 0};
  if (::poll(&p, 1, static_cast<int>(timeout.count())) <= 0) return {};
  std::string out(64 << 10, '\0');
  const ssize_t n = ::recv(fd_, out.data(), out.size(), 0);
  out.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return out;
}

std::string RawClient::receive_all(std::chrono::milliseconds timeout) {
  std::string out = std::move(buffer_);
  buffer_.clear();
  for (;;) {
    const std::string part = receive(timeout);
    if (part.empty()) return out;
    out += part;
  }
}

bool RawClient::closed_by_peer(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < end) {
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, 50) <= 0) continue;
    char sink[4096];
    if (::recv(fd_, sink, sizeof sink, 0) <= 0) return true;
  }
  return false;
}

bool RawClient::read_until(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    const std::string part = receive();
    if (part.empty()) return false;
    buffer_ += part;
  }
  return true;
}

HttpReply RawClient::read_reply(bool head_request) {
  HttpReply reply;
  if (!read_until("\r\n\r\n")) return reply;
  const size_t end = buffer_.find("\r\n\r\n") + 4;
  reply.head = buffer_.substr(0, end);
  buffer_.erase(0, end);
  if (reply.head.size() > 12) std::from_chars(reply.head.data() + 9, reply.head.data() + 12, reply.status);
  for (size_t at = reply.head.find("\r\n") + 2; at < end - 2;) {
    const size_t eol = reply.head.find("\r\n", at);
    const std::string line = reply.head.substr(at, eol - at);
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) reply.headers[lower(line.substr(0, colon))] = line.substr(colon + 2);
    at = eol + 2;
  }
  const auto more = [&](size_t want) {
    while (buffer_.size() < want) {
      const std::string part = receive();
      if (part.empty()) return false;
      buffer_ += part;
    }
    return true;
  };
  if (head_request || reply.status == 204 || reply.status / 100 == 1) {
    reply.complete = true;
  } else if (reply.headers.count("content-length")) {
    const size_t size = std::stoul(reply.headers["content-length"]);
    reply.complete = more(size);
    reply.body = buffer_.substr(0, size);
    buffer_.erase(0, reply.body.size());
  } else if (reply.headers["transfer-encoding"] == "chunked") {
    for (;;) {
      if (!read_until("\r\n")) return reply;
      const size_t eol = buffer_.find("\r\n");
      size_t size = 0;
      std::from_chars(buffer_.data(), buffer_.data() + eol, size, 16);
      if (!more(eol + 2 + size + 2)) return reply;
      reply.body += buffer_.substr(eol + 2, size);
      buffer_.erase(0, eol + 2 + size + 2);
      if (size == 0) break;
    }
    reply.complete = true;
  } else {
    reply.body = receive_all();
    reply.complete = true;
  }
  return reply;
}

std::string make_request(std::string_view method, std::string_view path, std::string_view body,
                         const Headers& headers) {
  std::string out;
  out.append(method).append(" ").append(path).append(" HTTP/1.1\r\nHost: localhost\r\n");
  for (const auto& [name, value] : headers) out += name + ": " + value + "\r\n";
  if (!body.empty() || method == "POST") out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  out += "\r\n";
  out += body;
  return out;
}

HttpReply http(int port, std::string_view method, std::string_view path, std::string_view body,
               const Headers& headers) {
  RawClient client(port);
  client.send(make_request(method, path, body, headers));
  return client.read_reply(method == "HEAD");
}

std::vector<std::string> sse_data(std::string_view body) {
  std::vector<std::string> out;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    std::string_view record = body.substr(0, end);
    if (record.starts_with("event: ")) record.remove_prefix(std::min(record.find('\n') + 1, record.size()));
    if (record.substr(0, 6) == "data: ") out.emplace_back(record.substr(6));
    if (end == std::string_view::npos) break;
    body.remove_prefix(end + 2);
  }
  return out;
}

}  // namespace oar_test
