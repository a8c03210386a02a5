// Matching: the program is small and the text is long, so the inner loop is one class test per character.
#include "engine/text/split_pattern.h"

#include <algorithm>
#include <bit>

#include "engine/text/utf8.h"

namespace oar {

bool SplitPattern::word_boundary(std::string_view text, size_t pos) const {
  const bool before = pos > 0 && is_word(decode_utf8(text, previous_utf8(text, pos)).value);
  const bool after = pos < text.size() && is_word(decode_utf8(text, pos).value);
  return before != after;
}

// Each pass of the outer loop follows one path until it fails or accepts; a failure resumes the youngest
// choice. Only look-ahead and atomic groups call run() again, and the compiler bounds how deep those nest.
SplitPattern::Ran SplitPattern::run(uint32_t pc, std::string_view text, size_t pos, Scratch& scratch,
                                    size_t& end) const {
  auto& stack = scratch.stack;
  const size_t base = stack.size();
  for (;;) {
    if (scratch.steps == 0) {
      stack.resize(base);
      return Ran::kBudgetSpent;
    }
    --scratch.steps;
    const Inst& in = program_[pc];
    bool ok = true;
    switch (in.op) {
      case Op::kSet: {
        ok = false;
        if (pos < text.size()) {
          const CodePoint c = decode_utf8(text, pos);
          if (sets_[in.set].contains(c.value)) pos += c.length, ++pc, ok = true;
        }
        break;
      }
      case Op::kLoop: {
        const CodePointSet& set = sets_[in.set];
        const size_t start = pos;
        size_t low = in.low == 0 ? pos : text.size() + 1;
        uint32_t count = 0;
        while (count < in.high && pos < text.size()) {
          const auto b = static_cast<unsigned char>(text[pos]);
          if (b < 0x80) {
            if (!set.contains_ascii(b)) break;
            ++pos;
          } else {
            const CodePoint c = decode_utf8(text, pos);
            if (!set.contains(c.value)) break;
            pos += c.length;
          }
          if (++count == in.low) low = pos;
        }
        scratch.steps -= std::min<uint64_t>(scratch.steps, (pos - start) / 4);
        ok = count >= in.low;
        if (ok) {
          if (!in.flag && pos > low) stack.push_back({pc + 1, pos, low});
          ++pc;
        }
        break;
      }
      case Op::kSplit:
        stack.push_back({in.other, pos, pos});
        pc = in.next;
        break;
      case Op::kJump: pc = in.next; break;
      case Op::kLook:
      case Op::kAtomic: {
        size_t inner_end = pos;
        const Ran inner = run(pc + 1, text, pos, scratch, inner_end);
        if (inner == Ran::kBudgetSpent) {
          stack.resize(base);
          return inner;
        }
        ok = (inner == Ran::kAccepted) != (in.op == Op::kLook && in.flag);
        if (ok && in.op == Op::kAtomic) pos = inner_end;
        if (ok) pc = in.next;
        break;
      }
      case Op::kBehind:
        ok =
            (pos > 0 && sets_[in.set].contains(decode_utf8(text, previous_utf8(text, pos)).value)) != in.flag;
        ++pc;
        break;
      case Op::kLineStart: ok = pos == 0 || text[pos - 1] == '\n', ++pc; break;
      case Op::kLineEnd: ok = pos == text.size() || text[pos] == '\n', ++pc; break;
      case Op::kTextStart: ok = pos == 0, ++pc; break;
      case Op::kTextEnd: ok = pos == text.size(), ++pc; break;
      case Op::kWordBoundary: ok = word_boundary(text, pos) != in.flag, ++pc; break;
      case Op::kAccept:
        end = pos;
        stack.resize(base);
        return Ran::kAccepted;
    }
    if (ok) continue;
    if (stack.size() == base) return Ran::kFailed;
    Scratch::Choice& choice = stack.back();
    pc = choice.pc;
    if (choice.pos > choice.low) {  // a class loop gives back one code point
      choice.pos = previous_utf8(text, choice.pos);
      pos = choice.pos;
      if (choice.pos == choice.low) stack.pop_back();
    } else {
      pos = choice.pos;
      stack.pop_back();
    }
  }
}

SplitPattern::Found SplitPattern::find(std::string_view text, size_t from, Scratch& scratch,
                                       Match& match) const {
  for (size_t pos = from;;) {
    const bool at_end = pos >= text.size();
    uint32_t candidates = other_first_;
    if (!at_end && static_cast<unsigned char>(text[pos]) < 0x80)
      candidates = ascii_first_[static_cast<unsigned char>(text[pos])];
    for (; candidates; candidates &= candidates - 1) {
      const uint32_t entry = alternatives_[static_cast<size_t>(std::countr_zero(candidates))];
      size_t end = pos;
      const Ran ran = run(entry, text, pos, scratch, end);
      if (ran == Ran::kBudgetSpent) return Found::kBudgetSpent;
      if (ran == Ran::kAccepted) {
        match = {pos, end};
        return Found::kMatch;
      }
    }
    if (at_end) return Found::kNone;
    pos += utf8_length(text[pos]);
  }
}

}  // namespace oar
