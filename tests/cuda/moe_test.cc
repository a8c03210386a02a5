// Routing to experts on the device against the reference: scores, biases, groups, ties and NaN.
#include "kernels/moe.h"

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
        Case{5, 64, 6, 8, 3}, Case{3, 80, 4, 40, 5}, Case{0, 4, 2, 0, 0}, Case{3, 40, 40, 0, 0}}) {
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
