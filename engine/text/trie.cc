// Built breadth first from the sorted keys: each node is a range of keys that share a prefix.
#include "engine/text/trie.h"

#include <algorithm>

namespace oar {

Trie::Trie(std::vector<std::pair<std::string_view, int32_t>> entries) {
  root_.fill(kNoNode);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Span {
    size_t begin, end, depth;
    uint32_t node;
  };
  // Splits the keys [begin, end), which agree on `depth` bytes, by their next byte.
  std::vector<Span> queue;
  const auto expand = [&](size_t begin, size_t end, size_t depth) {
    const auto first = static_cast<uint32_t>(nodes_.size());
    while (begin < end && entries[begin].first.size() <= depth)
      ++begin;  // the key that ends here, and its repeats
    while (begin < end) {
      const char label = entries[begin].first[depth];
      size_t stop = begin;
      while (stop < end && entries[stop].first[depth] == label) ++stop;
      Node n;
      n.label = static_cast<uint8_t>(label);
      if (entries[begin].first.size() == depth + 1) n.value = entries[begin].second;
      queue.push_back({begin, stop, depth + 1, static_cast<uint32_t>(nodes_.size())});
      nodes_.push_back(n);
      begin = stop;
    }
    return std::pair{first, static_cast<uint16_t>(nodes_.size() - first)};
  };
  const auto [first, count] = expand(0, entries.size(), 0);
  for (uint32_t i = 0; i < count; ++i) root_[nodes_[first + i].label] = first + i;
  for (size_t head = 0; head < queue.size(); ++head) {
    const Span s = queue[head];
    const auto [child, children] = expand(s.begin, s.end, s.depth);
    nodes_[s.node].first_child = child;
    nodes_[s.node].children = children;
  }
}

uint32_t Trie::child(uint32_t node, uint8_t byte) const {
  const Node& n = nodes_[node];
  uint32_t low = n.first_child, high = low + n.children;
  while (high - low > 8) {
    const uint32_t middle = (low + high) / 2;
    if (nodes_[middle].label <= byte) low = middle;
    else high = middle;
  }
  for (; low < high; ++low)
    if (nodes_[low].label == byte) return low;
  return kNoNode;
}

Trie::Match Trie::longest_prefix(std::string_view text) const {
  Match best;
  Cursor cursor(*this);
  for (size_t i = 0; i < text.size() && cursor.step(text[i]); ++i)
    if (cursor.value() != kNone) best = {cursor.value(), i + 1};
  return best;
}

}  // namespace oar
