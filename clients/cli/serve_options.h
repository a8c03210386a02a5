// What `oar serve` was asked for: its options, from the command line, the environment and a file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "clients/cli/language_settings.h"
#include "clients/cli/model_options.h"
#include "server/repository/repository.h"
#include "server/server.h"

namespace oar::cli {

struct ServeOptions {
  ModelOptions model;
  ServerOptions server;
  ConfigDefaults batching;  // of ordinary models without a config
  LanguageSettings language;
  bool any_name = false, require_model = false;
  std::vector<std::string> aliases, tags;
  std::string pooling = "model";
  double drain_delay = 0, drain_seconds = 30;
  int max_message_mib = 0;  // 0: by the kind of model
  std::string model_control = "none";
  size_t max_loaded = 0;
  int64_t sleep_idle = 0;
  bool print_config = false;
  std::string config, precision = "f32";
  std::vector<std::string> unread_words;  // of the environment
  std::vector<std::string> given;         // names of options that were given, wherever
};

bool was_given(const ServeOptions& o, const char* name);

// `o` outlives `command`.
void add_serve_options(CLI::App& command, ServeOptions& o);

// Reads what the command line did not say from the environment and from the file of --config, and fills
// `unread_words` and `given`. The text of --print-config, empty without it. Throws CLI::Error on a mistake.
std::string finish_serve_options(CLI::App& command, ServeOptions& o);

}  // namespace oar::cli
