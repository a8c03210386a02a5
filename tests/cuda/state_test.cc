// Causal convolutions and state scans on the device: two sequences and their states against the
// double-precision reference, and the bits of a prompt in one step, in pieces and token by token.
#include <array>
#include <memory>

#include "kernels/causal_conv.h"
#include "kernels/state_scan.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr int64_t kPage = 5, kChunks = 8, kSequences = 2;
constexpr int64_t kTokens[kSequences] = {23, 9};

// Rows [begin, end) of each sequence in one step, and the tables of it.
struct Step {
  int64_t begin[kSequences], end[kSequences];
  std::vector<int32_t> start = {0}, context, slots;
  int64_t rows = 0;

  Step(const int64_t (&from)[kSequences], const int64_t (&to)[kSequences]) {
    for (int64_t b = 0; b < kSequences; ++b) {
      begin[b] = from[b], end[b] = to[b];
      rows += to[b] - from[b];
      start.push_back(static_cast<int32_t>(rows));
      context.push_back(static_cast<int32_t>(to[b]));
      // Rows of chunks that fill are not kept.
      for (int64_t p = from[b]; p < to[b]; ++p) {
        const int64_t row = row_block(b, p / kPage) * kPage + p % kPage;
        slots.push_back(static_cast<int32_t>(p / kPage < to[b] / kPage ? -1 : row));
      }
    }
  }
  // Neighbouring chunks lie in blocks that are none.
  static int64_t row_block(int64_t b, int64_t chunk) {
    return 5 * (b * kChunks + chunk) % (kSequences * kChunks);
  }
};

// Borders are kept in blocks of their own; the one behind chunk 1 of the first sequence is not kept where a
// step fills the next chunk too.
std::vector<int32_t> border_table(bool all) {
  std::vector<int32_t> t;
  for (int64_t b = 0; b < kSequences; ++b)
    for (int64_t j = 0; j < kChunks; ++j)
      t.push_back(!all && b == 0 && j == 1 ? -1 : static_cast<int32_t>(Step::row_block(b, j)));
  return t;
}
std::vector<int32_t> row_table() {
  std::vector<int32_t> t;
  for (int64_t b = 0; b < kSequences; ++b)
    for (int64_t j = 0; j < kChunks; ++j) t.push_back(static_cast<int32_t>(Step::row_block(b, j)));
  return t;
}

void set_state(StateArgs& s, const Step& step, float* borders, float* rows, const int32_t* border_tables,
               const int32_t* row_tables, const int32_t* slots, const int32_t* start,
               const int32_t* context) {
  s.borders = borders, s.rows = rows;
  s.border_tables = border_tables, s.row_tables = row_tables;
  s.row_slots = slots, s.seq_start = start, s.context_len = context;
  s.T = step.rows, s.B = kSequences, s.max_borders = s.max_row_blocks = kChunks;
  s.page_tokens = kPage;
}

// Prompts cut at these places: whole, in two within and at a chunk's end, and token by token.
std::vector<std::vector<Step>> cuts() {
  const int64_t none[kSequences] = {0, 0};
  std::vector<std::vector<Step>> all = {{Step(none, kTokens)}};
  for (const auto& at : {std::array<int64_t, kSequences>{7, 9}, {10, 5}, {0, 3}}) {
    const int64_t middle[kSequences] = {at[0], at[1]};
    all.push_back({Step(none, middle), Step(middle, kTokens)});
  }
  std::vector<Step> single;
  for (int64_t p = 0; p < kTokens[0]; ++p) {
    const auto up_to = [&](int64_t n, int64_t b) { return std::min(n, kTokens[b]); };
    const int64_t from[kSequences] = {p, up_to(p, 1)}, to[kSequences] = {p + 1, up_to(p + 1, 1)};
    single.emplace_back(from, to);
  }
  all.push_back(single);
  return all;
}

// Results, and what is kept, of one way to cut the prompts.
struct Outcome {
  std::vector<float> out, borders, rows;  // out: sequence behind sequence
};

// The columns of `all`, the rows of both sequences, that a step has.
std::vector<float> rows_of(const std::vector<float>& all, const Step& step, int64_t columns) {
  std::vector<float> v;
  for (int64_t b = 0, first = 0; b < kSequences; first += kTokens[b++]) {
    v.insert(v.end(), all.begin() + (first + step.begin[b]) * columns,
             all.begin() + (first + step.end[b]) * columns);
  }
  return v;
}

// `launch(args, rows..)` on the device for every step. Operands are matrices of some columns each.
template <class Args, class Set>
Outcome run_steps(KernelFamily family, Args args, const std::vector<Step>& steps,
                  const std::vector<std::pair<std::vector<float>, int64_t>>& operands, int64_t out_columns,
                  const Set& set) {
  const auto border_floats = args.state.border_floats, row_floats = args.state.row_floats;
  DeviceArray borders(nothing_yet(kSequences * kChunks * border_floats)),
      rows(nothing_yet(kSequences * kChunks * kPage * row_floats));
  DeviceCopy<int32_t> border_tables(border_table(steps.size() > 1)), row_tables(row_table());
  Outcome got;
  got.out = nothing_yet((kTokens[0] + kTokens[1]) * out_columns);
  for (const Step& step : steps) {
    DeviceCopy<int32_t> slots(step.slots), start(step.start), context(step.context);
    std::vector<std::unique_ptr<DeviceArray>> in;
    for (const auto& [values, columns] : operands)
      in.push_back(std::make_unique<DeviceArray>(rows_of(values, step, columns)));
    DeviceArray out(nothing_yet(step.rows * out_columns));
    set_state(args.state, step, borders.data(), rows.data(), border_tables.data(), row_tables.data(),
              slots.data(), start.data(), context.data());
    set(args, in, out.data(), step.rows);
    launch_on_device(family, "f32", &args);
    const std::vector<float> made = out.host();
    for (int64_t b = 0, first = 0, at = 0; b < kSequences; first += kTokens[b++]) {
      const int64_t n = (step.end[b] - step.begin[b]) * out_columns;
      std::copy_n(made.begin() + at, n, got.out.begin() + (first + step.begin[b]) * out_columns);
      at += n;
    }
  }
  got.borders = borders.host(), got.rows = rows.host();
  return got;
}

// Of the chunks that are open in the end.
std::vector<float> open_rows(const std::vector<float>& rows, int64_t row_floats) {
  std::vector<float> open;
  for (int64_t b = 0; b < kSequences; ++b) {
    const int64_t chunk = kTokens[b] / kPage, first = Step::row_block(b, chunk) * kPage;
    open.insert(open.end(), rows.begin() + first * row_floats,
                rows.begin() + (first + kTokens[b] % kPage) * row_floats);
  }
  return open;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("cuda: causal convolutions against the reference, however prompts are cut", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int64_t L : {1, 4, 6}) {
    for (const int64_t C : {3, 300}) {
      INFO("L " << L << " C " << C);
      const int64_t T = kTokens[0] + kTokens[1];
      const std::vector<float> x = random_values(static_cast<size_t>(T * C), Values::kNormal, 1),
                               w = random_values(static_cast<size_t>(L * C), Values::kNormal, 2),
                               bias = random_values(static_cast<size_t>(C), Values::kNormal, 3);
      CausalConvArgs a;
      a.C = a.ldx = a.ldo = C, a.L = L;
      a.state.border_floats = std::max<int64_t>(1, (L - 1) * C), a.state.row_floats = C;
      // The reference, in one step.
      const std::vector<Step> whole = cuts()[0];
      const Step& step = whole[0];
      std::vector<float> want = nothing_yet(T * C),
                         borders = nothing_yet(kSequences * kChunks * a.state.border_floats),
                         rows = nothing_yet(kSequences * kChunks * kPage * C);
      const std::vector<int32_t> border_tables = border_table(false), row_tables = row_table();
      CausalConvArgs r = a;
      set_state(r.state, step, borders.data(), rows.data(), border_tables.data(), row_tables.data(),
                step.slots.data(), step.start.data(), step.context.data());
      r.out = want.data(), r.x = x.data(), r.w = w.data(), r.bias = C > 3 ? bias.data() : nullptr, r.T = T;
      run_reference(KernelFamily::kCausalConv, Format::f32(), &r);

      DeviceArray dw(w), db(bias);
      a.w = dw.data(), a.bias = C > 3 ? db.data() : nullptr;
      Outcome first;
      for (const std::vector<Step>& steps : cuts()) {
        INFO("steps " << steps.size());
        const Outcome got = run_steps(KernelFamily::kCausalConv, a, steps, {{x, C}}, C,
                                      [](CausalConvArgs& args, const auto& in, float* out, int64_t n) {
                                        args.x = in[0]->data(), args.out = out, args.T = n;
                                      });
        // L products of N(0, 1), below 36 each, and a bias.
        check_close(got.out, want, [&](size_t) {
          return (static_cast<double>(L) + 1) * kUnit * 40 * static_cast<double>(L + 1);
        });
        CHECK(same(open_rows(got.rows, C), open_rows(rows, C)));  // copies
        if (steps.size() == 1) {
          first = got;
          CHECK(same(got.borders, borders));
        }
        CHECK(same(got.out, first.out));
      }
    }
  }
}

TEST_CASE("cuda: state scans against the reference, however prompts are cut", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Case {
    int32_t Hk, H, Dk, Dv;
    int32_t delta;
  };
  for (const Case& c : {Case{1, 1, 4, 3, 1}, Case{2, 4, 16, 33, 1}, Case{1, 2, 20, 64, 0}}) {
    INFO("heads " << c.H << " Dk " << c.Dk << " Dv " << c.Dv << " delta " << c.delta);
    const int64_t T = kTokens[0] + kTokens[1], keys = c.Hk * c.Dk, values = c.H * c.Dv;
    const auto random = [&](int64_t columns, uint32_t seed) {
      return random_values(static_cast<size_t>(T * columns), Values::kNormal, seed);
    };
    std::vector<float> q = random(keys, 1), k = random(keys, 2), v = random(values, 3), g = random(c.H, 4),
                       beta = random(c.H, 5);
    for (float& x : g) x = x > 1.8f ? -200.f : -0.1f * std::fabs(x);  // some forget all
    for (float& x : beta) x = 1 / (1 + std::exp(-x));
    // Shorter than one, so that the rule is a contraction.
    for (auto* x : {&q, &k})
      for (float& y : *x) y /= 4 * std::sqrt(static_cast<float>(c.Dk));
    StateScanArgs a;
    a.shape = {c.Hk, c.H, c.Dk, c.Dv};
    a.delta = c.delta;
    a.ldq = a.ldk = keys, a.ldv = a.ldo = values, a.ldg = a.ldb = c.H;
    a.state.border_floats = state_scan_border(a.shape) + 3;  // a block may be larger
    a.state.row_floats = state_scan_row(a.shape);
    const std::vector<Step> whole = cuts()[0];
    const Step& step = whole[0];
    std::vector<float> want = nothing_yet(T * values),
                       borders = nothing_yet(kSequences * kChunks * a.state.border_floats),
                       rows = nothing_yet(kSequences * kChunks * kPage * a.state.row_floats);
    const std::vector<int32_t> border_tables = border_table(false), row_tables = row_table();
    StateScanArgs r = a;
    set_state(r.state, step, borders.data(), rows.data(), border_tables.data(), row_tables.data(),
              step.slots.data(), step.start.data(), step.context.data());
    r.out = want.data(), r.q = q.data(), r.k = k.data(), r.v = v.data(), r.g = g.data(), r.beta = beta.data();
    r.T = T;
    run_reference(KernelFamily::kStateScan, Format::f32(), &r);
    // Each of 23 positions rounds sums of Dk products and what it adds, of numbers below 5; nothing grows.
    const double bound = 23 * (c.Dk + 8) * kUnit * 5;
    const auto close = [&](size_t) { return bound; };
    const auto set = [](StateScanArgs& args, const auto& in, float* out, int64_t n) {
      args.q = in[0]->data(), args.k = in[1]->data(), args.v = in[2]->data();
      args.g = in[3]->data(), args.beta = in[4]->data(), args.out = out, args.T = n;
    };
    Outcome first;
    for (const std::vector<Step>& steps : cuts()) {
      INFO("steps " << steps.size());
      const Outcome got = run_steps(KernelFamily::kStateScan, a, steps,
                                    {{q, keys}, {k, keys}, {v, values}, {g, c.H}, {beta, c.H}}, values, set);
      check_close(got.out, want, close);
      const std::vector<float> kept = open_rows(got.rows, a.state.row_floats);
      check_close(kept, open_rows(rows, a.state.row_floats), close);
      if (steps.size() == 1) {
        first = got;
        check_close(got.borders, borders, close);
      }
      CHECK(same(got.out, first.out));
      CHECK(same(kept, open_rows(first.rows, a.state.row_floats)));
    }
    // Without a state: segments, each from zero.
    std::vector<int32_t> segments(static_cast<size_t>(T), 7);
    std::fill(segments.begin() + kTokens[0], segments.end(), 2);
    DeviceCopy<int32_t> of(segments);
    DeviceArray dq(q), dk(k), dv(v), dg(g), dbeta(beta), out(nothing_yet(T * values));
    StateScanArgs alone = a;
    alone.state = {};
    alone.state.page_tokens = 64;
    alone.segments = of.data();
    alone.q = dq.data(), alone.k = dk.data(), alone.v = dv.data(), alone.g = dg.data(),
    alone.beta = dbeta.data();
    alone.out = out.data(), alone.T = T;
    launch_on_device(KernelFamily::kStateScan, "f32", &alone);
    CHECK(same(out.host(), first.out));
  }
}
