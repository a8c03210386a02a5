// The one translation unit that compiles Boost.JSON.
#include "engine/base/json.h"

#include <boost/json/src.hpp>
#include <cmath>
#include <limits>

#include "engine/base/format.h"

namespace oar {
namespace {

bool may_be_infinite(const json::value& v) {
  return v.is_structured() || (v.is_double() && !std::isfinite(v.get_double()));
}

// Boost.JSON turns 1e999 into infinity; a document that says so is wrong, whoever reads it later. True when
// one was found, with the keys and indexes that lead to it in `path`.
bool find_infinite(const json::value& v, std::string& path) {
  const size_t length = path.size();
  if (const json::array* list = v.if_array()) {
    for (size_t i = 0; i < list->size(); ++i) {
      if (!may_be_infinite((*list)[i])) continue;
      path += cat("[", i, "]");
      if (find_infinite((*list)[i], path)) return true;
      path.resize(length);
    }
    return false;
  }
  if (const json::object* object = v.if_object()) {
    for (const auto& e : *object) {
      if (!may_be_infinite(e.value())) continue;
      if (length > 0) path += '.';
      path.append(e.key().data(), e.key().size());
      if (find_infinite(e.value(), path)) return true;
      path.resize(length);
    }
    return false;
  }
  return may_be_infinite(v);
}

constexpr const char* kFloatTag = "__float__";
struct SpecialFloat {
  std::string_view word;
  double value;
};
constexpr SpecialFloat kSpecialFloats[] = {{"-Infinity", -std::numeric_limits<double>::infinity()},
                                           {"Infinity", std::numeric_limits<double>::infinity()},
                                           {"NaN", std::numeric_limits<double>::quiet_NaN()}};

// `text` with Python's words for numbers tagged; those within strings stay.
std::string tag_special_floats(std::string_view text) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    const SpecialFloat* found = nullptr;
    for (const SpecialFloat& f : kSpecialFloats)
      if (!quoted && found == nullptr && text.substr(i).starts_with(f.word)) found = &f;
    if (found != nullptr) {
      out += cat("{\"", kFloatTag, "\":\"", found->word, "\"}");
      i += found->word.size() - 1;
      continue;
    }
    out += text[i];
    if (quoted && text[i] == '\\' && i + 1 < text.size()) out += text[++i];
  }
  return out;
}

}  // namespace

bool is_empty(const json::value& v) {
  return v.is_null() || v == json::value(false) || (v.is_string() && v.get_string().empty()) ||
         (v.is_array() && v.get_array().empty()) || (v.is_object() && v.get_object().empty());
}

std::optional<double> special_float(const json::value& v) {
  const json::object* o = v.if_object();
  const json::value* word = o != nullptr && o->size() == 1 ? o->if_contains(kFloatTag) : nullptr;
  if (word == nullptr || !word->is_string()) return std::nullopt;
  for (const SpecialFloat& f : kSpecialFloats)
    if (word->get_string() == f.word) return f.value;
  return std::nullopt;
}

Result<json::value> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (limits.python_floats) {
    JsonLimits plain = limits;
    plain.python_floats = false;
    return parse_json(tag_special_floats(text), what, plain);
  }
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
    return invalid_argument(cat(what, ": JSON nesting depth exceeds maximum allowed limit (",
                                limits.max_depth, "), near byte ", used));
  }
  if (ec) return invalid_argument(cat(what, " is not valid JSON near byte ", used, ": ", ec.message()));
  json::value v = parser.release();
  std::string path;
  if (find_infinite(v, path)) {
    return invalid_argument(cat(what, ": ", path, " is a number outside the range of a double"), path);
  }
  return v;
}

}  // namespace oar
