// In which order blocks of a product come to its tiles, and what follows for memory at shapes of an 8B model:
// bytes that a modelled L2 of 40 MB does not have, per byte that is needed. Nothing is computed. Of each
// block of the launch its tile is asked for, as the kernel does, and its weights and rows are looked at, 512
// k at a time. That blocks look at no more is counted in counters_test.cc; that kernels come in this order,
// by a device that is as much smaller as they are, in the last test.
#include <numeric>

#include "kernels/activation.h"
#include "kernels/cuda/cost.h"
#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_mixed.h"
#include "kernels/cuda/matmul_tensor.h"
#include "kernels/cuda/matmul_wgmma.h"
#include "kernels/cuda/matmul_wgmma_codes.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma_tile.h"
#include "kernels/moe.h"
#include "tests/cuda/box_kernels.h"
#include "tests/cuda/counters.h"
#include "tests/cuda/faulty_kernels.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr int64_t kHidden = 4096, kInner = 14336, kPrompt = 2048;

// A product of T rows of f32, of two operands with a gate, plain or of experts, which then have so many rows
// each.
struct Traffic {
  const char* format;
  int64_t T, n, K;
  int inputs = 1;
  bool residual = false;
  std::vector<int32_t> experts = {};
  int segments = 1;  // weights of n outputs, of each expert

  double weight() const {  // bytes of one
    const uint64_t packed = cuda::packed_bytes(format, 16, K);
    const uint64_t bytes = packed > 0 ? packed : static_cast<uint64_t>(16 * Format::find(format)->stride(K));
    return static_cast<double>(bytes) / static_cast<double>(16 * K);
  }
  int64_t weights() const { return segments * std::max<int64_t>(static_cast<int64_t>(experts.size()), 1); }
  double outputs() const { return kFloat * static_cast<double>(T * n * segments); }
  double needed() const {
    const auto idle = segments * std::ranges::count(experts, 0);  // weights of experts without rows
    return kFloat * static_cast<double>(T * K * inputs) +
           weight() * static_cast<double>((weights() - idle) * n * K) + outputs() * (residual ? 2 : 1);
  }
};

// The L2 in lines that stand for 16 KiB each.
class Memory {
 public:
  Memory(int threads, size_t shared, int registers) {
    emulation::counters() = {};
    emulation::options().registers = registers;
    emulation::options().l2_bytes = (size_t{40} << 20) / kScale;
    emulation::begin_l2(threads, shared, 1);
  }
  // `bytes` of an array from its `first` on.
  static void look(int array, double first, double bytes, bool write = false, bool streamed = false) {
    constexpr double kLine = 128. * kScale;
    const auto from = static_cast<uintptr_t>(first / kLine),
               to = static_cast<uintptr_t>((first + bytes - 1) / kLine);
    for (uintptr_t line = from; line <= to; ++line) {
      for (uintptr_t sector = 0; sector < 4; ++sector)
        emulation::l2_access(((static_cast<uintptr_t>(array) << 32) + line) * 4 + sector, write, streamed);
    }
  }
  static void next_block() { emulation::end_l2_block(); }
  static double end() {
    emulation::end_l2();
    emulation::options() = {};
    const emulation::Counters& c = emulation::counters();
    return static_cast<double>((c.memory_read + c.memory_written) * kScale);
  }

 private:
  static constexpr size_t kScale = 128;
};

// The launch of a product, as the plug-in makes it.
cuda::LaunchShape launch_of(const Traffic& t) {
  alignas(16) static float memory[4];
  static const int32_t nobody = 0;
  const std::vector<MatmulSegment> segments(static_cast<size_t>(t.weights()),
                                            MatmulSegment{memory, nullptr, t.n, 0});
  std::vector<cuda::LaunchShape> launches;
  const auto run = [&](KernelFamily family, const void* args) {
    cuda::foreseen_launches = &launches;
    const bool ok = cuda::find_device_kernel(family, t.format)->launch(args, nullptr, nullptr).ok();
    cuda::foreseen_launches = nullptr;
    REQUIRE(ok);
    REQUIRE(launches.size() == 1);
  };
  if (!t.experts.empty()) {
    GroupedMatmulArgs a;
    a.x = a.out = memory;
    a.expert_start = &nobody;
    a.segments = segments.data();
    a.segments_per_expert = t.segments;
    a.experts = static_cast<int64_t>(t.experts.size());
    a.P = t.T, a.K = a.ldx = t.K, a.ldo = t.n * t.segments;
    run(KernelFamily::kGroupedMatmul, &a);
    return launches[0];
  }
  GatedMatmulArgs a;
  a.matmul.x = a.matmul.out = memory;
  a.matmul.segments = segments.data();
  a.matmul.num_segments = t.segments;
  a.matmul.T = t.T, a.matmul.K = a.matmul.ldx = t.K, a.matmul.ldo = t.n * t.segments;
  if (t.inputs == 2) {
    a.gate = memory;
    a.ld_gate = t.K;
    run(KernelFamily::kGatedMatmul, &a);
  } else {
    run(KernelFamily::kMatmul, &a.matmul);
  }
  return launches[0];
}

// Its bytes of memory. `band`: another order than the kernel's, of so many tiles of rows.
template <int kOutputs, int kRows>
double memory_of(const Traffic& t, int registers, uint32_t band) {
  constexpr int64_t kSpan = 512;
  enum { kX, kResidual, kOut, kWeights };
  static const float gate = 0;
  std::vector<int32_t> start{0};
  for (const int32_t rows : t.experts) start.push_back(start.back() + rows);
  cuda::Product p{};
  p.T = t.T, p.K = t.K;
  p.gate = t.inputs == 2 ? &gate : nullptr;
  p.start = t.experts.empty() ? nullptr : start.data();
  p.experts = static_cast<int>(t.experts.size());
  p.per = t.segments;
  p.count = p.start != nullptr ? p.experts : p.per;
  for (int i = 0; i < p.per; ++i) p.weights[i].n = t.n;
  const int64_t blocks = cuda::lay_tiles(p, kOutputs, kRows);
  const cuda::LaunchShape shape = launch_of(t);
  REQUIRE(uint64_t{shape.grid.x} * shape.grid.y == static_cast<uint64_t>(blocks));
  if (band > 0) p.band = band;
  Memory memory(static_cast<int>(shape.block.x), shape.shared, registers);
  const auto look = [&](const cuda::Tile& tile) {
    const auto rows = static_cast<double>(std::min<int64_t>(kRows, tile.end - tile.begin));
    const double w = t.weight() * kSpan * kOutputs, x = kFloat * kSpan * t.inputs * rows,
                 first_w = t.weight() * static_cast<double>(tile.n * t.K),
                 first_x = kFloat * t.inputs * static_cast<double>(tile.begin * t.K);
    for (int64_t k = 0; k < t.K; k += kSpan) {
      Memory::look(kWeights + tile.index, first_w + w * static_cast<double>(k / kSpan), w);
      Memory::look(kX, first_x + x * static_cast<double>(k / kSpan), x);
    }
    // Tiles of one weight's outputs lie side by side here, as blocks come to them.
    const double at = kFloat * static_cast<double>((tile.index * t.n + tile.n) * t.T + kOutputs * tile.begin),
                 sums = kFloat * kOutputs * rows;
    if (t.residual) Memory::look(kResidual, at, sums, false, p.streams);
    Memory::look(kOut, at, sums, true, p.streams);
    Memory::next_block();
  };
  if (p.start == nullptr) {
    for (int64_t block = 0; block < blocks; ++block)
      look(cuda::tile_of_rows<kOutputs, kRows>(p, static_cast<uint32_t>(block)));
  } else {
    // Which expert a block has, a warp finds; here they come one behind the other.
    for (int e = 0; e < p.count; ++e) {
      const uint32_t own = p.across * cuda::tiles_down<kRows>(p, e);
      for (uint32_t block = 0; block < own; ++block) look(cuda::tile_of_expert<kOutputs, kRows>(p, e, block));
    }
  }
  return Memory::end();
}

// How many times what is needed comes from memory or goes there.
double times(const Traffic& t, uint32_t band = 0) {
  const bool bf16 = std::string_view(t.format) == "bf16",
             tensor = bf16 || cuda::packed_bytes(t.format, 16, t.K) > 0;
  const auto each = std::max<int64_t>(static_cast<int64_t>(t.experts.size()), 1);
  const bool many = tensor && t.T > cuda::kFewRows * each;
  // Of a thread, as kernels_test.py allows them.
  const double bytes = many ? memory_of<cuda::kManyOutputs, cuda::kManyRows>(t, 200, band)
                            : memory_of<cuda::kTileOutputs, cuda::kTileRows>(t,
                                                                             !tensor ? 64
                                                                             : bf16  ? 128
                                                                                     : 176,
                                                                             band);
  return bytes / t.needed();
}

void check_once(const Traffic& t) {
  const double got = times(t);
  INFO(t.format << ", " << t.T << " rows of " << t.K << ", " << t.n << " outputs: " << got);
  CHECK(got <= 1.05);
  CHECK(got >= 0.95);
}

// The same of a product of a prompt's rows by warp groups, which reads them rounded, with the scales of
// codes.
struct OfGroups {
  Traffic t;
  int64_t element() const { return std::string_view(t.format) == "bf16" ? 2 : 1; }
  double of_x() const { return element() == 2 ? 2 : 1 + kFloat / 128; }  // bytes
  double needed() const {
    const auto all = static_cast<double>(t.T * t.n);
    return of_x() * static_cast<double>(t.T * t.K) + t.weight() * static_cast<double>(t.n * t.K) +
           kFloat * all * (t.residual ? 2 : 1);
  }
  // `banded`: rows in bands, as the kernel has them; else all of them beside each other. `streams`: what
  // leaves L2 first does so.
  double times(bool banded = true, bool streams = true) const {
    constexpr int64_t kSpan = 512;
    enum { kX, kResidual, kOut, kWeights };
    alignas(256) static float memory[64];
    MatmulSegment segment{memory, nullptr, t.n, 0};
    MatmulArgs a;
    a.x = a.out = memory;
    a.residual = t.residual ? memory : nullptr;
    a.segments = &segment;
    a.num_segments = 1;
    a.T = t.T, a.K = a.ldx = t.K, a.ldo = t.n;
    cuda::WarpGroupProduct p = cuda::warp_group_product(a, segment, element());
    std::vector<cuda::LaunchShape> launches;
    cuda::foreseen_launches = &launches;
    const bool ok = element() == 2 ? cuda::WarpGroupProducts::run(a, memory, nullptr).ok()
                                   : cuda::WarpGroupCodes(t.format).run(a, memory, nullptr).ok();
    cuda::foreseen_launches = nullptr;
    REQUIRE(ok);
    REQUIRE(launches.size() == 2);  // rows are rounded before
    const cuda::LaunchShape& shape = launches[1];
    REQUIRE(shape.grid.x == p.across * p.down);
    if (!banded) p.band = p.down;
    if (!streams) p.streams = p.streams_weights = false;
    Memory l2(static_cast<int>(shape.block.x), shape.shared, element() == 2 ? 96 : 168);
    for (uint32_t block = 0; block < shape.grid.x; ++block) {
      const cuda::GridPlace at = cuda::place_of(block, p.across, p.down, p.band);
      const int64_t n = int64_t{at.x} * cuda::kGroupOutputs, row = int64_t{at.y} * cuda::kGroupRows;
      const auto outputs = static_cast<double>(std::min<int64_t>(cuda::kGroupOutputs, t.n - n)),
                 rows = static_cast<double>(std::min<int64_t>(cuda::kGroupRows, t.T - row));
      const double w = t.weight() * outputs, x = of_x() * rows;  // bytes of a k
      for (int64_t k = 0; k < t.K; k += kSpan) {
        const auto done = static_cast<double>(k);
        Memory::look(kWeights, t.weight() * static_cast<double>(n * t.K) + w * done, w * kSpan, false,
                     p.streams_weights);
        Memory::look(kX, of_x() * static_cast<double>(row * t.K) + x * done, x * kSpan);
      }
      const double first = kFloat * (static_cast<double>(n * t.T) + outputs * static_cast<double>(row)),
                   sums = kFloat * outputs * rows;
      if (t.residual) Memory::look(kResidual, first, sums, false, p.streams);
      Memory::look(kOut, first, sums, true, p.streams);
      Memory::next_block();
    }
    return Memory::end() / needed();
  }
};

const char* const kOfEachSize[] = {"bf16", "q8_0", "q6_k", "i4_g128"};

}  // namespace

TEST_CASE("cuda order: blocks come to each tile once, bands of rows one behind another") {
  struct Grid {
    uint32_t across, down, band;
  };
  for (const Grid& g :
       {Grid{1, 1, 1}, {5, 7, 1}, {5, 7, 2}, {5, 7, 3}, {5, 7, 7}, {1, 9, 4}, {9, 1, 1}, {4, 8, 4}}) {
    CAPTURE(g.across, g.down, g.band);
    std::vector<int> seen(g.across * g.down, 0);
    cuda::GridPlace last{};
    for (uint32_t block = 0; block < g.across * g.down; ++block) {
      const cuda::GridPlace at = cuda::place_of(block, g.across, g.down, g.band);
      REQUIRE(at.x < g.across);
      REQUIRE(at.y < g.down);
      ++seen[at.x * g.down + at.y];
      const uint32_t band = at.y / g.band, before = last.y / g.band;
      CHECK(band >= before);
      if (block > 0 && band == before) CHECK((at.x > last.x || (at.x == last.x && at.y == last.y + 1)));
      last = at;
    }
    CHECK(std::ranges::all_of(seen, [](int n) { return n == 1; }));
  }
}

TEST_CASE("cuda order: products of a prompt of 2,048 rows read weights and rows once from memory") {
  for (const char* format : kOfEachSize) {
    check_once({format, kPrompt, 6144, kHidden});
    check_once({format, kPrompt, kHidden, kHidden, 1, true});
  }
  for (const char* format : {"bf16", "i4_g128"}) {
    const Traffic both{format, kPrompt, 2 * kInner, kHidden};
    check_once(both);
    // By rows, or by too few at a time, weights come again.
    CHECK(times(both, 1) > 4);
    CHECK(times(both, 16) > 1.15);
  }
  for (const char* format : {"f32", "iq4_xs"}) check_once({format, kPrompt, 2048, kHidden, 1, true});
}

TEST_CASE("cuda order: steps of fewer rows read weights once from memory") {
  for (const char* format : kOfEachSize) {
    for (const int64_t T : {1, 16, 31, 64, 512}) {
      check_once({format, T, 6144, kHidden});
      check_once({format, T, 2 * kInner, kHidden});
      if (T <= 64) check_once({format, T, kHidden, kInner, 2, true});
    }
    CHECK(times({format, 31, 2 * kInner, kHidden}, 1) > 2);
  }
  for (const char* format : {"f32", "iq4_xs"}) {
    for (const int64_t T : {1, 64}) check_once({format, T, 2 * kInner, kHidden});
  }
}

// A second layer reads two operands of 14,336 columns. Whatever the order, weights and rows of that size come
// once only where all sums are kept meanwhile: 32 MB, of which 132 multiprocessors have 4 in registers. What
// this order takes is far from what memory moves while tensor cores multiply.
TEST_CASE("cuda order: second layers of a prompt's gates read again what L2 cannot hold") {
  struct Second {
    const char* format;
    double most;
  };
  for (const Second& s : {Second{"bf16", 3.1}, {"q8_0", 2.4}, {"i4_g128", 1.85}}) {
    const Traffic t{s.format, kPrompt, kHidden, kInner, 2, true};
    const double got = times(t);
    INFO(s.format << ": " << got);
    CHECK(got <= s.most);
    const cuda::AssumedDevice device;
    const double operations = 2 * 2. * static_cast<double>(t.T * t.n * t.K);
    CHECK(got * t.needed() / device.memory < operations / device.tensor);
  }
}

TEST_CASE("cuda order: warp groups read weights and rows of prompts once from memory") {
  for (const char* format : {"bf16", "e4m3_channel", "e4m3_g128"}) {
    for (const int64_t T : {int64_t{512}, kPrompt}) {
      for (const Traffic& t : {Traffic{format, T, 1024, kHidden},
                               {format, T, kHidden, kHidden, 1, true},
                               {format, T, kInner, kHidden},
                               {format, T, kHidden, kInner, 1, true}}) {
        const OfGroups product{t};
        const double got = product.times();
        INFO(format << ", " << T << " rows of " << t.K << ", " << t.n << " outputs: " << got);
        // Rows of bf16 are more than L2 holds, and so is each half of them beside the weights of blocks that
        // run side by side.
        const bool second = product.element() == 2 && T == kPrompt && t.K == kInner;
        CHECK(got <= (second ? 1.7 : 1.05));
        CHECK(got >= 0.95);
        if (!second) continue;
        const cuda::AssumedDevice device;
        const double operations = 2. * static_cast<double>(t.T * t.n * t.K);
        CHECK(2 * got * product.needed() / device.memory < operations / device.warp_groups);
      }
    }
  }
  // Where nothing leaves L2 before its turn, rows come again; and where more of them are not in bands.
  CHECK(OfGroups{{"e4m3_g128", kPrompt, kHidden, kInner, 1, true}}.times(true, false) > 1.5);
  const OfGroups many{{"bf16", 4 * kPrompt, kHidden, kHidden, 1, true}};
  CHECK(many.times() < 1.3);
  CHECK(many.times(false) > 3);
}

TEST_CASE("cuda order: experts of a prompt read each weight once from memory") {
  // 8 experts, two of them for a token; half of 128, of which 8 are chosen.
  const std::vector<int32_t> few{704, 320, 512, 64, 960, 512, 0, 1024}, many(64, 128);
  for (const char* format : {"bf16", "i4_g128"}) {
    const Traffic both{format, 2 * kPrompt, 4096, kHidden, 1, false, few, 2};
    check_once(both);
    if (both.weight() == 2) CHECK(times(both, 1) > 1.2);
    check_once({format, 4 * kPrompt, 768, 2048, 1, false, many});
    check_once({format, 4 * kPrompt, 2048, 768, 1, false, many});
  }
}

namespace {

// Launches of the products of heads, one behind the other.
size_t launches_of_heads(const char* format, int64_t T, int64_t heads) {
  alignas(16) static float memory[4];
  constexpr int64_t kK = 128, kN = 512;
  std::vector<cuda::LaunchShape> launches;
  const cuda::DeviceKernel* kernel = cuda::find_device_kernel(KernelFamily::kMatmul, format);
  cuda::HeldLaunches held;
  cuda::foreseen_launches = &launches;
  const MatmulSegment segment{memory, nullptr, kN, 0};
  for (int64_t head = 0; head < heads; ++head) {
    MatmulArgs m;
    m.segments = &segment;
    m.num_segments = 1;
    m.T = T, m.K = kK, m.ldx = heads * kK, m.ldo = heads * kN;
    m.x = memory + head * kK;
    m.out = memory + heads * T * kK + head * kN;
    CHECK(held.launch(*kernel, &m, nullptr, nullptr).ok());
  }
  CHECK(held.release().ok());
  cuda::foreseen_launches = nullptr;
  return launches.size();
}

}  // namespace

TEST_CASE("cuda order: products of experts and of heads, however many there are, are a launch") {
  for (const size_t experts : {128, 256, 384}) {
    // One token's 8 experts, of two matrices each.
    std::vector<int32_t> rows(experts, 0);
    for (size_t i = 0; i < 8; ++i) rows[i * 13] = 1;
    CHECK(launch_of({"i4_g128", 8, 768, 2048, 1, false, rows, 2}).grid.x < 10 * 2 * 768 / cuda::kTileOutputs);
  }
  for (const int64_t T : {1, 31}) CHECK(launches_of_heads("bf16", T, 20) == 1);
  CHECK(launches_of_heads("i4_g128", 8, 128) == 1);
  // One more is a product behind them; two more are heads again, by themselves.
  CHECK(launches_of_heads("bf16", 1, cuda::Product::kMatrices + 1) == 1);
  CHECK(launches_of_heads("bf16", 1, cuda::Product::kMatrices + 2) == 2);
  CHECK(launches_of_heads("bf16", 32, 3) == 3);  // a prompt's
}

namespace {

// One behind the other, each of so many rows and outputs; of several heads the last one.
struct Behind {
  const char* format;
  int64_t T, n, heads = 1;
};
std::vector<cuda::LaunchShape> launches_of(const std::vector<Behind>& products) {
  alignas(16) static float memory[4];
  constexpr int64_t kK = 4096;
  std::vector<cuda::LaunchShape> launches;
  cuda::HeldLaunches held;
  cuda::foreseen_launches = &launches;
  for (const Behind& p : products) {
    const MatmulSegment segment{memory, nullptr, p.n, 0};
    for (int64_t head = 0; head < p.heads; ++head) {
      MatmulArgs m;
      m.segments = &segment;
      m.num_segments = 1;
      m.T = p.T, m.K = kK, m.ldx = p.heads * kK, m.ldo = p.heads * p.n;
      m.x = memory + head * kK;
      m.out = memory + p.heads * p.T * kK + head * p.n;
      CHECK(
          held.launch(*cuda::find_device_kernel(KernelFamily::kMatmul, p.format), &m, nullptr, nullptr).ok());
    }
  }
  CHECK(held.release().ok());
  cuda::foreseen_launches = nullptr;
  return launches;
}

}  // namespace

TEST_CASE("cuda order: products of several formats are a launch, but for many tiles without tensor cores") {
  constexpr int64_t kMost = cuda::kTileOutputs * cuda::kMixedBlocks * cuda::kMultiprocessors;
  const auto one = [](const std::vector<Behind>& products, unsigned warps) {
    const std::vector<cuda::LaunchShape> got = launches_of(products);
    REQUIRE(got.size() == 1);
    CHECK(got[0].block.x == warps * 32);
    CHECK(got[0].shared <= 64 << 10);
  };
  one({{"q4_k", 1, 2 * kMost}, {"q6_k", 1, 2 * kMost}, {"bf16", 31, 2 * kMost}}, 8);
  one({{"mxfp4", 1, 16}, {"i8_channel", 1, 16}}, 8);
  one({{"iq4_nl", 1, 2 * kMost}, {"iq4_nl", 1, 2 * kMost}}, 4);
  for (const auto& [n, T] :
       {std::pair<int64_t, int64_t>{kMost, 1}, {kMost, 8}, {kMost / 2, 9}, {kMost / 4, 31}}) {
    one({{"iq4_nl", T, n}, {"bf16", T, 64}}, 4);
    one({{"bf16", T, 2 * kMost}, {"iq4_nl", T, n}, {"q4_k", T, 2 * kMost}}, 4);
    CHECK(launches_of({{"iq4_nl", T, n + 1}, {"bf16", T, 64}}).size() == 2);
    CHECK(launches_of({{"bf16", T, 64}, {"iq4_nl", T, n + 1}}).size() == 2);
  }
  // Together with its like it stays by itself.
  CHECK(launches_of({{"iq4_nl", 1, kMost + 1}, {"iq4_nl", 1, 64}, {"bf16", 1, 64}}).size() == 2);
  CHECK(launches_of({{"bf16", 1, 64}, {"iq4_nl", 1, 64}, {"iq4_nl", 1, kMost + 1}}).size() == 2);
  // Of heads all count, and there is a tile a warp with tensor cores alone.
  CHECK(launches_of({{"bf16", 1, 64}, {"f16", 1, kMost / 4, 4}, {"bf16", 1, 64}}).size() == 1);
  CHECK(launches_of({{"bf16", 1, 64}, {"f16", 1, kMost / 4, 5}, {"bf16", 1, 64}}).size() == 3);
}

// Behind attention, and in front of the next layer's: as files have them whose values and second layers keep
// more bits (Q4_K_M and its kin).
TEST_CASE("cuda order: products between two layers' attention are a launch for an 8B model's sizes") {
  struct Formats {
    const char *most, *values, *down;
  };
  for (const Formats& f : {Formats{"q4_k", "q6_k", "q6_k"},
                           {"q5_k", "q6_k", "q6_k"},
                           {"q3_k", "q5_k", "q4_k"},
                           {"q2_k", "q3_k", "q3_k"},
                           {"q4_1", "q5_0", "q5_1"}}) {
    INFO(f.most << ", values " << f.values << ", second layers " << f.down);
    CHECK(launches_of({{f.most, 1, kHidden},
                       {f.most, 1, 2 * kInner},
                       {f.down, 1, kHidden},
                       {f.most, 1, kHidden + 1024},
                       {f.values, 1, 1024}})
              .size() == 1);
  }
}

TEST_CASE("cuda order: kernels come to tiles in this order") {
  // Of a device with fewer multiprocessors, an L2 that holds rows of x and what blocks side by side look at.
  struct Shape {
    const char* format;
    int64_t T, n, K;
    int registers, multiprocessors;
    double l2_bytes;
  };
  for (const Shape& s : {Shape{"bf16", 256, 2048, 256, 200, 8, 768 << 10},
                         {"i4_g128", 24, 1024, 1024, 176, 1, 384 << 10},
                         {"bf16", 24, 1024, 1024, 128, 1, 512 << 10}}) {
    INFO(s.format << ", " << s.T << " rows");
    const Traffic t{s.format, s.T, s.n, s.K};
    DeviceCopy<char> w(
        std::vector<char>(static_cast<size_t>(t.weight() * static_cast<double>(s.n * s.K)), '\1'));
    DeviceArray x = ones(s.T * s.K), out(nothing_yet(s.T * s.n));
    const MatmulSegment segment{w.data(), nullptr, s.n, 0};
    const MatmulArgs m = product_of(x, segment, s.T, s.K, out);
    line({.name = "product",
          .registers = s.registers,
          .bytes = t.needed(),
          .part = s.l2_bytes / (40 << 20),
          .multiprocessors = s.multiprocessors},
         [&] { launch_on_device(KernelFamily::kMatmul, s.format, &m); });
  }
  constexpr int64_t kT = 512, kN = 1024, kK = 128;  // four tiles of rows, all at a time
  DeviceCopy<uint16_t> w(std::vector<uint16_t>(kN * kK, uint16_t{0x3f80}));
  DeviceArray x = ones(kT * kK), out(nothing_yet(kT * kN));
  const MatmulSegment segment{w.data(), nullptr, kN, 0};
  const MatmulArgs m = product_of(x, segment, kT, kK, out);
  DeviceCopy<char> scratch(std::vector<char>(cuda::WarpGroupProducts::scratch(m), '\0'));
  line({.name = "wgmma_product",
        .registers = 96,
        .bytes = 2. * kN * kK + kFloat * kT * (kN + kK) + 2. * 2 * kT * kK,
        .part = 512. / (40 << 10),
        .multiprocessors = 4},
       [&] { REQUIRE(cuda::WarpGroupProducts::run(m, scratch.data(), nullptr).ok()); });
}

namespace {

// As if L2 held no more than so many bytes of rows.
class RowsInL2 {
 public:
  explicit RowsInL2(int64_t bytes) { cuda::rows_in_l2 = bytes; }
  ~RowsInL2() { cuda::rows_in_l2 = cuda::kRowsInL2; }
  RowsInL2(const RowsInL2&) = delete;
  RowsInL2& operator=(const RowsInL2&) = delete;
};

// Rows of n outputs in `format`, as its kernels read them.
DeviceCopy<char> weight_of(const char* format, int64_t n, int64_t K, uint32_t seed) {
  const Guarded<char> rows =
      encode(random_values(static_cast<size_t>(n * K), Values::kNormal, seed), K, *Format::find(format));
  std::vector<char> bytes(rows.begin(), rows.end());
  if (const uint64_t packed = cuda::packed_bytes(format, n, K); packed > 0) {
    bytes.resize(packed);
    cuda::pack_weight(format, n, K, bytes.data(), rows.data());
  }
  return DeviceCopy<char>(bytes);
}

// Of K = 128, by our own kernels; a chain of two where `chained`.
struct Banded {
  const char* format;
  int64_t T, n;
  bool gated = false, chained = false;
  std::vector<int32_t> experts = {};
  static constexpr int64_t kK = 128;

  bool many() const { return T > cuda::kFewRows && experts.empty() && std::string_view(format) != "f32"; }
  int64_t tile_bytes() const {
    return (many() ? cuda::kManyRows : cuda::kTileRows) * kK * static_cast<int64_t>(sizeof(float)) *
           (gated ? 2 : 1);
  }
  std::vector<int32_t> starts() const {
    std::vector<int32_t> start{0};
    for (const int32_t rows : experts) start.push_back(start.back() + rows);
    return start;
  }
  // As the launch has it.
  cuda::Product laid() const {
    static const float gate = 0;
    static std::vector<int32_t> start;
    start = starts();
    cuda::Product p{};
    p.T = T, p.K = kK;
    p.gate = gated ? &gate : nullptr;
    p.start = experts.empty() ? nullptr : start.data();
    p.experts = static_cast<int>(experts.size());
    p.per = 1;
    p.count = experts.empty() ? 1 : p.experts;
    p.weights[0].n = n;
    (void)cuda::lay_tiles(p, many() ? cuda::kManyOutputs : cuda::kTileOutputs,
                          many() ? cuda::kManyRows : cuda::kTileRows);
    return p;
  }
  std::vector<float> run() const {
    std::vector<std::unique_ptr<DeviceCopy<char>>> w;
    std::vector<MatmulSegment> segments;
    for (size_t e = 0; e < std::max<size_t>(experts.size(), 1); ++e) {
      w.emplace_back(new DeviceCopy<char>(weight_of(format, n, kK, static_cast<uint32_t>(e + 3))));
      segments.push_back({w.back()->data(), nullptr, n, 0});
    }
    DeviceArray x(random_values(static_cast<size_t>(T * kK), Values::kNormal, 1)),
        gate(random_values(static_cast<size_t>(T * kK), Values::kNormal, 2)),
        out(nothing_yet((chained ? 2 : 1) * T * n));
    if (!experts.empty()) {
      DeviceCopy<int32_t> start(starts());
      GroupedMatmulArgs a;
      a.x = x.data(), a.out = out.data();
      a.expert_start = start.data();
      a.segments = segments.data();
      a.segments_per_expert = 1;
      a.experts = static_cast<int64_t>(experts.size());
      a.P = T, a.K = a.ldx = kK, a.ldo = n;
      a.format = *Format::find(format);
      launch_on_device(KernelFamily::kGroupedMatmul, format, &a);
      return out.host();
    }
    GatedMatmulArgs a;
    a.matmul = product_of(x, segments[0], T, kK, out);
    a.matmul.format = *Format::find(format);
    a.gate = gate.data(), a.ld_gate = kK;
    if (!chained) {
      launch_on_device(gated ? KernelFamily::kGatedMatmul : KernelFamily::kMatmul, format,
                       gated ? static_cast<const void*>(&a) : &a.matmul);
      return out.host();
    }
    const NextOrder order;
    const uint64_t launches = emulation::counters().launches;
    cuda::HeldLaunches held;
    for (int k = 0; k < 2; ++k) {
      const cuda::DeviceKernel& kernel = *cuda::find_device_kernel(KernelFamily::kMatmul, format);
      REQUIRE(held.launch(kernel, &a.matmul, nullptr, nullptr).ok());
      a.matmul.out += T * n;
    }
    REQUIRE(held.release().ok());
    CHECK(emulation::counters().launches == launches + 1);
    return out.host();
  }
};

}  // namespace

// Rows that come in bands of two tiles, and tile by tile.
TEST_CASE("cuda order: rows that come in several bands have the bits of one") {
  constexpr int64_t kWide = cuda::kTileOutputs * cuda::kMultiprocessors;  // so that bands of two pay
  std::vector<Banded> cases = {{"bf16", 200, 300}, {"i4_g128", 200, 300}, {"bf16", 24, 60, false, true}};
  for (const char* format : {"bf16", "i4_g128", "f32"}) {
    cases.push_back({format, 24, kWide});
    cases.push_back({format, 24, 60, true});
  }
  cases.push_back({"bf16", 34, kWide, false, false, {5, 0, 20, 9}});
  cases.push_back({"f32", 34, 60, false, false, {5, 0, 20, 9}});
  for (const Banded& b : cases) {
    INFO(b.format << ", " << b.T << " rows, " << b.n << " outputs, gate " << b.gated << ", chain "
                  << b.chained << ", experts " << b.experts.size());
    CHECK(b.laid().band == b.laid().down);
    const std::vector<float> want = b.run();
    CHECK(std::ranges::none_of(want, [](float v) { return std::isnan(v); }));
    const RowsInL2 less(2 * b.tile_bytes());
    CHECK(b.laid().band == (b.n == kWide ? 2 : 1));
    CHECK(b.laid().streams);
    CHECK(same_bits(b.run(), want));
  }
}

TEST_CASE("cuda order: rows of a prompt that warp groups have in several bands have the bits of one") {
  constexpr int64_t kT = 1100, kN = 130, kK = 128;
  for (const char* format : {"bf16", "e4m3_g128"}) {
    INFO(format);
    const bool bf16 = std::string_view(format) == "bf16";
    DeviceCopy<char> w(weight_of(format, kN, kK, 3));
    DeviceArray x(random_values(kT * kK, Values::kNormal, 1));
    const MatmulSegment segment{w.data(), nullptr, kN, 0};
    const auto run = [&](uint32_t band) {
      DeviceArray out(nothing_yet(kT * kN));
      const MatmulArgs m = product_of(x, segment, kT, kK, out);
      CHECK(cuda::warp_group_product(m, segment, bf16 ? 2 : 1).band == band);
      cuda::WarpGroupCodes codes(format);
      DeviceCopy<char> scratch(
          std::vector<char>(bf16 ? cuda::WarpGroupProducts::scratch(m) : codes.scratch(m), '\0'));
      const NextOrder order;
      REQUIRE((bf16 ? cuda::WarpGroupProducts::run(m, scratch.data(), nullptr).ok()
                    : codes.run(m, scratch.data(), nullptr).ok()));
      return out.host();
    };
    const std::vector<float> want = run(9);
    CHECK(std::ranges::none_of(want, [](float v) { return std::isnan(v); }));
    const RowsInL2 less(1 << 10);  // eight tiles of rows are the fewest
    CHECK(same_bits(run(5), want));
  }
}

TEST_CASE("cuda order: results behind rows that fill L2") {
  // A tile of rows this long takes half of what is meant for rows, so the result is streamed.
  constexpr int64_t kLong = cuda::kRowsInL2 / 2 / (cuda::kTileRows * 4);
  DeviceArray x = ones(kLong), residual = ones(1), out(nothing_yet(1));
  DeviceCopy<uint16_t> w(std::vector<uint16_t>(kLong, uint16_t{0x3f80}));
  const MatmulSegment segment{w.data(), nullptr, 1, 0};
  MatmulArgs m = product_of(x, segment, 1, kLong, out);
  m.residual = residual.data();
  launch_on_device(KernelFamily::kMatmul, "bf16", &m);
  CHECK(out.host()[0] == static_cast<float>(kLong + 1));
}

TEST_CASE("cuda order: what is streamed leaves L2 before what is read again") {
  constexpr int kCount = 16384;
  constexpr uint64_t kBytes = sizeof(float);
  DeviceValues<float> in(512 + kCount), out(64 + kCount);
  std::fill_n(in.data(), in.size(), 1.f);
  for (const bool streamed : {false, true}) {
    emulation::counters() = {};
    emulation::options().registers = 32;
    emulation::options().l2_bytes = 8 << 10;
    emulation::run_grid(1, 64, 0, [&] { sums_behind_a_stream(out.data(), in.data(), kCount, streamed); });
    emulation::options() = {};
    CHECK(emulation::take_error() == "");
    CHECK(out[63] == 16);
    CHECK(out[64 + kCount - 1] == 1);
    CHECK(emulation::counters().memory_read == kBytes * (kCount + (streamed ? 512 : 1024)));
    CHECK(emulation::counters().memory_written == kBytes * (kCount + 64));
  }
}

TEST_CASE("cuda order: boxes that are streamed leave L2 before those that are read again") {
  constexpr uint64_t kBoxes = 42, kRows = 16, kBytes = 256;
  DeviceValues<uint32_t> in((kBoxes - 1) * kBytes / 4), out(kBytes / 4);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32_t>(i);
  cuda::TensorMap map{};
  REQUIRE(cuda::make_tensor_map(map, {.base = in.data(),
                                      .element_bytes = 1,
                                      .size = {16, (kBoxes - 1) * kRows, 1},
                                      .stride = {16, 0},
                                      .box = {16, kRows, 1}})
              .ok());
  for (const bool streamed : {false, true}) {
    emulation::counters() = {};
    emulation::options().registers = 32;
    emulation::options().l2_bytes = 8 << 10;
    emulation::run_grid(1, kBoxThreads, 4 << 10, [&] {
      sums_boxes(out.data(), map, static_cast<int>(kBoxes), true, streamed, BoxFault::kNone);
    });
    emulation::options() = {};
    CHECK(emulation::take_error() == "");
    CHECK(out[1] == kBoxes + (kBoxes - 1) * (kBoxes - 2) / 2 * (kBytes / 4));
    CHECK(emulation::counters().memory_read == kBytes * (kBoxes - (streamed ? 1 : 0)));
  }
}
