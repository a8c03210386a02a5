// /openapi.json's description of answers, held against answers.
#pragma once

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/format.h"
#include "tests/server/json_schema.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace oar_test {

inline constexpr const char* kJson = "application/json";

// The description, and what of it was met.
class Described {
 public:
  using object = oar::json::object;
  using value = oar::json::value;
  explicit Described(const object& api)
      : paths_(api.at("paths").as_object()), schemas_(api.at("components").at("schemas").as_object()) {}

  struct Asked {
    std::string method, path, body = {};
    std::vector<std::string> names = {};  // for the {} of the path, in order
    std::string query = {};
    const char* content_type = kJson;
    std::vector<std::pair<std::string, std::string>> headers = {};  // more of them
  };
  // The answer, which is one of those described.
  HttpReply ask(int port, const Asked& a) {
    const value& responses = operation(a.method, a.path).at("responses");
    std::string path;
    size_t next = 0;
    for (size_t at = 0; at < a.path.size(); ++at) {
      if (a.path[at] != '{') {
        path += a.path[at];
        continue;
      }
      path += next < a.names.size() ? a.names[next++] : "x";
      at = a.path.find('}', at);
    }
    auto headers = a.headers;
    headers.emplace_back("Content-Type", a.content_type);
    HttpReply r = http(port, a.method, path + a.query, a.body, headers);
    INFO(a.method << " " << path << " " << a.body.substr(0, 300) << "\n" << r.body.substr(0, 3000));
    const value* const done = responses.as_object().if_contains("200");
    if (done == nullptr) {
      CHECK(r.status >= 400);
      hold(parse(r.body), responses.at("default").at("content").at(kJson).at("schema"));
      met_.insert(oar::cat(a.method, " ", a.path, " never"));
      return r;
    }
    CHECK(r.status == 200);
    if (r.status != 200) return r;
    const object none;
    const value* const given = done->as_object().if_contains("content");
    const object& content = given ? given->as_object() : none;
    std::string type = r.headers["content-type"];
    type = type.substr(0, type.find(';'));
    met_.insert(oar::cat(a.method, " ", a.path, " ", type));
    if (r.body.empty()) {
      CHECK(content.empty());
      return r;
    }
    CHECK(content.contains(type));
    if (!content.contains(type)) return r;
    const object& media = content.at(type).as_object();
    if (type == kJson) {
      hold(parse(r.body), media.at("schema"));
      const bool vague =
          media.at("schema").as_object().contains("type") && media.at("schema").at("type") == "object";
      CHECK((!vague || a.path == "/openapi.json"));
    } else if (type == "text/event-stream") {
      const value& data = media.at("schema").at("properties").at("data");
      CHECK(hold_lines(r.body, "data: ", data.at("contentSchema")) > 1);
    } else if (type == "application/x-ndjson") {
      CHECK(hold_lines(r.body, "", media.at("schema")) > 1);
    } else if (const std::string length = r.headers["inference-header-content-length"]; !length.empty()) {
      hold(parse(r.body.substr(0, std::stoul(length))), content.at(kJson).at("schema"));
    }
    return r;
  }

  // Of a refusal.
  void refuse(int port, const char* method, const char* path, const char* body) {
    const HttpReply r = http(port, method, path, body, {{"Content-Type", kJson}});
    CHECK(r.status >= 400);
    const value& responses = operation(method, path).at("responses");
    hold(parse(r.body), responses.at("default").at("content").at(kJson).at("schema"));
  }

  bool has(const std::string& method, const std::string& path) const { return find(method, path) != nullptr; }

  // Answers and fields that are described and were never met.
  std::vector<std::string> missing() const {
    std::vector<std::string> out = schemas_.unseen();
    const auto want = [&](const std::string& what) {
      if (!met_.contains(what)) out.push_back(what);
    };
    for (const auto& [path, item] : paths_)
      for (const auto& [method, op] : item.as_object()) {
        const std::string of = oar::cat(upper(method), " ", std::string_view(path), " ");
        const value* const done = op.at("responses").as_object().if_contains("200");
        if (done == nullptr) want(of + "never");
        else if (!done->as_object().contains("content")) want(of);
        else
          for (const auto& [type, media] : done->at("content").as_object())
            want(oar::cat(of, std::string_view(type)));
      }
    return out;
  }

 private:
  static std::string upper(std::string_view method) {
    std::string out;
    for (const char c : method) out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    return out;
  }
  const value* find(const std::string& method, const std::string& path) const {
    const value* const item = paths_.if_contains(path);
    if (item != nullptr)
      for (const auto& [name, op] : item->as_object())
        if (upper(name) == method) return &op;
    return nullptr;
  }
  const value& operation(const std::string& method, const std::string& path) const {
    INFO(method << " " << path);
    const value* const found = find(method, path);
    REQUIRE(found != nullptr);
    return *found;
  }
  // Of the lines that begin so; their number.
  size_t hold_lines(const std::string& body, const std::string& begin, const value& schema) {
    size_t count = 0;
    std::istringstream lines(body);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(begin) || line == begin + "[DONE]") continue;
      hold(parse(line.substr(begin.size())), schema);
      ++count;
    }
    return count;
  }
  void hold(const value& v, const value& schema) { CHECK(schemas_.fault(v, schema.as_object()) == ""); }

  const object paths_;
  JsonSchemas schemas_;
  std::set<std::string> met_;  // "METHOD PATH TYPE"
};

}  // namespace oar_test
