// A command's options from a file (a Kubernetes config map, /etc/oar/server.toml), one per line, in the part
// of TOML that options need:
//
//   # comment
//   model = "/models/default"        the positional argument, in small letters
//   http = "0.0.0.0:8000"            --http
//   max-sequences = 32
//   no-prefix-cache = true           a flag
//   cors-origin = ["https://a.example", "https://b.example"]
//
// What the command line or the environment gives wins. An unknown or repeated key, a section, or a value that
// the option refuses is an error with its line. So a misspelt key is never silently the default.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace oar::cli {

// Where an option's value is from, for those that neither the command line nor a default gives: "FILE:LINE"
// or the word of the environment.
using OptionOrigins = std::map<const CLI::Option*, std::string>;

// Sets the options of `command` that have not been given, and runs their checks. INVALID_ARGUMENT says
// "FILE:LINE: ..."; NOT_FOUND when there is no such file.
Status apply_option_file(CLI::App& command, const std::string& path, OptionOrigins& origins);

// The same from the environment: OAR_MAX_SEQUENCES=32 is `max-sequences = 32`, OAR_CORS_ORIGIN="a,b" a list.
// What the command line gives wins; an empty word counts as absent. Gives the words that begin with OAR_ and
// nothing reads, for the log; those that Kubernetes writes for a Service called "oar" (OAR_SERVICE_HOST,
// OAR_PORT_8000_TCP, ...) are none.
Result<std::vector<std::string>> apply_environment(CLI::App& command, OptionOrigins& origins);

// All options as such a file, each with its origin as a comment; defaults are comments as a whole. Where
// secrets are, their origin alone.
std::string option_file_text(const CLI::App& command, const OptionOrigins& origins);

}  // namespace oar::cli
