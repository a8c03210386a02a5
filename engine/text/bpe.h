// Byte-pair encoding in its three dialects, one merge loop:
//  - byte level (GPT-2, Llama 3, Qwen): symbols are bytes, merges come ranked;
//  - characters with ranked merges (tokenizer.json of Llama 2, Mistral, Gemma): optional byte fallback;
//  - SentencePiece: no merge list, any two neighbours whose concatenation is a piece may merge, best score
//  first. At
//    load this becomes a merge list too, where all pairs that make the same piece share its rank.
// O(n log n) for a piece of n symbols, whatever the text; words of up to 32 symbols take a branch-light scan
// instead.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/token_model.h"
#include "engine/text/trie.h"

namespace oar {

// (left, right) -> (rank, merged). Open addressing; lower rank merges first.
class MergeTable {
 public:
  struct Rule {
    int32_t left, right, merged;
    uint32_t rank;
  };
  struct Hit {
    uint32_t rank;
    int32_t merged;
  };
  MergeTable() = default;
  explicit MergeTable(const std::vector<Rule>& rules);  // of equal pairs the last counts
  // nullptr when the pair does not merge.
  const Hit* find(int32_t left, int32_t right) const {
    const uint64_t key = pair_key(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].hit;
      if (slots_[i].key == kFree) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    Hit hit{};
  };
  static uint64_t pair_key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return static_cast<size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift_); }

  std::vector<Slot> slots_ = std::vector<Slot>(2);
  size_t mask_ = 1;
  int shift_ = 63;
};

struct BpeConfig {
  std::vector<MergeTable::Rule> merges;
  bool byte_level = false;     // pieces are raw bytes, vocabulary texts are in the byte alphabet
  bool byte_fallback = false;  // an unknown character becomes its <0xXX> tokens
  bool fuse_unk = false;       // neighbouring unknown characters become one unknown token
  bool ignore_merges = false;  // a piece that is a token as it stands is that token
  std::optional<int32_t> unk_id;
  std::string continuing_subword_prefix, end_of_word_suffix;
};

// A piece of a SentencePiece BPE model.
struct ScoredPiece {
  enum class Type : uint8_t { kNormal, kUserDefined, kUnused, kOther };  // kOther: control, unknown, byte
  float score = 0;
  Type type = Type::kNormal;
};

class BpeModel final : public TokenModel {
 public:
  // `vocabulary` must outlive the model. Ids in the config are within it.
  static Result<std::unique_ptr<BpeModel>> create(const Vocabulary& vocabulary, BpeConfig config);
  // pieces[i] describes id i.
  static Result<std::unique_ptr<BpeModel>> from_scores(const Vocabulary& vocabulary,
                                                       const std::vector<ScoredPiece>& pieces,
                                                       std::optional<int32_t> unk_id, bool byte_fallback);

  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const override;
  // Without a byte that is no token, no id stands for more than its own text.
  size_t longest_token() const override {
    return config_.byte_level && all_bytes_ ? vocabulary_.longest() : 0;
  }

 private:
  explicit BpeModel(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
  void index_vocabulary();
  void find_word_border(const std::vector<bool>& mergeable);

  void encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& out) const;
  void merge_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& out) const;
  void symbols_of_bytes(std::string_view word, std::vector<int32_t>& ids) const;
  void symbols_of_characters(std::string_view word, std::vector<int32_t>& ids) const;
  void symbols_of_pieces(std::string_view word, std::vector<int32_t>& ids) const;
  int32_t character_id(std::string_view character) const;
  int32_t find_character(std::string_view character) const;
  size_t merge_by_scan(int32_t* ids, size_t n) const;
  void merge_by_heap(ModelScratch& scratch,
                     std::unordered_map<int32_t, std::pair<int32_t, int32_t>>* origins) const;
  void emit_pieces(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const;

  const Vocabulary& vocabulary_;
  MergeTable merges_;
  BpeConfig config_;  // without the merges
  std::array<int32_t, 256>
      byte_ids_{};  // byte level: of the byte's character; else: of the token <0xXX>; -1 none
  std::array<int32_t, 128> ascii_ids_{};  // of one-character tokens
  bool all_bytes_ = false;                // every <0xXX> exists
  bool cut_at_marker_ = false;            // no merge crosses from x to U+2581: words can be merged apart

  // SentencePiece dialect.
  bool scored_ = false;
  std::vector<bool> mergeable_;  // by id: pieces that merges make and take
  std::vector<std::string_view>
      characters_;  // those that are no piece and begin some merge: ids from size() on
  std::unordered_map<std::string_view, int32_t>
      character_ids_;  // of characters that vocabulary_ alone has not
  Trie user_defined_;
  int32_t frozen_ = 0;        // id + frozen_: a symbol that takes no part in merging
  std::vector<bool> unused_;  // by id; empty when there are none
};

}  // namespace oar
