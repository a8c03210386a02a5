// Gated delta rule and Mamba-2 scan: every level against the recurrence in double, at every border; a row's
// bits are those it has alone, whatever came with it, whatever was dropped before, and without a state.
#include "kernels/state_scan.h"

#include <cmath>

#include "tests/kernels/state_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Sizes {
  int32_t Hk, Hv, Dk, Dv, C;
  bool delta;
};

// Operands of T positions of one sequence, and what exact arithmetic makes of them.
struct Sequence {
  Sizes n;
  int64_t T;
  std::vector<float> q, k, v, g, beta;
  std::vector<double> exact, bound;  // [T, Hv, Dv]

  Sequence(const Sizes& sizes, int64_t count, uint32_t seed) : n(sizes), T(count) {
    const auto values = [&](int64_t columns, uint32_t s) {
      return random_values(static_cast<size_t>(T * columns), Values::kNormal, 8 * seed + s);
    };
    q = values(n.Hk * n.Dk, 1), k = values(n.Hk * n.Dk, 2), v = values(n.Hv * n.Dv, 3);
    g = values(n.Hv, 4), beta = values(n.Hv, 5);
    // Some forget all; some so much that products lie about where they count as zero, or below normal
    // numbers.
    for (float& x : g) x = x > 1.8f ? -200.f : x < -2.2f ? -95.f : x < -1.8f ? -69.f : -0.1f * std::fabs(x);
    for (float& x : beta) x = 1 / (1 + std::exp(-x));
    normalize(q), normalize(k);
    recur();
  }

 private:
  // Keys and queries of length one: with them the rule is a contraction.
  void normalize(std::vector<float>& x) const {
    const auto D = static_cast<size_t>(n.Dk);
    for (size_t row = 0; row < x.size(); row += D) {
      double sum = 1e-6;
      for (size_t d = 0; d < D; ++d) sum += static_cast<double>(x[row + d]) * static_cast<double>(x[row + d]);
      for (size_t d = 0; d < D; ++d) x[row + d] /= static_cast<float>(std::sqrt(sum));
    }
  }
  // The recurrence, and how far f32 may stray. A row's u is a sum of Dk terms below |S| and of up to C below
  // |u(i)|, with weights of up to C factors: roundings of random sign make sqrt of their number, taken four
  // times. An error of u moves S by as much, as |k| is at most 1; the step of the recurrence itself does not
  // lengthen an error. What is read has the roundings of its own sum.
  void recur() {
    const auto D = static_cast<size_t>(n.Dk), V = static_cast<size_t>(n.Dv);
    const double eps = 4 * 6e-8 * (std::sqrt(n.Dk) + std::sqrt(n.C) + 8);
    exact.resize(static_cast<size_t>(T * n.Hv * n.Dv)), bound = exact;
    for (int64_t h = 0; h < n.Hv; ++h) {
      const int64_t kh = h / (n.Hv / n.Hk);
      std::vector<double> S(D * V, 0), size(V, 0), error(V, 0);  // size: of the border and the chunk's u
      for (int64_t t = 0; t < T; ++t) {
        const float* kt = &k[static_cast<size_t>(t * n.Hk + kh) * D];
        const float* qt = &q[static_cast<size_t>(t * n.Hk + kh) * D];
        const double decay = std::exp(static_cast<double>(g[static_cast<size_t>(t * n.Hv + h)]));
        const double b = static_cast<double>(beta[static_cast<size_t>(t * n.Hv + h)]);
        for (size_t j = 0; j < V; ++j) {
          const size_t at = static_cast<size_t>(t * n.Hv + h) * V + j;
          if (t % n.C == 0) {
            size[j] = 0;
            for (size_t d = 0; d < D; ++d) size[j] += S[d * V + j] * S[d * V + j];
            size[j] = std::sqrt(size[j]);
            error[j] += eps * size[j];
          }
          double old = 0, read = 0;
          for (size_t d = 0; d < D; ++d) {
            S[d * V + j] *= decay;
            old += S[d * V + j] * static_cast<double>(kt[d]);
          }
          const double u = b * (static_cast<double>(v[at]) - (n.delta ? old : 0));
          error[j] = decay * error[j] + eps * (std::fabs(static_cast<double>(v[at])) + size[j]);
          size[j] += std::fabs(u);
          for (size_t d = 0; d < D; ++d) {
            S[d * V + j] += static_cast<double>(kt[d]) * u;
            read += S[d * V + j] * static_cast<double>(qt[d]);
          }
          exact[at] = read;
          bound[at] = error[j] + eps * size[j];
        }
      }
    }
  }
};

// Positions [begin, end) of a sequence in a step.
struct Part {
  const Sequence* s;
  int64_t begin, end;
  size_t home;  // which of the memory's sequences it is
};

// A layer and what it keeps of some sequences.
class Memory {
 public:
  Memory(const Sizes& sizes, size_t sequences)
      : n(sizes), memory(n.C, state_scan_border(shape_of(n)) + 3, state_scan_row(shape_of(n)), sequences) {
    a.shape = shape_of(n);
    a.delta = n.delta;
  }

  std::vector<float> run(Isa isa, const std::vector<Part>& parts, ThreadPool* pool = nullptr) {
    std::vector<StatePart> at;
    std::vector<float> q, k, v, g, beta;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from, int64_t b, int64_t e,
                           int64_t w) { to.insert(to.end(), from.begin() + b * w, from.begin() + e * w); };
    for (const Part& p : parts) {
      append(q, p.s->q, p.begin, p.end, n.Hk * n.Dk), append(k, p.s->k, p.begin, p.end, n.Hk * n.Dk);
      append(v, p.s->v, p.begin, p.end, n.Hv * n.Dv);
      append(g, p.s->g, p.begin, p.end, n.Hv), append(beta, p.s->beta, p.begin, p.end, n.Hv);
      at.push_back({p.begin, p.end, p.home});
    }
    memory.step(at);
    a.state = memory.state;
    if (segmented) a.state.borders = nullptr;
    const int64_t T = a.state.T;
    std::vector<float> out(static_cast<size_t>(T * n.Hv * n.Dv), NAN);
    a.q = q.data(), a.k = k.data(), a.v = v.data(), a.g = g.data(), a.beta = beta.data(), a.out = out.data();
    a.T = T;
    a.ldq = a.ldk = n.Hk * n.Dk, a.ldv = a.ldo = n.Hv * n.Dv, a.ldg = a.ldb = n.Hv;
    run_state_kernel(KernelFamily::kStateScan, isa, &a, pool);
    return out;
  }
  // Without a state, all of some sequences.
  std::vector<float> run_segments(Isa isa, const std::vector<Part>& parts) {
    std::vector<int32_t> segments;
    for (size_t i = 0; i < parts.size(); ++i)
      segments.insert(segments.end(), static_cast<size_t>(parts[i].s->T), static_cast<int32_t>(7 - i));
    a.segments = segments.data();
    segmented = true;
    std::vector<float> out = run(isa, parts);
    segmented = false;
    return out;
  }
  StateMemory& kept() { return memory; }

 private:
  static StateScanShape shape_of(const Sizes& n) { return {n.Hk, n.Hv, n.Dk, n.Dv}; }

  Sizes n;
  StateMemory memory;
  StateScanArgs a;
  bool segmented = false;
};

std::vector<Isa> scan_levels() { return levels_of(KernelFamily::kStateScan); }

void require_exact(const Sequence& s, const std::vector<float>& got) {
  REQUIRE(got.size() == s.exact.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double off = std::fabs(static_cast<double>(got[i]) - s.exact[i]);
    INFO("at " << i << ": " << got[i] << " for " << s.exact[i] << ", bound " << s.bound[i]);
    REQUIRE(off <= s.bound[i]);
    worst = std::max(worst, off / s.bound[i]);
  }
  CHECK(worst > 0);
}

constexpr Sizes kSizes[] = {
    {1, 2, 16, 24, 16, true},   {2, 2, 8, 40, 16, true},    {1, 3, 20, 17, 16, false},
    {1, 1, 128, 128, 64, true}, {2, 4, 32, 16, 64, true},   {1, 2, 64, 32, 64, false},
    {1, 2, 256, 20, 16, false}, {1, 3, 128, 64, 48, false}, {1, 1, 40, 24, 128, true}};

}  // namespace

TEST_CASE("state scan: every level equals the recurrence in double") {
  REQUIRE(scan_levels().size() > 1);
  ThreadPool pool({.threads = 3});
  for (const Sizes& n : kSizes) {
    for (const int64_t T :
         {int64_t{1}, int64_t{n.C} - 1, int64_t{n.C}, int64_t{n.C} + 1, int64_t{4} * n.C + 5}) {
      const Sequence s(n, T, 3);
      for (const Isa isa : scan_levels()) {
        INFO(isa_name(isa) << " Dk " << n.Dk << " C " << n.C << " T " << T);
        Memory memory(n, 1);
        require_exact(s, memory.run(isa, {{&s, 0, T, 0}}, &pool));
      }
    }
  }
}

TEST_CASE("state scan: a row's bits do not depend on how a sequence is cut, at every border") {
  for (const Sizes& n : kSizes) {
    const int64_t T = 3 * n.C + 2;
    const Sequence s(n, T, 5);
    for (const Isa isa : scan_levels()) {
      if (isa == Isa::kReference && n.Dk > 64) continue;  // slow, and the others say the same of it
      INFO(isa_name(isa) << " Dk " << n.Dk << " C " << n.C);
      Memory whole(n, 1);
      const std::vector<float> expected = whole.run(isa, {{&s, 0, T, 0}});
      const auto cut = [&](const std::vector<int64_t>& ends) {
        Memory memory(n, 1);
        std::vector<float> got;
        int64_t at = 0;
        for (const int64_t end : ends) {
          const std::vector<float> part = memory.run(isa, {{&s, at, end, 0}});
          got.insert(got.end(), part.begin(), part.end());
          at = end;
        }
        REQUIRE((got == expected));
      };
      std::vector<int64_t> each;
      for (int64_t t = 1; t <= T; ++t) each.push_back(t);
      cut(each);
      for (const int64_t border : {int64_t{n.C}, int64_t{2} * n.C, int64_t{3} * n.C})
        for (int64_t at = border - 1; at <= border + 1; ++at) cut({at, T});
      cut({1, n.C + 1, n.C + 4, 2 * n.C - 1, 3 * n.C, T});
      // Without a state.
      Memory none(n, 1);
      CHECK((none.run_segments(isa, {{&s, 0, T, 0}}) == expected));
    }
  }
}

TEST_CASE("state scan: rows that are dropped leave nothing behind, over a border too") {
  for (const Sizes& n : kSizes) {
    const int64_t T = 2 * n.C + 6;
    const Sequence s(n, T, 6), drafts(n, T, 7);
    for (const Isa isa : scan_levels()) {
      INFO(isa_name(isa) << " Dk " << n.Dk << " C " << n.C);
      Memory plain(n, 1), drafted(n, 1);
      (void)plain.run(isa, {{&s, 0, 2 * n.C - 3, 0}});
      (void)drafted.run(isa, {{&s, 0, 2 * n.C - 3, 0}});
      const std::vector<float> expected = plain.run(isa, {{&s, 2 * n.C - 3, T, 0}});
      (void)drafted.run(isa, {{&drafts, 2 * n.C - 3, 2 * n.C + 5, 0}});  // all of which are refused
      CHECK((drafted.run(isa, {{&s, 2 * n.C - 3, T, 0}}) == expected));
      Memory filled(n, 1);  // one step computes and closes the chunk that is gone back into
      (void)filled.run(isa, {{&s, 0, 2 * n.C, 0}});
      CHECK((filled.run(isa, {{&s, 2 * n.C - 3, T, 0}}) == expected));
    }
  }
}

TEST_CASE("state scan: sequences of a batch get what each gets alone, and a NaN stays with its own") {
  ThreadPool pool({.threads = 3});
  for (const Sizes& n : kSizes) {
    const Sequence a(n, n.C + 9, 8), b(n, 2 * n.C, 9);
    Sequence ill(n, n.C + 2, 10);
    std::fill(ill.v.begin(), ill.v.end(), NAN);
    for (const Isa isa : scan_levels()) {
      INFO(isa_name(isa) << " Dk " << n.Dk << " C " << n.C);
      Memory alone(n, 3), together(n, 3);
      std::vector<float> expected = alone.run(isa, {{&a, 0, n.C + 8, 0}});
      std::vector<float> rest = alone.run(isa, {{&a, n.C + 8, n.C + 9, 0}});
      const std::vector<float> other = alone.run(isa, {{&b, 0, 2 * n.C, 1}});
      rest.insert(rest.end(), other.begin(), other.end());
      (void)together.run(isa, {{&ill, 0, n.C + 2, 1}, {&a, 0, n.C + 8, 0}}, &pool);
      // The second takes the blocks of the one that was ill.
      CHECK((together.run(isa, {{&a, n.C + 8, n.C + 9, 0}, {&b, 0, 2 * n.C, 1}}, &pool) == rest));
    }
  }
}

TEST_CASE("state scan: a border is written once a page, and rows where they are asked for") {
  for (const Sizes& n : kSizes) {
    if (n.Dk > 64) continue;  // the same again
    const Sequence s(n, 4 * int64_t{n.C} + 5, 11);
    for (const Isa isa : scan_levels()) {
      INFO(isa_name(isa) << " Dk " << n.Dk << " C " << n.C);
      Memory memory(n, 2);
      require_written_once(memory.kept(), [&](int64_t begin, int64_t end, size_t home) {
        (void)memory.run(isa, {{&s, begin, end, home}});
      });
    }
  }
}
