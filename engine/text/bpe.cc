// Merging. The heap holds candidate merges ordered by (rank, position); a candidate is stale when its symbol
// has since come to merge into something else, which Symbol::merged tells without a table look-up.
#include "engine/text/bpe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/base/format.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

constexpr std::string_view kMarker = "\xE2\x96\x81";  // U+2581, SentencePiece's space
constexpr size_t kScanLimit = 32;
// Symbol positions are int32.
constexpr size_t kMaxSymbols = std::numeric_limits<int32_t>::max();

// Whether a marker follows something that is not a marker: such a token would reach across a word border.
bool crosses_word_border(std::string_view text) {
  size_t i = 0;
  while (text.substr(i).starts_with(kMarker)) i += kMarker.size();
  return text.find(kMarker, i) != std::string_view::npos;
}

}  // namespace

MergeTable::MergeTable(const std::vector<Rule>& rules) {
  const size_t n = std::bit_ceil(std::max<size_t>(2, rules.size() * 2));
  slots_.assign(n, Slot{});
  mask_ = n - 1;
  shift_ = 64 - std::countr_zero(n);
  for (const Rule& r : rules) {
    const uint64_t key = pair_key(r.left, r.right);
    size_t i = slot_of(key);
    while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & mask_;
    slots_[i] = {key, {r.rank, r.merged}};
  }
}

Result<std::unique_ptr<BpeModel>> BpeModel::create(const Vocabulary& vocabulary, BpeConfig config) {
  std::unique_ptr<BpeModel> m(new BpeModel(vocabulary));
  m->merges_ = MergeTable(config.merges);
  std::vector<bool> made(static_cast<size_t>(vocabulary.size()), false);
  for (const MergeTable::Rule& r : config.merges) made[static_cast<size_t>(r.merged)] = true;
  config.merges.clear();
  config.merges.shrink_to_fit();
  m->config_ = std::move(config);
  m->index_vocabulary();
  if (!m->config_.byte_level && !m->config_.ignore_merges && m->config_.continuing_subword_prefix.empty() &&
      m->config_.end_of_word_suffix.empty())
    m->find_word_border(made);
  return m;
}

Result<std::unique_ptr<BpeModel>> BpeModel::from_scores(const Vocabulary& vocabulary,
                                                        const std::vector<ScoredPiece>& pieces,
                                                        std::optional<int32_t> unk_id, bool byte_fallback) {
  using Type = ScoredPiece::Type;
  std::unique_ptr<BpeModel> m(new BpeModel(vocabulary));
  m->scored_ = true;
  m->config_.unk_id = unk_id;
  m->config_.byte_fallback = byte_fallback;
  m->config_.fuse_unk = true;
  m->mergeable_.assign(static_cast<size_t>(vocabulary.size()), false);
  std::vector<float> scores;
  std::unordered_map<std::string_view, int32_t>
      shadowed;  // pieces whose text a token of another type has before
  std::vector<std::pair<std::string_view, int32_t>> user_defined;
  uint64_t work = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view text = vocabulary.text(id);
    if (pieces[i].type == Type::kOther || text.empty()) continue;
    if (std::isnan(pieces[i].score))
      return invalid_argument(cat("token ", id, " has the score NaN; re-export the model"));
    scores.push_back(pieces[i].score);
    m->mergeable_[i] = true;
    if (!m->mergeable_[static_cast<size_t>(vocabulary.find(text))]) shadowed.emplace(text, id);
    work += static_cast<uint64_t>(text.size()) * text.size();
    if (pieces[i].type == Type::kUserDefined) user_defined.emplace_back(text, id);
    if (pieces[i].type == Type::kUnused) {
      if (m->unused_.empty()) m->unused_.resize(pieces.size(), false);
      m->unused_[i] = true;
    }
  }
  // Every way to cut a piece in two is looked up by text below. Real vocabularies need 10^7 steps.
  constexpr uint64_t kMaxWork = uint64_t{1} << 31;
  if (work > kMaxWork)
    return resource_exhausted(
        "the vocabulary has tokens too long to derive merges from; the sum of squared lengths is "
        "limited to 2^31");
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());

  std::vector<MergeTable::Rule> rules;
  const auto part_id = [&](std::string_view part) -> int32_t {
    if (const int32_t id = vocabulary.find(part); id >= 0 && m->mergeable_[static_cast<size_t>(id)])
      return id;
    if (const auto it = shadowed.find(part); it != shadowed.end()) return it->second;
    if (part.size() != decode_utf8(part, 0).length) return -1;
    const auto next = static_cast<int32_t>(pieces.size() + m->characters_.size());
    const auto [it, fresh] = m->character_ids_.try_emplace(part, next);
    if (fresh) m->characters_.push_back(part);
    return it->second;
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!m->mergeable_[i]) continue;
    const std::string_view text = vocabulary.text(static_cast<int32_t>(i));
    if (part_id(text) != static_cast<int32_t>(i)) continue;  // a repeated text; the first counts
    const auto rank = static_cast<uint32_t>(
        std::lower_bound(scores.begin(), scores.end(), pieces[i].score, std::greater<>()) - scores.begin());
    for (size_t cut = decode_utf8(text, 0).length; cut < text.size(); cut += decode_utf8(text, cut).length) {
      const int32_t left = part_id(text.substr(0, cut));
      if (left < 0) continue;
      const int32_t right = part_id(text.substr(cut));
      if (right >= 0) rules.push_back({left, right, static_cast<int32_t>(i), rank});
    }
  }
  m->character_ids_.merge(shadowed);
  m->frozen_ = static_cast<int32_t>(pieces.size() + m->characters_.size());
  if (static_cast<uint64_t>(m->frozen_) * 2 > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
    return resource_exhausted(cat("a vocabulary of ", pieces.size(), " tokens; the limit is 2^29"));
  m->merges_ = MergeTable(rules);
  m->user_defined_ = Trie(std::move(user_defined));
  m->index_vocabulary();
  if (m->unused_.empty()) m->find_word_border(m->mergeable_);
  return m;
}

void BpeModel::index_vocabulary() {
  for (size_t c = 0; c < 128; ++c) {
    const char text = static_cast<char>(c);
    ascii_ids_[c] = find_character({&text, 1});
  }
  all_bytes_ = true;
  for (size_t b = 0; b < 256; ++b) {
    byte_ids_[b] = vocabulary_.find(config_.byte_level ? byte_alphabet_text(static_cast<uint8_t>(b))
                                                       : byte_token_text(static_cast<uint8_t>(b)));
    all_bytes_ = all_bytes_ && byte_ids_[b] >= 0;
  }
}

void BpeModel::find_word_border(const std::vector<bool>& mergeable) {
  if (character_id(kMarker) < 0) return;
  for (size_t i = 0; i < mergeable.size(); ++i)
    if (mergeable[i] && crosses_word_border(vocabulary_.text(static_cast<int32_t>(i)))) return;
  cut_at_marker_ = true;
}

void BpeModel::encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  if (!cut_at_marker_) return encode_word(piece, scratch, out);
  for (size_t begin = 0, end = 0; begin < piece.size() && scratch.slices.spend(end - begin); begin = end) {
    end = begin;
    while (piece.substr(end, kMarker.size()) == kMarker) end += kMarker.size();
    end = std::min(piece.find(kMarker, end), piece.size());
    encode_word(piece.substr(begin, end - begin), scratch, out);
  }
}

void BpeModel::encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& out) const {
  scratch.cache.through(word, out, [&] {
    int32_t whole = -1;
    if (config_.ignore_merges)
      whole = vocabulary_.find(config_.byte_level ? to_byte_alphabet(word) : std::string(word));
    if (whole >= 0) out.push_back(whole);
    else merge_word(word, scratch, out);
  });
}

void BpeModel::merge_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& out) const {
  auto& ids = scratch.ids;
  ids.clear();
  if (config_.byte_level) symbols_of_bytes(word, ids);
  else if (scored_) symbols_of_pieces(word, ids);
  else symbols_of_characters(word, ids);
  OAR_CHECK(ids.size() < kMaxSymbols, "a piece of 2^31 symbols: encode() bounds its input");
  if (!unused_.empty()) {
    // Pieces marked unused may form on the way, but are taken apart again the way they were last proposed.
    std::unordered_map<int32_t, std::pair<int32_t, int32_t>> origins;
    merge_by_heap(scratch, &origins);
    std::vector<int32_t> pending(ids.rbegin(), ids.rend()), whole;
    while (!pending.empty()) {
      const int32_t id = pending.back();
      pending.pop_back();
      const bool unused = id < vocabulary_.size() && unused_[static_cast<size_t>(id)];
      if (const auto it = origins.find(id); unused && it != origins.end()) {
        pending.push_back(it->second.second);
        pending.push_back(it->second.first);
      } else {
        whole.push_back(id);
      }
    }
    ids = std::move(whole);
  } else if (ids.size() <= kScanLimit) {
    ids.resize(merge_by_scan(ids.data(), ids.size()));
  } else {
    merge_by_heap(scratch, nullptr);
  }
  if (scored_) emit_pieces(ids, out);
  else out.insert(out.end(), ids.begin(), ids.end());
}

void BpeModel::symbols_of_bytes(std::string_view word, std::vector<int32_t>& ids) const {
  bool unknown_before = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) ids.push_back(id);
    else if (config_.unk_id && !(config_.fuse_unk && unknown_before)) ids.push_back(*config_.unk_id);
    unknown_before = id < 0;
  }
}

int32_t BpeModel::character_id(std::string_view character) const {
  if (character.size() == 1) return ascii_ids_[static_cast<uint8_t>(character[0]) & 127];
  return find_character(character);
}

int32_t BpeModel::find_character(std::string_view character) const {
  const int32_t id = vocabulary_.find(character);
  if (!scored_ || (id >= 0 && mergeable_[static_cast<size_t>(id)])) return id;
  const auto it = character_ids_.find(character);
  return it == character_ids_.end() ? -1 : it->second;
}

void BpeModel::symbols_of_characters(std::string_view word, std::vector<int32_t>& ids) const {
  const bool plain = config_.continuing_subword_prefix.empty() && config_.end_of_word_suffix.empty();
  bool unknown_pending = false;  // written before the next known character, after any bytes between
  std::string decorated;
  for (size_t i = 0; i < word.size();) {
    const size_t length = utf8_length(word[i]);
    std::string_view text = word.substr(i, length);
    const bool first = i == 0, last = i + length == word.size();
    i += length;
    if (!plain) {
      decorated.clear();
      if (!first) decorated += config_.continuing_subword_prefix;
      decorated += text;
      if (last) decorated += config_.end_of_word_suffix;
      text = decorated;
    }
    if (const int32_t id = plain ? character_id(text) : vocabulary_.find(text); id >= 0) {
      if (unknown_pending) ids.push_back(*config_.unk_id);
      unknown_pending = false;
      ids.push_back(id);
      continue;
    }
    if (config_.byte_fallback && std::all_of(text.begin(), text.end(), [this](char b) {
          return byte_ids_[static_cast<uint8_t>(b)] >= 0;
        })) {
      for (const char b : text) ids.push_back(byte_ids_[static_cast<uint8_t>(b)]);
      continue;
    }
    if (!config_.unk_id) continue;  // without an unknown token the character is dropped
    if (unknown_pending && !config_.fuse_unk) ids.push_back(*config_.unk_id);
    unknown_pending = true;
  }
  if (unknown_pending) ids.push_back(*config_.unk_id);
}

void BpeModel::symbols_of_pieces(std::string_view word, std::vector<int32_t>& ids) const {
  for (size_t i = 0; i < word.size();) {
    if (user_defined_.starts_with(word[i])) {
      if (const Trie::Match m = user_defined_.longest_prefix(word.substr(i)); m.length > 0) {
        ids.push_back(m.value + frozen_);
        i += m.length;
        continue;
      }
    }
    const std::string_view character = word.substr(i, utf8_length(word[i]));
    i += character.size();
    if (const int32_t id = character_id(character); id >= 0) {
      ids.push_back(id);
    } else if (config_.byte_fallback && all_bytes_) {
      for (const char b : character) ids.push_back(byte_ids_[static_cast<uint8_t>(b)] + frozen_);
    } else if (config_.unk_id) {
      ids.push_back(*config_.unk_id + frozen_);
    }
  }
}

// Symbols to token ids: thaw, and resolve characters that took part in merging but are no tokens themselves.
void BpeModel::emit_pieces(const std::vector<int32_t>& symbols, std::vector<int32_t>& out) const {
  bool unknown_before = false;
  for (int32_t id : symbols) {
    bool unknown = false;
    if (id >= frozen_) {
      id -= frozen_;
      unknown = config_.unk_id && id == *config_.unk_id;
    } else if (id >= vocabulary_.size()) {
      if (config_.byte_fallback && all_bytes_) {
        for (const char b : characters_[static_cast<size_t>(id - vocabulary_.size())])
          out.push_back(byte_ids_[static_cast<uint8_t>(b)]);
        unknown_before = false;
        continue;
      }
      if (!config_.unk_id) continue;
      id = *config_.unk_id;
      unknown = true;
    }
    if (!(unknown && unknown_before)) out.push_back(id);
    unknown_before = unknown;
  }
}

size_t BpeModel::merge_by_scan(int32_t* ids, size_t n) const {
  constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
  std::array<uint32_t, kScanLimit> ranks;  // of the pair (i, i + 1)
  std::array<int32_t, kScanLimit> merged;
  const auto look_up = [&](size_t i) {
    const MergeTable::Hit* hit = merges_.find(ids[i], ids[i + 1]);
    ranks[i] = hit ? hit->rank : kNever;
    merged[i] = hit ? hit->merged : -1;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNever) break;
    ids[best] = merged[best];
    for (size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    if (best > 0) look_up(best - 1);
    if (best + 1 < n) look_up(best);
  }
  return n;
}

// scratch.ids -> scratch.ids. `origins` records, for unused pieces, the pair that last proposed them.
void BpeModel::merge_by_heap(ModelScratch& scratch,
                             std::unordered_map<int32_t, std::pair<int32_t, int32_t>>* origins) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto n = static_cast<int32_t>(scratch.ids.size());
  // Of a long piece nothing here is in a cache: a merge takes as long as eight bytes of other text.
  constexpr size_t kMergeWork = 8;
  symbols.clear();
  heap.clear();
  symbols.reserve(static_cast<size_t>(n));  // else it is copied as a whole, between two looks
  heap.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n && scratch.slices.spend(1); ++i)
    symbols.push_back({scratch.ids[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1, -1});
  const auto later = [](const ModelScratch::Candidate& a, const ModelScratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.pos > b.pos;
  };
  // What the symbol at `pos` and its next one merge to, as a candidate at the back of the heap's vector.
  const auto propose = [&](int32_t pos) {
    auto& s = symbols[static_cast<size_t>(pos)];
    s.merged = -1;
    if (s.next < 0) return false;
    const int32_t right = symbols[static_cast<size_t>(s.next)].id;
    const MergeTable::Hit* hit = merges_.find(s.id, right);
    if (!hit) return false;
    s.merged = hit->merged;
    heap.push_back({hit->rank, pos, hit->merged});
    if (origins && unused_[static_cast<size_t>(hit->merged)]) (*origins)[hit->merged] = {s.id, right};
    return true;
  };
  for (int32_t i = 0; i + 1 < n && scratch.slices.spend(1); ++i)
    if (propose(i)) std::push_heap(heap.begin(), heap.end(), later);
  while (!heap.empty() && scratch.slices.spend(kMergeWork)) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const ModelScratch::Candidate top = heap.back();
    heap.pop_back();
    auto& s = symbols[static_cast<size_t>(top.pos)];
    if (s.merged != top.merged) continue;  // stale; a swallowed symbol has merged == -1
    auto& right = symbols[static_cast<size_t>(s.next)];
    right.merged = -1;
    s.id = top.merged;
    s.next = right.next;
    if (s.next >= 0) symbols[static_cast<size_t>(s.next)].prev = top.pos;
    const int32_t prev = s.prev;
    if (prev >= 0 && propose(prev)) std::push_heap(heap.begin(), heap.end(), later);
    if (propose(top.pos)) std::push_heap(heap.begin(), heap.end(), later);
  }
  scratch.ids.clear();
  for (int32_t i = n > 0 ? 0 : -1; i >= 0 && scratch.slices.spend(1);
       i = symbols[static_cast<size_t>(i)].next)
    scratch.ids.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace oar
