// What tiles at an edge cost: rows, outputs, columns and positions that fill no tile, one more than whole
// ones. Each line says how many sectors, wavefronts and bytes there are per ideal; what counters_test.cc and
// kernel_counters_test.cc leave out.
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/embedding.h"
#include "kernels/hadamard.h"
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "kernels/resize.h"
#include "kernels/strided_copy.h"
#include "tests/cuda/counters.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {
constexpr double kEdgePart = 1. / 64;

// loads, stores, shared, memory
Line edge(const char* name, int registers, double bytes, double loads, double stores, double shared,
          double memory) {
  return {name, registers, bytes, kEdgePart, loads, stores, shared, memory};
}
}  // namespace

TEST_CASE("cuda counters: edges of products") {
  struct Product {
    const char* format;
    int64_t T, n, K;
    int registers;
    double loads, stores, shared, memory;
  };
  for (const Product& p : {
           Product{"bf16", 1, 65, 4096, 128, 1, 1, 1.1, 1.05},  // an output more than tiles have
           {"bf16", 9, 64, 4096, 128, 1, 1, 1.1, 1.05},         // a row more
           {"bf16", 1, 64, 4097, 128, 9.4, 1, 1.1, 1.05},       // rows that begin anywhere
           {"bf16", 65, 129, 1024, 248, 1, 1.9, 1, 1.05},       // of tiles of many rows
           {"i4_g128", 1, 65, 4096, 176, 1, 1, 1.1, 1.05},
           {"i4_g128", 65, 129, 1024, 248, 1, 1.9, 1, 1.05},
           {"q4_k", 9, 65, 1024, 176, 1, 1.42, 1.1, 1.05},
           {"q4_0", 1, 64, 4128, 64, 1.03, 1, 1.12, 1.05},  // no multiple of 128: decoded
           {"q5_k", 9, 65, 1024, 176, 1, 1.42, 1.1, 1.05},
           {"iq4_xs", 9, 17, 1024, 64, 1, 1.35, 1.1, 1.05},
       }) {
    INFO(p.format << " T " << p.T << " n " << p.n << " K " << p.K);
    const Format its = *Format::find(p.format);
    const uint64_t packed = cuda::packed_bytes(p.format, p.n, p.K);
    DeviceCopy<char> w(
        std::vector<char>(packed > 0 ? packed : static_cast<uint64_t>(p.n * its.stride(p.K)), '\1'));
    DeviceArray x = ones(p.T * p.K), out(nothing_yet(p.T * p.n));
    const MatmulSegment segment{w.data(), nullptr, p.n, 0};
    MatmulArgs m = product_of(x, segment, p.T, p.K, out);
    m.format = its;
    const double bytes = static_cast<double>(w.size()) + kFloat * static_cast<double>(p.T * (p.K + p.n));
    line(edge("product", p.registers, bytes, p.loads, p.stores, p.shared, p.memory),
         [&] { launch_on_device(KernelFamily::kMatmul, p.format, &m); });
  }
}

TEST_CASE("cuda counters: edges of attention") {
  struct Edge {
    const char* kernel;
    int64_t rows, context;
    int registers;
    double loads, stores, shared, memory;
  };
  constexpr int64_t kPage = 64, kHeads = 4, kD = 128;
  for (const Edge& e : {
           Edge{"bf16", 1, 257, 168, 1.01, 1, 1, 1.06},  // a position more than a span
           {"bf16", 17, 257, 240, 1.01, 1, 1, 1.05},     // tiles of 64 pairs, of which 17 rows have 68
           {"f16", 1, 257, 128, 1, 1, 1, 1.06},
       }) {
    INFO(e.kernel << " rows " << e.rows << " context " << e.context);
    const int64_t pages = (e.context + kPage - 1) / kPage;
    DeviceCopy<uint16_t> pool(
        std::vector<uint16_t>(static_cast<size_t>(pages * kPage * 2 * kD), uint16_t{0x3c00}));
    DeviceArray q = ones(e.rows * kHeads * kD), out(nothing_yet(e.rows * kHeads * kD));
    std::vector<int32_t> places;
    for (int64_t i = pages; i-- > 0;) places.push_back(static_cast<int32_t>(i));
    DeviceCopy<int32_t> table(places), start(std::vector<int32_t>{0, static_cast<int32_t>(e.rows)}),
        length(std::vector<int32_t>{static_cast<int32_t>(e.context)});
    PagedAttentionArgs a;
    a.out = out.data();
    a.q = q.data();
    a.pool = pool.data();
    a.block_tables = table.data();
    a.seq_start = start.data();
    a.context_len = length.data();
    a.T = e.rows;
    a.B = 1;
    a.H = kHeads;
    a.ldq = a.ldo = kHeads * kD;
    a.max_blocks = pages;
    a.shape = {e.kernel[0] == 'b' ? DType::kBF16 : DType::kF16, kPage, 1, kD};
    const double bytes =
        2. * 2 * static_cast<double>(e.context * kD) + 2 * kFloat * static_cast<double>(e.rows * kHeads * kD);
    line(edge("attention", e.registers, bytes, e.loads, e.stores, e.shared, e.memory),
         [&] { launch_on_device(KernelFamily::kPagedAttention, e.kernel, &a); });
  }
}

TEST_CASE("cuda counters: edges of rows and images") {
  constexpr int64_t kRows = 5, kCols = 2049;
  constexpr double kAll = kFloat * kRows * kCols;
  DeviceArray a(nothing_yet(kRows * kCols)), b = ones(kRows * kCols), c = ones(kRows * kCols);
  const SwiGluArgs g = swiglu_of(b, c, kRows, kCols, a);
  line_of(edge("swiglu", 40, 3 * kAll, 1.2, 1.2, 1, 1.05), KernelFamily::kSwiGlu, "f32", &g);
  const RmsNormArgs n = rms_norm_of(b, c, kRows, kCols, a);
  line_of(edge("rms_norm", 40, 2 * kAll + kFloat * kCols, 4.1, 4.12, 1, 1.05), KernelFamily::kRmsNorm, "f32",
          &n);
  SoftmaxArgs s;
  s.out = a.data();
  s.x = b.data();
  s.rows = kRows;
  s.n = kCols;
  line_of(edge("softmax", 40, 2 * kAll, 1.2, 1.2, 1, 1.05), KernelFamily::kSoftmax, "f32", &s);
  UnaryArgs u;
  u.out = a.data();
  u.x = b.data();
  u.n = kRows * kCols;
  line_of(edge("unary", 32, 2 * kAll, 1, 1, 1, 1.05), KernelFamily::kUnary, "f32", &u);
  ReduceArgs r;
  r.out = a.data();
  r.x = b.data();
  r.outer = kRows, r.n = kCols;
  line_of(edge("reduce", 40, kAll + kFloat * kRows, 1.2, 1, 1, 1.05), KernelFamily::kReduce, "f32", &r);
  DeviceCopy<int32_t> ids(std::vector<int32_t>{3, 1, 0, 2, 3});
  DeviceCopy<uint16_t> table(std::vector<uint16_t>(4 * kCols, uint16_t{0x3f80}));
  EmbeddingArgs e;
  e.out = a.data();
  e.table = table.data();
  e.ids = ids.data();
  e.T = kRows;
  e.E = kCols;
  e.V = 4;
  e.format = *Format::find("bf16");
  line(edge("embedding", 64, kAll + 2. * 4 * kCols, 1.37, 1.2, 1, 1.05),
       [&] { launch_on_device(KernelFamily::kEmbedding, "bf16", &e); });
  GatherRowsArgs rows;
  rows.out = a.data();
  rows.x = b.data();
  rows.rows = ids.data();
  rows.R = 3;
  rows.E = kCols;
  line(edge("gather_rows", 24, 2 * kFloat * 3 * kCols, 1.14, 1.17, 1, 1.05),
       [&] { launch_on_device(KernelFamily::kGatherRows, "f32", &rows); });

  constexpr int64_t kSide = 9, kC = 33, kM = 65, kTaps = 9, kPixels = kSide * kSide;
  DeviceArray x = ones(kPixels * kC), w = ones(kM * kTaps * kC), out(nothing_yet(kPixels * kM));
  ConvArgs v;
  v.out = out.data();
  v.x = x.data();
  v.w = w.data();
  v.window.N = 1;
  v.window.H = v.window.W = v.window.OH = v.window.OW = kSide;
  v.window.KH = v.window.KW = 3;
  v.window.pad_top = v.window.pad_left = v.window.pad_bottom = v.window.pad_right = 1;
  v.C = v.ldx = kC;
  v.M = v.ldo = kM;
  v.panel = 1;
  const double image = kFloat * (kPixels * (kC + kM) + kM * kTaps * kC);
  line(edge("conv", 104, image, 1.69, 1.2, 1.05, 1.05),
       [&] { launch_on_device(KernelFamily::kConv, "f32", &v); });
  line(edge("rounded_conv", 104, image - 2. * kM * kTaps * kC, 3.2, 1.2, 1, 1.05),
       [&] { launch_on_device(KernelFamily::kConv, "bf16", &v); });
  PoolArgs p;
  p.out = out.data();
  p.x = x.data();
  p.window = v.window;
  p.C = kC;
  line(edge("pool", 48, 2 * kFloat * kPixels * kC, 1.21, 1, 1, 1.05),
       [&] { launch_on_device(KernelFamily::kPool, "f32", &p); });
}
