#include "clients/cli/heap_keeper.h"

#include <malloc.h>

#include <algorithm>

namespace oar::cli {

void HeapKeeper::use_one_arena() { mallopt(M_ARENA_MAX, 1); }

void HeapKeeper::look(Clock::time_point now) {
  constexpr size_t kMuch = 32 << 20;
  // Less than that is left by every burst, each time between other blocks, and would add up.
  constexpr std::chrono::minutes kInAnyCase{1};
  if (now - looked_ < std::chrono::seconds(1)) return;
  const bool first = looked_ == Clock::time_point{};
  looked_ = now;
  const size_t unused = mallinfo2().fordblks;
  least_ = std::min(least_, unused);
  // Not while it still moves: whoever is at work would fetch the pages again.
  const bool calm = unused <= before_ + kMuch / 8 && before_ <= unused + kMuch / 8;
  before_ = unused;
  if (first) trimmed_ = now;
  if ((calm && unused >= least_ + kMuch) || now - trimmed_ >= kInAnyCase) trim(now, unused);
}

void HeapKeeper::trim(Clock::time_point now, size_t unused) {
  malloc_trim(0);
  trimmed_ = now;
  least_ = unused;  // what was given back counts as unused all the same
}

}  // namespace oar::cli
