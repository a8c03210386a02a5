// Addresses that a server listens on, as options write them, and whether other machines can reach them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace oar::api {

struct HostPort {
  std::string host;  // without the brackets of IPv6
  uint16_t port = 0;
};

// host:port or [v6]:port. INVALID_ARGUMENT, with `option` as the field.
Result<HostPort> split_address(const std::string& address, const std::string& option);
// An IPv4 or IPv6 address in digits, without brackets.
bool is_address(std::string_view host);
// 127.0.0.0/8, ::1 or localhost.
bool is_loopback(std::string_view host);

}  // namespace oar::api
