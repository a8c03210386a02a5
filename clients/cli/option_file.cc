#include "clients/cli/option_file.h"

#include <unistd.h>

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

bool is_key(const std::string& name) { return name != "help" && name != "config" && name != "print-config"; }

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
Status apply_line(CLI::App& command, std::string_view rest, const std::string& path, size_t line,
                  std::map<std::string, size_t>& seen, OptionOrigins& origins) {
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
  origins[option] = cat(path, ":", line);
  return ok_status();
}

// Words that others than a command's options read. The last is the systemd unit's.
constexpr std::string_view kOtherWords[] = {"OAR_CUDA_LIBRARIES", "OAR_DEMO", "OAR_ISA", "OAR_OPTIONS"};
// The build's and the tests'; the second kind begin so.
constexpr std::string_view kBuildWords[] = {"OAR_BENCH_NODES",   "OAR_BIN",
                                            "OAR_BUILD_DIR",     "OAR_BUNDLE",
                                            "OAR_CCACHE",        "OAR_CLI",
                                            "OAR_CUDA_EMULATED", "OAR_JOBS",
                                            "OAR_LIBRARY",       "OAR_LOOPBACK",
                                            "OAR_MODELS",        "OAR_NVCC",
                                            "OAR_PYTHON",        "OAR_NORMALIZATION_TEST",
                                            "OAR_ONNX_TESTS",    "OAR_PLUGIN_DEVICE",
                                            "OAR_SANITIZE",      "OAR_SCREENSHOT",
                                            "OAR_SERVER",        "OAR_SOURCE_DIR",
                                            "OAR_TESTS",         "OAR_WITH_SERVER"};
constexpr std::string_view kWordsBeginning[] = {"OAR_TEST_", "OAR_SERVICE_", "OAR_PORT_"};

bool is_foreign(std::string_view word) {
  const auto is = [&](std::string_view known) { return word == known; };
  return word == "OAR_PORT" || std::any_of(std::begin(kOtherWords), std::end(kOtherWords), is) ||
         std::any_of(std::begin(kBuildWords), std::end(kBuildWords), is) ||
         std::any_of(std::begin(kWordsBeginning), std::end(kWordsBeginning),
                     [&](std::string_view start) { return word.starts_with(start); });
}

// "OAR_MAX_SEQUENCES": "max-sequences".
std::string key_of_word(std::string_view word) {
  std::string key(word.substr(std::string_view("OAR_").size()));
  for (char& c : key) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

Status apply_word(CLI::Option& option, const std::string& word, const std::string& value,
                  OptionOrigins& origins) {
  if (option.count() > 0) return ok_status();
  const bool list = option.get_expected_max() > 1;
  try {
    option.add_result(list ? CLI::detail::split(value, ',') : std::vector<std::string>{value});
    option.run_callback();
  } catch (const CLI::Error& e) { return invalid_argument(cat(word, " = '", value, "': ", e.what()), word); }
  origins[&option] = word;
  return ok_status();
}

bool is_secret(const std::string& key) { return key == "api-key"; }

// As take_value() reads it.
std::string quoted(const std::string& value) {
  const bool number = !value.empty() && value.find_first_not_of("0123456789+-.eE") == std::string::npos;
  if (number || value == "true" || value == "false") return value;
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string values_text(const CLI::Option& option) {
  const std::vector<std::string>& values = option.results();
  if (option.get_expected_max() <= 1) return quoted(values.empty() ? "true" : values.back());
  std::string out;
  for (const std::string& v : values) out += cat(out.empty() ? "[" : ", ", quoted(v));
  return out + "]";
}

}  // namespace

Result<std::vector<std::string>> apply_environment(CLI::App& command, OptionOrigins& origins) {
  std::vector<std::string> unread;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (!text.starts_with("OAR_") || equals == std::string_view::npos || equals + 1 == text.size()) continue;
    const std::string word(text.substr(0, equals)), value(text.substr(equals + 1));
    if (is_foreign(word)) continue;
    const std::string key = key_of_word(word);
    if (CLI::Option* option = find_option(command, key); option != nullptr) {
      OAR_RETURN_IF_ERROR(apply_word(*option, word, value, origins));
    } else if (key != "config") {  // read before everything else
      unread.push_back(word);
    }
  }
  std::sort(unread.begin(), unread.end());
  return unread;
}

Status apply_option_file(CLI::App& command, const std::string& path, OptionOrigins& origins) {
  OAR_ASSIGN(const std::string text, read_text(path));
  std::map<std::string, size_t> seen;
  std::string_view rest = text;
  for (size_t line = 1; !rest.empty(); ++line) {
    std::string_view one = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    if (one.ends_with('\r')) one.remove_suffix(1);
    skip_spaces(one);
    if (one.empty() || one.front() == '#') continue;
    if (const Status s = apply_line(command, one, path, line, seen, origins); !s.ok())
      return Status(s.code(), cat(path, ":", line, ": ", s.message()), s.param());
  }
  return ok_status();
}

std::string option_file_text(const CLI::App& command, const OptionOrigins& origins) {
  constexpr size_t kColumn = 40;  // of the origins
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    std::string key = option->get_single_name();
    if (!is_key(key)) continue;
    std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool given = option->count() > 0, flag = option->get_expected_max() == 0;
    std::string line = cat(given && !is_secret(key) ? "" : "# ", key, " = ");
    if (given) line += is_secret(key) ? "(not shown)" : values_text(*option);
    else line += flag ? "false" : quoted(option->get_default_str());
    line.resize(std::max(line.size() + 2, kColumn), ' ');
    const auto origin = origins.find(option);
    out += cat(line, given ? "# " : "",
               origin != origins.end() ? origin->second
               : given                 ? "command line"
                                       : "default",
               "\n");
  }
  return out;
}

}  // namespace oar::cli
