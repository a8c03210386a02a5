// The quantized cache on the device: pages are the reference's to the byte, attention lies within a derived
// bound of it, and a row is the same alone and in any company.
#include "kernels/cuda/attention_quant.h"

#include <map>

#include "tests/cuda/on_device.h"
#include "tests/kernels/attention_quant_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

class DeviceQuantCache {
 public:
  explicit DeviceQuantCache(const QuantProblem& p)
      : p_(p),
        pool_(std::vector<char>(p.pool.size(), '\xff')),
        open_(std::vector<char>(p.open.size(), '\xff')),
        sinks_(std::vector<char>(p.sinks.size(), '\xff')) {}

  void append(size_t s, int64_t begin, int64_t end) {
    const int64_t row = p_.heads.K * p_.heads.D, P = p_.shape.page_tokens;
    std::vector<int32_t> slots, first;
    for (int64_t t = begin; t < end; ++t) {
      const int32_t block = p_.table[s * static_cast<size_t>(p_.max_blocks) + static_cast<size_t>(t / P)];
      slots.push_back(block * static_cast<int32_t>(P) + static_cast<int32_t>(t % P));
      first.push_back(t < P ? static_cast<int32_t>(static_cast<int64_t>(s) * P + t) : -1);
    }
    const auto part = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + begin * row, all.begin() + end * row);
    };
    DeviceArray k(part(p_.k[s])), v(part(p_.v[s]));
    DeviceCopy<int32_t> dslots(slots), dfirst(first);
    QuantKvAppendArgs a;
    a.pool = pool_.data();
    a.open = open_.data();
    a.sinks = sinks_.data();
    a.k = k.data();
    a.v = v.data();
    a.slots = a.open_slots = dslots.data();
    a.sink_slots = dfirst.data();
    a.T = end - begin;
    a.ldk = a.ldv = row;
    a.shape = p_.shape;
    launch_on_device(KernelFamily::kQuantKvAppend, "bf16", &a, kv_code_name(p_.shape.keys),
                     kv_code_name(p_.shape.values), p_.shape.latent > 0);
  }

  std::vector<float> run(const std::vector<QuantProblem::Chunk>& chunks, const QuantProblem::Options& o) {
    const int64_t row = p_.heads.H * p_.heads.D, P = p_.shape.page_tokens;
    constexpr int32_t kNowhere = 1 << 28;
    std::vector<int32_t> start = {0}, context, tables, open_tables, sink_tables;
    std::vector<float> queries;
    int64_t max_blocks = 0;  // no more: what lies behind the longest context is not read
    for (const auto& c : chunks) max_blocks = std::max(max_blocks, (c.context + P - 1) / P);
    for (const auto& c : chunks) {
      start.push_back(static_cast<int32_t>(start.back() + c.count));
      context.push_back(static_cast<int32_t>(c.context));
      const auto begin = p_.table.begin() + c.sequence * p_.max_blocks;
      const int64_t first = c.context - c.count, from = o.window > 0 ? first - o.window + 1 : 0;
      for (int64_t i = 0; i < max_blocks; ++i) {
        tables.push_back((i + 1) * P > from && i < (c.context - 1) / P ? begin[i] : kNowhere);
        open_tables.push_back(i >= first / P && i <= (c.context - 1) / P ? begin[i] : kNowhere);
      }
      sink_tables.push_back(from < kKvSinkTokens && c.context > P ? static_cast<int32_t>(c.sequence)
                                                                  : kNowhere);
      const auto& q = p_.q[static_cast<size_t>(c.sequence)];
      queries.insert(queries.end(), q.begin() + first * row, q.begin() + c.context * row);
    }
    const int64_t T = start.back();
    const int64_t row_out = p_.heads.H * open_kv_shape(p_.shape).value_dim();
    DeviceArray dq(queries), out(nothing_yet(T * row_out));
    DeviceCopy<int32_t> dstart(start), dcontext(context), dtables(tables), dopen(open_tables),
        dsinks(sink_tables);
    QuantPagedAttentionArgs a;
    a.shape = p_.shape;
    a.open = open_.data();
    a.sinks = sinks_.data();
    a.open_tables = dopen.data();
    a.sink_tables = dsinks.data();
    a.open_max_blocks = max_blocks;
    a.sink_max_blocks = 1;
    PagedAttentionArgs& c = a.common;
    c.out = out.data();
    c.q = dq.data();
    c.pool = pool_.data();
    c.block_tables = dtables.data();
    c.seq_start = dstart.data();
    c.context_len = dcontext.data();
    c.T = T;
    c.B = static_cast<int64_t>(chunks.size());
    c.H = p_.heads.H;
    c.ldq = row;
    c.ldo = row_out;
    c.max_blocks = max_blocks;
    c.shape = open_kv_shape(p_.shape);
    c.scale = 1.f / std::sqrt(static_cast<float>(p_.heads.D));
    c.softcap = o.softcap;
    c.window = o.window;
    c.chunked = o.chunked ? 1 : 0;
    DeviceCopy<float> logits(o.sinks);
    if (!o.sinks.empty()) c.sink_logits = logits.data();
    launch_on_device(KernelFamily::kQuantPagedAttention, "bf16", &a, kv_code_name(p_.shape.keys),
                     kv_code_name(p_.shape.values), p_.shape.latent > 0);
    return out.host();
  }

  std::vector<char> pages() { return pool_.host(); }

 private:
  const QuantProblem& p_;
  DeviceCopy<char> pool_, open_, sinks_;
};

// Queries and probabilities are f32 here: of QuantProblem::bound() only roundings of f32 are left, and those
// of decoding, 2^-24 of terms up to 8 times a logit (a minimum is 15 / 2 steps).
double f32_bound(const QuantProblem& p, const QuantProblem::Options& o) {
  double vmax = 0, qmax = 0, kmax = 0;
  const auto norm = [&](const std::vector<float>& x) {
    double most = 0;
    for (size_t i = 0; i < x.size(); i += static_cast<size_t>(p.heads.D)) {
      double sum = 0;
      for (size_t d = i; d < i + static_cast<size_t>(p.heads.D); ++d) sum += static_cast<double>(x[d]) * x[d];
      most = std::max(most, std::sqrt(sum));
    }
    return most;
  };
  for (size_t s = 0; s < p.lengths.size(); ++s) {
    for (float x : p.v[s]) vmax = std::max(vmax, static_cast<double>(std::fabs(x)));
    qmax = std::max(qmax, norm(p.q[s]));
    kmax = std::max(kmax, norm(p.k[s]));
  }
  const double D = static_cast<double>(p.heads.D), m = 1.1 * qmax * kmax / std::sqrt(D);
  const bool tensor = cuda::quant_by_tensor_cores(p.shape.keys, p.shape.values, open_kv_shape(p.shape));
  // Tensor cores take queries and weights as two bf16, which lose 2^-17, of terms that a minimum makes larger
  // as said; exponentials are as exact as AttentionProblem::bound() has it.
  const double split = tensor ? std::ldexp(1.0, -17) : 0;
  const double logits = (split + (D + 4) * kUnit) * 8 * m + 8 * kUnit * o.softcap;
  const double exponential = std::ldexp(1.0, tensor ? -17 : -22);
  return 2 * vmax * (std::expm1(2 * logits) + exponential + 8 * split + 300 * kUnit);
}

void check(const Tier& tier, Heads heads, int page, std::vector<int64_t> lengths,
           const std::vector<QuantProblem::Chunk>& chunks, const QuantProblem::Options& o = {},
           int32_t latent = 0) {
  INFO(tier.name << " H " << heads.H << " K " << heads.K << " D " << heads.D << " page " << page << " window "
                 << o.window << " latent " << latent);
  QuantProblem p(tier, heads, page, std::move(lengths), Queries::kNormal, 1, latent);
  p.append_all(Isa::kReference);
  DeviceQuantCache device(p);
  for (size_t s = 0; s < p.lengths.size(); ++s) {
    device.append(s, 0, p.lengths[s] / 3);
    device.append(s, p.lengths[s] / 3, p.lengths[s]);
  }
  CHECK(device.pages() == std::vector<char>(p.pool.begin(), p.pool.end()));
  const std::vector<float> got = device.run(chunks, o);
  const double bound = f32_bound(p, o);
  check_close(got, p.run(Isa::kReference, chunks, o), [&](size_t) { return bound; });
  // A row is what it is alone: the first of a chunk, the last, and some between, wherever they come again.
  size_t at = 0;
  const auto row = static_cast<size_t>(heads.H * open_kv_shape(p.shape).value_dim());
  std::map<std::pair<int64_t, int64_t>, std::vector<float>> alone;
  for (const auto& c : chunks) {
    for (int64_t i = c.context - c.count + 1; i <= c.context; ++i, at += row) {
      if (i != c.context && i != c.context - c.count + 1 && i % 48 != 1) continue;
      std::vector<float>& its = alone[{c.sequence, i}];
      if (its.empty()) its = device.run({{c.sequence, i, 1}}, o);
      CHECK(std::equal(its.begin(), its.end(), got.begin() + static_cast<std::ptrdiff_t>(at)));
    }
  }
}

}  // namespace

TEST_CASE("cuda: quantized caches, every tier against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Tier& tier : kTiers) {
    check(tier, {4, 2, 64}, 16, {5, 40, 100}, {{0, 5, 5}, {1, 33, 3}, {2, 100, 1}});
    check(tier, {2, 1, 8}, 32, {70}, {{0, 70, 6}});
    check(tier, {2, 1, 128}, 16, {70}, {{0, 70, 1}}, {.window = 21});
    check(tier, {3, 1, 512}, 16, {40}, {{0, 40, 2}});
  }
  check(kTiers[3], {1, 1, 256}, 16, {40}, {{0, 40, 1}}, {.softcap = 3.f});
  check(kTiers[4], {1, 1, 256}, 16, {20}, {{0, 20, 1}});
  check(kTiers[5], {2, 2, 264}, 16, {36}, {{0, 36, 1}});  // between two widths, a key for each query
  check(kTiers[2], {1, 1, 512}, 16, {290}, {{0, 290, 257}}, {.window = 4});  // more rows than are split
  check(kTiers[5], {1, 1, 80}, 64, {300}, {{0, 300, 2}});
  // By tensor cores: heads of each width, more of them than a fragment has, several spans, pages that end
  // within a step.
  for (const size_t tier : {0, 1, 2, 3}) {
    check(kTiers[tier], {20, 1, 32}, 16, {300, 70}, {{0, 300, 2}, {1, 70, 70}});
    check(kTiers[tier], {3, 1, 96}, 48, {290}, {{0, 290, 1}}, {.window = 100, .softcap = 3.f});
  }
  check(kTiers[1], {1, 1, 32}, 16, {300}, {{0, 300, 257}}, {.window = 40});
  // Several rows a block, whose windows begin in different spans and in different pages.
  for (const size_t tier : {0, 3}) {
    check(kTiers[tier], {4, 1, 32}, 16, {530, 20}, {{0, 530, 40}, {1, 7, 0}, {1, 20, 3}}, {.window = 250});
    check(kTiers[tier], {2, 2, 32}, 48, {100, 9}, {{1, 9, 9}, {0, 100, 70}});
  }
  // Heads that share keys over several spans, and more rows than are split.
  check(kTiers[0], {6, 1, 32}, 32, {530}, {{0, 530, 1}});
  check(kTiers[4], {3, 1, 16}, 16, {300}, {{0, 300, 1}});
  check(kTiers[3], {1, 1, 8}, 16, {300}, {{0, 300, 257}}, {.window = 40});
}

TEST_CASE("cuda: tiles of rows and heads over quantized caches are the rows alone", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const size_t tier : {0, 1, 2, 3}) {
    // Pieces of pages in front and at the end, and sequences of few rows and of none beside.
    check(kTiers[tier], {8, 2, 64}, 64, {300, 150, 1, 9},
          {{0, 300, 40}, {1, 150, 131}, {3, 9, 0}, {2, 1, 1}});
    check(kTiers[tier], {3, 1, 128}, 16, {290}, {{0, 290, 60}}, {.window = 70});
    check(kTiers[tier], {12, 1, 32}, 48, {45, 530}, {{0, 45, 45}, {1, 530, 7}},
          {.window = 9, .softcap = 2.f});
  }
  // More rows than are split, of so many sequences that tiles would not pay; one has rows in two launches.
  std::vector<QuantProblem::Chunk> few;
  for (int64_t i = 0; i < 90; ++i) few.push_back({0, 17 + i % 4 * 8, 3});
  check(kTiers[0], {1, 1, 32}, 16, {41}, few);
  check(kTiers[0], {66, 1, 32}, 16, {40}, {{0, 40, 20}});                  // more heads than a tile has pairs
  check(kTiers[3], {4, 2, 96}, 32, {272}, {{0, 272, 50}}, {.window = 9});  // some see one span of two
  check(kTiers[1], {4, 1, 32}, 16, {530}, {{0, 530, 20}}, {.window = 274});  // windows begin within a panel
}

TEST_CASE("cuda: sinks of heads, and windows that are chunks, over quantized caches", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::vector<float> sinks{0.5f, -3.f, 4.f, 30.f};
  for (const Tier& tier : kTiers) {
    const bool tensor = &tier < kTiers + 4;
    const int32_t D = tensor ? 64 : 24;
    check(tier, {4, 2, D}, 16, {5, 100}, {{0, 5, 5}, {1, 100, 2}},
          {.window = 9, .softcap = 2.f, .sinks = sinks});
    check(tier, {4, 2, D}, 16, {100}, {{0, 100, 2}}, {.window = 32, .chunked = true, .sinks = sinks});
    if (tensor)
      check(tier, {4, 2, D}, 16, {90}, {{0, 90, 80}}, {.window = 40, .chunked = true, .sinks = sinks});
  }
}

TEST_CASE("cuda: quantized caches of keys and values that are all alike", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Tier& tier : kTiers) {
    INFO(tier.name);
    QuantProblem p(tier, {1, 1, 16}, 16, {64}, Queries::kNormal);
    // A page each; 1e-9 is too small for an f16, so a token's minimum is not what it is made of.
    constexpr float kPages[] = {0.f, 1e-9f, -1e-9f, 1.5f};
    for (size_t i = 0; i < p.k[0].size(); ++i) p.k[0][i] = p.v[0][i] = kPages[i / (16 * 16)];
    p.append_all(Isa::kReference);
    DeviceQuantCache device(p);
    device.append(0, 0, 64);
    CHECK(device.pages() == std::vector<char>(p.pool.begin(), p.pool.end()));
  }
}

TEST_CASE("cuda: what is not finite in a quantized page comes out again", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Tier& tier : kTiers) {
    INFO(tier.name);
    QuantProblem p(tier, {1, 1, 16}, 16, {48}, Queries::kNormal);
    p.k[0][20 * 16 + 3] = NAN;
    p.k[0][22 * 16 + 5] = INFINITY;
    p.v[0][25 * 16 + 1] = -INFINITY;
    p.append_all(Isa::kReference);
    DeviceQuantCache device(p);
    device.append(0, 0, 48);
    CHECK(device.pages() == std::vector<char>(p.pool.begin(), p.pool.end()));
  }
}

TEST_CASE("cuda: rows beside a quantized value that they do not see, and that is not finite", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const size_t tier : {0, 1, 2, 3}) {
    INFO(kTiers[tier].name);
    const QuantProblem::Options o = {.window = 14};
    QuantProblem p(kTiers[tier], {2, 1, 32}, 16, {48}, Queries::kNormal);
    p.v[0][20 * 32 + 3] = INFINITY;
    p.append_all(Isa::kReference);
    DeviceQuantCache device(p);
    device.append(0, 0, 48);
    constexpr size_t kRow = 2 * 32;
    const std::vector<float> by_spans = device.run({{0, 48, 24}}, o), in_tiles = device.run({{0, 48, 40}}, o);
    for (size_t pos = 8; pos < 48; ++pos) {  // 33 is the last one that sees it
      const bool near = pos >= 18 && pos <= 36;
      std::vector<float> alone;
      if (near || pos % 5 == 0) alone = device.run({{0, static_cast<int64_t>(pos) + 1, 1}}, o);
      for (const std::vector<float>* got : {&by_spans, &in_tiles}) {
        const size_t first = 48 - got->size() / kRow;
        for (size_t i = 0; pos >= first && i < kRow; ++i) {
          const float here = (*got)[(pos - first) * kRow + i];
          if (!alone.empty()) CHECK((alone[i] == here || (std::isnan(alone[i]) && std::isnan(here))));
          if (pos > 33) CHECK(std::isfinite(here));
        }
      }
    }
  }
}

TEST_CASE("cuda: quantized caches of keys that hold values", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Tier& tier : {kTiers[0], kTiers[1], Tier{"int4", KvCode::kInt4Mean, KvCode::kInt4Mean}}) {
    check(tier, {4, 1, 32}, 16, {5, 40, 100}, {{0, 5, 5}, {1, 33, 3}, {2, 100, 1}}, {}, 24);
    check(tier, {3, 1, 72}, 32, {70}, {{0, 70, 2}}, {.window = 21}, 64);
    check(tier, {2, 1, 576}, 16, {290}, {{0, 290, 1}}, {.softcap = 3.f}, 512);
    check(tier, {1, 1, 16}, 16, {300}, {{0, 300, 257}}, {.window = 40}, 8);
  }
}
