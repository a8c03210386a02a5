// Fixed strings in text that arrives in pieces: whether one begins here, where the first of several is, and
// how much of the text lies safely before any. What could still become a marker is "maybe" until more text
// comes.
#pragma once

#include <span>
#include <string_view>

namespace oar::tools {

enum class Found { kNo, kYes, kMaybe };

// `final`: no more text comes, so nothing is maybe.
inline Found begins_with(std::string_view text, std::string_view marker, bool final) {
  if (text.starts_with(marker)) return Found::kYes;
  return !final && marker.starts_with(text) ? Found::kMaybe : Found::kNo;
}

struct MarkerSearch {
  size_t clear = 0;  // bytes before the marker, or before what may become one
  int found = -1;    // which marker stands at `clear`
};

// The first marker in the text. None may be a prefix of another; empty ones are ignored.
inline MarkerSearch search_markers(std::string_view text, std::span<const std::string_view> markers,
                                   bool final) {
  for (size_t i = 0; i < text.size(); ++i) {
    bool maybe = false;
    for (size_t m = 0; m < markers.size(); ++m) {
      if (markers[m].empty() || markers[m].front() != text[i]) continue;
      const Found found = begins_with(text.substr(i), markers[m], final);
      if (found == Found::kYes) return {i, static_cast<int>(m)};
      maybe |= found == Found::kMaybe;
    }
    if (maybe) return {i, -1};
  }
  return {text.size(), -1};
}

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

inline std::string_view strip_space(std::string_view s) {
  while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_space(s.back())) s.remove_suffix(1);
  return s;
}

}  // namespace oar::tools
