// A regular language over characters as a deterministic automaton: for what grammars cannot say directly, the
// intersection and the difference of patterns ("this pattern and at most 20 characters", "a key that matches
// neither pattern"). Bounded: what takes more states is an error, before it takes the time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/grammar/regex.h"

namespace oar::grammar {

class Language {
 public:
  static constexpr size_t kMaxStates = 10'000, kMaxEdges = 200'000;

  static Result<Language> of(const Regex& regex);
  static Language of_texts(std::span<const std::string> texts);
  // Texts of low to high characters.
  static Result<Language> of_lengths(uint64_t low, uint64_t high);

  Result<Language> intersected(const Language& other) const { return product(other, true); }
  Result<Language> without(const Language& other) const { return product(other, false); }

  bool empty() const { return states_.empty(); }
  size_t work() const { return work_; }  // states and edges that making it took
  bool contains(std::string_view text) const;
  // One rule a state; `name` is for messages.
  Expr to_grammar(Grammar& grammar, Coding coding, const std::string& name) const;

 private:
  struct Edge {
    char32_t first, last;
    uint32_t target;
  };
  struct State {
    std::vector<Edge> edges;  // sorted, disjoint
    bool accepts = false;
  };
  Result<Language> product(const Language& other, bool both) const;
  void trim();  // drops what no accepted text passes; state 0 is the start, if any text is accepted
  friend class LanguageBuilder;
  std::vector<State> states_;
  size_t work_ = 0;
};

}  // namespace oar::grammar
