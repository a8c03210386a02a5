// Folders of files that spare the next load some work: weights quantized once (weight_cache.cc), models after
// all passes (prepared_model.h). Entries are named by what they were made of, and made anew when they are
// gone. So any of them may be removed at any time; a process that has one mapped keeps it.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/status.h"

namespace oar {

inline constexpr uint64_t kDefaultCacheBytes = uint64_t{64} << 30;

struct CacheOptions {
  std::string folder;                   // empty: default_cache_dir()
  uint64_t bytes = kDefaultCacheBytes;  // of all entries of one kind; 0: nothing is kept or looked for
};

// Before an entry of `bytes` is written into `folder`, which is created: what ended processes left
// half-written goes, and so do the entries that were used least recently, until all stay within `limit` with
// the new one. RESOURCE_EXHAUSTED when it alone would not.
Status make_room(const std::string& folder, uint64_t bytes, uint64_t limit);

// The entry was used now.
void mark_used(const std::string& entry);

}  // namespace oar
