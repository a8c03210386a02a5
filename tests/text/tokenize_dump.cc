// Oracle harness: reads length-prefixed texts from standard input and writes length-prefixed ids.
//
//   tokenize_dump [--special] [--raw] json TOKENIZER.JSON | vocab VOCAB.TXT | spm FILE.model |
//   gguf FILE.gguf | llama2c FILE.bin VOCAB
//
// In:  uint32 bytes, text. Out: uint32 count, int32 ids, uint32 bytes, decoded text. Little endian. --special
// adds BOS and the like; --raw does not look for special tokens in the text. `time FILE` as a third part
// measures instead.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>

#include "engine/text/tokenizer.h"
#include "tests/text/gguf_metadata.h"

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream s;
  s << in.rdbuf();
  return std::move(s).str();
}

oar::Result<oar::TokenizerPtr> load(const std::string& kind, const std::string& path, int32_t vocab) {
  const std::string bytes = read_file(path);
  if (kind == "spm") return oar::tokenizer_from_sentencepiece(bytes);
  if (kind == "vocab") return oar::tokenizer_from_vocab_txt(bytes);
  if (kind == "llama2c") return oar::tokenizer_from_llama2c(bytes, vocab);
  if (kind == "gguf") {
    OAR_ASSIGN(oar::GgufVocab v, oar_test::read_gguf_vocab(bytes));
    return oar::tokenizer_from_gguf(std::move(v));
  }
  return oar::tokenizer_from_json(bytes);
}

void write_bytes(const void* data, size_t n) { std::fwrite(data, 1, n, stdout); }

// CPU time, so that a busy machine still gives a number.
int measure(const oar::Tokenizer& tokenizer, const std::string& path,
            const oar::Tokenizer::EncodeOptions& options) {
  const std::string text = read_file(path);
  size_t ids = 0, bytes = 0;
  const std::clock_t start = std::clock();
  double seconds = 0;
  while (seconds < 1.0) {
    const auto r = tokenizer.encode(text, options);
    if (!r.ok()) return 1;
    ids += r->size();
    bytes += text.size();
    seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }
  std::printf("%.1f MB/s, %.2f M tokens/s\n", static_cast<double>(bytes) / seconds * 1e-6,
              static_cast<double>(ids) / seconds * 1e-6);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  oar::Tokenizer::EncodeOptions options{.add_special_tokens = false, .parse_special = true};
  std::vector<std::string> args;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--special") options.add_special_tokens = true;
    else if (a == "--raw") options.parse_special = false;
    else args.push_back(a);
  }
  if (args.size() < 2) {
    std::fprintf(stderr,
                 "usage: tokenize_dump [--special] [--raw] json|spm|gguf|llama2c FILE [VOCAB] [time TEXT]\n");
    return 2;
  }
  const std::clock_t start = std::clock();
  const int32_t vocab = args[0] == "llama2c" && args.size() > 2 ? std::stoi(args[2]) : 0;
  const auto tokenizer = load(args[0], args[1], vocab);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().to_string().c_str());
    return 1;
  }
  if (args.size() >= 4 && args[args.size() - 2] == "time") {
    std::printf("loaded in %.0f ms; ", 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    return measure(**tokenizer, args.back(), options);
  }
  uint32_t length = 0;
  std::string text;
  while (std::fread(&length, sizeof length, 1, stdin) == 1) {
    text.resize(length);
    if (length && std::fread(text.data(), 1, length, stdin) != length) return 1;
    const auto ids = (*tokenizer)->encode(text, options);
    if (!ids.ok()) {
      std::fprintf(stderr, "%s\n", ids.status().to_string().c_str());
      return 1;
    }
    const auto count = static_cast<uint32_t>(ids->size());
    write_bytes(&count, sizeof count);
    write_bytes(ids->data(), count * sizeof(int32_t));
    const std::string back = (*tokenizer)->decode(*ids);
    const auto back_bytes = static_cast<uint32_t>(back.size());
    write_bytes(&back_bytes, sizeof back_bytes);
    write_bytes(back.data(), back.size());
  }
  return 0;
}
