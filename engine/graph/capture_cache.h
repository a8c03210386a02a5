// The captured runs of a Plan (Backend::begin_capture), by the values of its symbols. Sizes seen once are
// only remembered; those seen again are worth a capture. Bounded: the longest unused goes first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/tensor/backend.h"

namespace oar {

class CaptureCache {
 public:
  static constexpr size_t kEntries = 64;

  struct Entry {
    std::vector<int64_t> symbols;
    Backend::Capture capture;  // null: seen once
    uint64_t used = 0;
  };

  // The entry of these sizes; null at their first sight, which is remembered.
  Entry* find(std::span<const int64_t> symbols) {
    ++clock_;
    for (Entry& e : entries_) {
      if (!std::equal(symbols.begin(), symbols.end(), e.symbols.begin(), e.symbols.end())) continue;
      e.used = clock_;
      return &e;
    }
    Entry fresh{{symbols.begin(), symbols.end()}, nullptr, clock_};
    if (entries_.size() < kEntries) {
      entries_.push_back(std::move(fresh));
    } else {
      *std::min_element(entries_.begin(), entries_.end(),
                        [](const Entry& a, const Entry& b) { return a.used < b.used; }) = std::move(fresh);
    }
    return nullptr;
  }
  // When pointers that captures hold have changed.
  void clear() { entries_.clear(); }

 private:
  std::vector<Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace oar
