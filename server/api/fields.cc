#include "server/api/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/base/format.h"
#include "engine/base/nearest.h"
#include "engine/text/json_text.h"
#include "engine/text/utf8.h"
#include "server/api/field_rules.h"
#include "server/api/json_writer.h"
#include "server/api/unread_fields.h"

namespace oar::api {

namespace {
// Bytes bound characters, as no character has less than one.
json::object text_schema(size_t min_bytes, size_t max_bytes) {
  json::object out{{"type", "string"}};
  if (min_bytes > 0) out["minLength"] = 1;
  if (max_bytes < SIZE_MAX) out["maxLength"] = max_bytes;
  return out;
}
}  // namespace

std::string describe(const json::value& v) {
  if (v.is_object()) return cat("an object of ", v.get_object().size(), " keys");
  if (v.is_array()) return cat("an array of ", v.get_array().size(), " elements");
  if (!v.is_string()) return json::serialize(v);
  std::string_view text(v.get_string().data(), v.get_string().size());
  std::string out;
  if (text.size() <= 40) {
    append_json_string(out, text);
    return out;
  }
  append_json_string(out, repair_utf8(text.substr(0, previous_utf8(text, 40))));
  return cat(out, "... (", text.size(), " bytes)");
}

FieldList::Field& FieldList::field(std::string_view name) {
  const auto it =
      std::find_if(fields_.begin(), fields_.end(), [&](const Field& f) { return f.name == name; });
  return it != fields_.end() ? *it : fields_.emplace_back(Field{std::string(name), {}, false});
}

void FieldList::add(std::string_view name, json::object schema) {
  Field& f = field(name);
  if (schema.empty()) return;
  if (std::find(f.types.begin(), f.types.end(), json::value(schema)) == f.types.end())
    f.types.emplace_back(std::move(schema));
}

void FieldList::require(std::string_view name) { field(name).required = true; }

void Fields::require(std::string_view name, std::string_view remedy) {
  if (list_) list_->require(name);
  else if (!find(name)) fail(name, cat(path_of(name), " is missing; ", remedy));
}

const json::value* Fields::find(std::string_view name) const {
  asked_.push_back(name);
  describe_field(name, {});
  const json::value* v = object_.if_contains(json::string_view(name.data(), name.size()));
  return v == nullptr || v->is_null() ? nullptr : v;
}

void Fields::fail(std::string_view name, std::string message) {
  if (list_ == nullptr && status_.ok()) status_ = invalid_argument(std::move(message), path_of(name));
}

void Fields::wrong_type(std::string_view name, std::string_view wanted, const json::value& got) {
  fail(name, cat(path_of(name), " must be ", wanted, ", got ", describe(got)));
}

void Fields::unsupported(std::string_view name, std::string_view remedy) {
  if (find(name)) fail(name, cat(path_of(name), " is not supported; ", remedy));
}

void Fields::refuse_rest() {
  if (list_ != nullptr) {
    status_ = Status(StatusCode::kCancelled, "the request was described, not read");
    return;
  }
  for (const auto& entry : object_) {
    if (!ok()) return;
    const std::string_view key(entry.key().data(), entry.key().size());
    if (entry.value().is_null() || std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    const std::string name =
        key.size() <= 64 ? std::string(key) : cat(repair_utf8(key.substr(0, previous_utf8(key, 64))), "...");
    if (const UnreadField* known = find_unread_field(key)) {
      if (asks_for_nothing(*known, entry.value())) continue;
      fail(name, cat(path_of(name), " ", describe(entry.value()), " is not supported; ", known->remedy));
      continue;
    }
    const std::string_view meant = nearest_name(name, asked_);
    fail(name, cat(path_of(name), " is no field of this request; ",
                   meant.empty() ? std::string("leave it out") : cat("did you mean ", meant, "?")));
  }
}

void Fields::boolean(std::string_view name, bool& out) {
  describe_field(name, {{"type", "boolean"}});
  const json::value* v = ok() ? find(name) : nullptr;
  if (!v) return;
  if (!v->is_bool()) return wrong_type(name, "true or false", *v);
  out = v->get_bool();
}

std::optional<int64_t> Fields::as_integer(std::string_view name, int64_t min, int64_t max) {
  describe_field(name, {{"type", "integer"}, {"minimum", min}, {"maximum", max}});
  const json::value* v = ok() ? find(name) : nullptr;
  if (!v) return std::nullopt;
  auto out_of_range = [&] {
    fail(name, rules::outside(path_of(name), "an integer", min, max, describe(*v)));
    return std::nullopt;
  };
  int64_t value = 0;
  if (v->is_int64()) {
    value = v->get_int64();
  } else if (v->is_uint64()) {
    return out_of_range();  // Boost.JSON uses uint64 only beyond int64
  } else if (v->is_double() && v->get_double() == std::nearbyint(v->get_double())) {
    if (std::fabs(v->get_double()) > 9007199254740992.0) return out_of_range();  // 2^53: exact up to here
    value = static_cast<int64_t>(v->get_double());
  } else {
    wrong_type(name, "an integer", *v);
    return std::nullopt;
  }
  if (value < min || value > max) return out_of_range();
  return value;
}

void Fields::integer(std::string_view name, int64_t& out, int64_t min, int64_t max) {
  if (const auto v = as_integer(name, min, max)) out = *v;
}

void Fields::integer(std::string_view name, int32_t& out, int32_t min, int32_t max) {
  if (const auto v = as_integer(name, min, max)) out = static_cast<int32_t>(*v);
}

void Fields::integer(std::string_view name, std::optional<int64_t>& out, int64_t min, int64_t max) {
  if (const auto v = as_integer(name, min, max)) out = v;
}

void Fields::bits(std::string_view name, std::optional<uint64_t>& out) {
  describe_field(name, {{"type", "integer"}, {"minimum", INT64_MIN}, {"maximum", UINT64_MAX}});
  const json::value* v = ok() ? find(name) : nullptr;
  if (!v) return;
  if (v->is_int64()) {
    out = static_cast<uint64_t>(v->get_int64());
  } else if (v->is_uint64()) {
    out = v->get_uint64();
  } else {
    wrong_type(name, "an integer that fits 64 bits", *v);
  }
}

std::optional<double> Fields::as_number(std::string_view name, double min, double max) {
  describe_field(name, {{"type", "number"}, {"minimum", min}, {"maximum", max}});
  const json::value* v = ok() ? find(name) : nullptr;
  if (!v) return std::nullopt;
  if (!v->is_number()) {
    wrong_type(name, "a number", *v);
    return std::nullopt;
  }
  const double value = v->is_double()  ? v->get_double()
                       : v->is_int64() ? static_cast<double>(v->get_int64())
                                       : static_cast<double>(v->get_uint64());
  if (!(value >= min && value <= max)) {
    fail(name, rules::outside(path_of(name), "a number", min, max, describe(*v)));
    return std::nullopt;
  }
  return value;
}

void Fields::number(std::string_view name, float& out, double min, double max) {
  if (const auto v = as_number(name, min, max)) out = static_cast<float>(*v);
}

void Fields::number(std::string_view name, std::optional<double>& out, double min, double max) {
  if (const auto v = as_number(name, min, max)) out = v;
}

void Fields::string(std::string_view name, std::string& out, size_t max_bytes) {
  describe_field(name, text_schema(0, max_bytes));
  const json::value* v = ok() ? find(name) : nullptr;
  if (!v) return;
  if (!v->is_string()) return wrong_type(name, "a string", *v);
  if (v->get_string().size() > max_bytes) {
    return fail(name, rules::too_long(path_of(name), v->get_string().size(), max_bytes));
  }
  out.assign(v->get_string().data(), v->get_string().size());
}

void Fields::strings(std::string_view name, std::vector<std::string>& out, size_t max_count,
                     size_t max_bytes) {
  describe_field(name, text_schema(1, max_bytes));
  describe_field(name, {{"type", "array"}, {"items", text_schema(1, max_bytes)}, {"maxItems", max_count}});
  const json::value* v = ok() ? find(name) : nullptr;
  if (!v) return;
  auto add = [&](const json::value& element, const std::string& where) {
    if (!element.is_string()) return wrong_type(where, "a string", element);
    const auto& text = element.get_string();
    if (text.empty()) return fail(where, rules::empty(path_of(where)));
    if (text.size() > max_bytes) {
      return fail(where, rules::too_long(path_of(where), text.size(), max_bytes));
    }
    out.emplace_back(text.data(), text.size());
  };
  if (!v->is_array()) {
    if (!v->is_string()) return wrong_type(name, "a string or an array of strings", *v);
    return add(*v, std::string(name));
  }
  const json::array& list = v->get_array();
  if (list.size() > max_count)
    return fail(name, rules::too_many(path_of(name), "elements", list.size(), max_count));
  for (size_t i = 0; i < list.size() && ok(); ++i) add(list[i], cat(name, "[", i, "]"));
}

void Fields::integers(std::string_view name, std::vector<int32_t>& out, size_t max_count, int64_t min,
                      int64_t max) {
  describe_field(name, {{"type", "array"},
                        {"items", {{"type", "integer"}, {"minimum", min}, {"maximum", max}}},
                        {"maxItems", max_count}});
  const json::array* list = array_in(name);
  if (!list) return;
  if (list->size() > max_count)
    return fail(name, rules::too_many(path_of(name), "elements", list->size(), max_count));
  out.reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    const json::value& v = (*list)[i];
    if (!v.is_int64() || v.get_int64() < min || v.get_int64() > max) {
      const std::string where = cat(name, "[", i, "]");
      return fail(where, rules::outside(path_of(where), "an integer", min, max, describe(v)));
    }
    out.push_back(static_cast<int32_t>(v.get_int64()));
  }
}

void Fields::weights(std::string_view name, std::vector<std::pair<int32_t, float>>& out, size_t max_count,
                     int64_t ids, double min, double max) {
  describe_field(name, {{"type", "object"},
                        {"maxProperties", max_count},
                        {"propertyNames", {{"pattern", "^[0-9]+$"}}},
                        {"additionalProperties", {{"type", "number"}, {"minimum", min}, {"maximum", max}}}});
  const json::object* given = object_in(name);
  if (!given) return;
  if (given->size() > max_count)
    return fail(name, rules::too_many(path_of(name), "entries", given->size(), max_count));
  const auto id_in = [ids](std::string_view key) {
    int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
    return whole && id < ids ? id : -1;
  };
  constexpr int kNamed = 8;  // of those that are wrong
  std::string wrong;
  int count = 0;
  for (const auto& entry : *given)
    if (id_in(entry.key()) < 0 && count++ < kNamed)
      wrong += cat(wrong.empty() ? "" : ", ", describe(json::value(entry.key())));
  if (count > kNamed) wrong += cat(" and ", count - kNamed, " more");
  if (count > 0) return fail(name, rules::weighted_token(path_of(name), wrong, ids));
  for (const auto& entry : *given) {
    const int64_t id = id_in(entry.key());
    json::error_code ec;
    const double value = entry.value().to_number<double>(ec);
    if (ec || !(value >= min && value <= max))
      return fail(name, rules::weight(path_of(name), id, min, max, describe(entry.value())));
    out.emplace_back(static_cast<int32_t>(id), static_cast<float>(value));
  }
}

const json::object* Fields::object(std::string_view name) {
  describe_field(name, {{"type", "object"}});
  return object_in(name);
}

const json::array* Fields::array(std::string_view name) {
  describe_field(name, {{"type", "array"}});
  return array_in(name);
}

const json::object* Fields::object_in(std::string_view name) {
  const json::value* v = ok() ? find(name) : nullptr;
  if (!v) return nullptr;
  if (!v->is_object()) {
    wrong_type(name, "an object", *v);
    return nullptr;
  }
  return &v->get_object();
}

const json::array* Fields::array_in(std::string_view name) {
  const json::value* v = ok() ? find(name) : nullptr;
  if (!v) return nullptr;
  if (!v->is_array()) {
    wrong_type(name, "an array", *v);
    return nullptr;
  }
  return &v->get_array();
}

}  // namespace oar::api
