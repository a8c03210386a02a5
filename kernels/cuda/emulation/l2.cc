// The L2 between multiprocessors and memory, as a model: which bytes come from memory more than once.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/occupancy.h"

namespace oar::cuda::emulation {
namespace {

constexpr size_t kSectorsOfLine = 4;

// Sectors of one line, by one access.
struct Access {
  uintptr_t line;
  uint8_t sectors;  // a bit each
  bool write, streamed;
};

class L2 {
 public:
  void clear(size_t bytes) {
    most_ = bytes / (kSectorBytes * kSectorsOfLine);
    where_.clear();
    lines_.clear();
    kept_ = streamed_ = {};
  }
  void touch(const Access& a) {
    const auto [at, is_new] = where_.try_emplace(a.line, 0);
    if (is_new) {
      at->second = take_place();
      lines_[at->second] = {.line = a.line};
    } else {
      unlink(at->second);
    }
    link(at->second, a.streamed ? streamed_ : kept_);
    Line& l = lines_[at->second];
    const auto bytes = [](unsigned bits) {
      return kSectorBytes * static_cast<size_t>(__builtin_popcount(bits));
    };
    if (a.write) l.dirty |= a.sectors;
    else counters().memory_read += bytes(a.sectors & ~l.valid);
    l.valid |= a.sectors;
  }
  void write_back() {
    for (Line& l : lines_) leave(l);
  }

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Queue {
    uint32_t newest = kNone, oldest = kNone;
  };
  struct Line {
    uintptr_t line = 0;
    uint32_t newer = kNone, older = kNone;
    Queue* queue = nullptr;
    uint8_t valid = 0, dirty = 0;
  };
  static void leave(Line& l) {
    counters().memory_written += kSectorBytes * static_cast<size_t>(__builtin_popcount(l.dirty));
    l.dirty = 0;
  }
  uint32_t take_place() {
    if (lines_.size() < most_) {
      lines_.emplace_back();
      return static_cast<uint32_t>(lines_.size() - 1);
    }
    const uint32_t place = streamed_.oldest != kNone ? streamed_.oldest : kept_.oldest;
    unlink(place);
    leave(lines_[place]);
    where_.erase(lines_[place].line);
    return place;
  }
  void link(uint32_t k, Queue& queue) {
    lines_[k].queue = &queue;
    lines_[k].older = queue.newest;
    lines_[k].newer = kNone;
    if (queue.newest != kNone) lines_[queue.newest].newer = k;
    queue.newest = k;
    if (queue.oldest == kNone) queue.oldest = k;
  }
  void unlink(uint32_t k) {
    const Line& l = lines_[k];
    (l.newer != kNone ? lines_[l.newer].older : l.queue->newest) = l.older;
    (l.older != kNone ? lines_[l.older].newer : l.queue->oldest) = l.newer;
  }

  std::unordered_map<uintptr_t, uint32_t> where_;
  std::vector<Line> lines_;
  Queue kept_, streamed_;
  size_t most_ = 1;
};

L2 g_l2;
bool g_has_l2 = false;
size_t g_side_by_side = 0;
std::vector<std::vector<Access>> g_wave;  // of blocks that run side by side; the last one is running

void run_wave() {
  size_t longest = 0;
  for (const auto& block : g_wave) longest = std::max(longest, block.size());
  for (size_t k = 0; k < longest; ++k) {
    for (const auto& block : g_wave) {
      if (k < block.size()) g_l2.touch(block[k]);
    }
  }
  g_wave.assign(1, {});
}

}  // namespace

void begin_l2(int threads, size_t shared_bytes, unsigned cluster) {
  const int registers = options().registers;
  g_has_l2 = registers > 0 && tracing();
  if (!g_has_l2) return;
  const int each = blocks_of_multiprocessor(threads, shared_bytes, registers);
  if (each == 0) fail("a block has no room on a multiprocessor");
  g_side_by_side =
      std::max<size_t>(static_cast<size_t>(std::max(each, 1) * options().multiprocessors) / cluster, 1);
  g_l2.clear(options().l2_bytes);
  g_wave.assign(1, {});
}

bool has_l2() { return g_has_l2; }

void l2_access(uintptr_t sector, bool write, bool streamed) {
  std::vector<Access>& block = g_wave.back();
  const uintptr_t line = sector / kSectorsOfLine;
  const auto bit = static_cast<uint8_t>(1u << sector % kSectorsOfLine);
  if (!block.empty() && block.back().line == line && block.back().write == write &&
      block.back().streamed == streamed) {
    block.back().sectors |= bit;
  } else {
    block.push_back({line, bit, write, streamed});
  }
}

void end_l2_block() {
  if (!g_has_l2) return;
  if (g_wave.size() == g_side_by_side) run_wave();
  else g_wave.emplace_back();
}

void end_l2() {
  if (!g_has_l2) return;
  run_wave();
  g_l2.write_back();
  g_has_l2 = false;
}

}  // namespace oar::cuda::emulation
