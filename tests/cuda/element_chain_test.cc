// Elementwise ops, gates and copies of columns between products of few rows, in front of them and behind, are
// steps of one launch with these: whatever their places in memory, all of it is what launches one by one
// leave.
#include <functional>
#include <random>
#include <variant>

#include "kernels/cuda/cost.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/moe.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

// Bytes of weights, small in every format.
std::vector<char> small_numbers() {
  std::vector<char> bytes(1 << 16);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0x38 + (i * 7 + i / 11) % 5);
  return bytes;
}

// What comes one behind the other, with addresses of its own memory.
class Calls {
 public:
  // Of kPieces pieces each has room for 2 T rows of 2 kE.
  static constexpr int64_t kE = 64, kPieces = 9;
  explicit Calls(int64_t rows, const char* its_format = "bf16")
      : T(rows),
        format(its_format),
        memory_(random_values(static_cast<size_t>(kPieces * piece()), Values::kNormal, 1)) {}

  const int64_t T;
  const char* format;
  float* at(int64_t piece_of, int64_t offset = 0) { return memory_.data() + piece_of * piece() + offset; }

  // out (T, n) = x (T, kE) W.
  void product(int64_t to, int64_t from, int64_t n = kE, int64_t residual = -1, int64_t shift = 0,
               int64_t ldx = kE) {
    MatmulArgs m;
    m.out = at(to), m.x = at(from, shift), m.residual = residual < 0 ? nullptr : at(residual);
    m.T = T, m.K = kE, m.ldx = ldx, m.ldo = n;
    m.num_segments = 1;
    add(KernelFamily::kMatmul, format, m, {{bytes_.data() + 256, nullptr, n, 0}});
  }
  // What a router of 6 experts chooses of columns `offset` on of rows of `ld`.
  void route(int64_t of) {
    MoeRouteArgs r;
    r.logits = at(of), r.T = T, r.experts = 6, r.top_k = 2;
    r.pair_token = pairs_.data(), r.pair_slot = pairs_.data() + 2 * T, r.expert_start = start_.data();
    r.pair_weight = at(kPieces - 1);
    add(KernelFamily::kMoeRoute, "f32", r);
  }
  // out (2 T, n) = x (T or 2 T, K) W of the expert of each pair.
  void of_experts(int64_t to, int64_t from, int64_t n, int64_t K, bool by_token) {
    GroupedMatmulArgs m;
    m.out = at(to), m.x = at(from), m.pair_token = by_token ? pairs_.data() : nullptr;
    m.expert_start = start_.data(), m.segments_per_expert = 1, m.experts = 6;
    m.P = 2 * T, m.K = m.ldx = K, m.ldo = n;
    std::vector<MatmulSegment> segments;
    for (int64_t e = 0; e < 6; ++e) segments.push_back({bytes_.data() + 512 * e, nullptr, n, 0});
    add(KernelFamily::kGroupedMatmul, format, m, segments);
  }
  void combine(int64_t to, int64_t from, int64_t cols) {
    MoeCombineArgs c;
    c.out = at(to), c.y = at(from), c.pair_slot = pairs_.data() + 2 * T, c.pair_weight = at(kPieces - 1);
    c.T = T, c.top_k = 2, c.E = cols;
    add(KernelFamily::kMoeCombine, "f32", c);
  }
  void norm(int64_t to, int64_t from, int64_t residual = -1) {
    RmsNormArgs r;
    r.out = at(to), r.x = at(from), r.w = at(0), r.rows = T, r.cols = r.ldx = r.ldo = kE;
    if (residual >= 0) r.residual = r.sum_out = at(residual);
    add(KernelFamily::kRmsNorm, "f32", r);
  }
  void unary(UnaryOp op, int64_t to, int64_t from, int64_t cols = kE) {
    UnaryArgs u;
    u.out = at(to), u.x = at(from), u.n = T * cols, u.op = op;
    add(KernelFamily::kUnary, "f32", u);
  }
  // b: as a, a row, a column or a number.
  void binary(BinaryOp op, int64_t to, int64_t a, int64_t b, int32_t b_row = 1, int32_t b_col = 1) {
    BinaryArgs x;
    x.out = at(to), x.a = at(a), x.b = at(b), x.op = op;
    x.rows = T, x.cols = kE, x.b_row = b_row, x.b_col = b_col;
    add(KernelFamily::kBinary, "f32", x);
  }
  void gate(int64_t to, int64_t wide, UnaryOp act = UnaryOp::kSilu, float limit = 0) {
    SwiGluArgs g;
    g.out = at(to), g.gate = at(wide), g.up = at(wide, kE), g.T = T, g.F = g.ldo = kE;
    g.ldg = g.ldu = 2 * kE, g.act = act, g.limit = limit;
    add(KernelFamily::kSwiGlu, "f32", g);
  }
  // Columns first .. first + cols of rows of 2 kE.
  void copy(int64_t to, int64_t wide, int64_t first, int64_t cols) {
    RopeArgs r;
    r.x = at(wide, first), r.out = at(to), r.inv_freq = at(0);
    r.positions = start_.data();
    r.T = T, r.heads = 1, r.D = r.ldo = cols, r.ldx = 2 * kE;
    add(KernelFamily::kRope, "f32", r);
  }

  // How many launches they are, and in the end those that are held.
  int64_t launches() {
    cuda::HeldLaunches held;
    int64_t sum = 0;
    for (const Call& c : calls_) {
      cuda::KernelCost cost;
      REQUIRE(cuda::cost_of(*c.kernel, c.args.get(), 0, &cost, &held));
      sum += cost.launches;
    }
    return sum;
  }
  // All memory as they leave it.
  std::vector<float> run(bool at_once) {
    const NextOrder order;
    cuda::HeldLaunches held;
    for (const Call& c : calls_) {
      REQUIRE(held.launch(*c.kernel, c.args.get(), chosen_.data(), nullptr).ok());
      if (!at_once) REQUIRE(held.release().ok());
    }
    REQUIRE(held.release().ok());
    CHECK(held.held() == 0);
    std::vector<float> all = memory_.host();
    for (DeviceCopy<int32_t>* part : {&start_, &pairs_}) {
      for (const int32_t x : part->host()) all.push_back(static_cast<float>(x));
    }
    return all;
  }

 private:
  struct Call {
    const cuda::DeviceKernel* kernel;
    std::shared_ptr<void> args;
  };
  int64_t piece() const { return 2 * T * 2 * kE; }

  template <class Args>
  void add(KernelFamily family, const char* of, Args args, std::vector<MatmulSegment> segments = {}) {
    struct Kept {
      Args args;
      std::vector<MatmulSegment> segments;
    };
    auto kept = std::make_shared<Kept>(Kept{args, std::move(segments)});
    if constexpr (requires { args.segments; }) kept->args.segments = kept->segments.data();
    const cuda::DeviceKernel* const kernel = cuda::find_device_kernel(family, of);
    REQUIRE(kernel != nullptr);
    calls_.push_back({kernel, std::shared_ptr<void>(kept, &kept->args)});
  }

  DeviceArray memory_;
  DeviceCopy<char> bytes_{small_numbers()};
  DeviceCopy<int32_t> start_{std::vector<int32_t>(64, -1)}, chosen_{std::vector<int32_t>(256, -1)},
      pairs_{std::vector<int32_t>(256, -1)};
  std::vector<Call> calls_;
};

// The same memory, so both ways of one `make`.
void check(int64_t T, int64_t launches, const std::function<void(Calls&)>& make,
           const char* format = "bf16") {
  Calls once(T, format), one_by_one(T, format);
  make(once);
  make(one_by_one);
  INFO("T " << T << ", " << format);
  if (launches >= 0) CHECK(once.launches() == launches);
  CHECK(same_bits(once.run(true), one_by_one.run(false)));
}
constexpr int64_t E = Calls::kE;

}  // namespace

TEST_CASE("cuda: elementwise ops between products are of their launch", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto between = [](Calls& c) {
    c.product(2, 1, 2 * E);
    c.copy(3, 2, 5, E);
    c.unary(UnaryOp::kSigmoid, 4, 3);
    c.binary(BinaryOp::kMul, 5, 4, 1);
    c.product(6, 5, E, 1);
  };
  for (const char* format : {"bf16", "q8_0", "f32", "iq4_nl"}) check(3, 1, between, format);
  for (const int64_t T : {1, 8, 9, 31}) check(T, 1, between);
  check(32, 3, between);  // products of many rows are launches of their own
  // In front of all, and behind.
  check(3, 1, [](Calls& c) {
    c.binary(BinaryOp::kAdd, 2, 1, 0, 0, 1);
    c.unary(UnaryOp::kSilu, 3, 2);
    c.product(4, 3);
    c.unary(UnaryOp::kExp, 5, 4);
  });
  // By one number: the product's own rows, and others.
  check(3, 1, [](Calls& c) {
    c.product(2, 1);
    c.binary(BinaryOp::kMul, 3, 2, 0, 0, 0);
    c.binary(BinaryOp::kMul, 4, 1, 0, 0, 0);
    c.product(5, 4);
  });
  // A product that has a launch of its own, as its rows lie beside multiples of 16 bytes.
  check(3, 2, [](Calls& c) {
    c.product(2, 1, E, -1, 1);
    c.unary(UnaryOp::kNeg, 3, 2);
    c.unary(UnaryOp::kNeg, 4, 3);
  });
}

// As of a shared expert beside a router, or of a state: columns of one row, among as many as are no multiple
// of 4.
TEST_CASE("cuda: a row by itself is of a launch of products however far apart rows would lie", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto odd = [](Calls& c) {
    c.product(2, 1, 2 * E + 1);
    c.product(3, 2, E, -1, 4, 2 * E + 1);
  };
  for (const char* format : {"bf16", "q8_0"}) {
    check(1, 1, odd, format);
    check(3, std::string_view(format) == "bf16" ? 2 : 1, odd, format);  // without tensor cores: any rows
  }
}

TEST_CASE("cuda: gates between products are of their launch where they are no more than silu or gelu",
          "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto gated = [](UnaryOp act, float limit) {
    return [=](Calls& c) {
      c.product(2, 1, 2 * E);
      c.gate(3, 2, act, limit);
      c.product(4, 3);
    };
  };
  for (const UnaryOp act : {UnaryOp::kSilu, UnaryOp::kGeluTanh}) check(3, 1, gated(act, 0));
  check(3, 3, gated(UnaryOp::kSilu, 0.25f));
}

TEST_CASE("cuda: norms behind elementwise ops among products are of their launch", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto normed = [](Calls& c) {
    c.product(2, 1);
    c.binary(BinaryOp::kAdd, 3, 2, 1);
    c.norm(4, 3, 5);
    c.norm(6, 4);
    c.unary(UnaryOp::kTanh, 7, 6);
    c.product(2, 6);
  };
  for (const int64_t T : {1, 3, 8}) check(T, 1, normed);
  check(9, 4, normed);  // more rows than the last block has sums for: norms by themselves
  // Without a product there is no kernel that has both.
  check(3, 2, [](Calls& c) {
    c.binary(BinaryOp::kAdd, 3, 2, 1);
    c.norm(4, 3, 5);
  });
  check(3, 1, [](Calls& c) {
    c.binary(BinaryOp::kAdd, 3, 2, 1);
    c.norm(4, 3, 5);
    c.product(2, 4);
  });
}

TEST_CASE("cuda: a choice of experts by columns that are copied behind a product is of its launch",
          "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto chosen = [](int64_t logits) {
    return [=](Calls& c) {
      c.product(2, 1, 2 * E);
      c.copy(3, 2, 7, 6);
      c.copy(4, 2, 20, E);
      c.route(logits);
    };
  };
  for (const int64_t T : {1, 3, 31}) check(T, 1, chosen(3));
  check(3, 2, chosen(5));  // of what is made elsewhere
  check(3, 2, [](Calls& c) {
    c.unary(UnaryOp::kNeg, 3, 2, 6);
    c.route(3);
  });
}

TEST_CASE("cuda: elementwise ops between experts' layers, and behind their sum, are of their launch",
          "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int64_t T : {1, 3}) {
    check(T, 2, [](Calls& c) {
      c.product(2, 1, 6);
      c.route(2);
      c.of_experts(3, 1, E, E, true);
      c.unary(UnaryOp::kRelu, 4, 3, 2 * E);
      c.unary(UnaryOp::kSquare, 5, 4, 2 * E);
      c.of_experts(6, 5, E, E, false);
      c.combine(7, 6, E);
      c.binary(BinaryOp::kAdd, 2, 7, 1);
      c.norm(3, 2);
      c.product(4, 3);
    });
  }
}

TEST_CASE("cuda: more elementwise ops than a launch of products has room for take more", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto many = [](int ops, int products) {
    return [=](Calls& c) {
      for (int p = 0; p < products; ++p) {
        c.product(2, 1);
        for (int i = 0; i < ops; ++i) c.unary(UnaryOp::kTanh, 3 + i % 2, i == 0 ? 2 : 3 + (i + 1) % 2);
      }
    };
  };
  check(3, 1, many(48, 1));
  check(3, 2, many(49, 1));
  check(3, 1, many(1, 4));
  check(3, 2, many(1, 5));
}

TEST_CASE("cuda: elementwise ops and products in any order at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (uint32_t round = 0; round < 60; ++round) {
    INFO("round " << round);
    const int64_t T = int64_t{1} << round % 5;
    check(
        T, -1,
        [&](Calls& c) {
          std::mt19937 gen(round);
          const auto pick = [&](int64_t below) {
            return static_cast<int64_t>(gen() % static_cast<uint64_t>(below));
          };
          for (int64_t k = 3 + pick(12); k > 0; --k) {
            // The first piece has norms' weights and numbers; no product writes upon its own rows.
            const int64_t from = 1 + pick(6), to = 1 + pick(6), other = 1 + (to + pick(5)) % 6;
            switch (pick(8)) {
              case 0:
              case 1: c.product(to, other, pick(2) == 0 ? E : 2 * E); break;
              case 2: c.norm(to, from); break;
              case 3: c.unary(pick(2) == 0 ? UnaryOp::kTanh : UnaryOp::kSigmoid, to, from); break;
              case 4: c.binary(BinaryOp::kMul, to, from, to); break;
              case 5: c.binary(BinaryOp::kAdd, to, from, 0, 0, static_cast<int32_t>(pick(2))); break;
              case 6: c.copy(to, other, pick(E), E); break;
              default: c.gate(to, other); break;
            }
          }
        },
        round % 3 == 0 ? "q8_0" : "bf16");
  }
}
