// What exporters make of one formula: each spelling, in a graph that knows no types as importers make them,
// becomes the one op and computes the same.
#include <functional>

#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "tests/graph/graph_fixture.h"
#include "tests/support/random.h"

namespace {
using namespace oar;

struct Spelled {
  Graph g;
  ValueId x = g.add_input("x", TensorType::unknown()), u = g.add_input("u", TensorType::unknown());
  ValueId w = weight(1), b = weight(2);

  ValueId weight(uint32_t seed) {
    auto t = Tensor::allocate({7}, Format::f32());
    const auto values = oar_test::random_floats(7, seed);
    std::copy(values.begin(), values.end(), t->mutable_values<float>().begin());
    return g.add_constant("", std::move(*t));
  }
  ValueId operator()(const char* op, std::vector<ValueId> in, Attrs attrs = {}) {
    return g.append(find_op(op), std::move(in), 1, std::move(attrs))[0];
  }
  ValueId operator()(double v) {
    auto t = Tensor::allocate({}, Format::f32());
    t->mutable_values<float>()[0] = static_cast<float>(v);
    return g.add_constant("", std::move(*t));
  }
  ValueId ints(int64_t v) {
    auto t = Tensor::allocate({1}, Format::of(DType::kI64));
    t->mutable_values<int64_t>()[0] = v;
    return g.add_constant("", std::move(*t));
  }
  // By an attribute, and by an operand.
  ValueId mean(ValueId v) { return (*this)("reduce_mean", {v}, {{"axes", std::vector<int64_t>{-1}}}); }
  ValueId mean_by(ValueId v) { return (*this)("reduce_mean", {v, ints(-1)}, {{"keepdims", int64_t{1}}}); }
  // A sum over the last of three axes, and how many entries that has, read from the shape of x.
  ValueId sum(ValueId v) { return (*this)("reduce_sum", {v}, {{"axes", std::vector<int64_t>{-1}}}); }
  ValueId count() {
    const ValueId last = (*this)("gather", {(*this)("shape_of", {x}), ints(2)}, {{"axis", int64_t{0}}});
    return (*this)("cast", {last}, {{"to", std::string("f32")}});
  }
  ValueId mul(ValueId p, ValueId q) { return (*this)("mul", {p, q}); }
  ValueId add(ValueId p, ValueId q) { return (*this)("add", {p, q}); }
  ValueId div(ValueId p, ValueId q) { return (*this)("div", {p, q}); }
};

std::vector<double> run(const Graph& g) {
  std::vector<Datum> inputs;
  for (uint32_t seed : {5u, 6u}) {
    auto t = Tensor::allocate({2, 3, 7}, Format::f32());
    const auto values = oar_test::random_floats(42, seed);
    std::copy(values.begin(), values.end(), t->mutable_values<float>().begin());
    inputs.emplace_back(std::move(*t));
  }
  const auto evaluator = Evaluator::create(std::make_shared<const Graph>(g));
  REQUIRE_OK(evaluator);
  const auto out = (*evaluator)->run(inputs, {});
  REQUIRE_OK(out);
  const auto values = (*out)[0].tensor.values<float>();
  return {values.begin(), values.end()};
}

using Spelling = std::function<ValueId(Spelled&)>;
void check(const char* op, const std::vector<Spelling>& spellings, const Attrs& attrs = {}) {
  for (size_t k = 0; k < spellings.size(); ++k) {
    INFO(op << ", spelling " << k);
    Spelled s;
    s.g.add_output("y", spellings[k](s));
    const std::vector<double> before = run(s.g);
    REQUIRE_OK(passes::cse(s.g));
    REQUIRE_OK(passes::fuse_definitions(s.g));
    INFO(s.g.to_string());
    REQUIRE(s.g.nodes().size() == 1);
    CHECK(s.g.nodes()[0].is(op));
    CHECK(s.g.nodes()[0].attrs.get_string("approximate") == attrs.get_string("approximate"));
    if (attrs.has("epsilon"))
      CHECK(s.g.nodes()[0].attrs.get_float("epsilon") == Approx(attrs.get_float("epsilon")));
    CHECK(oar_test::distance(run(s.g), before) < 1e-5);
  }
}
// Nothing is made of it.
void check_left(const Spelling& spelling) {
  Spelled s;
  s.g.add_output("y", spelling(s));
  const auto made = passes::fuse_definitions(s.g);
  REQUIRE_OK(made);
  INFO(s.g.to_string());
  CHECK(*made == 0);
}

ValueId centered(Spelled& s) { return s("sub", {s.x, s.mean(s.x)}); }

}  // namespace

TEST_CASE("spellings of rms_norm") {
  const auto root = [](Spelled& s, ValueId square) { return s.add(s.mean(square), s(3e-5)); };
  check("rms_norm",
        {[&](Spelled& s) {
           return s.mul(s.div(s.x, s("sqrt", {root(s, s("pow", {s.x, s(2)}))})), s.w);
         },
         [&](Spelled& s) { return s.mul(s.w, s.mul(s.x, s("rsqrt", {root(s, s("square", {s.x}))}))); },
         [&](Spelled& s) {
           return s.mul(s.mul(s.x, s("reciprocal", {s("sqrt", {root(s, s.mul(s.x, s.x))})})), s.w);
         },
         [&](Spelled& s) {
           return s.mul(s.w, s.mul(s.div(s(1), s("sqrt", {root(s, s("pow", {s.x, s(2)}))})), s.x));
         },
         [&](Spelled& s) {
           return s.mul(s.x, s.mul(s("pow", {root(s, s.mul(s.x, s.x)), s(-0.5)}), s.w));
         },
         [&](Spelled& s) {
           const ValueId a = s.add(s(3e-5), s.mean_by(s("square", {s.x})));
           return s.mul(s.div(s.x, s("pow", {a, s(0.5)})), s.w);
         }},
        {{"epsilon", 3e-5}});
  check_left([&](Spelled& s) { return s.mul(s.div(s.u, s("sqrt", {root(s, s("square", {s.x}))})), s.w); });
  // Over another axis.
  check_left([&](Spelled& s) {
    const ValueId mean = s("reduce_mean", {s("square", {s.x})}, {{"axes", std::vector<int64_t>{-2}}});
    return s.mul(s.div(s.x, s("sqrt", {s.add(mean, s(3e-5))})), s.w);
  });
}

TEST_CASE("spellings of layer_norm, with and without weight and bias") {
  const std::vector<Spelling> bare{
      [](Spelled& s) {
        const ValueId d = centered(s);
        return s.div(d, s("sqrt", {s.add(s.mean(s("pow", {d, s(2)})), s(1e-5))}));
      },
      [](Spelled& s) {
        const ValueId d = centered(s);
        return s.mul(d, s("rsqrt", {s.add(s(1e-5), s.mean(s("square", {d})))}));
      },
      [](Spelled& s) {
        const ValueId d = centered(s);
        return s.mul(s("reciprocal", {s("sqrt", {s.add(s.mean_by(s.mul(d, d)), s(1e-5))})}), d);
      },
      [](Spelled& s) {
        const ValueId d = centered(s);
        return s.mul(d, s("pow", {s.add(s.mean(s.mul(d, d)), s(1e-5)), s(-0.5)}));
      },
      [](Spelled& s) {
        const ValueId d = s.add(s.x, s("neg", {s.mean_by(s.x)}));
        return s.div(d, s("pow", {s.add(s.mean(s("pow", {d, s(2)})), s(1e-5)), s(0.5)}));
      },
      [](Spelled& s) {
        const ValueId d = centered(s), other = centered(s);  // computed twice
        return s.mul(d, s.div(s(1), s("sqrt", {s.add(s.mean(s("square", {other})), s(1e-5))})));
      }};
  const Attrs attrs{{"epsilon", 1e-5}};
  check("layer_norm", bare, attrs);
  std::vector<Spelling> weighted, whole;
  for (const Spelling& f : bare) {
    weighted.push_back([f](Spelled& s) { return s.mul(f(s), s.w); });
    whole.push_back([f](Spelled& s) { return s.add(s.b, s.mul(s.w, f(s))); });
  }
  check("layer_norm", weighted, attrs);
  check("layer_norm", whole, attrs);
}

TEST_CASE("sums through how many they add up are means, and a last axis may be named by the rank") {
  const auto rms = [](Spelled& s, ValueId mean) {
    return s.mul(s.mul(s.x, s("rsqrt", {s.add(mean, s(3e-5))})), s.w);
  };
  const auto squares = [](Spelled& s) { return s("square", {s.x}); };
  // Rank and extents follow from the input's type.
  const auto fused = [&](const Spelling& spelling, const char* op = "rms_norm") {
    Spelled s;
    s.x = s.g.add_input("typed", {Format::f32(), {2, 3, 7}});
    s.g.add_output("y", spelling(s));
    REQUIRE_OK(passes::cse(s.g));
    REQUIRE_OK(passes::fuse_definitions(s.g));
    return s.g.nodes().size() == 1 && s.g.nodes()[0].is(op);
  };
  CHECK(fused([&](Spelled& s) { return rms(s, s.div(s.sum(squares(s)), s.count())); }));
  CHECK(fused(
      [](Spelled& s) {
        const ValueId d = s("sub", {s.x, s.div(s.sum(s.x), s.count())});
        return s.div(d, s("sqrt", {s.add(s.div(s.sum(s.mul(d, d)), s.count()), s(1e-5))}));
      },
      "layer_norm"));
  CHECK(fused([&](Spelled& s) { return rms(s, s.div(s.sum(squares(s)), s(7))); }));
  CHECK(fused([&](Spelled& s) { return rms(s, s.mul(s(1.0 / 7), s.sum(squares(s)))); }));
  for (const int64_t axis : {2, -1})
    CHECK(fused([&](Spelled& s) { return rms(s, s("reduce_mean", {squares(s), s.ints(axis)})); }));
  // Other counts, another axis's extent, and the quotient of integers.
  CHECK_FALSE(fused([&](Spelled& s) { return rms(s, s.div(s.sum(squares(s)), s(6))); }));
  CHECK_FALSE(fused([&](Spelled& s) { return rms(s, s.mul(s(7), s.sum(squares(s)))); }));
  CHECK_FALSE(fused([&](Spelled& s) { return rms(s, s.div(s(7), s.sum(squares(s)))); }));
  CHECK_FALSE(fused([&](Spelled& s) { return rms(s, s("reduce_mean", {squares(s), s.ints(1)})); }));
  CHECK_FALSE(fused([&](Spelled& s) {
    const ValueId rows = s("gather", {s("shape_of", {s.x}), s.ints(1)}, {{"axis", int64_t{0}}});
    return rms(s, s.div(s.sum(squares(s)), s("cast", {rows}, {{"to", std::string("f32")}})));
  }));
  check_left([](Spelled& s) {
    const ValueId last = s("gather", {s("shape_of", {s.x}), s.ints(2)}, {{"axis", int64_t{0}}});
    return s.div(s.sum(s("cast", {s.x}, {{"to", std::string("i64")}})), last);
  });
}

TEST_CASE("spellings of softmax") {
  const auto e = [](Spelled& s) {
    return s("exp", {s("sub", {s.x, s("reduce_max", {s.x}, {{"axes", std::vector<int64_t>{-1}}})})});
  };
  const auto sum = [](Spelled& s, ValueId v) { return s("reduce_sum", {v, s.ints(-1)}); };
  check("softmax", {[&](Spelled& s) {
                      const ValueId v = e(s);
                      return s.div(v, sum(s, v));
                    },
                    [&](Spelled& s) {
                      const ValueId v = e(s);
                      return s.mul(v, s("reciprocal", {sum(s, v)}));
                    },
                    [&](Spelled& s) {
                      const ValueId v = e(s);
                      return s.mul(s.div(s(1), sum(s, v)), v);
                    },
                    [&](Spelled& s) {
                      const ValueId v = e(s);
                      return s.mul(v, s("pow", {sum(s, v), s(-1)}));
                    },
                    [&](Spelled& s) {
                      const ValueId top = s("reduce_max", {s.x, s.ints(-1)});
                      const ValueId v = s("exp", {s.add(s.x, s("neg", {top}))});
                      return s.div(v, sum(s, v));
                    },
                    [&](Spelled& s) {
                      const ValueId top = s("reduce_max", {s.x, s.ints(-1)});
                      const ValueId v = s("exp", {s("sub", {s.x, top})});
                      return s.div(v, s("reduce_sum", {v}, {{"axes", std::vector<int64_t>{-1}}}));
                    }});
}

TEST_CASE("spellings of silu and swiglu") {
  const auto logistic = [](Spelled& s) { return s.add(s(1), s("exp", {s("neg", {s.x})})); };
  const std::vector<Spelling> silu{
      [](Spelled& s) { return s.mul(s.x, s("sigmoid", {s.x})); },
      [](Spelled& s) { return s.mul(s("sigmoid", {s.x}), s.x); },
      [&](Spelled& s) { return s.div(s.x, logistic(s)); },
      [&](Spelled& s) { return s.mul(s.x, s("reciprocal", {logistic(s)})); },
      [&](Spelled& s) { return s.mul(s.div(s(1), logistic(s)), s.x); },
      [](Spelled& s) { return s.div(s.x, s.add(s("exp", {s.mul(s.x, s(-1))}), s(1))); }};
  check("silu", silu);
  std::vector<Spelling> swiglu;
  for (const Spelling& f : silu) swiglu.push_back([f](Spelled& s) { return s.mul(f(s), s.u); });
  swiglu.push_back([](Spelled& s) { return s.mul(s.u, s("silu", {s.x})); });
  swiglu.push_back([](Spelled& s) { return s.mul(s.x, s.mul(s("sigmoid", {s.x}), s.u)); });
  check("swiglu", swiglu);
}

TEST_CASE("spellings of gelu by erf and by tanh") {
  const auto erf = [](Spelled& s) { return s("erf", {s.div(s.x, s(1.41421356237))}); };
  check("gelu", {[&](Spelled& s) { return s.mul(s.mul(s.x, s.add(erf(s), s(1))), s(0.5)); },
                 [&](Spelled& s) { return s.mul(s.mul(s(0.5), s.x), s.add(s(1), erf(s))); },
                 [&](Spelled& s) { return s.mul(s.div(s.x, s(2)), s.add(erf(s), s(1))); },
                 [](Spelled& s) {
                   return s.mul(s.x, s.mul(s.add(s("erf", {s.mul(s.x, s(0.70710678))}), s(1)), s(0.5)));
                 },
                 [&](Spelled& s) { return s.mul(s.x, s.add(s.mul(erf(s), s(0.5)), s(0.5))); },
                 [&](Spelled& s) { return s.mul(s.add(s.x, s.mul(s.x, erf(s))), s(0.5)); }});
  const double k = 0.7978845608;
  const auto whole = [](Spelled& s, ValueId in) {
    return s.mul(s.mul(s.x, s(0.5)), s.add(s("tanh", {in}), s(1)));
  };
  check("gelu",
        {[&](Spelled& s) {
           return whole(s, s.mul(s.add(s.x, s.mul(s("pow", {s.x, s(3)}), s(0.044715))), s(k)));
         },
         [&](Spelled& s) {
           return whole(s, s.mul(s(k), s.add(s.x, s.mul(s(0.044715), s.mul(s.x, s.mul(s.x, s.x))))));
         },
         [&](Spelled& s) {
           return whole(s, s.mul(s.mul(s.x, s(k)), s.add(s(1), s.mul(s.mul(s.x, s.x), s(0.044715)))));
         },
         [&](Spelled& s) {
           return whole(s, s.mul(s.add(s.x, s.mul(s.mul(s("square", {s.x}), s.x), s(0.044715))), s(k)));
         },
         [&](Spelled& s) {
           return whole(s, s.add(s.mul(s(k), s.x), s.mul(s(k * 0.044715), s("pow", {s.x, s(3)}))));
         },
         [&](Spelled& s) {
           const ValueId in = s.mul(s.add(s.x, s.mul(s("pow", {s.x, s(3)}), s(0.044715))), s(k));
           return s.mul(s.x, s.add(s(0.5), s.mul(s("tanh", {in}), s(0.5))));
         }},
        {{"approximate", std::string("tanh")}});
  check_left(
      [](Spelled& s) { return s.mul(s.mul(s.x, s.add(s("erf", {s.mul(s.x, s(0.7))}), s(1))), s(0.5)); });
}
