#include "server/api/tool_fields.h"

#include "engine/base/format.h"
#include "server/api/constraint_fields.h"

namespace oar::api {
namespace {

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace

json::object function_choice(std::string_view name) {
  return {{"type", "function"}, {"function", json::object{{"name", json::string(name)}}}};
}

void read_tool_request(Fields& f, const json::value& definitions, const json::value& choice, bool parallel,
                       std::string_view schema, tools::ToolRequest& out) {
  if (!f.ok()) return;
  Result<tools::ToolRequest> read = tools::read_tool_request(&definitions, &choice, parallel);
  if (read.ok()) {
    out = std::move(*read);
    return;
  }
  const auto spelled = [&](std::string text) {
    return replaced(replaced(std::move(text), ".function.parameters", cat(".", schema)), ".function.", ".");
  };
  f.fail(spelled(std::string(read.status().param())), spelled(std::string(read.status().message())));
}

void require_reasoning_style(Fields& f, std::string_view name, const ModelHandle& model) {
  if (model.reasoning_style) return;
  f.fail(name, cat(name, ": it is not known how the model ", model.name,
                   " writes its reasoning; leave it out, or start the server with --reasoning-parser"));
}

void read_output_format(Fields& f, std::string_view name, grammar::ConstraintSpec& out) {
  using Kind = grammar::ConstraintSpec::Kind;
  const json::object* given = f.object(name);
  if (!given) return;
  const std::string path = f.path_of(name);
  Fields t(*given, path + ".");
  std::string type = "text";
  t.string("type", type, 64);
  Kind kind = Kind::kNone;
  if (type == "json_object") kind = Kind::kJsonObject;
  else if (type == "json_schema") kind = Kind::kJsonSchema;
  else if (type != "text")
    t.fail("type", cat(t.path_of("type"), " is ", describe(json::value(type)),
                       "; use text, json_object or json_schema"));
  std::string text;
  if (kind == Kind::kJsonSchema) {
    read_schema_label(t);
    if (const json::object* schema = t.object("schema")) text = json::serialize(*schema);
    else if (t.ok()) t.fail("schema", cat(t.path_of("schema"), " is missing"));
  }
  t.refuse_rest();
  if (!t.ok()) return f.fail(t.status().param(), t.status().message());
  if (kind == Kind::kNone) return;
  if (out.kind != Kind::kNone)
    return f.fail(path, cat(path, " and ", out.field, " exclude each other; a request has one constraint"));
  out = {kind, std::move(text), {}, path};
}

}  // namespace oar::api
