#include "server/http/origin.h"

#include <algorithm>

#include "engine/base/format.h"
#include "server/api/listen_address.h"

namespace oar::http {
namespace {

constexpr std::string_view kAll = "*", kLocal = "localhost";

bool holds(const std::vector<std::string>& list, std::string_view wanted) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& s) { return s == kAll || iequals(s, wanted); });
}

// What stands behind http:// or https://; nothing for any other origin, such as "null".
std::optional<std::string_view> authority_of(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.size() > scheme.size() && iequals(origin.substr(0, scheme.size()), scheme))
      return origin.substr(scheme.size());
  }
  return std::nullopt;
}

// The name or address of "host:port", without the brackets of IPv6 and the dot of a fully qualified name.
std::string_view host_name(std::string_view host) {
  if (!host.empty() && host.front() == '[') return host.substr(1, host.find(']') - 1);
  host = host.substr(0, host.find(':'));
  if (host.ends_with('.')) host.remove_suffix(1);
  return host;
}

std::string in_quotes(std::string_view given) {
  constexpr size_t kShown = 100;
  return cat("'", given.substr(0, kShown), given.size() > kShown ? "...'" : "'");
}

}  // namespace

Result<OriginPolicy> OriginPolicy::create(std::vector<std::string> origins, std::vector<std::string> hosts) {
  for (const std::string& origin : origins) {
    const size_t scheme = origin.find("://");
    const bool whole = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                       origin.find_first_of("/?#* ", scheme + 3) == std::string::npos;
    if (origin != kAll && origin != kLocal && !whole) {
      return invalid_argument(cat("allowed-origins: ", in_quotes(origin),
                                  " is no origin; write scheme://host or scheme://host:port as a browser "
                                  "sends it, without a path, localhost for this machine on any port, or * "
                                  "for all"),
                              "allowed-origins");
    }
  }
  for (const std::string& host : hosts) {
    const bool name = !host.empty() && host.find_first_of(":/[]* ") == std::string::npos;
    if (host != kAll && !name && !api::is_address(host)) {
      return invalid_argument(cat("allowed-hosts: ", in_quotes(host),
                                  " is no host; write a name or an address without a port, or * for all"),
                              "allowed-hosts");
    }
  }
  OriginPolicy policy;
  policy.origins_ = std::move(origins);
  policy.hosts_ = std::move(hosts);
  return policy;
}

std::optional<std::string> OriginPolicy::refusal(const Request& request, HostCheck check) const {
  const std::string_view host = trim(request.header("Host"));
  if (check != HostCheck::kNone && request.has_header("Host")) {  // HTTP/1.0 may have none
    const std::string_view name = host_name(host);
    const bool good = api::is_loopback(name) || (check == HostCheck::kNames && api::is_address(name)) ||
                      holds(hosts_, name);
    if (!good) {
      return cat("the host ", in_quotes(host),
                 " is not one of this server's; if it is yours, start the server with --allowed-hosts");
    }
  }
  const std::string_view site = trim(request.header("Sec-Fetch-Site"));
  const bool cross_site = iequals(site, "cross-site");
  if ((!request.has_header("Origin") && !cross_site) || request.method == "OPTIONS") return std::nullopt;
  // A link that somebody followed. It shows an answer to its reader alone and changes nothing.
  const std::string_view destination = trim(request.header("Sec-Fetch-Dest"));
  if ((request.method == "GET" || request.method == "HEAD") &&
      iequals(trim(request.header("Sec-Fetch-Mode")), "navigate") &&
      (destination.empty() || iequals(destination, "document")))
    return std::nullopt;
  const std::string_view origin = trim(request.header("Origin"));
  if (allows(origin)) return std::nullopt;
  const auto authority = authority_of(origin);
  if (authority && !host.empty() && iequals(*authority, host)) return std::nullopt;
  return cat(request.has_header("Origin") ? cat("the origin ", in_quotes(origin), " is")
                                          : std::string("other sites without an Origin are"),
             " not allowed to use this server; if the page is yours, start the server with "
             "--allowed-origins");
}

bool OriginPolicy::allows(std::string_view origin) const {
  const auto authority = authority_of(origin);
  return std::any_of(origins_.begin(), origins_.end(), [&](const std::string& allowed) {
    if (allowed == kLocal) return authority && api::is_loopback(host_name(*authority));
    return allowed == kAll || iequals(allowed, origin);
  });
}

}  // namespace oar::http
