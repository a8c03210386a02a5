// A batch of sequences over a quantized paged cache with shuffled blocks, for the tests of its kernels.
// Whatever no query may see is poison: bytes not written are 0xff (NaN as scales and as 16-bit values), and
// table entries outside what may be read point outside the pools.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/kv_layout.h"
#include "kernels/kv_quant.h"
#include "tests/kernels/attention_problem.h"

namespace oar_test {

struct Tier {
  const char* name;
  oar::KvCode keys, values;
};
inline constexpr Tier kTiers[] = {{"int8", oar::KvCode::kInt8, oar::KvCode::kInt8},
                                  {"fp8", oar::KvCode::kFp8, oar::KvCode::kFp8},
                                  {"k8v4", oar::KvCode::kInt8, oar::KvCode::kInt4},
                                  {"int4", oar::KvCode::kInt4, oar::KvCode::kInt4},
                                  {"int4-mean", oar::KvCode::kInt4Mean, oar::KvCode::kInt4},
                                  {"k4v3", oar::KvCode::kInt4Mean, oar::KvCode::kInt3}};

enum class Queries {
  kNormal,
  kExact,  // int8 codes times a power of two, the largest code 127: what kernels make of them is what they
           // are
};

struct QuantProblem {
  using Chunk = AttentionProblem::Chunk;
  using Options = AttentionProblem::Options;

  Heads heads;
  oar::QuantKvShape shape;
  std::vector<int64_t> lengths;
  int64_t max_blocks = 0;
  std::vector<std::vector<float>> q, k, v;  // per sequence [length, heads, D]
  Guarded<char> pool, open, sinks;
  std::vector<int32_t> table;  // [sequences, max_blocks] of `pool` and of `open` alike

  // `latent`: so many first dims of a key are its value.
  QuantProblem(const Tier& tier, Heads h, int page_tokens, std::vector<int64_t> lens, Queries queries,
               uint32_t seed = 1, int32_t latent = 0)
      : heads(h), lengths(std::move(lens)) {
    shape = {tier.keys, tier.values, page_tokens, static_cast<int32_t>(h.K), static_cast<int32_t>(h.D),
             latent};
    int64_t blocks = 0;
    for (int64_t n : lengths) {
      const int64_t own = (n + page_tokens - 1) / page_tokens;
      max_blocks = std::max(max_blocks, own + 1);
      blocks += own;
      q.push_back(random_values(static_cast<size_t>(n * h.H * h.D), Values::kNormal, seed++));
      k.push_back(random_values(static_cast<size_t>(n * h.K * h.D), Values::kNormal, seed++));
      v.push_back(random_values(static_cast<size_t>(n * h.K * h.D), Values::kNormal, seed++));
      if (latent > 0) v.back() = k.back();  // what bound() looks at
      if (queries == Queries::kExact) make_exact(q.back());
    }
    const auto poisoned = [](size_t bytes) {
      Guarded<char> out(bytes, 64);
      std::memset(out.data(), 0xff, bytes);
      return out;
    };
    pool = poisoned(static_cast<size_t>(blocks) * oar::quant_kv_block_bytes(shape));
    open = poisoned(static_cast<size_t>(blocks) * oar::kv_block_bytes(oar::open_kv_shape(shape)));
    sinks = poisoned(lengths.size() * oar::kv_block_bytes(oar::sink_kv_shape(shape)));
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 gen(seed);
    std::shuffle(order.begin(), order.end(), gen);
    table.assign(lengths.size() * static_cast<size_t>(max_blocks), 1 << 28);
    size_t next = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int64_t i = 0; i * page_tokens < lengths[s]; ++i) {
        table[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(i)] = order[next++];
      }
    }
  }

  const oar::Kernel& kernel(KernelFamily family, Isa isa) const {
    const oar::Kernel* k = oar::KernelRegistry::cpu().find({family, Format::bf16()}, isa);
    REQUIRE(k != nullptr);
    return *k;
  }

  // Stores positions [begin, end) of a sequence.
  void append(Isa isa, int64_t sequence, int64_t begin, int64_t end) {
    const int64_t row = heads.K * heads.D, P = shape.page_tokens;
    const auto s = static_cast<size_t>(sequence), n = static_cast<size_t>(end - begin);
    Guarded<int32_t> slots(n), first(n);
    Guarded<float> keys(n * static_cast<size_t>(row)), values(keys.size());
    for (int64_t t = begin; t < end; ++t) {
      const auto i = static_cast<size_t>(t - begin);
      slots[i] = table[static_cast<size_t>(sequence * max_blocks + t / P)] * static_cast<int32_t>(P) +
                 static_cast<int32_t>(t % P);
      first[i] = t < P ? static_cast<int32_t>(sequence * P + t) : -1;
    }
    std::copy_n(k[s].begin() + begin * row, keys.size(), keys.begin());
    std::copy_n(v[s].begin() + begin * row, values.size(), values.begin());
    oar::QuantKvAppendArgs a;
    a.pool = pool.data();
    a.open = open.data();
    a.sinks = sinks.data();
    a.k = keys.data();
    a.v = values.data();
    a.slots = a.open_slots = slots.data();
    a.sink_slots = first.data();
    a.T = end - begin;
    a.ldk = a.ldv = row;
    a.shape = shape;
    run_in_steps(kernel(KernelFamily::kQuantKvAppend, isa), &a, 3, true);
  }
  void append_all(Isa isa) {
    for (size_t s = 0; s < lengths.size(); ++s) append(isa, static_cast<int64_t>(s), 0, lengths[s]);
  }

  // Output rows [sum of counts, H * D] of one call.
  std::vector<float> run(Isa isa, const std::vector<Chunk>& chunks, const Options& o) const {
    const int64_t row = heads.H * heads.D, P = shape.page_tokens;
    std::vector<int32_t> start = {0}, context, rows, open_rows, sink_rows;
    for (const Chunk& c : chunks) {
      start.push_back(static_cast<int32_t>(start.back() + c.count));
      context.push_back(static_cast<int32_t>(c.context));
      const auto begin = table.begin() + c.sequence * max_blocks;
      // Of quantized pages those before the last query's own, of open ones those with a query.
      const int64_t first = c.context - c.count, from = o.window > 0 ? first - o.window + 1 : 0;
      for (int64_t i = 0; i < max_blocks; ++i) {
        const bool seen = (i + 1) * P > from && i < (c.context - 1) / P;
        rows.push_back(seen ? begin[i] : 1 << 28);
        open_rows.push_back(i >= first / P && i <= (c.context - 1) / P ? begin[i] : 1 << 28);
      }
      sink_rows.push_back(from < oar::kKvSinkTokens && c.context > P ? static_cast<int32_t>(c.sequence)
                                                                     : 1 << 28);
    }
    const int64_t row_out = heads.H * oar::open_kv_shape(shape).value_dim();
    const int64_t T = start.back(), ldq = row + 3, ldo = row_out + 1;
    Guarded<float> queries(static_cast<size_t>((T - 1) * ldq + row)),
        out(static_cast<size_t>((T - 1) * ldo + row_out));
    int64_t t = 0;
    for (const Chunk& c : chunks) {
      for (int64_t i = c.context - c.count; i < c.context; ++i, ++t) {
        std::copy_n(q[static_cast<size_t>(c.sequence)].begin() + i * row, row, queries.data() + t * ldq);
      }
    }
    oar::QuantPagedAttentionArgs a;
    a.shape = shape;
    a.open = open.data();
    a.sinks = sinks.data();
    a.open_tables = open_rows.data();
    a.sink_tables = sink_rows.data();
    a.open_max_blocks = max_blocks;
    a.sink_max_blocks = 1;
    oar::PagedAttentionArgs& p = a.common;
    p.out = out.data();
    p.q = queries.data();
    p.pool = pool.data();
    p.block_tables = rows.data();
    p.seq_start = start.data();
    p.context_len = context.data();
    p.T = T;
    p.B = static_cast<int64_t>(chunks.size());
    p.H = heads.H;
    p.ldq = ldq;
    p.ldo = ldo;
    p.max_blocks = max_blocks;
    p.shape = oar::open_kv_shape(shape);
    p.scale = 1.f / std::sqrt(static_cast<float>(heads.D));
    p.softcap = o.softcap;
    p.window = o.window;
    p.chunked = o.chunked ? 1 : 0;
    if (!o.sinks.empty()) p.sink_logits = o.sinks.data();
    const oar::Kernel& attention = kernel(KernelFamily::kQuantPagedAttention, isa);
    if (o.pool != nullptr) {
      run_on_pool(*o.pool, attention, &a);
    } else {
      run_in_steps(attention, &a, o.step, true);
    }
    std::vector<float> result;
    for (int64_t i = 0; i < T; ++i)
      result.insert(result.end(), out.data() + i * ldo, out.data() + i * ldo + row_out);
    return result;
  }

  // The error an output element may have against the reference, which reads the same cache:
  //   logits    those of 16-bit tokens as in AttentionProblem::bound(): queries rounded to bf16, 2^-9 m,
  //   where
  //             m = largest |q||k| times the scale; those of codes are exact for the int8 query, whose
  //             rounding costs |k|_1 max|q| / 254 and nothing when it is exact; then a few roundings of f32
  //             on terms of which a minimum's may be (15 / 2 steps) larger than the logit: 16 of 2^-24, of 8
  //             m.
  //   softmax   an error d of the logits changes every p by a factor within e^(+-2 d); exp 2^-17; p rounded
  //   to
  //             bf16 2^-9 (16-bit tokens).
  //   codes     p s rounded to 15 bits of the span's largest: half a unit for each of 256 tokens, times the
  //             largest code, relative to a sum of p of at least 1: 256 / 2 / 32767 of the largest range of
  //             values; sums and merges in f32, and minima of up to twice the values, 2^-24 of 300 terms.
  double bound(Queries queries, const Options& o) const {
    double vmax = 0, qmax = 0, kmax = 0, rounding = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (float x : v[s]) vmax = std::max(vmax, static_cast<double>(std::fabs(x)));
      double k1 = 0, q1 = 0;
      for (size_t i = 0; i < k[s].size(); i += static_cast<size_t>(heads.D)) {
        double sum = 0, square = 0;
        for (size_t d = i; d < i + static_cast<size_t>(heads.D); ++d) {
          sum += std::fabs(k[s][d]);
          square += static_cast<double>(k[s][d]) * k[s][d];
        }
        k1 = std::max(k1, sum);
        kmax = std::max(kmax, std::sqrt(square));
      }
      for (size_t i = 0; i < q[s].size(); i += static_cast<size_t>(heads.D)) {
        double square = 0;
        for (size_t d = i; d < i + static_cast<size_t>(heads.D); ++d) {
          square += static_cast<double>(q[s][d]) * q[s][d];
          q1 = std::max(q1, static_cast<double>(std::fabs(q[s][d])));
        }
        qmax = std::max(qmax, std::sqrt(square));
      }
      // Decoded keys may be half a step of the coarsest code away from k.
      if (queries == Queries::kNormal) rounding = std::max(rounding, 1.1 * k1 * q1 / 254);
    }
    const double scale = 1 / std::sqrt(static_cast<double>(heads.D)), m = 1.1 * qmax * kmax * scale;
    const double u = std::ldexp(1.0, -24);
    double d = std::ldexp(m, -9) + (static_cast<double>(heads.D) + 4) * u * m + 16 * u * 8 * m;
    d = std::max(d, rounding * scale + 16 * u * 8 * m);
    if (o.softcap > 0) d += 8 * u * o.softcap;
    const double p = std::expm1(2 * d) + std::ldexp(1.0, -17) + std::ldexp(1.0, -9);
    return 1.1 * vmax * p + 2 * vmax * (128.0 / 32767) + 2 * vmax * 300 * u;
  }

 private:
  // Each head's query as codes of int8 over 64, the largest of them 127.
  void make_exact(std::vector<float>& x) const {
    const auto D = static_cast<size_t>(heads.D);
    for (size_t i = 0; i < x.size(); i += D) {
      for (size_t d = i; d < i + D; ++d) x[d] = std::clamp(std::nearbyint(x[d] * 40.f), -126.f, 126.f) / 64.f;
      x[i + i / D % D] = 127.f / 64.f;
    }
  }
};

}  // namespace oar_test
