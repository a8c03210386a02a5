// Which handler answers a method and path. Patterns are literal segments, {name} for one segment and a final
// {name*} for the rest (model names may hold slashes). Built before serving, read-only afterwards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace oar::http {

struct Route {
  std::string method;
  std::string pattern;
  Handler handler;
  bool open = false;  // answered without an API key
};

class Router {
 public:
  // A GET route answers HEAD too. Routes are tried in order of registration.
  void add(std::string method, std::string pattern, Handler handler, bool open = false);

  struct Match {
    const Route* route = nullptr;     // null: no such path, or not with this method
    std::vector<std::string> params;  // {..} segments in order
    std::string allow;                // when the path exists for other methods: their list
  };
  Match match(std::string_view method, std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace oar::http
