// A batch of sequences over a paged cache with shuffled blocks, for the tests of attention. Whatever no query
// may see is poison: cache bytes beyond a sequence are NaN, table entries beyond its blocks point outside the
// pool.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/kv_layout.h"
#include "tests/kernels/matmul_problem.h"

namespace oar_test {

struct Heads {
  int64_t H, K, D;
};

// Keys, values and queries of whole sequences, and the pool that holds their keys and values.
struct AttentionProblem {
  struct Chunk {  // rows of one call: queries [context - count, context) of a sequence
    int64_t sequence, context, count;
  };

  Heads heads;
  oar::KvShape shape;
  std::vector<int64_t> lengths;
  int64_t max_blocks = 0;
  std::vector<std::vector<float>> q, k, v;  // per sequence [length, heads, D]
  Guarded<char> pool;
  std::vector<int32_t> table;  // [sequences, max_blocks]

  // `latent`: so many first dims of a key are its value.
  AttentionProblem(Heads h, oar::DType type, int page_tokens, std::vector<int64_t> lens, uint32_t seed = 1,
                   int32_t latent = 0)
      : heads(h), lengths(std::move(lens)) {
    shape = {type, page_tokens, static_cast<int32_t>(h.K), static_cast<int32_t>(h.D), latent};
    int64_t blocks = 0;
    for (int64_t n : lengths) {
      const int64_t own = (n + page_tokens - 1) / page_tokens;
      max_blocks = std::max(max_blocks, own + 1);
      blocks += own;
      q.push_back(random_values(static_cast<size_t>(n * h.H * h.D), Values::kNormal, seed++));
      k.push_back(random_values(static_cast<size_t>(n * h.K * h.D), Values::kNormal, seed++));
      v.push_back(random_values(static_cast<size_t>(n * h.K * h.D), Values::kNormal, seed++));
      if (latent > 0) v.back() = k.back();  // what bound() looks at
    }
    pool = Guarded<char>(static_cast<size_t>(blocks) * oar::kv_block_bytes(shape), 64);
    std::memset(pool.data(), 0xff, pool.size());
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

  int32_t slot(int64_t sequence, int64_t position) const {
    const int64_t P = shape.page_tokens;
    return static_cast<int32_t>(table[static_cast<size_t>(sequence * max_blocks + position / P)] * P +
                                position % P);
  }

  // Stores positions [begin, end) of a sequence.
  void append(Isa isa, int64_t sequence, int64_t begin, int64_t end) {
    const int64_t row = heads.K * heads.D;
    const auto s = static_cast<size_t>(sequence);
    Guarded<int32_t> slots(static_cast<size_t>(end - begin));
    for (int64_t t = begin; t < end; ++t) slots[static_cast<size_t>(t - begin)] = slot(sequence, t);
    Guarded<float> keys(static_cast<size_t>((end - begin) * row)), values(keys.size());
    std::copy_n(k[s].begin() + begin * row, keys.size(), keys.begin());
    std::copy_n(v[s].begin() + begin * row, values.size(), values.begin());
    oar::KvAppendArgs a;
    a.pool = pool.data();
    a.k = keys.data();
    a.v = values.data();
    a.slots = slots.data();
    a.T = end - begin;
    a.ldk = a.ldv = row;
    a.shape = shape;
    const Kernel* kernel =
        oar::KernelRegistry::cpu().find({KernelFamily::kKvAppend, Format::of(shape.type)}, isa);
    REQUIRE(kernel != nullptr);
    run_in_steps(*kernel, &a, 3, true);
  }
  void append_all(Isa isa) {
    for (size_t s = 0; s < lengths.size(); ++s) append(isa, static_cast<int64_t>(s), 0, lengths[s]);
  }

  struct Options {
    int64_t window = 0;
    float softcap = 0.f;
    bool chunked = false;
    std::vector<float> sinks = {};  // [H] or none
    int64_t step = 1;               // chunks per run() call
    oar::ThreadPool* pool = nullptr;
  };

  const Kernel& kernel(Isa isa) const {
    const Kernel* k =
        oar::KernelRegistry::cpu().find({KernelFamily::kPagedAttention, Format::of(shape.type)}, isa);
    REQUIRE(k != nullptr);
    return *k;
  }

  // Output rows [sum of counts, H * D] of one call.
  std::vector<float> run(Isa isa, const std::vector<Chunk>& chunks, const Options& o) const {
    const int64_t row = heads.H * heads.D;
    std::vector<int32_t> start = {0}, context, rows;
    for (const Chunk& c : chunks) {
      start.push_back(static_cast<int32_t>(start.back() + c.count));
      context.push_back(static_cast<int32_t>(c.context));
      const auto begin = table.begin() + c.sequence * max_blocks;
      rows.insert(rows.end(), begin, begin + max_blocks);
    }
    const int64_t row_out = heads.H * shape.value_dim();
    const int64_t T = start.back(), ldq = row + 3, ldo = row_out + 1;
    Guarded<float> queries(static_cast<size_t>((T - 1) * ldq + row)),
        out(static_cast<size_t>((T - 1) * ldo + row_out));
    int64_t t = 0;
    for (const Chunk& c : chunks) {
      for (int64_t i = c.context - c.count; i < c.context; ++i, ++t) {
        std::copy_n(q[static_cast<size_t>(c.sequence)].begin() + i * row, row, queries.data() + t * ldq);
      }
    }
    oar::PagedAttentionArgs a;
    a.out = out.data();
    a.q = queries.data();
    a.pool = pool.data();
    a.block_tables = rows.data();
    a.seq_start = start.data();
    a.context_len = context.data();
    a.T = T;
    a.B = static_cast<int64_t>(chunks.size());
    a.H = heads.H;
    a.ldq = ldq;
    a.ldo = ldo;
    a.max_blocks = max_blocks;
    a.shape = shape;
    a.scale = 1.f / std::sqrt(static_cast<float>(heads.D));
    a.softcap = o.softcap;
    a.window = o.window;
    a.chunked = o.chunked ? 1 : 0;
    if (!o.sinks.empty()) a.sink_logits = o.sinks.data();
    if (o.pool != nullptr) {
      run_on_pool(*o.pool, kernel(isa), &a);
    } else {
      run_in_steps(kernel(isa), &a, o.step, true);
    }
    std::vector<float> result;
    for (int64_t i = 0; i < T; ++i)
      result.insert(result.end(), out.data() + i * ldo, out.data() + i * ldo + row_out);
    return result;
  }

  // The error an output element may have, from the arithmetic the kernel documents:
  //   logits    D + 4 roundings of 2^-24 on sums of magnitude m = max over keys of scale * sum |q k|; with
  //   queries
  //             rounded to bf16, 2^-9 m more. An error d of the logits changes every p by a factor within
  //             e^(+-2 d).
  //   exp       2^-22 (f32) or 2^-17 (bf16), and the subtraction of the maximum: 2^-23 m.
  //   p . V     roundings of at most 256 + 16 terms in a span, and of the merges, on sums bounded by max |v|;
  //   with p
  //             rounded to bf16, 2^-9 more (the sum of p is of the rounded ones).
  // Operands that are two bf16 each, high + low, lose 2^-17 where others lose 2^-9; their sums of p are
  // exact.
  double bound(bool bf16_operands, const Options& o, bool two_bf16 = false) const {
    double m = 0, vmax = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (float x : v[s]) vmax = std::max(vmax, static_cast<double>(std::fabs(x)));
    }
    // |q||k| in the 2-norm bounds the sum of magnitudes.
    double qmax = 0, kmax = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      qmax = std::max(qmax, largest_norm(q[s]));
      kmax = std::max(kmax, largest_norm(k[s]));
    }
    m = qmax * kmax / std::sqrt(static_cast<double>(heads.D));
    const double u = std::ldexp(1.0, -24);
    double d = (static_cast<double>(heads.D) + 4) * u * m + std::ldexp(m, -23);
    if (bf16_operands) d += std::ldexp(m, -9);
    if (two_bf16) d += std::ldexp(m, -17);
    if (o.softcap > 0) d += 8 * u * o.softcap;  // tanh and its scaling
    const double p = std::expm1(2 * d) + std::ldexp(1.0, bf16_operands || two_bf16 ? -17 : -22) +
                     (bf16_operands ? std::ldexp(1.0, -9) : 0);
    return vmax * (p + (256 + 16 + 32) * u);
  }

 private:
  double largest_norm(const std::vector<float>& x) const {
    double largest = 0;
    for (size_t i = 0; i < x.size(); i += static_cast<size_t>(heads.D)) {
      double sum = 0;
      for (size_t d = i; d < i + static_cast<size_t>(heads.D); ++d) sum += static_cast<double>(x[d]) * x[d];
      largest = std::max(largest, std::sqrt(sum));
    }
    return largest;
  }
};

// Whether the kernel of this level multiplies bf16 operands (rounding queries and probabilities) for this
// cache.
inline bool rounds_operands(oar::DType type, Isa isa) {
  return type == oar::DType::kBF16 && isa >= Isa::kAvx512Vnni;
}

}  // namespace oar_test
