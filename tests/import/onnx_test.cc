// The ONNX reader: what small models compute, what is refused and how, and that no damage can do harm.
#include <cmath>
#include <random>
#include <thread>

#include "engine/import/onnx.h"
#include "engine/runtime/predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace oar_test;

namespace {

Buffer buffer_of(std::string bytes) {
  auto owner = std::make_shared<std::string>(std::move(bytes));
  return Buffer::wrap_const(owner->data(), owner->size(), owner);
}

Result<std::unique_ptr<Predictor>> load(const std::string& bytes) {
  OAR_ASSIGN(ImportedModel m, import_onnx_bytes(buffer_of(bytes), "test.onnx", ""));
  PredictorOptions o;
  o.threads = 1;
  o.tensor_limit = 1 << 26;
  o.loop_limit = 1000;
  return Predictor::create(std::move(m), o);
}

Datum floats(const Shape& shape, const std::vector<float>& values) {
  Tensor t = must(Tensor::allocate(shape, Format::f32()));
  std::copy(values.begin(), values.end(), t.mutable_values<float>().begin());
  return Datum(t);
}

std::vector<float> run_one(const std::string& bytes, std::vector<Datum> in) {
  auto p = load(bytes);
  REQUIRE_OK(p);
  auto out = (*p)->run(std::move(in));
  REQUIRE_OK(out);
  REQUIRE((*out)[0].is_tensor());
  const auto v = (*out)[0].tensor.values<float>();
  return {v.begin(), v.end()};
}

std::string error_of(const std::string& bytes) {
  auto p = load(bytes);
  REQUIRE_FALSE(p.ok());
  return p.status().message();
}

bool contains(const std::string& s, const std::string& part) { return s.find(part) != std::string::npos; }

// y = relu(x . w + b), batch free
std::string linear_model() {
  return model_bytes(
      graph_proto({node_proto("MatMul", {"x", "w"}, {"p"}), node_proto("Add", {"p", "b"}, {"q"}),
                   node_proto("Relu", {"q"}, {"y"})},
                  {tensor_proto("w", {2, 3}, {1, 2, 3, 4, 5, 6}), tensor_proto("b", {3}, {-10, 0, 1})},
                  {value_proto("x", {-1, 2})}, {value_proto("y", {-1, 3})}));
}

// A loop that doubles x `trips` times and reads `k` from around it.
std::string loop_model() {
  const Proto body =
      graph_proto({node_proto("Mul", {"v", "k"}, {"w"}), node_proto("Identity", {"c"}, {"c2"})}, {},
                  {name_proto("i"), name_proto("c"), name_proto("v")}, {name_proto("c2"), name_proto("w")});
  return model_bytes(graph_proto({node_proto("Add", {"one", "one"}, {"k"}),
                                  node_proto("Loop", {"n", "", "x"}, {"y"}, {graph_attr("body", body)})},
                                 {tensor_proto("one", {1}, {1}), ints_proto("n", {5})},
                                 {value_proto("x", {1})}, {value_proto("y", {1})}));
}

}  // namespace

TEST_CASE("onnx: names, symbols and values of a small model") {
  auto p = load(linear_model());
  REQUIRE_OK(p);
  REQUIRE((*p)->inputs().size() == 1);
  CHECK((*p)->inputs()[0].to_string() == "x: f32[batch, 2]");
  CHECK((*p)->outputs()[0].name == "y");
  for (int64_t batch : {1, 3}) {  // any batch, same predictor
    std::vector<float> x;
    for (int64_t k = 0; k < batch * 2; ++k) x.push_back(static_cast<float>(k + 1));
    auto out = (*p)->run(std::map<std::string, Datum>{{"x", floats({batch, 2}, x)}});
    REQUIRE_OK(out);
    const auto y = out->at("y").tensor.values<float>();
    for (int64_t b = 0; b < batch; ++b) {
      const float u = x[static_cast<size_t>(2 * b)], v = x[static_cast<size_t>(2 * b + 1)];
      const float want[] = {std::max(0.f, u + 4 * v - 10), std::max(0.f, 2 * u + 5 * v),
                            std::max(0.f, 3 * u + 6 * v + 1)};
      for (size_t n = 0; n < 3; ++n)
        CHECK(y[static_cast<size_t>(b) * 3 + n] == want[n]);  // small integers: exact
    }
  }
}

TEST_CASE("onnx: a name that two axes of one input share says nothing of them") {
  auto p = load(model_bytes(graph_proto({node_proto("Relu", {"x"}, {"y"})}, {}, {value_proto("x", {-1, -1})},
                                        {value_proto("y", {-1, -1})})));
  REQUIRE_OK(p);
  CHECK((*p)->inputs()[0].to_string() == "x: f32[?, ?]");
  const auto y = (*p)->run({floats({2, 3}, {1, -2, 3, -4, 5, -6})});
  REQUIRE_OK(y);
  CHECK((*y)[0].tensor.shape() == Shape{2, 3});
}

TEST_CASE("onnx: clones run different shapes at once") {
  ImportedModel m = [] {
    auto r = import_onnx_bytes(buffer_of(linear_model()), "test.onnx", "");
    REQUIRE_OK(r);
    return std::move(*r);
  }();
  PredictorOptions o;
  o.threads = 2;
  auto p = Predictor::create(std::move(m), o);
  REQUIRE_OK(p);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t, own = std::shared_ptr<Predictor>((*p)->clone())] {
      for (int64_t batch = 1; batch < 200; ++batch) {
        const int64_t n = batch * static_cast<int64_t>(t + 1);
        Tensor x = must(Tensor::allocate({n, 2}, Format::f32()));
        for (float& e : x.mutable_values<float>()) e = static_cast<float>(t);
        auto r = own->run({Datum(x)});
        if (!r.ok() || (*r)[0].tensor.shape()[0] != n) {
          ++wrong[t];
          continue;
        }
        const auto v = static_cast<float>(t);
        for (int64_t k = 0; k < n; ++k)
          wrong[t] += (*r)[0].tensor.values<float>()[static_cast<size_t>(3 * k + 1)] != 7 * v;
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("onnx: wrong inputs are refused by name") {
  auto p = load(linear_model());
  REQUIRE_OK(p);
  CHECK(contains((*p)->run(std::map<std::string, Datum>{{"z", floats({1, 2}, {1, 2})}}).status().message(),
                 "no input 'z'"));
  CHECK(contains((*p)->run(std::map<std::string, Datum>{}).status().message(), "input 'x': missing"));
  CHECK(contains((*p)->run({floats({1, 3}, {1, 2, 3})}).status().message(), "x: f32[batch, 2]"));
  CHECK(contains((*p)->run({Datum(must(Tensor::zeros({1, 2}, Format::i32())))}).status().message(),
                 "given i32[1, 2]"));
}

TEST_CASE("onnx: a loop reads values around it; an if runs one branch") {
  CHECK(run_one(loop_model(), {floats({1}, {3})}) == std::vector<float>{96});
  const Proto yes = graph_proto({node_proto("Add", {"x", "x"}, {"r"})}, {}, {}, {name_proto("r")});
  const Proto no = graph_proto({node_proto("Neg", {"x"}, {"r"})}, {}, {}, {name_proto("r")});
  const std::string m = model_bytes(graph_proto(
      {node_proto("ReduceSum", {"x"}, {"s"}, {int_attr("keepdims", 0)}),
       node_proto("Greater", {"s", "zero"}, {"c"}),
       node_proto("If", {"c"}, {"y"}, {graph_attr("then_branch", yes), graph_attr("else_branch", no)})},
      {tensor_proto("zero", {}, {0})}, {value_proto("x", {2})}, {value_proto("y", {2})}));
  CHECK(run_one(m, {floats({2}, {1, 2})}) == std::vector<float>{2, 4});
  CHECK(run_one(m, {floats({2}, {1, -2})}) == std::vector<float>{-1, 2});
}

TEST_CASE("onnx: what a loop carries unchanged is read from around it") {
  const auto with = [](const char* k) {
    const Proto body =
        graph_proto({node_proto("Mul", {"v", "by"}, {"w"}), node_proto("Identity", {"c"}, {"c2"})}, {},
                    {name_proto("i"), name_proto("c"), name_proto("by"), name_proto("v")},
                    {name_proto("c2"), name_proto("by"), name_proto("w")});
    return model_bytes(
        graph_proto({node_proto("Add", {"one", "x"}, {"more"}),
                     node_proto("Loop", {"n", "", k, "x"}, {"k_after", "y"}, {graph_attr("body", body)})},
                    {tensor_proto("one", {1}, {1}), tensor_proto("two", {1}, {2}), ints_proto("n", {3})},
                    {value_proto("x", {1})}, {value_proto("y", {1}), value_proto("k_after", {1})}));
  };
  for (const bool constant : {true, false}) {
    auto p = load(with(constant ? "two" : "more"));
    REQUIRE_OK(p);
    const auto out = (*p)->run({floats({1}, {3})});
    REQUIRE_OK(out);
    const float by = constant ? 2.f : 4.f;
    CHECK((*out)[0].tensor.values<float>()[0] == 3 * by * by * by);
    CHECK((*out)[1].tensor.values<float>()[0] == by);
    const std::vector<Node>& nodes = (*p)->graph().nodes();
    const auto loop = std::find_if(nodes.begin(), nodes.end(), [](const Node& n) { return n.is("loop"); });
    REQUIRE(loop != nodes.end());
    CHECK(loop->attrs.get_int("states") == 1);
    CHECK(loop->subgraphs[0]->inputs().size() == (constant ? 3 : 4));
  }
}

TEST_CASE("onnx: convolution, batch norm and relu become one op with the same values") {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> u(-1, 1);
  auto values = [&](size_t n, float low) {
    std::vector<float> v(n);
    for (float& e : v) e = low + std::abs(u(random));
    return v;
  };
  auto both = [&](size_t n) {
    std::vector<float> v(n);
    for (float& e : v) e = u(random);
    return v;
  };
  const std::string m = model_bytes(graph_proto(
      {node_proto("Conv", {"x", "w"}, {"c"}),
       node_proto("BatchNormalization", {"c", "s", "b", "m", "v"}, {"n"}), node_proto("Relu", {"n"}, {"y"})},
      {tensor_proto("w", {4, 3, 3, 3}, both(108)), tensor_proto("s", {4}, both(4)),
       tensor_proto("b", {4}, both(4)), tensor_proto("m", {4}, both(4)),
       tensor_proto("v", {4}, values(4, 0.5f))},
      {value_proto("x", {-1, 3, 7, 5})}, {value_proto("y", {-1, 4, 5, 3})}));
  const Datum x = floats({2, 3, 7, 5}, both(210));
  auto fused = load(m);
  REQUIRE_OK(fused);
  CHECK((*fused)->graph().nodes().size() == 2);  // and the turn back to (N, C, H, W)
  auto imported = import_onnx_bytes(buffer_of(m), "test.onnx", "");
  REQUIRE_OK(imported);
  PredictorOptions plain;
  plain.threads = 1;
  plain.disabled_passes = {"fuse_epilogues", "channels_last"};
  auto unfused = Predictor::create(std::move(*imported), plain);
  REQUIRE_OK(unfused);
  CHECK((*unfused)->graph().nodes().size() == 3);
  auto a = (*fused)->run({x}), b = (*unfused)->run({x});
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  // Sums of 27 products below 1, scaled by at most 1 / sqrt(0.5): both round each step in f32.
  const double tolerance = 27 * 1.5 * 4 * 0x1p-24;
  for (size_t k = 0; k < 120; ++k)
    CHECK(std::abs((*a)[0].tensor.values<float>()[k] - (*b)[0].tensor.values<float>()[k]) <= tolerance);
}

TEST_CASE("onnx: the batch norm of a layer's rows folds into the layer, of other rows it does not") {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> u(-1, 1);
  const auto some = [&](size_t n, float low = 0) {
    std::vector<float> v(n);
    for (float& e : v) e = low > 0 ? low + std::abs(u(random)) : u(random);
    return v;
  };
  for (const int64_t width : {6, 3}) {  // of the rows that the norm sees: as the layer's, and half of it
    const auto C = static_cast<size_t>(width);
    const std::string m = model_bytes(
        graph_proto({node_proto("MatMul", {"x", "w"}, {"l"}), node_proto("Reshape", {"l", "rows"}, {"r"}),
                     node_proto("BatchNormalization", {"r", "s", "b", "m", "v"}, {"y"})},
                    {tensor_proto("w", {5, 6}, some(30)), ints_proto("rows", {-1, width}),
                     tensor_proto("s", {width}, some(C)), tensor_proto("b", {width}, some(C)),
                     tensor_proto("m", {width}, some(C)), tensor_proto("v", {width}, some(C, 0.5f))},
                    {value_proto("x", {2, 4, 5})}, {value_proto("y", {-1, width})}));
    auto imported = import_onnx_bytes(buffer_of(m), "test.onnx", "");
    REQUIRE_OK(imported);
    PredictorOptions plain;
    plain.threads = 1;
    plain.disabled_passes = {"fuse_epilogues"};
    auto unfused = Predictor::create(std::move(*imported), plain), fused = load(m);
    REQUIRE_OK(fused);
    REQUIRE_OK(unfused);
    CHECK((*unfused)->graph().nodes().size() == 3);
    CHECK((*fused)->graph().nodes().size() == (width == 6 ? 2 : 3));
    const Datum x = floats({2, 4, 5}, some(40));
    auto a = (*fused)->run({x}), b = (*unfused)->run({x});
    REQUIRE_OK(a);
    REQUIRE_OK(b);
    // Sums of 5 products below 1, scaled by at most 1 / sqrt(0.5): both round each step in f32.
    const double tolerance = 5 * 1.5 * 4 * 0x1p-24;
    for (size_t k = 0; k < 48; ++k)
      CHECK(std::abs((*a)[0].tensor.values<float>()[k] - (*b)[0].tensor.values<float>()[k]) <= tolerance);
  }
}

// Constant weights go through kernels, weights that come in as inputs are computed in double.
TEST_CASE("onnx: recurrent layers by kernels equal those in double") {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> u(-0.5f, 0.5f);
  const auto some = [&](int64_t n) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& e : v) e = u(random);
    return v;
  };
  const int64_t T = 5, B = 3, I = 6, H = 10;
  struct Case {
    const char *op, *direction;
    int64_t gates, layout;
    bool bias, lengths, states;
    std::vector<Proto> more;
  };
  const Case cases[] = {
      {"LSTM", "bidirectional", 4, 0, true, true, true, {}},
      {"LSTM", "reverse", 4, 1, true, false, false, {}},
      {"GRU", "bidirectional", 3, 0, true, false, true, {int_attr("linear_before_reset", 1)}},
      {"GRU", "forward", 3, 1, true, true, false, {}},
      {"GRU", "forward", 3, 0, false, false, true, {int_attr("linear_before_reset", 1)}},
      {"RNN", "reverse", 1, 0, true, true, true, {}}};
  for (const Case& c : cases) {
    INFO(c.op << " " << c.direction << " layout " << c.layout);
    const bool lstm = c.gates == 4;
    const int64_t D = std::string(c.direction) == "bidirectional" ? 2 : 1, GH = c.gates * H;
    const std::vector<float> w = some(D * GH * I), r = some(D * GH * H), b = some(D * 2 * GH),
                             x = some(T * B * I), h0 = some(D * B * H), c0 = some(D * B * H);
    std::vector<Proto> attrs = c.more, constants, inputs;
    attrs.push_back(text_attr("direction", c.direction));
    attrs.push_back(int_attr("hidden_size", H));
    attrs.push_back(int_attr("layout", c.layout));
    const std::vector<int64_t> state = c.layout == 1 ? std::vector{B, D, H} : std::vector{D, B, H};
    if (c.lengths) constants.push_back(raw_proto<int32_t>("l", 6, {B}, {5, 0, 3}));
    if (c.states) constants.push_back(tensor_proto("h0", state, h0));
    if (c.states && lstm) constants.push_back(tensor_proto("c0", state, c0));
    std::vector<std::string> names{
        "x", "w", "r", c.bias ? "b" : "", c.lengths ? "l" : "", c.states ? "h0" : ""};
    if (lstm) names.emplace_back(c.states ? "c0" : "");
    const Proto node = node_proto(
        c.op, names, lstm ? std::vector<std::string>{"y", "h", "c"} : std::vector<std::string>{"y", "h"},
        attrs);
    std::vector<Proto> outputs{value_proto("y", {-1, -1, -1, H}), value_proto("h", {-1, -1, H})};
    if (lstm) outputs.push_back(value_proto("c", {-1, -1, H}));
    const std::vector<int64_t> dims = c.layout == 1 ? std::vector{B, T, I} : std::vector{T, B, I};
    const Proto in = value_proto("x", dims);

    std::vector<Proto> all = constants;
    all.push_back(tensor_proto("w", {D, GH, I}, w));
    all.push_back(tensor_proto("r", {D, GH, H}, r));
    std::vector<Proto> given{in, value_proto("w", {D, GH, I}), value_proto("r", {D, GH, H})};
    std::vector<Datum> data{floats(Shape(dims), x), floats({D, GH, I}, w), floats({D, GH, H}, r)};
    if (c.bias) {
      all.push_back(tensor_proto("b", {D, 2 * GH}, b));
      given.push_back(value_proto("b", {D, 2 * GH}));
      data.push_back(floats({D, 2 * GH}, b));
    }
    auto fast = load(model_bytes(graph_proto({node}, all, {in}, outputs)));
    auto exact = load(model_bytes(graph_proto({node}, constants, given, outputs)));
    REQUIRE_OK(fast);
    REQUIRE_OK(exact);
    auto got = (*fast)->run({data[0]}), want = (*exact)->run(data);
    REQUIRE_OK(got);
    REQUIRE_OK(want);
    REQUIRE(got->size() == want->size());
    for (size_t o = 0; o < want->size(); ++o) {
      REQUIRE((*got)[o].tensor.shape() == (*want)[o].tensor.shape());
      const auto g = (*got)[o].tensor.values<float>(), e = (*want)[o].tensor.values<float>();
      for (size_t k = 0; k < e.size(); ++k) {  // five steps of some 20 roundings of values around 1
        INFO("output " << o << " at " << k);
        REQUIRE(std::abs(g[k] - e[k]) <= 5 * 20 * 0x1p-24);
      }
    }
  }
}

TEST_CASE("onnx: an attribute of another type is an error that names it, whoever imports the op") {
  const std::pair<const char*, Proto> nodes[] = {
      {"DequantizeLinear", text_attr("axis", "one")},
      {"QuantizeLinear", ints_attr("block_size", {2, 2})},
      {"Resize", int_attr("mode", 1)},
      {"RoiAlign", text_attr("output_height", "7")},
      {"EyeLike", text_attr("k", "1")},
  };
  for (const auto& [op, attr] : nodes) {
    const Proto node = node_proto(op, {"x", "y", "z"}, {"out"}, {attr});
    const auto model = load(model_bytes(graph_proto(
        {node}, {}, {value_proto("x", {2, 2, 2, 2}), value_proto("y", {2}), value_proto("z", {2})},
        {value_proto("out", {-1})})));
    INFO(op << ": " << model.status().message());
    REQUIRE_FALSE(model.ok());
    CHECK(model.status().message().find("has another type than ONNX gives it") != std::string::npos);
  }
}

TEST_CASE("onnx: functions are inlined, with their own attributes") {
  Proto f;
  f.text(1, "Twice").text(4, "a").text(5, "b").text(6, "axis");
  f.message(
      7, node_proto("Concat", {"a", "a"}, {"b"}, {Proto().text(1, "axis").number(20, 2).text(21, "axis")}));
  f.message(9, Proto().number(2, 17)).text(10, "mine");
  const std::string m =
      model_bytes(graph_proto({node_proto("Twice", {"x"}, {"y"}, {int_attr("axis", 1)}, "mine")}, {},
                              {value_proto("x", {2, 1})}, {value_proto("y", {2, 2})}),
                  17, {f}, {"mine"});
  CHECK(run_one(m, {floats({2, 1}, {1, 2})}) == std::vector<float>{1, 1, 2, 2});
}

TEST_CASE("onnx: what is unknown is named with its node and offset") {
  auto one = [](const Proto& node, int64_t opset = 17) {
    return model_bytes(graph_proto({node}, {}, {value_proto("x", {2})}, {value_proto("y", {2})}), opset);
  };
  std::string e = error_of(one(node_proto("Frobnicate", {"x"}, {"y"})));
  CHECK(contains(e, "node 'the_Frobnicate'"));
  CHECK(contains(e, "at byte "));
  CHECK(contains(e, "op Frobnicate"));
  CHECK(
      contains(error_of(one(node_proto("Relu", {"x"}, {"y"}, {int_attr("speed", 9)}))), "attribute 'speed'"));
  CHECK(contains(error_of(one(node_proto("Relu", {"x"}, {"y"}), 99)), "opset 99"));
  CHECK(contains(error_of(one(node_proto("Gelu", {"x"}, {"y"}), 17)), "later ones have"));
  CHECK(contains(error_of(one(node_proto("Relu", {"x"}, {"y"}, {}, "com.acme"))), "com.acme"));
  CHECK(contains(error_of(one(node_proto("Softmax", {"x"}, {"y"},
                                         {Proto().text(1, "axis").text(4, "one").number(20, 3)}))),
                 "attribute 'axis'"));
}

TEST_CASE("onnx: cycles, missing values, doubled names") {
  auto m = [](const std::vector<Proto>& nodes) {
    return model_bytes(graph_proto(nodes, {}, {value_proto("x", {2})}, {value_proto("y", {2})}));
  };
  CHECK(contains(error_of(m({node_proto("Add", {"x", "b"}, {"a"}), node_proto("Relu", {"a"}, {"b"}),
                             node_proto("Relu", {"b"}, {"y"})})),
                 "a cycle"));
  CHECK(contains(error_of(m({node_proto("Relu", {"nowhere"}, {"y"})})), "'nowhere'"));
  CHECK(contains(error_of(m({node_proto("Relu", {"x"}, {"z"})})), "output 'y'"));
  CHECK(contains(error_of(m({node_proto("Relu", {"x"}, {"y"}), node_proto("Neg", {"x"}, {"y"})})),
                 "computed twice"));
  Proto f;  // a function that calls itself
  f.text(1, "F").text(4, "a").text(5, "b").text(10, "mine").message(9, Proto().number(2, 17));
  f.message(7, node_proto("F", {"a"}, {"b"}, {}, "mine"));
  CHECK(contains(error_of(model_bytes(graph_proto({node_proto("F", {"x"}, {"y"}, {}, "mine")}, {},
                                                  {value_proto("x", {2})}, {value_proto("y", {2})}),
                                      17, {f}, {"mine"})),
                 "calls itself"));
}

TEST_CASE("onnx: sizes that lie") {
  auto with = [](const Proto& t) {
    return model_bytes(graph_proto({node_proto("Add", {"x", "t"}, {"y"})}, {t}, {value_proto("x", {1})},
                                   {value_proto("y", {1})}));
  };
  const int64_t big = int64_t{1} << 40;
  CHECK(contains(error_of(with(tensor_proto("t", {big, big}, {1}))), "overflows"));
  CHECK(contains(error_of(with(tensor_proto("t", {big}, {1}))), "'t'"));
  CHECK(contains(error_of(with(tensor_proto("t", {-1}, {1}))), "'t'"));
  CHECK(contains(error_of(with(tensor_proto("t", {1, 1, 1, 1, 1, 1, 1, 1, 1}, {1}))), "axes"));
  // Asking for more memory than allowed is an error of the run.
  const std::string m = model_bytes(graph_proto({node_proto("Expand", {"x", "s"}, {"y"})},
                                                {ints_proto("s", {1 << 20, 1 << 20})},
                                                {value_proto("x", {1})}, {value_proto("y", {1, 1})}));
  auto p = load(m);
  REQUIRE_OK(p);
  auto r = (*p)->run({floats({1}, {1})});
  REQUIRE_FALSE(r.ok());
  CHECK(r.status().code() == StatusCode::kResourceExhausted);
  // External data must lie beside the model.
  Proto t;
  t.number(1, 1).number(2, 1).text(8, "t").number(14, 1).message(
      13, Proto().text(1, "location").text(2, "../secret"));
  CHECK(contains(error_of(with(t)), "secret"));
}

TEST_CASE("onnx: truncated at every byte and flipped at random, never a crash") {
  std::mt19937 random(11);
  for (const std::string& good : {linear_model(), loop_model()}) {
    REQUIRE_OK(load(good));
    for (size_t n = 0; n < good.size(); ++n) {
      auto p = load(good.substr(0, n));
      if (p.ok()) (void)(*p)->run({floats({1, 2}, {1, 2})});
    }
    for (int k = 0; k < 3000; ++k) {
      std::string bad = good;
      for (int f = 0; f < 1 + k % 3; ++f) bad[random() % bad.size()] ^= static_cast<char>(1u << random() % 8);
      auto p = load(bad);
      if (!p.ok() || (*p)->inputs().size() != 1) continue;
      (void)(*p)->run({(*p)->inputs()[0].dims.size() == 2 ? floats({1, 2}, {1, 2}) : floats({1}, {1})});
    }
  }
}
