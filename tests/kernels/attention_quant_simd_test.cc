// Every kernel over the quantized cache that this machine can run, against the reference over the same bytes,
// and the promises of kernels/kv_quant.h: decode equals prefill bit for bit whatever the chunking, the batch,
// the pages and the workers; nothing outside what a query sees reaches its result; no access past an operand.
#include "tests/kernels/attention_quant_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

using Chunk = QuantProblem::Chunk;
using Options = QuantProblem::Options;

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= 1e30f)) return INFINITY;  // NaN
    largest = std::max(largest, static_cast<double>(std::fabs(a[i] - b[i])));
  }
  return largest;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string describe(const Tier& tier, const QuantProblem& p, Isa isa) {
  return std::string(p.kernel(KernelFamily::kQuantPagedAttention, isa).name) + " " + tier.name +
         " H=" + std::to_string(p.heads.H) + " K=" + std::to_string(p.heads.K) +
         " D=" + std::to_string(p.heads.D) + " P=" + std::to_string(p.shape.page_tokens);
}

std::vector<Chunk> last_queries(const QuantProblem& p, int64_t count) {
  std::vector<Chunk> chunks;
  for (size_t s = 0; s < p.lengths.size(); ++s) {
    chunks.push_back({static_cast<int64_t>(s), p.lengths[s], std::min(count, p.lengths[s])});
  }
  return chunks;
}

void check_against_reference(const Tier& tier, Heads heads, int page, std::vector<int64_t> lengths,
                             int64_t count, Queries queries, const Options& o) {
  QuantProblem p(tier, heads, page, std::move(lengths), queries);
  p.append_all(Isa::kReference);
  const auto chunks = last_queries(p, count);
  const std::vector<float> want = p.run(Isa::kReference, chunks, o);
  for (Isa isa : levels()) {
    INFO(describe(tier, p, isa) << " window=" << o.window << " softcap=" << o.softcap);
    CHECK(largest_difference(p.run(isa, chunks, o), want) <= p.bound(queries, o));
  }
}

}  // namespace

TEST_CASE("quantized attention: every level against the reference, every head size") {
  Sample sample(3);
  for (const Tier& tier : kTiers) {
    for (int64_t D : {8, 16, 32, 64, 80, 96, 112, 128, 192, 256, 512}) {
      if (!sample.take()) continue;
      check_against_reference(tier, {4, 2, D}, 64, {1, 63, 64, 65, 400}, 3, Queries::kExact, {});
    }
    check_against_reference(tier, {4, 2, 64}, 64, {300}, 5, Queries::kNormal, {});
  }
}

TEST_CASE("quantized attention: groups, pages, windows and soft caps") {
  Sample sample(9);
  for (const Tier& tier : kTiers) {
    for (const Heads heads :
         {Heads{1, 1, 24}, Heads{3, 1, 40}, Heads{7, 1, 16}, Heads{5, 5, 64}, Heads{16, 2, 32}}) {
      for (int page : {16, 48, 64, 512}) {
        if (!sample.take()) continue;
        check_against_reference(tier, heads, page, {700, 30}, 2, Queries::kExact, {});
        check_against_reference(tier, heads, page, {600}, 70, Queries::kExact, {.window = 53});
        check_against_reference(tier, heads, page, {530}, 9, Queries::kExact,
                                {.window = 300, .softcap = 5.f});
      }
    }
  }
}

TEST_CASE("quantized attention: windows that are chunks of positions") {
  for (const Tier& tier : kTiers) {
    for (int64_t chunk : {48, 100, 300}) {
      const Options o{.window = chunk, .chunked = true};
      check_against_reference(tier, {4, 2, 32}, 64, {30, 700}, 200, Queries::kExact, o);
      check_against_reference(tier, {4, 2, 32}, 64, {301, 640}, 1, Queries::kExact, o);
    }
  }
}

TEST_CASE("quantized attention: sinks of heads") {
  for (const Tier& tier : kTiers) {
    for (const Options& o : {Options{.sinks = {0.5f, -3.f, 4.f, 30.f}},
                             Options{.window = 100, .softcap = 5.f, .sinks = {0.5f, -3.f, 4.f, 30.f}}}) {
      check_against_reference(tier, {4, 2, 32}, 64, {1, 63, 65, 700}, 3, Queries::kExact, o);
      QuantProblem p(tier, {4, 2, 32}, 64, {900}, Queries::kExact);
      p.append_all(Isa::kReference);
      ThreadPool pool({.threads = 3});
      for (Isa isa : levels()) {
        INFO(describe(tier, p, isa));
        const std::vector<Chunk> one = {{0, 900, 1}};
        const std::vector<float> got = p.run(isa, one, o);
        CHECK(largest_difference(got, p.run(isa, one, {.window = o.window, .softcap = o.softcap})) > 1e-3);
        Options dealt = o;  // and merged in a second phase
        dealt.pool = &pool;
        CHECK(same_bits(p.run(isa, one, dealt), got));
      }
    }
  }
}

TEST_CASE("quantized attention: decode equals prefill equals chunks equals batch, to the bit") {
  Sample sample(13);
  for (const Tier& tier : kTiers) {
    for (const Heads heads : {Heads{4, 1, 64}, Heads{3, 1, 40}, Heads{2, 2, 80}}) {
      for (int page : {16, 64, 96}) {
        for (int64_t window : {0, 70}) {
          QuantProblem p(tier, heads, page, {421, 77}, Queries::kNormal);
          p.append_all(Isa::kReference);
          const Options o{.window = window};
          const auto row = static_cast<size_t>(heads.H * heads.D);
          for (Isa isa : levels()) {
            if (!sample.take()) continue;
            INFO(describe(tier, p, isa) << " window " << window);
            // Both sequences whole, in one call.
            const std::vector<float> all = p.run(isa, {{0, 421, 421}, {1, 77, 77}}, o);
            REQUIRE(std::ranges::all_of(all, [](float x) { return std::isfinite(x); }));
            const std::vector<float> want(all.begin(), all.begin() + static_cast<long>(421 * row));
            for (int64_t step : {1, 23, 200}) {
              for (int64_t end : {421, 280, 65, 17}) {
                const int64_t count = std::min(step, end);
                const std::vector<float> got = p.run(isa, {{0, end, count}}, o);
                const auto from = want.begin() + static_cast<long>(static_cast<size_t>(end - count) * row);
                CHECK(same_bits(got, {from, from + static_cast<long>(static_cast<size_t>(count) * row)}));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("quantized attention: any number of workers, to the bit") {
  Sample sample(4);
  for (const Tier& tier : kTiers) {
    QuantProblem p(tier, {8, 2, 64}, 64, {1500, 333}, Queries::kNormal);
    p.append_all(Isa::kReference);
    for (Isa isa : levels()) {
      if (!sample.take()) continue;
      INFO(describe(tier, p, isa));
      for (int64_t count : {1, 40}) {
        const auto chunks = last_queries(p, count);
        const std::vector<float> want = p.run(isa, chunks, {});
        CHECK(same_bits(p.run(isa, chunks, {.step = 1000}), want));
        ThreadPool pool({.threads = 4});
        CHECK(same_bits(p.run(isa, chunks, {.pool = &pool}), want));
      }
    }
  }
}

TEST_CASE("quantized attention: a long context of few heads is dealt out, of a window only what it shows") {
  // A single query of one key/value head behind 16,384 tokens: spans of 256 are work for many workers. (That
  // pages a window has left are not looked at is tested by tables that point nowhere: see QuantProblem::run.)
  for (const Tier& tier : kTiers) {
    for (Isa isa : levels()) {
      QuantPagedAttentionArgs a;
      a.shape = {tier.keys, tier.values, 64, 1, 64};
      a.open_max_blocks = a.sink_max_blocks = a.common.max_blocks = 256;
      a.common.T = a.common.B = 1;
      a.common.H = 4;
      a.common.shape = open_kv_shape(a.shape);
      const Kernel* kernel =
          KernelRegistry::cpu().find({KernelFamily::kQuantPagedAttention, Format::bf16()}, isa);
      KernelPlan whole, window;
      kernel->plan(&a, 4, &whole);
      a.common.window = 512;
      kernel->plan(&a, 4, &window);
      INFO(kernel->name << " " << tier.name);
      CHECK(whole.phases == 2);
      CHECK(whole.chunks[0] >= 32);
      CHECK(window.chunks[0] <= 8);
      CHECK(window.shared_scratch * 8 <= whole.shared_scratch);
    }
  }
}

TEST_CASE("quantized attention: values of very different scales") {
  // Probabilities keep 15 bits relative to the largest scale seen: a token of huge values must not blur what
  // the rest of its span says beyond the bound, and a token of tiny ones must not be lost where it alone
  // counts.
  for (const Tier& tier : kTiers) {
    for (const float factor : {1e3f, 1e-3f}) {
      QuantProblem p(tier, {4, 2, 64}, 64, {520}, Queries::kExact);
      for (size_t i = 0; i < 128; ++i) p.v[0][100 * 128 + i] *= factor;
      p.append_all(Isa::kReference);
      const std::vector<float> want = p.run(Isa::kReference, {{0, 520, 3}}, {});
      for (Isa isa : levels()) {
        INFO(describe(tier, p, isa) << " factor " << factor);
        CHECK(largest_difference(p.run(isa, {{0, 520, 3}}, {}), want) <= p.bound(Queries::kExact, {}));
      }
    }
  }
}

TEST_CASE("quantized attention: a NaN or infinity comes out where it is seen, and nowhere else") {
  Sample sample(3);
  for (const Tier& tier : kTiers) {
    for (const float bad : {NAN, INFINITY}) {
      for (const bool key : {false, true}) {
        for (int64_t window : {0, 33}) {
          if (!sample.take()) continue;
          QuantProblem p(tier, {4, 1, 32}, 32, {300}, Queries::kNormal);
          (key ? p.k : p.v)[0][50 * 32 + 5] = bad;
          p.append_all(Isa::kReference);
          for (Isa isa : levels()) {
            const std::vector<float> out = p.run(isa, {{0, 300, 300}}, {.window = window});
            INFO(describe(tier, p, isa) << (key ? " key " : " value ") << bad << " window " << window);
            for (size_t t = 0; t < 300; ++t) {
              // Of a value, in the own page, its channel alone.
              bool finite = true;
              for (size_t i = t * 128; i < (t + 1) * 128; ++i) finite &= std::isfinite(out[i]);
              // An infinite key may give a logit of minus infinity, which weighs nothing.
              const bool seen = t >= 50 && (window == 0 || t < 50 + static_cast<size_t>(window));
              if (!seen) CHECK(finite);
              if (seen && !(key && bad == INFINITY)) CHECK(!finite);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("quantized append: every level writes the bytes of the reference") {
  Sample sample(4);
  for (const Tier& tier : kTiers) {
    for (int64_t D : {8, 16, 40, 64, 80, 128, 256, 512}) {
      for (int page : {16, 48, 64}) {
        if (!sample.take()) continue;
        QuantProblem want(tier, {2, 2, D}, page, {3 * page + 5, page, page - 1}, Queries::kNormal);
        // A constant bias, ties, zeros and sizes that fp8 has no normal number for.
        for (size_t i = 0; i < want.k[0].size(); ++i) {
          if (i % 7 == 0) want.k[0][i] += 30.f;
          if (i % 11 == 0) want.v[0][i] *= 1e-5f;
          if (i % 13 == 0) want.k[1][i % want.k[1].size()] = 0.f;
          if (i % 3 == 0) want.v[1][i % want.v[1].size()] = static_cast<float>(i % 9) * 0.5f;
        }
        QuantProblem got(tier, {2, 2, D}, page, want.lengths, Queries::kNormal);
        got.k = want.k;
        got.v = want.v;
        want.append_all(Isa::kReference);
        for (Isa isa : levels()) {
          for (Guarded<char>* bytes : {&got.pool, &got.open, &got.sinks}) {
            std::memset(bytes->data(), 0xff, bytes->size());
          }
          // In two chunks, of which the second fills a page begun by the first.
          for (size_t s = 0; s < got.lengths.size(); ++s) {
            const auto sequence = static_cast<int64_t>(s);
            got.append(isa, sequence, 0, page / 2);
            got.append(isa, sequence, page / 2, got.lengths[s]);
          }
          INFO(describe(tier, want, isa));
          CHECK(std::memcmp(got.pool.data(), want.pool.data(), want.pool.size()) == 0);
          CHECK(std::memcmp(got.open.data(), want.open.data(), want.open.size()) == 0);
          CHECK(std::memcmp(got.sinks.data(), want.sinks.data(), want.sinks.size()) == 0);
        }
      }
    }
  }
}

TEST_CASE("quantized append: a NaN or infinity poisons its token's scale at every level") {
  for (const Tier& tier : kTiers) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (Isa isa : levels()) {
        QuantProblem p(tier, {1, 1, 24}, 16, {16}, Queries::kNormal);
        p.k[0][5 * 24 + 7] = p.v[0][9 * 24 + 20] = bad;
        p.append_all(isa);
        const QuantKvLayout layout(p.shape);
        const char* head = p.pool.data();
        for (int64_t t = 0; t < 16; ++t) {
          INFO(describe(tier, p, isa) << " token " << t << " " << bad);
          CHECK(std::isnan(to_f32(reinterpret_cast<const f16*>(head + layout.key_scales)[t])) == (t == 5));
          CHECK(std::isnan(to_f32(reinterpret_cast<const f16*>(head + layout.value_scales)[t])) == (t == 9));
        }
      }
    }
  }
}

TEST_CASE("quantized attention: AMX and VNNI give the same bits") {
  // The integers; 16-bit pages of whole AMX steps are summed in another order.
  if (best_isa() < Isa::kAmx) OAR_SKIP("no AMX here");
  Sample sample;
  for (const Tier& tier : kTiers) {
    for (const Heads heads : {Heads{4, 1, 64}, Heads{9, 3, 80}, Heads{1, 1, 8}, Heads{16, 1, 136}}) {
      for (int page : {16, 48}) {
        if (!sample.take()) continue;
        QuantProblem p(tier, heads, page, {700, 65}, Queries::kNormal);
        p.append_all(Isa::kAmx);
        for (int64_t window : {0, 90}) {
          const auto chunks = last_queries(p, 70);
          const Options o{.window = window};
          INFO(describe(tier, p, Isa::kAmx) << " window " << window);
          CHECK(same_bits(p.run(Isa::kAmx, chunks, o), p.run(Isa::kAvx512Vnni, chunks, o)));
        }
      }
    }
  }
}

namespace {
constexpr Tier kLatentTiers[] = {{"int8", KvCode::kInt8, KvCode::kInt8},
                                 {"fp8", KvCode::kFp8, KvCode::kFp8},
                                 {"int4", KvCode::kInt4Mean, KvCode::kInt4Mean}};
struct LatentHeads {
  int64_t heads, width;
  int32_t latent;
};
constexpr LatentHeads kLatentHeads[] = {{3, 24, 16}, {5, 40, 32}, {20, 320, 256}, {16, 576, 512}};
}  // namespace

TEST_CASE("quantized latent: every level against the reference, and decode equals prefill to the bit") {
  for (const Tier& tier : kLatentTiers) {
    for (const LatentHeads& h : kLatentHeads) {
      QuantProblem p(tier, {h.heads, 1, h.width}, 64, {65, 130, 330}, Queries::kExact, 1, h.latent);
      p.append_all(Isa::kReference);
      const auto chunks = last_queries(p, 3);
      for (const int64_t window : {0, 70}) {
        const Options o{.window = window};
        const std::vector<float> want = p.run(Isa::kReference, chunks, o);
        for (const Isa isa : levels()) {
          INFO(describe(tier, p, isa) << " window " << window);
          CHECK(largest_difference(p.run(isa, chunks, o), want) <= p.bound(Queries::kExact, o));
          std::vector<float> one;
          for (int64_t at = 327; at < 330; ++at)
            for (const float x : p.run(isa, {{2, at + 1, 1}}, o)) one.push_back(x);
          CHECK(same_bits(p.run(isa, {{2, 330, 3}}, o), one));
        }
      }
    }
  }
}

TEST_CASE("quantized latent: every level writes the bytes of the reference") {
  for (const Tier& tier : kLatentTiers) {
    for (const LatentHeads& h : kLatentHeads) {
      QuantProblem want(tier, {h.heads, 1, h.width}, 16, {53, 16}, Queries::kNormal, 1, h.latent);
      QuantProblem got(tier, {h.heads, 1, h.width}, 16, {53, 16}, Queries::kNormal, 1, h.latent);
      want.append_all(Isa::kReference);
      for (const Isa isa : levels()) {
        std::memset(got.pool.data(), 0xff, got.pool.size());
        got.append_all(isa);
        INFO(describe(tier, want, isa));
        CHECK(std::memcmp(got.pool.data(), want.pool.data(), want.pool.size()) == 0);
      }
    }
  }
}

// A code is within half a step of 0.95 / 7.5 of the largest of its token, and what is clipped within 0.05.
TEST_CASE("quantized latent: int4 keeps a token's numbers within 0.0634 of its largest") {
  const Tier tier = kLatentTiers[2];
  QuantProblem p(tier, {4, 1, 320}, 16, {40}, Queries::kExact, 3, 256);
  p.append_all(Isa::kReference);
  const QuantKvLayout layout(p.shape);
  CHECK(layout.head_bytes == (16 * 320 / 2 + 16 * 2 + 63) / 64 * 64);  // codes and a scale each: 4.05 bits
  const auto* head = reinterpret_cast<const uint8_t*>(p.pool.data()) + p.table[1] * layout.block_bytes;
  for (int64_t t = 0; t < 16; ++t) {
    const float* x = p.k[0].data() + (16 + t) * 320;
    float largest = 0;
    for (int64_t d = 0; d < 320; ++d) largest = std::max(largest, std::fabs(x[d]));
    f16 scale;
    std::memcpy(&scale, head + layout.key_scales + 2 * t, sizeof scale);
    for (int64_t d = 0; d < 320; ++d) {
      const auto at = layout.key(t, d);
      const int code = at.high ? head[at.byte] >> 4 : head[at.byte] & 15;
      const float kept = to_f32(scale) * (static_cast<float>(code) - 7.5f);
      // And what a key in bf16 and a scale in f16 round.
      CHECK(std::fabs(kept - x[d]) <= largest * (0.95f / 15 + 0x1p-8f));
    }
  }
}
