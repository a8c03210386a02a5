// The raw sources of a tokenizer and of the defaults that travel with it, read but not parsed: engine/text
// makes tokenizers and templates of them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/gguf_vocab.h"
#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/tensor/buffer.h"

namespace oar {

// Each string is a whole file's bytes and empty when there is no such file.
struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string vocab_json, merges_txt;  // read only where there is no tokenizer.json
  std::string vocab_txt;               // WordPiece; likewise
  std::string sentencepiece_model;     // or tiktoken's lines, which Llama 3 first came with by that name
  std::string tiktoken;                // *.tiktoken
  std::string llama2c_bin;
  std::optional<GgufVocab> gguf;
  Buffer gguf_metadata;  // what `gguf` was read from: a GGUF file up to its tensors
  std::string
      chat_template;  // Jinja source: chat_template.jinja, or the one in tokenizer_config.json or GGUF
  json::object generation_config;  // generation_config.json; from GGUF: eos_token_id and bos_token_id

  bool has_vocab_merges() const { return !vocab_json.empty() && !merges_txt.empty(); }
  bool empty() const {
    return tokenizer_json.empty() && !has_vocab_merges() && vocab_txt.empty() &&
           sentencepiece_model.empty() && tiktoken.empty() && llama2c_bin.empty() && !gguf.has_value();
  }
};

// The regular files of a folder with this extension (".gguf"), sorted.
std::vector<std::filesystem::path> files_with_extension(const std::filesystem::path& folder,
                                                        std::string_view extension);

// What a folder in the Hugging Face layout has. Absent files are no error; unreadable or damaged ones are.
// `vocab` is the model's vocabulary size if known: llama2.c calls its tokenizers tok<vocab>.bin and
// tok<vocab>.model.
Result<TokenizerFiles> read_tokenizer_folder(const std::string& folder, int64_t vocab = 0);

// The reverse: writes into `folder` what read_tokenizer_folder() makes the same of, however the sources were
// called where they came from. A GGUF vocabulary becomes tokenizer.gguf, a file without tensors.
Status write_tokenizer_folder(const TokenizerFiles& files, const std::string& folder);

// A tokenizer.json, .model, .tiktoken, .bin or .gguf file, or a folder: LoadOptions::tokenizer.
Result<TokenizerFiles> read_tokenizer(const std::string& path);

}  // namespace oar
