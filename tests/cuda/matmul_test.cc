// Products on the device against the reference: every storage format, plain, gated and of experts; sizes
// around tiles of 16 outputs and 8 rows, of 128 and 64, around spans of K; a row is the same alone, and in
// any company.
#include "kernels/matmul.h"

#include <numeric>

#include "kernels/cuda/matmul_blocks.h"
#include "kernels/moe.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

struct Shape {
  int64_t T, K;
  std::vector<int64_t> n;  // of each segment
};

// Operands of one product, on the host and on the device.
struct Problem {
  Shape shape;
  Format format;
  int64_t ldx, ldo, columns = 0;
  std::vector<float> x, gate, residual, bias;
  std::vector<Guarded<char>> weights;
  std::vector<std::unique_ptr<DeviceCopy<char>>> on_device;
  // Where tensor cores multiply codes and minima apart: what weights are whose codes are 0. Else empty.
  std::vector<std::vector<float>> minima;

  Problem(Shape s, Format f, int64_t pad = 0, bool integers = false) : shape(std::move(s)), format(f) {
    const Values kind = integers ? Values::kIntegers : Values::kNormal;
    ldx = shape.K + pad;
    uint32_t seed = 10;
    for (int64_t n : shape.n) {
      weights.push_back(shape.K == 0 ? Guarded<char>()
                                     : encode(random_values(static_cast<size_t>(n * shape.K), kind, ++seed),
                                              shape.K, format));
      const Guarded<char>& w = weights.back();
      // As the plug-in wants them. Both end at a guard page.
      const std::string_view name = format.name();
      Guarded<char> packed(cuda::packed_bytes(name, n, shape.K));
      if (packed.size() > 0) cuda::pack_weight(name, n, shape.K, packed.data(), w.data());
      const Guarded<char>& bytes = packed.size() > 0 ? packed : w;
      on_device.push_back(std::make_unique<DeviceCopy<char>>(std::vector<char>(bytes.begin(), bytes.end())));
      if (packed.size() == 0) minima.emplace_back();
      else if (name == "q4_1" || name == "q5_1")  // behind two f16
        minima.push_back(decode_minima(w, shape.K, format, 4, static_cast<int>(format.block_bytes())));
      else minima.push_back(decode_minima(w, shape.K, format));
      columns += n;
    }
    ldo = columns + pad;
    x = random_values(static_cast<size_t>(shape.T * ldx), kind, 1);
    gate = random_values(x.size(), kind, 2);
    residual = random_values(static_cast<size_t>(shape.T * ldo), kind, 3);
    bias = random_values(static_cast<size_t>(columns), kind, 4);
  }

  std::vector<MatmulSegment> segments(const float* bias_at, bool device) {
    std::vector<MatmulSegment> out;
    int64_t column = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const void* w = device ? static_cast<const void*>(on_device[i]->data()) : weights[i].data();
      out.push_back({w, bias_at != nullptr && i % 2 == 0 ? bias_at + column : nullptr, shape.n[i], column});
      column += shape.n[i];
    }
    return out;
  }

  // What the device may differ by at row t: magnitudes of one column's products.
  double bound(int64_t t, int64_t column, const std::vector<std::vector<float>>& rows,
               const float* xs) const {
    size_t i = 0;
    int64_t n = column;
    while (n >= shape.n[i]) n -= shape.n[i++];
    double magnitude = 8;  // bias and residual
    for (int64_t k = 0; k < shape.K; ++k) {
      magnitude +=
          std::fabs(static_cast<double>(rows[i][static_cast<size_t>(n * shape.K + k)]) * xs[t * ldx + k]);
    }
    // By tensor cores: x is high + low to 2^-17, and the emulator adds 16 products and then the sum: 512 / 16
    // * 2
    // + 16 roundings of a span. Else runs of 256. Formats whose decoders subtract a minimum may fuse: 4
    // roundings.
    // Tensor cores multiply codes and minima apart: w and the minimum once more bound the former.
    if (!minima[i].empty())
      for (int64_t k = 0; k < shape.K; ++k)
        magnitude += 2 * std::fabs(static_cast<double>(minima[i][static_cast<size_t>(n * shape.K + k)]) *
                                   xs[t * ldx + k]);
    const bool tensor = format == Format::bf16() || cuda::packed_bytes(format.name(), 1, shape.K) > 0;
    const double split = tensor ? std::ldexp(1.0, -17) : 0;
    return magnitude * (split + (256 + static_cast<double>(shape.K) / 256 + 16) * kUnit);
  }
};

void check_matmul(Problem& p, bool gated, bool with_bias) {
  const Shape& s = p.shape;
  std::vector<float> want = p.residual;
  GatedMatmulArgs a;
  std::vector<MatmulSegment> host = p.segments(with_bias ? p.bias.data() : nullptr, false);
  MatmulArgs& m = a.matmul;
  m.T = s.T;
  m.K = s.K;
  m.ldx = p.ldx;
  m.ldo = p.ldo;
  m.format = p.format;
  m.num_segments = static_cast<int64_t>(host.size());
  m.segments = host.data();
  m.residual = m.out = want.data();
  // The gate by itself: the reference of the fused kernel needs its neighbour's struct.
  std::vector<float> xs = p.x;
  if (gated) {
    for (size_t i = 0; i < xs.size(); ++i) {
      const double g = p.gate[i];
      xs[i] = static_cast<float>(g / (1 + std::exp(-g)) * p.x[i]);
    }
  }
  m.x = xs.data();
  run_reference(KernelFamily::kMatmul, p.format, &m);

  DeviceArray dx(p.x), dgate(p.gate), dbias(p.bias), out(p.residual);
  std::vector<MatmulSegment> device = p.segments(with_bias ? dbias.data() : nullptr, true);
  m.segments = device.data();
  m.x = dx.data();
  m.residual = m.out = out.data();
  a.gate = dgate.data();
  a.ld_gate = p.ldx;
  if (gated) launch_on_device(KernelFamily::kGatedMatmul, p.format.name(), &a);
  else launch_on_device(KernelFamily::kMatmul, p.format.name(), &m);
  const std::vector<float> got = out.host();

  std::vector<std::vector<float>> rows;
  for (const auto& w : p.weights) rows.push_back(s.K == 0 ? std::vector<float>() : decode(w, s.K, p.format));
  // act(gate) x: 2^-20 of it (elementwise_test.cc).
  const double gate_error = gated ? std::ldexp(1.0, -20) / kUnit / 256 : 0;
  for (int64_t t = 0; t < s.T; ++t) {
    for (int64_t c = 0; c < p.columns; ++c) {
      const auto at = static_cast<size_t>(t * p.ldo + c);
      const double bound = p.bound(t, c, rows, xs.data()) * (1 + gate_error);
      INFO("row " << t << " column " << c << ": " << got[at] << ", not " << want[at]);
      REQUIRE(std::fabs(got[at] - want[at]) <= bound);
    }
  }
  // What lies between rows is left alone.
  for (int64_t t = 0; t < s.T; ++t)
    for (int64_t c = p.columns; c < p.ldo; ++c)
      REQUIRE(got[static_cast<size_t>(t * p.ldo + c)] == p.residual[static_cast<size_t>(t * p.ldo + c)]);

  // One row alone is the same row.
  if (s.T < 2) return;
  DeviceArray alone(std::vector<float>(p.residual.begin() + p.ldo, p.residual.begin() + 2 * p.ldo));
  m.T = 1;
  m.x += p.ldx;
  a.gate += p.ldx;
  m.residual = m.out = alone.data();
  if (gated) launch_on_device(KernelFamily::kGatedMatmul, p.format.name(), &a);
  else launch_on_device(KernelFamily::kMatmul, p.format.name(), &m);
  CHECK(alone.host() == std::vector<float>(got.begin() + p.ldo, got.begin() + 2 * p.ldo));
}

}  // namespace

TEST_CASE("cuda: products with weights of every format against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const FormatInfo* info : all_formats()) {
    const Format format(info);
    if (info->encode == nullptr && random_blocks(format) == nullptr) continue;
    const int64_t block = info->block_elems;
    for (const Shape& shape : {Shape{3, block, {5}}, Shape{9, 768, {17, 3}}}) {
      INFO(format.name() << " T " << shape.T << " K " << shape.K);
      Problem p(shape, format);
      check_matmul(p, false, true);
    }
    // Codes are packed where K is a multiple of 128.
    const auto whole_blocks = [&](int64_t K) { return (K + block - 1) / block * block; };
    if (cuda::packed_bytes(format.name(), 1, whole_blocks(128)) > 0) {
      // Formats differ in how a lane reads its part; tiles of several blocks are tried with one of each
      // width.
      const std::string_view name = format.name();
      const bool whole = name == "q4_0" || name == "e4m3_channel" || name == "q4_k";
      const Shape many = whole ? Shape{65, 640, {1, 140}} : Shape{33, 256, {1, 17}};
      int64_t pad = 0;
      for (Shape shape : {Shape{8, 128, {16}}, Shape{3, 640, {1, 40}}, Shape{2, 4736, {16}}, many}) {
        shape.K = whole_blocks(shape.K);
        INFO(format.name() << " packed, T " << shape.T << " K " << shape.K);
        Problem wide(shape, format, pad), narrow(shape, format, pad = 1 - pad);
        check_matmul(wide, false, true);
        check_matmul(narrow, true, false);
      }
    }
    INFO(format.name() << " gated");
    Problem p({2, 256, {16}}, format);
    check_matmul(p, true, false);
  }
}

TEST_CASE("cuda: packed blocks take hardly more bytes than a file has") {
  for (const cuda::BlockFormat& f : cuda::block_formats()) {
    INFO(f.name);
    const int64_t rows = 16 * Format::find(f.name)->stride(1024);
    const auto packed = static_cast<double>(cuda::packed_bytes(f.name, 16, 1024));
    CHECK(packed >= static_cast<double>(rows));
    CHECK(packed <= 1.05 * static_cast<double>(rows));
  }
}

TEST_CASE("cuda: products of bf16 and f32 at every kind of shape", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (Format format : {Format::bf16(), Format::f32()}) {
    int64_t turn = 0;
    for (const Shape& shape :
         {Shape{1, 1, {1}}, Shape{8, 7, {15}}, Shape{7, 8, {16}}, Shape{1, 129, {17, 1, 31}},
          Shape{2, 511, {16}}, Shape{8, 512, {32}}, Shape{9, 520, {3}}, Shape{17, 128, {33}},
          Shape{1, 4608, {16}}, Shape{2, 8200, {5}}, Shape{3, 0, {4}}, Shape{0, 64, {16}},
          Shape{1, 64, {0, 16}}, Shape{31, 64, {64}}, Shape{32, 520, {128}}, Shape{63, 7, {127}},
          Shape{65, 1032, {129, 0, 3}}}) {
      // f32 has one kernel, whose tiles are of 8 rows: many are more of the same.
      if (format == Format::f32() && shape.T > 17) continue;
      for (int64_t pad : {0, 1}) {
        INFO(format.name() << " T " << shape.T << " K " << shape.K << " pad " << pad);
        Problem p(shape, format, pad);
        check_matmul(p, false, true);
        if (++turn % 4 < 2) check_matmul(p, true, false);  // rows that are aligned and others in turns
      }
    }
    // More segments than a launch takes.
    Problem many({2, 32, std::vector<int64_t>(130, 3)}, format);
    check_matmul(many, false, true);
  }
}

TEST_CASE("cuda: sums that f32 holds exactly are exact", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (Format format : {Format::bf16(), Format::f16(), Format::f32()}) {
    Problem p({9, 1000, {20}}, format, 0, true);
    std::vector<float> want(static_cast<size_t>(9 * 20));
    MatmulArgs a;
    std::vector<MatmulSegment> host = p.segments(nullptr, false);
    a.T = 9;
    a.K = a.ldx = 1000;
    a.ldo = 20;
    a.format = format;
    a.num_segments = 1;
    a.segments = host.data();
    a.x = p.x.data();
    a.out = want.data();
    run_reference(KernelFamily::kMatmul, format, &a);
    DeviceArray dx(p.x), out(nothing_yet(9 * 20));
    std::vector<MatmulSegment> device = p.segments(nullptr, true);
    a.segments = device.data();
    a.x = dx.data();
    a.out = out.data();
    launch_on_device(KernelFamily::kMatmul, format.name(), &a);
    CHECK(out.host() == want);
  }
}

namespace {

// What experts have beside matrices; of kOddOnes the second has none.
enum class Biases { kNone, kAll, kOddOnes };

}  // namespace

TEST_CASE("cuda: products of experts against the reference, empty experts and more than a launch takes",
          "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* name : {"bf16", "f32", "q4_0", "i8_g64", "q4_k", "q5_k", "q2_k", "mxfp4"}) {
    const Format format = *Format::find(name);
    for (auto [experts, P] : {std::pair<int64_t, int64_t>{3, 23}, {70, 23}, {3, 150}, {390, 60}}) {
      if (experts == 390 && format.name() != std::string_view("bf16")) continue;
      for (bool by_token : {true, false}) {
        if (experts > 3 && by_token) continue;
        const Biases biases = experts == 70 ? Biases::kAll : P == 150 ? Biases::kOddOnes : Biases::kNone;
        INFO(name << " experts " << experts << " pairs " << P << " by token " << by_token);
        const int64_t K = 256, tokens = 6;
        const std::vector<int64_t> n = {17, 5};
        Shape shape{by_token ? tokens : P, K, {}};
        for (int64_t e = 0; e < experts; ++e) shape.n.insert(shape.n.end(), n.begin(), n.end());
        Problem p(shape, format);
        std::vector<int32_t> start, token;
        // The first has none, one nearly all. Of many some have one, two of them side by side, and the last
        // two.
        std::vector<int64_t> rows(static_cast<size_t>(experts), 0);
        for (size_t e = 2; e < rows.size(); e += 9) rows[e] = 1;
        if (experts > 3) ++rows[rows.size() - 2], ++rows[rows.size() - 3];
        rows.back() = 2;
        rows[1] += P - std::accumulate(rows.begin(), rows.end(), int64_t{0});
        start.push_back(0);
        for (const int64_t own : rows) start.push_back(static_cast<int32_t>(start.back() + own));
        for (int64_t i = 0; i < P; ++i) token.push_back(static_cast<int32_t>((i * 5) % tokens));
        const int64_t ldo = 17 + 5 + 2;
        std::vector<float> want(static_cast<size_t>(P * ldo), -7.f);
        GroupedMatmulArgs a;
        DeviceArray dbias(p.bias);
        const bool has = biases != Biases::kNone;
        std::vector<MatmulSegment> host = p.segments(has ? p.bias.data() : nullptr, false),
                                   device = p.segments(has ? dbias.data() : nullptr, true);
        for (size_t i = 0; i < host.size(); ++i) host[i].out_col = device[i].out_col = i % 2 == 0 ? 0 : 18;
        if (biases == Biases::kOddOnes) host[2].bias = device[2].bias = nullptr;
        if (experts == 3) host[5].out_col = device[5].out_col = 19;  // of the third
        a.out = want.data();
        a.x = p.x.data();
        a.pair_token = by_token ? token.data() : nullptr;
        a.expert_start = start.data();
        a.segments = host.data();
        a.segments_per_expert = 2;
        a.experts = experts;
        a.P = P;
        a.K = K;
        a.ldx = p.ldx;
        a.ldo = ldo;
        a.format = format;
        run_reference(KernelFamily::kGroupedMatmul, format, &a);
        DeviceArray dx(p.x), out(std::vector<float>(want.size(), -7.f));
        DeviceCopy<int32_t> dtoken(token), dstart(start);
        a.out = out.data();
        a.x = dx.data();
        a.pair_token = by_token ? dtoken.data() : nullptr;
        a.expert_start = dstart.data();
        a.segments = device.data();
        launch_on_device(KernelFamily::kGroupedMatmul, name, &a);
        // |w| <= 6 |x| <= 6 at most, 256 terms: far above, and far below a wrong row.
        check_close(out.host(), want, [&](size_t) { return 256 * 4 * (std::ldexp(1.0, -17) + 300 * kUnit); });
      }
    }
  }
}
