// Launches that a device holds back to do them at once: rotations, transforms and the append behind them give
// the bits that they give one by one, so do products and the norms behind them, and whatever cannot be one
// launch.
#include "kernels/cuda/held_launches.h"
#include "kernels/cuda/matmul.h"

#include <cstring>

#include "kernels/cuda/heads.h"
#include "kernels/kv_quant.h"
#include "quant/transforms/hadamard.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr int64_t kQueryHeads = 3, kKvHeads = 2, kPageTokens = 16;

struct Cache {
  const char *format, *keys, *values;  // keys empty: pages of 16 or 32 bits
};

// Where the results of a layer's steps lie, in floats from the start of one piece of memory.
struct Places {
  int64_t rotated_q, rotated_k, q, k, v;
};

// A layer between its product and its attention: rows of queries, keys and values side by side.
class Layer {
 public:
  Layer(const Cache& cache, int64_t D, bool rotate, bool transform, bool norm, bool interleaved,
        int64_t tokens = 5)
      : cache_(cache),
        D_(D),
        tokens_(tokens),
        rotate_(rotate),
        transform_(transform),
        interleaved_(interleaved) {
    const auto values = [](int64_t n, uint32_t seed) {
      return random_values(static_cast<size_t>(n), Values::kNormal, seed);
    };
    rows_ = values(tokens_ * row(), 1);
    if (norm) norm_ = std::make_unique<DeviceArray>(values(D, 2));
    std::vector<float> frequencies;
    for (int64_t i = 0; i < D / 2; ++i)
      frequencies.push_back(
          static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(D))));
    frequencies_ = std::make_unique<DeviceArray>(frequencies);
    std::vector<int32_t> positions, slots, sinks;
    for (int32_t t = 0; t < tokens_; ++t) {
      positions.push_back(13 + t);
      slots.push_back(t == 1 ? -1 : kPageTokens + 13 + t);  // the last of a page, and one of the next
      sinks.push_back(t < 3 ? t : -1);
    }
    slots.back() = kPageTokens - 1;  // a page that is full
    positions_ = std::make_unique<DeviceCopy<int32_t>>(positions);
    slots_ = std::make_unique<DeviceCopy<int32_t>>(slots);
    sinks_ = std::make_unique<DeviceCopy<int32_t>>(sinks);
    const HadamardOrder order = *hadamard_order(D);
    power_ = order.power;
    for (size_t c = order.cores.size(); c-- > 0;) {
      orders_.push_back(order.cores[c]);
      const auto core = hadamard_core(order.cores[c]);
      cores_.push_back(std::make_unique<DeviceArray>(std::vector<float>(core.begin(), core.end())));
    }
    std::vector<float> signs;
    for (int64_t i = 0; i < kQueryHeads * D; ++i)
      signs.push_back(static_cast<float>(random_sign(3, static_cast<uint64_t>(i))));
    signs_ = std::make_unique<DeviceArray>(signs);
  }

  // Steps over halves of heads; queries once more, to where values would be transformed.
  bool halves = false, twice = false;

  int64_t row() const { return (kQueryHeads + 2 * kKvHeads) * D_; }
  // Behind the rows, each by itself.
  Places apart() const {
    const int64_t q = tokens_ * kQueryHeads * D_, k = tokens_ * kKvHeads * D_, from = tokens_ * row();
    return {from, from + q, from + q + k, from + 2 * q + k, from + 2 * q + 2 * k};
  }

  // Memory of activations, then the cache's, as all steps leave them; launched one by one, or held.
  std::vector<char> run(const Places& at, bool held) {
    std::vector<float> memory = rows_;
    memory.resize(static_cast<size_t>(tokens_ * row() + 3 * tokens_ * row()), NAN);
    DeviceArray activations(memory);
    const std::vector<char> pages(static_cast<size_t>(D_ * (1024 + 16 * tokens_)), '\x11');
    DeviceCopy<char> pool(pages), open(pages), sinks(pages);
    float* const base = activations.data();
    const NextOrder order;
    cuda::HeldLaunches launches;
    const auto launch = [&](KernelFamily family, const auto& args) {
      const bool append = family == KernelFamily::kKvAppend || family == KernelFamily::kQuantKvAppend;
      const cuda::DeviceKernel* kernel = cuda::find_device_kernel(
          family, append ? cache_.format : "f32", append ? cache_.keys : "", append ? cache_.values : "");
      REQUIRE(kernel != nullptr);
      REQUIRE(
          (held ? launches.launch(*kernel, &args, nullptr, nullptr) : kernel->launch(&args, nullptr, nullptr))
              .ok());
    };
    float *q = base, *k = base + kQueryHeads * D_, *v = k + kKvHeads * D_;
    int64_t ldq = row(), ldk = row(), ldv = row();
    if (rotate_) {
      launch(KernelFamily::kRope, rope(q, ldq, kQueryHeads, base + at.rotated_q));
      launch(KernelFamily::kRope, rope(k, ldk, kKvHeads, base + at.rotated_k));
      q = base + at.rotated_q, k = base + at.rotated_k;
      ldq = kQueryHeads * D_, ldk = kKvHeads * D_;
    }
    if (twice) launch(KernelFamily::kRope, rope(base, row(), kQueryHeads, base + at.q));
    if (transform_) {
      launch(KernelFamily::kHadamard, hadamard(v, ldv, kKvHeads, base + at.v));
      launch(KernelFamily::kHadamard, hadamard(q, ldq, kQueryHeads, base + at.q));
      launch(KernelFamily::kHadamard, hadamard(k, ldk, kKvHeads, base + at.k));
      k = base + at.k, v = base + at.v;
      ldk = ldv = kKvHeads * D_;
    }
    if (cache_.keys[0] == '\0') {
      KvAppendArgs a;
      a.pool = pool.data();
      a.k = k;
      a.v = v;
      a.slots = slots_->data();
      a.T = tokens_;
      a.ldk = ldk;
      a.ldv = ldv;
      const DType type = cache_.format[0] == 'b'   ? DType::kBF16
                         : cache_.format[1] == '1' ? DType::kF16
                                                   : DType::kF32;
      a.shape = {type, kPageTokens, kKvHeads, static_cast<int32_t>(D_)};
      launch(KernelFamily::kKvAppend, a);
    } else {
      QuantKvAppendArgs a;
      a.pool = pool.data();
      a.open = open.data();
      a.sinks = sinks.data();
      a.k = k;
      a.v = v;
      a.slots = a.open_slots = slots_->data();
      a.sink_slots = sinks_->data();
      a.T = tokens_;
      a.ldk = ldk;
      a.ldv = ldv;
      a.shape = {KvCode::kInt8, KvCode::kInt8, kPageTokens, kKvHeads, static_cast<int32_t>(D_)};
      launch(KernelFamily::kQuantKvAppend, a);
    }
    REQUIRE(launches.release().ok());
    const std::vector<float> floats = activations.host();
    std::vector<char> all(reinterpret_cast<const char*>(floats.data()),
                          reinterpret_cast<const char*>(floats.data() + floats.size()));
    for (DeviceCopy<char>* part : {&pool, &open, &sinks}) {
      const std::vector<char> bytes = part->host();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  RopeArgs rope(const float* x, int64_t ldx, int64_t heads, float* out) const {
    RopeArgs a;
    a.x = x;
    a.out = out;
    a.positions = positions_->data();
    a.inv_freq = frequencies_->data();
    a.norm_w = norm_ != nullptr ? norm_->data() : nullptr;
    a.T = tokens_;
    a.heads = halves ? 2 * heads : heads;
    a.D = a.rot_dim = halves ? D_ / 2 : D_;
    a.ldx = ldx;
    a.ldo = heads * D_;
    a.mscale = 1.25f;
    a.interleaved = interleaved_ ? 1 : 0;
    return a;
  }
  HadamardArgs hadamard(const float* x, int64_t ldx, int64_t heads, float* out) const {
    HadamardArgs a;
    a.x = x;
    a.out = out;
    a.signs = signs_->data();
    a.rows = tokens_;
    a.n = heads * D_;
    a.ldx = ldx;
    a.ldo = heads * D_;
    a.block = halves ? D_ / 2 : D_;
    a.power = halves ? power_ / 2 : power_;
    a.num_cores = static_cast<int32_t>(cores_.size());
    for (size_t c = 0; c < cores_.size(); ++c) {
      a.cores[c] = cores_[c]->data();
      a.core_order[c] = orders_[c];
    }
    return a;
  }

  const Cache cache_;
  const int64_t D_, tokens_;
  const bool rotate_, transform_, interleaved_;
  std::vector<float> rows_;
  std::unique_ptr<DeviceArray> norm_, frequencies_, signs_;
  std::unique_ptr<DeviceCopy<int32_t>> positions_, slots_, sinks_;
  int64_t power_ = 1;
  std::vector<int64_t> orders_;
  std::vector<std::unique_ptr<DeviceArray>> cores_;
};

// A product, and a norm of its rows behind it, or two.
struct Normed {
  const char* format;
  int64_t T, K, n;
  bool gated = false, bias = false, residual = false;  // of the product; the residual where it writes
  bool norm_residual = false, sum_out = false, in_place = false;  // of the norm; in_place: over its x
  int64_t cols = 0, segments = 1;                                 // cols: 0, n of all segments
  bool made_is_residual = false;  // the norm adds what the product makes to rows of its own
  bool second = false;            // a norm of what the first has made, added to rows of its own
  int scaled = 0;  // in front of the norm: times one number; 2: of half the columns; 3: to which it is added
};
// What the steps' results lie upon: floats from the start of x. Behind it, each by itself, where it is -1.
struct NormPlaces {
  int64_t out = -1, sum_out = -1, norm_residual = -1, second_out = -1, second_residual = -1;
  int64_t scaled = -1, number = -1;
  int64_t residual = -1;  // of the product; -1: where it writes
};

// Memory of activations as both leave it.
std::vector<float> run_normed(const Normed& p, const NormPlaces& at, bool held) {
  const int64_t width = p.n * p.segments, cols = p.cols > 0 ? p.cols : width,
                piece = p.T * std::max({p.K, width, cols});
  std::vector<float> memory = random_values(static_cast<size_t>(10 * piece), Values::kNormal, 1);
  DeviceArray activations(memory), norm_w(random_values(static_cast<size_t>(cols), Values::kNormal, 2)),
      bias(random_values(static_cast<size_t>(width), Values::kNormal, 3));
  // Small numbers in every format.
  std::vector<char> bytes(static_cast<size_t>(width * p.K * 4 + 4096));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0x38 + (i * 7 + i / 11) % 5);
  DeviceCopy<char> weights(bytes);
  float* const base = activations.data();
  const auto place = [&](int64_t where, int64_t which) {
    return base + (where >= 0 ? where : which * piece);
  };
  std::vector<MatmulSegment> segments;
  for (int64_t s = 0; s < p.segments; ++s) {
    segments.push_back(
        {weights.data() + s * p.n * 64, p.bias ? bias.data() + s * p.n : nullptr, p.n, s * p.n});
  }
  GatedMatmulArgs g;
  MatmulArgs& m = g.matmul;
  m.out = place(-1, 1);
  m.x = base;
  m.residual = !p.residual ? nullptr : at.residual >= 0 ? base + at.residual : m.out;
  m.segments = segments.data();
  m.num_segments = p.segments;
  m.T = p.T;
  m.K = m.ldx = p.K;
  m.ldo = width;
  g.gate = place(-1, 2);
  g.ld_gate = p.K;
  RmsNormArgs r;
  r.x = m.out;
  r.w = norm_w.data();
  r.out = p.in_place ? m.out : place(at.out, 3);
  r.sum_out = p.sum_out ? place(at.sum_out, 4) : nullptr;
  r.residual = p.norm_residual ? place(at.norm_residual, 5) : nullptr;
  r.rows = p.T;
  r.cols = cols;
  r.ldx = width;
  r.ldo = p.in_place ? width : cols;
  if (p.made_is_residual) {
    r.x = place(at.norm_residual, 5);
    r.residual = m.out;
  }
  r.w_offset = 0.5f;
  BinaryArgs times;
  times.out = place(at.scaled, 8);
  times.a = m.out;
  times.b = place(at.number, 9);
  times.rows = p.T;
  times.cols = p.scaled == 2 ? width / 2 : width;
  times.b_row = times.b_col = 0;
  times.op = BinaryOp::kMul;
  if (p.scaled == 3) times.op = BinaryOp::kAdd;
  if (p.scaled > 0 && r.x == m.out) r.x = times.out;
  const NextOrder order;
  cuda::HeldLaunches launches;
  const auto launch = [&](KernelFamily family, const char* format, const void* args) {
    const cuda::DeviceKernel* kernel = cuda::find_device_kernel(family, format);
    REQUIRE(kernel != nullptr);
    REQUIRE((held ? launches.launch(*kernel, args, nullptr, nullptr) : kernel->launch(args, nullptr, nullptr))
                .ok());
  };
  if (p.gated) launch(KernelFamily::kGatedMatmul, p.format, &g);
  else launch(KernelFamily::kMatmul, p.format, &m);
  if (held) CHECK(launches.held() == (cuda::takes_norm(m) ? 1 : 0));
  segments.assign(segments.size(), {});  // the caller's list may be gone by now
  if (p.scaled > 0) launch(KernelFamily::kBinary, "f32", &times);
  // Of more rows it is held by itself.
  if (held && p.scaled == 1 && at.scaled < 0 && at.number < 0) CHECK(launches.held() == 1);
  launch(KernelFamily::kRmsNorm, "f32", &r);
  RmsNormArgs then = r;
  then.x = r.out;
  then.ldx = r.ldo;
  then.residual = then.sum_out = place(at.second_residual, 7);
  then.out = place(at.second_out, 6);
  then.ldo = cols;
  if (p.second) launch(KernelFamily::kRmsNorm, "f32", &then);
  REQUIRE(launches.release().ok());
  return activations.host();
}
void check_normed(const Normed& p, const NormPlaces& at = {}) {
  INFO(p.format << " T " << p.T << " K " << p.K << " n " << p.n << " places " << at.out << " " << at.sum_out
                << " " << at.norm_residual << " " << at.second_out << " " << at.second_residual);
  const std::vector<float> got = run_normed(p, at, true), want = run_normed(p, at, false);
  CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
}

// Products of a layer as they follow attention, and the next layer's first: the output with a norm, the first
// layer of the feed-forward network, its second with a norm, then queries, keys and values. Bytes of weights
// are whatever comes, small in every format.
struct Chain {
  const char* format;
  int64_t T, E = 256, F = 640;            // F: more than a span
  const char* second = nullptr;           // of the second layer's weights; null: the same
  int64_t shift = 0;                      // floats by which rows of x lie beside a multiple of 16 bytes
  int64_t segments = 3;                   // of the last product
  bool activation = false, norms = true;  // between the layers; both
  int again = 0;                          // how many times the last one comes once more
  bool askew = false;                     // the last one's third weight begins within 16 bytes
  int hollow = 0;  // 1: in front of the last one is a product without outputs; 2: of no columns
};

// Memory of activations as all leave it.
std::vector<float> run_chain(const Chain& c, bool held) {
  const int64_t E = c.E, F = c.F, n = 48, piece = c.T * (2 * F + n * c.segments) + 16;
  DeviceArray activations(random_values(static_cast<size_t>(6 * piece), Values::kNormal, 1)),
      norm_w(random_values(static_cast<size_t>(E), Values::kNormal, 2)),
      bias(random_values(static_cast<size_t>(2 * F), Values::kNormal, 3));
  std::vector<char> bytes(static_cast<size_t>(2 * F * E * 4 + 4096));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0x38 + (i * 7 + i / 11) % 5);
  DeviceCopy<char> weights(bytes);
  float *const x = activations.data() + c.shift, *const hidden = activations.data() + piece,
               *const normed = activations.data() + 2 * piece, *const gate = activations.data() + 3 * piece,
               *const heads = activations.data() + 4 * piece;
  const NextOrder order;
  cuda::HeldLaunches launches;
  const auto launch = [&](KernelFamily family, const char* format, const void* args) {
    const cuda::DeviceKernel* kernel = cuda::find_device_kernel(family, format);
    REQUIRE(kernel != nullptr);
    REQUIRE((held ? launches.launch(*kernel, args, nullptr, nullptr) : kernel->launch(args, nullptr, nullptr))
                .ok());
  };
  const auto product = [&](const char* format, float* out, int64_t ldo, const float* from, int64_t K,
                           int64_t ldx, int64_t width, int64_t count, bool in_place) {
    std::vector<MatmulSegment> segments;
    for (int64_t s = 0; s < count; ++s)
      segments.push_back({weights.data() + s * 1024 + (c.askew && s == 2 ? 2 : 0),
                          s == 1 ? bias.data() : nullptr, width, s * width});
    MatmulArgs m;
    m.out = out;
    m.x = from;
    m.residual = in_place ? out : nullptr;
    m.segments = segments.data();
    m.num_segments = count;
    m.T = c.T;
    m.K = K;
    m.ldx = ldx;
    m.ldo = ldo;
    launch(KernelFamily::kMatmul, format, &m);
  };
  const auto norm = [&] {
    if (!c.norms) return;
    RmsNormArgs r;
    r.x = hidden;
    r.w = norm_w.data();
    r.out = normed;
    r.rows = c.T;
    r.cols = r.ldx = r.ldo = E;
    launch(KernelFamily::kRmsNorm, "f32", &r);
  };
  product(c.format, hidden, E, x, E, E, E, 1, true);
  norm();
  product(c.format, gate, 2 * F, normed, E, E, F, 2, false);
  if (c.activation) {
    UnaryArgs u;
    u.out = gate;
    u.x = gate;
    u.n = c.T * 2 * F;
    launch(KernelFamily::kUnary, "f32", &u);
  }
  {
    const MatmulSegment segment{weights.data() + 512, nullptr, E, 0};
    GatedMatmulArgs g;
    g.gate = gate;
    g.ld_gate = 2 * F;
    g.matmul.out = hidden;
    g.matmul.x = gate + F;
    g.matmul.residual = hidden;
    g.matmul.segments = &segment;
    g.matmul.num_segments = 1;
    g.matmul.T = c.T;
    g.matmul.K = F;
    g.matmul.ldx = 2 * F;
    g.matmul.ldo = E;
    launch(KernelFamily::kGatedMatmul, c.second != nullptr ? c.second : c.format, &g);
  }
  norm();
  if (c.hollow > 0)
    product(c.format, x, E, normed, c.hollow == 1 ? E : 0, E, c.hollow == 1 ? 0 : E, 1, false);
  product(c.format, heads, n * c.segments, normed, E, E, n, c.segments, false);
  for (int i = 0; i < c.again; ++i)
    product(c.format, heads, n * c.segments, normed, E, E, n, c.segments, true);
  REQUIRE(launches.release().ok());
  CHECK(launches.held() == 0);
  return activations.host();
}
void check_chain(const Chain& c) {
  INFO(c.format << " T " << c.T << " E " << c.E << " F " << c.F);
  const std::vector<float> got = run_chain(c, true), want = run_chain(c, false);
  CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("cuda: products behind each other at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* format : {"bf16", "q8_0", "i4_g64", "e4m3_channel", "q4_k", "q5_k", "q2_k", "q3_k", "q5_0",
                             "q5_1", "f32", "nvfp4"})
    check_chain({format, 2});
  for (const int64_t T : {1, 9, 31, 32}) check_chain({"bf16", T});
  check_chain({.format = "bf16", .T = 3, .F = 1152});         // several spans
  check_chain({.format = "bf16", .T = 9, .E = 72, .F = 40});  // less than a part of a span
  check_chain(
      {.format = "bf16", .T = 3, .E = 70, .F = 42});  // rows of weights that are read one element each
  check_chain({.format = "bf16", .T = 3, .askew = true});
  check_chain({.format = "q4_0", .T = 3, .shift = 1});
  for (const char* format : {"q4_k", "q5_k"}) check_chain({.format = format, .T = 3, .second = "q6_k"});
  for (const char* format : {"q4_1", "iq4_nl"}) check_chain({.format = format, .T = 9, .F = 288});
  for (const int hollow : {1, 2}) check_chain({.format = "bf16", .T = 3, .hollow = hollow});
  // As many as one of a chain has, and more.
  for (const int64_t segments : {16, 17}) check_chain({.format = "bf16", .T = 3, .segments = segments});
  check_chain({.format = "bf16", .T = 12, .activation = true});
  // As many products as a chain has, and more.
  for (const int again : {4, 5}) check_chain({.format = "bf16", .T = 12, .norms = false, .again = again});
}

// By the kernel that has all weights: with tensor cores where a format has them, and of K for which it has
// not.
TEST_CASE("cuda: products of every format between those of another at once are those of one by one",
          "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const FormatInfo* info : all_formats()) {
    const int64_t K = std::max(info->block_elems, 128), odd = info->block_elems <= 32 ? 96 : 192;
    check_chain({.format = "bf16", .T = 3, .E = K, .F = K, .second = info->name});
    if (odd % info->block_elems == 0)
      check_chain({.format = info->name, .T = 9, .E = odd, .F = odd, .second = "bf16"});
  }
}

namespace {

// Products of heads, each with a matrix and columns of its own, behind a product that makes their rows.
struct OfHeads {
  const char* format;
  int64_t T, heads, K = 96, n = 40;
  int64_t step = 100;     // from a head's columns of x to the next one's
  bool before = false;    // there is such a product
  int64_t before_K = 0;   // its K; 0: the same
  bool behind = false;    // another one reads what heads have made, and heads once more what they have read
  bool in_place = false;  // results lie upon columns of the next head
  int64_t astray = -1;    // the head whose columns lie elsewhere
  int64_t out_step = 0;   // from a head\'s results to the next one\'s; 0: n
  bool bias = false;      // of the last one
};
// Memory of activations as all leave it.
std::vector<float> run_heads(const OfHeads& p, bool held) {
  const int64_t ldx = (p.heads + 1) * p.step + 4, ldo = p.in_place ? ldx : p.heads * p.n + 4,
                K = p.before_K > 0 ? p.before_K : p.K, piece = p.T * std::max({ldx, ldo, K}) + 16;
  DeviceArray activations(random_values(static_cast<size_t>(5 * piece), Values::kNormal, 1)),
      bias(random_values(static_cast<size_t>(p.n), Values::kNormal, 3));
  std::vector<char> bytes(static_cast<size_t>(ldx * K * 4 + p.heads * 4096));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0x38 + (i * 7 + i / 11) % 5);
  DeviceCopy<char> weights(bytes);
  float *const rows = activations.data(), *const x = rows + piece,
               *const out = p.in_place ? x + p.step : rows + 2 * piece;
  const NextOrder order;
  cuda::HeldLaunches launches;
  const auto launch = [&](const MatmulArgs& m) {
    const cuda::DeviceKernel* kernel = cuda::find_device_kernel(KernelFamily::kMatmul, p.format);
    REQUIRE(kernel != nullptr);
    REQUIRE(
        (held ? launches.launch(*kernel, &m, nullptr, nullptr) : kernel->launch(&m, nullptr, nullptr)).ok());
  };
  MatmulSegment segment{weights.data(), nullptr, ldx, 0};
  MatmulArgs m;
  m.segments = &segment;
  m.num_segments = 1;
  m.T = p.T;
  m.K = m.ldx = K;
  m.x = rows;
  m.out = x;
  m.ldo = ldx;
  if (p.before) launch(m);
  const auto heads = [&](float* to, int64_t from) {
    m.K = p.K;
    m.ldx = ldx;
    m.ldo = ldo;
    for (int64_t head = 0; head < p.heads; ++head) {
      const bool last = head + 1 == p.heads;
      segment = {weights.data() + (head + from) % p.heads * 4096, p.bias && last ? bias.data() : nullptr, p.n,
                 0};
      m.x = x + head * p.step + (head == p.astray ? 1 : 0);
      m.out = to + head * (p.out_step > 0 ? p.out_step : p.n);
      launch(m);
    }
  };
  heads(out, 0);
  if (p.behind) {
    segment = {weights.data(), nullptr, p.n, 0};
    m.x = out;
    m.K = p.heads * p.n / 8 * 8;
    m.ldx = ldo;
    m.out = rows + 3 * piece;
    m.ldo = p.n;
    launch(m);
    heads(rows + 4 * piece, 1);
  }
  REQUIRE(launches.release().ok());
  CHECK(launches.held() == 0);
  return activations.host();
}
void check_heads(const OfHeads& p) {
  INFO(p.format << " T " << p.T << " heads " << p.heads << " K " << p.K << " n " << p.n << " step "
                << p.step);
  const std::vector<float> got = run_heads(p, true), want = run_heads(p, false);
  CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("cuda: products of heads at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* format : {"bf16", "q8_0", "i4_g64", "q4_k", "f32"})
    check_heads({format, 2, 5, 128, 40, 132});
  for (const int64_t T : {1, 9, 31, 32}) check_heads({"bf16", T, 3});
  check_heads({.format = "bf16", .T = 3, .heads = 20, .n = 17});
  check_heads({.format = "bf16", .T = 3, .heads = 3, .step = 97});  // x is read one element each
  check_heads({.format = "bf16", .T = 3, .heads = 3, .K = 600, .step = 600});
  check_heads({.format = "bf16", .T = 3, .heads = 4, .before = true});
  // A head whose columns lie elsewhere; results upon others; heads that read what those before made; a bias.
  check_heads({.format = "bf16", .T = 3, .heads = 4, .out_step = 39});
  for (const int64_t astray : {1, 2}) check_heads({.format = "bf16", .T = 3, .heads = 4, .astray = astray});
  check_heads({.format = "bf16", .T = 3, .heads = 4, .K = 96, .n = 96, .step = 96, .in_place = true});
  check_heads({.format = "bf16", .T = 3, .heads = 3, .bias = true});
}

TEST_CASE("cuda: products of heads among others at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* format : {"bf16", "q8_0", "i4_g64", "q4_k", "f32"})
    check_heads(
        {.format = format, .T = 2, .heads = 5, .K = 128, .step = 132, .before = true, .behind = true});
  OfHeads p{.format = "bf16", .T = 3, .heads = 5, .before = true, .behind = true};
  for (const int64_t T : {1, 9, 31, 32}) p.T = T, check_heads(p);
  // Blocks of three warps, each of which has a tile: as many as there are warps for, and one less and more.
  for (const int64_t n : {16, 32, 48, 64}) {
    OfHeads wide = p;
    wide.before_K = 1160, wide.n = n;
    check_heads(wide);
  }
  // Sums that several warps share; columns that lie astray, or meet; a bias.
  check_heads({.format = "bf16", .T = 3, .heads = 3, .K = 600, .step = 600, .before = true, .behind = true});
  OfHeads askew = p, astray = p, meeting = p, biased = p;
  askew.step = 97, astray.astray = 2, meeting.out_step = 39, biased.bias = true;
  for (const OfHeads& other : {askew, astray, meeting, biased}) check_heads(other);
  // Twice as many as a launch with others has; more; and more than one by itself.
  for (const int64_t heads : {384, 385, 769}) {
    OfHeads many{.format = "bf16", .T = 2, .heads = heads, .K = 8, .n = 4, .step = 8};
    many.before = many.behind = true;
    check_heads(many);
  }
}

TEST_CASE("cuda: heads rotated, transformed and appended at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Cache& cache : {Cache{"f32", "", ""},
                             {"f16", "", ""},
                             {"bf16", "", ""},
                             {"bf16", "int8", "int8"},
                             {"bf16", "int4_mean", "int3"}}) {
    for (const int64_t D : {16, 96, 512}) {
      for (int flags = 0; flags < 16; ++flags) {
        const bool rotate = flags % 2 != 0, transform = flags / 2 % 2 != 0, norm = flags / 4 % 2 != 0,
                   interleaved = flags / 8 != 0;
        if (!rotate && (norm || interleaved)) continue;
        const bool every = D == 96 && std::string_view(cache.format) == "f16";
        if (!every && flags != 3 && flags != 15) continue;
        INFO(cache.format << " " << cache.keys << " D " << D << " rotate " << rotate << " transform "
                          << transform << " norm " << norm << " interleaved " << interleaved);
        Layer layer(cache, D, rotate, transform, norm, interleaved);
        CHECK((layer.run(layer.apart(), true) == layer.run(layer.apart(), false)));
      }
    }
  }
}

TEST_CASE("cuda: heads of many rows are appended at once, and their pages' codes made behind them",
          "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  Layer layer({"bf16", "int8", "int4"}, 16, true, true, false, false, 290);
  CHECK((layer.run(layer.apart(), true) == layer.run(layer.apart(), false)));
}

TEST_CASE("cuda: heads that no append takes along are done one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto check = [](Layer& layer) {
    CHECK((layer.run(layer.apart(), true) == layer.run(layer.apart(), false)));
  };
  for (const bool transform : {false, true}) {
    Layer layer({"f32", "", ""}, 64, !transform, transform, false, false);
    layer.halves = true;
    check(layer);
  }
  for (const bool transform : {false, true}) {  // one more than are held
    Layer twice({"f32", "", ""}, 64, true, transform, false, false);
    twice.twice = true;
    check(twice);
  }
  Layer wide({"f32", "", ""}, 8192, false, true, false, false);  // more than shared memory has for four warps
  check(wide);
}

TEST_CASE("cuda: heads that would meet in memory are done one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  Layer layer({"bf16", "", ""}, 64, true, true, false, false);
  const Places apart = layer.apart();
  // Transformed queries over the rows that values are read from; transformed keys there too; keys
  // where queries were rotated; values over queries that are still to be transformed.
  for (const Places& at :
       {Places{apart.rotated_q, apart.rotated_k, 0, apart.k, apart.v},
        Places{apart.rotated_q, apart.rotated_k, apart.q, 0, apart.v},
        Places{apart.rotated_q, apart.rotated_k, apart.q, apart.rotated_q, apart.v},
        Places{apart.rotated_q, apart.rotated_k, apart.q, apart.k, apart.rotated_q},
        Places{apart.rotated_q, apart.rotated_k, apart.rotated_q, apart.rotated_k, apart.v}}) {
    CHECK((layer.run(at, true) == layer.run(at, false)));
  }
  // Values of one row over the queries that are rotated.
  Layer one({"bf16", "", ""}, 64, true, true, false, false, 1);
  Places over = one.apart();
  over.v = 0;
  CHECK((one.run(over, true) == one.run(over, false)));
}

TEST_CASE("cuda: products and the norms of their rows at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* format : {"bf16", "q8_0", "q4_k", "f32"}) {
    check_normed({format, 1, 256, 40});
    check_normed({format, 3, 1280, 64, true, true});
    check_normed({.format = format,
                  .T = 9,
                  .K = 256,
                  .n = 48,
                  .residual = true,
                  .norm_residual = true,
                  .sum_out = true});
    check_normed(
        {.format = format, .T = 20, .K = 256, .n = 24, .bias = true, .norm_residual = true, .segments = 3});
    check_normed({.format = format, .T = 13, .K = 256, .n = 24, .sum_out = true, .made_is_residual = true});
    check_normed({.format = format, .T = 31, .K = 256, .n = 24, .in_place = true});
    check_normed({.format = format, .T = 32, .K = 256, .n = 24});
    for (const int64_t T : {3, 20, 32})
      check_normed({.format = format, .T = T, .K = 256, .n = 24, .residual = true, .second = true});
  }
  check_normed({.format = "bf16", .T = 2, .K = 70, .n = 37, .cols = 30});  // neither aligned nor all columns
  check_normed({.format = "bf16", .T = 8, .K = 576, .n = 1100});           // elements of a lane: several
  check_normed({.format = "f32", .T = 1, .K = 32, .n = 3, .segments = 70});  // more than one launch takes
}

TEST_CASE("cuda: products times a number and the norms of that at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* format : {"bf16", "q8_0", "q4_k", "f32"}) {
    for (const int64_t T : {1, 8, 20, 32}) {
      Normed p{
          .format = format, .T = T, .K = 256, .n = 64, .gated = true, .norm_residual = true, .sum_out = true};
      for (p.scaled = 1; p.scaled <= 3; ++p.scaled) check_normed(p);
      p.scaled = 1;
      p.segments = 3, p.bias = p.second = true;
      check_normed(p);
    }
  }
  // More of them than elementwise ops behind a product may have.
  check_normed({.format = "bf16", .T = 31, .K = 128, .n = 2128, .scaled = 1});
  // Weights that are read one element each are multiplied in a launch of their own.
  check_normed({.format = "bf16", .T = 3, .K = 70, .n = 64, .scaled = 1}, {.number = 9 * 3 * 70});
  // Over x, its own rows and the gate; the norm upon it; a number among what is made; over the residual, row
  // for row and by one row.
  for (const int64_t T : {8, 20}) {
    const int64_t K = 256, n = 64, piece = T * K;
    const Normed p{.format = "bf16",
                   .T = T,
                   .K = K,
                   .n = n,
                   .gated = true,
                   .residual = true,
                   .norm_residual = true,
                   .sum_out = true,
                   .scaled = 1};
    for (const int64_t where : {int64_t{0}, piece, 2 * piece, 2 * piece + 64})
      check_normed(p, {.scaled = where});
    check_normed(p, {.out = 8 * piece});
    check_normed(p, {.sum_out = 8 * piece});
    for (const int64_t where : {8 * piece, 8 * piece + n}) check_normed(p, {.norm_residual = where});
    check_normed(p, {.number = piece + 3});
    for (const int64_t where : {6 * piece, 6 * piece + n})
      check_normed(p, {.scaled = where, .residual = 6 * piece});
  }
}

TEST_CASE("cuda: norms that would meet a product in memory are done behind it", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int64_t T : {8, 20}) {
    const int64_t K = 256, n = 64, piece = T * K;
    const Normed p = {
        .format = "bf16", .T = T, .K = K, .n = n, .gated = true, .norm_residual = true, .sum_out = true};
    // Over x, its own rows, the gate, and between its rows.
    for (const int64_t where : {int64_t{0}, piece, 2 * piece, 2 * piece + 64}) {
      check_normed(p, {.out = where});
      check_normed(p, {.sum_out = where});
    }
    check_normed(p, {.norm_residual = piece + 3 * n});
    Normed other = p;
    other.made_is_residual = true;
    check_normed(other, {.norm_residual = piece + 3 * n});
    check_normed(other, {.sum_out = piece});  // over what the product makes, row for row
    check_normed(p, {.sum_out = 5 * piece});  // over the residual, row for row
    Normed two = p;
    two.second = true;
    check_normed(two);
    // The second's: over x and the gate; over what the first has read, row for row, and between its rows.
    for (const int64_t where : {int64_t{0}, 2 * piece, 4 * piece, 4 * piece + 3 * n, 5 * piece + n})
      check_normed(two, {.second_out = where});
    for (const int64_t where : {int64_t{0}, 4 * piece, 4 * piece + 3 * n})
      check_normed(two, {.second_residual = where});
  }
}

TEST_CASE("cuda: what is no norm of a product's rows comes behind it", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto run = [](bool held, int which) {
    DeviceArray x(random_values(8 * 64, Values::kNormal, 1)), w(random_values(16 * 64, Values::kNormal, 2)),
        norm_w(random_values(16, Values::kNormal, 3)), out(nothing_yet(8 * 16)), normed(nothing_yet(8 * 16));
    const MatmulSegment segment{w.data(), nullptr, 16, 0};
    const MatmulArgs m = product_of(x, segment, 8, 64, out);
    RmsNormArgs r = rms_norm_of(out, norm_w, 8, 16, normed);
    if (which == 0) r.rows = 7;
    if (which == 1) r.x = out.data() + 16, r.rows = 7;
    if (which == 2) r.x = x.data(), r.ldx = 64;
    if (which == 3) r.cols = 0;
    if (which == 4) r.x = r.out = out.data();  // again, of what it has made
    const NextOrder order;
    cuda::HeldLaunches launches;
    for (const auto& [family, args] : {std::pair<KernelFamily, const void*>{KernelFamily::kMatmul, &m},
                                       {KernelFamily::kRmsNorm, &r},
                                       {KernelFamily::kRmsNorm, which == 4 ? &r : nullptr}}) {
      if (args == nullptr) continue;
      const cuda::DeviceKernel* kernel = cuda::find_device_kernel(family, "f32");
      REQUIRE(
          (held ? launches.launch(*kernel, args, nullptr, nullptr) : kernel->launch(args, nullptr, nullptr))
              .ok());
    }
    REQUIRE(launches.release().ok());
    std::vector<float> all = out.host();
    const std::vector<float> rest = normed.host();
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  };
  for (int which = 0; which < 5; ++which) {
    const std::vector<float> got = run(true, which), want = run(false, which);
    CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("cuda: heads of no rows, and those that are too large", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  KvAppendArgs a;
  a.shape = {DType::kF32, 16, 2, 64};
  CHECK(cuda::append_heads<cuda::KvType::kF32>({}, a, nullptr).ok());
  QuantKvAppendArgs q;
  q.shape = {KvCode::kInt8, KvCode::kInt8, 16, 2, 64};
  CHECK(cuda::quant_append_heads({}, q, KvCode::kInt8, KvCode::kInt8, nullptr).ok());
  q.shape.head_dim = 520;
  CHECK(!cuda::quant_append_heads({}, q, KvCode::kInt8, KvCode::kInt8, nullptr).ok());
}
