// One splitter serves every pattern; SplitBehavior is a small state machine over its segments.
#include "engine/text/pretokenizer.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

class Split final : public PreTokenizer {
 public:
  Split(SplitPattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  Status split(Piece piece, SplitPattern::Scratch& scratch, PieceSink sink) const override {
    const std::string_view text = piece.text;
    // [pending, pending_end) is a segment whose fate the next one decides.
    size_t pending = 0, pending_end = 0;
    bool has_pending = false, pending_match = false, previous_match = false;
    const auto emit = [&](size_t begin, size_t end) {
      if (begin < end) sink({text.substr(begin, end - begin), piece.at_start && begin == 0});
    };
    const auto hold = [&](size_t begin, size_t end, bool is_match) {
      if (has_pending) emit(pending, pending_end);
      pending = begin, pending_end = end, has_pending = true, pending_match = is_match;
    };
    const auto segment = [&](size_t begin, size_t end, bool is_match) {
      if (invert_) is_match = !is_match;
      switch (behavior_) {
        case SplitBehavior::kRemoved:
          if (!is_match) emit(begin, end);
          break;
        case SplitBehavior::kIsolated: emit(begin, end); break;
        case SplitBehavior::kContiguous:
          if (has_pending && pending_match == is_match) pending_end = end;
          else hold(begin, end, is_match);
          break;
        case SplitBehavior::kMergedWithPrevious:
          if (is_match && !previous_match && has_pending) pending_end = end;
          else hold(begin, end, is_match);
          break;
        case SplitBehavior::kMergedWithNext:
          if (!is_match && has_pending && pending_match) pending_end = end, pending_match = false;
          else hold(begin, end, is_match);
          break;
      }
      previous_match = is_match;
    };

    SplitPattern::Match match;
    size_t covered = 0, from = 0;
    bool any = false;
    for (;;) {
      const auto found = pattern_.find(text, from, scratch, match);
      if (found == SplitPattern::Found::kBudgetSpent)
        return resource_exhausted(cat("the tokenizer's split pattern \"", pattern_.source(),
                                      "\" takes too long on this text; send a shorter text"));
      if (found == SplitPattern::Found::kNone) break;
      const bool empty = match.begin == match.end;
      if (!(empty && any && match.begin == covered)) {  // no empty match right behind another match
        if (covered != match.begin) segment(covered, match.begin, false);
        segment(match.begin, match.end, true);
        covered = match.end;
        any = true;
      }
      from = match.end;
      if (empty) {
        if (from >= text.size()) break;
        from += utf8_length(text[from]);
      }
    }
    if (covered != text.size()) segment(covered, text.size(), false);
    if (has_pending) emit(pending, pending_end);
    return ok_status();
  }

  bool keeps_all() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  SplitPattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  Status split(Piece piece, SplitPattern::Scratch&, PieceSink sink) const override {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 4 + replacement_.size());
    const bool begins_with_space = piece.text.starts_with(' ') || piece.text.starts_with(replacement_);
    const bool wanted =
        scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && piece.at_start);
    if (wanted && !begins_with_space) text += replacement_;
    for (const char c : piece.text) {
      if (c == ' ') text += replacement_;
      else text += c;
    }
    if (!split_) {
      sink({text, piece.at_start});
      return ok_status();
    }
    for (size_t begin = 0; begin < text.size();) {
      const size_t found = text.find(
          replacement_,
          begin + (text.compare(begin, replacement_.size(), replacement_) == 0 ? replacement_.size() : 0));
      const size_t end = std::min(found, text.size());
      sink({std::string_view(text).substr(begin, end - begin), piece.at_start && begin == 0});
      begin = end;
    }
    return ok_status();
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

class PrefixSpace final : public PreTokenizer {
 public:
  Status split(Piece piece, SplitPattern::Scratch&, PieceSink sink) const override {
    if (piece.text.starts_with(' ')) {
      sink(piece);
    } else {
      const std::string text = cat(' ', piece.text);
      sink({text, piece.at_start});
    }
    return ok_status();
  }
};

class ByteAlphabet final : public PreTokenizer {
 public:
  Status split(Piece piece, SplitPattern::Scratch&, PieceSink sink) const override {
    const std::string text = to_byte_alphabet(piece.text);
    sink({text, piece.at_start});
    return ok_status();
  }
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<PreTokenizerPtr> steps) : steps_(std::move(steps)) {}

  Status split(Piece piece, SplitPattern::Scratch& scratch, PieceSink sink) const override {
    return run(0, piece, scratch, sink);
  }
  bool keeps_all() const override {
    return std::all_of(steps_.begin(), steps_.end(), [](const auto& step) { return step->keeps_all(); });
  }

 private:
  Status run(size_t step, Piece piece, SplitPattern::Scratch& scratch, PieceSink sink) const {
    if (piece.text.empty()) return ok_status();
    if (step == steps_.size()) {
      sink(piece);
      return ok_status();
    }
    if (step + 1 == steps_.size()) return steps_[step]->split(piece, scratch, sink);
    Status status;
    OAR_RETURN_IF_ERROR(steps_[step]->split(piece, scratch, [&](Piece p) {
      if (status.ok()) status = run(step + 1, p, scratch, sink);
    }));
    return status;
  }

  std::vector<PreTokenizerPtr> steps_;
};

}  // namespace

PreTokenizerPtr make_split(SplitPattern pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}
PreTokenizerPtr make_metaspace(std::string replacement, PrependScheme scheme, bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, split);
}
PreTokenizerPtr make_prefix_space() { return std::make_unique<PrefixSpace>(); }
PreTokenizerPtr make_byte_alphabet() { return std::make_unique<ByteAlphabet>(); }
PreTokenizerPtr make_pretokenizer_sequence(std::vector<PreTokenizerPtr> steps) {
  return std::make_unique<Sequence>(std::move(steps));
}

}  // namespace oar
