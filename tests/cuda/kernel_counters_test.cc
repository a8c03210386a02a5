// The rest of counters_test.cc: a line for each kernel that is no product of bf16 or codes, at shapes of full
// tiles, and the bytes that a modelled L2 does not have. What is beyond 1.1 says why.
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/causal_conv.h"
#include "kernels/conv.h"
#include "kernels/cuda/emulation/libraries.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_library.h"
#include "kernels/cuda/matmul_wgmma.h"
#include "kernels/cuda/matmul_wgmma_codes.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/narrow.h"
#include "kernels/embedding.h"
#include "kernels/hadamard.h"
#include "kernels/integer_conv.h"
#include "kernels/kv_quant.h"
#include "kernels/lora.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/quantize.h"
#include "kernels/recurrent.h"
#include "kernels/reduce.h"
#include "kernels/resize.h"
#include "kernels/sample.h"
#include "kernels/state_scan.h"
#include "kernels/strided_copy.h"
#include "tests/cuda/counters.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;
namespace emulation = oar::cuda::emulation;

namespace {

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
  // Queries, results, and keys and values that are seen.
  double bytes() const {
    const double kept = a.shape.type == DType::kF32 ? 4 : 2;
    return 2 * kFloat * static_cast<double>(a.T * a.ldq) +
           2 * kept * static_cast<double>(a.max_blocks * 64 * a.shape.kv_heads * a.shape.head_dim);
  }

  DeviceCopy<char> pool;
  DeviceArray q, out;
  DeviceCopy<int32_t> table, start, length;
  PagedAttentionArgs a;
};

}  // namespace

TEST_CASE("cuda counters: layers of 8-bit integers and recurrent ones") {
  constexpr int64_t kSide = 32, kPixels = kSide * kSide, kC = 64, kM = 128;
  DeviceCopy<uint8_t> x(std::vector<uint8_t>(kPixels * kC, 3)), out(std::vector<uint8_t>(kPixels * kM));
  DeviceCopy<int8_t> w(std::vector<int8_t>(static_cast<size_t>(quantized_filter_bytes(kM, kC)), 1));
  DeviceCopy<int32_t> sums(std::vector<int32_t>(kM, 64));
  DeviceArray scale = ones(kM);
  QuantizedConvArgs q;
  q.out = out.data();
  q.x = x.data();
  q.w = w.data();
  q.w_sums = sums.data();
  q.scale = scale.data();
  q.window.N = 1, q.window.H = q.window.OH = q.window.W = q.window.OW = kSide;
  q.C = kC, q.M = kM;
  q.high = 255;
  // A tile's pixels are read for each 64 filters.
  line_of({"quantized_conv", 168, kPixels * (kC + kM) + kC * kM + 8. * kM, 1}, KernelFamily::kQuantizedConv,
          "i8", &q);
  q.M = kC;
  q.depthwise = true;
  // Bytes, a warp's of which are a sector.
  line_of({"quantized_conv of channels", 40, 2. * kPixels * kC + 5. * kC, 1}, KernelFamily::kQuantizedConv,
          "i8", &q);

  constexpr int64_t kT = 8, kH = 256;
  DeviceArray gates = ones(kT * 4 * kH), r = ones(4 * kH * kH), y(nothing_yet(kT * kH));
  RecurrentArgs a;
  a.T = kT, a.B = a.D = 1, a.H = kH;
  a.gates = gates.data(), a.gates_t = a.gates_b = 4 * kH;
  a.r = r.data();
  a.y = y.data(), a.y_t = kH;
  line_of({"lstm", 64, kFloat * (4. * kH * kH + kT * 5 * kH), 1}, KernelFamily::kRecurrent, "f32", &a);

  constexpr int64_t kK = 2048, kOutputs = 64, kRows = 4;
  const uint64_t bytes = oar::cuda::packed_bytes("e4m3_g128", kOutputs, kK);
  DeviceCopy<char> weight(std::vector<char>(bytes, '\x38'));
  const MatmulSegment segment{weight.data(), nullptr, kOutputs, 0};
  DeviceArray rows = ones(kRows * kK), product(nothing_yet(kRows * kOutputs));
  MatmulArgs m = product_of(rows, segment, kRows, kK, product);
  std::string why;
  const auto library = oar::cuda::LibraryProducts::make(emulation::fake_cublas_lt(), &why);
  REQUIRE(library != nullptr);
  oar::cuda::LibraryCodes codes(*library);
  DeviceCopy<char> scratch(std::vector<char>(codes.scratch(m)));
  // The weight twice, rows and their codes; scales of four rows are written apart.
  line({"panels_to_rows", 32, 2. * static_cast<double>(bytes) + 5. * kRows * kK, 1},
       [&] { REQUIRE(codes.run(m, scratch.data(), nullptr).ok()); });
}

TEST_CASE("cuda counters: quantization and layers whose zero points come with a run") {
  constexpr int64_t kSide = 32, kPixels = kSide * kSide, kC = 64, kM = 128;
  DeviceCopy<uint8_t> x(std::vector<uint8_t>(kPixels * kC, 3));
  DeviceCopy<int8_t> w(std::vector<int8_t>(static_cast<size_t>(quantized_filter_bytes(kM, kC)), 1));
  DeviceCopy<int32_t> sums(std::vector<int32_t>(kM, 64));
  IntegerConvArgs i;
  DeviceCopy<int32_t> zeros(std::vector<int32_t>(kM, 1)), results(std::vector<int32_t>(kPixels * kM));
  i.out = results.data();
  i.x = x.data();
  i.w = w.data();
  i.w_sums = sums.data();
  i.w_zeros = zeros.data();
  i.window.N = 1, i.window.H = i.window.OH = i.window.W = i.window.OW = kSide;
  i.C = kC, i.M = kM;
  // A tile's pixels are read for each 64 filters; a warp's bytes of a channel are a sector.
  line_of({"integer_conv of planes", 168, kPixels * (kC + kFloat * kM) + kC * kM + 8. * kM, 1},
          KernelFamily::kQuantizedConv, "u8", &i);
  i.window.N = kPixels, i.window.H = i.window.W = i.window.OH = i.window.OW = 1;
  line_of({"integer_conv of rows", 168, kPixels * (kC + kFloat * kM) + kC * kM + 8. * kM, 1},
          KernelFamily::kQuantizedConv, "u8", &i);

  constexpr int64_t kNumbers = 16384;
  DeviceArray numbers = ones(kNumbers), unit = ones(1);
  DeviceCopy<uint8_t> codes(std::vector<uint8_t>(kNumbers, 3)), zero(std::vector<uint8_t>(1));
  DeviceCopy<int32_t> wide(std::vector<int32_t>(kNumbers, 3));
  QuantizeArgs n;
  n.n = kNumbers;
  n.values = numbers.data(), n.codes = codes.data();
  n.scale = unit.data(), n.zero = zero.data();
  line_of({"to_codes", 40, 5. * kNumbers, 1}, KernelFamily::kNarrow, "u8", &n);
  n.to_values = true;
  line_of({"to_values", 40, 5. * kNumbers, 1}, KernelFamily::kNarrow, "u8", &n);
  n.to_values = false;
  n.own_scale = unit.data(), n.own_zero = zero.data();
  line_of({"reach and to_codes", 40, 9. * kNumbers, 1}, KernelFamily::kNarrow, "u8", &n);
  n.codes = wide.data();
  line_of({"integers", 32, 8. * kNumbers, 1}, KernelFamily::kNarrow, "i32", &n);
}

TEST_CASE("cuda counters: elements of ordinary models, rows of tables and copies") {
  constexpr int64_t kRows = 8, kCols = 2048;
  constexpr double kPart = kRows / 2048.;
  DeviceArray x = ones(kRows * kCols), out(nothing_yet(kRows * kCols));
  ActivateArgs a;
  a.out = out.data();
  a.x = x.data();
  a.n = kRows * kCols;
  a.epilogue = Epilogue::kGelu;
  line_of({"activate", 32, 2.0 * kFloat * kRows * kCols, kPart}, KernelFamily::kActivate, "f32", &a);
  SoftmaxArgs s;
  s.out = out.data();
  s.x = x.data();
  s.rows = kRows;
  s.n = kCols;
  line_of({"softmax", 40, 2.0 * kFloat * kRows * kCols, kPart}, KernelFamily::kSoftmax, "f32", &s);
  StridedCopyArgs c;
  c.out = out.data();
  c.x = x.data();
  c.rank = 3;
  c.dims[0] = 4, c.dims[1] = kRows, c.dims[2] = kCols / 4;
  c.x_steps[0] = kCols / 4, c.x_steps[1] = kCols, c.x_steps[2] = 1;
  c.out_steps[0] = kRows * kCols / 4, c.out_steps[1] = kCols / 4, c.out_steps[2] = 1;
  line_of({"strided_copy", 48, 2.0 * kFloat * kRows * kCols, kPart}, KernelFamily::kStridedCopy, "f32", &c);
  ReduceArgs sums;
  sums.out = out.data();
  sums.x = x.data();
  sums.outer = kRows, sums.n = kCols;
  line_of({"reduce, rows", 40, kFloat * kRows * (kCols + 1), kPart}, KernelFamily::kReduce, "f32", &sums);
  sums.outer = 1, sums.n = kRows, sums.inner = kCols;
  line_of({"reduce, columns", 40, kFloat * kCols * (kRows + 1), kPart}, KernelFamily::kReduce, "f32", &sums);
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
  line({"embedding bf16", 64, (kFloat * kRows + 2. * 4) * kCols, kPart},
       [&] { launch_on_device(KernelFamily::kEmbedding, "bf16", &e); });
  for (const char* format :
       {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "iq2_xs", "mxfp4",
        "nvfp4", "i4_g64", "i4_g128", "i4_s8_g32", "i8_g64"}) {
    INFO(format);
    e.format = *Format::find(format);
    DeviceCopy<char> stored(std::vector<char>(static_cast<size_t>(4 * e.format.stride(kCols)), '\1'));
    e.table = stored.data();
    line({"embedding of blocks", 64, kFloat * kRows * kCols + static_cast<double>(stored.size()), kPart},
         [&] { launch_on_device(KernelFamily::kEmbedding, format, &e); });
  }
  DeviceCopy<int32_t> first(std::vector<int32_t>{0, 1, 2, 3, 4}), at(std::vector<int32_t>{0, 0, 1, 1});
  DeviceArray weight = ones(4);
  ResizeArgs r;
  r.out = out.data();
  r.x = x.data();
  r.rows = r.cols = {first.data(), at.data(), weight.data(), 2, 4};
  r.inner = 512;
  line_of({"resize", 48, kFloat * 512 * (2 * 2 + 4 * 4), kPart}, KernelFamily::kResize, "f32", &r);
}

TEST_CASE("cuda counters: heads, their append and transforms") {
  constexpr int64_t kRows = 64, kHeads = 8, kD = 128;
  constexpr double kPart = kRows / 2048., kAll = kRows * kHeads * kD;
  DeviceArray x = ones(kRows * kHeads * kD), out(nothing_yet(kRows * kHeads * kD)), signs = ones(kHeads * kD);
  HadamardArgs h;
  h.out = out.data();
  h.x = x.data();
  h.signs = signs.data();
  h.rows = kRows;
  h.n = h.ldx = h.ldo = kHeads * kD;
  h.block = h.power = kD;
  line_of({"hadamard", 32, 2 * kFloat * kAll, kPart}, KernelFamily::kHadamard, "f32", &h);
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
  constexpr double kAppended = kAll * (kFloat + 2 * 2);  // k and v are the same here
  line({"kv_append bf16", 32, kAppended, kPart},
       [&] { launch_on_device(KernelFamily::kKvAppend, "bf16", &k); });
  const auto heads = [&] { REQUIRE(cuda::append_heads<cuda::KvType::kBF16>({}, k, nullptr).ok()); };
  line({"heads bf16", 48, kAppended, kPart}, heads);
  // A token by itself has 16 of 32 bytes of a key's sectors, and 2 of each 4 of its values': pages lie as
  // attention reads them, 32 tokens at a time (kv_pages.h). A token of D dims so writes 8 D bytes a head
  // instead of 4 D, once; attention then reads 4 D of each token that is seen: behind 1,000 tokens 0.1 %.
  for (int32_t t = 0; t < kRows; ++t) slot[static_cast<size_t>(t)] = 2 * t;
  DeviceCopy<int32_t> apart(slot);
  DeviceCopy<char> pages(std::vector<char>(static_cast<size_t>(2 * kRows * kHeads * kD * 2 * 2), '\0'));
  k.slots = apart.data();
  k.pool = pages.data();
  Line alone{.name = "kv_append bf16 of rows alone",
             .registers = 32,
             .bytes = kAppended,
             .part = kPart,
             .stores = 2};
  alone.memory = 1.51;  // 4 + 2 * 4 bytes of an element instead of 4 + 2 * 2
  line(alone, [&] { launch_on_device(KernelFamily::kKvAppend, "bf16", &k); });
  alone.name = "heads bf16 of rows alone";
  alone.registers = 48;
  line(alone, heads);
}

TEST_CASE("cuda counters: rows that are made and rounded") {
  constexpr int64_t kRows = 64, kCols = 1024;
  constexpr double kPart = kRows / 2048., kAll = kRows * kCols;
  DeviceArray x = ones(kRows * kCols), other = ones(kRows * kCols), w = ones(kCols),
              made(nothing_yet(kRows * kCols)), turned(nothing_yet(kRows * kCols));
  MatmulArgs m;
  m.T = kRows;
  m.K = m.ldx = kCols;
  DeviceCopy<char> codes(std::vector<char>(cuda::narrow_codes_bytes(m))),
      bf16(std::vector<char>(cuda::narrow_bytes(m)));
  cuda::RowSteps steps;
  RmsNormArgs n = rms_norm_of(x, w, kRows, kCols, made);
  n.residual = n.sum_out = other.data();
  HadamardArgs h;
  h.x = made.data();
  h.out = turned.data();
  h.rows = kRows;
  h.n = h.ldx = h.ldo = kCols;
  h.block = h.power = kCols;
  const auto check = [&](const char* name, double bytes, double shared) {
    m.x = steps.out();
    const cuda::Gate gate{nullptr, 0, UnaryOp::kSilu, &steps};
    line({.name = name,
          .registers = 48,
          .bytes = bytes + (1 + kFloat / 128) * kAll,
          .part = kPart,
          .shared = shared},
         [&] {
           REQUIRE(cuda::narrow_rows_to_codes(cuda::narrow_codes(m, codes.data()), m, gate, nullptr) == 0);
         });
    line({.name = name, .registers = 48, .bytes = bytes + 2 * kAll, .part = kPart, .shared = shared},
         [&] { REQUIRE(cuda::narrow_rows(bf16.data(), m, gate, nullptr) == 0); });
  };
  steps.made = n;
  check("a norm", kFloat * (4 * kAll + kCols), 1.1);
  steps.transform = h;
  check("a norm and a transform", kFloat * (5 * kAll + kCols), 1.1);
  steps.transform.reset();
  steps.made = swiglu_of(other, x, kRows, kCols, made);
  check("a gate", kFloat * 3 * kAll, 1.1);
}

TEST_CASE("cuda counters: attention by every kernel") {
  Attention tiles(DType::kBF16, 64, 512, 8, 2, 128);
  line({"tile_kernel", 240, tiles.bytes(), 1. / 32},
       [&] { launch_on_device(KernelFamily::kPagedAttention, "bf16", &tiles.a); });
  Attention split(DType::kF16, 4, 512, 8, 2, 128);
  line({.name = "split_kernel f16", .registers = 128, .bytes = split.bytes(), .part = 1. / 64, .memory = 1.2},
       [&] { launch_on_device(KernelFamily::kPagedAttention, "f16", &split.a); });
  Attention many(DType::kF16, 260, 320, 2, 1, 64);
  line({"attention_kernel f16", 96, many.bytes(), 1. / 32},
       [&] { launch_on_device(KernelFamily::kPagedAttention, "f16", &many.a); });
  constexpr int64_t kRows = 64, kHeads = 2, kD = 64;
  DeviceArray q = ones(kRows * kHeads * kD), keys = ones(kRows * kHeads * kD),
              values = ones(kRows * kHeads * kD), out(nothing_yet(kRows * kHeads * kD));
  DeviceCopy<int32_t> segments(std::vector<int32_t>(kRows, 0));
  SegmentAttentionArgs s;
  s.out = out.data();
  s.q = q.data();
  s.k = keys.data();
  s.v = values.data();
  s.segments = segments.data();
  s.T = kRows;
  s.H = s.K = kHeads;
  s.D = kD;
  s.ldq = s.ldk = s.ldv = s.ldo = kHeads * kD;
  line_of({"dense_attention", 80, kFloat * (4. * kRows * kHeads * kD + kRows), 1. / 32},
          KernelFamily::kSegmentAttention, "f32", &s);
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
  line_of({"moe_route", 40, kFloat * (kRows * kExperts + 5. * kRows * kTopK + kExperts), 1. / 64},
          KernelFamily::kMoeRoute, "f32", &r);
  MoeCombineArgs c;
  c.out = out.data();
  c.y = y.data();
  c.pair_slot = slot.data();
  c.pair_weight = weight.data();
  c.T = kRows;
  c.top_k = kTopK;
  c.E = kE;
  line_of({"moe_combine", 40, kFloat * (kRows * (kTopK + 1) * kE + 2 * kRows * kTopK), 1. / 64},
          KernelFamily::kMoeCombine, "f32", &c);
  DeviceArray norm_w = ones(kE), normed(nothing_yet(kRows * kE));
  const RmsNormArgs n = rms_norm_of(out, norm_w, kRows, kE, normed);
  line({"moe_combine_norm", 48, kFloat * (kRows * (kTopK + 2) * kE + 2 * kRows * kTopK + kE), 1. / 64},
       [&] { REQUIRE(cuda::moe_combine_norm(c, n, nullptr).ok()); });
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
  line({"lora", 80, kFloat * (2 * kRank * kE + 8 * 3. * kE + 2 * 8 * kRank), 1. / 8},
       [&] { launch_on_device(KernelFamily::kLora, "f32", &l); });
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
  line_of({"sample", 96, kFloat * 2 * kV, 1. / 256}, KernelFamily::kSample, "f32", &s);
}

TEST_CASE("cuda counters: layers with a state, and tokens that are fed") {
  constexpr int32_t kRows = 64, kPage = 64;
  DeviceCopy<int32_t> zero(std::vector<int32_t>(kRows, 0)), start(std::vector<int32_t>{0, kRows}),
      length(std::vector<int32_t>{kRows});
  StateArgs state;
  state.border_tables = state.row_tables = zero.data();
  state.seq_start = start.data();
  state.context_len = length.data();
  state.T = kRows;
  state.B = state.max_borders = state.max_row_blocks = 1;
  state.page_tokens = kPage;
  std::vector<int32_t> slot;
  for (int32_t t = 0; t < kRows; ++t) slot.push_back(t);
  DeviceCopy<int32_t> slots(slot);
  state.row_slots = slots.data();
  {
    constexpr int64_t kC = 512, kL = 4;
    DeviceArray x = ones(kRows * kC), w = ones(kL * kC), out(nothing_yet(kRows * kC)),
                borders(nothing_yet(kL * kC)), rows(nothing_yet(kPage * kC));
    CausalConvArgs c;
    c.out = out.data();
    c.x = x.data();
    c.w = w.data();
    c.T = kRows;
    c.C = c.ldx = c.ldo = kC;
    c.L = kL;
    c.state = state;
    c.state.borders = borders.data();
    c.state.rows = rows.data();
    c.state.border_floats = kL * kC;
    c.state.row_floats = kC;
    line_of({"causal_conv", 56, kFloat * kC * (3. * kRows + 2 * kL), 1. / 32}, KernelFamily::kCausalConv,
            "f32", &c);
  }
  StateScanArgs s;
  s.shape = {2, 4, 64, 64};
  const int64_t keys = 2 * 64, values = 4 * 64, row = state_scan_row(s.shape);
  DeviceArray q(std::vector<float>(kRows * keys, 0.1f)), k(std::vector<float>(kRows * keys, 0.1f)),
      v = ones(kRows * values), g = ones(kRows * 4), beta = ones(kRows * 4), out(nothing_yet(kRows * values)),
      borders(nothing_yet(state_scan_border(s.shape))), rows(nothing_yet(kPage * row));
  s.out = out.data();
  s.q = q.data();
  s.k = k.data();
  s.v = v.data();
  s.g = g.data();
  s.beta = beta.data();
  s.T = kRows;
  s.ldq = s.ldk = keys;
  s.ldv = s.ldo = values;
  s.ldg = s.ldb = 4;
  s.state = state;
  s.state.borders = borders.data();
  s.state.rows = rows.data();
  s.state.border_floats = state_scan_border(s.shape);
  s.state.row_floats = row;
  line_of({"state_scan", 80,
           kFloat * static_cast<double>(kRows * (2 * keys + 2 * values + 8 + row) + s.state.border_floats),
           1. / 32},
          KernelFamily::kStateScan, "f32", &s);
  DeviceCopy<int32_t> tokens(std::vector<int32_t>(1024, 5));
  FeedTokensArgs f;
  f.tokens = tokens.data();
  f.T = 1024;
  line({"feed_tokens", 24, 4 * 1024, 1}, [&] { launch_on_device(KernelFamily::kFeedTokens, "f32", &f); });
  UnaryArgs u;
  u.out = out.data();
  u.x = v.data();
  u.n = kRows * values;
  u.op = UnaryOp::kSin;
  line_of({"sine", 32, 2 * kFloat * kRows * values, 1. / 32}, KernelFamily::kUnary, "f32", &u);
}

TEST_CASE("cuda counters: rows of quantized caches, and pages that are full") {
  constexpr int64_t kRows = 64, kHeads = 8, kD = 128;
  DeviceArray x(random_values(kRows * kHeads * kD, Values::kNormal, 1));
  std::vector<int32_t> slot;
  for (int32_t t = 0; t < kRows; ++t) slot.push_back(t);
  DeviceCopy<int32_t> slots(slot), none(std::vector<int32_t>(kRows, -1));
  for (const auto& [keys, values] : {std::pair{KvCode::kInt8, KvCode::kInt8},
                                     {KvCode::kFp8, KvCode::kFp8},
                                     {KvCode::kInt8, KvCode::kInt4},
                                     {KvCode::kInt4, KvCode::kInt4},
                                     {KvCode::kInt4Mean, KvCode::kInt4},
                                     {KvCode::kInt4Mean, KvCode::kInt3}}) {
    INFO(kv_code_name(keys) << " " << kv_code_name(values));
    QuantKvAppendArgs a;
    a.shape = {keys, values, kRows, kHeads, kD};
    const QuantKvLayout layout(a.shape);
    DeviceCopy<char> pool(std::vector<char>(static_cast<size_t>(layout.block_bytes), '\0')),
        open(std::vector<char>(kRows * kHeads * kD * 4, '\0')),
        sinks(std::vector<char>(16 * kHeads * kD * 4, '\0'));
    a.pool = pool.data();
    a.open = open.data();
    a.sinks = sinks.data();
    a.k = a.v = x.data();
    a.slots = a.open_slots = slots.data();
    a.sink_slots = none.data();
    a.T = kRows;
    a.ldk = a.ldv = kHeads * kD;
    // k and v are the same here. What was stored is read again by the launch that makes codes of it.
    const double bytes = kFloat * kRows * kHeads * kD + 2 * 2. * 2 * kRows * kHeads * kD +
                         static_cast<double>(layout.block_bytes);
    line({"quant_kv_append", 48, bytes, 1. / 32}, [&] {
      launch_on_device(KernelFamily::kQuantKvAppend, "bf16", &a, kv_code_name(keys), kv_code_name(values));
    });
  }
}

TEST_CASE("cuda counters: products of blocks, of e4m3, of experts and by warp groups") {
  constexpr int64_t kOutputs = 256, kK = 1024;
  constexpr double kPart = kOutputs * kK / (14336. * 4096);
  const auto of_rows = [](int64_t T) { return kFloat * static_cast<double>(T * (kK + kOutputs)); };
  for (const int64_t T : {1, 64}) {
    DeviceArray x = ones(T * kK), out(nothing_yet(T * kOutputs));
    for (const char* format : {"q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "mxfp4",
                               "e4m3_channel", "e4m3_g128", "i4_s8_g32", "i8_channel"}) {
      INFO(format << " of " << T << " rows");
      DeviceCopy<char> w(std::vector<char>(cuda::packed_bytes(format, kOutputs, kK), '\1'));
      const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
      const MatmulArgs m = product_of(x, segment, T, kK, out);
      line({"product", T == 1 ? 176 : 248, static_cast<double>(w.size()) + of_rows(T), kPart},
           [&] { launch_on_device(KernelFamily::kMatmul, format, &m); });
    }
    INFO(T << " rows");
    DeviceCopy<uint16_t> w(std::vector<uint16_t>(kOutputs * kK, uint16_t{0x3f80}));
    const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
    const MatmulArgs m = product_of(x, segment, T, kK, out);
    DeviceCopy<char> scratch(std::vector<char>(cuda::WarpGroupProducts::scratch(m), '\0'));
    line({"wgmma_product", 96, 2. * kOutputs * kK + of_rows(T) + 4. * static_cast<double>(T * kK), kPart},
         [&] { REQUIRE(cuda::WarpGroupProducts::run(m, scratch.data(), nullptr).ok()); });
  }
  for (const char* format : {"e4m3_channel", "e4m3_g128"}) {
    INFO(format);
    constexpr int64_t kRows = 64;
    DeviceArray x = ones(kRows * kK), out(nothing_yet(kRows * kOutputs));
    DeviceCopy<char> w(std::vector<char>(cuda::packed_bytes(format, kOutputs, kK), '\1'));
    const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
    const MatmulArgs m = product_of(x, segment, kRows, kK, out);
    const cuda::WarpGroupCodes groups(format);
    DeviceCopy<char> scratch(std::vector<char>(groups.scratch(m), '\0'));
    line({"wgmma_product_of_codes", 168, static_cast<double>(w.size()) + of_rows(kRows) + 2. * kRows * kK,
          kPart},
         [&] { REQUIRE(groups.run(m, scratch.data(), nullptr).ok()); });
  }
  {
    // More k than formats with tensor cores pack.
    constexpr int64_t kMore = kK + 64;
    DeviceArray x = ones(kMore), out(nothing_yet(kOutputs));
    for (const char* format : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs", "iq2_xs", "mxfp4",
                               "nvfp4", "i4_g64", "i4_s8_g32", "i8_g64", "f16"}) {
      INFO(format << ", without tensor cores");
      const Format its = *Format::find(format);
      const int64_t K = kMore % its.block_elems() == 0 ? kMore : kK;
      DeviceCopy<char> w(std::vector<char>(static_cast<size_t>(kOutputs * its.stride(K)), '\1'));
      const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
      MatmulArgs m = product_of(x, segment, 1, K, out);
      m.format = its;
      Line most{"general_product", 64, static_cast<double>(w.size()) + of_rows(1), kPart};
      // An edge: rows that begin within a word. Where they do not, these have tensor cores.
      if (its.stride(K) % 4 != 0) most.shared = 1.15;
      line(most, [&] { launch_on_device(KernelFamily::kMatmul, format, &m); });
    }
  }
  // Three products and a norm as one launch.
  DeviceArray x = ones(kK), hidden(nothing_yet(kK)), out(nothing_yet(kOutputs)), normed(nothing_yet(kK)),
              weight = ones(kK);
  DeviceCopy<uint16_t> w(std::vector<uint16_t>(kK * kK, uint16_t{0x3f80}));
  const MatmulSegment square{w.data(), nullptr, kK, 0}, last{w.data(), nullptr, kOutputs, 0};
  const MatmulArgs first = product_of(x, square, 1, kK, hidden),
                   second = product_of(normed, last, 1, kK, out);
  const RmsNormArgs norm = rms_norm_of(hidden, weight, 1, kK, normed);
  line({"tensor_products", 128, 2. * kK * kK + kFloat * (4. * kK + kOutputs), kPart}, [&] {
    cuda::HeldLaunches held;
    const auto launch = [&](KernelFamily family, const char* format, const void* args) {
      REQUIRE(held.launch(*cuda::find_device_kernel(family, format), args, nullptr, nullptr).ok());
    };
    launch(KernelFamily::kMatmul, "bf16", &first);
    launch(KernelFamily::kRmsNorm, "f32", &norm);
    launch(KernelFamily::kMatmul, "bf16", &second);
    REQUIRE(held.release().ok());
    CHECK(emulation::counters().launches == 1);
  });
}

TEST_CASE("cuda emulated: rows of experts that are combined take one launch with their norm") {
  constexpr int64_t kTokens = 2, kWidth = 64;
  DeviceArray memory(random_values(8 * kTokens * kWidth, Values::kNormal, 1)),
      weight(random_values(2 * kTokens, Values::kNormal, 2));
  DeviceCopy<int32_t> slots(std::vector<int32_t>{3, 1, 0, 2});
  MoeCombineArgs combine;
  combine.y = memory.data();
  combine.out = memory.data() + 2 * kTokens * kWidth;
  combine.pair_slot = slots.data();
  combine.pair_weight = weight.data();
  combine.T = kTokens, combine.top_k = 2, combine.E = kWidth;
  RmsNormArgs norm;
  norm.x = combine.out;
  norm.out = memory.data() + 4 * kTokens * kWidth;
  norm.w = memory.data() + 6 * kTokens * kWidth;
  norm.rows = kTokens, norm.cols = norm.ldx = norm.ldo = kWidth;
  cuda::HeldLaunches launches;
  const auto launch = [&](KernelFamily family, const void* args) {
    REQUIRE(launches.launch(*cuda::find_device_kernel(family, "f32"), args, nullptr, nullptr).ok());
  };
  cuda::emulation::counters() = {};
  launch(KernelFamily::kMoeCombine, &combine);
  launch(KernelFamily::kRmsNorm, &norm);
  REQUIRE(launches.release().ok());
  CHECK(cuda::emulation::counters().launches == 1);
  combine.T = 0;  // Of no rows nothing is held.
  launch(KernelFamily::kMoeCombine, &combine);
  CHECK(launches.held() == 0);
}

TEST_CASE("cuda emulated: rows of few tokens are routed and sorted in one launch") {
  constexpr int64_t kTokens = 3, kExperts = 8, kTop = 2;
  DeviceArray logits(random_values(kTokens * kExperts, Values::kNormal, 1)),
      weight(nothing_yet(kTokens * kTop));
  const std::vector<int32_t> none(kTokens * kTop + kExperts, -1);
  DeviceCopy<int32_t> token(none), slot(none), start(none);
  MoeRouteArgs a;
  a.pair_token = token.data(), a.pair_slot = slot.data(), a.expert_start = start.data();
  a.pair_weight = weight.data(), a.logits = logits.data();
  a.T = kTokens, a.experts = kExperts, a.top_k = kTop;
  cuda::emulation::counters() = {};
  launch_on_device(KernelFamily::kMoeRoute, "f32", &a);
  CHECK(cuda::emulation::counters().launches == 1);
}
