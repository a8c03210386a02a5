#include "clients/cli/option_file.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "clients/cli/prompt.h"
#include "engine/base/format.h"
#include "engine/base/nearest.h"

namespace oar::cli {
namespace {

void skip_spaces(std::string_view& rest) {
  while (!rest.empty() && (rest.front() == ' ' || rest.front() == '\t')) rest.remove_prefix(1);
}

// "text" with \" and \\, 'text' as it is, or a bare word: a number, true or false.
Result<std::string> take_value(std::string_view& rest) {
  if (rest.empty()) return invalid_argument("a value is missing");
  std::string out;
  const char quote = rest.front();
  if (quote != '"' && quote != '\'') {
    const size_t end = std::min(rest.find_first_of(" \t,]#"), rest.size());
    out = rest.substr(0, end);
    rest.remove_prefix(end);
    const bool number = !out.empty() && out.find_first_not_of("0123456789+-.eE_") == std::string::npos;
    if (!number && out != "true" && out != "false")
      return invalid_argument(cat("'", out, "' is no number, true or false; texts stand in \"quotes\""));
    std::erase(out, '_');
    return out;
  }
  rest.remove_prefix(1);
  for (; !rest.empty() && rest.front() != quote; rest.remove_prefix(1)) {
    if (quote == '"' && rest.front() == '\\') {
      rest.remove_prefix(1);
      if (rest.empty() || (rest.front() != '"' && rest.front() != '\\'))
        return invalid_argument("after \\ only \" or \\ may stand; put the text in 'quotes' of this kind");
    }
    out += rest.front();
  }
  if (rest.empty()) return invalid_argument("the closing quote is missing");
  rest.remove_prefix(1);
  return out;
}

Result<std::vector<std::string>> take_values(std::string_view& rest) {
  std::vector<std::string> out;
  if (rest.empty() || rest.front() != '[') {
    OAR_ASSIGN(std::string one, take_value(rest));
    out.push_back(std::move(one));
    return out;
  }
  rest.remove_prefix(1);
  for (skip_spaces(rest); !rest.empty() && rest.front() != ']'; skip_spaces(rest)) {
    OAR_ASSIGN(std::string one, take_value(rest));
    out.push_back(std::move(one));
    skip_spaces(rest);
    if (!rest.empty() && rest.front() == ',') rest.remove_prefix(1);
    else if (rest.empty() || rest.front() != ']') break;
  }
  if (rest.empty() || rest.front() != ']') return invalid_argument("a list ends with ] on the same line");
  rest.remove_prefix(1);
  return out;
}

bool is_key(const std::string& name) { return name != "help" && name != "config"; }

CLI::Option* find_option(CLI::App& command, std::string key) {
  if (!is_key(key)) return nullptr;
  CLI::Option* option = command.get_option_no_throw("--" + key);
  if (option != nullptr) return option;
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::toupper(c); });
  option = command.get_option_no_throw(key);
  return option != nullptr && option->get_positional() ? option : nullptr;
}

// "; did you mean 'http'?", or nothing when no key resembles it.
std::string proposal(const CLI::App& command, const std::string& key) {
  std::vector<std::string> known = {"model"};
  for (const CLI::Option* option : command.get_options())
    std::copy_if(option->get_lnames().begin(), option->get_lnames().end(), std::back_inserter(known), is_key);
  const std::string_view near = nearest_name(key, known);
  return near.empty() ? "" : cat("; did you mean '", near, "'?");
}

// One line that holds something.
Status apply_line(CLI::App& command, std::string_view rest, size_t line,
                  std::map<std::string, size_t>& seen) {
  if (rest.front() == '[') return invalid_argument("there are no sections; write key = value");
  const size_t end = std::min(rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), rest.size());
  const std::string key(rest.substr(0, end));
  rest.remove_prefix(end);
  skip_spaces(rest);
  if (key.empty() || rest.empty() || rest.front() != '=') return invalid_argument("this is not key = value");
  rest.remove_prefix(1);
  skip_spaces(rest);
  CLI::Option* option = find_option(command, key);
  if (option == nullptr)
    return invalid_argument(
        cat("unknown key '", key, "'; keys are the options that `oar ", command.get_name(),
            " --help` lists, without their dashes", proposal(command, key)),
        key);
  if (const auto [at, first] = seen.emplace(key, line); !first)
    return invalid_argument(cat("'", key, "' stands in line ", at->second, " already"), key);
  OAR_ASSIGN(std::vector<std::string> values, take_values(rest));
  skip_spaces(rest);
  if (!rest.empty() && rest.front() != '#')
    return invalid_argument(cat("'", rest, "' is left over behind the value"), key);
  if (option->count() > 0) return ok_status();
  try {
    option->add_result(std::move(values));
    option->run_callback();
  } catch (const CLI::Error& e) { return invalid_argument(cat(key, ": ", e.what()), key); }
  return ok_status();
}

}  // namespace

Status apply_option_file(CLI::App& command, const std::string& path) {
  OAR_ASSIGN(const std::string text, read_text(path));
  std::map<std::string, size_t> seen;
  std::string_view rest = text;
  for (size_t line = 1; !rest.empty(); ++line) {
    std::string_view one = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    if (one.ends_with('\r')) one.remove_suffix(1);
    skip_spaces(one);
    if (one.empty() || one.front() == '#') continue;
    if (const Status s = apply_line(command, one, line, seen); !s.ok())
      return Status(s.code(), cat(path, ":", line, ": ", s.message()), s.param());
  }
  return ok_status();
}

}  // namespace oar::cli
