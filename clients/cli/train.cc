// oar train: what a model is made of from text alone. So far its tokenizer (engine/text/bpe_trainer.h).
#include <cstdio>
#include <filesystem>

#include "clients/cli/command.h"
#include "clients/cli/ranges.h"
#include "engine/base/format.h"
#include "engine/loader/file_writer.h"
#include "engine/tensor/mapped_file.h"
#include "engine/text/bpe_trainer.h"

namespace oar::cli {
namespace {

struct TrainCommand {
  bool tokenizer = false;
  std::vector<std::string> data;
  std::string out;
  BpeTrainerOptions options;
};

Status train_and_write(const TrainCommand& o) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (fs::exists(o.out, ec) && !fs::is_empty(o.out, ec))
    return Status(StatusCode::kAlreadyExists,
                  cat("--out ", o.out, " is there already; choose another name or remove it"));
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::vector<std::string_view> texts;
  uint64_t bytes = 0;
  for (const std::string& path : o.data) {
    OAR_ASSIGN(auto file, MappedFile::open(path));
    texts.emplace_back(reinterpret_cast<const char*>(file->data()), file->size());
    bytes += file->size();
    files.push_back(std::move(file));
  }
  const auto trained = train_tokenizer(texts, o.options);
  if (!trained.ok()) return trained.status();
  const auto entries = static_cast<int64_t>(trained->entries.size());
  if (entries < o.options.vocab)
    std::fprintf(stderr,
                 "oar: the text gives %lld entries, not %lld: no pair is left that is there %lld times\n",
                 static_cast<long long>(entries), static_cast<long long>(o.options.vocab),
                 static_cast<long long>(o.options.least_count));
  fs::create_directories(o.out, ec);
  if (ec) return unavailable(cat("cannot write ", o.out, ": ", ec.message(), "; choose another --out"));
  OAR_RETURN_IF_ERROR(
      write_file_atomically(o.out + "/tokenizer_config.json", trained_tokenizer_config_json(o.options)));
  OAR_RETURN_IF_ERROR(
      write_file_atomically(o.out + "/tokenizer.json", trained_tokenizer_json(*trained, o.options)));
  std::printf("%s: %lld entries from %s of text\n", o.out.c_str(), static_cast<long long>(entries),
              format_bytes(bytes).c_str());
  return ok_status();
}

}  // namespace

void add_train(CLI::App& app, Action& action) {
  auto o = std::make_shared<TrainCommand>();
  CLI::App* c = app.add_subcommand("train", "Learn a tokenizer from text");
  c->add_flag("--tokenizer", o->tokenizer, "learn a tokenizer: byte-level BPE")->required();
  c->add_option("--data", o->data, "texts, each a file in UTF-8")->required()->type_name("FILE");
  c->add_option("-o,--out", o->out, "the folder to write; must not exist")->required()->type_name("DIR");
  c->add_option("--vocab", o->options.vocab, "entries, special tokens and 256 bytes among them")
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
  c->footer(
      "Example:\n"
      "  oar train --tokenizer --data story.txt wiki.txt --vocab 512 -o words\n"
      "The texts are split as Llama 3 splits them. tokenizer.json is what Hugging Face's tokenizers make of "
      "them;\n"
      "`oar finetune --full` trains a model that has one.");
  c->callback([o, &action] {
    action = [o] {
      if (const Status s = train_and_write(*o); !s.ok()) return fail(s);
      return kSuccess;
    };
  });
}

}  // namespace oar::cli
