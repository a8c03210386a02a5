// A text without the white space around it (ASCII's).
#pragma once

#include <string_view>

namespace oar {

inline std::string_view strip(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}
// White space alone.
inline bool is_blank(std::string_view text) { return strip(text).empty(); }

}  // namespace oar
