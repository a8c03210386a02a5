// Typed reading of one JSON object of a request. The first fault sticks and later reads do nothing. So a
// parser reads all its fields in a row, calls refuse_rest(), and asks for status() once. An absent field and
// an explicit null both leave the output alone; a wrong type or a value out of range is INVALID_ARGUMENT
// naming field, value and remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar::api {

// What a parser asks of an object: names, types and bounds as JSON Schema, in the order of asking. A parser
// that is given an empty object and a list tells all that it reads; no fault ends it before refuse_rest(),
// which always does. That is how /openapi.json is true.
class FieldList {
 public:
  struct Field {
    std::string name;
    json::array types;  // schemas, any of which holds; empty: nothing was said
    bool required = false;
  };
  void add(std::string_view name, json::object schema);  // empty: only that it is read
  void require(std::string_view name);
  const std::vector<Field>& fields() const { return fields_; }

 private:
  Field& field(std::string_view name);
  std::vector<Field> fields_;
};

// An object to read, or with a list one to describe.
struct RequestBody {
  RequestBody(const json::object& o) : object(o) {}  // NOLINT: bodies are objects
  RequestBody(const json::object& o, FieldList& l) : object(o), list(&l) {}
  const json::object& object;
  FieldList* list = nullptr;
};

class Fields {
 public:
  // `path` prefixes names in messages, for instance "messages[2]."; the object must outlive this, as must
  // every name that is asked for.
  explicit Fields(const RequestBody& body, std::string path = {})
      : object_(body.object), list_(body.list), path_(std::move(path)) {}

  void boolean(std::string_view name, bool& out);
  // Integers, also written as an integral double; [min, max].
  void integer(std::string_view name, int64_t& out, int64_t min, int64_t max);
  void integer(std::string_view name, int32_t& out, int32_t min, int32_t max);
  void integer(std::string_view name, std::optional<int64_t>& out, int64_t min, int64_t max);
  // Any 64-bit integer, negative ones modulo 2^64 (seeds).
  void bits(std::string_view name, std::optional<uint64_t>& out);
  void number(std::string_view name, float& out, double min, double max);
  void number(std::string_view name, std::optional<double>& out, double min, double max);
  void string(std::string_view name, std::string& out, size_t max_bytes);
  // A string or an array of strings, none empty.
  void strings(std::string_view name, std::vector<std::string>& out, size_t max_count, size_t max_bytes);
  void integers(std::string_view name, std::vector<int32_t>& out, size_t max_count, int64_t min, int64_t max);
  // {"<id>": number}: ids in [0, ids), which JSON writes as strings, and numbers in [min, max].
  void weights(std::string_view name, std::vector<std::pair<int32_t, float>>& out, size_t max_count,
               int64_t ids, double min, double max);

  // Faults where it is absent or null.
  void require(std::string_view name, std::string_view remedy);
  // The value, or null when absent or null.
  const json::value* find(std::string_view name) const;
  const json::object* object(std::string_view name);
  const json::array* array(std::string_view name);
  // Refuses a field that would change the answer in a way this server does not offer, when present and not
  // null.
  void unsupported(std::string_view name, std::string_view remedy);
  // To be called when everything has been asked for: refuses each field of the object that has not been,
  // unless it cannot change the answer or its value asks for nothing (unread_fields.h). A field that nobody
  // knows is refused with the nearest of those that were asked for.
  void refuse_rest();

  void fail(std::string_view name, std::string message);
  std::string path_of(std::string_view name) const { return path_ + std::string(name); }
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  const json::object* object_in(std::string_view name);
  const json::array* array_in(std::string_view name);
  void wrong_type(std::string_view name, std::string_view wanted, const json::value& got);
  std::optional<int64_t> as_integer(std::string_view name, int64_t min, int64_t max);
  std::optional<double> as_number(std::string_view name, double min, double max);

  // For the list, if there is one.
  void describe_field(std::string_view name, json::object schema) const {
    if (list_) list_->add(name, std::move(schema));
  }
  const json::object& object_;
  FieldList* const list_;
  std::string path_;
  Status status_;
  mutable std::vector<std::string_view> asked_;  // what find() has been asked for
};

// What a value looks like in an error message: its JSON text, shortened.
std::string describe(const json::value& v);

}  // namespace oar::api
