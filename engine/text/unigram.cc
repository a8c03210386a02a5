// Viterbi over byte positions; only positions at character borders are ever reached.
#include "engine/text/unigram.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {
// Constants of SentencePiece: what an unknown character costs below the worst piece, what each further byte
// of a user-defined piece earns (any other piece loses, so these always win), and the path score at which
// single precision starts again from zero, before rounding swallows the differences.
constexpr double kUnknownPenalty = 10.0;
constexpr double kUserDefinedBonus = 0.1;
constexpr double kScoreLimit = 100000.0;
}  // namespace

Result<std::unique_ptr<UnigramModel>> UnigramModel::create(const Vocabulary& vocabulary,
                                                           UnigramConfig config) {
  std::unique_ptr<UnigramModel> m(new UnigramModel(vocabulary));
  const auto flagged = [](const std::vector<bool>& flags, size_t i) { return i < flags.size() && flags[i]; };
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (size_t i = 0; i < config.scores.size(); ++i) {
    if (!std::isfinite(config.scores[i]))
      return invalid_argument(cat("token ", i, " has a score that is not finite; re-export the model"));
    if (!flagged(config.excluded, i))
      entries.emplace_back(vocabulary.text(static_cast<int32_t>(i)), static_cast<int32_t>(i));
  }
  m->trie_ = Trie(std::move(entries));
  for (size_t b = 0; b < 256; ++b)
    m->byte_ids_[b] = vocabulary.find(byte_token_text(static_cast<uint8_t>(b)));
  m->config_ = std::move(config);
  return m;
}

void UnigramModel::encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  scratch.cache.through(piece, out, [&] { best_path(piece, scratch, out); });
}

void UnigramModel::best_path(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const {
  const bool single = config_.single_precision;
  const auto rounded = [single](double v) { return single ? static_cast<double>(static_cast<float>(v)) : v; };
  const double unk_score = rounded(config_.min_score - kUnknownPenalty);
  const int32_t unk = config_.unk_id.value_or(-1);

  auto& path = scratch.path;
  path.assign(piece.size() + 1, {0.0, -1, -1});
  size_t frontier = 0;  // the furthest position reached
  const auto reach = [&](size_t begin, size_t end, double score, int32_t id) {
    frontier = std::max(frontier, end);
    auto& node = path[end];
    const double candidate = rounded(score + path[begin].score);
    if (node.start < 0 || candidate > node.score) node = {candidate, static_cast<int32_t>(begin), id};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t character = utf8_length(piece[begin]);
    if (!scratch.slices.spend(character)) return;
    if (single && std::abs(path[begin].score) > kScoreLimit) {
      const double offset = path[begin].score;
      for (size_t i = begin; i <= frontier; ++i)
        if (i == begin || path[i].start >= 0) path[i].score = rounded(path[i].score - offset);
    }
    bool single_covered = false;
    Trie::Cursor cursor(trie_);
    for (size_t end = begin; end < piece.size() && cursor.step(piece[end]);) {
      ++end;
      const int32_t id = cursor.value();
      if (id == Trie::kNone) continue;
      const size_t length = end - begin;
      const auto i = static_cast<size_t>(id);
      const bool user_defined = i < config_.user_defined.size() && config_.user_defined[i];
      const double bonus = rounded(kUserDefinedBonus * static_cast<double>(length - 1));
      reach(begin, end, user_defined ? bonus : config_.scores[i], id);
      single_covered = single_covered || length == character;
    }
    if (!single_covered) reach(begin, begin + character, unk_score, unk);
    begin += character;
  }

  // Back along the path; neighbouring unknown characters are one unknown token, or their bytes.
  const size_t before = out.size();
  for (size_t end = piece.size(); end > 0;) {
    const int32_t id = path[end].id;
    auto begin = static_cast<size_t>(path[end].start);
    if (id != unk) {
      out.push_back(id);
      end = begin;
      continue;
    }
    while (begin > 0 && path[begin].id == unk) begin = static_cast<size_t>(path[begin].start);
    const std::string_view run = piece.substr(begin, end - begin);
    end = begin;
    const bool spelled_out = unk >= 0 && run == vocabulary_.text(unk);  // the text "<unk>" itself
    if (config_.byte_fallback && !spelled_out && std::all_of(run.begin(), run.end(), [this](char b) {
          return byte_ids_[static_cast<uint8_t>(b)] >= 0;
        })) {
      for (size_t i = run.size(); i > 0; --i) out.push_back(byte_ids_[static_cast<uint8_t>(run[i - 1])]);
    } else if (unk >= 0) {
      out.push_back(unk);
    }
  }
  std::reverse(out.begin() + static_cast<ptrdiff_t>(before), out.end());
}

}  // namespace oar
