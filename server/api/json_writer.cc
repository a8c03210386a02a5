#include "server/api/json_writer.h"

#include <charconv>
#include <cmath>

#include "engine/text/json_text.h"

namespace oar::api {
namespace {

template <class T>
void append_number(std::string& out, T v) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, v).ptr;
  out.append(text, static_cast<size_t>(end - text));
}

}  // namespace

void JsonWriter::separate() {
  if (comma_) out_ += ',';
  comma_ = true;
}

JsonWriter& JsonWriter::open(char c) {
  separate();
  out_ += c;
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char c) {
  out_ += c;
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_ += ':';
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  append_json_string(out_, text);
  return *this;
}

JsonWriter& JsonWriter::number(int64_t v) {
  separate();
  append_number(out_, v);
  return *this;
}

JsonWriter& JsonWriter::number(uint64_t v) {
  separate();
  append_number(out_, v);
  return *this;
}

JsonWriter& JsonWriter::number(double v) {
  if (!std::isfinite(v)) return null();
  separate();
  append_number(out_, v);
  return *this;
}

JsonWriter& JsonWriter::number(float v) {
  if (!std::isfinite(v)) return null();
  separate();
  append_number(out_, v);
  return *this;
}

JsonWriter& JsonWriter::boolean(bool v) { return raw(v ? "true" : "false"); }
JsonWriter& JsonWriter::null() { return raw("null"); }
JsonWriter& JsonWriter::value(const json::value& v) { return raw(json::serialize(v)); }

JsonWriter& JsonWriter::raw(std::string_view text) {
  separate();
  out_ += text;
  return *this;
}

}  // namespace oar::api
