// oar completions: what the Tab key proposes, for bash, zsh and fish, written from the options themselves.
#include <algorithm>
#include <cstdio>

#include "clients/cli/command.h"
#include "engine/base/format.h"

namespace oar::cli {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// The first sentence or clause of a description, in single quotes for any of the three shells.
std::string brief(const std::string& text) {
  std::string out = text.substr(0, std::min(text.find_first_of(";\n"), text.find(": ")));
  std::erase_if(out, [](char c) { return c == '\'' || c == '\\' || c == '`'; });
  return out;
}

// "--http", "-n": every name of a command's options.
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_lnames()) out.push_back("--" + name);
  for (const std::string& name : option.get_snames()) out.push_back("-" + name);
  return out;
}

std::string bash(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* c : commands_of(app)) {
    names += (names.empty() ? "" : " ") + c->get_name();
    std::string words;
    for (const CLI::App* inner : commands_of(*c)) words += " " + inner->get_name();
    for (const CLI::Option* o : c->get_options())
      for (const std::string& name : names_of(*o)) words += " " + name;
    cases +=
        cat("      ", c->get_name(), ") words='", words.substr(std::min<size_t>(1, words.size())), "' ;;\n");
  }
  return cat(
      "# bash completion of oar; source it, or keep it as bash-completion's file `oar`\n"
      "_oar() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} words=\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    words='",
      names,
      " --help --version'\n"
      "  else\n"
      "    case ${COMP_WORDS[1]} in\n",
      cases,
      "    esac\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  case $current in -*) ;; *) [ \"$COMP_CWORD\" -eq 1 ] || COMPREPLY+=($(compgen -f -- \"$current\")) "
      ";; esac\n"
      "}\n"
      "complete -o filenames -F _oar oar\n");
}

std::string zsh(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* c : commands_of(app)) {
    names += cat("    '", c->get_name(), ":", brief(c->get_description()), "'\n");
    cases += cat("    ", c->get_name(), ") options=(\n");
    for (const CLI::Option* o : c->get_options())
      for (const std::string& name : names_of(*o))
        cases += cat("      '", name, ":", brief(o->get_description()), "'\n");
    cases += "    ) ;;\n";
  }
  return cat(
      "#compdef oar\n"
      "_oar() {\n"
      "  local -a commands options\n"
      "  commands=(\n",
      names,
      "  )\n"
      "  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
      "  case $words[2] in\n",
      cases,
      "  esac\n"
      "  if [[ $words[CURRENT] == -* ]]; then _describe -o option options; else _files; fi\n"
      "}\n"
      "if [[ $funcstack[1] == _oar ]]; then _oar \"$@\"; else compdef _oar oar; fi\n");
}

std::string fish(const CLI::App& app) {
  std::string out;
  for (const CLI::App* c : commands_of(app)) {
    out += cat("complete -c oar -n __fish_use_subcommand -f -a ", c->get_name(), " -d '",
               brief(c->get_description()), "'\n");
    for (const CLI::App* inner : commands_of(*c))
      out += cat("complete -c oar -n '__fish_seen_subcommand_from ", c->get_name(), "' -a ",
                 inner->get_name(), "\n");
    for (const CLI::Option* o : c->get_options()) {
      std::string names;
      for (const std::string& name : o->get_lnames()) names += " -l " + name;
      for (const std::string& name : o->get_snames()) names += " -s " + name;
      if (!names.empty())
        out += cat("complete -c oar -n '__fish_seen_subcommand_from ", c->get_name(), "'", names,
                   o->get_type_size() > 0 ? " -r" : "", " -d '", brief(o->get_description()), "'\n");
    }
  }
  return out;
}

}  // namespace

void add_completions(CLI::App& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* c = app.add_subcommand("completions", "Write what the Tab key proposes, for a shell");
  c->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  c->footer(
      "Examples:\n"
      "  source <(oar completions bash)\n"
      "  oar completions zsh > _oar                in a folder of $fpath\n"
      "  oar completions fish > oar.fish           in ~/.config/fish/completions");
  c->callback([shell, &app, &action] {
    action = [shell, &app] {
      std::fputs((*shell == "bash" ? bash(app) : *shell == "zsh" ? zsh(app) : fish(app)).c_str(), stdout);
      return kSuccess;
    };
  });
}

}  // namespace oar::cli
