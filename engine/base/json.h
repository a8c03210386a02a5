// Boost.JSON, header-only: the one JSON library of the tree. parse_json() adds what it does not do: a
// size-aware depth limit, a refusal of trailing junk and numbers that overflow to infinity, and our Status.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string_view>

#include "engine/base/status.h"

namespace oar {

namespace json = boost::json;

struct JsonLimits {
  size_t max_depth = 64;
  // Files that Python wrote: Infinity, -Infinity and NaN, which JSON has not, become {"__float__":
  // "Infinity"}, as newer files of transformers have them (special_float()).
  bool python_floats = false;
};

// `what` names the document in messages ("config.json", "request body").
Result<json::value> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});

// Whether a value says nothing: null, false, or an empty text, array or object.
bool is_empty(const json::value& v);

// The number of {"__float__": "Infinity"}, "-Infinity" or "NaN"; none of another value.
std::optional<double> special_float(const json::value& v);

}  // namespace oar
