// Attention without a cache on the device: padded batches with every mask and window, and segments, against
// the double-precision reference; a query alone has the bits that it has in company.
#include "tests/cuda/on_device.h"
#include "tests/kernels/dense_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

template <class T>
std::vector<T> listed(const Guarded<T>& g) {
  return {g.begin(), g.end()};
}

// The problem's operands on the device, `shift` elements behind an aligned place.
class DenseOnDevice {
 public:
  DenseOnDevice(const DenseProblem& p, size_t shift)
      : args_(p.args()),
        q_(listed(p.q()), shift),
        k_(listed(p.k()), shift),
        v_(listed(p.v()), shift),
        mask_(listed(p.mask())),
        seen_(listed(p.seen())),
        lengths_(listed(p.lengths())) {
    args_.q = q_.data(), args_.k = k_.data(), args_.v = v_.data();
    if (args_.mask != nullptr) {
      if (args_.mask_bool != 0) args_.mask = seen_.data();
      else args_.mask = mask_.data();
    }
    if (args_.lengths != nullptr) args_.lengths = lengths_.data();
  }
  // As DenseProblem::run().
  std::vector<float> run() const { return run(args_); }
  std::vector<float> run_one(int64_t i) const {
    DenseAttentionArgs a = args_;
    a.q += i * a.q_steps.row, a.S = 1, a.offset += i;
    if (a.mask != nullptr)
      a.mask = static_cast<const char*>(a.mask) + i * a.mask_steps.row * (a.mask_bool != 0 ? 1 : 4);
    return run(a);
  }

 private:
  static std::vector<float> run(DenseAttentionArgs a) {
    DeviceArray out(nothing_yet(a.B * a.H * a.S * a.DV));
    a.out = out.data();
    a.out_steps = {a.H * a.S * a.DV, a.S * a.DV, a.DV};
    launch_on_device(KernelFamily::kDenseAttention, "f32", &a);
    return out.host();
  }
  DenseAttentionArgs args_;
  DeviceArray q_, k_, v_, mask_;
  DeviceCopy<uint8_t> seen_;
  DeviceCopy<int32_t> lengths_;
};

}  // namespace

TEST_CASE("cuda: attention of padded batches against the reference, alone as in company", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  uint32_t seed = 0;
  std::vector<DenseCase> cases = dense_cases();
  DenseCase wide_values;  // more than a warp's dims
  wide_values.S = 3, wide_values.L = 40, wide_values.D = 136, wide_values.DV = 300, wide_values.K = 2,
  wide_values.H = 4;
  cases.push_back(wide_values);
  DenseCase no_keys;
  no_keys.S = 2, no_keys.L = 0, no_keys.D = no_keys.DV = 8;
  cases.push_back(no_keys);
  DenseCase late;  // the first keys that a warp takes at a time are all hidden
  late.S = 2, late.L = 70, late.D = late.DV = 8, late.mask = Mask::kLate;
  cases.push_back(late);
  for (const DenseCase& c : cases) {
    if (c.S > 200) continue;  // many tiles of the processor's are no more here than one
    INFO("case " << seed << " S " << c.S << " L " << c.L << " D " << c.D << " DV " << c.DV);
    const DenseProblem p(c, seed += 10);
    const DenseOnDevice device(p, seed / 10 % 3 == 0 ? 1 : 0);
    const std::vector<float> got = device.run();
    check_close(got, p.run(Isa::kReference), [&](size_t) { return p.bound(); });
    if (c.last) continue;  // its position follows from how many queries there are
    const std::vector<float> one = device.run_one(c.S - 1);
    for (int64_t bh = 0; bh < c.B * c.H; ++bh) {
      REQUIRE(std::memcmp(one.data() + bh * c.DV, got.data() + (bh * c.S + c.S - 1) * c.DV,
                          static_cast<size_t>(c.DV) * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("cuda: attention within segments against the reference, wherever a segment lies", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Heads {
    int64_t H, K, D;
  };
  for (const Heads h : {Heads{1, 1, 8}, Heads{4, 2, 7}, Heads{2, 1, 160}, Heads{3, 3, 64}}) {
    for (const int64_t window : {0, 1, 9}) {
      INFO("H " << h.H << " D " << h.D << " window " << window);
      const std::vector<int64_t> lengths = {1, 3, 70, 32, 33, 2};
      std::vector<int32_t> segments, positions;
      for (size_t s = 0; s < lengths.size(); ++s) {
        for (int64_t n = 0; n < lengths[s]; ++n) {
          segments.push_back(static_cast<int32_t>(s % 2 == 0 ? s : 1000 - s));
          positions.push_back(static_cast<int32_t>(7 + n + n / 10));  // with holes
        }
      }
      const auto T = static_cast<int64_t>(segments.size()), width = (h.H + 2 * h.K) * h.D;
      const std::vector<float> qkv = random_values(static_cast<size_t>(T * width), Values::kNormal, 5);
      std::vector<float> want = nothing_yet(T * h.H * h.D);
      SegmentAttentionArgs a;
      const auto place = [&](const float* from, int64_t first, int64_t rows, const int32_t* segment,
                             const int32_t* position, float* out) {
        a.q = from + first * width, a.k = a.q + h.H * h.D, a.v = a.k + h.K * h.D;
        a.segments = segment + first;
        a.positions = window > 0 ? position + first : nullptr;
        a.T = rows;
        a.out = out;
      };
      a.H = h.H, a.K = h.K, a.D = h.D;
      a.ldq = a.ldk = a.ldv = width, a.ldo = h.H * h.D;
      a.scale = 1 / std::sqrt(static_cast<float>(h.D));
      a.window = window;
      place(qkv.data(), 0, T, segments.data(), positions.data(), want.data());
      run_reference(KernelFamily::kSegmentAttention, Format::f32(), &a);
      DeviceArray from(qkv), out(nothing_yet(T * h.H * h.D));
      DeviceCopy<int32_t> segment(segments), position(positions);
      place(from.data(), 0, T, segment.data(), position.data(), out.data());
      launch_on_device(KernelFamily::kSegmentAttention, "f32", &a);
      const std::vector<float> got = out.host();
      // As DenseProblem::bound(): products of N(0, 1) are below 36, values below 6.
      const auto D = static_cast<double>(h.D);
      const double score = (D + 8) * kUnit * 36 * D / std::sqrt(D);
      check_close(got, want, [&](size_t) { return 6 * (4 * score + (2 * 70 + 16) * kUnit); });
      // The third segment by itself, to the bit.
      constexpr int64_t kFirst = 4, kRows = 70;
      DeviceArray alone(nothing_yet(kRows * h.H * h.D));
      place(from.data(), kFirst, kRows, segment.data(), position.data(), alone.data());
      launch_on_device(KernelFamily::kSegmentAttention, "f32", &a);
      const std::vector<float> its = alone.host();
      CHECK(std::equal(its.begin(), its.end(), got.begin() + kFirst * h.H * h.D));
    }
  }
}
