// Linear matching over a few dozen routes: cheaper to read than a trie, and nothing beside parsing a request.
#include "server/http/router.h"

#include <optional>

namespace oar::http {
namespace {

std::string_view next_segment(std::string_view& rest) {
  if (!rest.empty() && rest.front() == '/') rest.remove_prefix(1);
  const size_t slash = rest.find('/');
  const std::string_view segment = rest.substr(0, slash);
  rest.remove_prefix(segment.size());
  return segment;
}

std::optional<std::vector<std::string>> match_pattern(std::string_view pattern, std::string_view path) {
  std::vector<std::string> params;
  while (!pattern.empty() && !path.empty()) {
    const std::string_view want = next_segment(pattern);
    if (want.size() > 3 && want.front() == '{' && want[want.size() - 2] == '*') {
      const std::string_view rest = path.substr(1);
      if (rest.empty()) return std::nullopt;
      params.emplace_back(rest);
      return params;
    }
    const std::string_view have = next_segment(path);
    if (want.size() > 2 && want.front() == '{') {
      if (have.empty()) return std::nullopt;
      params.emplace_back(have);
    } else if (want != have) {
      return std::nullopt;
    }
  }
  if (!pattern.empty() || !path.empty()) return std::nullopt;
  return params;
}

}  // namespace

void Router::add(std::string method, std::string pattern, Handler handler, Access access, bool vital) {
  const bool literal = pattern.find('{') == std::string::npos;
  routes_.push_back(
      {std::move(method), std::move(pattern), std::move(handler), access, vital, false, literal});
}

void Router::compress(std::string_view below, std::string_view end) {
  for (Route& route : routes_)
    route.compresses = route.compresses || (route.pattern.starts_with(below) && route.pattern.ends_with(end));
}

Router::Match Router::match(std::string_view method, std::string_view path) const {
  Match found;
  if (path.empty() || path.front() != '/') return found;
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  for (const Route& route : routes_) {
    if (route.literal && route.pattern != path) continue;
    auto params = match_pattern(route.pattern, path);
    if (!params) continue;
    if (route.method == wanted) {
      found.route = &route;
      found.params = std::move(*params);
      found.allow.clear();
      return found;
    }
    if (found.allow.find(route.method) == std::string::npos) {
      found.allow += (found.allow.empty() ? "" : ", ") + route.method;
    }
  }
  return found;
}

}  // namespace oar::http
