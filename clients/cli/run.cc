// oar run: a conversation in a terminal. Also reads piped input, one message per line.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <sstream>

#include "clients/cli/chat.h"
#include "clients/cli/command.h"
#include "clients/cli/help.h"
#include "clients/cli/line_input.h"
#include "clients/cli/model_options.h"
#include "engine/base/format.h"

namespace oar::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system, history = default_history();
};

// Set by Ctrl-C, taken by whoever waits.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

constexpr const char* kHelp =
    "/help           this text\n"
    "/reset          forget the conversation; system message and parameters stay\n"
    "/system [TEXT]  show the system message, or set it from the next turn on; \"\" for none\n"
    "/params [NAME VALUE ...]  show how answers are drawn, or set it: /params temperature 0.5 top-k 40\n"
    "/save FILE      write the conversation, as JSON messages where FILE ends with .json, else as text\n"
    "/exit           leave (also Ctrl-D)\n"
    "Alt-Enter, or \\ at the end of a line, goes on in the next line; a pasted block is one message.\n"
    "Arrows and Ctrl-R go through what was said before, in earlier runs too.\n"
    "Ctrl-C stops the current answer; twice at the prompt, leaves.\n";

constexpr int64_t kMaxTokens = 512;

void print_params(const Chat& chat, const SamplingOptions& o) {
  const SamplingParams p = chat.params();
  std::fprintf(
      stderr, "temperature %g, top-p %g, top-k %d, min-p %g, repetition-penalty %g, max-tokens %lld, seed %s",
      static_cast<double>(p.temperature), static_cast<double>(p.top_p), static_cast<int>(p.top_k),
      static_cast<double>(p.min_p), static_cast<double>(p.repetition_penalty),
      static_cast<long long>(o.max_tokens), p.seed ? cat(*p.seed).c_str() : "random");
  for (const std::string& stop : o.stop) std::fprintf(stderr, ", stop '%s'", stop.c_str());
  std::fprintf(stderr, "\n");
}

// NAME VALUE pairs, or NAME=VALUE, with the names, ranges and messages of the command line's options.
Status set_params(Chat& chat, const std::string& text) {
  SamplingOptions changed = chat.sampling();
  CLI::App options;
  options.set_help_flag();
  add_sampling_options(options, changed, changed.max_tokens, "the model's");
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    // Every other word is a name, written as people write it: top_k, top-k, --top-k.
    const size_t equals = word.find('=');
    const bool name =
        words.empty() || !words.back().starts_with("--") || words.back().find('=') != std::string::npos;
    if (name) {
      word.erase(0, word.find_first_not_of('-'));
      std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(std::min(equals, word.size())),
                   '_', '-');
      word = "--" + word;
    }
    words.push_back(std::move(word));
  }
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    options.parse(words);
  } catch (const CLI::ParseError& error) { return invalid_argument(message_of(options, error), "params"); }
  chat.sampling() = std::move(changed);
  return ok_status();
}

// A line that begins with /. False: leave.
bool obey(Chat& chat, const std::string& line) {
  const size_t space = std::min(line.find_first_of(" \t\n"), line.size());
  const std::string command = line.substr(0, space);
  const size_t begin = line.find_first_not_of(" \t\n", space);
  const std::string rest =
      begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(" \t\n") + 1 - begin);
  Status status;
  if (command == "/exit" || command == "/quit") return false;
  if (command == "/help") {
    std::fputs(kHelp, stderr);
  } else if (command == "/reset") {
    chat.reset();
    std::fprintf(stderr, "The conversation starts anew.\n");
  } else if (command == "/system") {
    if (!rest.empty()) chat.set_system(rest == "\"\"" ? "" : rest);
    std::fprintf(stderr, "system: %s\n", chat.system().empty() ? "(none)" : chat.system().c_str());
  } else if (command == "/params") {
    if (!rest.empty()) status = set_params(chat, rest);
    if (status.ok()) print_params(chat, chat.sampling());
  } else if (command == "/save") {
    status = rest.empty() ? invalid_argument("/save needs the name of a file to write") : chat.save(rest);
    if (status.ok()) std::fprintf(stderr, "Saved in %s.\n", rest.c_str());
  } else {
    std::fprintf(stderr, "No such command; /help lists them.\n");
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return true;
}

int converse(LanguageModel& model, const RunOptions& o) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  Chat chat(model, o.sampling, o.system, interrupted, chosen_adapter(o.model, model));
  std::unique_ptr<LineInput> input;
  if (terminal && isatty(STDERR_FILENO) != 0) input = edited_lines(interrupted, o.history);
  if (!input) input = piped_lines(interrupted);
  if (terminal) std::fprintf(stderr, "%s. /help lists commands.\n", model.info().name.c_str());
  int failures = 0;
  bool warned = false;
  std::string line;
  while (true) {
    const LineInput::End end = input->next(line);
    if (end == LineInput::End::kEof) break;
    if (end == LineInput::End::kInterrupt) {
      if (!terminal || warned) return 128 + SIGINT;
      warned = true;
      std::fprintf(stderr, "\n(Ctrl-C once more, Ctrl-D or /exit leaves)\n");
      continue;
    }
    warned = false;
    if (line.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (line[0] == '/') {
      if (!obey(chat, line)) return failures == 0 ? kSuccess : kFailure;
    } else if (const Status status = chat.say(line); !status.ok()) {
      ++failures;
      fail(status);
      if (model.engine().health() == EngineHealth::kFailed) return kFailure;
    }
  }
  if (terminal) std::fprintf(stderr, "\n");
  return failures == 0 ? kSuccess : kFailure;
}

int run_command(const RunOptions& o) {
  auto model = open_model(o.model, LogLevel::kWarning);
  if (!model.ok()) return fail(model.status());
  struct sigaction on_interrupt = {};
  on_interrupt.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &on_interrupt, nullptr);
  return converse(**model, o);
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto o = std::make_shared<RunOptions>();
  o->model.engine.max_sequences = 1;
  CLI::App* c = app.add_subcommand("run", "Chat with a model in the terminal");
  add_model_options(*c, o->model);
  add_lora_options(*c, o->model, false);
  add_chat_options(*c, o->model);
  c->add_option("--system", o->system, "the system message of the conversation");
  c->add_option("--history", o->history, "file that keeps what was said at a terminal; '' for none")
      ->type_name("FILE")
      ->default_str("~/.local/state/oar/history");
  add_sampling_options(*c, o->sampling, kMaxTokens, "the model's, else 0.8");
  c->footer(
      std::string("Examples:\n"
                  "  oar run demo\n"
                  "  oar run ./Llama-3.2-1B-Instruct --system 'Answer in one sentence.' --temperature 0.5\n"
                  "  printf 'Good morrow!\\n' | oar run demo --seed 1\n"
                  "In the conversation:\n") +
      kHelp);
  c->callback([o, &action] { action = [o] { return run_command(*o); }; });
}

}  // namespace oar::cli
