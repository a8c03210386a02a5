#include "clients/cli/language_settings.h"

#include <fstream>
#include <sstream>

#include "engine/base/format.h"
#include "server/api/generation_request.h"

namespace oar::cli {
namespace {

Result<std::shared_ptr<const ChatTemplate>> read_template_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return invalid_argument(cat("the file ", path, " cannot be read, or is empty"));
  OAR_ASSIGN(ChatTemplate parsed, ChatTemplate::parse(std::move(text).str()));
  return std::make_shared<const ChatTemplate>(std::move(parsed));
}

// NAME=VALUE, where VALUE is JSON or else a string.
Status read_request_default(const std::string& text, json::object& out) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return invalid_argument(cat("'", text, "' is not NAME=VALUE"));
  const std::string value = text.substr(equals + 1);
  Result<json::value> parsed = parse_json(value, "value");
  out[text.substr(0, equals)] = parsed.ok() ? std::move(*parsed) : json::value(json::string(value));
  return ok_status();
}

}  // namespace

void add_language_settings(CLI::App& command, LanguageSettings& settings) {
  command
      .add_option_function<std::string>(
          "--chat-template",
          [&settings](const std::string& path) { settings.chat_template = *read_template_file(path); },
          "a file with a Jinja template that takes the place of the model's own")
      ->check([](const std::string& path) { return read_template_file(path).status().message(); })
      ->type_name("FILE")
      ->group("Model");
  command
      .add_option_function<std::vector<std::string>>(
          "--request-default",
          [&settings](const std::vector<std::string>& all) {
            settings.request_defaults.clear();
            for (const std::string& one : all) (void)read_request_default(one, settings.request_defaults);
          },
          "what a request has unless it says otherwise, for instance temperature=0.7, max_tokens=256 or "
          "chat_template_kwargs={\"enable_thinking\":false}; may be repeated")
      ->check([](const std::string& text) {
        json::object ignored;
        return read_request_default(text, ignored).message();
      })
      ->type_name("NAME=VALUE")
      ->expected(1)
      ->take_all()
      ->group("Model");
}

Status apply_language_settings(const LanguageSettings& settings, const std::string& tool_parser,
                               const std::string& reasoning_parser, ModelHandle& model) {
  model.request_defaults = settings.request_defaults;
  if (const Status s = api::check_request_defaults(model); !s.ok())
    return invalid_argument(cat("--request-default: ", s.message()), "command line");
  if (!settings.chat_template) return ok_status();
  model.given_template = settings.chat_template;
  model.chat_template = model.given_template.get();
  const std::string& writes = model.given_template->source();
  OAR_ASSIGN(model.tool_style, tools::find_tool_style(tool_parser, writes));
  OAR_ASSIGN(model.reasoning_style, tools::find_reasoning_style(reasoning_parser, writes));
  return ok_status();
}

}  // namespace oar::cli
