// Appends JSON text to a string: what a streamed chunk costs is one escape of its text. Commas are placed by
// the writer; balance and key order are the caller's. Invalid UTF-8 in a string is replaced by U+FFFD, so the
// output is always valid JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/json.h"

namespace oar::api {

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& string(std::string_view text);
  JsonWriter& string_or_null(std::string_view text) { return text.empty() ? null() : string(text); }
  JsonWriter& number(int64_t v);
  JsonWriter& number(int32_t v) { return number(static_cast<int64_t>(v)); }
  JsonWriter& number(uint64_t v);
  // NaN and infinities, which JSON lacks, become null.
  JsonWriter& number(double v);
  JsonWriter& number(float v);
  JsonWriter& boolean(bool v);
  JsonWriter& null();
  JsonWriter& value(const json::value& v);
  // Text that is JSON already.
  JsonWriter& raw(std::string_view text);

 private:
  JsonWriter& open(char c);
  JsonWriter& close(char c);
  void separate();

  std::string& out_;
  bool comma_ = false;  // the next value or key needs one before it
};

}  // namespace oar::api
