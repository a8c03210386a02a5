// The captured runs of a Plan (Backend::begin_capture), by the values of its symbols. Sizes seen once are
// only remembered; those seen again are worth a capture. Both are bounded, each by itself: the longest unused
// goes first, and sizes that never come again take no place of those that do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/tensor/backend.h"

namespace oar {

class CaptureCache {
 public:
  static constexpr size_t kEntries = 64;  // captures; and as many sizes seen once

  struct Entry {
    std::vector<int64_t> symbols;
    Backend::Capture capture;  // null: to be made
    uint64_t used = 0;
  };

  // The entry of these sizes; null at their first sight, which is remembered.
  Entry* find(std::span<const int64_t> symbols) {
    ++clock_;
    const auto same = [&](const Entry& e) { return std::ranges::equal(symbols, e.symbols); };
    if (const auto e = std::ranges::find_if(entries_, same); e != entries_.end()) {
      e->used = clock_;
      return &*e;
    }
    if (const auto e = std::ranges::find_if(once_, same); e != once_.end()) {
      once_.erase(e);
      return &put(entries_, symbols);
    }
    put(once_, symbols);
    return nullptr;
  }
  // When pointers that captures hold have changed.
  void clear() {
    entries_.clear();
    once_.clear();
  }

 private:
  Entry& put(std::vector<Entry>& to, std::span<const int64_t> symbols) {
    Entry fresh{{symbols.begin(), symbols.end()}, nullptr, clock_};
    if (to.size() < kEntries) return to.emplace_back(std::move(fresh));
    return *std::ranges::min_element(to, {}, &Entry::used) = std::move(fresh);
  }

  std::vector<Entry> entries_, once_;
  uint64_t clock_ = 0;
};

}  // namespace oar
