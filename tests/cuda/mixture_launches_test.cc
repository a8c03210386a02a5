// What a device does at once of a mixture: the output product, its norm, the router's product and what it
// chooses; then experts' layers with the gate between them, the sum of their rows, its norm and the next
// layer's first product. The bits are those of launches one by one, whatever of it is one launch.
#include <cstring>

#include "kernels/cuda/held_launches.h"
#include "kernels/moe.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Mixture {
  const char* format = "bf16";
  int64_t T = 2, experts = 6, top_k = 2, E = 256, F = 128;
  const char* router = nullptr;  // its format; null: the same
  const char* second = nullptr;  // of experts' second layers
  int64_t logits = 0;            // more columns than experts
  int32_t groups = 0;
  bool bias = true, differs = false;                  // of experts; one of them has none
  bool combined = true, gated = true, twice = false;  // twice: experts' first layers once more
  bool next = true;
  size_t shift = 0;  // floats by which activations lie beside a multiple of 16 bytes
};

struct Done {
  std::vector<float> memory;  // of activations, weights of pairs among them
  std::vector<int32_t> pairs;
  int64_t held;  // launches in the end
};

Done run(const Mixture& s, bool at_once) {
  const int64_t P = s.T * s.top_k, wide = std::max({s.E, 2 * s.F, s.experts + s.logits}),
                piece = std::max(s.T, P) * wide;
  DeviceArray memory(random_values(static_cast<size_t>(9 * piece), Values::kNormal, 1), s.shift),
      weight(nothing_yet(P)), norm_w(random_values(static_cast<size_t>(s.E), Values::kNormal, 3), s.shift),
      bias(random_values(static_cast<size_t>(s.experts * wide), Values::kNormal, 4));
  std::vector<char> bytes(static_cast<size_t>(s.experts * 2048 + wide * wide * 4 + 4096));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0x38 + (i * 7 + i / 11) % 5);
  DeviceCopy<char> weights(bytes);
  DeviceCopy<int32_t> token(std::vector<int32_t>(static_cast<size_t>(P), -1)),
      slot(std::vector<int32_t>(static_cast<size_t>(P), -1)),
      start(std::vector<int32_t>(static_cast<size_t>(s.experts + 1), -1)),
      chosen(std::vector<int32_t>(static_cast<size_t>(P), -1));
  float* const base = memory.data();
  float *const x = base, *const hidden = base + piece, *const normed = base + 2 * piece,
               *const logits = base + 3 * piece, *const both = base + 4 * piece,
               *const made = base + 5 * piece, *const y = base + 6 * piece, *const sum = base + 7 * piece,
               *const heads = base + 8 * piece;
  const NextOrder order;
  cuda::HeldLaunches launches;
  const auto launch = [&](KernelFamily family, const char* format, const void* args) {
    REQUIRE(launches.launch(*cuda::find_device_kernel(family, format), args, chosen.data(), nullptr).ok());
    if (!at_once) REQUIRE(launches.release().ok());
  };
  const auto product = [&](const char* format, float* out, int64_t ldo, const float* from, bool adds) {
    const MatmulSegment segment{weights.data() + 256, nullptr, ldo, 0};
    MatmulArgs m;
    m.out = out;
    m.x = from;
    m.residual = adds ? out : nullptr;
    m.segments = &segment;
    m.num_segments = 1;
    m.T = s.T;
    m.K = m.ldx = s.E;
    m.ldo = ldo;
    launch(KernelFamily::kMatmul, format, &m);
  };
  const auto norm = [&](const float* of) {
    RmsNormArgs n;
    n.x = of;
    n.residual = n.sum_out = hidden;
    n.out = normed;
    n.w = norm_w.data();
    n.rows = s.T;
    n.cols = n.ldx = n.ldo = s.E;
    launch(KernelFamily::kRmsNorm, "f32", &n);
  };
  const auto of_experts = [&](const char* format, float* out, const float* from, int64_t K, int64_t ldx,
                              int64_t n, int64_t count, bool by_token) {
    std::vector<MatmulSegment> segments;
    for (int64_t e = 0; e < s.experts; ++e) {
      for (int64_t i = 0; i < count; ++i) {
        const bool has = s.bias && !(s.differs && e == 1);
        segments.push_back({weights.data() + (e * count + i) * 512,
                            has ? bias.data() + e * count * n + i * n : nullptr, n, i * n});
      }
    }
    GroupedMatmulArgs m;
    m.out = out;
    m.x = from;
    m.pair_token = by_token ? token.data() : nullptr;
    m.expert_start = start.data();
    m.segments = segments.data();
    m.segments_per_expert = count;
    m.experts = s.experts;
    m.P = P;
    m.K = K;
    m.ldx = ldx;
    m.ldo = count * n;
    launch(KernelFamily::kGroupedMatmul, format, &m);
  };
  product(s.format, hidden, s.E, x, true);
  norm(x);
  product(s.router != nullptr ? s.router : s.format, logits, s.experts + s.logits, normed, false);
  MoeRouteArgs route;
  route.pair_token = token.data();
  route.pair_slot = slot.data();
  route.pair_weight = weight.data();
  route.expert_start = start.data();
  route.logits = logits;
  route.T = s.T;
  route.experts = s.experts;
  route.top_k = s.top_k;
  route.groups = s.groups;
  route.top_groups = 1;
  launch(KernelFamily::kMoeRoute, "f32", &route);
  for (int i = 0; i < (s.twice ? 2 : 1); ++i) of_experts(s.format, both, normed, s.E, s.E, s.F, 2, true);
  SwiGluArgs gate;
  gate.gate = both;
  gate.up = both + s.F;
  gate.out = made;
  gate.T = P;
  gate.F = gate.ldo = s.F;
  gate.ldg = gate.ldu = 2 * s.F;
  if (s.gated) launch(KernelFamily::kSwiGlu, "f32", &gate);
  of_experts(s.second != nullptr ? s.second : s.format, y, s.gated ? made : both, s.F,
             s.gated ? s.F : 2 * s.F, s.E, 1, false);
  MoeCombineArgs c;
  c.out = sum;
  c.y = y;
  c.pair_slot = slot.data();
  c.pair_weight = weight.data();
  c.T = s.T;
  c.top_k = s.top_k;
  c.E = s.E;
  if (s.combined) launch(KernelFamily::kMoeCombine, "f32", &c);
  norm(s.combined ? sum : y);
  if (s.next) product(s.format, heads, 48, normed, false);
  const int64_t held = launches.held();
  REQUIRE(launches.release().ok());
  CHECK(launches.held() == 0);
  Done done{memory.host(), token.host(), held};
  for (DeviceCopy<int32_t>* part : {&slot, &start}) {
    const std::vector<int32_t> its = part->host();
    done.pairs.insert(done.pairs.end(), its.begin(), its.end());
  }
  const std::vector<float> its = weight.host();
  done.memory.insert(done.memory.end(), its.begin(), its.end());
  return done;
}

void check(const Mixture& s) {
  INFO(s.format << " T " << s.T << " experts " << s.experts << " top " << s.top_k << " E " << s.E << " F "
                << s.F << " shift " << s.shift << " combined " << s.combined << " gated " << s.gated
                << " twice " << s.twice);
  const Done got = run(s, true), want = run(s, false);
  if (s.next && s.T <= cuda::kFewRows) CHECK(got.held == 1);
  CHECK(got.pairs == want.pairs);
  CHECK(std::memcmp(got.memory.data(), want.memory.data(), got.memory.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("cuda: a mixture's launches at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* format : {"bf16", "q8_0", "i4_g64", "q4_k", "f32"}) check({.format = format});
  for (const int64_t T : {1, 3, 4, 5, 17, 31, 32}) check({.T = T});
  check({.T = 3, .experts = 1, .top_k = 1});
  check({.T = 3, .E = 1152, .F = 640});  // several spans
  check({.T = 3, .E = 72, .F = 40});     // less than a part of a span
  check({.T = 20, .experts = 2});        // tiles of many rows
  check({.shift = 1});
  check({.groups = 3});
  check({.bias = false});
  check({.differs = true});  // an expert without a bias among others
  // Other formats in between; logits of more than the experts; neither sum nor gate; more than one first
  // layer.
  check({.format = "q8_0", .router = "bf16"});
  check({.format = "q5_1", .router = "f32"});
  check({.format = "q8_0", .second = "i4_g64"});
  check({.format = "iq4_nl", .router = "bf16"});
  check({.format = "q4_k", .F = 256, .router = "f32", .second = "q6_k"});
  check({.logits = 8});
  check({.combined = false});
  check({.gated = false});
  check({.twice = true});
  check({.next = false});
  check({.T = 2, .experts = 300, .top_k = 3, .F = 64});  // more matrices than a launch has
  check({.T = 2, .experts = 600, .top_k = 3, .F = 64});  // and more experts than are chosen in one
}
