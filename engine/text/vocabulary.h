// The two-way map between token texts and ids, packed: one arena for all texts and one open-addressing table.
// 256 k tokens cost about 6 MB, a look-up one or two cache misses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oar {

// What a file may ask for.
inline constexpr int32_t kMaxVocabulary = 1 << 24;

// 64-bit hash of a short string; not meant to resist an adversary (tables are sized and probed within bounds:
// a hostile vocabulary can make itself slow to load, never a request).
uint64_t hash_bytes(std::string_view s);

class Vocabulary {
 public:
  // texts[i] belongs to id i. An empty text marks a hole: it has no reverse mapping. Of equal texts the first
  // counts.
  static Vocabulary build(std::span<const std::string> texts);

  int32_t size() const { return static_cast<int32_t>(offsets_.empty() ? 0 : offsets_.size() - 1); }
  std::string_view text(int32_t id) const {  // 0 <= id < size()
    const auto i = static_cast<size_t>(id);
    return {arena_.data() + offsets_[i], offsets_[i + 1] - offsets_[i]};
  }
  int32_t find(std::string_view text) const;   // -1 when absent
  size_t longest() const { return longest_; }  // bytes of the longest text

 private:
  std::string arena_;
  std::vector<uint32_t> offsets_;  // size() + 1
  std::vector<int32_t> slots_;     // ids, -1 empty; a power of two of them, at most half full
  size_t longest_ = 0;
};

}  // namespace oar
