// Sizing the word cache.
#include "engine/text/token_model.h"

#include <algorithm>
#include <bit>

namespace oar {

void WordCache::resize_for(size_t text_bytes) {
  // Below 512 bytes few words repeat; 8192 entries are 512 KiB, which still fits the second-level cache.
  entries_.clear();
  if (text_bytes >= 512) entries_.resize(std::bit_ceil(std::clamp<size_t>(text_bytes / 8, 64, 8192)));
}

}  // namespace oar
