// Routing to experts on the device against the reference: scores, biases, groups, ties and NaN.
#include "kernels/moe.h"

#include <cstring>

#include "kernels/cuda/held_launches.h"
#include "kernels/hadamard.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

TEST_CASE("cuda: routes against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Case {
    int64_t T, experts, top_k;
    int32_t groups, top_groups;
  };
  for (const Case& c :
       {Case{1, 1, 1, 0, 0}, Case{5, 8, 2, 0, 0}, Case{130, 12, 4, 0, 0}, Case{7, 33, 3, 3, 2},
        Case{5, 64, 6, 8, 3}, Case{3, 80, 4, 40, 5}, Case{0, 4, 2, 0, 0}, Case{3, 40, 40, 0, 0},
        Case{300, 6, 4, 0, 0}}) {  // as many pairs as one launch does not sort
    for (RouteScore score : {RouteScore::kSoftmax, RouteScore::kSigmoid, RouteScore::kSqrtSoftplus}) {
      for (int flags = 0; flags < (c.groups > 0 ? 16 : 8); ++flags) {
        INFO("T " << c.T << " experts " << c.experts << " top " << c.top_k << " groups " << c.groups
                  << " score " << static_cast<int>(score) << " flags " << flags);
        std::vector<float> logits = random_values(static_cast<size_t>(c.T * c.experts), Values::kNormal, 1),
                           bias = random_values(static_cast<size_t>(c.experts), Values::kIntegers, 2),
                           own = random_values(static_cast<size_t>(c.experts), Values::kNormal, 3);
        // Ties within a token, and a token with a NaN.
        for (size_t i = 1; i < logits.size() && c.experts > 1; i += 2) logits[i] = logits[i - 1];
        if (c.T > 4) logits[static_cast<size_t>(2 * c.experts)] = NAN;
        const int64_t pairs = c.T * c.top_k;
        std::vector<int32_t> token(static_cast<size_t>(pairs), -1),
            slot = token, start(static_cast<size_t>(c.experts + 1), -1);
        std::vector<float> weight = nothing_yet(pairs);
        MoeRouteArgs a;
        a.T = c.T;
        a.experts = c.experts;
        a.top_k = c.top_k;
        a.groups = c.groups;
        a.top_groups = c.top_groups;
        a.group_best = (flags & 8) != 0 ? 1 : 2;
        a.score = score;
        a.normalize = flags % 2;
        a.scale = 2.5f;
        a.logits = logits.data();
        a.bias = (flags & 2) != 0 ? bias.data() : nullptr;
        a.expert_scale = (flags & 4) != 0 ? own.data() : nullptr;
        DeviceCopy<int32_t> dtoken(token), dslot(slot), dstart(start);
        DeviceArray dweight(weight), dlogits(logits), dbias(bias), down(own);
        a.pair_token = token.data();
        a.pair_slot = slot.data();
        a.expert_start = start.data();
        a.pair_weight = weight.data();
        run_reference(KernelFamily::kMoeRoute, Format::f32(), &a);
        a.pair_token = dtoken.data();
        a.pair_slot = dslot.data();
        a.expert_start = dstart.data();
        a.pair_weight = dweight.data();
        a.logits = dlogits.data();
        a.bias = (flags & 2) != 0 ? dbias.data() : nullptr;
        a.expert_scale = (flags & 4) != 0 ? down.data() : nullptr;
        launch_on_device(KernelFamily::kMoeRoute, "f32", &a);
        CHECK(dtoken.host() == token);
        CHECK(dslot.host() == slot);
        CHECK(dstart.host() == start);
        // exp of at most 10, a sum of experts, two quotients: 2^-24 each.
        const double units = 64 + static_cast<double>(c.experts) / 16;
        check_close(dweight.host(), weight, [&](size_t i) { return units * kUnit * std::fabs(weight[i]); });
      }
    }
  }
}

TEST_CASE("cuda: combining experts' rows against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (int64_t E : {1, 127, 129, 300}) {
    const int64_t T = 3, top_k = 2;
    const std::vector<int32_t> slot = {5, 0, 1, 2, 4, 3};
    std::vector<float> y = random_values(static_cast<size_t>(T * top_k * E), Values::kNormal, 1),
                       weight = random_values(6, Values::kNormal, 2), want = nothing_yet(T * E);
    MoeCombineArgs a;
    a.out = want.data();
    a.y = y.data();
    a.pair_slot = slot.data();
    a.pair_weight = weight.data();
    a.T = T;
    a.top_k = top_k;
    a.E = E;
    run_reference(KernelFamily::kMoeCombine, Format::f32(), &a);
    DeviceArray dy(y), dweight(weight), out(nothing_yet(T * E));
    DeviceCopy<int32_t> dslot(slot);
    a.out = out.data();
    a.y = dy.data();
    a.pair_slot = dslot.data();
    a.pair_weight = dweight.data();
    launch_on_device(KernelFamily::kMoeCombine, "f32", &a);
    check_close(out.host(), want,
                [&](size_t) { return 2 * kUnit * 2 * 36; });  // two products of at most 6 x 6
  }
}

namespace {

// Experts' rows that are combined, and a norm: rows of x, and a residual, either of which is what was
// combined.
struct Combined {
  int64_t T = 3, E = 260;
  bool is_residual = false, sum_out = false, in_place = false;
  int64_t rows = -1, cols = -1;     // of the norm, where they are others
  int64_t out = -1, residual = -1;  // where they lie, in floats from y on
  size_t shift = 0;
};
std::vector<float> run_combined(const Combined& p, bool at_once) {
  constexpr int64_t kTopK = 2;
  const int64_t piece = p.T * p.E;
  DeviceArray memory(random_values(static_cast<size_t>(7 * piece), Values::kNormal, 1), p.shift),
      weight(random_values(static_cast<size_t>(p.T * kTopK), Values::kNormal, 2)),
      norm_w(random_values(static_cast<size_t>(p.E), Values::kNormal, 3), p.shift);
  std::vector<int32_t> slot;
  for (int64_t i = p.T * kTopK; i-- > 0;) slot.push_back(static_cast<int32_t>(i));
  DeviceCopy<int32_t> slots(slot);
  float *y = memory.data(), *made = y + 2 * piece, *other = y + (p.residual >= 0 ? p.residual : 3 * piece);
  MoeCombineArgs a;
  a.out = made;
  a.y = y;
  a.pair_slot = slots.data();
  a.pair_weight = weight.data();
  a.T = p.T;
  a.top_k = kTopK;
  a.E = p.E;
  RmsNormArgs n;
  n.x = p.is_residual ? other : made;
  n.residual = p.is_residual ? made : other;
  n.sum_out = p.sum_out ? other : nullptr;
  n.out = p.in_place ? made : y + (p.out >= 0 ? p.out : 4 * piece);
  n.w = norm_w.data();
  n.rows = p.rows >= 0 ? p.rows : p.T;
  n.cols = p.cols >= 0 ? p.cols : p.E;
  n.ldx = n.ldo = p.E;
  const NextOrder order;
  cuda::HeldLaunches launches;
  const auto launch = [&](KernelFamily family, const void* args) {
    REQUIRE(launches.launch(*cuda::find_device_kernel(family, "f32"), args, nullptr, nullptr).ok());
    if (!at_once) REQUIRE(launches.release().ok());
  };
  launch(KernelFamily::kMoeCombine, &a);
  if (at_once) CHECK(launches.held() == 1);
  launch(KernelFamily::kRmsNorm, &n);
  CHECK(launches.held() == 0);
  return memory.host();
}
void check_combined(const Combined& p) {
  INFO("T " << p.T << " E " << p.E << " out " << p.out << " residual " << p.residual);
  const std::vector<float> got = run_combined(p, true), want = run_combined(p, false);
  CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("cuda: combining experts' rows and a norm of these at once is one behind the other", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int64_t E : {1, 127, 260, 1028, 4096}) {
    for (const size_t shift : {0, 1}) {
      check_combined({.E = E, .shift = shift});
      check_combined({.T = 40, .E = E, .is_residual = true, .sum_out = true, .shift = shift});
    }
  }
  check_combined({.T = 5, .in_place = true});
  check_combined({.T = 5, .sum_out = true});
  // Of other rows, and where blocks would meet: over experts' rows, and a residual between rows of what is
  // combined.
  check_combined({.rows = 2});
  check_combined({.cols = 256});
  check_combined({.out = 0});
  check_combined({.residual = 2 * 3 * 260 + 260});
  check_combined({.sum_out = true, .residual = 260});
}

namespace {

// The second half of experts' work: a gate, the second layers, the sum of a token's rows, and norms behind
// it.
struct SecondHalf {
  const char* format = "bf16";
  int64_t experts = 4, T = 2, top_k = 2, E = 260, F = 128;
  UnaryOp act = UnaryOp::kSilu;
  float limit = 0;  // of the gate
  bool gated = true, combined = true, made_twice = false, holds_rows = false, transformed = false;
  bool turned = false;  // the products' rows are transformed
  int norms = 2;
  int64_t made = -1, y = -1;     // where they lie, in floats from the gate's rows on
  int64_t rows = -1, pairs = 0;  // of the first norm; more of the gate than of the products
  size_t shift = 0;
};
struct SecondHalfDone {
  std::vector<float> memory;  // of activations
  int64_t held;               // launches in the end
  bool gate_waits;            // nobody had written its rows when experts' products were launched
};
SecondHalfDone run_second_half(const SecondHalf& s, bool at_once) {
  const int64_t P = s.T * s.top_k, gated = P + s.pairs, piece = (gated + 1) * std::max(2 * s.F, s.E);
  DeviceArray memory(random_values(static_cast<size_t>(7 * piece), Values::kNormal, 1), s.shift),
      weight(random_values(static_cast<size_t>(P), Values::kNormal, 2)),
      norm_w(random_values(static_cast<size_t>(s.E), Values::kNormal, 3), s.shift),
      bias(random_values(static_cast<size_t>(s.E), Values::kNormal, 4));
  // Small numbers in every format.
  std::vector<char> bytes(static_cast<size_t>(s.experts * 1024 + s.E * s.F * 4 + 4096));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0x38 + (i * 7 + i / 11) % 5);
  DeviceCopy<char> weights(bytes);
  std::vector<int32_t> slots, starts;
  for (int64_t i = P; i-- > 0;) slots.push_back(static_cast<int32_t>(i));
  // The first has none, the last what the others leave.
  for (int64_t e = 0; e <= s.experts; ++e)
    starts.push_back(static_cast<int32_t>(e == s.experts ? P : std::min(P, e < 2 ? 0 : 3 * (e - 1))));
  DeviceCopy<int32_t> slot(slots), start(starts);
  float* const base = memory.data();
  const auto place = [&](int64_t where, int64_t which) {
    return base + (where >= 0 ? where : which * piece);
  };
  SwiGluArgs g;
  g.gate = base;
  g.up = base + s.F;
  g.out = place(s.made, 1);
  g.T = gated;
  g.F = s.F;
  g.ldg = g.ldu = 2 * s.F;
  g.ldo = s.made >= 0 ? g.ldg : s.F;
  g.act = s.act;
  g.limit = s.limit;
  HadamardArgs t;
  t.x = t.out = g.out;
  t.rows = g.T;
  t.n = t.block = t.power = s.F;
  t.ldx = t.ldo = g.ldo;
  std::vector<MatmulSegment> segments;
  for (int64_t e = 0; e < s.experts; ++e)
    segments.push_back({weights.data() + e * 1024, e % 2 == 0 ? bias.data() : nullptr, s.E, 0});
  GroupedMatmulArgs m;
  m.out = place(s.y, 2);
  m.x = g.out;
  m.expert_start = start.data();
  m.segments = segments.data();
  m.segments_per_expert = 1;
  m.experts = s.experts;
  m.P = P;
  m.K = s.F;
  m.ldx = g.ldo;
  m.ldo = s.E;
  MoeCombineArgs c;
  c.out = base + 3 * piece;
  c.y = m.out;
  c.pair_slot = slot.data();
  c.pair_weight = weight.data();
  c.T = s.T;
  c.top_k = s.top_k;
  c.E = s.E;
  RmsNormArgs n;
  n.x = s.combined ? c.out : m.out;
  n.residual = n.sum_out = base + 4 * piece;
  n.out = base + 5 * piece;
  n.w = norm_w.data();
  n.rows = s.rows >= 0 ? s.rows : s.T;
  n.cols = n.ldx = n.ldo = s.E;
  RmsNormArgs second = n;
  second.x = n.out;
  second.residual = second.sum_out = nullptr;
  second.out = base + 6 * piece;
  const NextOrder order;
  cuda::HeldLaunches launches;
  if (s.holds_rows) launches.hold_rows();
  const auto launch = [&](KernelFamily family, const char* format, const void* args) {
    REQUIRE(launches.launch(*cuda::find_device_kernel(family, format), args, nullptr, nullptr).ok());
    if (!at_once) REQUIRE(launches.release().ok());
  };
  const std::vector<float> before = memory.host();
  if (s.gated) launch(KernelFamily::kSwiGlu, "f32", &g);
  if (s.transformed) launch(KernelFamily::kHadamard, "f32", &t);
  launch(KernelFamily::kGroupedMatmul, s.format, &m);
  const auto gate_rows = static_cast<size_t>(g.out - base);
  const bool gate_waits = memory.host()[gate_rows] == before[gate_rows];
  segments.assign(segments.size(), {});  // the caller's list may be gone by now
  HadamardArgs behind = t;
  behind.x = behind.out = m.out;
  behind.rows = P;
  behind.n = behind.block = behind.power = behind.ldx = behind.ldo = s.E;
  if (s.turned) launch(KernelFamily::kHadamard, "f32", &behind);
  if (s.combined) launch(KernelFamily::kMoeCombine, "f32", &c);
  if (s.made_twice) launch(KernelFamily::kMoeCombine, "f32", &c);
  if (s.norms > 0) launch(KernelFamily::kRmsNorm, "f32", &n);
  for (int i = 1; i < s.norms; ++i) launch(KernelFamily::kRmsNorm, "f32", &second);
  const int64_t held = launches.held();
  REQUIRE(launches.release().ok());
  CHECK(launches.held() == 0);
  return {memory.host(), held, gate_waits};
}
// `held`: whether all in the end were one launch.
void check_second_half(const SecondHalf& s, bool held) {
  INFO(s.format << " experts " << s.experts << " T " << s.T << " top " << s.top_k << " E " << s.E << " F "
                << s.F << " norms " << s.norms << " made " << s.made << " y " << s.y << " shift " << s.shift);
  const auto [got, launches, waits] = run_second_half(s, true);
  CHECK(launches == (held ? 1 : 0));
  const std::vector<float> want = run_second_half(s, false).memory;
  CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE(
    "cuda: products and the norms of experts at once, with the gate and the sum, are those of one by one",
    "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* format : {"bf16", "q4_0", "i8_channel", "mxfp4", "f32"})
    check_second_half({.format = format}, true);
  for (const size_t shift : {0, 1}) {
    check_second_half({.T = 1, .top_k = 8, .E = 1028, .F = 520, .shift = shift}, true);
    check_second_half({.format = "q5_0", .T = 8, .top_k = 1, .E = 33, .F = 96, .norms = 1, .shift = shift},
                      true);
  }
  check_second_half({.act = UnaryOp::kGeluTanh, .norms = 0}, true);
  check_second_half({.gated = false}, true);
  check_second_half({.experts = 130, .T = 4}, true);  // launches of 64 experts each
  // More pairs than one block adds up; tiles of many rows; a norm more; no sum.
  check_second_half({.T = 5}, false);
  check_second_half({.experts = 2, .T = 36}, false);
  check_second_half({.norms = 3}, false);
  check_second_half({.combined = false, .norms = 0}, true);
  check_second_half({.combined = false, .norms = 1}, false);
  check_second_half({.experts = 2, .T = 36, .combined = false, .norms = 0}, false);
  check_second_half({.made_twice = true}, false);
  check_second_half({.rows = 1}, false);
  check_second_half({.E = 256, .combined = false, .turned = true, .norms = 0}, true);
  // A norm is held behind the transform that it reads, not in front of it.
  check_second_half({.E = 256, .combined = false, .holds_rows = true, .turned = true, .norms = 1}, true);
  // Gates that are others, or of other rows; and what would meet: the gate in place of what it reads, and the
  // product over that.
  check_second_half({.limit = 1.5f}, true);
  check_second_half({.pairs = 1}, true);
  for (const float limit : {0.f, 1.5f}) check_second_half({.limit = limit, .holds_rows = true}, true);
  for (const int64_t where : {0, 128}) check_second_half({.made = where}, true);
  for (const int64_t where : {0, 128, 3 * 256 + 128}) check_second_half({.E = 64, .y = where}, true);
  // A gate is one launch with the products, and one of its own where its rows are transformed in between.
  for (const bool holds : {false, true}) CHECK(run_second_half({.holds_rows = holds}, true).gate_waits);
  for (const bool holds : {false, true}) check_second_half({.holds_rows = holds, .transformed = true}, true);
  CHECK(!run_second_half({.holds_rows = true, .transformed = true}, true).gate_waits);
}
