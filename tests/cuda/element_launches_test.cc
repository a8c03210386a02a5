// Elementwise ops behind each other, and rotations beside each other, that a device does at once: whatever
// their places in memory, all of it is what they leave one by one.
#include <random>

#include "kernels/activation.h"
#include "kernels/cuda/held_launches.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

using Step = std::variant<UnaryArgs, BinaryArgs, RopeArgs>;

KernelFamily family_of(const Step& s) {
  return s.index() == 0 ? KernelFamily::kUnary : s.index() == 1 ? KernelFamily::kBinary : KernelFamily::kRope;
}

// What all of them leave; `at_once`: how many launches the held ones are, all told. Addresses in `steps` are
// offsets into the memory.
std::vector<float> run(const std::vector<float>& before, std::vector<Step> steps, bool held,
                       int64_t at_once = -1) {
  DeviceArray memory(before);
  const NextOrder order;
  cuda::HeldLaunches launches;
  const auto place = [&](auto*& p) {
    const auto offset = reinterpret_cast<uintptr_t>(p);
    p = reinterpret_cast<std::remove_reference_t<decltype(p)>>(memory.data() + offset);
  };
  for (Step& s : steps) {
    std::visit(
        [&](auto& a) {
          place(a.out);
          if constexpr (requires { a.x; }) place(a.x);
          if constexpr (requires { a.a; }) place(a.a), place(a.b);
          if constexpr (requires { a.inv_freq; }) {
            place(a.inv_freq), place(a.positions);
            if (a.norm_w != nullptr) place(a.norm_w);
          }
        },
        s);
    const cuda::DeviceKernel* const kernel = cuda::find_device_kernel(family_of(s), "f32");
    REQUIRE(kernel != nullptr);
    const auto launch = [&](const auto& a) {
      return held ? launches.launch(*kernel, &a, nullptr, nullptr) : kernel->launch(&a, nullptr, nullptr);
    };
    REQUIRE(std::visit(launch, s).ok());
  }
  if (at_once >= 0) CHECK(launches.held() == at_once);
  REQUIRE(launches.release().ok());
  return memory.host();
}

float* at(int64_t offset) { return reinterpret_cast<float*>(offset); }

// Memory of a few pieces, of numbers that no op makes infinite soon.
constexpr int64_t kPiece = 96, kPieces = 6;
std::vector<float> some_memory(uint32_t seed) {
  std::vector<float> v = random_values(kPieces * kPiece, Values::kNormal, seed);
  for (float& x : v) x *= 0.1f;
  return v;
}

}  // namespace

TEST_CASE("cuda: elementwise ops behind each other at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::mt19937 gen(1);
  const auto pick = [&](int64_t below) { return static_cast<int64_t>(gen() % static_cast<uint64_t>(below)); };
  // Most begin with a piece, as values of a model do; some within one.
  const auto place = [&] { return pick(kPieces - 1) * kPiece + (pick(4) == 0 ? pick(kPiece) : 0); };
  for (int round = 0; round < 300; ++round) {
    INFO("round " << round);
    const int64_t rows = 1 + pick(3), cols = 1 + pick(32);
    std::vector<Step> steps;
    for (int64_t k = 2 + pick(18); k > 0; --k) {
      const bool alike = pick(5) != 0;
      const int64_t its_rows = alike ? rows : 1 + pick(3), its_cols = alike ? cols : 1 + pick(32);
      if (const int64_t kind = pick(5); kind < 2) {
        constexpr UnaryOp kOps[] = {UnaryOp::kNeg, UnaryOp::kAbs, UnaryOp::kTanh, UnaryOp::kSigmoid,
                                    UnaryOp::kSin};
        UnaryArgs a;
        a.x = at(place()), a.out = at(place()), a.n = its_rows * its_cols;
        a.op = kOps[pick(std::size(kOps))];
        steps.emplace_back(a);
      } else if (kind < 4) {
        constexpr BinaryOp kOps[] = {BinaryOp::kAdd, BinaryOp::kMul, BinaryOp::kMax};
        BinaryArgs a;
        a.a = at(place()), a.b = at(place()), a.out = at(place());
        a.rows = its_rows, a.cols = its_cols;
        a.b_row = static_cast<int32_t>(pick(2)), a.b_col = static_cast<int32_t>(pick(2));
        a.op = kOps[pick(std::size(kOps))];
        steps.emplace_back(a);
      } else {
        RopeArgs a;  // columns that are copied
        a.x = at(place()), a.out = at(place());
        a.positions = reinterpret_cast<const int32_t*>(at(0)), a.inv_freq = at(0);
        a.T = its_rows, a.heads = 1, a.D = its_cols, a.ldx = its_cols + pick(2) * pick(20), a.ldo = its_cols;
        // And some that do more, or leave gaps.
        switch (pick(8)) {
          case 0: a.norm_w = at(0); break;
          case 1: a.rot_dim = a.D / 2 * 2; break;
          case 2: a.ldo += 3; break;
          case 3: a.heads = 2, a.x_step = a.D + 2, a.ldx = 2 * a.x_step, a.ldo = 2 * a.D; break;
          case 4: a.heads = 2, a.out_step = a.D + 2, a.ldx = 2 * a.D, a.ldo = 2 * a.out_step; break;
          default: break;
        }
        steps.emplace_back(a);
      }
    }
    // An op by itself must not read what others of it write, so such calls nobody makes.
    const auto overlaps = [](int64_t x, int64_t n, int64_t y, int64_t m) { return x < y + m && y < x + n; };
    std::erase_if(steps, [&](const Step& s) {
      const auto offset = [](const void* p) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)); };
      if (const auto* u = std::get_if<UnaryArgs>(&s))
        return u->x != u->out && overlaps(offset(u->x), u->n, offset(u->out), u->n);
      if (const auto* r = std::get_if<RopeArgs>(&s)) {
        const int64_t x = r->T * r->ldx + r->heads * r->step_of_x(),
                      out = r->T * r->ldo + r->heads * r->step_of_out();
        return overlaps(offset(r->x), x, offset(r->out), out) ||
               overlaps(offset(r->out), out, 0, std::max(r->T, r->D)) ||
               std::max(offset(r->x) + x, offset(r->out) + out) > kPieces * kPiece;
      }
      const auto& b = std::get<BinaryArgs>(s);
      const int64_t n = b.rows * b.cols, of_b = (b.b_row != 0 ? b.rows : 1) * (b.b_col != 0 ? b.cols : 1);
      return (b.a != b.out && overlaps(offset(b.a), n, offset(b.out), n)) ||
             ((of_b != n || b.b != b.out) && overlaps(offset(b.b), of_b, offset(b.out), n));
    });
    const std::vector<float> before = some_memory(static_cast<uint32_t>(round));
    CHECK(same_bits(run(before, steps, true), run(before, steps, false)));
  }
}

TEST_CASE("cuda: a softplus in its parts, over columns that are copied, is one launch", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  constexpr int64_t kRows = 3, kCols = 20, kWide = 30;
  RopeArgs copy;
  copy.x = at(kPiece), copy.out = at(3 * kPiece);
  copy.positions = reinterpret_cast<const int32_t*>(at(0)), copy.inv_freq = at(0);
  copy.T = kRows, copy.heads = 1, copy.D = copy.ldo = kCols, copy.ldx = kWide;
  const auto unary = [](UnaryOp op, int64_t from, int64_t to) {
    UnaryArgs a;
    a.op = op, a.x = at(from * kPiece), a.out = at(to * kPiece), a.n = kRows * kCols;
    return a;
  };
  const auto binary = [](BinaryOp op, int64_t from, int64_t with, int64_t to, bool whole) {
    BinaryArgs a;
    a.op = op, a.a = at(from * kPiece), a.b = at(with * kPiece), a.out = at(to * kPiece);
    a.rows = kRows, a.cols = kCols, a.b_row = whole ? 1 : 0, a.b_col = 1;
    return a;
  };
  std::vector<Step> steps{copy,
                          binary(BinaryOp::kAdd, 3, 0, 4, false),
                          binary(BinaryOp::kMax, 4, 0, 5, false),
                          unary(UnaryOp::kAbs, 4, 3),
                          unary(UnaryOp::kNeg, 3, 4),
                          unary(UnaryOp::kExp, 4, 3),
                          unary(UnaryOp::kLog, 3, 4),
                          binary(BinaryOp::kAdd, 5, 4, 3, true)};
  const std::vector<float> before = some_memory(7);
  CHECK(same_bits(run(before, steps, true, 1), run(before, steps, false)));
  // So many that a launch does not hold them: three, which products behind could take. And elements of which
  // wide accesses count.
  for (int i = 0; i < 30; ++i) steps.emplace_back(unary(UnaryOp::kNeg, i % 2 + 3, (i + 1) % 2 + 3));
  CHECK(same_bits(run(before, steps, true, 3), run(before, steps, false)));
  const std::vector<float> large(1 << 18, 0.5f);
  UnaryArgs many = unary(UnaryOp::kNeg, 0, 0);
  many.n = (1 << 16) + 1;
  UnaryArgs more = many;
  more.out = at(1 << 17);
  CHECK(same_bits(run(large, {many, more}, true, 0), run(large, {many, more}, false)));
  BinaryArgs sums;
  sums.a = sums.b = sums.out = at(0), sums.rows = 257, sums.cols = 256;
  CHECK(same_bits(run(large, {sums, sums}, true, 0), run(large, {sums, sums}, false)));
  // The last one has most elements.
  UnaryArgs few = many;
  few.n = 100;
  many.x = at(1 << 16), many.out = at(1 << 17), many.n = 3000;
  CHECK(same_bits(run(large, {few, many}, true, 1), run(large, {few, many}, false)));
}

TEST_CASE("cuda: rotations of heads beside each other at once are those of one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::mt19937 gen(2);
  const auto pick = [&](int64_t below) { return static_cast<int64_t>(gen() % static_cast<uint64_t>(below)); };
  for (int round = 0; round < 60; ++round) {
    INFO("round " << round);
    std::vector<Step> steps;
    for (int64_t k = 2 + pick(5); k > 0; --k) {
      RopeArgs a;
      a.D = 8, a.T = 1 + pick(3), a.heads = 1 + pick(3);
      a.ldx = a.ldo = a.heads * a.D;
      // The first piece has what all read: positions, frequencies and a norm's weight.
      a.x = at((1 + pick(kPieces - 1)) * kPiece), a.out = at((1 + pick(kPieces - 1)) * kPiece);
      a.positions = reinterpret_cast<const int32_t*>(at(0)), a.inv_freq = at(8), a.rot_dim = pick(2) * 8;
      if (pick(2) == 0) a.norm_w = at(16);
      steps.emplace_back(a);
    }
    std::vector<float> before = some_memory(static_cast<uint32_t>(round));
    for (int32_t t = 0; t < 3; ++t) before[static_cast<size_t>(t)] = std::bit_cast<float>(t + 5);
    CHECK(same_bits(run(before, steps, true), run(before, steps, false)));
  }
}
