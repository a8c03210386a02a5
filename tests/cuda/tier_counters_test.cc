// More lines of kernel_counters_test.cc: caches of every tier and keys that hold values, by the kernels that
// each has; gated products, and experts' products from the first layer to the sum behind the second.
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/kv_quant.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "tests/cuda/counters.h"
#include "tests/kernels/attention_quant_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr int32_t kPage = 64;

// The last `rows` of a sequence of `context` tokens; latent: dims of a key that are its value.
struct Rows {
  int64_t rows, context, heads, kv_heads;
  int32_t D, latent = 0;
  int64_t window = 0;
  int64_t pages() const { return context / kPage; }
  int64_t values() const { return latent > 0 ? latent : D; }
  double queries() const { return kFloat * static_cast<double>(rows * heads * (D + values())); }
  double numbers() const { return static_cast<double>(kv_heads * D) * (latent > 0 ? 1 : 2); }  // of a token
};

// On the device, over pages of `page_bytes` in any order.
struct Attending {
  Attending(const Rows& r, int64_t page_bytes, DType kept)
      : pool(std::vector<char>(static_cast<size_t>(r.pages() * page_bytes), '\1')),
        q(std::vector<float>(static_cast<size_t>(r.rows * r.heads * r.D), 0.1f)),
        out(nothing_yet(r.rows * r.heads * r.values())),
        table(shuffled(r.pages())),
        start(std::vector<int32_t>{0, static_cast<int32_t>(r.rows)}),
        length(std::vector<int32_t>{static_cast<int32_t>(r.context)}) {
    a.out = out.data();
    a.q = q.data();
    a.pool = pool.data();
    a.block_tables = table.data();
    a.seq_start = start.data();
    a.context_len = length.data();
    a.T = r.rows;
    a.B = 1;
    a.H = r.heads;
    a.ldq = r.heads * r.D;
    a.ldo = r.heads * r.values();
    a.max_blocks = r.pages();
    a.shape = {kept, kPage, static_cast<int32_t>(r.kv_heads), r.D, r.latent};
    a.window = r.window;
  }
  static std::vector<int32_t> shuffled(int64_t n) {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(i % 2 == 0 ? i / 2 : n - 1 - i / 2));
    return out;
  }
  DeviceCopy<char> pool;
  DeviceArray q, out;
  DeviceCopy<int32_t> table, start, length;
  PagedAttentionArgs a;
};

void plain_line(Line most, const char* format, const Rows& r) {
  INFO(format);
  const double kept = format[1] == '3' ? 4 : 2;  // f32
  const DType type = format[0] == 'b' ? DType::kBF16 : kept == 4 ? DType::kF32 : DType::kF16;
  Attending d(r, static_cast<int64_t>(kept * r.numbers()) * kPage, type);
  most.bytes = r.queries() + kept * r.numbers() * static_cast<double>(r.context);
  line(most, [&] { launch_on_device(KernelFamily::kPagedAttention, format, &d.a, "", "", r.latent > 0); });
}

// A row sees its own page and the first 16 tokens in 16 bits.
void tier_line(Line most, const Tier& tier, const Rows& r) {
  INFO(tier.name);
  QuantPagedAttentionArgs a;
  a.shape = {tier.keys, tier.values, kPage, static_cast<int32_t>(r.kv_heads), r.D, r.latent};
  const QuantKvLayout layout(a.shape);
  Attending d(r, layout.block_bytes, DType::kBF16);
  const auto open_page = static_cast<size_t>(r.numbers()) * kPage;
  DeviceCopy<uint16_t> open(
      std::vector<uint16_t>(static_cast<size_t>(r.pages()) * open_page, uint16_t{0x3f80})),
      sinks(std::vector<uint16_t>(open_page / kPage * kKvSinkTokens, uint16_t{0x3f80}));
  DeviceCopy<int32_t> sink(std::vector<int32_t>{0});
  a.common = d.a;
  a.open = open.data();
  a.sinks = sinks.data();
  a.open_tables = d.table.data();
  a.sink_tables = sink.data();
  a.open_max_blocks = r.pages();
  a.sink_max_blocks = 1;
  const int64_t own = (r.context - 1) / kPage - (r.context - r.rows) / kPage + 1;  // pages with rows
  // Pages in codes: all that are behind a row's. Of the first its first tokens are sinks.
  const int64_t closed = r.pages() - 1;
  most.bytes = r.queries() + static_cast<double>(closed * layout.block_bytes) +
               2 * r.numbers() * static_cast<double>(own * kPage + kKvSinkTokens);
  line(most, [&] {
    launch_on_device(KernelFamily::kQuantPagedAttention, "bf16", &a, kv_code_name(tier.keys),
                     kv_code_name(tier.values), r.latent > 0);
  });
}

constexpr Tier kLatentInt4{"int4", KvCode::kInt4Mean, KvCode::kInt4Mean};

}  // namespace

TEST_CASE("cuda counters: keys that hold values, of few rows and of many") {
  // DeepSeek's latents, of 512 dims beside 64 that are rotated. More rows than are split, which see the page
  // in front of them.
  const Rows few{1, 512, 2, 1, 576, 512}, less{1, 256, 2, 1, 144, 128}, many{257, 320, 1, 1, 72, 64, kPage};
  const Line of_few{.name = "split_kernel", .registers = 128, .bytes = 0, .part = 1. / 64, .memory = 1.2};
  const Line of_many{"attention_kernel", 168, 0, 1. / 32};
  plain_line(of_few, "bf16", few);
  tier_line(of_few, kTiers[0], few);
  for (const char* format : {"f16", "f32"}) plain_line(of_few, format, less);
  for (const Tier& tier : {kTiers[1], kLatentInt4}) tier_line(of_few, tier, less);
  for (const char* format : {"bf16", "f32"}) plain_line(of_many, format, many);
  for (const Tier& tier : {kTiers[0], kLatentInt4}) tier_line(of_many, tier, many);
  // Keys are read again as values: in f32, those of 64 such sequences are more than L2 holds, of fewer not.
  Line of_64 = of_few;
  of_64.memory = 1.9;
  plain_line(of_64, "f32", few);
  Line of_32 = of_few;
  of_32.part = 1. / 32;
  plain_line(of_32, "f32", few);
}

TEST_CASE("cuda counters: rows of latents, and their pages that are full") {
  constexpr int64_t kRows = kPage, kD = 576;
  constexpr double kAll = static_cast<double>(kRows * kD);
  DeviceArray x(random_values(kRows * kD, Values::kNormal, 1));
  std::vector<int32_t> slot;
  for (int32_t t = 0; t < kRows; ++t) slot.push_back(t);
  DeviceCopy<int32_t> slots(slot), none(std::vector<int32_t>(kRows, -1));
  DeviceCopy<char> pool(std::vector<char>(kRows * kD * 4, '\0')),
      open(std::vector<char>(kRows * kD * 2, '\0')), sinks(std::vector<char>(kKvSinkTokens * kD * 2, '\0'));
  for (const char* format : {"bf16", "f16", "f32"}) {
    INFO(format);
    KvAppendArgs a;
    a.pool = pool.data();
    a.k = x.data();
    a.slots = slots.data();
    a.T = kRows;
    a.ldk = kD;
    const double kept = format[1] == '3' ? 4 : 2;
    a.shape = {format[0] == 'b' ? DType::kBF16 : kept == 4 ? DType::kF32 : DType::kF16, kPage, 1, kD, 512};
    line({"kv_append", 32, (kFloat + kept) * kAll, 1. / 32},
         [&] { launch_on_device(KernelFamily::kKvAppend, format, &a, "", "", true); });
  }
  for (const Tier& tier : {kTiers[0], kTiers[1], kLatentInt4}) {
    INFO(tier.name);
    QuantKvAppendArgs a;
    a.shape = {tier.keys, tier.values, kPage, 1, kD, 512};
    a.pool = pool.data();
    a.open = open.data();
    a.sinks = sinks.data();
    a.k = x.data();
    a.slots = a.open_slots = slots.data();
    a.sink_slots = none.data();
    a.T = kRows;
    a.ldk = kD;
    // What was stored is read again by the launch that makes codes of it.
    const double bytes = (kFloat + 2 * 2) * kAll + static_cast<double>(QuantKvLayout(a.shape).block_bytes);
    line({"quant_kv_append", 48, bytes, 1. / 32}, [&] {
      launch_on_device(KernelFamily::kQuantKvAppend, "bf16", &a, kv_code_name(tier.keys),
                       kv_code_name(tier.values), true);
    });
  }
}

TEST_CASE("cuda counters: quantized caches without tensor cores, of few rows and of many") {
  const Line of_few{.name = "split_kernel", .registers = 128, .bytes = 0, .part = 1. / 64, .memory = 1.2};
  const Line of_many{"attention_kernel", 96, 0, 1. / 32};
  // Wider heads than tensor cores have, and codes of which they have no kernel.
  for (const size_t tier : {0, 1, 2, 3}) tier_line(of_few, kTiers[tier], {1, 256, 2, 1, 256});
  for (const size_t tier : {0, 3}) tier_line(of_few, kTiers[tier], {1, 256, 2, 1, 512});
  tier_line(of_many, kTiers[0], {257, 320, 1, 1, 264, 0, kPage});
  tier_line(of_many, kTiers[2], {257, 320, 1, 1, 160, 0, kPage});
  for (const size_t tier : {4, 5}) {
    tier_line(of_few, kTiers[tier], {1, 256, 2, 1, 128});
    tier_line(of_many, kTiers[tier], {257, 320, 1, 1, 64, 0, kPage});
  }
}

TEST_CASE("cuda counters: gated products") {
  constexpr int64_t kOutputs = 128, kK = 512;
  for (const int64_t T : {1, 64}) {
    DeviceArray gate = ones(T * kK), up = ones(T * kK), out(nothing_yet(T * kOutputs)),
                sum = ones(T * kOutputs);
    for (const char* format : {"bf16", "i4_g128", "q8_0", "q4_k", "q5_k", "q2_k", "q5_1", "iq4_xs", "f32"}) {
      INFO(format << ", " << T << " rows");
      const Format its = *Format::find(format);
      const uint64_t packed = cuda::packed_bytes(format, kOutputs, kK);
      DeviceCopy<char> w(
          std::vector<char>(packed > 0 ? packed : static_cast<uint64_t>(kOutputs * its.stride(kK)), '\1'));
      const MatmulSegment segment{w.data(), nullptr, kOutputs, 0};
      GatedMatmulArgs a;
      a.matmul = product_of(up, segment, T, kK, out);
      a.matmul.format = its;
      a.matmul.residual = sum.data();
      a.gate = gate.data();
      a.ld_gate = kK;
      const bool general = packed == 0 && std::string_view(format) != "bf16";
      if (general && T > 1) continue;  // tiles of the same 8 rows
      const double bytes =
          static_cast<double>(w.size()) + 2 * kFloat * static_cast<double>(T * (kK + kOutputs));
      line_of({"gated product",
               general  ? 64
               : T == 1 ? 176
                        : 248,
               bytes, kOutputs * kK / (14336. * 4096)},
              KernelFamily::kGatedMatmul, format, &a);
    }
  }
}

TEST_CASE("cuda counters: experts' products, and the gate, the sum and the norm in their launch") {
  constexpr int64_t kExperts = 3, kE = 256, kF = 256;
  for (const int64_t tokens : {2, 64}) {
    // Two experts for a token, all but the first: one tile of rows each.
    const int64_t P = 2 * tokens;
    const std::vector<int32_t> starts{0, 0, static_cast<int32_t>(tokens), static_cast<int32_t>(P)};
    std::vector<int32_t> token, slot;
    for (int64_t p = 0; p < P; ++p) token.push_back(static_cast<int32_t>(p % tokens));
    for (int64_t p = 0; p < P; ++p) slot.push_back(static_cast<int32_t>(p % 2 * tokens + p / 2));
    DeviceCopy<int32_t> tokens_of(token), slots(slot), start(starts);
    DeviceArray x = ones(tokens * kE), both(nothing_yet(P * 2 * kF)), made(nothing_yet(P * kF)),
                y(nothing_yet(P * kE)), out(nothing_yet(tokens * kE)), normed(nothing_yet(tokens * kE)),
                weight = ones(P), norm_w = ones(kE);
    for (const char* format : {"bf16", "i4_g128", "q8_0", "q5_k", "iq4_xs"}) {
      INFO(format << ", " << tokens << " tokens");
      const Format its = *Format::find(format);
      const auto bytes_of = [&](int64_t n, int64_t K) {
        const uint64_t packed = cuda::packed_bytes(format, n, K);
        return packed > 0 ? packed : static_cast<uint64_t>(n * its.stride(K));
      };
      const bool general = std::string_view(format) == "iq4_xs", many = P > cuda::kFewRows * kExperts;
      if (general && many) continue;
      const int registers = general ? 64 : many ? 248 : 176;
      // Of the experts that have rows.
      constexpr double kUsed = kExperts - 1;
      const double first_bytes = kUsed * 2 * static_cast<double>(bytes_of(kF, kE)),
                   second_bytes = kUsed * static_cast<double>(bytes_of(kE, kF)),
                   rows = static_cast<double>(P);
      const uint64_t of_first = bytes_of(kF, kE), of_second = bytes_of(kE, kF);
      DeviceCopy<char> w1(std::vector<char>(kExperts * 2 * of_first, '\1')),
          w2(std::vector<char>(kExperts * of_second, '\1'));
      std::vector<MatmulSegment> first, second;
      for (int64_t e = 0; e < kExperts; ++e) {
        for (int64_t s = 0; s < 2; ++s) {
          const auto at = static_cast<uint64_t>(2 * e + s) * of_first;
          first.push_back({w1.data() + at, nullptr, kF, s * kF});
        }
        second.push_back({w2.data() + static_cast<uint64_t>(e) * of_second, nullptr, kE, 0});
      }
      GroupedMatmulArgs m;
      m.out = both.data();
      m.x = x.data();
      m.pair_token = tokens_of.data();
      m.expert_start = start.data();
      m.segments = first.data();
      m.segments_per_expert = 2;
      m.experts = kExperts;
      m.P = P;
      m.K = m.ldx = kE;
      m.ldo = 2 * kF;
      m.format = its;
      // Rows of x once, though each meets two experts.
      line({"experts' first layers", registers,
            first_bytes + kFloat * (static_cast<double>(tokens * kE) + rows * 2 * kF), 1. / 64},
           [&] { launch_on_device(KernelFamily::kGroupedMatmul, format, &m); });

      SwiGluArgs g;
      g.gate = both.data();
      g.up = both.data() + kF;
      g.out = made.data();
      g.T = P;
      g.F = g.ldo = kF;
      g.ldg = g.ldu = 2 * kF;
      GroupedMatmulArgs n = m;
      n.out = y.data();
      n.x = made.data();
      n.pair_token = nullptr;
      n.segments = second.data();
      n.segments_per_expert = 1;
      n.K = n.ldx = kF;
      n.ldo = kE;
      MoeCombineArgs c;
      c.out = out.data();
      c.y = y.data();
      c.pair_slot = slots.data();
      c.pair_weight = weight.data();
      c.T = tokens;
      c.top_k = 2;
      c.E = kE;
      const RmsNormArgs norm = rms_norm_of(out, norm_w, tokens, kE, normed);
      const auto launch = [](cuda::HeldLaunches& held, KernelFamily family, const char* name,
                             const void* args) {
        REQUIRE(held.launch(*cuda::find_device_kernel(family, name), args, nullptr, nullptr).ok());
      };
      // Of many rows the gate is a launch of its own, whose rows come again.
      const double gated = kFloat * rows * ((many ? 4 : 3) * kF + kE), second_layers = second_bytes + gated;
      line({"experts' second layers and their gate", registers, second_layers, 1. / 64}, [&] {
        cuda::HeldLaunches held;
        launch(held, KernelFamily::kSwiGlu, "f32", &g);
        launch(held, KernelFamily::kGroupedMatmul, format, &n);
        REQUIRE(held.release().ok());
        CHECK(emulation::counters().launches == (many ? 2 : 1));
      });
      if (many) continue;
      const double combined = kFloat * static_cast<double>(2 * tokens * kE + kE);
      line({"experts' second layers, their gate, sum and norm", registers, second_layers + combined, 1. / 64},
           [&] {
             cuda::HeldLaunches held;
             launch(held, KernelFamily::kSwiGlu, "f32", &g);
             launch(held, KernelFamily::kGroupedMatmul, format, &n);
             launch(held, KernelFamily::kMoeCombine, "f32", &c);
             launch(held, KernelFamily::kRmsNorm, "f32", &norm);
             REQUIRE(held.release().ok());
             CHECK(emulation::counters().launches == 1);
           });
    }
  }
}
