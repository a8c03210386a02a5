#include "clients/cli/help.h"

#include <algorithm>
#include <string_view>

#include "engine/base/format.h"
#include "engine/base/nearest.h"

namespace oar::cli {
namespace {

constexpr size_t kLineWidth = 110;

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  // CLI11 leaves two empty lines between groups.
  return CLI::detail::find_and_replace(CLI::Formatter::make_help(app, std::move(name), mode), "\n\n\n",
                                       "\n\n");
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const std::string text = make_option_desc(option);
  std::string lines;
  size_t width = get_column_width();
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    if (!lines.empty()) {
      const bool fits = width + 1 + word.size() <= kLineWidth;
      lines += fits ? ' ' : '\n';
      width = fits ? width + 1 : get_column_width();
    }
    lines += word;
    width += word.size();
  }
  std::stringstream out;
  CLI::detail::format_help(out, make_option_name(option, is_positional) + make_option_opts(option), lines,
                           get_column_width());
  return out.str();
}

std::string message_of(const CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> rest = command.remaining();
  std::vector<std::string> known;
  const auto option =
      std::find_if(rest.begin(), rest.end(), [](const std::string& word) { return word.starts_with("--"); });
  if (option != rest.end()) {
    for (const CLI::Option* o : command.get_options())
      for (const std::string& name : o->get_lnames()) known.push_back("--" + name);
    const std::string word = option->substr(0, option->find('='));
    const std::string_view near = nearest_name(word, known);
    return cat("there is no option ", word, near.empty() ? "" : cat("; did you mean ", near, "?"));
  }
  for (const CLI::App* c : command.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(c->get_name());
  if (known.empty() || rest.empty()) return error.what();
  std::string remedy = cat("; did you mean ", nearest_name(rest.front(), known), "?");
  if (nearest_name(rest.front(), known).empty()) {
    remedy = "; the commands are";
    for (const std::string& name : known) remedy += (&name == &known.front() ? " " : ", ") + name;
  }
  return cat("there is no command '", rest.front(), "'", remedy);
}

}  // namespace oar::cli
