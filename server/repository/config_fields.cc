#include "server/repository/config_fields.h"

#include "engine/base/format.h"
#include "server/api/fields.h"

namespace oar::config_fields {

Status wrong(std::string_view field, std::string_view wanted, const json::value& got) {
  return invalid_argument(cat("config: '", field, "' must be ", wanted, ", got ", api::describe(got)),
                          std::string(field));
}

Status read_int(const json::object& o, std::string_view field, int64_t min, int64_t max, int64_t& out) {
  const json::value* v = o.if_contains(json::string_view(field.data(), field.size()));
  if (!v || v->is_null()) return ok_status();
  json::error_code ec;
  int64_t number = 0;
  if (v->is_string()) {  // protobuf's JSON writes 64-bit integers as strings
    const json::value parsed = json::parse(v->get_string(), ec);
    if (!ec && parsed.is_int64()) number = parsed.get_int64();
    else ec = json::error::not_number;
  } else {
    number = v->to_number<int64_t>(ec);
  }
  if (ec || number < min || number > max)
    return wrong(field, cat("an integer in [", min, ", ", max, "]"), *v);
  out = number;
  return ok_status();
}

Status read_bool(const json::object& o, std::string_view field, bool& out) {
  const json::value* v = o.if_contains(json::string_view(field.data(), field.size()));
  if (!v || v->is_null()) return ok_status();
  if (!v->is_bool()) return wrong(field, "true or false", *v);
  out = v->get_bool();
  return ok_status();
}

Result<std::string> read_string(const json::object& o, std::string_view field) {
  const json::value* v = o.if_contains(json::string_view(field.data(), field.size()));
  if (!v || v->is_null()) return std::string();
  if (!v->is_string()) return wrong(field, "a string", *v);
  return std::string(v->get_string());
}

std::vector<const json::value*> each(const json::object& o, std::string_view field) {
  std::vector<const json::value*> out;
  const json::value* v = o.if_contains(json::string_view(field.data(), field.size()));
  if (!v || v->is_null()) return out;
  if (!v->is_array()) return {v};
  for (const json::value& x : v->get_array()) out.push_back(&x);
  return out;
}

Result<std::vector<int64_t>> read_ints(const json::object& o, std::string_view field, int64_t min,
                                       int64_t max) {
  std::vector<int64_t> out;
  for (const json::value* v : each(o, field)) {
    json::object one;
    one[json::string_view(field.data(), field.size())] = *v;
    OAR_RETURN_IF_ERROR(read_int(one, field, min, max, out.emplace_back(min)));
  }
  return out;
}

Result<const json::object*> message(const json::object& o, std::string_view field) {
  const json::value* v = o.if_contains(json::string_view(field.data(), field.size()));
  if (!v || v->is_null()) return static_cast<const json::object*>(nullptr);
  if (!v->is_object()) return wrong(field, "a message", *v);
  return &v->get_object();
}

Result<std::vector<std::pair<std::string, const json::value*>>> entries(const json::object& o,
                                                                        std::string_view field) {
  std::vector<std::pair<std::string, const json::value*>> out;
  const auto add = [&](std::string key, const json::value& value) -> Status {
    for (const auto& [known, other] : out)
      if (known == key) return invalid_argument(cat("config: '", field, "' has the key '", key, "' twice"));
    out.emplace_back(std::move(key), &value);
    return ok_status();
  };
  for (const json::value* v : each(o, field)) {
    if (!v->is_object()) return wrong(field, "a map", *v);
    const json::object& pair = v->get_object();
    const json::value* key = pair.if_contains("key");
    const json::value* value = pair.if_contains("value");
    if (pair.size() == 2 && key && value && key->is_string()) {
      OAR_RETURN_IF_ERROR(add(std::string(key->get_string()), *value));
      continue;
    }
    for (const auto& member : pair) OAR_RETURN_IF_ERROR(add(std::string(member.key()), member.value()));
  }
  return out;
}

Result<std::vector<std::pair<std::string, std::string>>> read_map(const json::object& o,
                                                                  std::string_view field) {
  std::vector<std::pair<std::string, std::string>> out;
  OAR_ASSIGN(const auto all, entries(o, field));
  for (const auto& [key, value] : all) {
    if (!value->is_string()) return wrong(field, "a map of strings", *value);
    out.emplace_back(key, std::string(value->get_string()));
  }
  return out;
}

}  // namespace oar::config_fields
