#include "engine/loader/tokenizer_files.h"

#include <filesystem>

#include "engine/base/format.h"
#include "engine/loader/file_writer.h"
#include "engine/loader/gguf.h"
#include "engine/tensor/mapped_file.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256}
                                        << 20;  // the largest real tokenizer.json have about 35 MB
constexpr uint64_t kMaxTokenizerConfigBytes = uint64_t{16} << 20;

// The first of the files that exists; empty when none does.
Result<std::string> read_first(const fs::path& folder, std::initializer_list<std::string> names,
                               uint64_t max_size) {
  for (const std::string& name : names) {
    const std::string path = (folder / name).string();
    if (is_regular_file(path)) return read_small_file(path, max_size);
  }
  return std::string();
}

// A template in JSON is a string, or a list of {"name", "template"} of which "default" is meant.
std::string template_of(const json::object& config) {
  const json::value* v = config.if_contains("chat_template");
  if (!v) return {};
  if (v->is_string()) return std::string(v->get_string());
  if (!v->is_array()) return {};
  for (const json::value& entry : v->get_array()) {
    const json::object* o = entry.if_object();
    const json::value* name = o ? o->if_contains("name") : nullptr;
    const json::value* text = o ? o->if_contains("template") : nullptr;
    if (name && text && name->is_string() && text->is_string() && name->get_string() == "default") {
      return std::string(text->get_string());
    }
  }
  return {};
}

Status take_vocabulary(const GgufFile& file, TokenizerFiles& out) {
  OAR_ASSIGN(out.gguf, gguf_vocab(file));
  if (!out.gguf) return ok_status();
  out.gguf_metadata = file.bytes.slice(0, file.metadata_end);
  out.chat_template = out.gguf->chat_template;
  return ok_status();
}

Result<json::object> parse_object(std::string_view text, const std::string& path) {
  OAR_ASSIGN(json::value v, parse_json(text, path));
  if (!v.is_object()) return invalid_argument(cat(path, " must hold a JSON object"));
  return std::move(v.get_object());
}

}  // namespace

std::vector<fs::path> files_with_extension(const fs::path& folder, std::string_view extension) {
  std::vector<fs::path> out;
  for (const std::string& name : files_in(folder.string())) {
    if (fs::path(name).extension() == extension) out.push_back(folder / name);
  }
  return out;
}

Result<TokenizerFiles> read_tokenizer_folder(const std::string& folder_name, int64_t vocab) {
  const fs::path folder = folder_name;
  TokenizerFiles out;
  OAR_ASSIGN(out.tokenizer_json, read_first(folder, {"tokenizer.json"}, kMaxTokenizerBytes));
  OAR_ASSIGN(out.tokenizer_config_json,
             read_first(folder, {"tokenizer_config.json"}, kMaxTokenizerConfigBytes));
  if (out.tokenizer_json.empty()) {
    OAR_ASSIGN(out.vocab_json, read_first(folder, {"vocab.json"}, kMaxTokenizerBytes));
    OAR_ASSIGN(out.merges_txt, read_first(folder, {"merges.txt"}, kMaxTokenizerBytes));
    OAR_ASSIGN(out.vocab_txt, read_first(folder, {"vocab.txt"}, kMaxTokenizerBytes));
  }
  OAR_ASSIGN(out.sentencepiece_model, read_first(folder,
                                                 {"tokenizer.model", "spiece.model",
                                                  "sentencepiece.bpe.model", cat("tok", vocab, ".model")},
                                                 kMaxTokenizerBytes));
  const auto ranks = files_with_extension(folder, ".tiktoken");
  if (ranks.size() > 1)
    return invalid_argument(
        cat("folder ", folder_name, " has more than one .tiktoken file; name one of them"));
  if (!ranks.empty()) {
    OAR_ASSIGN(out.tiktoken, read_small_file(ranks.front().string(), kMaxTokenizerBytes));
  } else {
    OAR_ASSIGN(out.tiktoken, read_first(folder, {"tiktoken.model"}, kMaxTokenizerBytes));
  }
  OAR_ASSIGN(out.llama2c_bin,
             read_first(folder, {"tokenizer.bin", cat("tok", vocab, ".bin")}, kMaxTokenizerBytes));

  if (const std::string path = folder / "tokenizer.gguf"; out.empty() && is_regular_file(path)) {
    // Of a split model it has the metadata of the first part, and stands alone all the same.
    OAR_ASSIGN(auto mapped, MappedFile::open(path, {}));
    OAR_ASSIGN(const GgufFile file, parse_gguf(file_slice(mapped, 0, mapped->size()), path));
    OAR_RETURN_IF_ERROR(take_vocabulary(file, out));
  }

  OAR_ASSIGN(std::string chat_template,
             read_first(folder, {"chat_template.jinja"}, kMaxTokenizerConfigBytes));
  if (!chat_template.empty()) out.chat_template = std::move(chat_template);
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    if (!out.chat_template.empty()) break;
    OAR_ASSIGN(const std::string text, read_first(folder, {name}, kMaxTokenizerConfigBytes));
    if (text.empty()) continue;
    OAR_ASSIGN(const json::object config, parse_object(text, (folder / name).string()));
    out.chat_template = template_of(config);
  }
  OAR_ASSIGN(const std::string generation,
             read_first(folder, {"generation_config.json"}, kMaxTokenizerConfigBytes));
  if (!generation.empty()) {
    OAR_ASSIGN(out.generation_config, parse_object(generation, (folder / "generation_config.json").string()));
  }
  return out;
}

Status write_tokenizer_folder(const TokenizerFiles& files, const std::string& folder) {
  const std::string generation =
      files.generation_config.empty() ? std::string() : json::serialize(files.generation_config);
  for (const auto& [name, text] :
       {std::pair<const char*, const std::string*>{"tokenizer.json", &files.tokenizer_json},
        {"tokenizer_config.json", &files.tokenizer_config_json},
        {"vocab.json", &files.vocab_json},
        {"merges.txt", &files.merges_txt},
        {"vocab.txt", &files.vocab_txt},
        {"tokenizer.model", &files.sentencepiece_model},
        {"tokenizer.tiktoken", &files.tiktoken},
        {"tokenizer.bin", &files.llama2c_bin},
        {"chat_template.jinja", &files.chat_template},
        {"generation_config.json", &generation}}) {
    if (!text->empty()) OAR_RETURN_IF_ERROR(write_file_atomically(cat(folder, "/", name), *text));
  }
  if (!files.gguf) return ok_status();
  std::string metadata(static_cast<const char*>(files.gguf_metadata.data()), files.gguf_metadata.size());
  constexpr size_t kTensorCountAt = 8;  // behind the magic and the version
  OAR_CHECK(metadata.size() > kTensorCountAt + 8, "a GGUF vocabulary comes with its metadata");
  std::fill_n(metadata.begin() + kTensorCountAt, 8, '\0');
  return write_file_atomically(folder + "/tokenizer.gguf", metadata);
}

Result<TokenizerFiles> read_tokenizer(const std::string& path) {
  TokenizerFiles out;
  if (is_folder(path)) {
    OAR_ASSIGN(out, read_tokenizer_folder(path));
    if (out.empty()) {
      return not_found(
          cat("tokenizer folder ", path,
              " has no tokenizer.json, vocab.json with merges.txt, vocab.txt, tokenizer.model, .tiktoken "
              "file, tiktoken.model or tokenizer.bin"));
    }
    return out;
  }
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".json") {
    OAR_ASSIGN(out.tokenizer_json, read_small_file(path, kMaxTokenizerBytes));
  } else if (extension == ".model") {
    OAR_ASSIGN(out.sentencepiece_model, read_small_file(path, kMaxTokenizerBytes));
  } else if (extension == ".tiktoken") {
    OAR_ASSIGN(out.tiktoken, read_small_file(path, kMaxTokenizerBytes));
  } else if (extension == ".bin") {
    OAR_ASSIGN(out.llama2c_bin, read_small_file(path, kMaxTokenizerBytes));
  } else if (extension == ".gguf") {
    OAR_ASSIGN(const GgufFile file, open_gguf(path));
    OAR_RETURN_IF_ERROR(take_vocabulary(file, out));
  } else {
    return invalid_argument(
        cat("tokenizer ", path,
            ": expected a tokenizer.json, a SentencePiece .model, a .tiktoken, a llama2.c "
            ".bin, a .gguf file or a folder with one of them"));
  }
  if (out.empty()) return data_loss(cat("tokenizer ", path, " is empty"));
  return out;
}

}  // namespace oar
