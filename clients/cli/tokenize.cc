// oar tokenize: a text as its model sees it. Reads the tokenizer alone, no weights.
#include <cstdio>

#include "clients/cli/command.h"
#include "clients/cli/model_options.h"
#include "clients/cli/prompt.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/loader/checkpoint.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/text/utf8.h"

namespace oar::cli {
namespace {

struct TokenizeOptions {
  ModelOptions model;
  std::string text, file;
  bool no_special = false, json = false;
};

Result<TokenizerPtr> open_tokenizer(const ModelOptions& o) {
  OAR_ASSIGN(const ResolvedModel resolved, resolve_model(o.model, o.cache_dir));
  OAR_ASSIGN(const Checkpoint checkpoint, load_checkpoint(resolved.path));
  const json::value* vocab = checkpoint.config.if_contains("vocab_size");
  return make_tokenizer(checkpoint.tokenizer, vocab != nullptr && vocab->is_int64() ? vocab->get_int64() : 0);
}

// Text as it is; what would not be seen, control characters and parts of a character, escaped.
std::string printable(std::string_view bytes) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint c = decode_utf8(bytes, at);
    const bool control = c.value < 0x20 || (c.value >= 0x7f && c.value < 0xa0);
    if (c.valid && c.value == '\n') out += "\\n";
    else if (c.valid && c.value == '\t') out += "\\t";
    else if (c.valid && c.value == '\\') out += "\\\\";
    else if (c.valid && !control) out += bytes.substr(at, c.length);
    else
      for (const char byte : bytes.substr(at, c.length)) {
        const auto b = static_cast<unsigned char>(byte);
        out += cat("\\x", kHex[b >> 4], kHex[b & 15]);
      }
    at += c.length;
  }
  return out;
}

int tokenize(const TokenizeOptions& o) {
  std::string text = o.text;
  if (!o.file.empty()) {
    auto read = read_text(o.file);
    if (!read.ok()) return fail(read.status());
    text = std::move(*read);
  }
  auto tokenizer = open_tokenizer(o.model);
  if (!tokenizer.ok()) return fail(tokenizer.status());
  auto ids = (*tokenizer)->encode(text, {.add_special_tokens = !o.no_special});
  if (!ids.ok()) return fail(ids.status());
  if (o.json) {
    json::array list(ids->begin(), ids->end());
    std::printf("%s\n", json::serialize(json::object{{"tokens", list}, {"count", ids->size()}}).c_str());
    return kSuccess;
  }
  for (int32_t id : *ids) {
    const bool special = (*tokenizer)->is_special(id);
    const auto shown = special ? (*tokenizer)->token_text(id) : (*tokenizer)->token_bytes(id);
    std::printf("%8d  %s%s\n", id, printable(shown).c_str(), special ? "  (special)" : "");
  }
  return kSuccess;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  auto o = std::make_shared<TokenizeOptions>();
  CLI::App* c = app.add_subcommand("tokenize", "Show the tokens of a text");
  add_model_argument(*c, o->model);
  auto* text = c->add_option("TEXT", o->text, "the text");
  c->add_option("--file", o->file, "take the text from a file; - is standard input")->excludes(text);
  c->add_flag("--no-special", o->no_special, "without the special tokens around it");
  c->add_flag("--json", o->json, "print one JSON object");
  c->footer(
      "Examples:\n"
      "  oar tokenize demo 'Good morrow, cousin.'\n"
      "  oar tokenize model.gguf --file story.txt --json");
  c->callback([o, &action] { action = [o] { return tokenize(*o); }; });
}

}  // namespace oar::cli
