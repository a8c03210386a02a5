// The second stage of a tokenizer: from a section of normalized text to the pieces that the model sees one by
// one. Steps form a chain; each hands its pieces straight to the next, nothing is collected.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/split_pattern.h"

namespace oar {

struct Piece {
  std::string_view text;
  bool at_start = false;  // begins where the input of encode() begins
};

// A borrowed callable (Piece) -> void; does not outlive the call it is passed to.
class PieceSink {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, PieceSink>) PieceSink(F&& f)  // NOLINT: implicit by design
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* o, Piece p) { (*static_cast<std::remove_reference_t<F>*>(o))(p); }) {}
  void operator()(Piece p) const { call_(object_, p); }

 private:
  void* object_;
  void (*call_)(void*, Piece);
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Empty pieces are not handed on. `scratch` carries the step budget of the whole call; an error only when a
  // pattern spends it.
  virtual Status split(Piece piece, SplitPattern::Scratch& scratch, PieceSink sink) const = 0;
  // Whether every byte of the text is in some piece.
  virtual bool keeps_all() const { return true; }
};

using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

// What becomes of the matches of a pattern; the names of tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// `invert`: what lies between matches counts as the match.
PreTokenizerPtr make_split(SplitPattern pattern, SplitBehavior behavior, bool invert);

enum class PrependScheme { kNever, kFirst, kAlways };
// Spaces become `replacement`, one is prepended by the scheme where the text has none, and with `split` every
// piece begins at a replacement.
PreTokenizerPtr make_metaspace(std::string replacement, PrependScheme scheme, bool split);

// A space in front of a piece that does not begin with one.
PreTokenizerPtr make_prefix_space();
// Bytes to the GPT-2 alphabet; only needed where the model does not do it itself.
PreTokenizerPtr make_byte_alphabet();

// Runs `steps` one after the other; none at all hands the piece on as it is.
PreTokenizerPtr make_pretokenizer_sequence(std::vector<PreTokenizerPtr> steps);

}  // namespace oar
