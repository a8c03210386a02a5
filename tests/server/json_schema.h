// Holds values against the schemas of /openapi.json, as far as those go: what they do not use is refused.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "tests/support/catch.h"

namespace oar_test {

class JsonSchemas {
 public:
  using Object = oar::json::object;
  using Value = oar::json::value;
  // By name, as in "#/components/schemas/NAME".
  explicit JsonSchemas(Object named) : named_(std::move(named)) {}

  // Where and why `v` is not as `schema` says; empty: it is.
  std::string fault(const Value& v, const Object& schema, const std::string& at = "$") {
    return fault(v, schema, at, "");
  }

  // "NAME.FIELD" that no value had so far.
  std::vector<std::string> unseen() const {
    std::vector<std::string> out;
    for (const auto& [name, schema] : named_)
      for (const auto& [field, type] : schema.at("properties").as_object())
        if (std::string both = oar::cat(std::string_view(name), ".", std::string_view(field));
            !seen_.contains(both))
          out.push_back(std::move(both));
    return out;
  }

 private:
  // `name`: what the schema is called; empty: nothing.
  std::string fault(const Value& v, const Object& schema, const std::string& at, const std::string& name) {
    for (const auto& [word, rule] : schema) {
      const std::string_view w = word;
      if (w == "required" || w == "items") continue;  // with the type
      if (w == "$ref") {
        const std::string to(rule.as_string().subview(rule.as_string().rfind('/') + 1));
        const Value* found = named_.if_contains(to);
        if (found == nullptr) return at + ": there is no schema " + to;
        return fault(v, found->as_object(), at, to);
      }
      std::string f;
      if (w == "anyOf") f = fits_none(v, rule.as_array(), at);
      else if (w == "type") f = is(v, rule.as_string()) ? "" : oar::cat(at, ": is no ", text(rule));
      else if (w != "properties" && w != "additionalProperties")
        f = at + ": a rule unknown here: " + text(rule);
      if (!f.empty()) return f;
    }
    if (const auto* list = v.if_array())
      if (const Value* items = schema.if_contains("items"))
        for (size_t k = 0; k < list->size(); ++k)
          if (std::string f = fault((*list)[k], items->as_object(), oar::cat(at, "[", k, "]"), "");
              !f.empty())
            return f;
    return v.is_object() ? members(v.as_object(), schema, at, name) : "";
  }
  std::string members(const Object& o, const Object& schema, const std::string& at, const std::string& name) {
    if (const Value* required = schema.if_contains("required"))
      for (const Value& field : required->as_array())
        if (!o.contains(field.as_string())) return oar::cat(at, ": has no ", text(field));
    const Value* const properties = schema.if_contains("properties");
    const Value* const others = schema.if_contains("additionalProperties");
    for (const auto& [field, value] : o) {
      const std::string where = oar::cat(at, ".", std::string_view(field));
      const Value* type = properties ? properties->as_object().if_contains(field) : nullptr;
      if (type != nullptr) seen_.insert(oar::cat(name, ".", std::string_view(field)));
      else if (others != nullptr && others->is_bool() && !others->as_bool())
        return where + ": is not described";
      else if (others != nullptr && others->is_object()) type = others;
      if (type == nullptr) continue;
      if (std::string f = fault(value, type->as_object(), where, ""); !f.empty()) return f;
    }
    return "";
  }
  std::string fits_none(const Value& v, const oar::json::array& schemas, const std::string& at) {
    std::string all;
    for (const Value& one : schemas) {
      const std::set<std::string> before = seen_;
      const std::string f = fault(v, one.as_object(), at, "");
      if (f.empty()) return "";
      seen_ = before;
      all += all.empty() ? f : " and " + f;
    }
    return all;
  }
  static bool is(const Value& v, std::string_view type) {
    const bool whole = v.is_int64() || v.is_uint64();
    return type == "object"    ? v.is_object()
           : type == "array"   ? v.is_array()
           : type == "string"  ? v.is_string()
           : type == "boolean" ? v.is_bool()
           : type == "null"    ? v.is_null()
           : type == "integer" ? whole
                               : type == "number" && v.is_number();
  }
  static std::string text(const Value& v) { return oar::json::serialize(v); }

  const Object named_;
  std::set<std::string> seen_;
};

}  // namespace oar_test
