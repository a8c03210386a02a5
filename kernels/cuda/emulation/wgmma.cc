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

float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }
int32_t value_of(int8_t x) { return x; }
float value_of(uint8_t e4m3) { return e4m3_value(e4m3); }

// The numbers of a row's 32 bytes. Its pieces of 16 lie as they are in any swizzle.
template <class Element, class Sum>
void read_row(const std::byte* shared, uint64_t descriptor, uint32_t row, Sum* values) {
  constexpr uint32_t kPiece = 16;
  for (uint32_t k = 0; k < kBytes; k += kPiece) {
    Element piece[kPiece / sizeof(Element)];
    std::memcpy(piece, shared + operand_byte(descriptor, row, k), sizeof piece);
    for (const Element x : piece) *values++ = value_of(x);
  }
}

// A lane has two rows and, of each 8 columns, two: sums in ascending k.
template <class Element, class Sum>
void add_products(const Fiber& f, const Product& p) {
  constexpr size_t kNumbers = kBytes / sizeof(Element);
  const std::byte* shared = machine().shared_of(f.rank);
  const auto warp = static_cast<uint32_t>(f.warp_of_block() % kGroup), lane = static_cast<uint32_t>(f.lane());
  Sum d[kMostColumns / 2], x[2][kNumbers], y[2][kNumbers];
  const size_t bytes = p.columns / 2 * sizeof(Sum);
  std::memcpy(d, p.d, bytes);
  for (uint32_t r = 0; r < 2; ++r) read_row<Element>(shared, p.a, 16 * warp + lane / 4 + 8 * r, x[r]);
  for (uint32_t j = 0; j < p.columns / 8; ++j) {
    for (uint32_t c = 0; c < 2; ++c) read_row<Element>(shared, p.b, 8 * j + 2 * (lane % 4) + c, y[c]);
    Sum sums[2][2] = {};
    for (size_t k = 0; k < kNumbers; ++k) {
      for (size_t r = 0; r < 2; ++r)
        for (size_t c = 0; c < 2; ++c) sums[r][c] += x[r][k] * y[c][k];
    }
    for (size_t r = 0; r < 2; ++r)
      for (size_t c = 0; c < 2; ++c) d[4 * j + 2 * r + c] += sums[r][c];
  }
  std::memcpy(p.d, d, bytes);
}

void multiply(const Fiber& f, const Product& p) {
  switch (p.type) {
    case WgmmaType::kS8: return add_products<int8_t, int32_t>(f, p);
    case WgmmaType::kE4m3: return add_products<uint8_t, float>(f, p);
    case WgmmaType::kBf16: return add_products<__nv_bfloat16, float>(f, p);
  }
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
  f.sends = true;
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
  f.sends = true;
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
