// Causal convolutions with state: every level against the sum in double, operands and results between guard
// pages; a row's bits are those it has alone, whatever came with it, whatever was dropped before.
#include "kernels/causal_conv.h"

#include "tests/kernels/state_problem.h"
#include "tests/support/sample.h"

using namespace oar;
using namespace oar_test;

namespace {

struct ConvSizes {
  int64_t L, C;  // rows of the kernel, channels
  int32_t P;     // tokens of a page
};

// Widths about a vector and about a chunk's channels; kernels of one row, and as long as a page allows.
std::vector<ConvSizes> all_sizes() {
  std::vector<ConvSizes> out;
  for (const int64_t L : {1, 3, 4, 17})
    for (const int64_t C : {1, 17, 64, 513, 1100})
      for (const int32_t P : {16, 64}) out.push_back({L, C, P});
  return out;
}

// f(ConvSizes) of all, under a sanitizer of every seventh, which is prime to their number.
template <class F>
void for_each_size(F&& f) {
  Sample sample(7);
  for (const ConvSizes& n : all_sizes()) {
    if (!sample.take()) continue;
    INFO("L " << n.L << " C " << n.C << " P " << n.P);
    f(n);
  }
}

std::vector<Isa> conv_levels() { return levels_of(KernelFamily::kCausalConv); }

using Rows = std::vector<float>;  // [T, C]

Rows sequence(const ConvSizes& n, int64_t T, uint32_t seed) {
  return random_values(static_cast<size_t>(T * n.C), Values::kNormal, seed);
}

struct ConvPart {
  const Rows* x;
  int64_t begin, end;
  size_t home;
};

// A layer and what it keeps of some sequences. Rows lie apart, and what is between them stays as it is.
class ConvLayer {
 public:
  ConvLayer(const ConvSizes& sizes, size_t sequences, bool with_bias = true)
      : n(sizes),
        w(static_cast<size_t>(n.L * n.C)),
        bias(static_cast<size_t>(n.C)),
        memory(n.P, (n.L - 1) * n.C + 3, n.C, sequences) {
    std::ranges::copy(random_values(w.size(), Values::kNormal, 101), w.begin());
    std::ranges::copy(random_values(bias.size(), Values::kNormal, 102), bias.begin());
    a.w = w.data();
    if (with_bias) a.bias = bias.data();
    a.C = n.C, a.L = n.L, a.ldx = n.C + 3, a.ldo = n.C + 1;
  }

  Rows run(Isa isa, const std::vector<ConvPart>& parts, ThreadPool* pool = nullptr) {
    std::vector<StatePart> at;
    for (const ConvPart& p : parts) at.push_back({p.begin, p.end, p.home});
    memory.step(at);
    a.state = memory.state;
    a.T = a.state.T;
    Guarded<float> x(static_cast<size_t>((a.T - 1) * a.ldx + n.C)),
        y(static_cast<size_t>((a.T - 1) * a.ldo + n.C));
    std::fill(x.begin(), x.end(), NAN);
    std::fill(y.begin(), y.end(), -7.f);
    int64_t row = 0;
    for (const ConvPart& p : parts)
      for (int64_t t = p.begin; t < p.end; ++t, ++row)
        std::copy_n(p.x->begin() + t * n.C, n.C, x.begin() + row * a.ldx);
    a.x = x.data(), a.out = y.data();
    run_state_kernel(KernelFamily::kCausalConv, isa, &a, pool);
    Rows out;
    for (int64_t t = 0; t < a.T; ++t) {
      out.insert(out.end(), y.begin() + t * a.ldo, y.begin() + t * a.ldo + n.C);
      if (t + 1 < a.T) REQUIRE(y[static_cast<size_t>(t * a.ldo + n.C)] == -7.f);
    }
    return out;
  }

  StateMemory& kept() { return memory; }

  // The sum itself; a level's is a chain of one rounding a term and one of the result.
  void require_exact(const Rows& x, const Rows& got) const {
    REQUIRE(got.size() == x.size());
    for (int64_t t = 0; t < static_cast<int64_t>(x.size()) / n.C; ++t) {
      for (int64_t c = 0; c < n.C; ++c) {
        double sum = a.bias != nullptr ? static_cast<double>(bias[static_cast<size_t>(c)]) : 0;
        double magnitude = std::fabs(sum);
        for (int64_t i = 0; i < n.L; ++i) {
          const int64_t from = t - (n.L - 1) + i;
          if (from < 0) continue;
          const double term = static_cast<double>(w[static_cast<size_t>(i * n.C + c)]) *
                              static_cast<double>(x[static_cast<size_t>(from * n.C + c)]);
          sum += term;
          magnitude += std::fabs(term);
        }
        const double bound = static_cast<double>(n.L + 1) * 0x1p-24 * magnitude;
        const float is = got[static_cast<size_t>(t * n.C + c)];
        if (!(std::fabs(static_cast<double>(is) - sum) <= bound))
          FAIL("row " << t << " channel " << c << ": " << is << " for " << sum << ", bound " << bound);
      }
    }
  }

 private:
  ConvSizes n;
  Guarded<float> w, bias;
  StateMemory memory;
  CausalConvArgs a;
};

}  // namespace

TEST_CASE("causal conv: every level equals the sum in double") {
  REQUIRE(conv_levels().size() > 1);
  ThreadPool pool({.threads = 3});
  for_each_size([&](const ConvSizes& n) {
    for (const int64_t T :
         {int64_t{1}, int64_t{n.P} - 1, int64_t{n.P}, int64_t{n.P} + 1, int64_t{2} * n.P + 5}) {
      const Rows x = sequence(n, T, 3);
      for (const Isa isa : conv_levels()) {
        INFO(isa_name(isa) << " T " << T);
        for (const bool with_bias : {true, false}) {
          ConvLayer layer(n, 1, with_bias);
          layer.require_exact(x, layer.run(isa, {{&x, 0, T, 0}}, with_bias ? &pool : nullptr));
        }
      }
    }
  });
}

TEST_CASE("causal conv: a row's bits do not depend on how a sequence is cut, at every border") {
  for_each_size([](const ConvSizes& n) {
    const int64_t P = n.P, T = 3 * P + 2;
    const Rows x = sequence(n, T, 5);
    for (const Isa isa : conv_levels()) {
      if (isa == Isa::kReference && n.C > 64) continue;  // slow, and the others say the same of it
      INFO(isa_name(isa));
      const Rows expected = ConvLayer(n, 1).run(isa, {{&x, 0, T, 0}});
      const auto cut = [&](const std::vector<int64_t>& ends) {
        ConvLayer layer(n, 1);
        Rows got;
        int64_t at = 0;
        for (const int64_t end : ends) {
          const Rows part = layer.run(isa, {{&x, at, end, 0}});
          got.insert(got.end(), part.begin(), part.end());
          at = end;
        }
        REQUIRE((got == expected));
      };
      std::vector<int64_t> each;
      for (int64_t t = 1; t <= T; ++t) each.push_back(t);
      cut(each);
      for (const int64_t border : {P, 2 * P, 3 * P})
        for (int64_t at = border - 1; at <= border + 1; ++at) cut({at, T});
      cut({1, P + 1, P + 4, 2 * P - 1, 3 * P, T});
    }
  });
}

TEST_CASE("causal conv: rows that are dropped leave nothing behind, over a border too") {
  for_each_size([](const ConvSizes& n) {
    const int64_t P = n.P, T = 2 * P + 6, kept = 2 * P - 3;
    const Rows x = sequence(n, T, 6), drafts = sequence(n, T, 7);
    for (const Isa isa : conv_levels()) {
      INFO(isa_name(isa));
      ConvLayer plain(n, 1), drafted(n, 1), filled(n, 1);
      (void)plain.run(isa, {{&x, 0, kept, 0}});
      (void)drafted.run(isa, {{&x, 0, kept, 0}});
      const Rows expected = plain.run(isa, {{&x, kept, T, 0}});
      (void)drafted.run(isa, {{&drafts, kept, 2 * P + 5, 0}});  // all of which are refused
      CHECK((drafted.run(isa, {{&x, kept, T, 0}}) == expected));
      (void)filled.run(isa, {{&x, 0, 2 * P, 0}});  // one step closes the page that is gone back into
      CHECK((filled.run(isa, {{&x, kept, T, 0}}) == expected));
    }
  });
}

TEST_CASE("causal conv: sequences of a batch get what each gets alone, and a NaN stays with its own") {
  ThreadPool pool({.threads = 3});
  for_each_size([&](const ConvSizes& n) {
    const int64_t P = n.P;
    const Rows x = sequence(n, P + 9, 8), other = sequence(n, 2 * P, 9),
               ill(static_cast<size_t>((P + 2) * n.C), NAN);
    for (const Isa isa : conv_levels()) {
      INFO(isa_name(isa));
      ConvLayer alone(n, 2), together(n, 2);
      const Rows first = alone.run(isa, {{&x, 0, P + 8, 0}});
      Rows rest = alone.run(isa, {{&x, P + 8, P + 9, 0}});
      const Rows others = alone.run(isa, {{&other, 0, 2 * P, 1}});
      rest.insert(rest.end(), others.begin(), others.end());
      const Rows both = together.run(isa, {{&ill, 0, P + 2, 1}, {&x, 0, P + 8, 0}}, &pool);
      CHECK((Rows(both.begin() + (P + 2) * n.C, both.end()) == first));
      // The second takes the blocks of the one that was ill.
      CHECK((together.run(isa, {{&x, P + 8, P + 9, 0}, {&other, 0, 2 * P, 1}}, &pool) == rest));
    }
  });
}

TEST_CASE("causal conv: a border is written once a page, and rows where they are asked for") {
  for_each_size([](const ConvSizes& n) {
    if (n.L == 1 || n.C > 64) return;  // without a border; and the same again
    const Rows x = sequence(n, 4 * int64_t{n.P} + 5, 11);
    for (const Isa isa : conv_levels()) {
      INFO(isa_name(isa));
      ConvLayer layer(n, 2);
      require_written_once(layer.kept(), [&](int64_t begin, int64_t end, size_t home) {
        (void)layer.run(isa, {{&x, begin, end, home}});
      });
    }
  });
}
