// How well kernels use memory, at shapes of full tiles. Edge tiles and accesses by one thread are no part of
// it: shapes are such that they weigh little.
#include "tests/cuda/counters.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/embedding.h"
#include "kernels/kv_quant.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;
TEST_CASE("cuda counters: elementwise kernels and norms touch each sector once") {
  constexpr int64_t kRows = 4, kCols = 2048;
  constexpr double kPart = kRows / 2048., kAll = kFloat * kRows * kCols;
  DeviceArray a(nothing_yet(kRows * kCols)), b(nothing_yet(kRows * kCols)), c(nothing_yet(kRows * kCols));
  UnaryArgs u;
  u.out = a.data();
  u.x = b.data();
  u.n = kRows * kCols;
  line_of({"unary", 32, 2 * kAll, kPart}, KernelFamily::kUnary, "f32", &u);
  BinaryArgs s;
  s.out = a.data();
  s.a = b.data();
  s.b = c.data();
  s.rows = kRows;
  s.cols = kCols;
  line_of({"binary", 40, 3 * kAll, kPart}, KernelFamily::kBinary, "f32", &s);
  const SwiGluArgs g = swiglu_of(b, c, kRows, kCols, a);
  line_of({"swiglu", 40, 3 * kAll, kPart}, KernelFamily::kSwiGlu, "f32", &g);
  const RmsNormArgs n = rms_norm_of(b, c, kRows, kCols, a);
  line_of({"rms_norm", 40, 2 * kAll + kFloat * kCols, kPart}, KernelFamily::kRmsNorm, "f32", &n);
  LayerNormArgs l;
  l.out = a.data();
  l.x = b.data();
  l.w = l.b = c.data();
  l.rows = kRows;
  l.cols = l.ldx = l.ldo = kCols;
  line({"layer_norm", 40, 2 * kAll + kFloat * kCols, kPart},
       [&] { launch_on_device(KernelFamily::kLayerNorm, "f32", &l); });
  DeviceCopy<int32_t> rows(std::vector<int32_t>{2, 0, 1});
  GatherRowsArgs r;
  r.out = a.data();
  r.x = b.data();
  r.rows = rows.data();
  r.R = 3;
  r.E = kCols;
  line_of({"gather_rows", 24, 2 * kFloat * 3 * kCols, kPart}, KernelFamily::kGatherRows, "f32", &r);
  DeviceCopy<int32_t> positions(std::vector<int32_t>{1, 2, 3, 4});
  DeviceArray frequencies(std::vector<float>(64, 0.5f));
  const RopeArgs p = rope_of(b, positions, frequencies, kRows, kCols, a);
  line_of({"rope", 48, 2 * kAll + kFloat * 64, kPart}, KernelFamily::kRope, "f32", &p);
}

TEST_CASE("cuda counters: products read weights and rows in full sectors, from all banks") {
  constexpr int64_t kOutputs = 64, kK = 4096;
  for (int64_t T : {1, 8}) {
    INFO("T " << T);
    DeviceArray x(std::vector<float>(static_cast<size_t>(T * kK), 1.f)), out(nothing_yet(T * kOutputs));
    DeviceCopy<uint16_t> w(std::vector<uint16_t>(static_cast<size_t>(kOutputs * kK), uint16_t{0x3f80}));
    const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
    const MatmulArgs m = product_of(x, segment, T, kK, out);
    line({"matmul bf16", 128, kOutputs * kK * 2. + kFloat * static_cast<double>(T * (kK + kOutputs)),
          kOutputs / 14336.},
         [&] { launch_on_device(KernelFamily::kMatmul, "bf16", &m); });
    // Bytes of the weights come once, those of x once for each 16 outputs (from L2).
    const emulation::Counters& c = emulation::counters();
    const uint64_t ideal = kOutputs * kK * 2 + static_cast<uint64_t>(T * kK * 4) * (kOutputs / 16);
    CHECK(c.load_sectors * 32 <= ideal + ideal / 100);
  }
}

TEST_CASE("cuda counters: products of many rows read weights once, and rows once for 128 outputs") {
  constexpr int64_t kOutputs = 256, kK = 1024, kRows = 64;
  DeviceArray x(std::vector<float>(kRows * kK, 1.f)), out(nothing_yet(kRows * kOutputs));
  for (const char* format : {"bf16", "q4_0", "i4_g128", "q8_0"}) {
    INFO(format);
    const uint64_t packed = cuda::packed_bytes(format, kOutputs, kK),
                   bytes = packed > 0 ? packed : kOutputs * kK * 2;
    DeviceCopy<char> w(std::vector<char>(bytes, '\1'));
    const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
    const MatmulArgs m = product_of(x, segment, kRows, kK, out);
    line({"matmul of many rows", 248, static_cast<double>(bytes) + kFloat * kRows * (kK + kOutputs),
          kOutputs * kK / (14336. * 4096)},
         [&] { launch_on_device(KernelFamily::kMatmul, format, &m); });
    const uint64_t ideal = bytes + kRows * kK * 4 * (kOutputs / 128);
    CHECK(emulation::counters().load_sectors * 32 <= ideal + ideal / 20);
  }
}

TEST_CASE("cuda counters: products of codes read each packed byte once") {
  constexpr int64_t kOutputs = 64, kK = 4096;
  DeviceArray x(std::vector<float>(kK, 1.f)), out(nothing_yet(kOutputs));
  for (const char* format : {"q4_0", "i4_g64", "i4_g128", "q8_0", "i8_g64", "i8_g128"}) {
    INFO(format);
    DeviceCopy<char> w(std::vector<char>(cuda::packed_bytes(format, kOutputs, kK), '\1'));
    const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
    const MatmulArgs m = product_of(x, segment, 1, kK, out);
    line(
        {"matmul of codes", 176, static_cast<double>(w.size()) + kFloat * (kK + kOutputs), kOutputs / 14336.},
        [&] { launch_on_device(KernelFamily::kMatmul, format, &m); });
    const uint64_t ideal = w.size() + static_cast<uint64_t>(kK * 4) * (kOutputs / 16);
    CHECK(emulation::counters().load_sectors * 32 <= ideal + ideal / 20);
  }
}

TEST_CASE(
    "cuda counters: convolutions gather in full sectors, from all banks, each filter once for 64 pixels") {
  constexpr int64_t kSide = 16, kC = 64, kM = 64, kTaps = 9, kPixels = kSide * kSide;
  constexpr double kPart = kC / 1024.,
                   kAll = 2 * kFloat * kPixels * kC;  // channels of 1,024
  DeviceArray x(std::vector<float>(kPixels * kC, 1.f)), w(std::vector<float>(kM * kTaps * kC, 1.f)),
      out(nothing_yet(kPixels * kM));
  ConvArgs c;
  c.out = out.data();
  c.x = x.data();
  c.w = w.data();
  c.window.N = 1;
  c.window.H = c.window.W = c.window.OH = c.window.OW = kSide;
  c.window.KH = c.window.KW = 3;
  c.window.pad_top = c.window.pad_left = c.window.pad_bottom = c.window.pad_right = 1;
  c.C = c.ldx = kC;
  c.M = c.ldo = kM;
  c.panel = 1;
  line_of({"conv", 104, kAll + kFloat * kM * kTaps * kC, kPart}, KernelFamily::kConv, "f32", &c);
  const uint64_t ideal = (kPixels / 64) * kM * kTaps * kC * 4 + kPixels * kTaps * kC * 4;
  CHECK(emulation::counters().load_sectors * 32 <= ideal + ideal / 20);
  // The same by tensor cores, whose filters are half as large or as large; in tiles of 64 x 64, then of 128 x
  // 128, for which the image is larger and has one tap.
  struct Rounded {
    const char* name;
    int64_t filter_bytes;
  };
  for (const Rounded& r : {Rounded{"bf16", 2}, Rounded{"f16", 2}, Rounded{"tf32", 4}}) {
    line_of({"rounded_conv", 104, kAll + static_cast<double>(r.filter_bytes * kM * kTaps * kC), kPart},
            KernelFamily::kConv, r.name, &c);
    const uint64_t of_type =
        static_cast<uint64_t>(kPixels / 64 * kM * kTaps * kC * r.filter_bytes) + kPixels * kTaps * kC * 4;
    CHECK(emulation::counters().load_sectors * 32 <= of_type + of_type / 20);
    if (r.name[0] == 'f') continue;  // as of bf16
    constexpr int64_t kMany = 132 * 128, kFew = 32, kFilters = 128;
    DeviceArray pixels(std::vector<float>(kMany * kFew, 1.f)), results(nothing_yet(kMany * kFilters));
    ConvArgs m;
    m.out = results.data(), m.x = pixels.data(), m.w = w.data();
    m.window.N = m.window.H = m.window.OH = 1, m.window.W = m.window.OW = kMany;
    m.C = m.ldx = kFew, m.M = m.ldo = kFilters;
    m.panel = 1;
    line_of({"rounded_conv, many", 208,
             kFloat * kMany * (kFew + kFilters) + static_cast<double>(r.filter_bytes * kFilters * kFew), 1},
            KernelFamily::kConv, r.name, &m);
  }
  PoolArgs p;
  p.out = out.data();
  p.x = x.data();
  p.window = c.window;
  p.C = kC;
  line_of({"pool", 48, kAll, kPart}, KernelFamily::kPool, "f32", &p);
  DepthwiseArgs d;
  d.out = out.data();
  d.x = x.data();
  d.w = w.data();
  d.window = c.window;
  d.C = kC;
  line_of({"depthwise", 48, kAll + kFloat * kTaps * kC, kPart}, KernelFamily::kDepthwise, "f32", &d);
}

TEST_CASE("cuda counters: decode attention reads keys and values in full sectors") {
  constexpr int64_t kPages = 8, kPage = 64, kHeads = 4, kD = 128;
  const KvShape shape{DType::kBF16, kPage, 1, kD};
  DeviceCopy<uint16_t> pool(
      std::vector<uint16_t>(static_cast<size_t>(kPages * kPage * 2 * kD), uint16_t{0x3f80}));
  DeviceArray q(std::vector<float>(kHeads * kD, 0.1f)), out(nothing_yet(kHeads * kD));
  DeviceCopy<int32_t> table(std::vector<int32_t>{3, 1, 0, 2, 7, 6, 5, 4}), start(std::vector<int32_t>{0, 1}),
      context(std::vector<int32_t>{kPages * kPage});
  PagedAttentionArgs a;
  a.out = out.data();
  a.q = q.data();
  a.pool = pool.data();
  a.block_tables = table.data();
  a.seq_start = start.data();
  a.context_len = context.data();
  a.T = a.B = 1;
  a.H = kHeads;
  a.ldq = a.ldo = kHeads * kD;
  a.max_blocks = kPages;
  a.shape = shape;
  a.scale = 1.f;
  line({.name = "paged_attention bf16",
        .registers = 168,
        .bytes = kPages * kPage * 2 * kD * 2. + 2 * kFloat * kHeads * kD,
        .part = 1. / 64,
        .memory = 1.2},
       [&] { launch_on_device(KernelFamily::kPagedAttention, "bf16", &a); });
  // Keys and values come once for all heads that share them.
  const emulation::Counters& c = emulation::counters();
  const uint64_t ideal = kPages * kPage * 2 * kD * sizeof(uint16_t);
  CHECK(c.load_sectors * 32 <= ideal + ideal / 5);
}

TEST_CASE("cuda counters: attention reads codes once for all heads that share them, and rows of a prompt") {
  constexpr int64_t kPages = 8, kPage = 64, kHeads = 4, kD = 128;
  for (const auto& [keys, values] : {std::pair{KvCode::kInt8, KvCode::kInt8},
                                     {KvCode::kFp8, KvCode::kFp8},
                                     {KvCode::kInt8, KvCode::kInt4},
                                     {KvCode::kInt4, KvCode::kInt4}}) {
    INFO(kv_code_name(keys) << " " << kv_code_name(values));
    QuantKvShape shape;
    shape.keys = keys;
    shape.values = values;
    shape.page_tokens = kPage;
    shape.kv_heads = 1;
    shape.head_dim = kD;
    const QuantKvLayout layout(shape);
    const auto page = static_cast<size_t>(kPage * 2 * kD);
    DeviceCopy<char> pool(std::vector<char>(static_cast<size_t>(kPages * layout.block_bytes), '\1'));
    DeviceCopy<uint16_t> open(std::vector<uint16_t>(page, uint16_t{0x3f80})),
        sinks(std::vector<uint16_t>(16 * 2 * kD, uint16_t{0x3f80}));
    DeviceArray q(std::vector<float>(kHeads * kD, 0.1f)), out(nothing_yet(kHeads * kD));
    DeviceCopy<int32_t> table(std::vector<int32_t>{3, 1, 0, 2, 7, 6, 5, 4}),
        start(std::vector<int32_t>{0, 1}), context(std::vector<int32_t>{kPages * kPage}),
        opens(std::vector<int32_t>(kPages, 0)), firsts(std::vector<int32_t>{0});
    QuantPagedAttentionArgs a;
    a.shape = shape;
    a.open = open.data();
    a.sinks = sinks.data();
    a.open_tables = opens.data();
    a.sink_tables = firsts.data();
    a.open_max_blocks = kPages;
    a.sink_max_blocks = 1;
    PagedAttentionArgs& c = a.common;
    c.out = out.data();
    c.q = q.data();
    c.pool = pool.data();
    c.block_tables = table.data();
    c.seq_start = start.data();
    c.context_len = context.data();
    c.T = c.B = 1;
    c.H = kHeads;
    c.ldq = c.ldo = kHeads * kD;
    c.max_blocks = kPages;
    c.shape = open_kv_shape(shape);
    c.scale = 1.f;
    // The last page is open; the one it will become is not read.
    const double bytes =
        static_cast<double>((kPages - 1) * layout.block_bytes) + page * 2. + 2 * kFloat * kHeads * kD;
    line({.name = "quant_paged_attention", .registers = 168, .bytes = bytes, .part = 1. / 64, .memory = 1.2},
         [&] {
           launch_on_device(KernelFamily::kQuantPagedAttention, "bf16", &a, kv_code_name(keys),
                            kv_code_name(values));
         });
    const emulation::Counters n = emulation::counters();
    const uint64_t once = static_cast<uint64_t>(kPages * layout.block_bytes) + page * 2 + 16 * 2 * kD * 2;
    CHECK(static_cast<double>(n.load_sectors * 32) <=
          (layout.value_nibbles ? 1.25 : 1.1) * static_cast<double>(once));
    // Rows of a prompt, 16 of four heads a tile, read each byte once for all of them.
    constexpr int32_t kRows = 16;
    DeviceArray queries(std::vector<float>(kRows * kHeads * kD, 0.1f)),
        outs(nothing_yet(kRows * kHeads * kD));
    DeviceCopy<int32_t> starts(std::vector<int32_t>{0, kRows});
    c.q = queries.data();
    c.out = outs.data();
    c.seq_start = starts.data();
    c.T = kRows;
    const double of_rows = bytes + 2 * kFloat * (kRows - 1) * kHeads * kD;
    line({.name = "tile_kernel of codes", .registers = 255, .bytes = of_rows, .part = 1. / 64}, [&] {
      launch_on_device(KernelFamily::kQuantPagedAttention, "bf16", &a, kv_code_name(keys),
                       kv_code_name(values));
    });
    CHECK(static_cast<double>(emulation::counters().load_sectors * 32) <= 1.05 * of_rows);
  }
}
