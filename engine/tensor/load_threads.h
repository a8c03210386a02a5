// Work of loading, divided among threads that live for it. Most of it is the system's: it hands out the pages
// that weights are written to, and on one thread that takes longer than the writing. The pool is not used:
// models that share it may be running meanwhile, and it serves one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace oar {

// Calls fn(i) once for each i < sizes.size(), from up to `threads` threads with the calling one, the items
// with most bytes first; returns when all are done. Without threads to be had, or with little to do, the
// caller does it all, in order of i. What fn throws reaches the caller, and items not begun are left out.
void for_each_largest_first(int threads, std::span<const uint64_t> sizes,
                            const std::function<void(size_t)>& fn);

// Copies of bytes that may wait: of tensors that lie unaligned in a file, all at once when all are known.
class DeferredCopies {
 public:
  // Both must stay until run().
  void add(void* to, const void* from, uint64_t bytes);
  void run(int threads);

 private:
  struct Piece {
    std::byte* to;
    const std::byte* from;
    uint64_t bytes;
  };
  std::vector<Piece> pieces_;
};

}  // namespace oar
