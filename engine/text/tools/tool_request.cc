#include "engine/text/tools/tool_request.h"

#include <algorithm>
#include <set>

#include "engine/base/format.h"

namespace oar::tools {
namespace {

constexpr const char* kChoice = "tool_choice";

Status choice_error(std::string_view what) {
  return invalid_argument(
      cat("tool_choice ", what,
          R"(; it is "auto", "none", "required", {"type":"function","function":{"name":...}})",
          R"( or {"type":"allowed_tools","allowed_tools":{"mode":...,"tools":[...]}})"),
      kChoice);
}

// The name in {"type":"function","function":{"name":...}}, which is one of the tools.
Result<std::string> named_function(const json::value& v, const ToolRequest& request, std::string_view path) {
  const json::object* outer = v.if_object();
  const json::value* function = outer ? outer->if_contains("function") : nullptr;
  const json::value* name =
      function && function->is_object() ? function->get_object().if_contains("name") : nullptr;
  if (!name || !name->is_string()) return choice_error(cat("has no function with a name in ", path));
  const std::string text(name->get_string());
  if (!find_tool(request.tools, text))
    return invalid_argument(cat(path, " names ", text, ", which is not one of the tools"), kChoice);
  return text;
}

// Of all tools only these are offered.
Status allow(const json::object& choice, ToolRequest& request) {
  const json::value* v = choice.if_contains("allowed_tools");
  // OpenAI's two interfaces differ in whether the members have an object of their own.
  const json::object& allowed = v && v->is_object() ? v->get_object() : choice;
  const json::value* mode = allowed.if_contains("mode");
  if (mode && *mode == "required") request.mode = ToolRequest::Mode::kRequired;
  else if (mode && *mode != "auto") return choice_error("has a mode that is neither auto nor required");
  const json::value* list = allowed.if_contains("tools");
  if (!list || !list->is_array() || list->get_array().empty()) return choice_error("allows no tools");
  std::set<std::string> names;
  for (const json::value& one : list->get_array()) {
    OAR_ASSIGN(std::string name, named_function(one, request, "tool_choice.allowed_tools.tools"));
    names.insert(std::move(name));
  }
  json::array definitions;
  std::vector<Tool> tools;
  for (size_t i = 0; i < request.tools.size(); ++i) {
    if (!names.contains(request.tools[i].name)) continue;
    definitions.push_back(request.definitions[i]);
    tools.push_back(request.tools[i]);
  }
  request.definitions = std::move(definitions);
  request.tools = std::move(tools);
  return ok_status();
}

}  // namespace

bool ToolRequest::constrained() const {
  return mode == Mode::kRequired ||
         (mode == Mode::kAuto &&
          std::any_of(tools.begin(), tools.end(), [](const Tool& t) { return t.strict; }));
}

Result<ToolRequest> read_tool_request(const json::value* list, const json::value* choice, bool parallel) {
  ToolRequest request;
  request.parallel = parallel;
  if (list && !list->is_null()) {
    if (!list->is_array()) return invalid_argument("tools must be an array of tools", "tools");
    OAR_ASSIGN(request.tools, read_tools(list->get_array(), "tools"));
    request.definitions = list->get_array();
  }
  const bool any = !request.tools.empty();
  if (any) request.mode = ToolRequest::Mode::kAuto;
  if (!choice || choice->is_null() || *choice == "auto") return request;
  if (*choice == "none") {
    request = {};
    return request;
  }
  if (!any)
    return invalid_argument("tool_choice asks for a call and there are no tools; send tools", kChoice);
  if (*choice == "required") {
    request.mode = ToolRequest::Mode::kRequired;
    return request;
  }
  const json::object* object = choice->if_object();
  const json::value* type = object ? object->if_contains("type") : nullptr;
  if (type && *type == "function") {
    OAR_ASSIGN(request.named, named_function(*choice, request, kChoice));
    request.mode = ToolRequest::Mode::kRequired;
    return request;
  }
  if (!type || *type != "allowed_tools") return choice_error("is none of its values");
  OAR_RETURN_IF_ERROR(allow(*object, request));
  return request;
}

}  // namespace oar::tools
