// The rest of counters_test.cc: a line for each kernel that is no product of bf16 or codes, at shapes of full
// tiles. What is beyond 1.1 says why.
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_wgmma.h"
#include "kernels/embedding.h"
#include "kernels/hadamard.h"
#include "kernels/kv_quant.h"
#include "kernels/lora.h"
#include "kernels/moe.h"
#include "kernels/reduce.h"
#include "kernels/resize.h"
#include "kernels/sample.h"
#include "kernels/state_scan.h"
#include "kernels/strided_copy.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;
namespace emulation = oar::cuda::emulation;

namespace {

double times_ideal(uint64_t real, uint64_t ideal) {
  return ideal == 0 ? 1 : static_cast<double>(real) / static_cast<double>(ideal);
}

// Sectors per ideal of loads and stores, and wavefronts per ideal, of what `run` launches.
template <class Run>
void line(const char* name, const Run& run, double loads = 1.1, double stores = 1.1, double shared = 1.1) {
  emulation::counters() = {};
  run();
  const emulation::Counters& c = emulation::counters();
  REQUIRE(c.load_requests > 0);  // traced
  const double l = times_ideal(c.load_sectors, c.load_ideal), s = times_ideal(c.store_sectors, c.store_ideal),
               w = times_ideal(c.shared_wavefronts, c.shared_ideal);
  INFO(name << ": sectors per ideal of loads " << l << ", of stores " << s << "; wavefronts per ideal " << w);
  CHECK(l <= loads);
  CHECK(s <= stores);
  CHECK(w <= shared);
}

DeviceArray ones(int64_t n) { return DeviceArray(std::vector<float>(static_cast<size_t>(n), 1.f)); }

// Rows of one sequence, the last ones of `context`, over pages of 64.
struct Attention {
  Attention(DType type, int64_t rows, int64_t context, int64_t heads, int64_t kv_heads, int64_t D)
      : pool(std::vector<char>(static_cast<size_t>(context * kv_heads * 2 * D * 4), '\x3c')),
        q(ones(rows * heads * D)),
        out(nothing_yet(rows * heads * D)),
        table(descending(context / 64)),
        start(std::vector<int32_t>{0, static_cast<int32_t>(rows)}),
        length(std::vector<int32_t>{static_cast<int32_t>(context)}) {
    a.out = out.data();
    a.q = q.data();
    a.pool = pool.data();
    a.block_tables = table.data();
    a.seq_start = start.data();
    a.context_len = length.data();
    a.T = rows;
    a.B = 1;
    a.H = heads;
    a.ldq = a.ldo = heads * D;
    a.max_blocks = context / 64;
    a.shape = {type, 64, static_cast<int32_t>(kv_heads), static_cast<int32_t>(D)};
  }
  static std::vector<int32_t> descending(int64_t n) {
    std::vector<int32_t> out;
    for (int64_t i = n; i-- > 0;) out.push_back(static_cast<int32_t>(i));
    return out;
  }
  DeviceCopy<char> pool;
  DeviceArray q, out;
  DeviceCopy<int32_t> table, start, length;
  PagedAttentionArgs a;
};

}  // namespace

TEST_CASE("cuda counters: elements of ordinary models, rows of tables and copies") {
  constexpr int64_t kRows = 8, kCols = 2048;
  DeviceArray x = ones(kRows * kCols), out(nothing_yet(kRows * kCols));
  ActivateArgs a;
  a.out = out.data();
  a.x = x.data();
  a.n = kRows * kCols;
  a.epilogue = Epilogue::kGelu;
  line("activate", [&] { launch_on_device(KernelFamily::kActivate, "f32", &a); });
  SoftmaxArgs s;
  s.out = out.data();
  s.x = x.data();
  s.rows = kRows;
  s.n = kCols;
  line("softmax", [&] { launch_on_device(KernelFamily::kSoftmax, "f32", &s); });
  StridedCopyArgs c;
  c.out = out.data();
  c.x = x.data();
  c.rank = 3;
  c.dims[0] = 4, c.dims[1] = kRows, c.dims[2] = kCols / 4;
  c.x_steps[0] = kCols / 4, c.x_steps[1] = kCols, c.x_steps[2] = 1;
  c.out_steps[0] = kRows * kCols / 4, c.out_steps[1] = kCols / 4, c.out_steps[2] = 1;
  line("strided_copy", [&] { launch_on_device(KernelFamily::kStridedCopy, "f32", &c); });
  ReduceArgs sums;
  sums.out = out.data();
  sums.x = x.data();
  sums.outer = kRows, sums.n = kCols;
  line("reduce, rows", [&] { launch_on_device(KernelFamily::kReduce, "f32", &sums); });
  sums.outer = 1, sums.n = kRows, sums.inner = kCols;
  line("reduce, columns", [&] { launch_on_device(KernelFamily::kReduce, "f32", &sums); });
  DeviceCopy<int32_t> ids(std::vector<int32_t>{3, 1, 0, 2, 3, 1, 2, 0});
  DeviceCopy<uint16_t> table(std::vector<uint16_t>(4 * kCols, uint16_t{0x3f80}));
  EmbeddingArgs e;
  e.out = out.data();
  e.table = table.data();
  e.ids = ids.data();
  e.T = kRows;
  e.E = kCols;
  e.V = 4;
  e.format = *Format::find("bf16");
  line("embedding bf16", [&] { launch_on_device(KernelFamily::kEmbedding, "bf16", &e); });
  DeviceCopy<int32_t> first(std::vector<int32_t>{0, 1, 2, 3, 4}), at(std::vector<int32_t>{0, 0, 1, 1});
  DeviceArray weight = ones(4);
  ResizeArgs r;
  r.out = out.data();
  r.x = x.data();
  r.rows = r.cols = {first.data(), at.data(), weight.data(), 2, 4};
  r.inner = 512;
  line("resize", [&] { launch_on_device(KernelFamily::kResize, "f32", &r); });
}

TEST_CASE("cuda counters: heads, their append and transforms") {
  constexpr int64_t kRows = 64, kHeads = 8, kD = 128;
  DeviceArray x = ones(kRows * kHeads * kD), out(nothing_yet(kRows * kHeads * kD)), signs = ones(kHeads * kD);
  HadamardArgs h;
  h.out = out.data();
  h.x = x.data();
  h.signs = signs.data();
  h.rows = kRows;
  h.n = h.ldx = h.ldo = kHeads * kD;
  h.block = h.power = kD;
  // Steps within 32 elements meet banks twice.
  line(
      "hadamard", [&] { launch_on_device(KernelFamily::kHadamard, "f32", &h); }, 1.1, 1.1, 1.7);
  std::vector<int32_t> slot;
  for (int32_t t = 0; t < kRows; ++t) slot.push_back(t);
  DeviceCopy<int32_t> slots(slot);
  DeviceCopy<char> pool(std::vector<char>(static_cast<size_t>(kRows * kHeads * kD * 2 * 4), '\0'));
  KvAppendArgs k;
  k.pool = pool.data();
  k.k = k.v = x.data();
  k.slots = slots.data();
  k.T = kRows;
  k.ldk = k.ldv = kHeads * kD;
  k.shape = {DType::kBF16, 64, kHeads, kD};
  // 16 bytes of a token's key lie together, and 2 of 4 of its values: half of what a row stores into.
  line(
      "kv_append bf16", [&] { launch_on_device(KernelFamily::kKvAppend, "bf16", &k); }, 1.1, 2);
  line(
      "heads bf16", [&] { REQUIRE(cuda::append_heads<cuda::KvType::kBF16>({}, k, nullptr).ok()); }, 1.1, 2);
}

TEST_CASE("cuda counters: attention by every kernel") {
  Attention tiles(DType::kBF16, 64, 512, 8, 2, 128);
  line("tile_kernel", [&] { launch_on_device(KernelFamily::kPagedAttention, "bf16", &tiles.a); });
  Attention split(DType::kF16, 4, 512, 8, 2, 128);
  line("split_kernel f16", [&] { launch_on_device(KernelFamily::kPagedAttention, "f16", &split.a); });
  Attention many(DType::kF16, 260, 320, 2, 1, 64);
  line("attention_kernel f16", [&] { launch_on_device(KernelFamily::kPagedAttention, "f16", &many.a); });
  constexpr int64_t kRows = 64, kHeads = 2, kD = 64;
  DeviceArray x = ones(kRows * kHeads * kD), out(nothing_yet(kRows * kHeads * kD));
  DeviceCopy<int32_t> segments(std::vector<int32_t>(kRows, 0));
  SegmentAttentionArgs s;
  s.out = out.data();
  s.q = s.k = s.v = x.data();
  s.segments = segments.data();
  s.T = kRows;
  s.H = s.K = kHeads;
  s.D = kD;
  s.ldq = s.ldk = s.ldv = s.ldo = kHeads * kD;
  // A lane has a key and reads 16 bytes of it at a time; the rest of the sector comes from L1.
  line(
      "dense_attention", [&] { launch_on_device(KernelFamily::kSegmentAttention, "f32", &s); }, 1.5);
}

TEST_CASE("cuda counters: experts, adapters, draws and states") {
  constexpr int64_t kRows = 32, kExperts = 64, kTopK = 4, kE = 1024;
  DeviceArray logits(random_values(kRows * kExperts, Values::kNormal, 1)), y = ones(kRows * kTopK * kE),
                                                                           out(nothing_yet(kRows * kE));
  DeviceCopy<int32_t> token(std::vector<int32_t>(kRows * kTopK, 0)),
      slot(std::vector<int32_t>(kRows * kTopK, 0)), start(std::vector<int32_t>(kExperts + 1, 0));
  DeviceArray weight = ones(kRows * kTopK);
  MoeRouteArgs r;
  r.pair_token = token.data();
  r.pair_slot = slot.data();
  r.pair_weight = weight.data();
  r.expert_start = start.data();
  r.logits = logits.data();
  r.T = kRows;
  r.experts = kExperts;
  r.top_k = kTopK;
  line("moe_route", [&] { launch_on_device(KernelFamily::kMoeRoute, "f32", &r); });
  MoeCombineArgs c;
  c.out = out.data();
  c.y = y.data();
  c.pair_slot = slot.data();
  c.pair_weight = weight.data();
  c.T = kRows;
  c.top_k = kTopK;
  c.E = kE;
  line("moe_combine", [&] { launch_on_device(KernelFamily::kMoeCombine, "f32", &c); });
  constexpr int64_t kRank = 16;
  DeviceCopy<int32_t> index(std::vector<int32_t>(8, 0)), ranks(std::vector<int32_t>{kRank});
  DeviceArray a = ones(kRank * kE), b = ones(kRank * kE);
  LoraArgs l;
  l.y = out.data();
  l.x = y.data();
  l.index = index.data();
  l.ranks = ranks.data();
  l.a = a.data();
  l.b = b.data();
  l.T = 8;
  l.K = l.n = l.ldx = l.ldy = kE;
  l.R = kRank;
  line("lora", [&] { launch_on_device(KernelFamily::kLora, "f32", &l); });
  constexpr int64_t kV = 16'384;
  DeviceArray of_vocab(random_values(2 * kV, Values::kNormal, 2));
  SampleRow row;
  row.inverse = 1.4426950408889634;
  row.span = 100;
  row.draw = uint64_t{1} << 63;
  std::vector<SampleRow> wanted{row, row};
  wanted[1].logit_row = 1;
  wanted[1].top_k = 20;
  DeviceCopy<SampleRow> rows(wanted);
  DeviceCopy<SampleDraw> draws(std::vector<SampleDraw>(2));
  SampleArgs s;
  s.draws = draws.data();
  s.logits = of_vocab.data();
  s.rows = rows.data();
  s.num_rows = 2;
  s.V = kV;
  // Counts of digits are added up across what threads have counted.
  line(
      "sample", [&] { launch_on_device(KernelFamily::kSample, "f32", &s); }, 1.1, 1.1, 1.3);
}

TEST_CASE("cuda counters: products of blocks, of e4m3, of experts and by warp groups") {
  constexpr int64_t kOutputs = 256, kK = 1024;
  for (const int64_t T : {1, 64}) {
    DeviceArray x = ones(T * kK), out(nothing_yet(T * kOutputs));
    for (const char* format :
         {"q4_k", "q6_k", "mxfp4", "e4m3_channel", "e4m3_g128", "i4_s8_g32", "i8_channel"}) {
      INFO(format << " of " << T << " rows");
      DeviceCopy<char> w(std::vector<char>(cuda::packed_bytes(format, kOutputs, kK), '\1'));
      const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
      const MatmulArgs m = product_of(x, segment, T, kK, out);
      line("product", [&] { launch_on_device(KernelFamily::kMatmul, format, &m); });
    }
    INFO(T << " rows");
    DeviceCopy<uint16_t> w(std::vector<uint16_t>(kOutputs * kK, uint16_t{0x3f80}));
    const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
    const MatmulArgs m = product_of(x, segment, T, kK, out);
    DeviceCopy<char> scratch(std::vector<char>(cuda::WarpGroupProducts::scratch(m), '\0'));
    // What rounds rows reads 32 bytes a lane by two loads, of which the second is answered by L1.
    line(
        "wgmma_product", [&] { REQUIRE(cuda::WarpGroupProducts::run(m, scratch.data(), nullptr).ok()); }, 2);
  }
}
