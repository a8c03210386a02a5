// The one translation unit that compiles Boost.JSON.
#include "engine/base/json.h"

#include <boost/json/src.hpp>
#include <cmath>

#include "engine/base/format.h"

namespace oar {
namespace {

// Boost.JSON turns 1e999 into infinity; a document that says so is wrong, whoever reads it later.
bool all_finite(const json::value& v) {
  switch (v.kind()) {
    case json::kind::double_: return std::isfinite(v.get_double());
    case json::kind::array:
      for (const auto& e : v.get_array())
        if (!all_finite(e)) return false;
      return true;
    case json::kind::object:
      for (const auto& e : v.get_object())
        if (!all_finite(e.value())) return false;
      return true;
    default: return true;
  }
}

}  // namespace

Result<json::value> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::stream_parser parser({}, options);
  json::error_code ec;
  const size_t used = parser.write_some(text.data(), text.size(), ec);
  if (!ec && used < text.size()) {
    return invalid_argument(cat(what, " has extra characters after the JSON document, at byte ", used));
  }
  if (!ec) parser.finish(ec);
  if (ec == json::error::too_deep) {
    return invalid_argument(cat(what, " nests deeper than ", limits.max_depth, " levels, near byte ", used));
  }
  if (ec) return invalid_argument(cat(what, " is not valid JSON near byte ", used, ": ", ec.message()));
  json::value v = parser.release();
  if (!all_finite(v)) return invalid_argument(cat(what, " holds a number outside the range of a double"));
  return v;
}

}  // namespace oar
