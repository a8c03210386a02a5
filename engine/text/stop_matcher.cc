// The held-back text is exactly the automaton's state: the longest suffix that is a prefix of some stop
// string.
#include "engine/text/stop_matcher.h"

#include <algorithm>

namespace oar {

StopSet::StopSet(const std::vector<std::string>& stops) : nodes_(1) {
  for (size_t i = 0; i < stops.size(); ++i) {
    lengths_.push_back(stops[i].size());
    if (stops[i].empty()) continue;
    uint32_t node = 0;
    for (const char c : stops[i]) {
      const auto byte = static_cast<uint8_t>(c);
      auto& children = nodes_[node].children;
      const auto it =
          std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
      if (it != children.end() && it->first == byte) {
        node = it->second;
        continue;
      }
      const auto child = static_cast<uint32_t>(nodes_.size());
      children.insert(it, {byte, child});
      Node n;
      n.depth = nodes_[node].depth + 1;
      nodes_.push_back(std::move(n));
      node = child;
    }
    if (nodes_[node].stop < 0) nodes_[node].stop = static_cast<int32_t>(i);
  }
  // Breadth first, so that a node's failure link is final before its children need it.
  std::vector<uint32_t> queue;
  for (const auto& [byte, child] : nodes_[0].children) queue.push_back(child);
  for (size_t head = 0; head < queue.size(); ++head) {
    const uint32_t node = queue[head];
    if (nodes_[node].stop < 0) nodes_[node].stop = nodes_[nodes_[node].fail].stop;
    for (const auto& [byte, child] : nodes_[node].children) {
      nodes_[child].fail = step(nodes_[node].fail, byte);
      queue.push_back(child);
    }
  }
}

uint32_t StopSet::step(uint32_t node, uint8_t byte) const {
  for (;;) {
    const auto& children = nodes_[node].children;
    const auto it = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
    if (it != children.end() && it->first == byte) return it->second;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  Output out;
  if (matched_) return out;
  const size_t held = held_.size();
  out.text = std::move(held_);
  held_.clear();
  out.text += text;
  for (size_t i = held; i < out.text.size(); ++i) {
    node_ = set_.step(node_, static_cast<uint8_t>(out.text[i]));
    const int32_t stop = set_.nodes_[node_].stop;
    if (stop < 0) continue;
    matched_ = true;
    out.stop_index = static_cast<size_t>(stop);
    out.text.resize(include_ ? i + 1 : i + 1 - set_.lengths_[static_cast<size_t>(stop)]);
    return out;
  }
  const size_t keep = set_.nodes_[node_].depth;
  held_ = out.text.substr(out.text.size() - keep);
  out.text.resize(out.text.size() - keep);
  return out;
}

std::string StopMatcher::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  node_ = 0;
  return rest;
}

}  // namespace oar
