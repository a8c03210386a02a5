// oar generate: one prompt, one answer. Standard output carries the text alone, as it comes.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/prompt.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/runtime/text_stream.h"

namespace oar::cli {
namespace {

struct GenerateOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt, prompt_file;
  bool ignore_eos = false, json = false;
  bool prompt_given = false;
};

// A pipe or a file on standard input; a terminal and /dev/null are neither.
bool input_is_piped() {
  struct stat info = {};
  return fstat(STDIN_FILENO, &info) == 0 &&
         (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode) || S_ISSOCK(info.st_mode));
}

struct Answer {
  std::string text;
  json::array tokens;
  TextEvent last;
};

double seconds(Clock::time_point from, Clock::time_point to) {
  return to > from ? std::chrono::duration<double>(to - from).count() : 0;
}

// The rate of a phase; null when there was none.
json::value rate(int64_t tokens, double time) {
  return tokens > 0 && time > 0 ? json::value(static_cast<double>(tokens) / time) : json::value(nullptr);
}

json::object report(const Answer& answer, const ModelInfo& info) {
  const SequenceStats& s = answer.last.stats;
  // Sampled tokens but the first, which the prompt's step made.
  const int64_t decoded = s.completion_tokens - 1;
  const double prefill = seconds(s.scheduled, s.first_token), decode = seconds(s.first_token, s.finished);
  json::object out;
  out["model"] = info.name;
  out["text"] = answer.text;
  out["tokens"] = answer.tokens;
  out["finish_reason"] = finish_reason_name(answer.last.finish);
  out["stop"] = answer.last.stop_match.empty() ? json::value(nullptr) : json::value(answer.last.stop_match);
  out["usage"] = {{"prompt_tokens", s.prompt_tokens},
                  {"cached_tokens", s.cached_tokens},
                  {"completion_tokens", s.completion_tokens},
                  {"total_tokens", s.prompt_tokens + s.completion_tokens}};
  out["timings"] = {{"load_seconds", info.load_seconds},
                    {"prefill_seconds", prefill},
                    {"decode_seconds", decode},
                    {"prefill_tokens_per_second", rate(s.prompt_tokens - s.cached_tokens, prefill)},
                    {"decode_tokens_per_second", rate(decoded, decode)}};
  return out;
}

// Reads the stream to its end, printing unless `quiet`.
Result<Answer> collect(TextStream& stream, bool quiet) {
  Answer answer;
  bool writable = true;
  while (!stream.done()) {
    auto event = stream.next(std::chrono::milliseconds(1000));
    if (!event) continue;
    answer.text += event->text;
    for (const TextEvent::Token& t : event->tokens) answer.tokens.emplace_back(t.id);
    if (!quiet && writable && !event->text.empty()) {
      writable = std::fwrite(event->text.data(), 1, event->text.size(), stdout) == event->text.size() &&
                 std::fflush(stdout) == 0;
      if (!writable) stream.cancel();
    }
    if (event->finish != FinishReason::kNone) answer.last = std::move(*event);
  }
  if (!writable) return unavailable("standard output is closed");
  if (answer.last.finish == FinishReason::kError) return answer.last.status;
  return answer;
}

int generate(const GenerateOptions& o) {
  std::string text = o.prompt;
  if (!o.prompt_file.empty()) {
    auto file = read_text(o.prompt_file);
    if (!file.ok()) return fail(file.status());
    text = std::move(*file);
  } else if (!o.prompt_given && input_is_piped()) {
    auto piped = read_text("-");
    if (!piped.ok()) return fail(piped.status());
    text = std::move(*piped);
  }
  auto model = open_model(o.model, LogLevel::kWarning);
  if (!model.ok()) return fail(model.status());
  LanguageModel& m = **model;
  auto ids = prompt_ids(*m.tokenizer(), text);
  if (!ids.ok()) return fail(ids.status());

  Request request;
  request.id = "generate";
  request.prompt = std::move(*ids);
  request.sampling = sampling_params(o.sampling, {}, 0.f);
  request.stop.max_tokens = o.sampling.max_tokens;
  request.stop.ignore_eos = o.ignore_eos;
  const auto spec = constraint_of(o.sampling);
  if (!spec.ok()) return fail(spec.status());
  auto constraint = m.constraints()->compile(*spec);
  if (!constraint.ok()) return fail(constraint.status());
  request.constraint = std::move(*constraint);
  request.constraint_field = "the constraint";
  request.adapter = chosen_adapter(o.model, m);
  TextStreamOptions stream_options;
  stream_options.stop = o.sampling.stop;
  auto stream = TextStream::create(m.tokenizer(), std::move(stream_options), 1);
  if (Status s = stream->start(m.engine(), std::move(request)); !s.ok()) return fail(s);
  auto answer = collect(*stream, o.json);
  if (!answer.ok()) return fail(answer.status());
  const SequenceStats& stats = answer->last.stats;
  if (answer->last.finish == FinishReason::kLength && stats.completion_tokens < o.sampling.max_tokens) {
    std::fprintf(stderr,
                 "oar: stopped at the end of the context of %lld tokens; --max-context may raise it\n",
                 static_cast<long long>(m.info().max_context));
  }
  if (o.json) {
    std::printf("%s\n", json::serialize(report(*answer, m.info())).c_str());
  } else if (isatty(STDOUT_FILENO) != 0) {
    std::printf("\n");
  }
  return std::fflush(stdout) == 0 ? kSuccess : fail(unavailable("standard output is closed"));
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto o = std::make_shared<GenerateOptions>();
  o->model.engine.max_sequences = 1;
  CLI::App* c = app.add_subcommand("generate", "Continue one prompt; only the text goes to standard output");
  add_model_options(*c, o->model);
  add_lora_options(*c, o->model, false);
  auto* prompt =
      c->add_option("-p,--prompt", o->prompt,
                    "the text to continue, else what is piped in; empty: from the beginning (BOS alone)");
  c->add_option("--prompt-file", o->prompt_file, "take the prompt from a file; - is standard input")
      ->excludes(prompt);
  add_sampling_options(*c, o->sampling, 128, "0");
  c->add_flag("--ignore-eos", o->ignore_eos, "go on at the model's end tokens");
  c->add_flag("--json", o->json,
              "print text, token ids, finish reason, usage and timings as one JSON object");
  c->footer(
      "Examples:\n"
      "  oar generate demo --prompt 'ROMEO:' -n 100\n"
      "  head -c 300 story.txt | oar generate demo -n 20\n"
      "  oar generate model.gguf --prompt-file story.txt --temperature 0.8 --top-p 0.95 --seed 7\n"
      "  oar generate demo --prompt '' --stop $'\\n\\n' --json\n"
      "  oar generate model.gguf -p 'A person as JSON: ' --json-schema person.json\n"
      "  oar generate demo --lora my-adapter --prompt 'Once upon a time'\n"
      "  oar generate demo --prompt-file story.txt --speculative ngram\n"
      "  oar generate ./Llama-3.2-1B --prompt 'ROMEO:' --speculative draft --draft-model demo\n"
      "Weights stay as the file has them and the KV cache is no narrower, unless --weights and --kv say "
      "otherwise.");
  c->callback([o, prompt, &action] {
    o->prompt_given = prompt->count() > 0;
    action = [o] { return generate(*o); };
  });
}

}  // namespace oar::cli
