// Which hosts and which browsers' origins a server answers. A page of another site can make its visitor's
// browser send requests to a local server (CSRF). It can also give its own name a local address (DNS
// rebinding). Browsers say who asks: Origin and Sec-Fetch-Site cannot be set by a page, and Host is the name
// it used. https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata/
//
// Requests without these headers come from programs, and their content type does not matter.
// Not here: who may use the server (API keys, server/api/auth.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "server/http/message.h"

namespace oar::http {

// How much of Host is checked.
enum class HostCheck {
  kNone,   // a socket that other machines reach
  kNames,  // a name must be localhost or allowed; an address passes, since no name was rebound to it
  kOwn,    // a loopback socket: a loopback address, localhost or an allowed name
};

// Immutable after create(); any thread.
class OriginPolicy {
 public:
  OriginPolicy() = default;  // the server's own origin and loopback names alone
  // `origins` are scheme://host[:port], or "localhost" for pages of this machine on any port; `hosts` are
  // names without a port; "*" allows all. INVALID_ARGUMENT names the entry that is neither.
  static Result<OriginPolicy> create(std::vector<std::string> origins, std::vector<std::string> hosts);

  bool names_hosts() const { return !hosts_.empty(); }
  // Why the request is refused (403), or nothing. Whoever may ask OPTIONS learns from its headers alone what
  // is allowed, so its origin is not looked at.
  std::optional<std::string> refusal(const Request& request, HostCheck check) const;
  // Whether Access-Control-Allow-Origin names this origin.
  bool allows(std::string_view origin) const;

 private:
  std::vector<std::string> origins_, hosts_;
};

}  // namespace oar::http
