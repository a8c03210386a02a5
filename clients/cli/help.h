// What a person reads of the command line itself: --help, with options under their headings and descriptions
// broken into lines, and what is wrong with words that were not understood.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace oar::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

// What is wrong with the words behind `command`, the last one understood. A misspelt option or command is
// named first, whatever else is missing.
std::string message_of(const CLI::App& command, const CLI::ParseError& error);

}  // namespace oar::cli
