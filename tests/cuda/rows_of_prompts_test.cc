// Rows of prompts that a norm or a gate makes in the launch that rounds them for a product by warp groups or
// by cuBLASLt's strict fake: all memory is as a launch for each step leaves it, and how many launches there
// are.
#include <cstring>

#include "kernels/activation.h"
#include "kernels/cuda/emulation/libraries.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_library.h"
#include "kernels/cuda/matmul_wgmma.h"
#include "kernels/cuda/matmul_wgmma_codes.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar::cuda;
using namespace oar_test;

namespace {

// A norm or a gate, a transform and products of what they make, as a plan calls a plug-in: of rows of
// generated tokens, then of prompts.
struct RowsOfPrompts {
  const char *library, *format;
  int64_t K = 256;
  bool gated = false, transforms = false;
  int64_t generated = 0, prompts = 5;
  enum class Apart {
    kNothing,
    kOtherRows,       // the product's rows are of other memory
    kAskew,           // or begin within one
    kPastRows,        // or are more than were made
    kShorter,         // or end before
    kBetween,         // something changes them
    kOtherTransform,  // a transform of some rows, or over rows that another block reads
    kTurnedOverX,
    kTwice,     // two products of generated rows
    kOverRows,  // or one that writes where rows of prompts are read
    kScratch,   // lies upon what the norm reads, or the product of generated rows
    kScratchOfOther,
    kBehind  // a product that is done wrote where this one does
  } apart = Apart::kNothing;
};

struct RowsRun {
  std::vector<float> memory;
  uint64_t launches;
};

// A launch for each step, where `each`.
RowsRun run_rows(const RowsOfPrompts& p, bool each) {
  using Apart = RowsOfPrompts::Apart;
  constexpr int64_t kOutputs = 32;
  const int64_t K = p.K, T = p.generated + p.prompts, piece = std::max(T * K, T * kOutputs);
  const Format format = *Format::find(p.format);
  const std::vector<float> w = random_values(static_cast<size_t>(kOutputs * K), Values::kNormal, 7);
  std::vector<char> bytes(static_cast<size_t>(kOutputs * format.stride(K)));
  for (int64_t r = 0; r < kOutputs; ++r)
    format.encode_row(w.data() + r * K, K, bytes.data() + r * format.stride(K));
  if (const uint64_t packed = packed_bytes(p.format, kOutputs, K); packed > 0) {
    std::vector<char> panels(packed);
    pack_weight(p.format, kOutputs, K, panels.data(), bytes.data());
    bytes = panels;
  }
  DeviceCopy<char> weight(bytes);
  const MatmulSegment segment{weight.data(), nullptr, kOutputs, 0};
  // x, a residual or the gate, rows that are made, transformed, results; then scratch.
  constexpr int64_t kScratch = 1 << 16;
  DeviceArray all(random_values(static_cast<size_t>(5 * piece + kScratch), Values::kNormal, 8)),
      norm_w(random_values(static_cast<size_t>(K), Values::kNormal, 9));
  float *x = all.data(), *other = x + piece, *made = x + 2 * piece, *turned = x + 3 * piece,
        *out = x + 4 * piece;
  float* const behind =
      reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(x + 5 * piece) + 255) / 256 * 256);

  HeldLaunches held;
  held.hold_rows();
  const auto launch = [&](KernelFamily family, const char* name, const void* args) {
    REQUIRE(held.launch(*find_device_kernel(family, name), args, nullptr, nullptr).ok());
    if (each) REQUIRE(held.release().ok());
  };
  emulation::counters() = {};
  const NextOrder order;
  if (p.apart == Apart::kBehind) {
    MatmulArgs before;
    before.segments = &segment;
    before.num_segments = 1;
    before.format = format;
    before.K = before.ldx = K;
    before.ldo = kOutputs;
    before.x = x;
    before.out = out;
    before.T = T;
    launch(KernelFamily::kMatmul, p.format, &before);
    REQUIRE(held.release().ok());
  }
  if (p.gated) {
    SwiGluArgs g;
    g.gate = other;
    g.up = x;
    g.out = made;
    g.T = T;
    g.F = g.ldo = g.ldg = g.ldu = K;
    launch(KernelFamily::kSwiGlu, "f32", &g);
  } else {
    RmsNormArgs n;
    n.x = x;
    n.residual = n.sum_out = other;
    n.out = made;
    n.w = norm_w.data();
    n.rows = T;
    n.cols = n.ldx = n.ldo = K;
    launch(KernelFamily::kRmsNorm, "f32", &n);
  }
  float* from = made;
  if (p.transforms) {
    HadamardArgs h;
    h.x = made;
    h.out = turned;
    h.rows = T;
    h.n = h.ldx = h.ldo = K;
    h.block = h.power = 128;
    if (p.apart == Apart::kOtherTransform) h.x += K, h.rows -= 1;
    if (p.apart == Apart::kTurnedOverX) h.out = x + K / 2;
    from = h.out;
    launch(KernelFamily::kHadamard, "f32", &h);
  }
  if (p.apart == Apart::kBetween) {
    UnaryArgs u;
    u.x = u.out = from;
    u.n = T * K;
    launch(KernelFamily::kUnary, "f32", &u);
  }
  MatmulArgs m;
  m.segments = &segment;
  m.num_segments = 1;
  m.format = format;
  m.K = p.apart == Apart::kShorter ? K - 128 : K;
  m.ldx = K;
  m.ldo = kOutputs;
  m.x = from;
  m.out = p.apart == Apart::kOverRows ? from + p.generated * K : out;
  m.residual = p.apart == Apart::kScratchOfOther ? turned : nullptr;
  m.T = p.generated;
  launch(KernelFamily::kMatmul, p.format, &m);
  if (p.apart == Apart::kTwice) launch(KernelFamily::kMatmul, p.format, &m);
  m.x = p.apart == Apart::kOtherRows ? other : from + p.generated * K;
  m.residual = nullptr;
  m.out = out + p.generated * kOutputs;
  m.T = p.prompts;
  if (p.apart == Apart::kAskew) m.x += 8, m.T -= 1;
  if (p.apart == Apart::kPastRows) m.T += 1;
  const auto multiply = [&](auto&& products) {
    const uint64_t scratch_bytes = products.scratch(m);
    REQUIRE(scratch_bytes <= kScratch * sizeof(float) - 256);
    void* const scratch = p.apart == Apart::kScratch          ? x
                          : p.apart == Apart::kScratchOfOther ? turned
                                                              : behind;
    const std::optional<RowSteps> steps = held.take_rows(m, scratch, scratch_bytes, nullptr);
    if (!steps) REQUIRE(held.release().ok());
    REQUIRE(products.run(m, scratch, nullptr, steps ? &*steps : nullptr).ok());
    REQUIRE(held.release().ok());
    CHECK(held.held() == 0);
  };
  if (std::string_view(p.library) == "wgmma") {
    if (std::string_view(p.format) == "bf16") multiply(WarpGroupProducts());
    else multiply(WarpGroupCodes(p.format));
  } else {
    std::string why;
    const auto library = LibraryProducts::make(emulation::fake_cublas_lt(), &why);
    REQUIRE(library != nullptr);
    if (std::string_view(p.format) == "bf16") multiply(*library);
    else multiply(LibraryCodes(*library));
  }
  RowsRun run{all.host(), emulation::counters().launches};
  run.memory.resize(static_cast<size_t>(5 * piece));  // scratch is nobody's
  return run;
}

void check_rows(const RowsOfPrompts& p, uint64_t fewer) {
  INFO(p.library << " " << p.format << " K " << p.K << " gated " << p.gated << " transforms " << p.transforms
                 << " generated " << p.generated << " apart " << static_cast<int>(p.apart));
  const RowsRun each = run_rows(p, true), at_once = run_rows(p, false);
  CHECK(each.launches - at_once.launches == fewer);
  CHECK(std::memcmp(each.memory.data(), at_once.memory.data(), each.memory.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("cuda emulated: rows of prompts are made in the launch that rounds them") {
  struct Product {
    const char *library, *format;
  };
  for (const Product& q : {Product{"wgmma", "bf16"},
                           {"wgmma", "e4m3_channel"},
                           {"wgmma", "e4m3_g128"},
                           {"cublaslt", "bf16"},
                           {"cublaslt", "e4m3_g128"}}) {
    for (const bool gated : {false, true}) {
      check_rows({.library = q.library, .format = q.format, .gated = gated}, 1);
      check_rows({.library = q.library, .format = q.format, .gated = gated, .transforms = true}, 2);
      // Rows of generated tokens in front: a product of few of them, and of many.
      check_rows({.library = q.library, .format = q.format, .gated = gated, .generated = 3}, 1);
      check_rows(
          {.library = q.library, .format = q.format, .transforms = true, .generated = 3, .prompts = 130}, 2);
    }
  }
}

TEST_CASE("cuda emulated: rows that a product of prompts cannot have at once are made before") {
  using Apart = RowsOfPrompts::Apart;
  check_rows({.library = "wgmma", .format = "bf16", .K = 100}, 0);          // rows that it does not take
  check_rows({.library = "wgmma", .format = "e4m3_channel", .K = 192}, 0);  // the same
  check_rows({.library = "wgmma", .format = "bf16", .generated = 40}, 0);   // many generated ones in front
  for (const Apart apart : {Apart::kOtherRows, Apart::kAskew, Apart::kPastRows, Apart::kShorter,
                            Apart::kBetween, Apart::kScratch})
    check_rows({.library = "wgmma", .format = "bf16", .apart = apart}, 0);
  for (const Apart apart : {Apart::kOverRows, Apart::kScratchOfOther})
    check_rows({.library = "wgmma", .format = "bf16", .generated = 3, .apart = apart}, 0);
  check_rows({.library = "wgmma", .format = "bf16", .apart = Apart::kBehind}, 1);
  // Those two are one launch.
  check_rows({.library = "wgmma", .format = "bf16", .generated = 3, .apart = Apart::kTwice}, 1);
  for (const Apart apart : {Apart::kOtherTransform, Apart::kTurnedOverX})
    check_rows({.library = "wgmma", .format = "bf16", .transforms = true, .apart = apart}, 0);
}

TEST_CASE("cuda emulated: rows that nobody rounds are not held") {
  DeviceArray x(random_values(64, Values::kNormal, 1)), sum(nothing_yet(64));
  UnaryArgs a;
  a.out = sum.data();
  a.x = x.data();
  a.n = 64;
  a.op = UnaryOp::kSin;  // others are held for ops of the same elements
  HeldLaunches held;
  held.hold_rows();
  REQUIRE(held.launch(*find_device_kernel(KernelFamily::kUnary, "f32"), &a, nullptr, nullptr).ok());
  CHECK(held.held() == 0);
  CHECK(std::fabs(sum.host()[9] - std::sin(x.host()[9])) < 1e-6f);
}
