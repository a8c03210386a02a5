// Byte-level BPE learned from text (https://arxiv.org/abs/1508.07909, over bytes as GPT-2 has it): the text
// is split by a pattern, each piece is its bytes, and the pair of neighbours that is there most often becomes
// an entry, over and over. Of equally many the pair whose entries came first is taken. Nothing depends on
// threads, and nothing is drawn.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar {

// The pattern of Llama 3's tokenizer.json.
extern const char* const kLlama3Pattern;

struct BpeTrainerOptions {
  int64_t vocab = 2048;     // entries, special tokens and 256 bytes among them
  int64_t least_count = 1;  // of a pair that becomes an entry
  std::string pattern = kLlama3Pattern;
  // By id. The first stands in front of every text, the second ends one.
  std::vector<std::string> special{"<|bos|>",  "<|eos|>",       "<|system|>",
                                   "<|user|>", "<|assistant|>", "<|end|>"};
};

struct TrainedTokenizer {
  // Bytes of each entry by id; of a special token its name.
  std::vector<std::string> entries;
  std::vector<std::pair<int32_t, int32_t>> merges;  // in the order in which they are applied
};

// INVALID_ARGUMENT names what is wrong with the options, or the text that is not UTF-8 (by its place in the
// list). Fewer entries than asked for come out where no pair is left.
Result<TrainedTokenizer> train_tokenizer(const std::vector<std::string_view>& texts,
                                         const BpeTrainerOptions& options);

// The bytes of tokenizer.json and tokenizer_config.json. The latter has a chat template where special tokens
// have the names of the default ones.
std::string trained_tokenizer_json(const TrainedTokenizer& tokenizer, const BpeTrainerOptions& options);
std::string trained_tokenizer_config_json(const BpeTrainerOptions& options);

}  // namespace oar
