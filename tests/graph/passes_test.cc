// Passes change the graph's form and never its values.
#include <cstring>
#include <numeric>

#include "engine/graph/cut.h"
#include "engine/graph/weights.h"
#include "tests/graph/graph_fixture.h"

namespace {
using namespace oar;
using oar_test::GraphFixture;

int count(const Graph& g, const char* op) {
  int n = 0;
  for (const Node& node : g.nodes()) n += std::strcmp(node.op->name, op) == 0;
  return n;
}

// A pre-norm block's MLP half with every composite in it.
void build_block(GraphFixture& f) {
  Builder& b = f.b;
  const Val x = f.input("x", {32}), r = f.input("r", {32});
  const Val h = b.op("add", {x, r});
  const Val n = b.op("rms_norm", {h, f.constant("norm", {32})}, {{"epsilon", 1e-5}});
  const Val gate = b.op("linear", {n, Val{}, f.constant("gate", {48, 32}), Val{}});
  const Val up = b.op("linear", {n, Val{}, f.constant("up", {48, 32}), f.constant("up_bias", {48})});
  const Val down = b.op("linear", {b.op("swiglu", {gate, up}), Val{}, f.constant("down", {32, 48}), Val{}});
  f.output(b.op("add", {h, down}));
}

}  // namespace

TEST_CASE("definitions are recognized where a graph spells them out") {
  for (const char* name :
       {"rms_norm", "layer_norm", "silu", "gelu", "gelu by tanh", "relu", "softmax", "swiglu"}) {
    INFO(name);
    GraphFixture f;
    const bool by_tanh = std::string(name) == "gelu by tanh";
    const std::string op = by_tanh ? "gelu" : name;
    std::vector<Val> in{f.input("x", {24})};
    if (op == "swiglu") in.push_back(f.input("u", {24}));
    if (op == "rms_norm" || op == "layer_norm") in.push_back(f.constant("w", {24}));
    if (op == "layer_norm") in.push_back(f.constant("b", {24}));
    Attrs attrs;
    if (op == "rms_norm" || op == "layer_norm") attrs.set("epsilon", 3e-5);
    if (by_tanh) attrs.set("approximate", std::string("tanh"));
    f.output(f.b.op(op, in, attrs));
    const auto before = f.reference();
    REQUIRE_OK(decompose(f.graph, [](const Node&) { return false; }));
    REQUIRE(count(f.graph, op.c_str()) == 0);
    REQUIRE_OK(passes::fuse_definitions(f.graph));
    CHECK(count(f.graph, op.c_str()) == 1);
    CHECK(f.graph.nodes().size() == 1);
    CHECK(f.graph.nodes()[0].attrs.get_string("approximate") == attrs.get_string("approximate"));
    if (attrs.has("epsilon")) CHECK(f.graph.nodes()[0].attrs.get_float("epsilon") == Approx(3e-5));
    CHECK(oar_test::distance(f.reference(), before) < 1e-7);
  }
}

TEST_CASE("commuted spellings are recognized, other constants and shared parts are not") {
  GraphFixture f;
  const Val x = f.input("x", {24});
  f.output(f.b.op("mul", {f.b.op("sigmoid", {x}), x}));
  REQUIRE_OK(passes::fuse_definitions(f.graph));
  CHECK(count(f.graph, "silu") == 1);

  GraphFixture other;
  const Val y = other.input("x", {24});
  const Val e = other.b.op("erf", {other.b.op("mul", {y, other.b.scalar(0.6)})});  // not 1 / sqrt 2
  other.output(other.b.op(
      "mul", {other.b.op("mul", {y, other.b.scalar(0.5)}), other.b.op("add", {e, other.b.scalar(1)})}));
  REQUIRE_OK(passes::fuse_definitions(other.graph));
  CHECK(count(other.graph, "gelu") == 0);

  GraphFixture shared;
  const Val z = shared.input("x", {24}), s = shared.b.op("sigmoid", {z});
  shared.output(shared.b.op("add", {shared.b.op("mul", {z, s}), s}));
  REQUIRE_OK(passes::fuse_definitions(shared.graph));
  CHECK(count(shared.graph, "silu") == 0);
}

TEST_CASE("the default passes leave the values and make the fused graph") {
  GraphFixture f;
  build_block(f);
  const auto before = f.reference();
  REQUIRE_OK(decompose(f.graph, [](const Node&) { return false; }));
  REQUIRE_OK(run_passes(f.graph, default_passes(), {}));
  INFO(f.graph.to_string());
  CHECK(count(f.graph, "add_rms_norm") == 1);
  CHECK(count(f.graph, "swiglu") == 0);
  CHECK(count(f.graph, "linear") == 1);  // gate and up in one
  CHECK(count(f.graph, "gated_linear") == 1);
  CHECK(count(f.graph, "add") == 0);  // the second addition is the down projection's epilogue
  CHECK(oar_test::distance(f.reference(), before) < 1e-6);
  CHECK(oar_test::distance(f.planned(Isa::kGeneric), before) < 1e-5);
}

TEST_CASE("each pass alone and each pass missing keeps the values") {
  GraphFixture whole;
  build_block(whole);
  const auto expected = whole.reference();
  for (const Pass& pass : default_passes()) {
    INFO(pass.name);
    GraphFixture alone;
    build_block(alone);
    REQUIRE_OK(run_passes(alone.graph, {&pass, 1}, {}));
    CHECK(oar_test::distance(alone.planned(Isa::kGeneric), expected) < 1e-5);
    GraphFixture missing;
    build_block(missing);
    PassOptions options;
    options.disabled = {pass.name};
    REQUIRE_OK(run_passes(missing.graph, default_passes(), options));
    CHECK(oar_test::distance(missing.planned(Isa::kGeneric), expected) < 1e-5);
  }
}

namespace {

// Heads of a layer, each a part of 3, of 5 and of 2 columns; the first two joined again.
struct Parts {
  GraphFixture f;
  Val y;
  std::vector<Val> parts;
  explicit Parts(bool biased = false, int64_t last = 10) {
    const Val x = f.input("x", {12});
    y = f.b.op("linear", {x, Val{}, f.constant("w", {40, 12}), biased ? f.constant("bias", {40}) : Val{}});
    const Val heads = f.b.op("reshape", {y}, {{"shape", std::vector<int64_t>{0, 4, 10}}});
    const int64_t bounds[] = {0, 3, 8, last};
    for (int k = 0; k < 3; ++k)
      parts.push_back(f.b.op("slice", {heads}, cut_attrs(-1, bounds[k], bounds[k + 1])));
  }
  Val rows(Val part) { return f.b.op("reshape", {part}, {{"shape", std::vector<int64_t>{0, -1}}}); }
  // Leaves the values, of as many layers.
  void check(Val out, int ordered) {
    f.output(out);
    const auto before = f.reference();
    const auto rewrites = passes::order_columns(f.graph);
    REQUIRE_OK(rewrites);
    CHECK(*rewrites == ordered);
    REQUIRE_OK(passes::dce(f.graph));
    CHECK(count(f.graph, "stored_matrix") == ordered);
    CHECK(oar_test::distance(f.planned(Isa::kGeneric), before) < 1e-6);
  }
};

}  // namespace

TEST_CASE("columns of heads that are read part by part lie part behind part") {
  Parts p;
  const Val joined =
      p.f.b.op("concat", {p.rows(p.parts[0]), p.rows(p.parts[1])}, {{"axis", int64_t{1}}});  // (T, 32)
  const Val last = p.f.b.op("tanh", {p.parts[2]});                                           // (T, 4, 2)
  p.check(
      p.f.b.op("add", {p.f.b.op("slice", {p.f.b.op("exp", {joined})}, cut_attrs(-1, 11, 19)), p.rows(last)}),
      1);
  INFO(p.f.graph.to_string());
  CHECK(count(p.f.graph, "concat") == 0);
  for (const Node& n : p.f.graph.nodes()) {
    if (n.is("slice")) CHECK(p.f.graph.value(n.inputs[0]).type.shape.size() == 2);
  }
  // In another order they stay joined.
  Parts turned;
  turned.check(turned.f.b.op(
                   "concat",
                   {turned.rows(turned.parts[1]), turned.rows(turned.parts[0]), turned.rows(turned.parts[2])},
                   {{"axis", int64_t{1}}}),
               1);
  CHECK(count(turned.f.graph, "concat") == 1);
}

TEST_CASE("columns of heads stay where they are unless each is read in one part") {
  const auto sum = [](Parts& p, Val more) {
    const Val all = p.f.b.op("concat", {p.rows(p.parts[0]), p.rows(p.parts[1]), p.rows(p.parts[2])},
                             {{"axis", int64_t{1}}});
    return more ? p.f.b.op("concat", {all, more}, {{"axis", int64_t{1}}}) : all;
  };
  Parts biased(true);
  biased.check(sum(biased, {}), 0);
  Parts left(false, 9);  // a column that nobody reads
  left.check(sum(left, {}), 0);
  Parts whole;
  whole.check(sum(whole, whole.f.b.op("exp", {whole.y})), 0);
  Parts twice;  // a part of two parts
  const Val heads = twice.f.b.op("reshape", {twice.y}, {{"shape", std::vector<int64_t>{0, 4, 10}}});
  twice.check(sum(twice, twice.rows(twice.f.b.op("slice", {heads}, cut_attrs(-1, 2, 4)))), 0);
}

TEST_CASE("rows of a stored matrix come part by part") {
  GraphFixture f;
  auto t = Tensor::allocate(Shape{6, 1}, Format::f32());
  REQUIRE_OK(t);
  std::iota(t->mutable_values<float>().begin(), t->mutable_values<float>().end(), 0.f);
  const Val w = f.b.constant("w", std::move(*t));
  using Ints = std::vector<int64_t>;
  const auto rows = [&](int64_t step, Ints parts) {
    return f.b.op("stored_matrix", {w}, {{"rows", int64_t{6}}, {"step", step}, {"parts", std::move(parts)}});
  };
  const Val got = rows(3, {1, 3, 0, 1});
  REQUIRE_OK(f.b.status());
  ThreadPool pool({.threads = 1});
  const auto made = evaluate_weight(f.graph, got.id, pool);
  REQUIRE_OK(made);
  const auto values = made->values<float>();
  CHECK(std::vector<float>(values.begin(), values.end()) == std::vector<float>{1, 2, 4, 5, 0, 3});
  for (const Ints& parts :
       {Ints{0, 2}, Ints{0, 2, 1, 3}, Ints{0, 4}, Ints{0, 1, 1}, Ints{2, 3, 2, 3, 0, 1}}) {
    GraphFixture other;
    const Val m = other.constant("m", {6, 1});
    CHECK(!other.b.op("stored_matrix", {m}, {{"rows", int64_t{6}}, {"step", int64_t{3}}, {"parts", parts}}));
  }
  GraphFixture uneven;
  CHECK(!uneven.b.op("stored_matrix", {uneven.constant("m", {6, 1})},
                     {{"rows", int64_t{6}}, {"step", int64_t{4}}, {"parts", Ints{0, 4}}}));
}

TEST_CASE("constants fold, equal expressions merge, dead ones go") {
  GraphFixture f;
  const Val x = f.input("x", {16});
  const Val c = f.b.op("mul", {f.b.op("exp", {f.b.scalar(0.5)}), f.b.scalar(2)});
  const Val a = f.b.op("mul", {x, c}), same = f.b.op("mul", {x, c});
  (void)f.b.op("exp", {x});
  f.output(f.b.op("add", {a, same}));
  const auto before = f.reference();
  REQUIRE_OK(run_passes(f.graph, default_passes(), {}));
  CHECK(f.graph.nodes().size() == 2);  // one mul, one add
  CHECK(oar_test::distance(f.reference(), before) < 1e-6);
}

TEST_CASE("a pass that does not exist is refused with the list of those that do") {
  Graph g;
  PassOptions options;
  options.disabled = {"fuse_everything"};
  const auto r = run_passes(g, default_passes(), options);
  REQUIRE(!r.ok());
  CHECK(r.status().message().find("fuse_everything") != std::string::npos);
  CHECK(r.status().message().find("fuse_linear") != std::string::npos);
}

TEST_CASE("shape errors name the op and its operands") {
  GraphFixture f;
  const Val v = f.b.op("linear", {f.input("x", {16}), Val{}, f.constant("w", {8, 17}), Val{}});
  CHECK(!v);
  REQUIRE(!f.b.status().ok());
  CHECK(f.b.status().message().find("linear(f32[T, 16]") != std::string::npos);
  CHECK(f.b.status().message().find("17") != std::string::npos);
}

TEST_CASE("sizes that are constants become attributes, those that are computed stay operands") {
  Graph g;
  const auto ints = [&](std::vector<int64_t> values) {
    auto t = Tensor::allocate({static_cast<int64_t>(values.size())}, Format::of(DType::kI64));
    std::copy(values.begin(), values.end(), t->mutable_values<int64_t>().begin());
    return g.add_constant("", std::move(*t));
  };
  const ValueId x = g.add_input("x", TensorType::unknown()), n = g.add_input("n", TensorType::unknown());
  const ValueId y = g.append(find_op("reshape"), {x, ints({0, -1})}, 1, {{"allowzero", int64_t{0}}})[0];
  const ValueId z = g.append(find_op("slice"), {y, ints({1}), ints({3}), kNoValue, ints({2})}, 1)[0];
  g.add_output("out", g.append(find_op("slice"), {z, ints({0}), n}, 1)[0]);
  const auto all = [&](const char* op, std::vector<int64_t> numbers, size_t results = 1) {
    return g.append(find_op(op), {x, ints(std::move(numbers))}, results)[0];
  };
  const std::pair<const char*, const char*> more[] = {{"squeeze", "axes"},
                                                      {"unsqueeze", "axes"},
                                                      {"expand", "shape"},
                                                      {"tile", "repeats"},
                                                      {"reduce_sum", "axes"}};
  for (const auto& [op, name] : more) all(op, {1, 2});
  all("split", {3, 4}, 2);
  // A shape beside a value to be shaped like is a fault that the op names.
  g.append(find_op("expand"), {x, ints({2}), x}, 1);
  const auto made = passes::sizes_as_attributes(g);
  REQUIRE_OK(made);
  CHECK(*made == 2 + 6);
  for (size_t k = 0; k < std::size(more); ++k) {
    CHECK(g.nodes()[3 + k].inputs == std::vector<ValueId>{x});
    CHECK(g.nodes()[3 + k].attrs.get_ints(more[k].second) == std::vector<int64_t>{1, 2});
  }
  CHECK(g.nodes()[8].attrs.get_ints("sizes") == std::vector<int64_t>{3, 4});
  CHECK(g.nodes()[9].inputs.size() == 3);
  CHECK(g.nodes()[0].inputs == std::vector<ValueId>{x});
  CHECK(g.nodes()[0].attrs.get_ints("shape") == std::vector<int64_t>{0, -1});
  CHECK(g.nodes()[1].inputs == std::vector<ValueId>{y});
  CHECK(g.nodes()[1].attrs.get_ints("steps") == std::vector<int64_t>{2});
  CHECK(!g.nodes()[1].attrs.has("axes"));
  CHECK(g.nodes()[2].inputs.size() == 3);
}
