// Products of warp groups. A lane computes its own sums: late ones when it waits, early ones at once.
#include <utility>

#include "kernels/cuda/emulation/machine.h"

namespace oar::cuda::emulation {
namespace {

constexpr int kGroup = 4;        // warps
constexpr uint32_t kBytes = 32;  // of k
constexpr uint32_t kRows = 64, kMostColumns = 128;

// Byte `k` of row `row` of an operand, as an offset in shared memory.
uint32_t operand_byte(uint64_t descriptor, uint32_t row, uint32_t k) {
  constexpr uint64_t kField = 0x3fff;
  const auto start = static_cast<uint32_t>((descriptor & kField) << 4);
  const auto stride = static_cast<uint32_t>((descriptor >> 32 & kField) << 4);
  const uint32_t mode = static_cast<uint32_t>(descriptor >> 62);
  const uint32_t span = mode == 0 ? 0 : 256u >> mode;
  return swizzled(start + row / 8 * stride + row % 8 * span + k, span);
}

template <class Sum>
Sum dot(const std::byte* shared, const Product& p, uint32_t row, uint32_t column) {
  Sum sum = 0;
  const uint32_t step = p.type == WgmmaType::kBf16 ? 2 : 1;
  for (uint32_t k = 0; k < kBytes; k += step) {
    Sum x[2];
    for (int i = 0; i < 2; ++i) {
      const std::byte* at = shared + (i == 0 ? operand_byte(p.a, row, k) : operand_byte(p.b, column, k));
      if (p.type == WgmmaType::kS8) {
        x[i] = static_cast<Sum>(static_cast<int8_t>(*at));
      } else if (p.type == WgmmaType::kE4m3) {
        __nv_fp8_e4m3 v;
        v.__x = static_cast<__nv_fp8_storage_t>(*at);
        x[i] = static_cast<Sum>(static_cast<float>(v));
      } else {
        __nv_bfloat16 v;
        std::memcpy(&v, at, sizeof v);
        x[i] = static_cast<Sum>(__bfloat162float(v));
      }
    }
    sum += x[0] * x[1];
  }
  return sum;
}

template <class Sum>
void add_products(const Fiber& f, const Product& p) {
  Sum d[kMostColumns / 2];
  const size_t bytes = p.columns / 2 * sizeof(Sum);
  std::memcpy(d, p.d, bytes);
  for (uint32_t i = 0; i < p.columns / 2; ++i) {
    const auto row =
        static_cast<uint32_t>(16 * (f.warp_of_block() % kGroup) + f.lane() / 4) + 8 * (i / 2 % 2);
    const uint32_t column = 8 * (i / 4) + 2 * static_cast<uint32_t>(f.lane() % 4) + i % 2;
    d[i] += dot<Sum>(machine().shared_of(f.rank), p, row, column);
  }
  std::memcpy(p.d, d, bytes);
}

void multiply(const Fiber& f, const Product& p) {
  if (p.type == WgmmaType::kS8) add_products<int32_t>(f, p);
  else add_products<float>(f, p);
}

bool inside(uint64_t descriptor, uint32_t rows) {
  const size_t last = operand_byte(descriptor, rows - 1, kBytes - 1) | 0x7f;
  return descriptor >> 62 != 0 && last < machine().shared_bytes;
}

}  // namespace

void wgmma_fence() { machine().now->wgmma_fenced = true; }

void wgmma(WgmmaType type, int columns, void* d, uint64_t a, uint64_t b, Place place) {
  const auto n = static_cast<uint32_t>(columns);
  const size_t bytes = n / 2 * sizeof(uint32_t);
  Fiber& f = *machine().now;
  if (!f.wgmma_fenced) fail("wgmma without wgmma_fence since its accumulators were free", place);
  if (machine().block_threads % (kGroup * kLanes) != 0 &&
      f.warp_of_block() / kGroup == machine().block_threads / (kGroup * kLanes)) {
    fail("wgmma in a warp group that is not whole", place);
  }
  if (!inside(a, kRows) || !inside(b, n)) {
    return fail("wgmma: an operand without swizzle, or beyond the shared memory of the launch", place);
  }
  if (tracing() && f.lane() == 0) {  // for the warp: its rows of a, and b
    const Touch by = touch_now(f);
    const auto first = static_cast<uint32_t>(static_cast<size_t>(f.rank) * kSharedStride);
    for (uint32_t k = 0; k < kBytes; k += 16) {
      for (uint32_t r = 0; r < 16; ++r) {
        const auto row = static_cast<uint32_t>(16 * (f.warp_of_block() % kGroup)) + r;
        watch_box(first + operand_byte(a, row, k), 16, false, by, place);
      }
      for (uint32_t c = 0; c < n; ++c) watch_box(first + operand_byte(b, c, k), 16, false, by, place);
    }
  }
  for (const uint64_t part : {uint64_t{n}, a, b, static_cast<uint64_t>(place.line)})
    f.wgmmas = (f.wgmmas ^ part) * 0x100000001b3 + 1;
  Product p{type, n, d, {}, a, b};
  if (options().late_copies) {
    std::memcpy(p.before.data(), d, bytes);
    std::memset(d, 0xff, bytes);
  } else {
    multiply(f, p);
  }
  f.open_products.push_back(p);
}

void finish_wgmma() {
  const Machine& m = machine();
  constexpr int kThreads = kGroup * kLanes;
  for (int k = 0; k < m.threads; ++k) {
    const Fiber& f = m.fibers[static_cast<size_t>(k)];
    const int first = k - k % m.block_threads % kThreads;
    if (f.wgmmas == m.fibers[static_cast<size_t>(first)].wgmmas) continue;
    machine().now = &machine().fibers[static_cast<size_t>(k)];
    return fail("the warps of a group have not done the same products");
  }
}

void wgmma_commit() {
  Fiber& f = *machine().now;
  f.products.push_back(std::exchange(f.open_products, {}));
}

void wgmma_wait(int left) {
  Fiber& f = *machine().now;
  f.wgmma_fenced = false;
  // The first product on an accumulator knows what was in it; the later ones found NaN there and add.
  std::vector<void*> restored;
  for (; f.products.size() > static_cast<size_t>(left); f.products.pop_front()) {
    if (!options().late_copies) continue;
    for (const Product& p : f.products.front()) {
      bool first = true;
      for (const void* d : restored) first = first && d != p.d;
      if (first) std::memcpy(p.d, p.before.data(), p.columns / 2 * sizeof(uint32_t));
      restored.push_back(p.d);
      multiply(f, p);
    }
  }
  // Still under way: NaN again, until its turn.
  for (auto& group : f.products) {
    for (Product& p : group) {
      bool mine = false;
      for (const void* d : restored) mine = mine || d == p.d;
      if (mine) {
        std::memcpy(p.before.data(), p.d, p.columns / 2 * sizeof(uint32_t));
        std::memset(p.d, 0xff, p.columns / 2 * sizeof(uint32_t));
        std::erase(restored, p.d);
      }
    }
  }
}

}  // namespace oar::cuda::emulation
