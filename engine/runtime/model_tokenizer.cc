#include "engine/runtime/model_tokenizer.h"

#include <limits>

#include "engine/base/format.h"
#include "engine/text/chat_template.h"

namespace oar {

Result<TokenizerPtr> make_tokenizer(const TokenizerFiles& files, int64_t vocab_size) {
  if (!files.tokenizer_json.empty())
    return tokenizer_from_json(files.tokenizer_json, files.tokenizer_config_json);
  if (files.has_vocab_merges())
    return tokenizer_from_vocab_merges(files.vocab_json, files.merges_txt, files.tokenizer_config_json);
  if (!files.vocab_txt.empty()) return tokenizer_from_vocab_txt(files.vocab_txt, files.tokenizer_config_json);
  if (files.gguf) return tokenizer_from_gguf(*files.gguf);
  for (const std::string* ranks : {&files.tiktoken, &files.sentencepiece_model})
    if (is_tiktoken(*ranks)) return tokenizer_from_tiktoken(*ranks, files.tokenizer_config_json);
  if (!files.tiktoken.empty()) return data_loss("the .tiktoken file does not begin with base64 and a rank");
  if (!files.sentencepiece_model.empty()) return tokenizer_from_sentencepiece(files.sentencepiece_model);
  if (!files.llama2c_bin.empty()) {
    if (vocab_size <= 0 || vocab_size > std::numeric_limits<int32_t>::max()) {
      return invalid_argument(cat("vocab_size must be between 1 and 2^31 - 1, got ", vocab_size),
                              "vocab_size");
    }
    return tokenizer_from_llama2c(files.llama2c_bin, static_cast<int32_t>(vocab_size));
  }
  return not_found(
      "the model brings no tokenizer; put tokenizer.json, vocab.json with merges.txt, tokenizer.model, a "
      ".tiktoken file or tokenizer.bin beside its weights");
}

std::string default_chat_template(const Tokenizer& tokenizer) {
  std::string out = kDefaultChatTemplate;
  constexpr std::string_view kEnd = "<|im_end|>", kWritten = "'<|im_end|>\\n'";
  if (!tokenizer.token_to_id(kEnd) && tokenizer.eos_id())
    out.replace(out.find(kWritten), kWritten.size(), "eos_token + '\\n'");
  return tokenizer.adds_bos() && tokenizer.bos_id() ? "{{- bos_token }}" + out : out;
}

}  // namespace oar
