// Work of loading, divided among threads that live for it. Most of it is the system's: it hands out the pages
// that weights are written to, and on one thread that takes longer than the writing. The pool is not used:
// models that share it may be running meanwhile, and it serves one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/tensor/buffer.h"

namespace oar {

// Calls fn(i) once for each i < sizes.size(), from up to `threads` threads with the calling one, the items
// with most bytes first; returns when all are done. Without threads to be had, or with little to do, the
// caller does it all, in order of i. What fn throws reaches the caller, and items not begun are left out.
void for_each_largest_first(int threads, std::span<const uint64_t> sizes,
                            const std::function<void(size_t)>& fn);

// Copies of bytes that may wait: of tensors that lie unaligned in a file, all at once when all are known.
// What has been copied from a mapped file leaves the process's memory, which would have it twice.
class DeferredCopies {
 public:
  // `to` has room for all of `from`, and stays until run().
  void add(void* to, const Buffer& from);
  void run(int threads);

 private:
  struct Piece {
    std::byte* to;
    const std::byte* from;
    uint64_t bytes;
  };
  std::vector<Buffer> sources_;
  std::vector<Piece> pieces_;
};

}  // namespace oar
