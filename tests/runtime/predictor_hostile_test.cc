// Networks that were damaged, and inputs that are not what a network wants: an error or an answer, never a
// crash, in the plan before the run and in the run. Readers have tests of their own (tests/import).
#include <fstream>
#include <random>

#include "engine/base/format.h"
#include "engine/runtime/predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT

Proto ints_attr(const std::string& name, const std::vector<int64_t>& values) {
  Proto p;
  p.text(1, name);
  for (int64_t v : values) p.number(8, v);
  return p.number(20, 7);
}

// One of most of what networks are made of: x (batch, 4, H, W).
std::string network() {
  const auto w = [](const char* name, std::vector<int64_t> dims) {
    size_t n = 1;
    for (int64_t d : dims) n *= static_cast<size_t>(d);
    return tensor_proto(name, dims, random_floats(n, static_cast<uint32_t>(n)));
  };
  return model_bytes(graph_proto(
      {node_proto("Conv", {"x", "w1"}, {"a"},
                  {ints_attr("pads", {1, 1, 1, 1}), ints_attr("strides", {2, 2})}),
       node_proto("BatchNormalization", {"a", "g", "b", "m", "v"}, {"c"}),
       node_proto("Relu", {"c"}, {"d"}),
       node_proto("Conv", {"d", "w2"}, {"e"}, {int_attr("group", 8), ints_attr("pads", {1, 1, 1, 1})}),
       node_proto("Add", {"e", "d"}, {"f"}),
       node_proto("MaxPool", {"f"}, {"h"}, {ints_attr("kernel_shape", {2, 2}), ints_attr("strides", {2, 2})}),
       node_proto("ConvTranspose", {"h", "w3"}, {"i"}, {ints_attr("strides", {2, 2})}),
       node_proto("Concat", {"i", "f"}, {"j"}, {int_attr("axis", 1)}),
       node_proto("Transpose", {"j"}, {"k"}, {ints_attr("perm", {0, 2, 3, 1})}),
       node_proto("Reshape", {"k", "target"}, {"l"}),
       node_proto("LayerNormalization", {"l", "lg"}, {"n"}),
       node_proto("MatMul", {"n", "w4"}, {"q"}),
       node_proto("Split", {"q"}, {"q1", "q2"}, {int_attr("axis", 2)}),
       node_proto("Transpose", {"q2"}, {"q3"}, {ints_attr("perm", {0, 2, 1})}),
       node_proto("MatMul", {"q1", "q3"}, {"r"}),
       node_proto("Softmax", {"r"}, {"s"}),
       node_proto("MatMul", {"s", "q1"}, {"t"}),
       node_proto("Slice", {"t", "zero", "four", "one"}, {"u"}),
       node_proto("ReduceMean", {"u"}, {"o"}, {ints_attr("axes", {1}), int_attr("keepdims", 0)}),
       node_proto("Gemm", {"o", "w5"}, {"p"}),
       node_proto("Sigmoid", {"p"}, {"y"})},
      {w("w1", {8, 4, 3, 3}), w("w2", {8, 1, 3, 3}), w("w3", {8, 8, 2, 2}), w("w4", {16, 16}),
       w("w5", {8, 3}), w("g", {8}), w("b", {8}), w("m", {8}),
       tensor_proto("v", {8}, std::vector<float>(8, 1)), w("lg", {16}), ints_proto("target", {0, -1, 16}),
       ints_proto("zero", {0}), ints_proto("four", {4}), ints_proto("one", {1})},
      {value_proto("x", {-1, 4, 8, 8})}, {value_proto("y", {-1, 3})}));
}

Result<std::unique_ptr<Predictor>> open_bytes(const std::string& bytes) {
  const std::string path = temp_dir() + "/hostile.onnx";
  std::ofstream(path, std::ios::binary) << bytes;
  PredictorOptions options;
  options.threads = 1;
  options.tensor_limit = 16 << 20;
  return Predictor::open(path, options);
}

Tensor image(const Shape& shape, float value) {
  Tensor t = must(Tensor::zeros(shape, Format::f32()));
  for (float& x : t.mutable_values<float>()) x = value;
  return t;
}

int flipped(int count, uint32_t seed) {
  const std::string good = network();
  const auto whole = open_bytes(good);
  REQUIRE_OK(whole);
  REQUIRE_OK((*whole)->plan(std::vector<Shape>{{2, 4, 8, 8}}));
  REQUIRE_OK((*whole)->run(std::vector<Datum>{image({2, 4, 8, 8}, 0.5f)}));
  std::mt19937 random(seed);
  int ran = 0;
  for (int k = 0; k < count; ++k) {
    std::string bad = good;
    for (int f = 0; f < 1 + k % 3; ++f) bad[random() % bad.size()] ^= static_cast<char>(1u << random() % 8);
    const auto p = open_bytes(bad);
    if (!p.ok()) continue;
    std::vector<Datum> in;
    std::vector<Shape> shapes;
    for (const IoSpec& spec : (*p)->inputs()) {
      std::vector<int64_t> dims;
      for (const IoDim& d : spec.dims) dims.push_back(d.value < 0 ? 2 : std::min<int64_t>(d.value, 64));
      if (dims.size() > Shape::kMaxRank) dims.clear();
      auto t = allocate_elements(Shape(dims), spec.dtype, 1 << 24);
      if (!t.ok()) break;
      shapes.push_back(t->shape());
      in.emplace_back(std::move(*t));
    }
    (void)(*p)->plan(shapes);
    ran += (*p)->run(in).ok();
  }
  return ran;
}

}  // namespace

TEST_CASE("a network with flipped bits plans and runs, or says why not") {
  CHECK(flipped(400, 1) > 100);  // most flips are in weights
}
TEST_CASE("a network with flipped bits, many times", "[slow][.]") { CHECK(flipped(20000, 2) > 5000); }

TEST_CASE("a network cut at every byte is refused or runs") {
  const std::string good = network();
  for (size_t n = 0; n < good.size(); n += n < 600 ? 1 : 7) {
    const auto p = open_bytes(good.substr(0, n));
    if (p.ok()) (void)(*p)->run(std::vector<Datum>{image({1, 4, 8, 8}, 1)});
  }
}

TEST_CASE("images without pixels, of NaN and infinities, and of the wrong size") {
  const auto p = open_bytes(network());
  REQUIRE_OK(p);
  // NaN spreads over what it touches; the next image is not touched.
  Tensor two = image({2, 4, 8, 8}, 0.25f);
  two.mutable_values<float>()[0] = std::nanf("");
  const auto mixed = (*p)->run(std::vector<Datum>{two});
  REQUIRE_OK(mixed);
  const auto clean = (*p)->run(std::vector<Datum>{image({2, 4, 8, 8}, 0.25f)});
  REQUIRE_OK(clean);
  for (int k = 3; k < 6; ++k) {
    CHECK((*mixed)[0].tensor.values<float>()[static_cast<size_t>(k)] ==
          (*clean)[0].tensor.values<float>()[static_cast<size_t>(k)]);
  }
  CHECK(std::isnan((*mixed)[0].tensor.values<float>()[0]));
  REQUIRE_OK((*p)->run(std::vector<Datum>{image({1, 4, 8, 8}, INFINITY)}));
  const auto none = (*p)->run(std::vector<Datum>{image({0, 4, 8, 8}, 0)});
  if (none.ok()) CHECK((*none)[0].tensor.numel() == 0);
  for (const Shape& wrong : {Shape{1, 4, 0, 8}, Shape{1, 3, 8, 8}, Shape{4, 8, 8}, Shape{1, 4, 8, 9}}) {
    const auto r = (*p)->run(std::vector<Datum>{image(wrong, 0)});
    REQUIRE(r.status().code() == StatusCode::kInvalidArgument);
    CHECK(r.status().message().find("'x'") != std::string::npos);
  }
}

TEST_CASE("inputs that disagree about the batch are refused by name") {
  const auto p = open_bytes(model_bytes(graph_proto({node_proto("Add", {"a", "b"}, {"y"})}, {},
                                                    {value_proto("a", {-1, 3}), value_proto("b", {-1, 3})},
                                                    {value_proto("y", {-1, 3})})));
  REQUIRE_OK(p);
  const auto r = (*p)->run(std::vector<Datum>{image({2, 3}, 1), image({1, 3}, 1)});
  REQUIRE_FALSE(r.ok());
  CHECK(r.status().message().find("'batch' is 1 here and 2 in another input") != std::string::npos);
}

TEST_CASE("sizes that overflow in the middle of a network are errors of plan and run") {
  const int64_t big = int64_t{1} << 31;
  const auto p = open_bytes(
      model_bytes(graph_proto({node_proto("Expand", {"x", "s"}, {"a"}), node_proto("Relu", {"a"}, {"y"})},
                              {ints_proto("s", {big, big, big, 1})}, {value_proto("x", {-1})},
                              {value_proto("y", {-1, -1, -1, -1})})));
  REQUIRE_OK(p);
  CHECK_FALSE((*p)->plan(std::vector<Shape>{{1}}).ok());
  const auto r = (*p)->run(std::vector<Datum>{image({1}, 1)});
  REQUIRE_FALSE(r.ok());
  CHECK(r.status().message().find("overflows") != std::string::npos);
}

TEST_CASE("layers that sum nothing give their bias") {
  // A convolution without channels divided by their number; others left what memory held.
  struct Case {
    const char* op;
    std::vector<int64_t> x, w;
    std::vector<int64_t> y;
  };
  const std::vector<float> bias = {1, 2, -3};
  for (const Case& c : std::vector<Case>{{"Conv", {2, 0, 5, 5}, {3, 0, 3, 3}, {2, 3, 3, 3}},
                                         {"Conv", {2, 0, 5, 5}, {3, 0, 1, 1}, {2, 3, 5, 5}},
                                         {"Conv", {2, 0, 5}, {3, 0, 3}, {2, 3, 3}},
                                         {"Conv", {1, 0, 4, 4, 4}, {3, 0, 2, 2, 2}, {1, 3, 3, 3, 3}},
                                         {"ConvTranspose", {2, 0, 4, 4}, {0, 3, 2, 2}, {2, 3, 5, 5}},
                                         {"Gemm", {2, 0}, {0, 3}, {2, 3}}}) {
    INFO(c.op << " " << c.x.size());
    for (const bool constant : {true, false}) {
      std::vector<Proto> weights = {tensor_proto("b", {3}, bias)}, inputs = {value_proto("x", c.x)};
      if (constant) weights.push_back(tensor_proto("w", c.w, {}));
      else inputs.push_back(value_proto("w", c.w));
      const std::string path = temp_dir() + "/nothing.onnx";
      std::ofstream(path, std::ios::binary) << model_bytes(
          graph_proto({node_proto(c.op, {"x", "w", "b"}, {"c"}), node_proto("Relu", {"c"}, {"y"})}, weights,
                      inputs, {value_proto("y", c.y)}));
      const auto p = Predictor::open(path);
      REQUIRE_OK(p);
      std::vector<Datum> in = {Datum(must(Tensor::zeros(Shape(c.x), Format::f32())))};
      if (!constant) in.emplace_back(must(Tensor::zeros(Shape(c.w), Format::f32())));
      const auto out = (*p)->run(std::move(in));
      REQUIRE_OK(out);
      const Tensor& y = (*out)[0].tensor;
      REQUIRE(y.shape() == Shape(c.y));
      const int64_t inner = y.numel() / c.y[0] / 3;
      bool same = true;
      for (int64_t k = 0; k < y.numel(); ++k)
        same = same && y.values<float>()[static_cast<size_t>(k)] ==
                           std::max(0.f, bias[static_cast<size_t>(k / inner % 3)]);
      CHECK(same);
    }
  }
}

TEST_CASE("8-bit layers that sum nothing give their zero point") {
  const auto bytes = [](const char* name, const std::vector<int64_t>& dims, int type,
                        const std::string& raw) {
    Proto t;
    for (int64_t d : dims) t.number(1, d);
    return t.number(2, type).text(8, name).text(9, raw);
  };
  constexpr int kF32 = 1, kU8 = 2, kI8 = 3;
  for (const bool conv : {false, true}) {
    const std::vector<int64_t> w = conv ? std::vector<int64_t>{3, 0, 3, 3} : std::vector<int64_t>{0, 3};
    const std::vector<int64_t> x = conv ? std::vector<int64_t>{2, 0, 5, 5} : std::vector<int64_t>{2, 0};
    const float tenth = 0.1f;
    const std::string scale(reinterpret_cast<const char*>(&tenth), sizeof tenth);
    const std::string path = temp_dir() + "/nothing8.onnx";
    std::ofstream(path, std::ios::binary) << model_bytes(graph_proto(
        {node_proto(conv ? "QLinearConv" : "QLinearMatMul", {"x", "s", "z", "w", "s", "wz", "s", "z"},
                    {"y"})},
        {bytes("s", {}, kF32, scale), bytes("z", {}, kU8, "\x05"), bytes("wz", {}, kI8, std::string(1, '\0')),
         bytes("w", w, kI8, "")},
        {value_proto("x", x, kU8)},
        {value_proto("y", conv ? std::vector<int64_t>{2, 3, 3, 3} : std::vector<int64_t>{2, 3}, kU8)}));
    const auto p = Predictor::open(path);
    REQUIRE_OK(p);
    const auto out =
        (*p)->run(std::vector<Datum>{Datum(must(Tensor::zeros(Shape(x), Format::of(DType::kU8))))});
    REQUIRE_OK(out);
    for (const uint8_t y : (*out)[0].tensor.values<uint8_t>()) REQUIRE(y == 5);
  }
}
