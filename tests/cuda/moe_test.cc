// Routing to experts on the device against the reference: scores, biases, groups, ties and NaN.
#include "kernels/moe.h"

#include <cstring>

#include "kernels/cuda/held_launches.h"
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
