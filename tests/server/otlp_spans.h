// The spans of a trace in OpenTelemetry's JSON. Reading them checks the rules of the encoding.
#pragma once

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "tests/support/catch.h"

namespace oar_test {

using oar::cat;
using Object = oar::json::object;

inline constexpr const char* kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
inline constexpr const char* kCaller = "00f067aa0ba902b7";
inline std::string parent(const char* flags = "01") { return cat("00-", kTrace, "-", kCaller, "-", flags); }

inline std::string text(const oar::json::value& v) { return std::string(v.as_string()); }
inline bool is_hex(const std::string& s, size_t length) {
  return s.size() == length && s.find_first_not_of("0123456789abcdef") == s.npos &&
         s.find_first_not_of('0') != s.npos;
}
inline void only(const Object& o, const std::set<std::string>& allowed) {
  for (const auto& m : o) {
    INFO(oar::json::serialize(o));
    CHECK(allowed.contains(std::string(m.key())));
  }
}

// https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: a value is one of these members.
inline void check_value(const Object& value) {
  REQUIRE(value.size() == 1);
  const auto& [kind, v] = *value.begin();
  if (kind == "stringValue") {
    CHECK(v.is_string());
  } else if (kind == "intValue") {  // 64 bits are a string
    CHECK(text(v).find_first_not_of("-0123456789") == std::string::npos);
  } else {
    REQUIRE(kind == "arrayValue");
    for (const auto& item : v.at("values").as_array()) check_value(item.as_object());
  }
}
inline void check_attributes(const oar::json::array& list) {
  std::set<std::string> names;
  for (const auto& a : list) {
    only(a.as_object(), {"key", "value"});
    CHECK(names.insert(text(a.at("key"))).second);
    check_value(a.at("value").as_object());
  }
}

// The spans of a file in order; the rules of the encoding hold for every line.
inline std::vector<Object> spans_in(const std::string& path) {
  std::ifstream in(path);
  std::vector<Object> out;
  for (std::string line; std::getline(in, line);) {
    const oar::json::value request = oar::json::parse(line);
    only(request.as_object(), {"resourceSpans"});
    for (const auto& r : request.at("resourceSpans").as_array()) {
      only(r.as_object(), {"resource", "scopeSpans"});
      check_attributes(r.at("resource").at("attributes").as_array());
      for (const auto& s : r.at("scopeSpans").as_array()) {
        only(s.as_object(), {"scope", "spans"});
        CHECK(text(s.at("scope").at("name")) == "oar");
        for (const auto& span : s.at("spans").as_array()) {
          const Object& o = span.as_object();
          only(o, {"traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano",
                   "endTimeUnixNano", "attributes", "status"});
          CHECK(is_hex(text(o.at("traceId")), 32));
          CHECK(is_hex(text(o.at("spanId")), 16));
          if (o.contains("parentSpanId")) CHECK(is_hex(text(o.at("parentSpanId")), 16));
          CHECK(o.at("kind").is_int64());  // enums are numbers
          const std::string from = text(o.at("startTimeUnixNano")), to = text(o.at("endTimeUnixNano"));
          CHECK(from.size() == 19);
          CHECK(from <= to);
          check_attributes(o.at("attributes").as_array());
          if (o.contains("status")) CHECK(o.at("status").at("code") == 2);
          out.push_back(o);
        }
      }
    }
  }
  return out;
}
inline std::string attribute(const Object& span, const std::string& name) {
  for (const auto& a : span.at("attributes").as_array()) {
    if (text(a.at("key")) != name) continue;
    const Object& v = a.at("value").as_object();
    return v.begin()->value().is_string() ? text(v.begin()->value())
                                          : oar::json::serialize(v.begin()->value());
  }
  return "none";
}
inline const Object& called(const std::vector<Object>& spans, const std::string& name, size_t number = 0) {
  for (const Object& s : spans)
    if (text(s.at("name")) == name && number-- == 0) return s;
  FAIL("no span " << name);
  return spans.at(0);
}

}  // namespace oar_test
