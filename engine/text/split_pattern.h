// The regular expressions that tokenizers split text with, as every published tokenizer.json and GGUF
// pre-tokenizer writes them: Unicode classes, alternation, greedy, lazy and possessive repetition,
// look-ahead, (?i:...). Compiled once to a small program; matching is backtracking without recursion on the
// text, with a step budget proportional to it, so that no pattern can hang the caller.
//
// Syntax and meaning follow Oniguruma's Ruby dialect (what the Hugging Face tokenizers library uses). Not
// here: back references, capture values, variable-length look-behind. compile() answers UNIMPLEMENTED and
// names the construct.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/code_point_set.h"

namespace oar {

class SplitPattern {
 public:
  static Result<SplitPattern> compile(std::string_view pattern);
  // Matches the text itself.
  static Result<SplitPattern> literal(std::string_view text);

  // Reusable memory of a search; one per thread. `steps` is what is left of the budget.
  struct Scratch {
    struct Choice {
      uint32_t pc;
      size_t pos;  // where to resume
      size_t low;  // class loops: the shortest end still allowed; elsewhere == pos
    };
    std::vector<Choice> stack;
    uint64_t steps = 0;
    // Enough for every pattern in use on any text; tests/text feeds them the worst they can get.
    void refill(size_t text_bytes) { steps = (uint64_t{1} << 20) + 256 * static_cast<uint64_t>(text_bytes); }
  };

  enum class Found { kMatch, kNone, kBudgetSpent };
  struct Match {
    size_t begin = 0, end = 0;
  };
  // The leftmost match that begins at or after `from`, first alternative first. `text` is well-formed UTF-8.
  // A match may be empty.
  Found find(std::string_view text, size_t from, Scratch& scratch, Match& match) const;

  const std::string& source() const { return source_; }

 private:
  friend class PatternCompiler;

  enum class Op : uint8_t {
    kSet,     // one code point of sets_[set]
    kLoop,    // low..high code points of sets_[set]; greedy, gives back unless possessive
    kSplit,   // try `next`, then `other`
    kJump,    // go to `next`
    kLook,    // the program at pc + 1 must match here (or must not, if `flag`); then go to `next`
    kAtomic,  // the program at pc + 1 matches once, no way back into it; then go to `next`
    kBehind,  // the code point before must be in sets_[set] (or must not be, if `flag`)
    kLineStart,
    kLineEnd,
    kTextStart,
    kTextEnd,
    kWordBoundary,  // flag: \B
    kAccept,
  };
  struct Inst {
    Op op;
    bool flag = false;  // kLoop: possessive
    uint32_t set = 0;
    uint32_t next = 0;
    uint32_t other = 0;
    uint32_t low = 0, high = 0;  // kLoop; high == kUnbounded for no limit
  };
  static constexpr uint32_t kUnbounded = 0xFFFFFFFF;

  enum class Ran { kAccepted, kFailed, kBudgetSpent };
  Ran run(uint32_t pc, std::string_view text, size_t pos, Scratch& scratch, size_t& end) const;
  bool word_boundary(std::string_view text, size_t pos) const;

  std::string source_;
  std::vector<Inst> program_;
  std::vector<CodePointSet> sets_;
  // First-character filter: entry points of the top-level alternatives, and for each ASCII character which of
  // the first 32 can begin with it. Others begin anywhere.
  std::vector<uint32_t> alternatives_;
  std::array<uint32_t, 128> ascii_first_{};
  uint32_t other_first_ = 0;  // for characters past ASCII
};

}  // namespace oar
