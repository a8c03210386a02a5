// Which handler answers a method and path. Patterns are literal segments, {name} for one segment and a final
// {name*} for the rest (model names may hold slashes). Built before serving, read-only afterwards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace oar::http {

// Whose requests a route answers.
enum class Access {
  kKey,    // who has an API key, where keys are asked for
  kOpen,   // everybody
  kAdmin,  // who has an admin key, where there are any; otherwise as kKey
};

struct Route {
  std::string method;
  std::string pattern;
  Handler handler;
  Access access = Access::kKey;
  bool vital = false;       // answered also when the server has no connection left for anything else
  bool compresses = false;  // whole answers, for clients that take it
  bool literal = false;     // the pattern is the path
};

class Router {
 public:
  // A GET route answers HEAD too. Routes are tried in order of registration.
  void add(std::string method, std::string pattern, Handler handler, Access access = Access::kKey,
           bool vital = false);

  // The routes below a path, of those registered so far, compress whose patterns end so.
  void compress(std::string_view below, std::string_view end);

  struct Match {
    const Route* route = nullptr;     // null: no such path, or not with this method
    std::vector<std::string> params;  // {..} segments in order
    std::string allow;                // when the path exists for other methods: their list
  };
  Match match(std::string_view method, std::string_view path) const;
  const std::vector<Route>& routes() const { return routes_; }  // in order of registration

 private:
  std::vector<Route> routes_;
};

}  // namespace oar::http
