// What the last block of a launch does beside its own work, on the emulated device: the same bits whichever
// block comes last, in one launch, and again when the launch is replayed.
#include "kernels/attention.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/kv_quant.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;
namespace emulation = oar::cuda::emulation;

namespace {

// Results of `run` in each order, each with one launch: all the same.
template <class Run>
void check_in_every_order(const Run& run) {
  const std::vector<float> once = run();
  REQUIRE(!once.empty());
  in_every_order([&] {
    emulation::counters() = {};
    CHECK(run() == once);
    CHECK(emulation::counters().launches == 1);
  });
}

// A row for each context, of a cache whose pages hold random values.
std::vector<float> attend(const char* format, const char* codes, int32_t D,
                          const std::vector<int32_t>& contexts) {
  constexpr int64_t kHeads = 6, kKvHeads = 2, kPageTokens = 16, kBlocks = 48;
  const auto T = static_cast<int64_t>(contexts.size());
  std::vector<int32_t> start, table, none(static_cast<size_t>(T * kBlocks), -1);
  for (int32_t t = 0; t <= T; ++t) start.push_back(t);
  for (int64_t t = 0; t < T; ++t)
    for (int32_t b = 0; b < kBlocks; ++b) table.push_back(b);
  const bool quantized = codes[0] != '\0';
  // Bytes 0x3c and around: small numbers in every format.
  std::vector<char> bytes(static_cast<size_t>(kBlocks * kPageTokens * kKvHeads * 2 * D * 4));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0x38 + (i * 7 + i / 11) % 5);
  DeviceCopy<char> pool(bytes);
  DeviceArray q(random_values(static_cast<size_t>(T * kHeads * D), Values::kNormal, 1)),
      out(nothing_yet(T * kHeads * D));
  DeviceCopy<int32_t> starts(start), context(contexts), tables(table), nothing(none);
  PagedAttentionArgs a;
  a.out = out.data();
  a.q = q.data();
  a.pool = pool.data();
  a.block_tables = tables.data();
  a.seq_start = starts.data();
  a.context_len = context.data();
  a.T = a.B = T;
  a.H = kHeads;
  a.ldq = a.ldo = kHeads * D;
  a.max_blocks = kBlocks;
  a.scale = 0.125f;
  const DType type = format[0] == 'b' ? DType::kBF16 : format[1] == '1' ? DType::kF16 : DType::kF32;
  a.shape = {type, kPageTokens, kKvHeads, D};
  if (!quantized) {
    launch_on_device(KernelFamily::kPagedAttention, format, &a);
    return out.host();
  }
  QuantPagedAttentionArgs of_codes;
  of_codes.common = a;
  of_codes.open = pool.data();
  of_codes.sinks = pool.data();
  of_codes.open_tables = tables.data();
  of_codes.sink_tables = tables.data();
  of_codes.open_max_blocks = of_codes.sink_max_blocks = kBlocks;
  of_codes.shape = {KvCode::kInt8, KvCode::kInt8, kPageTokens, kKvHeads, D};
  launch_on_device(KernelFamily::kQuantPagedAttention, format, &of_codes, codes, codes);
  return out.host();
}

}  // namespace

TEST_CASE("cuda emulated: spans of attention are put together by whichever block comes last") {
  for (const int32_t D : {64, 24}) {
    for (const char* format : {"bf16", "f16", "f32"}) {
      INFO(format << " D " << D);
      check_in_every_order([&] { return attend(format, "", D, {700, 3, 256, 257}); });
    }
  }
  check_in_every_order([] { return attend("bf16", "int8", 64, {700, 3, 256, 257}); });
}

TEST_CASE("cuda emulated: rows of a product are normed by whichever block comes last") {
  constexpr int64_t T = 20, K = 1088, n = 72;
  DeviceArray x(random_values(T * K, Values::kNormal, 1)), norm_w(random_values(n, Values::kNormal, 3));
  DeviceCopy<uint16_t> w(std::vector<uint16_t>(n * K, 0x3c11));
  const MatmulSegment segment{w.data(), nullptr, n, 0};
  check_in_every_order([&] {
    DeviceArray out(nothing_yet(T * n)), normed(nothing_yet(T * n));
    const MatmulArgs m = product_of(x, segment, T, K, out);
    const RmsNormArgs r = rms_norm_of(out, norm_w, T, n, normed);
    cuda::HeldLaunches launches;
    REQUIRE(
        launches.launch(*cuda::find_device_kernel(KernelFamily::kMatmul, "bf16"), &m, nullptr, nullptr).ok());
    REQUIRE(
        launches.launch(*cuda::find_device_kernel(KernelFamily::kRmsNorm, "f32"), &r, nullptr, nullptr).ok());
    return normed.host();
  });
}
