#include "server/api/listen_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "engine/base/format.h"

namespace oar::api {
namespace {

bool read_v4(const std::string& text, in_addr& out) { return inet_pton(AF_INET, text.c_str(), &out) == 1; }
bool read_v6(const std::string& text, in6_addr& out) { return inet_pton(AF_INET6, text.c_str(), &out) == 1; }

}  // namespace

Result<HostPort> split_address(const std::string& address, const std::string& option) {
  const std::string remedy = "write host:port, for instance 127.0.0.1:8000 or [::1]:0";
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return invalid_argument(cat("listening address '", address, "' has no port; ", remedy), option);
  }
  HostPort out;
  out.host = address.substr(0, colon);
  if (out.host.size() >= 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  }
  const char* end = address.data() + address.size();
  const auto parsed = std::from_chars(address.data() + colon + 1, end, out.port);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return invalid_argument(cat("listening address '", address, "' has a bad port; ", remedy), option);
  }
  return out;
}

bool is_address(std::string_view host) {
  const std::string text(host);
  in_addr v4{};
  in6_addr v6{};
  return read_v4(text, v4) || read_v6(text, v6);
}

bool is_loopback(std::string_view host) {
  const std::string text(host);
  in_addr v4{};
  in6_addr v6{};
  if (read_v4(text, v4)) return (ntohl(v4.s_addr) >> 24) == IN_LOOPBACKNET;
  if (read_v6(text, v6)) return IN6_IS_ADDR_LOOPBACK(&v6);
  constexpr std::string_view kName = "localhost";
  return std::equal(text.begin(), text.end(), kName.begin(), kName.end(),
                    [](char given, char lower) { return (given | 0x20) == lower; });
}

}  // namespace oar::api
