// Options of `oar serve` that change what a language model is taken for: its chat template, and what requests
// have unless they say otherwise.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "server/api/model_handle.h"

namespace oar::cli {

struct LanguageSettings {
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the model's own
  json::object request_defaults;
};
void add_language_settings(CLI::App& command, LanguageSettings& settings);
// `tool_parser` and `reasoning_parser` are as given: what "auto" is, the template says.
Status apply_language_settings(const LanguageSettings& settings, const std::string& tool_parser,
                               const std::string& reasoning_parser, ModelHandle& model);

}  // namespace oar::cli
