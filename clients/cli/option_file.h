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
// What the command line or the environment gives wins. Strict: an unknown or repeated key, a section, or a
// value that the option refuses is an error with its line, so that a misspelt key is never silently the
// default.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/base/status.h"

namespace oar::cli {

// Sets the options of `command` that have not been given, and runs their checks. INVALID_ARGUMENT says
// "FILE:LINE: ..."; NOT_FOUND when there is no such file.
Status apply_option_file(CLI::App& command, const std::string& path);

}  // namespace oar::cli
