#include "engine/tune/measure/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "engine/tensor/huge_pages.h"

namespace oar {
namespace {

constexpr uint64_t kPiece = uint64_t{1} << 20;  // small enough that a fast worker takes over from a slow one
constexpr uint64_t kHugePage = uint64_t{2} << 20;

// Reads a piece as kStreams runs side by side, as kernels do that work on several rows: how many the memory
// likes best differs between processors (Sapphire Rapids gives eight runs a third more than one, Zen 5 is
// fastest with one).
//
// In quarters of a line, the vectors that every compilation has: word by word one core of Zen 5 got through
// 22 GB/s of the 40 that its memory gives it.
template <int kStreams>
uint64_t read_piece(const std::byte* bytes) {
  using Quarter = uint64_t __attribute__((vector_size(16)));
  constexpr uint64_t kRun = kPiece / kStreams;
  Quarter a = {}, b = {}, c = {}, d = {};
  const auto load = [](const std::byte* at) {
    Quarter q;
    std::memcpy(&q, at, sizeof q);
    return q;
  };
  for (uint64_t offset = 0; offset < kRun; offset += 64) {
    for (uint64_t s = 0; s < kStreams; ++s) {
      const std::byte* at = bytes + s * kRun + offset;
      __builtin_prefetch(at + 4096 / kStreams);  // the hardware prefetcher stops at 4 KiB pages
      a |= load(at);
      b |= load(at + 16);
      c |= load(at + 32);
      d |= load(at + 48);
    }
  }
  const Quarter all = a | b | c | d;
  return all[0] | all[1];
}

}  // namespace

Result<ReadProbe> ReadProbe::create(ThreadPool& pool, uint64_t bytes) {
  bytes = std::max(bytes / kPiece, uint64_t{1}) * kPiece;
  OAR_ASSIGN(Buffer memory, Buffer::allocate(bytes + kHugePage));
  // Huge pages, as weights have where the system grants them.
  const uint64_t skip = kHugePage - reinterpret_cast<uintptr_t>(memory.data()) % kHugePage;
  memory = memory.slice(skip % kHugePage, bytes);
  prefer_huge_pages(memory);
  auto* data = static_cast<std::byte*>(memory.mutable_data());
  pool.parallel_for(static_cast<int64_t>(bytes / kPiece), 1, [&](int64_t begin, int64_t end) {
    std::memset(data + static_cast<uint64_t>(begin) * kPiece, 1, static_cast<size_t>(end - begin) * kPiece);
  });
  return ReadProbe(pool, std::move(memory));
}

double ReadProbe::measure() {
  return std::max({pass(&read_piece<1>), pass(&read_piece<4>), pass(&read_piece<8>)});
}

double ReadProbe::pass(uint64_t (*read)(const std::byte*)) {
  const auto* data = static_cast<const std::byte*>(memory_.data());
  const auto start = std::chrono::steady_clock::now();
  pool_->parallel_for(static_cast<int64_t>(memory_.size() / kPiece), 1, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum |= read(data + static_cast<uint64_t>(i) * kPiece);
    __asm__ volatile("" ::"r"(sum));  // the reads must happen
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(memory_.size()) / seconds;
}

}  // namespace oar
