#include "engine/text/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <set>
#include <unordered_map>

#include "engine/base/format.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/utf8.h"

namespace oar {

const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// One kind of piece, and how often it is there.
struct Word {
  std::vector<int32_t> ids;
  int64_t count = 0;
};

using PairKey = uint64_t;
PairKey key_of(int32_t a, int32_t b) {
  return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
}

class MergeLearner {
 public:
  MergeLearner(TrainedTokenizer& out, std::vector<Word> words) : out_(out), words_(std::move(words)) {
    for (size_t id = 0; id < out.entries.size(); ++id) by_bytes_.emplace(out.entries[id], id);
    for (size_t w = 0; w < words_.size(); ++w) {
      count(words_[w], 1);
      for (size_t k = 0; k + 1 < words_[w].ids.size(); ++k) note(w, k);
    }
    for (const auto& [key, pair] : pairs_) queue_.push({pair.count, key});
  }

  void learn(int64_t vocab, int64_t least) {
    while (static_cast<int64_t>(out_.entries.size()) < vocab && !queue_.empty()) {
      const Waiting top = queue_.top();
      queue_.pop();
      Pair& pair = pairs_.at(top.key);
      if (pair.count != top.count) {  // it was counted earlier
        if (pair.count > 0) queue_.push({pair.count, top.key});
        continue;
      }
      if (top.count < std::max<int64_t>(least, 1)) break;
      merge(top.key);
    }
  }

 private:
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that had it at some time
  };
  struct Waiting {
    int64_t count;
    PairKey key;
    bool operator<(const Waiting& o) const { return count != o.count ? count < o.count : key > o.key; }
  };

  // Counts the pairs of a word, `sign` times.
  void count(const Word& w, int64_t sign) {
    for (size_t k = 0; k + 1 < w.ids.size(); ++k)
      pairs_[key_of(w.ids[k], w.ids[k + 1])].count += sign * w.count;
  }
  // That the word has the pair at k.
  PairKey note(size_t word, size_t k) {
    const PairKey key = key_of(words_[word].ids[k], words_[word].ids[k + 1]);
    std::vector<uint32_t>& list = pairs_[key].words;
    if (list.empty() || list.back() != word) list.push_back(static_cast<uint32_t>(word));
    return key;
  }

  void merge(PairKey key) {
    const auto a = static_cast<int32_t>(key >> 32), b = static_cast<int32_t>(key & 0xffffffffu);
    const std::string bytes = out_.entries[static_cast<size_t>(a)] + out_.entries[static_cast<size_t>(b)];
    // The same bytes may have come together in another way.
    const auto [known, is_new] = by_bytes_.emplace(bytes, out_.entries.size());
    const auto id = static_cast<int32_t>(known->second);
    if (is_new) out_.entries.push_back(bytes);
    out_.merges.emplace_back(a, b);
    const std::vector<uint32_t> words = std::move(pairs_[key].words);
    std::set<PairKey> grown;
    for (const uint32_t word : words) {
      std::vector<int32_t>& ids = words_[word].ids;
      bool there = false;
      for (size_t k = 0; k + 1 < ids.size(); ++k) there = there || (ids[k] == a && ids[k + 1] == b);
      if (!there) continue;
      count(words_[word], -1);
      size_t to = 0;
      for (size_t k = 0; k < ids.size(); ++to) {
        const bool pair = k + 1 < ids.size() && ids[k] == a && ids[k + 1] == b;
        ids[to] = pair ? id : ids[k];
        k += pair ? 2 : 1;
      }
      ids.resize(to);
      count(words_[word], 1);
      for (size_t k = 0; k + 1 < ids.size(); ++k)
        if (ids[k] == id || ids[k + 1] == id) grown.insert(note(word, k));
    }
    for (const PairKey k : grown) queue_.push({pairs_.at(k).count, k});
  }

  TrainedTokenizer& out_;
  std::vector<Word> words_;
  std::unordered_map<std::string, size_t> by_bytes_;
  std::unordered_map<PairKey, Pair> pairs_;
  std::priority_queue<Waiting> queue_;
};

std::string entry_text(const TrainedTokenizer& t, const BpeTrainerOptions& o, int32_t id) {
  const std::string& bytes = t.entries[static_cast<size_t>(id)];
  return static_cast<size_t>(id) < o.special.size() ? bytes : to_byte_alphabet(bytes);
}

}  // namespace

Result<TrainedTokenizer> train_tokenizer(const std::vector<std::string_view>& texts,
                                         const BpeTrainerOptions& o) {
  const auto fixed = static_cast<int64_t>(o.special.size()) + 256;
  if (o.vocab < fixed)
    return invalid_argument(cat("--vocab ", o.vocab, " is less than ", o.special.size(),
                                " special tokens and 256 bytes take, ", fixed));
  if (o.special.size() < 2)
    return invalid_argument("--special: expected a token that begins texts, and one that ends them");
  std::set<std::string> names;
  for (const std::string& s : o.special)
    if (s.empty() || !names.insert(s).second)
      return invalid_argument(cat("--special: '", s, "' is empty or there twice"));
  OAR_ASSIGN(SplitPattern pattern, SplitPattern::compile(o.pattern));
  const PreTokenizerPtr split = make_split(std::move(pattern), SplitBehavior::kIsolated, false);

  TrainedTokenizer out;
  out.entries = o.special;
  // Bytes by the characters that stand for them.
  std::vector<std::pair<std::string, uint8_t>> bytes;
  for (int b = 0; b < 256; ++b)
    bytes.emplace_back(byte_alphabet_text(static_cast<uint8_t>(b)), static_cast<uint8_t>(b));
  std::sort(bytes.begin(), bytes.end());  // of UTF-8 the order of the characters
  int32_t id_of[256];
  for (const auto& [text, byte] : bytes) {
    id_of[byte] = static_cast<int32_t>(out.entries.size());
    out.entries.emplace_back(1, static_cast<char>(byte));
  }

  std::unordered_map<std::string, size_t> places;
  std::vector<Word> words;
  for (size_t t = 0; t < texts.size(); ++t) {
    if (!is_valid_utf8(texts[t])) return invalid_argument(cat("text ", t + 1, " is not UTF-8"));
    SplitPattern::Scratch scratch;
    scratch.refill(texts[t].size());
    OAR_RETURN_IF_ERROR(split->split({texts[t], true}, scratch, [&](Piece piece) {
      const auto [it, is_new] = places.emplace(std::string(piece.text), words.size());
      if (is_new) {
        words.emplace_back();
        for (const char c : piece.text) words.back().ids.push_back(id_of[static_cast<uint8_t>(c)]);
      }
      ++words[it->second].count;
    }));
  }
  MergeLearner(out, std::move(words)).learn(o.vocab, o.least_count);
  return out;
}

std::string trained_tokenizer_json(const TrainedTokenizer& t, const BpeTrainerOptions& o) {
  json::array added, merges;
  json::object vocab;
  for (size_t id = 0; id < t.entries.size(); ++id) vocab[entry_text(t, o, static_cast<int32_t>(id))] = id;
  for (size_t id = 0; id < o.special.size(); ++id)
    added.emplace_back(json::object{{"id", id},
                                    {"content", o.special[id]},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  for (const auto& [a, b] : t.merges)
    merges.emplace_back(json::array{entry_text(t, o, a), entry_text(t, o, b)});
  const auto byte_level = [](bool prefix, bool regex) {
    return json::object{
        {"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", regex}};
  };
  const auto bos = [&](int type) {
    return json::object{{"SpecialToken", json::object{{"id", o.special[0]}, {"type_id", type}}}};
  };
  const auto text = [](const char* which, int type) {
    return json::object{{"Sequence", json::object{{"id", which}, {"type_id", type}}}};
  };
  const json::object split{{"type", "Split"},
                           {"pattern", json::object{{"Regex", o.pattern}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  json::object special;
  special[o.special[0]] = json::object{
      {"id", o.special[0]}, {"ids", json::array{0}}, {"tokens", json::array{json::value(o.special[0])}}};
  const json::object post{{"type", "TemplateProcessing"},
                          {"single", json::array{bos(0), text("A", 0)}},
                          {"pair", json::array{bos(0), text("A", 0), bos(0), text("B", 1)}},
                          {"special_tokens", special}};
  const json::object model{{"type", "BPE"},
                           {"dropout", nullptr},
                           {"unk_token", nullptr},
                           {"continuing_subword_prefix", nullptr},
                           {"end_of_word_suffix", nullptr},
                           {"fuse_unk", false},
                           {"byte_fallback", false},
                           {"ignore_merges", false},
                           {"vocab", vocab},
                           {"merges", merges}};
  return json::serialize(json::object{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       json::object{{"type", "Sequence"}, {"pretokenizers", json::array{split, byte_level(false, false)}}}},
      {"post_processor", post},
      {"decoder", byte_level(true, true)},
      {"model", model}});
}

std::string trained_tokenizer_config_json(const BpeTrainerOptions& o) {
  json::object out{{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"bos_token", o.special[0]},
                   {"eos_token", o.special[1]},
                   {"clean_up_tokenization_spaces", false}};
  const auto has = [&](const char* name) {
    return std::find(o.special.begin(), o.special.end(), name) != o.special.end();
  };
  if (has("<|system|>") && has("<|user|>") && has("<|assistant|>") && has("<|end|>"))
    out["chat_template"] =
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
        "{{ raise_exception('unknown role ' + message['role'] + ': use system, user or assistant') }}{% "
        "endif %}"
        "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
  return json::serialize(out);
}

}  // namespace oar
