// The middle stage of a tokenizer: from one piece of text (a word, or a whole section) to token ids. Four
// kinds: BPE, Unigram, WordPiece, WordLevel. Models are immutable; what a call needs to write lives in
// ModelScratch.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "engine/text/encode_watch.h"
#include "engine/text/vocabulary.h"

namespace oar {

// Ids of recent words of this call: text repeats words, and merging one costs 20 times a look-up.
// Direct-mapped, one cache line per entry. Sized by the text, so that a short prompt pays nothing.
class WordCache {
 public:
  static constexpr size_t kMaxKey = 26;
  static constexpr size_t kMaxIds = 8;

  void resize_for(size_t text_bytes);

  // Appends the ids of `word` to `out`: remembered ones, or those that compute() appends.
  template <class Compute>
  void through(std::string_view word, std::vector<int32_t>& out, Compute&& compute) {
    if (entries_.empty() || word.size() > kMaxKey) return compute();
    const uint64_t hash = hash_bytes(word);
    const auto tag = static_cast<uint32_t>(hash >> 32);
    Entry& e = entries_[hash & (entries_.size() - 1)];
    if (e.length == word.size() && e.tag == tag && std::memcmp(e.key, word.data(), word.size()) == 0) {
      out.insert(out.end(), e.ids, e.ids + e.count);
      return;
    }
    const size_t before = out.size();
    compute();
    const size_t count = out.size() - before;
    if (count > kMaxIds || word.empty()) return;
    e.tag = tag;
    e.length = static_cast<uint8_t>(word.size());
    e.count = static_cast<uint8_t>(count);
    std::memcpy(e.key, word.data(), word.size());
    std::memcpy(e.ids, out.data() + before, count * sizeof(int32_t));
  }

 private:
  struct Entry {  // 64 bytes; length 0 = empty
    uint32_t tag = 0;
    uint8_t length = 0, count = 0;
    char key[kMaxKey] = {};
    int32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Entry) == 64);
  std::vector<Entry> entries_;
};

// Memory of one encode() call, reused from piece to piece.
struct ModelScratch {
  struct Symbol {  // BPE: a linked list over the piece
    int32_t id;
    int32_t prev, next;  // -1 at the ends
    int32_t merged;      // id that this symbol and the next would merge to, -1 none
  };
  struct Candidate {  // BPE: a merge waiting in the heap
    uint32_t rank;
    int32_t pos;
    int32_t merged;
  };
  struct PathNode {  // Unigram: best path ending at a byte
    double score;
    int32_t start;  // -1 = not reached
    int32_t id;
  };
  std::vector<int32_t> ids;
  std::vector<uint32_t> ranks;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<PathNode> path;
  WordCache cache;
  EncodeSlices slices;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // The most bytes of a piece that one id can stand for; 0: any number.
  virtual size_t longest_token() const { return 0; }
  // Appends the ids of `piece` (well-formed UTF-8) to `out`. Long ones leave off when `scratch.slices` says
  // so.
  virtual void encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const = 0;
};

}  // namespace oar
