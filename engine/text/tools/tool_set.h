// The tools of a request, as OpenAI's clients send them: checked, and looked up by name. What is known of an
// argument's type decides how a value written without quotes is read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar::tools {

struct Tool {
  std::string name;
  json::object parameters;  // the JSON schema of its arguments; empty: any object
  bool strict = false;
};

// What a tool's schema says of an argument.
enum class ArgumentType { kString, kStringOrNull, kOther };
ArgumentType argument_type(const Tool* tool, std::string_view argument);

inline constexpr size_t kMaxTools = 1024;
inline constexpr size_t kMaxToolName = 256;

// `list`: [{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}].
// INVALID_ARGUMENT with the element: no function, a name that is missing, twice there or not of letters,
// digits, _ - . / and :, parameters that are no object.
Result<std::vector<Tool>> read_tools(const json::array& list, std::string_view path);

const Tool* find_tool(const std::vector<Tool>& tools, std::string_view name);

}  // namespace oar::tools
