// How memory-bound kernels cut their rows into chunks. run() is not told how many chunks plan() asked for, so
// the size of a chunk is a function of the sizes in the args alone.
#pragma once

#include <cstdint>

namespace oar {

// A chunk should take longer than the barrier it costs (0.2..1 us): 16 KB at L2 speed is about half a
// microsecond.
inline constexpr int64_t kMinChunkBytes = 16 * 1024;
// Enough for stealing to even out the load of a large machine.
inline constexpr int64_t kMaxRowChunks = 256;

[[gnu::always_inline]] inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of one chunk when each row moves `row_bytes` through the processor.
[[gnu::always_inline]] inline int64_t rows_per_chunk(int64_t rows, int64_t row_bytes) {
  const int64_t by_size = ceil_div(kMinChunkBytes, row_bytes > 0 ? row_bytes : 1);
  const int64_t by_count = ceil_div(rows, kMaxRowChunks);
  return by_size > by_count ? by_size : by_count;
}
// Chunks of `per` rows; at least one, so that every plan has something to run.
[[gnu::always_inline]] inline int64_t row_chunks(int64_t rows, int64_t per) {
  return rows > 0 ? ceil_div(rows, per) : 1;
}

}  // namespace oar
