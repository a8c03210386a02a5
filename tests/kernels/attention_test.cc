// Every attention kernel this machine can run against the double-precision reference, and the promises of
// kernels/attention.h: decode equals prefill bit for bit whatever the chunking, the batch, the pages and the
// workers; nothing outside a query's window is read into its result; no access past an operand.
#include "tests/kernels/attention_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

using Chunk = AttentionProblem::Chunk;
using Options = AttentionProblem::Options;

const DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

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

std::string describe(const AttentionProblem& p, Isa isa) {
  return std::string(p.kernel(isa).name) + " H=" + std::to_string(p.heads.H) +
         " K=" + std::to_string(p.heads.K) + " D=" + std::to_string(p.heads.D) +
         " P=" + std::to_string(p.shape.page_tokens);
}

// The last `count` queries of every sequence in one call.
std::vector<Chunk> last_queries(const AttentionProblem& p, int64_t count) {
  std::vector<Chunk> chunks;
  for (size_t s = 0; s < p.lengths.size(); ++s) {
    chunks.push_back({static_cast<int64_t>(s), p.lengths[s], std::min(count, p.lengths[s])});
  }
  return chunks;
}

void check_against_reference(AttentionProblem& p, const std::vector<Chunk>& chunks, const Options& o) {
  p.append_all(Isa::kReference);
  const std::vector<float> want = p.run(Isa::kReference, chunks, o);
  for (Isa isa : levels()) {
    INFO(describe(p, isa) << " window=" << o.window << " softcap=" << o.softcap);
    const double bound = p.bound(rounds_operands(p.shape.type, isa), o);
    CHECK(largest_difference(p.run(isa, chunks, o), want) <= bound);
  }
}

}  // namespace

TEST_CASE("kv layout: panels tile the block and elements tile the panel") {
  for (DType type : kTypes) {
    for (int32_t D : {8, 64, 80, 256, 512}) {
      const KvShape shape{type, 48, 3, D};
      const KvLayout layout(shape);
      CHECK(kv_block_bytes(shape) % 64 == 0);
      std::vector<int> seen(kv_block_bytes(shape), 0);
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t t = 0; t < 48; ++t) {
          for (int64_t d = 0; d < D; ++d) {
            const int64_t k = layout.k_panel(h, t / 16) + layout.k_index(t % 16, d) * layout.elem_bytes;
            const int64_t v = layout.v_panel(h, t / 16) + layout.v_index(t % 16, d) * layout.elem_bytes;
            for (int64_t i = 0; i < layout.elem_bytes; ++i) {
              ++seen[static_cast<size_t>(k + i)];
              ++seen[static_cast<size_t>(v + i)];
            }
          }
        }
      }
      CHECK(std::ranges::all_of(seen, [](int n) { return n == 1; }));
    }
  }
}

TEST_CASE("kv append: every level writes the bytes of the reference and skips negative slots") {
  for (DType type : kTypes) {
    for (int64_t D : {8, 24, 64, 128}) {
      AttentionProblem want({4, 2, D}, type, 32, {1, 45, 70}), got({4, 2, D}, type, 32, {1, 45, 70});
      want.append_all(Isa::kReference);
      for (Isa isa : levels()) {
        std::memset(got.pool.data(), 0xff, got.pool.size());
        got.append_all(isa);
        INFO(describe(got, isa));
        CHECK(std::memcmp(got.pool.data(), want.pool.data(), want.pool.size()) == 0);
      }
    }
  }
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    AttentionProblem p({1, 1, 8}, DType::kBF16, 16, {16});
    const int32_t slots[] = {-1, -5};
    const float x[16] = {};
    KvAppendArgs a;
    a.pool = p.pool.data();
    a.k = a.v = x;
    a.slots = slots;
    a.T = 2;
    a.ldk = a.ldv = 8;
    a.shape = p.shape;
    run_in_steps(
        *KernelRegistry::cpu().find({KernelFamily::kKvAppend, Format::bf16()}, static_cast<Isa>(level)), &a,
        1, false);
    CHECK(std::ranges::all_of(p.pool, [](char c) { return c == '\xff'; }));
  }
}

TEST_CASE("attention: decode against the reference, all head sizes and types") {
  for (DType type : kTypes) {
    for (int64_t D : {8, 16, 24, 32, 64, 80, 96, 112, 128, 192, 256, 512}) {
      AttentionProblem p({4, 2, D}, type, 16, {1, 17, 40});
      check_against_reference(p, last_queries(p, 1), {});
    }
  }
}

TEST_CASE("attention: context lengths around page and span borders") {
  for (DType type : kTypes) {
    for (int page : {16, 48, 64, 256, 512}) {
      AttentionProblem p({2, 1, 16}, type, page,
                         {1, 2, 15, 16, 17, 47, 48, 49, 63, 64, 65, 255, 256, 257, 511, 512, 513, 769});
      check_against_reference(p, last_queries(p, 1), {});
    }
  }
}

TEST_CASE("attention: groups of query heads of every size") {
  for (int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 16, 71}) {
    AttentionProblem p({2 * group, 2, 32}, DType::kBF16, 32, {33, 290});
    check_against_reference(p, last_queries(p, 2), {});
  }
}

TEST_CASE("attention: prompts, windows and soft caps against the reference") {
  Sample sample(2);
  for (DType type : kTypes) {
    for (int64_t window : {0, 1, 2, 31, 100, 256, 300}) {
      if (!sample.take()) continue;
      AttentionProblem p({4, 2, 24}, type, 16, {1, 30, 333});
      check_against_reference(p, last_queries(p, 1000), {.window = window});
      check_against_reference(p, last_queries(p, 1), {.window = window, .softcap = 5.f});
    }
  }
}

TEST_CASE(
    "attention: sinks against the reference; those far below every logit are none, those far above all") {
  // Logits of these problems lie within +-6 or so.
  const std::vector<float> sinks = {0.5f, -3.f, 4.f, 30.f};
  Sample sample(2);
  for (DType type : kTypes) {
    for (int64_t window : {0, 1, 31, 300}) {
      for (float softcap : {0.f, 5.f}) {
        if (!sample.take()) continue;
        AttentionProblem p({4, 2, 24}, type, 16, {1, 30, 333, 700});
        const Options o{.window = window, .softcap = softcap, .sinks = sinks};
        check_against_reference(p, last_queries(p, 1), o);
        check_against_reference(p, last_queries(p, 40), o);
        ThreadPool pool({.threads = 3});
        for (Isa isa : levels()) {
          INFO(describe(p, isa));
          const std::vector<Chunk> one = {{3, 700, 1}};
          const std::vector<float> got = p.run(isa, one, o),
                                   none = p.run(isa, one, {.window = window, .softcap = softcap});
          CHECK(largest_difference(got, none) > 1e-3);  // heads 0 to 2
          for (size_t d = 3 * 24; d < 4 * 24; ++d) CHECK(std::fabs(got[d]) < 1e-6f);
          // Dealt out and merged in a second phase, and as the last row of a prompt.
          Options dealt = o;
          dealt.pool = &pool;
          CHECK(same_bits(p.run(isa, one, dealt), got));
          const std::vector<float> prompt = p.run(isa, {{3, 700, 9}}, o);
          CHECK(same_bits(std::vector<float>(prompt.end() - 96, prompt.end()), got));
          CHECK(same_bits(
              p.run(isa, one, {.window = window, .softcap = softcap, .sinks = std::vector<float>(4, -200.f)}),
              none));
        }
      }
    }
  }
}

TEST_CASE("attention: windows that are chunks of positions, as if each began a sequence") {
  for (DType type : kTypes) {
    for (int64_t chunk : {1, 16, 37, 300}) {
      AttentionProblem p({4, 2, 24}, type, 16, {1, 30, 333, 700});
      const Options o{.window = chunk, .chunked = true};
      check_against_reference(p, last_queries(p, 1000), o);
      check_against_reference(p, last_queries(p, 1), o);
      // Within its first chunk a query sees all that is before it.
      for (Isa isa : levels()) {
        INFO(describe(p, isa) << " chunks of " << chunk);
        const std::vector<Chunk> first = {{3, chunk, chunk}};
        CHECK(same_bits(p.run(isa, first, o), p.run(isa, first, {})));
        const std::vector<float> behind = p.run(isa, {{2, chunk + 1, 1}}, o);  // itself alone
        CHECK(largest_difference(behind, p.run(isa, {{2, chunk + 1, 1}}, {.window = 1})) == 0);
      }
    }
  }
}

// The whole prompt at once, in chunks of 7, and token by token, each chunk attending right after its append
// as in serving: what later positions hold must not matter.
TEST_CASE("attention: decode equals prefill equals chunks, to the bit") {
  struct Case {
    Heads heads;
    int page;
    int64_t window;
  };
  const Case cases[] = {{{4, 1, 64}, 64, 0}, {{2, 2, 40}, 16, 0},  {{6, 2, 16}, 48, 0},
                        {{3, 3, 8}, 16, 37}, {{8, 2, 80}, 32, 65}, {{5, 1, 128}, 64, 256},
                        {{2, 2, 24}, 32, 1}};
  constexpr int64_t kLength = 300;
  Sample sample;
  for (const Case& c : cases) {
    for (DType type : kTypes) {
      for (Isa isa : levels()) {
        if (!sample.take()) continue;
        AttentionProblem whole(c.heads, type, c.page, {kLength});
        INFO(describe(whole, isa) << " window=" << c.window);
        const Options o{.window = c.window};
        whole.append_all(isa);
        const std::vector<float> want = whole.run(isa, {{0, kLength, kLength}}, o);
        for (int64_t step : {1, 7, 64}) {
          AttentionProblem p(c.heads, type, c.page, {kLength});
          std::vector<float> got;
          for (int64_t begin = 0; begin < kLength; begin += step) {
            const int64_t end = std::min(begin + step, kLength);
            p.append(isa, 0, begin, end);
            const std::vector<float> rows = p.run(isa, {{0, end, end - begin}}, o);
            got.insert(got.end(), rows.begin(), rows.end());
          }
          INFO("chunks of " << step);
          CHECK(same_bits(got, want));
        }
      }
    }
  }
}

TEST_CASE("attention: a mixed batch equals its sequences alone, for any workers and order, to the bit") {
  for (DType type : kTypes) {
    for (Isa isa : levels()) {
      AttentionProblem p({4, 2, 64}, type, 32, {700, 5, 129, 300, 1, 256, 41});
      INFO(describe(p, isa));
      p.append_all(isa);
      // Decodes, prompts and a chunk in the middle of a sequence whose tail is already in the cache.
      const std::vector<Chunk> mixed = {{0, 700, 1}, {1, 5, 5},   {2, 129, 100}, {3, 200, 33},
                                        {4, 1, 1},   {5, 256, 1}, {6, 41, 2}};
      std::vector<float> want;
      for (const Chunk& c : mixed) {
        const std::vector<float> rows = p.run(isa, {c}, {});
        want.insert(want.end(), rows.begin(), rows.end());
      }
      for (int64_t step : {1, 4, 1000}) CHECK(same_bits(p.run(isa, mixed, {.step = step}), want));
      for (int workers = 1; workers <= 5; ++workers) {
        ThreadPool pool({.threads = workers});
        CHECK(same_bits(p.run(isa, mixed, {.pool = &pool}), want));
        // Few rows: the context itself is dealt out, and merged in a second phase.
        CHECK(same_bits(p.run(isa, {mixed[0]}, {.pool = &pool}),
                        std::vector<float>(want.begin(), want.begin() + 256)));
      }
    }
  }
}

TEST_CASE("attention: other pages' stale bytes and a sequence's own later tokens never leak") {
  for (DType type : kTypes) {
    for (Isa isa : levels()) {
      for (int64_t window : {0, 20}) {
        AttentionProblem p({4, 2, 16}, type, 16, {70});
        INFO(describe(p, isa));
        p.append_all(isa);
        const std::vector<float> clean = p.run(isa, {{0, 70, 70}}, {.window = window});
        // From position 37 on the sequence is NaN: queries before it must not notice, those that see it must.
        for (std::vector<float>* x : {&p.k[0], &p.v[0]}) {
          std::fill(x->begin() + 37 * 2 * 16, x->begin() + 38 * 2 * 16, NAN);
        }
        p.append(isa, 0, 37, 38);
        const std::vector<float> got = p.run(isa, {{0, 70, 70}}, {.window = window});
        const auto row = 4 * 16;
        CHECK(std::equal(got.begin(), got.begin() + 37 * row, clean.begin()));
        for (int64_t t = 37; t < 70; ++t) {
          const bool sees = window == 0 || t - 37 < window;
          for (int64_t i = t * row; i < (t + 1) * row; ++i) {
            if (std::isnan(got[static_cast<size_t>(i)]) != sees) FAIL("query " << t);
          }
        }
      }
    }
  }
}

TEST_CASE("attention: pages that left the window are neither looked up nor read") {
  for (DType type : kTypes) {
    for (Isa isa : levels()) {
      AttentionProblem p({4, 2, 32}, type, 32, {700});
      INFO(describe(p, isa));
      p.append_all(isa);
      for (int64_t count : {1, 40}) {
        for (int64_t window : {1, 33, 300}) {
          const std::vector<Chunk> chunks = {{0, 700, count}};
          const std::vector<float> want = p.run(isa, chunks, {.window = window});
          const std::vector<int32_t> table = p.table;
          const int64_t oldest = 700 - count + 1 - window;  // position the first query still sees
          std::fill(p.table.begin(), p.table.begin() + oldest / 32, 1 << 28);
          CHECK(same_bits(p.run(isa, chunks, {.window = window}), want));
          p.table = table;
        }
      }
    }
  }
}

TEST_CASE("attention: large logits and a span of negligible ones") {
  for (DType type : kTypes) {
    AttentionProblem p({2, 1, 16}, type, 32, {600});
    // Keys of the first span point away from every query: their probabilities underflow to zero.
    for (size_t i = 0; i < p.q[0].size(); ++i) p.q[0][i] = 4.f;
    for (size_t i = 0; i < p.k[0].size(); ++i)
      p.k[0][i] = i < 256 * 16 ? -8.f : 8.f * static_cast<float>(i / 16 % 7) / 7.f;
    check_against_reference(p, last_queries(p, 3), {});
    for (Isa isa : levels()) {
      for (float x : p.run(isa, {{0, 600, 2}}, {})) REQUIRE(std::isfinite(x));
    }
  }
}

TEST_CASE("attention: scratch and chunks never shrink when a batch grows") {
  for (int level = 1; level <= static_cast<int>(best_isa()); ++level) {
    const AttentionProblem p({32, 8, 64}, DType::kBF16, 64, {64});
    PagedAttentionArgs a;
    a.shape = p.shape;
    a.H = 32;
    a.max_blocks = 512;
    KernelPlan last{};
    for (int64_t T : {0, 1, 2, 3, 4, 5, 31, 32, 100, 4096}) {
      a.T = a.B = T;
      KernelPlan plan;
      p.kernel(static_cast<Isa>(level)).plan(&a, 4, &plan);
      CHECK(plan.worker_scratch >= last.worker_scratch);
      CHECK(plan.shared_scratch >= last.shared_scratch);
      CHECK(plan.chunks[0] >= 1);
      last = plan;
    }
  }
}

namespace {
// Keys whose leading dims are their values: heads of queries over one, its width, and how much of it that is.
struct Latent {
  int64_t heads, width;
  int32_t leading;
};
// Small ones and DeepSeek's, with the heads of GLM-4.7-Flash, Kimi K2 and DeepSeek V3.
constexpr Latent kLatents[] = {{3, 24, 16},    {5, 40, 32},    {4, 320, 256},
                               {20, 576, 512}, {64, 576, 512}, {128, 576, 512}};
constexpr bool is_wide(const Latent& l) { return l.width > 512; }
}  // namespace

TEST_CASE("attention to latents: every level against the reference, prompts, windows and spans") {
  Sample sample;
  for (DType type : kTypes) {
    for (const Latent& l : kLatents) {
      for (const int64_t window : {0, 70}) {
        if (!sample.take() || (window > 0 && l.heads > 20)) continue;
        // Behind a span's 256 positions, and about a page's border.
        const std::vector<int64_t> lengths =
            l.heads > 20 ? std::vector<int64_t>{290} : std::vector<int64_t>{1, 65, 330};
        AttentionProblem p({l.heads, 1, l.width}, type, 64, lengths, 1, l.leading);
        check_against_reference(p, last_queries(p, 2), {.window = window, .softcap = window > 0 ? 5.f : 0.f});
        if (!is_wide(l)) check_against_reference(p, last_queries(p, 1000), {.window = window});
      }
    }
  }
}

TEST_CASE("attention to latents: every level writes the bytes of the reference, and no values") {
  for (DType type : kTypes) {
    for (const Latent& l : kLatents) {
      AttentionProblem want({l.heads, 1, l.width}, type, 16, {53, 16}, 1, l.leading),
          got({l.heads, 1, l.width}, type, 16, {53, 16}, 1, l.leading);
      CHECK(kv_block_bytes(want.shape) ==
            static_cast<size_t>(16 * l.width * KvLayout(want.shape).elem_bytes));
      for (std::vector<float>& v : got.v) std::fill(v.begin(), v.end(), NAN);  // which nobody reads
      want.append_all(Isa::kReference);
      for (Isa isa : levels()) {
        std::memset(got.pool.data(), 0xff, got.pool.size());
        got.append_all(isa);
        INFO(describe(got, isa));
        CHECK(std::memcmp(got.pool.data(), want.pool.data(), want.pool.size()) == 0);
      }
    }
  }
}

TEST_CASE("attention to latents: decode equals prefill equals company, for any workers, to the bit") {
  Sample sample;
  for (DType type : kTypes) {
    for (const Latent& l : kLatents) {
      for (Isa isa : levels()) {
        if (!sample.take() || l.heads > 64) continue;
        const int64_t length = 290, first = is_wide(l) ? length - 18 : 0;
        const auto make = [&] {
          return AttentionProblem({l.heads, 1, l.width}, type, 64, {length, 70}, 1, l.leading);
        };
        AttentionProblem whole = make();
        INFO(describe(whole, isa));
        whole.append_all(isa);
        const std::vector<float> want = whole.run(isa, {{0, length, length - first}}, {});
        // Each attends right after its own append.
        for (const int64_t step : {1, 7}) {
          AttentionProblem p = make();
          if (first > 0) p.append(isa, 0, 0, first);
          std::vector<float> got;
          for (int64_t begin = first; begin < length; begin += step) {
            const int64_t end = std::min(begin + step, length);
            p.append(isa, 0, begin, end);
            const std::vector<float> rows = p.run(isa, {{0, end, end - begin}}, {});
            got.insert(got.end(), rows.begin(), rows.end());
          }
          INFO("chunks of " << step);
          CHECK(same_bits(got, want));
        }
        const std::vector<Chunk> mixed = {{1, 70, 9}, {0, length, 1}, {1, 40, 1}};
        std::vector<float> alone;
        for (const Chunk& c : mixed)
          for (const float x : whole.run(isa, {c}, {})) alone.push_back(x);
        for (const int workers : {1, 3}) {
          ThreadPool pool({.threads = workers});
          CHECK(same_bits(whole.run(isa, mixed, {.pool = &pool}), alone));
          CHECK(same_bits(whole.run(isa, {mixed[1]}, {.pool = &pool}),
                          whole.run(isa, {mixed[1]}, {.step = 1000})));
        }
      }
    }
  }
}

TEST_CASE("attention to latents: what a query does not see never reaches it") {
  for (DType type : kTypes) {
    for (Isa isa : levels()) {
      AttentionProblem p({4, 1, 40}, type, 16, {70}, 1, 32);
      INFO(describe(p, isa));
      p.append_all(isa);
      const std::vector<float> clean = p.run(isa, {{0, 70, 70}}, {});
      const std::vector<float> kept = p.k[0];
      std::fill(p.k[0].begin() + 37 * 40, p.k[0].begin() + 38 * 40, NAN);
      p.append(isa, 0, 37, 38);
      const std::vector<float> got = p.run(isa, {{0, 70, 70}}, {});
      const size_t before = 37 * 4 * 32;
      CHECK(std::equal(got.begin(), got.begin() + before, clean.begin()));
      for (size_t i = before; i < got.size(); ++i)
        if (!std::isnan(got[i])) FAIL("query " << i / (4 * 32));
      p.k[0] = kept;
      p.append(isa, 0, 37, 38);
      CHECK(same_bits(p.run(isa, {{0, 70, 70}}, {}), clean));
    }
  }
}
