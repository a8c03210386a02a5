#include "server/api/constraint_fields.h"

#include "engine/base/format.h"

namespace oar::api {
namespace {

using Kind = grammar::ConstraintSpec::Kind;

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr size_t kMaxChoices = 100'000;

class Reader {
 public:
  Reader(Fields& fields, grammar::ConstraintSpec& out) : root_(fields), out_(out) {}

  // {"type": "text" | "json_object" | "json_schema" | "structural_tag"}
  void response_format() {
    const json::object* format = root_.object("response_format");
    if (format == nullptr) return;
    Fields f(*format, "response_format.");
    std::string type;
    f.string("type", type, 64);
    if (type == "structural_tag")  // its compiler refuses members that are none
      return set(Kind::kStructuralTag, "response_format", json::serialize(*format));
    const bool object = type == "json_object";
    if (const json::object* named = type == "json_schema" ? f.object("json_schema") : nullptr) {
      // {"json_schema": {"name", "description", "strict", "schema"}}
      Fields n(*named, "response_format.json_schema.");
      read_schema_label(n);
      n.require("schema", "give the JSON schema");
      if (const json::value* schema = n.find("schema"))
        json_text(Kind::kJsonSchema, n.path_of("schema"), *schema);
      n.refuse_rest();
      if (!n.ok()) root_.fail(n.status().param(), n.status().message());
    } else if (const json::value* schema = object || type == "json_schema" ? f.find("schema") : nullptr) {
      json_text(Kind::kJsonSchema, "response_format.schema", *schema);  // llama.cpp, Together
    } else if (object) {
      set(Kind::kJsonObject, "response_format", {});
    } else if (type == "json_schema") {
      f.require("json_schema", "give {\"schema\": ...}");
    } else if (type != "text") {
      f.fail("type", cat("response_format.type is ", describe(json::value(type)),
                         "; use text, json_object, json_schema or structural_tag"));
    }
    f.refuse_rest();
    if (!f.ok()) root_.fail(f.status().param(), f.status().message());
  }

  // vLLM: one of json, regex, choice, grammar, json_object, structural_tag.
  void structured_outputs() {
    const json::object* given = root_.object("structured_outputs");
    if (given == nullptr) return;
    Fields f(*given, "structured_outputs.");
    for (const char* name : {"regex", "grammar"})
      if (const json::value* v = f.find(name); v && *v == "")
        f.fail(name, cat(f.path_of(name), " is empty; leave it out"));
    json_schema(f, "json");
    text(f, "regex", Kind::kRegex);
    text(f, "grammar", Kind::kGrammar);
    choice(f, "choice");
    tag(f, "structural_tag");
    bool object = false;
    f.boolean("json_object", object);
    if (object) set(Kind::kJsonObject, f.path_of("json_object"), {});
    for (const char* name : {"disable_any_whitespace", "disable_fallback", "disable_additional_properties"}) {
      bool on = false;
      f.boolean(name, on);
      if (on && std::string_view(name) != "disable_fallback")
        f.fail(name, cat(f.path_of(name), " is not supported; leave it out"));
    }
    f.refuse_rest();
    if (!f.ok()) root_.fail(f.status().param(), f.status().message());
  }

  void json_schema(Fields& f, std::string_view name) {
    if (const json::value* v = present(f, name)) json_text(Kind::kJsonSchema, f.path_of(name), *v);
  }
  void tag(Fields& f, std::string_view name) {
    if (const json::value* v = present(f, name)) json_text(Kind::kStructuralTag, f.path_of(name), *v);
  }
  void text(Fields& f, std::string_view name, Kind kind) {
    std::string value;
    f.string(name, value, kMaxBytes);
    if (!value.empty()) set(kind, f.path_of(name), std::move(value));
  }
  void choice(Fields& f, std::string_view name) {
    std::vector<std::string> values;
    f.strings(name, values, kMaxChoices, kMaxBytes);
    if (values.empty()) return;
    set(Kind::kChoice, f.path_of(name), {});
    out_.choices = std::move(values);
  }
  Fields& root() { return root_; }

 private:
  // The empty text that clients write out as "none" counts as absent; false is a schema that allows nothing.
  static const json::value* present(Fields& f, std::string_view name) {
    const json::value* v = f.find(name);
    return v == nullptr || *v == "" ? nullptr : v;
  }
  // JSON, or a string that holds it.
  void json_text(Kind kind, const std::string& path, const json::value& v) {
    if (!v.is_string() && !v.is_object() && !v.is_bool())
      return root_.fail(path, cat(path, " must be an object, or a string of JSON, got ", describe(v)));
    set(kind, path, v.is_string() ? std::string(v.get_string()) : json::serialize(v));
  }
  void set(Kind kind, const std::string& path, std::string text) {
    if (out_.kind != Kind::kNone)
      return root_.fail(path,
                        cat(path, " and ", out_.field, " exclude each other; a request has one constraint"));
    out_.kind = kind;
    out_.field = path;
    out_.text = std::move(text);
  }

  Fields& root_;
  grammar::ConstraintSpec& out_;
};

}  // namespace

void read_schema_label(Fields& f) {
  std::string label;
  for (const char* name : {"name", "description"}) f.string(name, label, kMaxBytes);
  bool strict = true;
  f.boolean("strict", strict);
}

void read_constraint(Fields& f, grammar::ConstraintSpec& out) {
  Reader r(f, out);
  r.response_format();
  r.structured_outputs();
  for (const char* name : {"guided_json", "json_schema"}) r.json_schema(f, name);
  for (const char* name : {"guided_regex", "regex"}) r.text(f, name, Kind::kRegex);
  for (const char* name : {"guided_grammar", "grammar", "ebnf"}) r.text(f, name, Kind::kGrammar);
  for (const char* name : {"guided_choice", "choice"}) r.choice(f, name);
  r.tag(f, "structural_tag");
}

}  // namespace oar::api
