// The known name that a mistyped one most likely means: for messages that name a remedy.
#pragma once

#include <algorithm>
#include <cctype>
#include <numeric>
#include <string_view>
#include <vector>

namespace oar {

// Least number of letters to insert, delete, replace or swap with their neighbour that makes `b` of `a`
// (optimal string alignment); upper and lower case are equal, so are '-' and '_'.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  const auto letter = [](char c) { return c == '-' ? '_' : std::tolower(static_cast<unsigned char>(c)); };
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const auto x = letter(a[i - 1]), y = letter(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x == y ? 0 : 1)});
      if (i > 1 && j > 1 && x == letter(b[j - 2]) && y == letter(a[i - 2]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// The one of `known` (a range of texts) that differs from `name` least; empty when each differs in more than
// a third of its letters. Names of more than 64 bytes have no neighbours: what a stranger sends costs little.
template <class Names>
std::string_view nearest_name(std::string_view name, const Names& known) {
  if (name.size() > 64) return {};
  std::string_view best;
  size_t least = std::max<size_t>(1, name.size() / 3) + 1;
  for (const auto& candidate : known) {
    const std::string_view text(candidate);
    if (const size_t d = edit_distance(name, text); d < least) least = d, best = text;
  }
  return best;
}

}  // namespace oar
