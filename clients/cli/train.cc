// oar train: what a model is made of from text alone: its tokenizer (engine/text/bpe_trainer.h), first
// weights for a config.json, and the run of `oar finetune --full` from there.
#include <cstdio>
#include <deque>
#include <filesystem>
#include <set>

#include "clients/cli/command.h"
#include "clients/cli/finetune.h"
#include "clients/cli/ranges.h"
#include "clients/cli/rank_processes.h"
#include "engine/base/format.h"
#include "engine/base/strip.h"
#include "engine/loader/file_writer.h"
#include "engine/loader/tokenizer_files.h"
#include "engine/tensor/mapped_file.h"
#include "engine/text/bpe_trainer.h"
#include "engine/text/line_reader.h"
#include "engine/text/utf8.h"
#include "engine/tune/measure/random_checkpoint.h"
#include "train/data.h"

namespace oar::cli {
namespace {

namespace fs = std::filesystem;

struct TrainCommand {
  bool tokenizer = false;
  std::string config, words;
  BpeTrainerOptions options;
  FinetuneCommand run;
};

// What a tokenizer is learned from: documents of .txt and .md, what lines of .jsonl say.
struct Texts {
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::deque<std::string> owned;
  std::vector<std::string_view> views;
  uint64_t bytes = 0;

  void add(std::string_view text) {
    views.push_back(text);
    bytes += text.size();
  }
  // Texts of a sample: everything under these keys.
  void add(const json::value& v, std::string_view key) {
    static const std::set<std::string_view> kTexts{"text", "prompt", "completion", "content"};
    if (v.is_string() && kTexts.contains(key)) add(owned.emplace_back(v.get_string()));
    if (v.is_array())
      for (const json::value& one : v.get_array()) add(one, key);
    if (v.is_object())
      for (const auto& [name, one] : v.get_object()) add(one, name);
  }
  Status read(const std::string& argument) {
    OAR_ASSIGN(const train::DataFile data, train::parse_data_file(argument));
    OAR_ASSIGN(files.emplace_back(), MappedFile::open(data.path));
    const std::string_view contents = without_mark(
        {reinterpret_cast<const char*>(files.back()->data()), static_cast<size_t>(files.back()->size())});
    if (fs::path(data.path).extension() != ".jsonl") {
      for (size_t begin = 0; begin <= contents.size();) {
        const size_t end = std::min(contents.find(train::kSeparator, begin), contents.size());
        add(contents.substr(begin, end - begin));
        begin = end + train::kSeparator.size();
      }
      return ok_status();
    }
    const LineReader reader(data.path);
    return reader.each_line(contents, [&](std::string_view text, int64_t line) -> Status {
      if (is_blank(text)) return ok_status();
      OAR_ASSIGN(const json::object sample,
                 reader.object(text, line, "messages, prompt and completion, or text"));
      add(json::value(sample), "");
      return ok_status();
    });
  }
};

// Learns a tokenizer of --data and writes it into `folder`; the number of its entries.
Result<int64_t> learn_tokenizer(const TrainCommand& o, const std::string& folder, uint64_t& bytes) {
  Texts texts;
  for (const std::string& argument : o.run.run.trainer.data) OAR_RETURN_IF_ERROR(texts.read(argument));
  bytes = texts.bytes;
  OAR_ASSIGN(const TrainedTokenizer trained, train_tokenizer(texts.views, o.options));
  const auto entries = static_cast<int64_t>(trained.entries.size());
  if (entries < o.options.vocab)
    std::fprintf(stderr,
                 "oar: the text gives %lld entries, not %lld: no pair is left that is there %lld times\n",
                 static_cast<long long>(entries), static_cast<long long>(o.options.vocab),
                 static_cast<long long>(o.options.least_count));
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) return unavailable(cat("cannot write ", folder, ": ", ec.message(), "; choose another --out"));
  OAR_RETURN_IF_ERROR(
      write_file_atomically(folder + "/tokenizer_config.json", trained_tokenizer_config_json(o.options)));
  OAR_RETURN_IF_ERROR(
      write_file_atomically(folder + "/tokenizer.json", trained_tokenizer_json(trained, o.options)));
  return entries;
}

Status check_free(const std::string& out) {
  std::error_code ec;
  if (!fs::exists(out, ec) || fs::is_empty(out, ec)) return ok_status();
  return Status(StatusCode::kAlreadyExists,
                cat("--out ", out, " is there already; choose another name or remove it"));
}

Status tokenizer_alone(const TrainCommand& o) {
  const std::string& out = o.run.run.out;
  OAR_RETURN_IF_ERROR(check_free(out));
  uint64_t bytes = 0;
  OAR_ASSIGN(const int64_t entries, learn_tokenizer(o, out, bytes));
  std::printf("%s: %lld entries from %s of text\n", out.c_str(), static_cast<long long>(entries),
              format_bytes(bytes).c_str());
  return ok_status();
}

// A number of config.json, or what stands for it.
int64_t number_of(const json::object& config, const char* key, int64_t absent) {
  const json::value* const v = config.if_contains(key);
  return v != nullptr && v->is_int64() ? v->get_int64() : absent;
}

// The model that a run begins from: config.json, a tokenizer and first weights, in `folder`. The same options
// write the same bytes, so that a run that goes on finds what it began with.
Status write_start(const CLI::App& command, TrainCommand& o, const std::string& folder) {
  const train::TrainerOptions& t = o.run.run.trainer;
  OAR_ASSIGN(const std::string text, read_small_file(o.config, uint64_t{1} << 24));
  OAR_ASSIGN(const json::value parsed, parse_json(text, o.config));
  if (!parsed.is_object()) return invalid_argument(cat("--config ", o.config, " holds no JSON object"));
  json::object config = parsed.get_object();
  if (config.contains("text_config"))
    return unimplemented(cat("--config ", o.config,
                             ": 'text_config' stands in a model of several parts; give its contents alone"));
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) return unavailable(cat("cannot write ", folder, ": ", ec.message(), "; choose another --out"));
  if (!o.words.empty()) {
    OAR_ASSIGN(const TokenizerFiles files, read_tokenizer(o.words));
    if (!config.contains("vocab_size"))
      return invalid_argument(cat("--config ", o.config, ": 'vocab_size' is missing; give that of --words"));
    OAR_RETURN_IF_ERROR(write_tokenizer_folder(files, folder));
  } else {
    if (command.count("--vocab") == 0) o.options.vocab = number_of(config, "vocab_size", o.options.vocab);
    uint64_t bytes = 0;
    OAR_ASSIGN(const int64_t entries, learn_tokenizer(o, folder, bytes));
    if (!o.run.quiet)
      std::fprintf(stderr, "a tokenizer of %lld entries from %s of text\n", static_cast<long long>(entries),
                   format_bytes(bytes).c_str());
    config["vocab_size"] = entries;
    config["bos_token_id"] = 0;
    json::array ends{1};
    for (size_t k = 2; k < o.options.special.size(); ++k)
      if (o.options.special[k] == "<|end|>") ends.emplace_back(k);
    config["eos_token_id"] = ends;
  }
  RandomCheckpointOptions first;
  first.seed = t.seed, first.to_train = true;
  if (const json::value* const range = config.if_contains("initializer_range"); range != nullptr) {
    if (!range->is_number() || !(range->to_number<double>() > 0 && range->to_number<double>() < 10))
      return invalid_argument("config.json: 'initializer_range' is not between 0 and 10");
    first.stddev = range->to_number<double>();
  }
  ThreadPoolOptions pool;
  pool.threads = t.threads;
  ThreadPool threads(pool);
  return write_random_checkpoint(config, folder, threads, first);
}

// Flags that say nothing of what is asked for.
Status check_flags(const CLI::App& command, const TrainCommand& o) {
  static const std::set<std::string> kWords{"--vocab", "--special", "--least-count"};
  static const std::set<std::string> kBoth{"--data", "--out"};
  const auto wrong = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message), "command line");
  };
  if (o.tokenizer == !o.config.empty())
    return wrong(o.tokenizer ? "--tokenizer and --config exclude each other"
                             : "either --config FILE, for a model, or --tokenizer is needed");
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || kBoth.contains(name)) continue;
    if (o.tokenizer && name != "--tokenizer" && !kWords.contains(name))
      return wrong(cat(name, " says nothing of a tokenizer; leave it out beside --tokenizer"));
    if (!o.words.empty() && kWords.contains(name))
      return wrong(cat(name, " is of a tokenizer that is learned; --words gives one"));
  }
  return ok_status();
}

int train_model(const CLI::App& command, TrainCommand& o) {
  train::FinetuneOptions& run = o.run.run;
  const std::string work = run.out + ".training";
  run.trainer.model = work + "/start";
  if (is_started_rank()) {
    run.restart = false;
    return finetune(command, o.run);
  }
  std::error_code ec;
  Status s = check_free(run.out);
  if (s.ok()) {
    if (run.restart) fs::remove_all(work, ec);
    run.restart = false;
    s = write_start(command, o, run.trainer.model);
  }
  const int code = s.ok() ? finetune(command, o.run) : fail(s);
  if (!is_regular_file(work + "/checkpoint.safetensors")) fs::remove_all(work, ec);
  return code;
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  auto o = std::make_shared<TrainCommand>();
  train::TrainerOptions& t = o->run.run.trainer;
  t.graph.full = t.graph.fresh = true;
  t.rate = 1e-3, t.optimizer.decay = 0.1, t.optimizer.beta2 = 0.95;
  CLI::App* c = app.add_subcommand("train", "Train a language model from its beginning, or a tokenizer");
  c->add_option("--config", o->config,
                "the model: a config.json in Hugging Face's form. Its weights are drawn by --seed, its "
                "vocabulary is learned from --data")
      ->type_name("FILE");
  c->add_flag("--tokenizer", o->tokenizer, "learn a tokenizer alone: byte-level BPE");
  c->add_option("--data", t.data,
                "what to learn: .txt, or .jsonl as `finetune` reads it; FILE:2 counts twice")
      ->required()
      ->type_name("FILE");
  add_out(*c, o->run.run.out)->type_name("DIR");
  c->add_option("--words", o->words,
                "a tokenizer that is there, a folder or file, instead of one that is learned")
      ->type_name("PATH");
  c->add_option("--vocab", o->options.vocab,
                "entries of the tokenizer, special tokens and 256 bytes among them; with --config left out: "
                "its vocab_size")
      ->check(in_range(258, 1 << 24))
      ->capture_default_str();
  c->add_option("--special", o->options.special,
                "special tokens by id: the first begins every text, the second ends one")
      ->delimiter(',')
      ->type_name("LIST")
      ->capture_default_str();
  c->add_option("--least-count", o->options.least_count, "how often a pair must be there to become an entry")
      ->check(in_range(1, 1 << 30))
      ->capture_default_str();
  add_peak_options(*c, t, o->run.peak, false);
  c->add_option("--rate", t.rate, "the learning rate at its highest")
      ->check(above_zero())
      ->capture_default_str();
  add_run_options(*c, o->run);
  c->footer(
      "Examples:\n"
      "  oar train --config llama.json --data story.txt --eval wiki.txt --length 64 -o storyteller\n"
      "  oar train --tokenizer --data story.txt wiki.txt --vocab 512 -o words\n"
      "The texts are split as Llama 3 splits them. tokenizer.json is what Hugging Face's tokenizers make of "
      "them.\n"
      "What comes out is a Hugging Face folder that `oar serve` serves. Interrupted, the same command goes "
      "on where\nit stopped. docs/training.md has the rest.");
  c->callback([o, c, &action] {
    action = [o, c] {
      if (const Status s = check_flags(*c, *o); !s.ok()) return fail(s);
      if (!o->tokenizer) return train_model(*c, *o);
      const Status s = tokenizer_alone(*o);
      return s.ok() ? kSuccess : fail(s);
    };
  });
}

}  // namespace oar::cli
