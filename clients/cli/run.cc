// oar run: a conversation in a terminal. Also reads piped input, one message per line.
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>

#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/prompt.h"
#include "engine/base/format.h"
#include "engine/runtime/text_stream.h"

namespace oar::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system;
};

// Set by Ctrl-C, taken by whoever waits.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

bool take_interrupt() { return interrupted.exchange(false); }

// Lines of standard input. Polls, so that an interrupt is seen whichever thread got the signal.
class LineReader {
 public:
  enum class End { kLine, kInterrupt, kEof };
  End next(std::string& line) {
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        return End::kLine;
      }
      if (eof_) {
        if (buffer_.empty()) return End::kEof;
        line = std::move(buffer_);
        buffer_.clear();
        return End::kLine;
      }
      if (take_interrupt()) return End::kInterrupt;
      pollfd fd{STDIN_FILENO, POLLIN, 0};
      if (poll(&fd, 1, 100) <= 0) continue;
      char bytes[4096];
      const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
      if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) eof_ = true;
    }
  }

 private:
  std::string buffer_;
  bool eof_ = false;
};

class Chat {
 public:
  Chat(LanguageModel& model, const RunOptions& options) : model_(model), options_(options) { reset(); }

  void reset() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }
  // Prints the answer as it comes and keeps both in the history, unless the turn fails.
  Status say(const std::string& text);

 private:
  Result<std::vector<int32_t>> prompt() const;

  LanguageModel& model_;
  const RunOptions& options_;
  json::array messages_;
  uint64_t turns_ = 0;
};

Result<std::vector<int32_t>> Chat::prompt() const {
  ChatTemplateOptions o;
  o.bos_token = model_.bos_token();
  o.eos_token = model_.eos_token();
  o.allow_special_in_text = model_.allows_special_in_text();
  OAR_ASSIGN(const ChatPrompt prompt, model_.chat_template().render(messages_, nullptr, o));
  // The template has written the special tokens.
  return model_.tokenizer()->encode(prompt.text, {.add_special_tokens = false, .plain = prompt.user});
}

Status Chat::say(const std::string& text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
  auto run = [&]() -> Status {
    Request request;
    request.id = cat("run-", turns_++);
    OAR_ASSIGN(request.prompt, prompt());
    request.sampling = sampling_params(options_.sampling, model_.defaults(), 0.8f);
    request.stop.max_tokens = options_.sampling.max_tokens;
    TextStreamOptions stream_options;
    stream_options.stop = options_.sampling.stop;
    auto stream = TextStream::create(model_.tokenizer(), std::move(stream_options), 1);
    OAR_RETURN_IF_ERROR(stream->start(model_.engine(), std::move(request)));
    std::string answer;
    Status status;
    while (!stream->done()) {
      if (take_interrupt()) stream->cancel();
      const auto event = stream->next(std::chrono::milliseconds(50));
      if (!event) continue;
      answer += event->text;
      std::fwrite(event->text.data(), 1, event->text.size(), stdout);
      if (std::fflush(stdout) != 0) stream->cancel(), status = unavailable("standard output is closed");
      if (event->finish == FinishReason::kError) status = event->status;
      if (event->finish == FinishReason::kCancelled) std::fprintf(stderr, " [stopped]");
      if (event->finish == FinishReason::kLength) std::fprintf(stderr, " [cut at the token limit]");
    }
    std::printf("\n");
    std::fflush(stdout);
    OAR_RETURN_IF_ERROR(status);
    messages_.push_back({{"role", "assistant"}, {"content", answer}});
    return ok_status();
  };
  const Status status = run();
  if (!status.ok()) messages_.pop_back();
  return status;
}

constexpr const char* kHelp =
    "/reset  forget the conversation\n"
    "/exit   leave (also Ctrl-D)\n"
    "/help   this text\n"
    "Ctrl-C  stops the current answer; twice at the prompt, leaves\n";

int converse(LanguageModel& model, const RunOptions& o) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  Chat chat(model, o);
  LineReader input;
  if (terminal) std::fprintf(stderr, "%s. /help lists commands.\n", model.info().name.c_str());
  int failures = 0;
  bool warned = false;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    std::string line;
    const LineReader::End end = input.next(line);
    if (end == LineReader::End::kEof) break;
    if (end == LineReader::End::kInterrupt) {
      if (!terminal || warned) return 128 + SIGINT;
      warned = true;
      std::fprintf(stderr, "\n(Ctrl-C once more, Ctrl-D or /exit leaves)\n");
      continue;
    }
    warned = false;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (line == "/exit" || line == "/quit") return failures == 0 ? kSuccess : kFailure;
    if (line == "/reset") {
      chat.reset();
      std::fprintf(stderr, "The conversation starts anew.\n");
    } else if (line == "/help") {
      std::fputs(kHelp, stderr);
    } else if (line[0] == '/') {
      std::fprintf(stderr, "No such command; /help lists them.\n");
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
  add_chat_options(*c, o->model);
  c->add_option("--system", o->system, "the system message of the conversation");
  add_sampling_options(*c, o->sampling, 512, "the model's, else 0.8");
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
