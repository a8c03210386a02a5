// Set algebra on ranges, and the bitmap built from them.
#include "engine/text/code_point_set.h"

#include <algorithm>
#include <map>

namespace oar {
namespace {

struct PropertyRun {
  char32_t first, last;
  uint8_t properties;
};

// The property table as about 4000 runs of equal value. Most of the code space is blocks of one value, which
// the table has once: they are not looked at again.
const std::vector<PropertyRun>& property_runs() {
  static const std::vector<PropertyRun> kRuns = [] {
    std::vector<PropertyRun> runs;
    const auto append = [&runs](char32_t first, char32_t last, uint8_t p) {
      if (!runs.empty() && runs.back().properties == p) runs.back().last = last;
      else runs.push_back({first, last, p});
    };
    for (char32_t low = 0; low <= 0x10FFFF; low += detail::kPropertyBlock) {
      const char32_t high = low + detail::kPropertyBlock - 1;
      const bool again = low > 0 && detail::property_block(low) == detail::property_block(low - 1);
      if (again && runs.back().first <= low - detail::kPropertyBlock) {  // all of that block is one run
        runs.back().last = high;
        continue;
      }
      for (char32_t c = low; c <= high; ++c) append(c, c, detail::unicode_properties(c));
    }
    return runs;
  }();
  return kRuns;
}

}  // namespace

void CodePointRanges::append(char32_t first, char32_t last) {
  if (!ranges_.empty() && first <= ranges_.back().last + 1)
    ranges_.back().last = std::max(ranges_.back().last, last);
  else ranges_.push_back({first, last});
}

template <class Predicate>
CodePointRanges CodePointRanges::where(Predicate&& wanted) {
  CodePointRanges out;
  for (const PropertyRun& r : property_runs())
    if (wanted(r.properties)) out.append(r.first, r.last);
  return out;
}

CodePointRanges CodePointRanges::of_categories(CategorySet set) {
  return where([set](uint8_t p) { return (set >> (p & 0x1F)) & 1; });
}
CodePointRanges CodePointRanges::of_white_space() {
  return where([](uint8_t p) { return p & 0x40; });
}
CodePointRanges CodePointRanges::of_alphabetic() {
  return where([](uint8_t p) { return p & 0x20; });
}
CodePointRanges CodePointRanges::of_word() {
  return of_alphabetic()
      .united(of_categories(kMarks | category_bit(GeneralCategory::kNd) | category_bit(GeneralCategory::kPc)))
      .united({0x200C, 0x200D});
}
CodePointRanges CodePointRanges::of_script(std::string_view name) {
  CodePointRanges out;
  for (const Range& r : script_ranges(name)) out.append(r.first, r.last);
  return out;
}

CodePointRanges CodePointRanges::of(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  CodePointRanges out;
  for (const Range& r : ranges) out.append(r.first, r.last);
  return out;
}

CodePointRanges CodePointRanges::united(const CodePointRanges& other) const {
  std::vector<Range> merged(ranges_.size() + other.ranges_.size());
  std::merge(ranges_.begin(), ranges_.end(), other.ranges_.begin(), other.ranges_.end(), merged.begin(),
             [](const Range& a, const Range& b) { return a.first < b.first; });
  CodePointRanges out;
  for (const Range& r : merged) out.append(r.first, r.last);
  return out;
}

CodePointRanges CodePointRanges::intersected(const CodePointRanges& other) const {
  CodePointRanges out;
  size_t i = 0, j = 0;
  while (i < ranges_.size() && j < other.ranges_.size()) {
    const Range a = ranges_[i], b = other.ranges_[j];
    const char32_t first = std::max(a.first, b.first), last = std::min(a.last, b.last);
    if (first <= last) out.append(first, last);
    if (a.last < b.last) ++i;
    else ++j;
  }
  return out;
}

CodePointRanges CodePointRanges::complement() const {
  CodePointRanges out;
  char32_t next = 0;
  for (const Range& r : ranges_) {
    if (r.first > next) out.append(next, r.first - 1);
    next = r.last + 1;
  }
  if (next <= 0x10FFFF) out.append(next, 0x10FFFF);
  return out;
}

CodePointRanges CodePointRanges::case_closed() const {
  struct Folding {
    char32_t from, to;
  };
  // The 1500 code points that fold to another one; all lie below U+1E944.
  static const std::vector<Folding> kFoldings = [] {
    std::vector<Folding> out;
    for (char32_t c = 0; c < 0x1E944; ++c)
      if (const char32_t f = simple_fold(c); f != c) out.push_back({c, f});
    return out;
  }();
  const auto contains = [this](char32_t c) {
    const auto it = std::upper_bound(ranges_.begin(), ranges_.end(), c,
                                     [](char32_t value, const Range& r) { return value < r.first; });
    return it != ranges_.begin() && c <= std::prev(it)->last;
  };
  std::vector<char32_t> folded;  // the class representatives that are met
  for (const Folding& f : kFoldings)
    if (contains(f.from) || contains(f.to)) folded.push_back(f.to);
  std::sort(folded.begin(), folded.end());
  CodePointRanges extra;
  for (const char32_t c : folded) extra.append(c, c);
  CodePointRanges sources;
  for (const Folding& f : kFoldings)
    if (std::binary_search(folded.begin(), folded.end(), f.to)) sources.append(f.from, f.from);
  return united(extra).united(sources);
}

namespace {

// first to last, both within
void set_bits(std::array<uint64_t, 4>& bits, unsigned first, unsigned last) {
  for (unsigned word = first >> 6; word <= last >> 6; ++word) {
    const unsigned from = word == first >> 6 ? first & 63 : 0, to = word == last >> 6 ? last & 63 : 63;
    bits[word] |= (~uint64_t{0} >> (63 - (to - from))) << from;
  }
}

}  // namespace

CodePointSet::CodePointSet(const CodePointRanges& ranges) {
  std::map<std::array<uint64_t, 4>, uint16_t> known;
  std::array<uint64_t, 4> previous{};
  const auto& list = ranges.ranges();
  size_t next = 0;
  for (uint32_t block = 0; block < blocks_.size(); ++block) {
    const char32_t low = block << 8, high = low | 0xFF;
    while (next < list.size() && list[next].last < low) ++next;
    std::array<uint64_t, 4> bits{};
    for (size_t i = next; i < list.size() && list[i].first <= high; ++i)
      set_bits(bits, std::max(low, list[i].first) & 0xFF, std::min(high, list[i].last) & 0xFF);
    if (block > 0 && bits == previous) {  // most of the code space is uniform
      blocks_[block] = blocks_[block - 1];
      continue;
    }
    previous = bits;
    const auto [it, fresh] = known.try_emplace(bits, static_cast<uint16_t>(known.size()));
    if (fresh) bits_.insert(bits_.end(), bits.begin(), bits.end());
    blocks_[block] = it->second;
  }
  ascii_ = {bits_[static_cast<size_t>(blocks_[0]) * 4], bits_[static_cast<size_t>(blocks_[0]) * 4 + 1]};
}

}  // namespace oar
