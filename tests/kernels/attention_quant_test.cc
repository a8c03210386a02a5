// The quantized KV cache: its layout, the error of its codes, and the rule of visibility against attention
// over plain arrays that were rounded by hand as the rule says.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/kv_quant.h"
#include "tests/kernels/attention_quant_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

// One sequence of one head over blocks 0, 1, ..; stale bytes are 0xff (NaN in every scale).
struct Cache {
  QuantKvShape shape;
  int64_t T;
  std::vector<float> q, k, v;
  std::vector<char> pool, open, sinks;
  std::vector<int32_t> table;

  Cache(const Tier& tier, int32_t D, int32_t P, int64_t length)
      : shape{tier.keys, tier.values, P, 1, D}, T(length) {
    const auto n = static_cast<size_t>(T * D);
    q = random_values(n, Values::kNormal, 1);
    k = random_values(n, Values::kNormal, 2);
    v = random_values(n, Values::kNormal, 3);
    const auto pages = static_cast<size_t>((T + P - 1) / P);
    pool.assign(pages * quant_kv_block_bytes(shape), '\xff');
    open.assign(pages * kv_block_bytes(open_kv_shape(shape)), '\xff');
    sinks.assign(kv_block_bytes(sink_kv_shape(shape)), '\xff');
    for (size_t i = 0; i < pages; ++i) table.push_back(static_cast<int32_t>(i));
  }
  void append(int64_t begin, int64_t end) {
    std::vector<int32_t> slots, first;
    for (int64_t t = begin; t < end; ++t) {
      slots.push_back(static_cast<int32_t>(t));
      first.push_back(t < shape.page_tokens ? static_cast<int32_t>(t) : -1);
    }
    QuantKvAppendArgs a;
    a.pool = pool.data();
    a.open = open.data();
    a.sinks = sinks.data();
    a.k = k.data() + begin * shape.head_dim;
    a.v = v.data() + begin * shape.head_dim;
    a.slots = a.open_slots = slots.data();
    a.sink_slots = first.data();
    a.T = end - begin;
    a.ldk = a.ldv = shape.head_dim;
    a.shape = shape;
    run_in_steps(*KernelRegistry::cpu().find({KernelFamily::kQuantKvAppend, Format::bf16()}, Isa::kReference),
                 &a, 2, true);
  }
  std::vector<float> attend(int64_t begin, int64_t end, int64_t window) {
    const int32_t start[] = {0, static_cast<int32_t>(end - begin)}, context[] = {static_cast<int32_t>(end)};
    std::vector<float> out(static_cast<size_t>((end - begin) * shape.head_dim));
    QuantPagedAttentionArgs a;
    a.shape = shape;
    a.open = open.data();
    a.sinks = sinks.data();
    a.open_tables = a.sink_tables = table.data();
    a.open_max_blocks = static_cast<int64_t>(table.size());
    a.sink_max_blocks = 1;
    PagedAttentionArgs& c = a.common;
    c.out = out.data();
    c.q = q.data() + begin * shape.head_dim;
    c.pool = pool.data();
    c.block_tables = table.data();
    c.seq_start = start;
    c.context_len = context;
    c.T = end - begin;
    c.B = c.H = 1;
    c.ldq = c.ldo = shape.head_dim;
    c.max_blocks = static_cast<int64_t>(table.size());
    c.shape = open_kv_shape(shape);
    c.scale = 1.f / std::sqrt(static_cast<float>(shape.head_dim));
    c.window = window;
    run_in_steps(
        *KernelRegistry::cpu().find({KernelFamily::kQuantPagedAttention, Format::bf16()}, Isa::kReference),
        &a, 3, true);
    return out;
  }
};

}  // namespace

TEST_CASE("quantized kv layout: codes and scales tile the head") {
  for (const Tier& tier : kTiers) {
    for (int32_t D : {8, 16, 32, 64, 80, 96, 112, 128, 192, 256, 512}) {
      const QuantKvShape shape{tier.keys, tier.values, 48, 2, D};
      const QuantKvLayout layout(shape);
      CHECK(layout.head_bytes % 64 == 0);
      CHECK(quant_kv_block_bytes(shape) == static_cast<size_t>(2 * layout.head_bytes));
      std::vector<int> bits(static_cast<size_t>(layout.key_scales) * 8, 0);
      const auto mark = [&](int64_t byte, int shift, int count) {
        for (int i = 0; i < count; ++i) ++bits[static_cast<size_t>(byte * 8 + shift + i)];
      };
      const auto mark_place = [&](QuantKvLayout::Place at, bool half) {
        mark(at.byte, at.high ? 4 : 0, half ? 4 : 8);
      };
      for (int64_t t = 0; t < 48; ++t) {
        for (int64_t d = 0; d < D; ++d) {
          mark_place(layout.key(t, d), layout.key_nibbles);
          if (layout.value_threes) {
            mark(layout.two_bits(t, d).byte, layout.two_bits(t, d).shift, 2);
            mark(layout.upper_bit(t, d).byte, layout.upper_bit(t, d).shift, 1);
          } else {
            mark_place(layout.value(t, d), layout.value_nibbles);
          }
        }
      }
      CHECK(std::ranges::all_of(bits, [](int n) { return n == 1; }));
    }
  }
}

TEST_CASE("quantized kv: int4 takes at most 4.5 bits for heads of 64 and more, 5 at 32, 8 at 8") {
  for (const KvCode keys : {KvCode::kInt4, KvCode::kInt4Mean}) {
    const auto bits = [&](int32_t D) {
      const QuantKvShape shape{keys, KvCode::kInt4, 64, 4, D};
      return 8.0 * static_cast<double>(quant_kv_block_bytes(shape)) / (64.0 * 4 * D * 2);
    };
    for (int32_t D : {64, 80, 96, 112, 128, 192, 256, 512}) CHECK(bits(D) <= 4.5);
    CHECK(bits(32) <= 5);
    CHECK(bits(8) <= 8);
  }
}

TEST_CASE("quantized kv: 4-bit keys beside 3-bit values take at most 4 bits for heads of 64 and more") {
  for (const int32_t D : {64, 80, 96, 112, 128, 192, 256, 512}) {
    const QuantKvShape shape{KvCode::kInt4Mean, KvCode::kInt3, 64, 4, D};
    CHECK(8.0 * static_cast<double>(quant_kv_block_bytes(shape)) / (64.0 * 4 * D * 2) <= 4.0);
  }
}

TEST_CASE("quantized kv: full pages are quantized, own page and sinks are 16 bits") {
  for (const Tier& tier : kTiers) {
    Cache c(tier, 64, 32, 100);
    // Values that 16 bits hold exactly and the codes do not; keys zero.
    std::fill(c.k.begin(), c.k.end(), 0.f);
    for (size_t i = 0; i < c.v.size(); ++i) c.v[i] = static_cast<float>(static_cast<int>(i * 37 % 255) - 127);
    c.append(0, 100);
    // Positions 0..31: all in the own page, so exact.
    const std::vector<float> own = c.attend(0, 32, 0);
    double sum[64] = {};
    for (int64_t t = 0; t < 32; ++t) {
      for (int64_t d = 0; d < 64; ++d) {
        sum[d] += c.v[static_cast<size_t>(t * 64 + d)];
        CHECK(own[static_cast<size_t>(t * 64 + d)] ==
              static_cast<float>(sum[d] / static_cast<double>(t + 1)));
      }
    }
    // From position 32 on tokens 16..31 are quantized: off by at most half a step each, and by something.
    const std::vector<float> later = c.attend(32, 33, 0);
    // The largest error of one code: half a step, and what clipping cuts off; fp8 keeps 3 bits: 2^-4 of 127.
    const bool nibbles = tier.values >= KvCode::kInt4;
    const double kept = static_cast<double>(quant_kv_shrink(tier.values, 64));
    const double step = nibbles ? 254 / (tier.values == KvCode::kInt3 ? 7.0 : 15.0) * kept
                        : tier.values == KvCode::kFp8 ? 16
                                                      : 1;
    const double bound = 16.0 / 33 * (step / 2 + (nibbles ? 254 * (1 - kept) / 2 : 0.07));
    double largest = 0;
    for (int64_t d = 0; d < 64; ++d) {
      const double want = (sum[d] + static_cast<double>(c.v[static_cast<size_t>(32 * 64 + d)])) / 33;
      largest = std::max(largest, std::fabs(later[static_cast<size_t>(d)] - want));
    }
    INFO(tier.name);
    CHECK(largest <= bound);
    if (tier.values != KvCode::kInt8) CHECK(largest > 0);
  }
}

TEST_CASE("quantized kv: decode equals prefill equals chunks, to the bit") {
  for (const Tier& tier : kTiers) {
    for (int32_t D : {8, 80}) {
      for (int64_t window : {0, 37}) {
        Cache whole(tier, D, 16, 75);
        whole.append(0, 75);
        const std::vector<float> want = whole.attend(0, 75, window);
        for (float x : want) REQUIRE(std::isfinite(x));
        for (int64_t step : {1, 7, 33}) {
          Cache c(tier, D, 16, 75);
          std::vector<float> got;
          for (int64_t begin = 0; begin < 75; begin += step) {
            const int64_t end = std::min<int64_t>(begin + step, 75);
            c.append(begin, end);
            const std::vector<float> rows = c.attend(begin, end, window);
            got.insert(got.end(), rows.begin(), rows.end());
          }
          INFO(tier.name << " D=" << D << " window " << window << " chunks of " << step);
          CHECK((got == want));
        }
      }
    }
  }
}

// Signal to noise of decoded keys, by attention that picks one token: values of Gaussian noise must come back
// at the ratios of a uniform quantizer at this rate (reference figures 43.8 dB and 20..21 dB, less a margin
// of 1 dB for the finite sample); a constant bias on two channels costs int4 its resolution and int4-mean
// none.
TEST_CASE("quantized kv: signal to noise of each code") {
  const auto ratio = [](const Tier& tier, float bias) {
    Cache c(tier, 128, 64, 256);
    for (size_t i = 0; i < c.k.size(); i += 128) {
      c.k[i + 3] += bias;
      c.k[i + 77] -= bias;
    }
    c.append(0, 256);
    const QuantKvLayout layout(c.shape);
    double signal = 0, noise = 0;
    for (int64_t t = 64; t < 128; ++t) {
      const char* head = c.pool.data() + layout.block_bytes;
      float mu_scale = 0;
      if (layout.mean) std::memcpy(&mu_scale, head + layout.mu_scale, 4);
      for (int64_t d = 0; d < 128; ++d) {
        const auto at = layout.key(t - 64, d);
        const auto byte = static_cast<uint8_t>(head[at.byte]);
        const float s = to_f32(reinterpret_cast<const f16*>(head + layout.key_scales)[t - 64]);
        float x = 0;
        if (layout.key_nibbles) {
          const float minimum = layout.mean
                                    ? -7.5f * s
                                    : to_f32(reinterpret_cast<const f16*>(head + layout.key_minima)[t - 64]);
          x = s * static_cast<float>(at.high ? byte >> 4 : byte & 15) + minimum;
        } else if (tier.keys == KvCode::kFp8) {
          x = s * to_f32(e4m3{byte});
        } else {
          x = s * static_cast<float>(byte - 128);
        }
        if (layout.mean) x += mu_scale * static_cast<float>(static_cast<int8_t>(head[layout.mu + d]));
        const double truth = c.k[static_cast<size_t>(t * 128 + d)];
        // The bias itself is no signal: a softmax does not see what all keys share.
        const double own = truth - (d == 3 ? bias : d == 77 ? -bias : 0.f);
        signal += own * own;
        noise += (x - truth) * (x - truth);
      }
    }
    return 10 * std::log10(signal / noise);
  };
  CHECK(ratio(kTiers[0], 0) > 42.5);
  CHECK(ratio(kTiers[1], 0) > 30);
  CHECK(ratio(kTiers[3], 0) > 19.3);
  // Levels that lie evenly around zero: of 128 Gaussian values the farther end asks for a step 0.8 dB larger.
  CHECK(ratio(kTiers[4], 0) > 18.5);
  CHECK(ratio(kTiers[4], 30) > ratio(kTiers[3], 30) + 8);
}

TEST_CASE("quantized kv: a NaN or infinity comes out where it is seen, and nowhere else") {
  for (const Tier& tier : kTiers) {
    for (const float bad : {NAN, INFINITY}) {
      Cache c(tier, 16, 16, 60);
      c.v[20 * 16 + 5] = bad;
      c.append(0, 60);
      const std::vector<float> out = c.attend(0, 60, 0);
      for (int64_t t = 0; t < 60; ++t) {
        bool finite = true;
        for (int64_t d = 0; d < 16; ++d) finite &= std::isfinite(out[static_cast<size_t>(t * 16 + d)]);
        INFO(tier.name << " query " << t);
        CHECK(finite == (t < 20));
      }
    }
  }
}
