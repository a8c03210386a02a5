// What cost.h says a launch takes, against what the traced emulated device counts at shapes of an 8B model:
// bytes that a modelled L2 does not have are at most 1.05 of the roofline's (decode attention 1.2), products
// of tensor cores are as many as it says. A kernel that reads its weights again fails. Where a part of the
// outputs or sequences stands for all, of the L2's 40 MB only that part is there.
#include "kernels/cuda/cost.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/kv_quant.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/state_scan.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/faulty_kernels.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;
namespace emulation = oar::cuda::emulation;

namespace {

struct Counted {
  cuda::KernelCost cost;
  emulation::Counters counters;
  double memory() const {
    return static_cast<double>(counters.memory_read + counters.memory_written) / cost.bytes;
  }
};

// Registers of a thread: as kernels_test.py allows them.
Counted count(KernelFamily family, const char* format, const void* args, int registers, double part,
              int64_t context = 0, const char* codes = "") {
  Counted out;
  const cuda::DeviceKernel* kernel = cuda::find_device_kernel(family, format, codes, codes);
  REQUIRE(kernel != nullptr);
  emulation::counters() = {};
  REQUIRE(cuda::cost_of(*kernel, args, context, &out.cost));
  CHECK(emulation::counters().launches == 0);
  emulation::options().registers = registers;
  emulation::options().l2_bytes = static_cast<size_t>(part * (40 << 20));
  launch_on_device(family, format, args, codes, codes);
  emulation::options() = {};
  out.counters = emulation::counters();
  REQUIRE(out.counters.memory_read > 0);  // traced
  CHECK(static_cast<int64_t>(out.counters.launches) == out.cost.launches);
  CHECK(out.cost.seconds > 0);
  return out;
}

void check(const char* name, const Counted& c, double most = 1.05) {
  INFO(name << ": bytes from memory per roofline " << c.memory() << "; " << c.counters.memory_read
            << " read, " << c.counters.memory_written << " written, roofline " << c.cost.bytes);
  CHECK(c.memory() <= most);
  CHECK(c.memory() >= 0.95);
}

// out (T, n) = x (T, K) times weights of n rows.
Counted count_product(const char* format, int64_t T, int64_t n, int64_t K, int registers) {
  const auto known = Format::find(format);
  REQUIRE(known.has_value());
  const uint64_t packed = cuda::packed_bytes(format, n, K);
  const uint64_t bytes = packed > 0 ? packed : static_cast<uint64_t>(n * known->stride(K));
  DeviceCopy<char> w(std::vector<char>(bytes, '\1'));
  DeviceArray x(std::vector<float>(static_cast<size_t>(T * K), 1.f)), out(nothing_yet(T * n));
  const MatmulSegment segment{w.data(), nullptr, n, 0};
  MatmulArgs m = product_of(x, segment, T, K, out);
  m.format = *known;
  return count(KernelFamily::kMatmul, format, &m, registers, static_cast<double>(n) / 14336);
}

// Decode attention of B sequences, 4 heads to a key head of 128 dims, as an 8B model has them.
Counted count_attention(int64_t B, int64_t context) {
  constexpr int64_t kPage = 64, kHeads = 8, kKv = 2, kD = 128;
  const int64_t pages = context / kPage;
  DeviceCopy<uint16_t> pool(
      std::vector<uint16_t>(static_cast<size_t>(B * pages * kPage * 2 * kKv * kD), uint16_t{0x3c00}));
  DeviceArray q(std::vector<float>(static_cast<size_t>(B * kHeads * kD), 0.1f)),
      out(nothing_yet(B * kHeads * kD));
  std::vector<int32_t> table, starts, contexts;
  for (int64_t i = 0; i < B * pages; ++i) table.push_back(static_cast<int32_t>(B * pages - 1 - i));
  for (int64_t b = 0; b <= B; ++b) starts.push_back(static_cast<int32_t>(b));
  contexts.assign(static_cast<size_t>(B), static_cast<int32_t>(context));
  DeviceCopy<int32_t> tables(table), start(starts), length(contexts);
  PagedAttentionArgs a;
  a.out = out.data();
  a.q = q.data();
  a.pool = pool.data();
  a.block_tables = tables.data();
  a.seq_start = start.data();
  a.context_len = length.data();
  a.T = a.B = B;
  a.H = kHeads;
  a.ldq = a.ldo = kHeads * kD;
  a.max_blocks = pages;
  a.shape = {DType::kBF16, kPage, kKv, kD};
  a.scale = 0.1f;
  Counted c = count(KernelFamily::kPagedAttention, "bf16", &a, 168, 1. / 16, context);
  constexpr double kOfMma = 2.0 * 16 * 8 * 16;
  CHECK(static_cast<double>(c.counters.mma) * kOfMma == c.cost.tensor_operations);
  return c;
}

}  // namespace

TEST_CASE("cuda cost: blocks that fit on a multiprocessor") {
  CHECK(cuda::blocks_of_multiprocessor(256, 0, 32) == 8);          // of 2,048 threads
  CHECK(cuda::blocks_of_multiprocessor(256, 0, 128) == 2);         // of 65,536 registers
  CHECK(cuda::blocks_of_multiprocessor(256, 0, 129) == 1);         // in steps of 8 a thread
  CHECK(cuda::blocks_of_multiprocessor(128, 100 << 10, 32) == 2);  // of 228 KB, 1 KB a block
  CHECK(cuda::blocks_of_multiprocessor(32, 0, 8) == 32);
  CHECK(cuda::blocks_of_multiprocessor(1024, 0, 72) == 0);
}

TEST_CASE("cuda cost: products read weights once from memory") {
  constexpr int64_t n = 256;
  for (const char* format : {"bf16", "i4_g128", "q8_0"}) {
    for (const int64_t T : {1, 64}) {
      INFO(format << ", " << T << " rows");
      const Counted c = count_product(format, T, n, 4096, T < 32 ? 168 : 248);
      check("product", c);
      constexpr double kOfMma = 2.0 * 16 * 8 * 16;
      CHECK(static_cast<double>(c.counters.mma) * kOfMma == c.cost.tensor_operations);
      CHECK(static_cast<double>(c.counters.load_sectors * 32) <= 1.05 * c.cost.l2_bytes);
      CHECK(static_cast<double>(c.counters.load_sectors * 32) >= 0.95 * c.cost.l2_bytes);
    }
  }
}

TEST_CASE("cuda cost: products of formats without tensor cores") {
  const Counted c = count_product("iq4_xs", 1, 256, 1024, 64);
  check("product of iq4_xs", c);
  CHECK(c.counters.mma == 0);
  CHECK(c.cost.tensor_operations == 0);
  CHECK(c.cost.operations > 0);
}

TEST_CASE("cuda cost: decode attention reads keys and values once from memory") {
  check("attention of one", count_attention(1, 2048), 1.2);
  check("attention of many", count_attention(8, 512), 1.2);
}

TEST_CASE("cuda cost: rows of a prompt over codes read pages once for a tile") {
  constexpr int64_t kPage = 64, kPages = 16, kRows = 64, kHeads = 4, kD = 128;
  QuantPagedAttentionArgs a;
  a.shape = {KvCode::kInt8, KvCode::kInt8, kPage, 1, kD};
  const QuantKvLayout layout(a.shape);
  DeviceCopy<char> pool(std::vector<char>(static_cast<size_t>(kPages * layout.block_bytes), '\1'));
  DeviceCopy<uint16_t> open(std::vector<uint16_t>(kPage * 2 * kD, uint16_t{0x3f80}));
  DeviceArray q(std::vector<float>(kRows * kHeads * kD, 0.1f)), out(nothing_yet(kRows * kHeads * kD));
  std::vector<int32_t> places;
  for (int32_t i = 0; i < kPages; ++i) places.push_back((5 * i + 3) % kPages);
  DeviceCopy<int32_t> table(places), zeros(std::vector<int32_t>(kPages, 0)),
      start(std::vector<int32_t>{0, kRows}), length(std::vector<int32_t>{kPages * kPage});
  a.open = a.sinks = open.data();
  a.open_tables = a.sink_tables = zeros.data();
  a.open_max_blocks = kPages;
  a.sink_max_blocks = 1;
  PagedAttentionArgs& c = a.common;
  c.out = out.data();
  c.q = q.data();
  c.pool = pool.data();
  c.block_tables = table.data();
  c.seq_start = start.data();
  c.context_len = length.data();
  c.T = kRows;
  c.B = 1;
  c.H = kHeads;
  c.ldq = c.ldo = kHeads * kD;
  c.max_blocks = kPages;
  c.shape = open_kv_shape(a.shape);
  const Counted n =
      count(KernelFamily::kQuantPagedAttention, "bf16", &a, 255, 1. / 32, kPages * kPage, "int8");
  // The rows' own page, which each tile reads in part, is in 16 bits; cost.h takes codes for all of it.
  check("rows of a prompt", n);
  const double queries = 4. * kRows * kHeads * kD, read = static_cast<double>(n.counters.load_sectors * 32);
  CHECK(read - queries == Approx(n.cost.l2_bytes).epsilon(0.2));
  constexpr double kOfMma = 2.0 * 16 * 8 * 16;
  CHECK(static_cast<double>(n.counters.mma) * kOfMma == Approx(n.cost.tensor_operations).epsilon(0.05));
}

TEST_CASE("cuda cost: norms, rotations and gates") {
  constexpr int64_t kRows = 64, kCols = 4096;
  DeviceArray a(nothing_yet(kRows * kCols)), b(std::vector<float>(kRows * kCols, 1.f)),
      c(std::vector<float>(kRows * kCols, 1.f));
  const RmsNormArgs n = rms_norm_of(b, c, kRows, kCols, a);
  check("rms_norm", count(KernelFamily::kRmsNorm, "f32", &n, 40, 0.05));
  const SwiGluArgs g = swiglu_of(b, c, kRows, kCols, a);
  check("swiglu", count(KernelFamily::kSwiGlu, "f32", &g, 40, 0.05));
  DeviceCopy<int32_t> positions(std::vector<int32_t>(kRows, 5));
  DeviceArray frequencies(std::vector<float>(64, 0.5f));
  const RopeArgs p = rope_of(b, positions, frequencies, kRows, kCols, a);
  check("rope", count(KernelFamily::kRope, "f32", &p, 48, 0.05));
}

TEST_CASE("cuda cost: calls that become part of a launch before them add none") {
  constexpr int64_t kRows = 4, kCols = 256;
  DeviceArray a(nothing_yet(kRows * kCols)), b(nothing_yet(kRows * kCols)), c(nothing_yet(kRows * kCols));
  const MatmulSegment segment{c.data(), nullptr, kCols, 0};
  const MatmulArgs product = product_of(a, segment, kRows, kCols, b);
  const RmsNormArgs norm = rms_norm_of(b, c, kRows, kCols, a), other = rms_norm_of(b, c, kRows - 1, kCols, a);
  DeviceCopy<int32_t> slots(std::vector<int32_t>(kRows, 1));
  DeviceArray frequencies(std::vector<float>(64, 0.5f));
  const RopeArgs rope = rope_of(a, slots, frequencies, kRows, kCols, b);
  KvAppendArgs append;
  append.pool = c.data();
  append.k = b.data();
  append.v = c.data();
  append.slots = slots.data();
  append.T = kRows;
  append.ldk = append.ldv = kCols;
  append.shape = {DType::kBF16, 16, 2, 128};
  cuda::HeldLaunches before;
  const auto launches = [&](KernelFamily family, const char* format, const auto& args) {
    const cuda::DeviceKernel* kernel = cuda::find_device_kernel(family, format);
    cuda::KernelCost alone, cost;
    REQUIRE(cuda::cost_of(*kernel, &args, 0, &alone));
    CHECK(alone.launches == 1);
    REQUIRE(cuda::cost_of(*kernel, &args, 0, &cost, &before));
    CHECK(alone.seconds - cost.seconds ==
          Approx(cuda::AssumedDevice().launch * static_cast<double>(1 - cost.launches)));
    return cost.launches;
  };
  for (int times = 0; times < 2; ++times) {
    CHECK(launches(KernelFamily::kMatmul, "f32", product) == 1);
    CHECK(launches(KernelFamily::kRmsNorm, "f32", norm) == 0);
    CHECK(launches(KernelFamily::kMatmul, "f32", product) == 0);
    CHECK(launches(KernelFamily::kRmsNorm, "f32", other) == 1);
    CHECK(launches(KernelFamily::kRope, "f32", rope) == 1);
    CHECK(launches(KernelFamily::kKvAppend, "bf16", append) == 0);
  }
}

// Sums of sizes, without a launch: what the counters' lines (kernel_counters_test.cc) have no shape of.
TEST_CASE("cuda cost: what queries see, and steps that continue a state") {
  const auto cost = [](KernelFamily family, const auto& args, int64_t context = 0) {
    const cuda::DeviceKernel* kernel = cuda::find_device_kernel(family, "f32");
    REQUIRE(kernel != nullptr);
    cuda::KernelCost c;
    REQUIRE(cuda::cost_of(*kernel, &args, context, &c));
    CHECK(c.seconds > 0);
    return c;
  };
  constexpr int64_t kB = 2, kH = 4, kK = 2, kS = 5, kL = 9, kD = 8, kDV = 16;
  DenseAttentionArgs d;
  d.B = kB, d.H = kH, d.K = kK, d.S = kS, d.L = kL, d.D = kD, d.DV = kDV;
  d.k_steps = {kK * kL * kD, kL * kD, kD};
  d.v_steps = {kK * kL * kDV, kL * kDV, kDV};
  CHECK(cost(KernelFamily::kDenseAttention, d).operations == 2. * kB * kH * kS * kL * (kD + kDV));
  CHECK(cost(KernelFamily::kDenseAttention, d).bytes ==
        4. * (kB * kH * kS * (kD + kDV) + kB * kK * kL * (kD + kDV)));
  d.causal = 1;  // 1 + 2 + 3 + 4 + 5 keys, of 5
  CHECK(cost(KernelFamily::kDenseAttention, d).operations == 2. * kB * kH * 15 * (kD + kDV));
  CHECK(cost(KernelFamily::kDenseAttention, d).bytes ==
        4. * (kB * kH * kS * (kD + kDV) + kB * kK * kS * (kD + kDV)));
  d.v_steps.batch = 0;  // one for all entries
  CHECK(cost(KernelFamily::kDenseAttention, d).bytes ==
        4. * (kB * kH * kS * (kD + kDV) + kK * kS * (kB * kD + kDV)));
  SegmentAttentionArgs s;
  s.T = 60, s.H = kH, s.K = kK, s.D = kD;
  CHECK(cost(KernelFamily::kSegmentAttention, s).operations == 2. * 60 * kH * 60 * 2 * kD);
  CHECK(cost(KernelFamily::kSegmentAttention, s, 20).operations == 2. * 60 * kH * 20 * 2 * kD);
  s.window = 4;
  CHECK(cost(KernelFamily::kSegmentAttention, s, 20).operations == 2. * 60 * kH * 7 * 2 * kD);

  // Two sequences of one token each behind 9, in chunks of 4: a border each, one open row, a row that is
  // kept.
  float memory = 0;
  StateScanArgs scan;
  scan.shape = {1, 2, 8, 16};
  const double matrix = 2 * 8 * 16, row = 8 + 2 * 17, token = 2 * 8 + 2 * 32 + 4;
  scan.T = scan.state.T = scan.state.B = 2;
  scan.state.page_tokens = 4;
  scan.state.borders = &memory;
  CHECK(cost(KernelFamily::kStateScan, scan, 10).bytes == 4. * 2 * (token + matrix + 2 * row));
  CHECK(cost(KernelFamily::kStateScan, scan, 10).operations == 2 * matrix * (7 + 3));
  scan.delta = 0;
  CHECK(cost(KernelFamily::kStateScan, scan, 10).operations == 2 * matrix * (5 + 3));
  // Behind 11 tokens a chunk fills: its border is written.
  CHECK(cost(KernelFamily::kStateScan, scan, 12).bytes == 4. * 2 * (token + 2 * matrix + 4 * row));
  scan.state.borders = nullptr;
  CHECK(cost(KernelFamily::kStateScan, scan).bytes == 4. * 2 * token);
}

TEST_CASE("cuda cost: a kernel that reads again what has left L2 is found") {
  // 1 MB, each block its part of 2 KB twice or once, beside an L2 of 128 KB.
  constexpr size_t kBytes = size_t{1} << 20, kPart = 2 << 10;
  DeviceValues<float> values(kBytes / sizeof(float)), sums(64 * kBytes / kPart);
  std::fill_n(values.data(), values.size(), 1.f);
  for (const int times : {1, 2}) {
    emulation::counters() = {};
    emulation::options().registers = 32;
    emulation::options().l2_bytes = 128 << 10;
    emulation::run_grid(kBytes / kPart, 64, 0, [&] { sums_part(sums.data(), values.data(), times); });
    emulation::options() = {};
    CHECK(emulation::take_error() == "");
    const double ratio = static_cast<double>(emulation::counters().memory_read) / kBytes;
    INFO("read " << times << " times: " << ratio);
    CHECK((ratio <= 1.05) == (times == 1));
  }
}
