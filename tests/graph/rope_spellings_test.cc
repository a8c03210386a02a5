// Rotary embedding as exporters spell it, in graphs that know no types: each spelling becomes one rope over
// tables, with nothing of its arithmetic left, and computes the same.
#include <functional>

#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "tests/graph/graph_fixture.h"
#include "tests/support/random.h"

namespace {
using namespace oar;

constexpr int64_t kB = 2, kH = 3, kS = 5, kD = 8, kMax = INT64_MAX;
using Ints = std::vector<int64_t>;

// x (B, S, H D) as heads (B, H, S, D), and tables of `angles` a token.
struct Turned {
  Graph g;
  int64_t angles;
  ValueId flat = g.add_input("x", TensorType::unknown());
  ValueId c = g.add_input("c", TensorType::unknown()), s = g.add_input("s", TensorType::unknown());
  ValueId x;

  explicit Turned(int64_t angles) : angles(angles) {
    x = (*this)("transpose", {to(flat, {kB, kS, kH, kD})}, {{"perm", Ints{0, 2, 1, 3}}});
  }
  std::vector<ValueId> many(const char* op, std::vector<ValueId> in, size_t results, Attrs attrs) {
    return g.append(find_op(op), std::move(in), results, std::move(attrs));
  }
  ValueId operator()(const char* op, std::vector<ValueId> in, Attrs attrs = {}) {
    return many(op, std::move(in), 1, std::move(attrs))[0];
  }
  ValueId ints(const Ints& v, bool scalar = false) {
    auto t =
        Tensor::allocate(scalar ? Shape() : Shape{static_cast<int64_t>(v.size())}, Format::of(DType::kI64));
    std::copy(v.begin(), v.end(), t->mutable_values<int64_t>().begin());
    return g.add_constant("", std::move(*t));
  }
  ValueId to(ValueId v, const Ints& shape) { return (*this)("reshape", {v, ints(shape)}); }
  ValueId cut(ValueId v, int64_t begin, int64_t end, int64_t axis = -1, int64_t step = 1) {
    return (*this)("slice", {v, ints({begin}), ints({end}), ints({axis}), ints({step})});
  }
  ValueId mul(ValueId a, ValueId b) { return (*this)("mul", {a, b}); }
  ValueId add(ValueId a, ValueId b) { return (*this)("add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return (*this)("sub", {a, b}); }
  ValueId neg(ValueId a) { return (*this)("neg", {a}); }
  ValueId join(std::vector<ValueId> v, int64_t axis = -1) {
    return (*this)("concat", std::move(v), {{"axis", axis}});
  }
  ValueId unsqueeze(ValueId v, int64_t axis = -1) { return (*this)("unsqueeze", {v, ints({axis})}); }
  ValueId stack(ValueId a, ValueId b) { return join({unsqueeze(a), unsqueeze(b)}); }
  ValueId column(ValueId v, int64_t k) {
    return (*this)("gather", {v, ints({k}, true)}, {{"axis", int64_t{-1}}});
  }
  // As exporters write a shape of extents that they do not know.
  ValueId like(ValueId v, int64_t axes, const Ints& last) {
    std::vector<ValueId> all;
    const ValueId shape = (*this)("shape_of", {v});
    for (int64_t k = 0; k < axes; ++k)
      all.push_back(unsqueeze((*this)("gather", {shape, ints({k}, true)}, {{"axis", int64_t{0}}}), 0));
    all.push_back(ints(last));
    return join(all, 0);
  }
  // Columns turned as complex numbers are.
  ValueId first(ValueId u, ValueId v) { return sub(mul(u, c), mul(v, s)); }
  ValueId second(ValueId u, ValueId v) { return add(mul(u, s), mul(v, c)); }
};

std::vector<double> run_turned(const Turned& t) {
  std::vector<Datum> inputs;
  uint32_t seed = 3;
  for (const Shape& shape : {Shape{kB, kS, kH * kD}, Shape{kS, t.angles}, Shape{kS, t.angles}}) {
    auto value = Tensor::allocate(shape, Format::f32());
    const auto values = oar_test::random_floats(static_cast<size_t>(shape.numel()), seed++);
    std::copy(values.begin(), values.end(), value->mutable_values<float>().begin());
    inputs.emplace_back(std::move(*value));
  }
  const auto evaluator = Evaluator::create(std::make_shared<const Graph>(t.g));
  REQUIRE_OK(evaluator);
  const auto out = (*evaluator)->run(inputs, {});
  REQUIRE_OK(out);
  const auto values = (*out)[0].tensor.values<float>();
  return {values.begin(), values.end()};
}

// Integers of a shape, which stay where extents are read.
bool feeds_shape(const Graph& g, const Node& n) {
  if (n.is("gather") && !n.inputs.empty()) {
    for (const Node& other : g.nodes()) {
      if (other.is("shape_of") && other.outputs[0] == n.inputs[0]) return true;
    }
  }
  return n.is("concat") && n.attrs.get_int("axis") == 0;
}

using RopeSpelling = std::function<ValueId(Turned&)>;
void check_rope(int64_t angles, const Attrs& attrs, const std::vector<RopeSpelling>& spellings) {
  for (size_t k = 0; k < spellings.size(); ++k) {
    INFO("spelling " << k);
    Turned t(angles);
    t.g.add_output("y", spellings[k](t));
    const std::vector<double> before = run_turned(t);
    REQUIRE_OK(passes::cse(t.g));
    REQUIRE_OK(passes::fuse_definitions(t.g));
    INFO(t.g.to_string());
    int ropes = 0;
    for (const Node& n : t.g.nodes()) {
      for (const char* gone : {"mul", "add", "sub", "neg", "concat", "slice", "split", "gather"})
        CHECK((!n.is(gone) || feeds_shape(t.g, n)));
      if (!n.is("rope")) continue;
      ++ropes;
      CHECK(n.attrs == attrs);
    }
    CHECK(ropes == 1);
    CHECK(oar_test::distance(run_turned(t), before) < 1e-6);
  }
}
void check_no_rope(int64_t angles, const RopeSpelling& spelling) {
  Turned t(angles);
  t.g.add_output("y", spelling(t));
  REQUIRE_OK(passes::cse(t.g));
  REQUIRE_OK(passes::fuse_definitions(t.g));
  INFO(t.g.to_string());
  for (const Node& n : t.g.nodes()) CHECK_FALSE(n.is("rope"));
}

std::pair<ValueId, ValueId> parted(Turned& t, ValueId x, int64_t at) {
  const auto parts = t.many("split", {x, t.ints({at, at})}, 2, {{"axis", int64_t{-1}}});
  return {parts[0], parts[1]};
}

}  // namespace

TEST_CASE("spellings of rope over halves") {
  check_rope(kD, {},
             {[](Turned& t) {  // as Hugging Face's models do
                const ValueId y = t.join({t.neg(t.cut(t.x, kD / 2, kMax)), t.cut(t.x, 0, kD / 2)});
                return t.add(t.mul(t.x, t.c), t.mul(y, t.s));
              },
              [](Turned& t) {  // axes by number, parts by a split
                const auto p = t.many("split", {t.x}, 2, {{"axis", int64_t{3}}});
                return t.add(t.mul(t.join({t.neg(p[1]), p[0]}, 3), t.s), t.mul(t.c, t.x));
              },
              [](Turned& t) {
                const auto [u, v] = parted(t, t.x, kD / 2);
                auto minus = Tensor::allocate({}, Format::f32());
                minus->mutable_values<float>()[0] = -1;
                const ValueId y = t.join({t.mul(v, t.g.add_constant("", std::move(*minus))), u});
                return t.add(t.mul(t.c, t.x), t.mul(t.s, y));
              }});
  check_rope(
      kD / 2, {},
      {[](Turned& t) {
         const ValueId u = t.cut(t.x, 0, kD / 2), v = t.cut(t.x, kD / 2, kMax);
         return t.join({t.first(u, v), t.second(u, v)});
       },
       [](Turned& t) {  // of heads that are not transposed, with tables for each
         const ValueId x = t.to(t.flat, {0, 0, kH, kD}), c = t.unsqueeze(t.c, 1), s = t.unsqueeze(t.s, 1);
         const ValueId u = t.cut(x, 0, kD / 2, 3), v = t.cut(x, kD / 2, kD, 3);
         return t.join({t.sub(t.mul(u, c), t.mul(v, s)), t.add(t.mul(v, c), t.mul(u, s))});
       },
       [](Turned& t) {
         const auto [u, v] = parted(t, t.x, kD / 2);
         return t.join({t.add(t.mul(t.c, u), t.neg(t.mul(t.s, v))), t.add(t.mul(t.c, v), t.mul(t.s, u))});
       }});
}

TEST_CASE("spellings of interleaved rope") {
  const Attrs attrs{{"interleaved", int64_t{1}}};
  const auto even = [](Turned& t) { return t.cut(t.x, 0, kMax, -1, 2); };
  const auto odd = [](Turned& t) { return t.cut(t.x, 1, kMax, -1, 2); };
  const auto complex = [](Turned& t, ValueId pairs, ValueId target) {
    const ValueId u = t.column(pairs, 0), v = t.column(pairs, 1);
    return t("reshape", {t.stack(t.first(u, v), t.second(u, v)), target});
  };
  check_rope(
      kD / 2, attrs,
      {[&](Turned& t) {
         const ValueId u = even(t), v = odd(t);
         return t.to(t.stack(t.first(u, v), t.second(u, v)), {kB, kH, kS, kD});
       },
       [&](Turned& t) {
         return complex(t, t.to(t.x, {0, 0, 0, -1, 2}), t.ints({kB, kH, kS, kD}));
       },
       [&](Turned& t) {  // extents that are read
         const ValueId pairs = t("reshape", {t.x, t.like(t.x, 3, {-1, 2})});
         return complex(t, pairs, t.like(t.x, 3, {kD}));
       },
       [&](Turned& t) {  // columns by a split, and the result as the next layer wants it
         const auto p = t.many("split", {t.to(t.x, {kB, kH, kS, kD / 2, 2})}, 2, {{"axis", int64_t{4}}});
         const ValueId u = t("squeeze", {p[0], t.ints({-1})}), v = t("squeeze", {p[1], t.ints({-1})});
         return t.to(t.stack(t.first(u, v), t.second(u, v)), {kB * kH, -1, kD});
       }});
  check_rope(kD, attrs,
             {[&](Turned& t) {  // as GPT-J does
                const ValueId y = t.to(t.stack(t.neg(odd(t)), even(t)), {kB, kH, kS, kD});
                return t.add(t.mul(t.x, t.c), t.mul(y, t.s));
              },
              [&](Turned& t) {
                const ValueId y = t("reshape", {t.stack(t.neg(odd(t)), even(t)), t.like(t.x, 3, {kD})});
                return t.add(t.mul(y, t.s), t.mul(t.x, t.c));
              }});
}

TEST_CASE("spellings of rope of a part of each head") {
  constexpr int64_t R = 6;
  const Attrs attrs{{"rotary_dim", R}};
  const auto whole = [](Turned& t, ValueId x) {
    const ValueId y = t.join({t.neg(t.cut(x, R / 2, kMax)), t.cut(x, 0, R / 2)});
    return t.add(t.mul(x, t.c), t.mul(y, t.s));
  };
  check_rope(R, attrs,
             {[&](Turned& t) {  // as GPT-NeoX does
                return t.join({whole(t, t.cut(t.x, 0, R)), t.cut(t.x, R, kMax)});
              },
              [&](Turned& t) {
                const auto p = t.many("split", {t.x, t.ints({R, kD - R})}, 2, {{"axis", int64_t{3}}});
                return t.join({whole(t, p[0]), p[1]}, 3);
              }});
  check_rope(R / 2, attrs,
             {[&](Turned& t) {
                const ValueId u = t.cut(t.x, 0, R / 2), v = t.cut(t.x, R / 2, R);
                return t.join({t.first(u, v), t.second(u, v), t.cut(t.x, R, kD)});
              },
              [&](Turned& t) {
                const ValueId x = t.cut(t.x, 0, R), u = t.cut(x, 0, R / 2), v = t.cut(x, R / 2, R);
                return t.join({t.join({t.first(u, v), t.second(u, v)}), t.cut(t.x, R, kD)});
              }});
}

TEST_CASE("what looks like rope and is none is left alone") {
  // Both signs are the same.
  check_no_rope(kD / 2, [](Turned& t) {
    const ValueId u = t.cut(t.x, 0, kD / 2), v = t.cut(t.x, kD / 2, kMax);
    return t.join({t.add(t.mul(u, t.c), t.mul(v, t.s)), t.second(u, v)});
  });
  // Parts that are no halves.
  check_no_rope(kD, [](Turned& t) {
    const ValueId y = t.join({t.neg(t.cut(t.x, 3, kMax)), t.cut(t.x, 0, 3)});
    return t.add(t.mul(t.x, t.c), t.mul(y, t.s));
  });
  // Halves in their own order.
  check_no_rope(kD, [](Turned& t) {
    const ValueId y = t.join({t.neg(t.cut(t.x, 0, kD / 2)), t.cut(t.x, kD / 2, kMax)});
    return t.add(t.mul(t.x, t.c), t.mul(y, t.s));
  });
  // Of another value than the one beside it.
  check_no_rope(kD, [](Turned& t) {
    const ValueId other = t("tanh", {t.x});
    const ValueId y = t.join({t.neg(t.cut(other, kD / 2, kMax)), t.cut(other, 0, kD / 2)});
    return t.add(t.mul(t.x, t.c), t.mul(y, t.s));
  });
  // Parts whose sizes are computed: here all of a head, and nothing.
  check_no_rope(kD / 2, [](Turned& t) {
    const ValueId sizes = t("identity", {t.ints({kD, 0})});
    const auto parts = t.many("split", {t.x, sizes}, 2, {{"axis", int64_t{-1}}});
    const auto half = t.many("split", {parts[0]}, 2, {{"axis", int64_t{-1}}});
    return t.join({t.join({t.first(half[0], half[1]), t.second(half[0], half[1])}), parts[1]});
  });
  // A stack that becomes another shape before it meets x: (S, B, ...) where both are 1 by chance at run time.
  check_no_rope(kD, [](Turned& t) {
    const ValueId u = t.cut(t.x, 0, kMax, -1, 2), v = t.cut(t.x, 1, kMax, -1, 2);
    const ValueId y = t.to(t.stack(t.neg(v), u), {kB, kH, -1, kD});
    return t.add(t.mul(t.x, t.c), t.mul(t.to(y, {kB * kH, 1, kS, kD}), t.s));
  });
}
