// Ops that call kernels for f32 and narrower floats (OpDef::by_kernels): at odd shapes these give the same as
// evaluation, of the same dtype and of the same values as f64.
#include <cmath>
#include <cstring>
#include <random>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"
#include "tests/import/onnx_predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT

using Ints = std::vector<int64_t>;

struct PathCase {
  const char* op;
  std::vector<Shape> inputs;
  Attrs attrs;
  Tensor last = {};  // one more operand, of a dtype of its own
  size_t results = 1;
  std::string label() const {
    std::string s = op;
    for (const Shape& i : inputs) s += cat(" ", i.to_string());
    for (const char* name : {"equation", "pads", "strides", "axes", "axis"}) {
      if (attrs.has(name) && std::string(name) == "equation") s += cat(" ", attrs.get_string(name));
      else if (attrs.has(name)) s += cat(" with ", name);
    }
    return s;
  }
};

Tensor as(const Tensor& t, DType dtype) {
  Tensor y = must(allocate_elements(t.shape(), dtype));
  dispatch_float(t.format().dtype(), [&](auto from) {
    using T = typename decltype(from)::type;
    dispatch_float(dtype, [&](auto to) {
      using U = typename decltype(to)::type;
      for (int64_t k = 0; k < t.numel(); ++k) {
        mutable_elements<U>(y)[k] =
            Element<U>::store(static_cast<typename Element<U>::Compute>(Element<T>::load(elements<T>(t)[k])));
      }
    });
  });
  return y;
}

Result<std::vector<Datum>> evaluated(const PathCase& c, const std::vector<Tensor>& inputs,
                                     decltype(evaluate_op)* run = compute_op) {
  Node node;
  node.op = find_op(c.op);
  REQUIRE(node.op != nullptr);
  node.attrs = c.attrs;
  node.outputs.resize(c.results);
  std::vector<Datum> data(inputs.begin(), inputs.end());
  if (c.last.defined()) data.emplace_back(c.last);
  std::vector<const Datum*> in;
  for (const Datum& d : data) in.push_back(&d);
  return run(node, in, EvalOptions{});
}

std::vector<Tensor> random_inputs(const PathCase& c) {
  std::vector<Tensor> in;
  uint32_t seed = 7;
  for (const Shape& s : c.inputs) {
    Tensor t = must(allocate_elements(s, DType::kF32));
    const auto v = random_floats(static_cast<size_t>(s.numel()), seed++);
    std::copy(v.begin(), v.end(), mutable_elements<float>(t));
    in.push_back(std::move(t));
  }
  return in;
}

void check(const PathCase& c) {
  INFO(c.label());
  const std::vector<Tensor> values = random_inputs(c);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    INFO(dtype_name(dtype));
    std::vector<Tensor> narrow, wide;
    for (const Tensor& t : values) {
      narrow.push_back(as(t, dtype));
      wide.push_back(as(narrow.back(), DType::kF64));
    }
    const auto plain = evaluated(c, wide, evaluate_op);
    REQUIRE_OK(plain);
    const Tensor& expected = (*plain)[0].tensor;
    const double step = dtype == DType::kF32 ? 2e-6 : dtype == DType::kF16 ? 1e-3 : 8e-3;
    double largest = 1e-3;
    for (int64_t k = 0; k < expected.numel(); ++k)
      largest = std::max(largest, std::abs(elements<double>(expected)[k]));
    for (const auto run : {evaluate_op, compute_op}) {
      const auto got = evaluated(c, narrow, run);
      REQUIRE_OK(got);
      const Tensor& y = (*got)[0].tensor;
      REQUIRE(y.shape() == expected.shape());
      REQUIRE(y.format().dtype() == dtype);
      double worst = 0;
      for (int64_t k = 0; k < y.numel(); ++k)
        worst = std::max(worst, std::abs(element_as_double(y, k) - elements<double>(expected)[k]));
      CHECK(worst <= step * largest);
    }
  }
}

Tensor integers(const Shape& shape, const Ints& v) {
  Tensor t = must(allocate_elements(shape, DType::kI64));
  std::copy(v.begin(), v.end(), mutable_elements<int64_t>(t));
  return t;
}

}  // namespace

TEST_CASE("op paths: products, einsum") {
  for (const PathCase& c :
       {PathCase{"matmul", {{3, 5, 7}, {7, 11}}, {}}, PathCase{"matmul", {{2, 3, 17, 9}, {3, 9, 5}}, {}},
        PathCase{"matmul", {{13, 1, 16}, {13, 16, 33}}, {}},
        PathCase{"matmul", {{4, 1, 3, 6}, {5, 6, 2}}, {}}, PathCase{"matmul", {{9}, {9, 4}}, {}},
        PathCase{"matmul", {{2, 5, 9}, {9}}, {}}})
    check(c);
  const auto sum = [](const char* equation, std::vector<Shape> inputs) {
    check({"einsum", std::move(inputs), {{"equation", std::string(equation)}}});
  };
  sum("bhqd,bhkd->bhqk", {{2, 3, 5, 7}, {2, 3, 4, 7}});
  sum("bij,jk->bik", {{3, 5, 9}, {9, 17}});
  sum("ij,kj->ki", {{5, 6}, {3, 6}});
  sum("ijk,jil->kl", {{3, 4, 5}, {4, 3, 6}});
  sum("bi,bi->b", {{4, 33}, {4, 33}});
  sum("i,j->ji", {{4}, {5}});
  sum("...ij->...ji", {{2, 3, 4, 5}});
  sum("...i,...ij->...j", {{2, 3, 4}, {3, 4, 5}});
  sum("ab,bc,cd->ad", {{2, 3}, {3, 4}, {4, 5}});
  sum("abc,b->ac", {{2, 3, 4}, {3}});
  sum("ij,j->", {{3, 4}, {4}});
  sum("ij,ij->i", {{3, 4}, {1, 4}});
  sum("ij,ij->i", {{3, 1}, {3, 4}});
  sum("a,ab->b", {{1}, {3, 4}});
  sum("ii->i", {{4, 4}});
  sum("ii,ij->j", {{4, 4}, {4, 3}});
  sum("ijk->k", {{3, 4, 5}});
  sum("ij,kl->", {{3, 4}, {2, 5}});
}

// Video: frames are channels of the kernels, which have two axes.
TEST_CASE("op paths: convolution over three axes") {
  const auto conv = [](std::vector<Shape> inputs, Attrs attrs) {
    check({"conv", std::move(inputs), std::move(attrs)});
  };
  conv({{2, 3, 4, 6, 5}, {7, 3, 2, 3, 3}}, {});
  conv({{2, 3, 4, 6, 5}, {7, 3, 3, 3, 3}, {7}}, {{"pads", Ints{1, 1, 1, 1, 1, 1}}});
  conv({{1, 4, 7, 6, 5}, {6, 4, 2, 2, 3}, {6}},
       {{"strides", Ints{2, 2, 1}}, {"activation", std::string("relu")}});
  conv({{1, 4, 7, 6, 5}, {6, 4, 3, 1, 1}}, {{"pads", Ints{2, 0, 0, 3, 0, 0}}, {"dilations", Ints{2, 1, 1}}});
  conv({{1, 6, 3, 4, 4}, {6, 1, 3, 3, 3}}, {{"group", int64_t{6}}, {"pads", Ints{1, 1, 1, 1, 1, 1}}});
  conv({{1, 6, 3, 4, 4}, {4, 3, 1, 2, 2}, {4}}, {{"group", int64_t{2}}});
  conv({{1, 1, 2, 3, 3}, {1, 1, 2, 3, 3}}, {});
  conv({{1, 8, 450, 20, 20}, {2, 8, 3, 1, 1}}, {});  // more frames than one piece takes
  // Filters that are constant are packed once.
  const auto x = random_floats(2 * 3 * 4 * 5 * 5, 1), w = random_floats(4 * 3 * 2 * 3 * 3, 2);
  const Proto node = node_proto("Conv", {"x", "w"}, {"y"}, {ints_attr("pads", {0, 1, 1, 1, 1, 1})});
  const Proto in = value_proto("x", {2, 3, 4, 5, 5});
  const auto constant = open_test_model(
      model_bytes(graph_proto({node}, {tensor_proto("w", {4, 3, 2, 3, 3}, w)}, {in}, {name_proto("y")})));
  const auto given = open_test_model(
      model_bytes(graph_proto({node}, {}, {in, value_proto("w", {4, 3, 2, 3, 3})}, {name_proto("y")})));
  const auto a = constant->run(std::vector<Datum>{input({2, 3, 4, 5, 5}, x)}),
             b = given->run(std::vector<Datum>{input({2, 3, 4, 5, 5}, x), input({4, 3, 2, 3, 3}, w)});
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  CHECK(std::memcmp((*a)[0].tensor.data(), (*b)[0].tensor.data(), (*a)[0].tensor.bytes()) == 0);
}

// As PyTorch rounds up: EfficientNet's last pool has a window of all its channels.
TEST_CASE("op paths: a pool whose window is larger than the image") {
  const Attrs attrs{{"kernel_shape", Ints{9, 9}}, {"strides", Ints{9, 9}}, {"ceil_mode", int64_t{1}}};
  check({"average_pool", {{2, 3, 2, 3}}, attrs});
  check({"max_pool", {{2, 3, 2, 3}}, attrs});
  const PathCase c{"average_pool", {{1, 1, 2, 3}}, attrs};
  const std::vector<Tensor> in = random_inputs(c);
  double sum = 0;
  for (int64_t k = 0; k < 6; ++k) sum += static_cast<double>(elements<float>(in[0])[k]);
  const auto out = evaluated(c, in);
  REQUIRE_OK(out);
  CHECK(std::abs(static_cast<double>(elements<float>((*out)[0].tensor)[0]) - sum / 6) < 1e-6);
  CHECK_FALSE(
      evaluated({"average_pool", {{1, 1, 2, 3}}, {{"kernel_shape", Ints{9, 9}}, {"strides", Ints{9, 9}}}}, in)
          .ok());
}

TEST_CASE("op paths: transposed convolution") {
  const auto conv = [](std::vector<Shape> inputs, Attrs attrs) {
    check({"conv_transpose", std::move(inputs), std::move(attrs)});
  };
  conv({{2, 4, 5, 7}, {4, 3, 3, 3}}, {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
  conv({{2, 4, 5, 7}, {4, 3, 3, 3}, {3}},
       {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"output_padding", Ints{1, 1}}});
  conv({{1, 4, 5, 6}, {4, 2, 4, 4}, {4}},
       {{"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"group", int64_t{2}}});
  conv({{1, 4, 5, 6}, {4, 3, 2, 3}, {3}}, {{"strides", Ints{3, 4}}});
  conv({{1, 4, 5, 6}, {4, 3, 5, 5}}, {{"pads", Ints{2, 1, 0, 3}}});
  conv({{1, 4, 5, 6}, {4, 3, 1, 2}}, {{"pads", Ints{1, 2, 1, 2}}});  // pads beyond the filter
  conv({{1, 6, 9}, {6, 4, 5}, {4}}, {{"strides", Ints{3}}, {"auto_pad", std::string("SAME_UPPER")}});
  conv({{1, 4, 6, 5}, {4, 3, 3, 3}}, {{"strides", Ints{2, 3}}, {"output_shape", Ints{14, 19}}});
  conv({{1, 3, 4, 4}, {3, 2, 3, 3}}, {{"strides", Ints{2, 1}}, {"dilations", Ints{1, 2}}});
}

TEST_CASE("op paths: pools of planes") {
  for (const char* op : {"max_pool", "average_pool"}) {
    const auto pool = [&](const Shape& x, Attrs attrs) { check({op, {x}, std::move(attrs)}); };
    pool({2, 3, 9, 11}, {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
    pool({1, 3, 8, 10}, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}});
    pool({1, 3, 8, 10}, {{"kernel_shape", Ints{3, 2}}, {"strides", Ints{1, 3}}, {"pads", Ints{2, 0, 0, 1}}});
    pool({1, 2, 9, 9}, {{"kernel_shape", Ints{2, 3}},
                        {"dilations", Ints{3, 2}},
                        {"pads", Ints{1, 1, 1, 1}},
                        {"count_include_pad", int64_t{1}}});
    pool({1, 2, 8, 7}, {{"kernel_shape", Ints{3, 3}},
                        {"strides", Ints{2, 2}},
                        {"ceil_mode", int64_t{1}},
                        {"count_include_pad", int64_t{1}},
                        {"pads", Ints{1, 1, 0, 0}}});
    pool({2, 5, 21}, {{"kernel_shape", Ints{4}}, {"strides", Ints{3}}});
    pool({1, 2, 4, 5, 6}, {{"kernel_shape", Ints{2, 2, 2}}});
  }
  check({"global_average_pool", {{2, 5, 7, 7}}, {}});
  check({"global_max_pool", {{2, 5, 3, 7}}, {}});
  // A NaN is the maximum of its windows, and of no other.
  Tensor x = must(allocate_elements({1, 1, 1, 9}, DType::kF32));
  std::fill_n(mutable_elements<float>(x), 9, 1.f);
  mutable_elements<float>(x)[4] = NAN;
  const PathCase c{"max_pool", {}, {{"kernel_shape", Ints{1, 3}}}};
  const auto y = evaluated(c, {x});
  REQUIRE_OK(y);
  for (int64_t k = 0; k < 7; ++k)
    CHECK(std::isnan(element_as_double((*y)[0].tensor, k)) == (k >= 2 && k <= 4));
}

TEST_CASE("op paths: reductions, norms, running sums") {
  for (const char* op : {"reduce_sum", "reduce_mean", "reduce_max"}) {
    for (const Ints& axes : {Ints{-1}, Ints{2, 3}, Ints{0}, Ints{1, 2}, Ints{0, 2}, Ints{}})
      check({op, {{2, 3, 5, 301}}, {{"axes", axes}}});
    check({op, {{3, 7}}, {{"axes", Ints{1}}, {"keepdims", int64_t{0}}}});
  }
  check({"log_softmax", {{5, 333}}, {}});
  check({"instance_norm", {{2, 3, 5, 7}, {3}, {3}}, {}});
  check({"group_norm", {{2, 6, 5, 7}, {6}, {6}}, {{"num_groups", int64_t{2}}}});
  check({"group_norm", {{2, 6, 5, 7}, {2}, {2}}, {{"num_groups", int64_t{2}}}});
  for (const bool reverse : {false, true}) {
    for (const int64_t axis : {0, 1, 2}) {
      check({"cum_sum",
             {{3, 4, 300}},
             {{"reverse", int64_t{reverse}}, {"exclusive", int64_t{reverse}}},
             integers({}, {axis})});
    }
  }
}

TEST_CASE("op paths: elements") {
  for (const char* op : {"relu", "leaky_relu", "hard_swish", "hard_sigmoid", "neg", "abs", "square", "floor",
                         "exp", "tanh", "sigmoid", "gelu", "erf"})
    check({op, {{3, 37}}, {}});
  for (const char* op : {"add", "sub", "mul", "max", "min"}) {
    for (const std::vector<Shape>& in : {std::vector<Shape>{{3, 37}, {3, 37}},
                                         {{3, 37}, {37}},
                                         {{3, 37}, {3, 1}},
                                         {{37}, {1, 3, 37}},
                                         {{3, 1}, {1, 5}}})
      check({op, in, {}});
  }
  Ints at;
  for (int64_t k = 0; k < 4 * 9; ++k) at.push_back(k * 5 % 3 - (k % 2) * 3);
  check({"gather_elements", {{3, 9}}, {{"axis", int64_t{0}}}, integers({4, 9}, at)});
  check({"gather_elements", {{4, 3}}, {{"axis", int64_t{1}}}, integers({4, 9}, at)});
  check({"gather_elements", {{4, 3, 5}}, {{"axis", int64_t{1}}}, integers({2, 6, 3}, at)});
}

TEST_CASE("op paths: indices of long rows, and one that is outside") {
  Ints at;
  for (int64_t k = 0; k < 2 * 1100; ++k) at.push_back(k * 7 % 1300 - (k % 2) * 1300);
  PathCase c{"gather_elements", {{2, 1300}}, {{"axis", int64_t{1}}}, integers({2, 1100}, at)};
  const std::vector<Tensor> in = random_inputs(c);
  const auto y = evaluated(c, in);
  REQUIRE_OK(y);
  for (int64_t k = 0; k < 2 * 1100; ++k) {
    const int64_t i = at[static_cast<size_t>(k)], column = i < 0 ? i + 1300 : i;
    REQUIRE(element_as_double((*y)[0].tensor, k) == element_as_double(in[0], k / 1100 * 1300 + column));
  }
  at[2100] = 5000;  // the first that is outside is named
  for (const int64_t bad : {1300, -1301}) {
    at[1999] = bad;
    c.last = integers({2, 1100}, at);
    const auto refused = evaluated(c, in);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().message().find(cat("index ", bad, " is outside an axis of 1300")) !=
          std::string::npos);
  }
}

TEST_CASE("op paths: attention with nothing but a mask") {
  check({"head_attention", {{2, 4, 5, 8}, {2, 4, 7, 8}, {2, 4, 7, 6}}, {}});
  check({"head_attention", {{2, 4, 5, 8}, {2, 2, 5, 8}, {2, 2, 5, 6}}, {{"is_causal", int64_t{1}}}});
  check({"head_attention",
         {{2, 5, 32}, {2, 7, 16}, {2, 7, 12}},
         {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}, {"scale", 0.3}}});
  check({"head_attention", {{2, 4, 5, 8}, {2, 4, 7, 8}, {2, 4, 7, 6}, {5, 7}}, {}});
  check({"head_attention",
         {{3, 1, 5, 8}, {3, 1, 7, 8}, {3, 1, 7, 6}, {3, 1, 1, 7}},
         {{"is_causal", int64_t{1}}}});
  // As it is spelled in primitives: batches, heads and columns of one serve all.
  const Attrs spelled{{"layout", std::string("bshd")}, {"spelled", int64_t{1}}, {"scale", 0.3}};
  check({"head_attention", {{2, 5, 4, 8}, {1, 7, 4, 8}, {2, 7, 1, 6}, {2, 1, 5, 1}}, spelled});
  check({"head_attention", {{1, 20, 1, 8}, {3, 7, 4, 8}, {3, 7, 4, 8}, {7}}, spelled});
  // A query that may see no key attends nothing, though others may.
  Tensor mask = must(allocate_elements({2, 3}, DType::kBool));
  for (int64_t k = 0; k < 6; ++k) mutable_elements<uint8_t>(mask)[k] = k >= 3;
  PathCase c{"head_attention", {{1, 1, 2, 8}, {1, 1, 3, 8}, {1, 1, 3, 4}}, {}, mask};
  check(c);
  const auto y = evaluated(c, random_inputs(c));
  REQUIRE_OK(y);
  for (int64_t k = 0; k < 4; ++k) CHECK(element_as_double((*y)[0].tensor, k) == 0);
}

TEST_CASE("op paths: a row of a product does not depend on the others") {
  struct Rows {
    PathCase one, many;
  };
  for (const Rows& r : {Rows{{"matmul", {{1, 64}, {64, 33}}, {}}, {"matmul", {{9, 64}, {64, 33}}, {}}},
                        Rows{{"einsum", {{1, 64}, {33, 64}}, {{"equation", std::string("ik,jk->ij")}}},
                             {"einsum", {{9, 64}, {33, 64}}, {{"equation", std::string("ik,jk->ij")}}}}}) {
    const auto in = random_inputs(r.many);
    Tensor first = must(allocate_elements(r.one.inputs[0], DType::kF32));
    std::copy_n(elements<float>(in[0]), first.numel(), mutable_elements<float>(first));
    const auto all = evaluated(r.many, in), alone = evaluated(r.one, {first, in[1]});
    REQUIRE_OK(all);
    REQUIRE_OK(alone);
    CHECK(std::memcmp((*all)[0].tensor.data(), (*alone)[0].tensor.data(), (*alone)[0].tensor.bytes()) == 0);
  }
}

TEST_CASE("op paths: dynamic quantization rounds quotients") {
  Tensor x = must(allocate_elements({20011}, DType::kF32));
  const auto v = random_floats(20011, 5);
  std::copy(v.begin(), v.end(), mutable_elements<float>(x));
  const PathCase c{"dynamic_quantize_linear", {}, {}, {}, 3};
  const auto y = evaluated(c, {x});
  REQUIRE_OK(y);
  const float low = *std::min_element(v.begin(), v.end()), high = *std::max_element(v.begin(), v.end());
  const auto scale = static_cast<float>(element_as_double((*y)[1].tensor, 0));
  const auto zero = static_cast<float>(element_as_double((*y)[2].tensor, 0));
  CHECK(scale == (std::max(high, 0.f) - std::min(low, 0.f)) / 255.f);
  CHECK(zero == std::nearbyint(-std::min(low, 0.f) / scale));
  for (size_t k = 0; k < v.size(); ++k) {
    const float q = std::clamp(std::nearbyint(v[k] / scale) + zero, 0.f, 255.f);
    REQUIRE(element_as_double((*y)[0].tensor, static_cast<int64_t>(k)) == static_cast<double>(q));
  }
}

TEST_CASE("op paths: products of 8-bit integers with constant weights are those with weights as an input") {
  constexpr int kU8 = 2, kI8 = 3;
  std::mt19937 random(5);
  const auto bytes = [&](int64_t n, int type, int low = 0, int high = 255) {
    std::vector<int8_t> v(static_cast<size_t>(n));
    for (int8_t& b : v)
      b = static_cast<int8_t>(std::uniform_int_distribution<int>(low, high)(random) -
                              (type == kI8 ? 128 : 0));
    return v;
  };
  const auto tensor = [](const std::vector<int8_t>& v, const Ints& dims, int type) {
    Tensor t =
        must(allocate_elements(Shape(std::span<const int64_t>(dims)), type == kU8 ? DType::kU8 : DType::kI8));
    std::memcpy(t.mutable_data(), v.data(), v.size());
    return t;
  };
  struct Product {
    const char* op;
    Ints x, w;
    int64_t zeros;  // of the weights: 0 (none), 1 or one per filter
    std::vector<Proto> attrs;
  };
  const std::vector<Product> products = {
      {"ConvInteger", {2, 3, 7, 5}, {9, 3, 3, 3}, 1, {ints_attr("pads", {1, 1, 0, 2})}},
      {"ConvInteger", {1, 70, 4, 4}, {5, 70, 1, 1}, 0, {}},
      {"ConvInteger",
       {1, 4, 9, 9},
       {6, 4, 3, 2},
       6,
       {ints_attr("strides", {2, 1}), ints_attr("dilations", {2, 1})}},
      {"ConvInteger", {2, 3, 11}, {4, 3, 3}, 1, {ints_attr("pads", {1, 1})}},
      {"ConvInteger", {1, 4, 6, 6}, {4, 2, 3, 3}, 1, {int_attr("group", 2)}},
      {"MatMulInteger", {5, 33}, {33, 17}, 1, {}},
      {"MatMulInteger", {2, 3, 8}, {8, 4}, 0, {}},
      {"MatMulInteger", {7, 20}, {20, 16}, 16, {}},
      {"MatMulInteger", {9}, {9, 3}, 1, {}},
  };
  for (const Product& p : products) {
    for (const int x_type : {kU8, kI8}) {
      for (const int w_type : {kU8, kI8}) {
        INFO(p.op << " x " << x_type << " w " << w_type << " zeros " << p.zeros);
        const auto numel = [](const Ints& d) { return Shape(std::span<const int64_t>(d)).numel(); };
        const auto x = bytes(numel(p.x), x_type), w = bytes(numel(p.w), w_type), x_zero = bytes(1, x_type),
                   w_zero = bytes(std::max<int64_t>(p.zeros, 1), w_type);
        const Ints zero_dims = p.zeros > 1 ? Ints{p.zeros} : Ints{};
        std::vector<std::string> in{"x", "w", "x_zero"};
        if (p.zeros > 0) in.emplace_back("w_zero");
        const auto model = [&](bool constant) {
          std::vector<Proto> constants{raw_proto("x_zero", x_type, {}, x_zero)},
              inputs{value_proto("x", p.x, x_type)};
          if (constant) constants.push_back(raw_proto("w", w_type, p.w, w));
          else inputs.push_back(value_proto("w", p.w, w_type));
          if (p.zeros > 0) constants.push_back(raw_proto("w_zero", w_type, zero_dims, w_zero));
          return open_test_model(model_bytes(
              graph_proto({node_proto(p.op, in, {"y"}, p.attrs)}, constants, inputs, {name_proto("y")})));
        };
        const Datum dx = tensor(x, p.x, x_type), dw = tensor(w, p.w, w_type);
        const auto fast = model(true)->run(std::vector<Datum>{dx}),
                   plain = model(false)->run(std::vector<Datum>{dx, dw});
        REQUIRE_OK(fast);
        REQUIRE_OK(plain);
        const Tensor &a = (*fast)[0].tensor, &b = (*plain)[0].tensor;
        REQUIRE(a.shape() == b.shape());
        REQUIRE(a.format() == b.format());
        CHECK(std::memcmp(a.data(), b.data(), a.bytes()) == 0);
      }
    }
  }
}
