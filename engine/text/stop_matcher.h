// Finds stop strings in text that arrives in pieces, wherever the pieces are cut, and says how much of the
// text may be shown: whatever could still be the beginning of a stop string is held back.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oar {

// The automaton for a set of stop strings (Aho-Corasick); immutable. Size: one node per byte of the stop
// strings.
class StopSet {
 public:
  // Empty strings are ignored; they would stop everything.
  explicit StopSet(const std::vector<std::string>& stops);

 private:
  friend class StopMatcher;
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;  // sorted by byte
    uint32_t fail = 0;   // the longest proper suffix that is a prefix of some stop
    uint32_t depth = 0;  // its length in bytes
    int32_t stop = -1;   // the longest stop that ends here, or -1
  };
  uint32_t step(uint32_t node, uint8_t byte) const;
  std::vector<Node> nodes_;
  std::vector<size_t> lengths_;
};

// One stream. Linear in the text, whatever the stop strings.
class StopMatcher {
 public:
  StopMatcher(std::vector<std::string> stops, bool include_stop_in_output)
      : set_(stops), include_(include_stop_in_output) {}

  struct Output {
    std::string text;                  // safe to show
    std::optional<size_t> stop_index;  // into the stop strings: matched; nothing further is to be pushed
  };
  // The match that ends first counts; of those that end together the longest, which begins first.
  // After a match further text is dropped.
  Output push(std::string_view text);
  // The text has ended: what was held back.
  std::string finish();
  bool matched() const { return matched_; }

 private:
  StopSet set_;
  bool include_;
  bool matched_ = false;
  uint32_t node_ = 0;
  std::string held_;  // the last depth(node_) bytes
};

}  // namespace oar
