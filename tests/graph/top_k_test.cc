// top_k beside a sort of whole rows: ties, zeros of both signs, NaN, axes that are not the last, and rows
// long enough that most of their entries are left out by their leading bits.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "engine/graph/evaluate.h"
#include "engine/tensor/element.h"
#include "tests/graph/graph_fixture.h"

using namespace oar;

namespace {

// Few values, so that many are equal; floats have zeros of both signs, infinities and NaN among them.
template <class T>
std::vector<T> few_values(int64_t n, uint32_t seed) {
  using C = typename Element<T>::Compute;
  std::mt19937 random(seed);
  std::vector<T> out(static_cast<size_t>(n));
  for (T& v : out) {
    const auto r = static_cast<int>(random() % 40);
    C c = static_cast<C>(std::is_signed_v<C> ? r - 20 : r);
    if constexpr (std::is_floating_point_v<C>) {
      c = c / 7;
      if (r == 0) c = std::numeric_limits<C>::quiet_NaN();
      if (r == 1) c = -std::numeric_limits<C>::quiet_NaN();
      if (r == 2) c = -std::numeric_limits<C>::infinity();
      if (r == 3) c = std::numeric_limits<C>::infinity();
      if (r == 4) c = -C{0};
    }
    v = Element<T>::store(c);
  }
  return out;
}

struct Rows {
  Shape shape;
  int axis;
  int64_t k;
};

template <class T>
void check_rows(DType dtype, const Rows& c, bool largest) {
  INFO(dtype_name(dtype) << " " << c.shape.to_string() << " axis " << c.axis << " k " << c.k << " "
                         << largest);
  const std::vector<T> x = few_values<T>(c.shape.numel(), static_cast<uint32_t>(c.k) + 1);
  Tensor t = Tensor::allocate(c.shape, Format::of(dtype)).value(),
         k = Tensor::allocate({1}, Format::of(DType::kI64)).value();
  if (!x.empty()) std::memcpy(t.mutable_data(), x.data(), x.size() * sizeof(T));
  *static_cast<int64_t*>(k.mutable_data()) = c.k;
  Graph g;
  const ValueId in = g.add_input("x", TensorType::unknown()), many = g.add_input("k", TensorType::unknown());
  g.append(find_op("top_k"), {in, many}, 2,
           {{"axis", static_cast<int64_t>(c.axis)}, {"largest", static_cast<int64_t>(largest)}});
  const Datum data[] = {Datum(t), Datum(k)};
  const Datum* const operands[] = {&data[0], &data[1]};
  const auto got = evaluate_op(g.nodes()[0], operands, {});
  REQUIRE_OK(got);
  const auto* values = static_cast<const T*>((*got)[0].tensor.data());
  const auto* indices = static_cast<const int64_t*>((*got)[1].tensor.data());
  int64_t inner = 1;
  for (int a = c.axis + 1; a < c.shape.rank(); ++a) inner *= c.shape[a];
  const int64_t n = c.shape[c.axis];
  for (int64_t row = 0; n > 0 && row < c.shape.numel() / n; ++row) {
    const int64_t base = row / inner * n * inner + row % inner, to = row / inner * c.k * inner + row % inner;
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    // A NaN is above all numbers.
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      const auto u = Element<T>::load(x[static_cast<size_t>(base + a * inner)]),
                 v = Element<T>::load(x[static_cast<size_t>(base + b * inner)]);
      const bool less = u == u && (v != v || u < v), greater = v == v && (u != u || u > v);
      return largest ? greater : less;
    });
    for (int64_t i = 0; i < c.k; ++i) {
      const int64_t want = order[static_cast<size_t>(i)];
      REQUIRE(indices[to + i * inner] == want);
      REQUIRE(std::memcmp(&values[to + i * inner], &x[static_cast<size_t>(base + want * inner)], sizeof(T)) ==
              0);
    }
  }
}

}  // namespace

TEST_CASE("top_k: the first of a sorted row, of every type") {
  const Rows cases[] = {{{1, 2000}, 1, 30}, {{3, 700}, 1, 700}, {{2, 900, 3}, 1, 17}, {{5, 7}, 0, 2},
                        {{4, 511}, 1, 9},   {{4, 512}, 1, 1},   {{3, 40}, 1, 0},      {{0, 4}, 1, 2}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI8, DType::kU8,
                            DType::kI32, DType::kI64, DType::kU64}) {
    dispatch_number(dtype, [&](auto tag) {
      for (const Rows& c : cases) {
        check_rows<typename decltype(tag)::type>(dtype, c, true);
        check_rows<typename decltype(tag)::type>(dtype, c, false);
      }
    });
  }
}
