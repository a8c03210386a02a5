#include "engine/text/tools/tool_set.h"

#include <algorithm>
#include <set>

#include "engine/base/format.h"

namespace oar::tools {
namespace {

bool is_name(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:").find(c) != std::string_view::npos;
  });
}

Result<Tool> read_tool(const json::value& v, const std::string& path) {
  const auto fault = [&](std::string_view field, std::string_view what) {
    return invalid_argument(cat(path, field, " ", what), cat(path, field));
  };
  const json::object* outer = v.if_object();
  if (!outer) return fault("", R"(must be an object {"type":"function","function":{...}})");
  const json::value* type = outer->if_contains("type");
  if (!type || *type != "function")
    return fault(".type", R"(must be "function"; other tools are not offered)");
  const json::value* function = outer->if_contains("function");
  if (!function || !function->is_object()) return fault(".function", "must be an object");
  Tool tool;
  for (const auto& member : function->get_object()) {
    const std::string_view key = member.key();
    const json::value& value = member.value();
    const std::string field = cat(".function.", key);
    if (key == "name") {
      if (!value.is_string() || value.get_string().empty() || value.get_string().size() > kMaxToolName ||
          !is_name(value.get_string()))
        return fault(field, cat("must be 1 to ", kMaxToolName, " letters, digits, _ - . / and :"));
      tool.name = std::string(value.get_string());
    } else if (key == "parameters" && !value.is_null()) {
      if (!value.is_object()) return fault(field, "must be an object, a JSON schema");
      tool.parameters = value.get_object();
    } else if (key == "strict" && !value.is_null()) {
      if (!value.is_bool()) return fault(field, "must be true or false");
      tool.strict = value.get_bool();
    }
  }
  if (tool.name.empty()) return fault(".function.name", "is missing");
  return tool;
}

// The types that a schema names by itself: its type and those of its alternatives.
void collect_types(const json::object& schema, std::set<std::string_view>& out) {
  if (const json::value* type = schema.if_contains("type")) {
    if (type->is_string()) out.insert(type->get_string());
    if (const json::array* list = type->if_array()) {
      for (const json::value& t : *list) {
        if (t.is_string()) out.insert(t.get_string());
      }
    }
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const json::value* list = schema.if_contains(key);
    if (!list || !list->is_array()) continue;
    for (const json::value& one : list->get_array()) {
      const json::value* type = one.is_object() ? one.get_object().if_contains("type") : nullptr;
      out.insert(type && type->is_string() ? std::string_view(type->get_string()) : "any");
    }
  }
  const json::value* values = schema.if_contains("enum");
  if (!values || !values->is_array() || !out.empty()) return;
  for (const json::value& v : values->get_array()) out.insert(v.is_string() ? "string" : "any");
}

}  // namespace

ArgumentType argument_type(const Tool* tool, std::string_view argument) {
  if (!tool) return ArgumentType::kOther;
  const json::value* properties = tool->parameters.if_contains("properties");
  if (!properties || !properties->is_object()) return ArgumentType::kOther;
  const json::value* schema = properties->get_object().if_contains(argument);
  if (!schema || !schema->is_object()) return ArgumentType::kOther;
  std::set<std::string_view> types;
  collect_types(schema->get_object(), types);
  if (types == std::set<std::string_view>{"string"}) return ArgumentType::kString;
  if (types == std::set<std::string_view>{"null", "string"}) return ArgumentType::kStringOrNull;
  return ArgumentType::kOther;
}

Result<std::vector<Tool>> read_tools(const json::array& list, std::string_view path) {
  if (list.size() > kMaxTools) {
    return invalid_argument(
        cat(path, " has ", list.size(), " elements; at most ", kMaxTools, " are accepted"),
        std::string(path));
  }
  std::vector<Tool> tools;
  std::set<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = cat(path, "[", i, "]");
    OAR_ASSIGN(Tool tool, read_tool(list[i], where));
    if (!names.insert(tool.name).second) {
      return invalid_argument(cat(where, ".function.name is ", tool.name, ", as of a tool before it"),
                              where + ".function.name");
    }
    tools.push_back(std::move(tool));
  }
  return tools;
}

const Tool* find_tool(const std::vector<Tool>& tools, std::string_view name) {
  const auto it = std::find_if(tools.begin(), tools.end(), [&](const Tool& t) { return t.name == name; });
  return it == tools.end() ? nullptr : &*it;
}

}  // namespace oar::tools
