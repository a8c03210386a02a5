// The passes of ordinary models, one by one: each finds what it looks for, leaves the values, and leaves
// alone what only looks like it. A model is run with all passes and without the one in question.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>

#include "tests/import/passes_fixture.h"

using namespace oar;
using namespace oar_test;

TEST_CASE("fold_evaluated, cse, dce: constants, equal expressions, what nobody needs") {
  const std::string m = model({node_proto("Add", {"a", "b"}, {"c"}), node_proto("Mul", {"x", "c"}, {"p"}),
                               node_proto("Mul", {"x", "c"}, {"q"}), node_proto("Exp", {"x"}, {"unused"}),
                               node_proto("Sub", {"p", "q"}, {"d"}), node_proto("Abs", {"d"}, {"y"})},
                              {number("a", 1), number("b", 2)}, {3}, {3});
  const auto p = open_without(m, {});
  CHECK(count(*p, "add") == 0);
  CHECK(count(*p, "mul") == 1);
  CHECK(count(*p, "exp") == 0);
  for (const char* pass : {"fold_evaluated", "cse", "dce"}) {
    INFO(pass);
    CHECK(difference(m, image({3}), pass) == 0);
  }
}

TEST_CASE("fuse_definitions: gelu, silu, hard swish and layer norm in their spellings") {
  struct Spelling {
    const char* op;
    std::vector<Proto> nodes;
  };
  const std::vector<Proto> constants = {number("r2", std::sqrt(2.f)),
                                        number("ir2", 1 / std::sqrt(2.f)),
                                        number("one", 1),
                                        number("half", 0.5f),
                                        number("two", 2),
                                        number("three", 3),
                                        number("zero", 0),
                                        number("six", 6),
                                        number("eps", 1e-5f),
                                        tensor_proto("g", {8}, random_floats(8, 1)),
                                        tensor_proto("b", {8}, random_floats(8, 2))};
  const auto n = [](const char* op, std::vector<std::string> in, const char* out) {
    return node_proto(op, in, {out});
  };
  const auto mean = [](const char* in, const char* out) {
    return node_proto("ReduceMean", {in}, {out}, {ints_attr("axes", {-1}), int_attr("keepdims", 1)});
  };
  const Spelling spellings[] = {
      {"gelu",
       {n("Div", {"x", "r2"}, "a"), n("Erf", {"a"}, "e"), n("Add", {"e", "one"}, "s"),
        n("Mul", {"x", "s"}, "t"), n("Mul", {"t", "half"}, "y")}},
      {"gelu",
       {n("Mul", {"x", "ir2"}, "a"), n("Erf", {"a"}, "e"), n("Add", {"one", "e"}, "s"),
        n("Mul", {"half", "x"}, "t"), n("Mul", {"t", "s"}, "y")}},
      {"gelu",
       {n("Div", {"x", "two"}, "h"), n("Mul", {"x", "ir2"}, "a"), n("Erf", {"a"}, "e"),
        n("Add", {"e", "one"}, "s"), n("Mul", {"s", "h"}, "y")}},
      {"silu", {n("Sigmoid", {"x"}, "s"), n("Mul", {"s", "x"}, "y")}},
      {"hard_swish",
       {n("Add", {"x", "three"}, "a"), n("Clip", {"a", "zero", "six"}, "c"), n("Mul", {"x", "c"}, "t"),
        n("Div", {"t", "six"}, "y")}},
      {"hard_swish",
       {n("Add", {"three", "x"}, "a"), n("Clip", {"a", "zero", "six"}, "c"), n("Div", {"c", "six"}, "t"),
        n("Mul", {"x", "t"}, "y")}},
      {"layer_norm",
       {mean("x", "m"), n("Sub", {"x", "m"}, "d"), n("Pow", {"d", "two"}, "q"), mean("q", "v"),
        n("Add", {"v", "eps"}, "w"), n("Sqrt", {"w"}, "s"), n("Div", {"d", "s"}, "h"),
        n("Mul", {"h", "g"}, "i"), n("Add", {"i", "b"}, "y")}},
      {"layer_norm",
       {mean("x", "m"), n("Sub", {"x", "m"}, "d"), n("Mul", {"d", "d"}, "q"), mean("q", "v"),
        n("Add", {"eps", "v"}, "w"), n("Sqrt", {"w"}, "s"), n("Div", {"d", "s"}, "h"),
        n("Mul", {"g", "h"}, "i"), n("Add", {"b", "i"}, "y")}},
  };
  for (size_t k = 0; k < std::size(spellings); ++k) {
    INFO(spellings[k].op << " " << k);
    const std::string m = model(spellings[k].nodes, constants, {5, 8}, {5, 8});
    CHECK(count(*open_without(m, {}), spellings[k].op) == 1);
    CHECK(open_without(m, {})->graph().nodes().size() == 1);
    // Values below 3; a dozen roundings and functions good to a few units in the last place.
    CHECK(difference(m, image({5, 8}), "fuse_definitions") < 3e-6);
  }
  // Three where six belongs: not a hard swish.
  const std::string other = model({n("Add", {"x", "three"}, "a"), n("Clip", {"a", "zero", "three"}, "c"),
                                   n("Mul", {"x", "c"}, "t"), n("Div", {"t", "six"}, "y")},
                                  constants, {5, 8}, {5, 8});
  CHECK(count(*open_without(other, {}), "hard_swish") == 0);
}

TEST_CASE("fuse_definitions: the power of two of anything is a square, other powers stay") {
  for (const float power : {2.f, 3.f}) {
    const std::string m = model({node_proto("Pow", {"x", "p"}, {"y"})}, {number("p", power)}, {3, 5}, {3, 5});
    CHECK(count(*open_without(m, {}), "square") == (power == 2 ? 1 : 0));
    CHECK(difference(m, image({3, 5}), "fuse_definitions") < 1e-6);
  }
  // Of a power with an axis of its own the result has one.
  const std::string wide =
      model({node_proto("Pow", {"x", "p"}, {"y"})}, {tensor_proto("p", {1, 1, 1}, {2.f})}, {3, 5}, {1, 3, 5});
  CHECK(count(*open_without(wide, {}), "square") == 0);
}

TEST_CASE("matmul_to_linear, fuse_epilogues: a product with its bias, residual and activation") {
  const std::string m =
      model({node_proto("MatMul", {"x", "w"}, {"p"}), node_proto("Add", {"b", "p"}, {"q"}),
             node_proto("Add", {"q", "x"}, {"r"}), node_proto("Relu", {"r"}, {"y"})},
            {tensor_proto("w", {8, 8}, random_floats(64, 1)), tensor_proto("b", {8}, random_floats(8, 2))},
            {4, 8}, {4, 8});
  const auto p = open_without(m, {});
  CHECK(p->graph().nodes().size() == 1);
  CHECK(count(*p, "linear") == 1);
  for (const char* pass : {"matmul_to_linear", "fuse_epilogues"}) {
    INFO(pass);
    CHECK(difference(m, image({4, 8}), pass) < 16 * 6e-8 * 8);  // sums of 10 terms below 1
  }
  // A value that somebody else reads stays.
  const std::string shared = model({node_proto("MatMul", {"x", "w"}, {"p"}), node_proto("Relu", {"p"}, {"q"}),
                                    node_proto("Mul", {"p", "q"}, {"y"})},
                                   {tensor_proto("w", {8, 8}, random_floats(64, 1))}, {4, 8}, {4, 8});
  CHECK(count(*open_without(shared, {}), "relu") == 1);
}

TEST_CASE("fuse_attention: heads, mask and scale in one call") {
  const int64_t E = 8, H = 2, D = 4, S = 5;
  const auto weight = [&](const char* name, uint32_t seed) {
    return tensor_proto(name, {E, E}, random_floats(static_cast<size_t>(E * E), seed));
  };
  const auto split = [](const std::string& in, const std::string& out, const std::vector<int64_t>& perm) {
    return std::vector<Proto>{node_proto("MatMul", {"x", "w" + in}, {in + "p"}),
                              node_proto("Reshape", {in + "p", "heads"}, {in + "h"}),
                              node_proto("Transpose", {in + "h"}, {out}, {ints_attr("perm", perm)})};
  };
  for (bool late_scale : {false, true}) {
    std::vector<Proto> nodes;
    for (auto& n : split("q", "q", {0, 2, 1, 3})) nodes.push_back(n);
    for (auto& n : split("k", "k", {0, 2, 3, 1})) nodes.push_back(n);
    for (auto& n : split("v", "v", {0, 2, 1, 3})) nodes.push_back(n);
    nodes.push_back(node_proto("MatMul", {"q", "k"}, {"s0"}));
    if (late_scale) nodes.push_back(node_proto("Mul", {"scale", "s0"}, {"s1"}));
    else nodes.push_back(node_proto("Div", {"s0", "two"}, {"s1"}));
    nodes.push_back(node_proto("Add", {"s1", "mask"}, {"s2"}));
    nodes.push_back(node_proto("Softmax", {"s2"}, {"a"}, {int_attr("axis", -1)}));
    nodes.push_back(node_proto("MatMul", {"a", "v"}, {"o"}));
    nodes.push_back(node_proto("Transpose", {"o"}, {"t"}, {ints_attr("perm", {0, 2, 1, 3})}));
    nodes.push_back(node_proto("Reshape", {"t", "joined"}, {"y"}));
    std::vector<float> mask(static_cast<size_t>(S), 0.f);
    mask.back() = -1e9f;
    const std::string m = model(nodes,
                                {weight("wq", 1), weight("wk", 2), weight("wv", 3), number("two", 2),
                                 number("scale", 0.5f), ints_proto("heads", {0, 0, H, D}),
                                 ints_proto("joined", {0, 0, E}), tensor_proto("mask", {1, 1, 1, S}, mask)},
                                {1, S, E}, {1, S, E});
    INFO("scale " << (late_scale ? "multiplied" : "divided"));
    CHECK(count(*open_without(m, {}), "head_attention") == 1);
    CHECK(count(*open_without(m, {}), "softmax") == 0);
    CHECK(difference(m, image({1, S, E}), "fuse_attention") < 2e-6);
  }
}

// As PyTorch's exporters write it: heads of one product cut apart, keys turned with heads as batches by sizes
// that are numbers or read from the keys, both sides scaled, rows without keys made zeros.
TEST_CASE("fuse_attention: scaled_dot_product_attention of PyTorch's exporters") {
  const int64_t E = 8, H = 2, D = 4, S = 5;
  enum class Keys { kNumbers, kRead, kOtherTurn, kTwoTurns };
  const auto attention = [&](Keys keys, bool masked) {
    std::vector<Proto> nodes = {node_proto("MatMul", {"x", "w"}, {"p"}),
                                node_proto("Reshape", {"p", "five"}, {"h"}),
                                node_proto("Transpose", {"h"}, {"t"}, {ints_attr("perm", {2, 0, 3, 1, 4})})};
    for (int64_t k = 0; k < 3; ++k) {
      const std::string name(1, "qkv"[k]);
      nodes.push_back(
          node_proto("Slice", {"t", std::to_string(k), std::to_string(k + 1), "0"}, {name + "1"}));
      nodes.push_back(node_proto("Squeeze", {name + "1", "0"}, {name}));
    }
    if (keys == Keys::kRead) {
      nodes.push_back(node_proto("Shape", {"k"}, {"of k"}));
      nodes.push_back(node_proto("Slice", {"of k", "-1", "far"}, {"last"}));
      nodes.push_back(node_proto("Slice", {"of k", "-2", "-1"}, {"before"}));
      nodes.push_back(node_proto("Slice", {"of k", "near", "-2"}, {"first"}));
      nodes.push_back(node_proto("Concat", {"-1", "before", "last"}, {"three"}, {int_attr("axis", 0)}));
      nodes.push_back(node_proto("Concat", {"first", "last", "before"}, {"four"}, {int_attr("axis", 0)}));
    }
    if (keys == Keys::kTwoTurns) {
      nodes.push_back(node_proto("Transpose", {"k"}, {"kt"}, {ints_attr("perm", {0, 1, 3, 2})}));
    } else {
      nodes.push_back(node_proto("Reshape", {"k", "three"}, {"kb"}));
      nodes.push_back(node_proto("Transpose", {"kb"}, {"kr"}, {ints_attr("perm", {0, 2, 1})}));
      nodes.push_back(node_proto("Reshape", {"kr", "four"}, {"kt"}));
    }
    nodes.push_back(node_proto("Mul", {"q", "root"}, {"qs"}));
    nodes.push_back(node_proto("Mul", {"kt", "root"}, {"ks"}));
    nodes.push_back(node_proto("MatMul", {"qs", "ks"}, {masked ? "s0" : "s"}));
    if (masked) {
      nodes.push_back(node_proto("Where", {"seen", "zero", "hidden"}, {"m"}));
      nodes.push_back(node_proto("Add", {"s0", "m"}, {"s"}));
    }
    nodes.push_back(node_proto("Softmax", {"s"}, {masked ? "a0" : "a"}, {int_attr("axis", -1)}));
    if (masked) {
      nodes.push_back(node_proto("IsNaN", {"a0"}, {"odd"}));
      nodes.push_back(node_proto("Where", {"odd", "zero", "a0"}, {"a"}));
    }
    nodes.push_back(node_proto("MatMul", {"a", "v"}, {"o"}));
    nodes.push_back(node_proto("Transpose", {"o"}, {"b"}, {ints_attr("perm", {0, 2, 1, 3})}));
    nodes.push_back(node_proto("Reshape", {"b", "joined"}, {"y"}));
    std::vector<uint8_t> seen(static_cast<size_t>(S * S));
    for (int64_t i = 0; i < S * S; ++i)
      seen[static_cast<size_t>(i)] = i / S > 0 && i % S <= i / S;  // row 0: none
    std::vector<Proto> constants = {
        tensor_proto("w", {E, 3 * E}, random_floats(static_cast<size_t>(3 * E * E), 3)),
        number("root", 0.7f),
        number("zero", 0),
        number("hidden", -INFINITY),
        raw_proto("seen", 9, {1, 1, S, S}, seen),
        ints_proto("five", {1, S, 3, H, D}),
        ints_proto("joined", {1, S, E}),
        ints_proto("far", {INT64_MAX}),
        ints_proto("near", {INT64_MIN})};
    for (const int64_t k : {-2, -1, 0, 1, 2, 3}) constants.push_back(ints_proto(std::to_string(k), {k}));
    if (keys == Keys::kNumbers || keys == Keys::kOtherTurn) {
      // The other turn is none of keys: rows of S numbers are turned, as many of them as there are.
      constants.push_back(ints_proto(
          "three", keys == Keys::kNumbers ? std::vector<int64_t>{-1, S, D} : std::vector<int64_t>{-1, D, S}));
      constants.push_back(ints_proto("four", {1, H, D, S}));
    }
    return model(nodes, constants, {1, S, E}, {1, S, E});
  };
  for (const Keys keys : {Keys::kNumbers, Keys::kRead, Keys::kOtherTurn, Keys::kTwoTurns}) {
    for (const bool masked : {false, true}) {
      INFO("keys " << static_cast<int>(keys) << ", masked " << masked);
      const std::string m = attention(keys, masked);
      const auto p = open_without(m, {});
      CHECK(count(*p, "head_attention") == (keys == Keys::kOtherTurn ? 0 : 1));
      CHECK(count(*p, "where") == (keys == Keys::kOtherTurn && masked ? 1 : 0));
      CHECK(difference(m, image({1, S, E}), "fuse_attention") < 2e-6);
      const auto y = values(*p, image({1, S, E}));
      CHECK(std::all_of(y.begin(), y.begin() + E, [&](float v) { return (v == 0) == masked; }));
    }
  }
}

TEST_CASE("fold_evaluated: extents that a graph tells of a shape are constants") {
  // The scale of heads whose width the reshape says, as an exporter computes it; the length it reads stays.
  const std::string m = model(
      {node_proto("Reshape", {"x", "heads"}, {"h"}), node_proto("Shape", {"h"}, {"s"}),
       node_proto("Slice", {"s", "-1", "far"}, {"w"}), node_proto("Cast", {"w"}, {"f"}, {int_attr("to", 1)}),
       node_proto("Sqrt", {"f"}, {"r"}), node_proto("Div", {"h", "r"}, {"y"})},
      {ints_proto("heads", {0, -1, 4}), ints_proto("-1", {-1}), ints_proto("far", {INT64_MAX})}, {2, 8},
      {2, 2, 4});
  const auto p = open_without(m, {});
  CHECK(count(*p, "shape_of") == 0);
  CHECK(count(*p, "sqrt") == 0);
  CHECK(difference(m, image({2, 8}), "fold_evaluated") < 1e-6);
}

TEST_CASE("channels_last, winograd: images lie with their channels together, 3x3 windows in fewer products") {
  const std::vector<Proto> pads = {ints_attr("pads", {1, 1, 1, 1})};
  const std::string m = model(
      {node_proto("Conv", {"x", "w1", "b1"}, {"c1"}, pads), node_proto("Relu", {"c1"}, {"r1"}),
       node_proto("Conv", {"r1", "w2"}, {"c2"}, pads), node_proto("Add", {"c2", "r1"}, {"s"}),
       node_proto("MaxPool", {"s"}, {"p"}, {ints_attr("kernel_shape", {2, 2}), ints_attr("strides", {2, 2})}),
       node_proto("GlobalAveragePool", {"p"}, {"y"})},
      {tensor_proto("w1", {16, 3, 3, 3}, random_floats(432, 1)),
       tensor_proto("b1", {16}, random_floats(16, 2)),
       tensor_proto("w2", {16, 16, 3, 3}, random_floats(2304, 3))},
      {2, 3, 10, 13}, {2, 16, 1, 1});
  const auto p = open_without(m, {});
  CHECK(rewrites(*p, "channels_last") == 4);
  CHECK(rewrites(*p, "winograd") == 1);  // the first has three channels
  CHECK(count(*p, "transpose") == 1);    // where the result leaves
  // Sums of 144 products below 1; Winograd's error is some ten times a plain sum's.
  CHECK(difference(m, image({2, 3, 10, 13}), "channels_last") < 1e-4);
  CHECK(difference(m, image({2, 3, 10, 13}), "winograd") < 1e-4);
}

// As exporters of today write a pool of whole images.
TEST_CASE("channels_last: means and maxima over images are pools") {
  const auto over_images = [&](const char* op, int64_t keepdims, bool cast) {
    std::vector<Proto> nodes = {node_proto("Conv", {"x", "w"}, {"c"})};
    if (cast) nodes.push_back(node_proto("Cast", {"c"}, {"i"}, {int_attr("to", 6)}));
    nodes.push_back(
        node_proto(op, {cast ? "i" : "c", "axes"}, {cast ? "r" : "y"}, {int_attr("keepdims", keepdims)}));
    if (cast) nodes.push_back(node_proto("Cast", {"r"}, {"y"}, {int_attr("to", 1)}));
    return model(nodes, {tensor_proto("w", {20, 3, 1, 1}, random_floats(60, 1)), ints_proto("axes", {-1, 2})},
                 {2, 3, 5, 7}, keepdims ? std::vector<int64_t>{2, 20, 1, 1} : std::vector<int64_t>{2, 20});
  };
  for (const int64_t keepdims : {0, 1}) {
    INFO("keepdims " << keepdims);
    const std::string mean = over_images("ReduceMean", keepdims, false);
    CHECK(count(*open_without(mean, {}), "global_average_pool") == 1);
    CHECK(difference(mean, image({2, 3, 5, 7}), "channels_last") < 1e-6);
    const std::string largest = over_images("ReduceMax", keepdims, false);
    CHECK(count(*open_without(largest, {}), "global_max_pool") == 1);
    CHECK(difference(largest, image({2, 3, 5, 7}), "channels_last") < 1e-6);
    const std::string integers = over_images("ReduceMean", keepdims, true);  // pools are of floats
    CHECK(count(*open_without(integers, {}), "reduce_mean") == 1);
    CHECK(difference(integers, image({2, 3, 5, 7}), "channels_last") == 0);
  }
}

TEST_CASE("channels_last: slices, splits, gates and a file's own turns stay with the images") {
  const auto w = tensor_proto("w", {12, 3, 1, 1}, random_floats(36, 1));
  const auto v = tensor_proto("v", {4, 4, 1, 1}, random_floats(16, 2));
  const auto first = node_proto("Conv", {"x", "w"}, {"c"});  // 12 channels of 5 x 7
  const auto check = [&](std::vector<Proto> nodes, std::vector<Proto> constants, int transposes) {
    nodes.insert(nodes.begin(), first);
    constants.insert(constants.end(), {w, v});
    const std::string m = model(nodes, constants, {2, 3, 5, 7}, {2, 4, 5, 7});
    CHECK(count(*open_without(m, {}), "transpose") == transposes);
    CHECK(difference(m, image({2, 3, 5, 7}), "channels_last") < 1e-5);
  };
  // One turn each, where the result leaves.
  check({node_proto("Slice", {"c", "from", "to", "axis"}, {"s"}), node_proto("Conv", {"s", "v"}, {"y"})},
        {ints_proto("from", {2}), ints_proto("to", {-6}), ints_proto("axis", {-3})}, 1);
  check({node_proto("Slice", {"c", "from", "to"}, {"s"}), node_proto("Conv", {"s", "v"}, {"y"})},
        {ints_proto("from", {0, 8}), ints_proto("to", {2, 12})}, 1);
  check({node_proto("Split", {"c", "sizes"}, {"p", "q"}, {int_attr("axis", 1)}),
         node_proto("Conv", {"p", "v"}, {"r"}), node_proto("Split", {"q"}, {"s", "t"}, {int_attr("axis", 1)}),
         node_proto("Sub", {"r", "s"}, {"u"}), node_proto("Mul", {"u", "t"}, {"y"})},
        {ints_proto("sizes", {4, 8})}, 1);
  // A gate of each channel, computed beside the image, and repeated for all its pixels: its turn, and the
  // last.
  check({node_proto("Split", {"c"}, {"p", "q", "r"}, {int_attr("axis", 1)}),
         node_proto("GlobalAveragePool", {"q"}, {"m"}), node_proto("Reshape", {"m", "row"}, {"n"}),
         node_proto("Sigmoid", {"n"}, {"g"}), node_proto("Reshape", {"g", "pixel"}, {"h"}),
         node_proto("Expand", {"h", "image"}, {"i"}), node_proto("Mul", {"p", "i"}, {"j"}),
         node_proto("Conv", {"j", "v"}, {"y"})},
        {ints_proto("row", {2, 4}), ints_proto("pixel", {2, 4, 1, 1}), ints_proto("image", {2, 4, 5, 7})}, 3);
  // A softmax over columns has its kernel where they are last: the image is turned for it, and stays so.
  check({node_proto("Slice", {"c", "from", "to"}, {"s"}),
         node_proto("Softmax", {"s"}, {"y"}, {int_attr("axis", -1)})},
        {ints_proto("from", {0, 8}), ints_proto("to", {2, 12})}, 1);
  // Behind a norm over the channels a file turns back: neither turn is made.
  check({node_proto("Slice", {"c", "from", "to", "axis"}, {"s"}),
         node_proto("Transpose", {"s"}, {"t"}, {ints_attr("perm", {0, 2, 3, 1})}),
         node_proto("LayerNormalization", {"t", "one"}, {"n"}, {int_attr("axis", -1)}),
         node_proto("Transpose", {"n"}, {"u"}, {ints_attr("perm", {0, 3, 1, 2})}),
         node_proto("Conv", {"u", "v"}, {"y"})},
        {ints_proto("from", {0}), ints_proto("to", {4}), ints_proto("axis", {1}),
         tensor_proto("one", {4}, {1.f, 2.f, 3.f, 4.f})},
        1);
}

namespace {

// x f32 -> quantized -> conv(+relu) -> + the quantized input's own branch -> pool -> product -> f32. With
// `zeros` weights are u8, those of a filter with a zero point of their own.
std::string quantized_model(bool relu, int64_t zero_dtype, bool zeros = false) {
  const auto q = [](const std::string& x, const std::string& s, const std::string& out) {
    return node_proto("QuantizeLinear", {x, s, s + "z"}, {out});
  };
  const auto dq = [](const std::string& x, const std::string& s, const std::string& out) {
    return node_proto("DequantizeLinear", {x, s, s + "z"}, {out});
  };
  std::vector<Proto> nodes = {
      q("x", "sx", "xq"), dq("xq", "sx", "xd"),
      node_proto("DequantizeLinear", {"w", "sw", "swz"}, {"wd"}, {int_attr("axis", 0)}),
      node_proto("DequantizeLinear", {"b", "sb"}, {"bd"}, {int_attr("axis", 0)}),
      node_proto("Conv", {"xd", "wd", "bd"}, {"c"}, {ints_attr("pads", {1, 1, 1, 1})})};
  if (relu) nodes.push_back(node_proto("Relu", {"c"}, {"cr"}));
  for (const Proto& n :
       {q(relu ? "cr" : "c", "sy", "cq"), dq("cq", "sy", "cd"), node_proto("Add", {"cd", "xd"}, {"s"}),
        q("s", "sy", "sq"), dq("sq", "sy", "sd"),
        node_proto("MaxPool", {"sd"}, {"p"},
                   {ints_attr("kernel_shape", {2, 2}), ints_attr("strides", {2, 2})}),
        q("p", "sy", "pq"), dq("pq", "sy", "pd"), node_proto("Flatten", {"pd"}, {"f"}), q("f", "sy", "fq"),
        dq("fq", "sy", "fd"), dq("m", "sm", "md"), node_proto("MatMul", {"fd", "md"}, {"y"})}) {
    nodes.push_back(n);
  }
  std::vector<int8_t> w(4 * 4 * 9), m(36 * 5);
  std::vector<int32_t> b = {100, -200, 300, 0};
  std::vector<float> sw = {0.01f, 0.02f, 0.015f, 0.03f}, sb(4);
  for (size_t k = 0; k < w.size(); ++k) w[k] = static_cast<int8_t>(static_cast<int>(k * 37 % 255) - 127);
  for (size_t k = 0; k < m.size(); ++k) m[k] = static_cast<int8_t>(static_cast<int>(k * 91 % 255) - 127);
  for (size_t k = 0; k < 4; ++k) sb[k] = sw[k] * 0.0078125f;
  const int64_t weights = zeros ? 2 : 3;  // u8, i8
  const auto zero = [&](const std::string& name, int v) {
    return raw_proto<uint8_t>(name, zero_dtype, {}, {static_cast<uint8_t>(v)});
  };
  return model(
      nodes,
      {number("sx", 0.0078125f), zero("sxz", zero_dtype == 2 ? 128 : -3), number("sy", 0.0625f),
       zero("syz", zero_dtype == 2 ? 100 : 5), tensor_proto("sw", {4}, sw),
       raw_proto<int8_t>("swz", weights, {4},
                         zeros ? std::vector<int8_t>{126, 3, -128, -1} : std::vector<int8_t>(4)),
       raw_proto("w", weights, {4, 4, 3, 3}, w), raw_proto("b", 6, {4}, b), tensor_proto("sb", {4}, sb),
       number("sm", 0.01f), raw_proto<int8_t>("smz", weights, {}, {static_cast<int8_t>(zeros ? 120 : 0)}),
       raw_proto("m", weights, {36, 5}, m)},
      {1, 4, 6, 6}, {1, 5});
}

}  // namespace

TEST_CASE("fuse_quantized: layers between quantizations compute in integers") {
  for (const int64_t zero_dtype : {2, 3}) {  // u8, i8
    for (const bool relu : {false, true}) {
      INFO("dtype " << zero_dtype << " relu " << relu);
      const std::string m = quantized_model(relu, zero_dtype);
      const auto p = open_without(m, {});
      CHECK(count(*p, "quantized_conv") == 1);
      CHECK(count(*p, "quantized_add") == 0);
      CHECK(rewrites(*p, "fuse_quantized_sums") == 1);
      CHECK(count(*open_without(m, {"fuse_quantized_sums"}), "quantized_add") == 1);
      CHECK(difference(m, image({1, 4, 6, 6}), "fuse_quantized_sums") == 0);
      CHECK(count(*p, "quantized_linear") == 1);
      CHECK(count(*p, "conv") + count(*p, "matmul") + count(*p, "linear") + count(*p, "add") == 0);
      // Floats round sums that integers have exactly; a result near the middle of two integers may then
      // differ by one step, which the next layers carry on: one of 36 values by 0.0625 times a weight
      // below 1.27.
      CHECK(difference(m, image({1, 4, 6, 6}), "fuse_quantized") <= 0.0625 * 1.27 + 1e-4);
    }
  }
}

TEST_CASE("fuse_quantized: layers whose weights are u8 or have zero points compute in integers") {
  for (const bool relu : {false, true}) {
    const std::string m = quantized_model(relu, 2, true);
    const auto p = open_without(m, {});
    CHECK(count(*p, "quantized_conv") == 1);
    CHECK(rewrites(*p, "fuse_quantized_sums") == 1);
    CHECK(count(*p, "quantized_linear") == 1);
    CHECK(count(*p, "conv") + count(*p, "matmul") + count(*p, "linear") + count(*p, "add") == 0);
    CHECK(difference(m, image({1, 4, 6, 6}), "fuse_quantized_sums") == 0);
    // As above; a weight is below 2.55.
    CHECK(difference(m, image({1, 4, 6, 6}), "fuse_quantized") <= 0.0625 * 2.55 + 1e-4);
  }
}

TEST_CASE("fuse_quantized: a depthwise convolution computes in integers, one of groups does not") {
  for (const int64_t channels_of_group : {1, 2}) {
    const int64_t C = 6, group = C / channels_of_group;
    std::vector<int8_t> w(static_cast<size_t>(C * channels_of_group * 9));
    for (size_t k = 0; k < w.size(); ++k) w[k] = static_cast<int8_t>(static_cast<int>(k * 37 % 255) - 127);
    const std::string m = model(
        {node_proto("QuantizeLinear", {"x", "sx", "z"}, {"xq"}),
         node_proto("DequantizeLinear", {"xq", "sx", "z"}, {"xd"}),
         node_proto("DequantizeLinear", {"w", "sw"}, {"wd"}, {int_attr("axis", 0)}),
         node_proto("Conv", {"xd", "wd"}, {"c"}, {int_attr("group", group), ints_attr("pads", {1, 1, 1, 1})}),
         node_proto("QuantizeLinear", {"c", "sy", "z"}, {"cq"}),
         node_proto("DequantizeLinear", {"cq", "sy", "z"}, {"y"})},
        {number("sx", 0.0078125f), number("sy", 0.0625f), raw_proto<uint8_t>("z", 2, {}, {128}),
         tensor_proto("sw", {C}, {0.01f, 0.02f, 0.015f, 0.03f, 0.01f, 0.012f}),
         raw_proto("w", 3, {C, channels_of_group, 3, 3}, w)},
        {1, C, 7, 6}, {1, C, 7, 6});
    const auto p = open_without(m, {});
    CHECK(count(*p, "quantized_conv") == (channels_of_group == 1 ? 1 : 0));
    // Sums below 2^24 are exact in f32 as well; a result at the middle of two steps may differ by one of
    // 1/16.
    CHECK(difference(m, image({1, C, 7, 6}), "fuse_quantized") <= 0.0625 + 1e-6);
  }
}

TEST_CASE(
    "fuse_quantized_epilogues: bias, residual, activation and quantization go into layers of integers") {
  // Steps of results: 1/32. What the two spellings round differently is a few units in the last place, which
  // may move a result over the border of a step.
  const auto q = [](const std::string& x, const std::string& out) {
    return node_proto("QuantizeLinear", {x, "s", "z"}, {out});
  };
  const auto dq = [](const std::string& x, const std::string& out) {
    return node_proto("DequantizeLinear", {x, "s", "z"}, {out});
  };
  std::vector<int8_t> w(9 * 16);
  for (size_t k = 0; k < w.size(); ++k) w[k] = static_cast<int8_t>(static_cast<int>(k * 37 % 255) - 127);
  const std::vector<Proto> constants = {number("s", 0.03125f),
                                        raw_proto<uint8_t>("z", 2, {}, {120}),
                                        number("sw", 0.01f),
                                        raw_proto("w", 3, {9, 16}, w),
                                        raw_proto("wd", 3, {16, 1, 3, 3}, w),
                                        tensor_proto("b", {16}, random_floats(16, 5))};
  const auto dense = [&](std::vector<Proto> more, const std::string& result) {
    std::vector<Proto> nodes = {q("x", "xq"), dq("xq", "xd"),
                                node_proto("DequantizeLinear", {"w", "sw"}, {"wf"}),
                                node_proto("MatMul", {"xd", "wf"}, {"m"})};
    for (Proto& n : more) nodes.push_back(std::move(n));
    nodes.push_back(node_proto("Identity", {result}, {"y"}));
    return model(nodes, constants, {5, 9}, {5, 16});
  };
  struct Case {
    std::string model;
    int rewrites, left;  // ops that stay beside the layer, the input's quantization and the identity
  };
  const Proto bias = node_proto("Add", {"m", "b"}, {"h"});
  const std::vector<Case> cases = {
      {dense({bias}, "h"), 1, 0},
      {dense({bias, node_proto("HardSwish", {"h"}, {"a"}), q("a", "aq"), dq("aq", "ad")}, "ad"), 3, 1},
      {dense({bias, node_proto("Relu", {"h"}, {"a"}), q("a", "aq"), dq("aq", "ad")}, "ad"), 3, 1},
      {dense({node_proto("Sigmoid", {"m"}, {"a"})}, "a"), 1, 0},
      // The same residual for both: one product becomes the other's.
      {dense({bias, node_proto("Tanh", {"xd"}, {"t"}), node_proto("ReduceSum", {"t"}, {"r"}),
              node_proto("Add", {"h", "r"}, {"a"})},
             "a"),
       2, 3},
      // Another reads the sum: nothing may go behind it.
      {dense({bias, node_proto("Tanh", {"h"}, {"t"}), node_proto("Add", {"h", "t"}, {"a"})}, "a"), 1, 2}};
  for (size_t k = 0; k < cases.size(); ++k) {
    INFO("case " << k);
    const auto p = open_without(cases[k].model, {});
    INFO(p->graph().to_string());
    CHECK(count(*p, "quantized_linear") == 1);
    CHECK(rewrites(*p, "fuse_quantized_epilogues") == cases[k].rewrites);
    CHECK(static_cast<int>(p->graph().nodes().size()) == 3 + cases[k].left);
    CHECK(difference(cases[k].model, image({5, 9}), "fuse_quantized_epilogues") <= 0.03125 + 1e-5);
  }
  // A depthwise convolution, and one whose result others read as floats.
  for (const bool shared : {false, true}) {
    std::vector<Proto> nodes = {q("x", "xq"),
                                dq("xq", "xd"),
                                node_proto("DequantizeLinear", {"wd", "sw"}, {"wf"}),
                                node_proto("Conv", {"xd", "wf"}, {"c"}, {int_attr("group", 16)}),
                                node_proto("HardSwish", {"c"}, {"h"}),
                                q("h", "hq"),
                                dq("hq", "hd")};
    nodes.push_back(shared ? node_proto("Add", {"hd", "h"}, {"y"}) : node_proto("Identity", {"hd"}, {"y"}));
    const std::string m = model(nodes, constants, {1, 16, 6, 6}, {1, 16, 4, 4});
    const auto p = open_without(m, {});
    CHECK(count(*p, "hard_swish") == 0);
    CHECK(count(*p, "quantize_linear") == (shared ? 2 : 1));
    CHECK(difference(m, image({1, 16, 6, 6}), "fuse_quantized_epilogues") <= 0.03125 + 1e-5);
  }
}

TEST_CASE("fold_evaluated: weights of 8 bits that no kernel takes as such become floats once") {
  Graph g;
  OpWriter w(g);
  const Val weights = w.constant(must(allocate_elements({1024, 1024}, DType::kI8)), "w");
  std::fill_n(mutable_elements<int8_t>(g.value(weights.id).constant), 1 << 20, int8_t{3});
  const Val numbers = w.op("dequantize_linear", {weights, w.float_scalar(0.5)});
  const Val wide = w.op("expand", {w.float_scalar(1), w.ints({4, 1 << 20})});
  g.add_output("y", numbers.id);
  g.add_output("z", wide.id);
  REQUIRE_OK(w.status());
  const auto folded = passes::fold_evaluated(g);
  REQUIRE_OK(folded);
  CHECK(*folded == 1);  // not the expanded one
  const Value& y = g.value(g.outputs()[0].value);
  REQUIRE(y.kind == ValueKind::kConstant);
  CHECK(y.constant.values<float>()[77] == 1.5f);
}

// CPU seconds that the passes take of `build(graph, n)`, the best of three; `nodes` are left.
template <class Build>
double pass_seconds(const Build& build, int n, int nodes) {
  double best = 1e9;
  for (int k = 0; k < 3; ++k) {
    Graph g;
    build(g, n);
    const std::clock_t start = std::clock();
    REQUIRE_OK(run_passes(g, tensor_passes(), {}));
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    CHECK(g.nodes().size() == static_cast<size_t>(nodes));
  }
  return best;
}

TEST_CASE("what a model takes to load grows with its nodes, not with their square") {
  // `n` users of one value that differ in an attribute, as many equal ones, and constants to be folded.
  const auto users = [](Graph& g, int n) {
    OpWriter w(g);
    const Val x{g.add_input("x", TensorType::unknown())};
    std::vector<Val> parts;
    for (int i = 0; i < n; ++i) {
      parts.push_back(w.op("leaky_relu", {x}, {{"alpha", 1.0 / (i + 2)}}));
      parts.push_back(w.op("relu", {x}));
      parts.push_back(w.op("add", {x, w.op("neg", {w.float_scalar(i)})}));
    }
    g.add_output("y", w.op("concat", std::move(parts), {{"axis", int64_t{0}}}).id);
    REQUIRE(w.status().ok());
  };
  // `n` layers in a row, each with an activation that it takes and a result that leaves the graph.
  const auto layers = [](Graph& g, int n) {
    OpWriter w(g);
    auto filters = Tensor::allocate({4, 4}, Format::f32());
    REQUIRE_OK(filters);
    std::fill_n(filters->mutable_values<float>().data(), 16, 0.25f);
    const Val weight{g.add_constant("w", std::move(*filters))};
    Val x{g.add_input("x", TensorType::unknown())};
    for (int i = 0; i < n; ++i) {
      x = w.op("sigmoid", {w.op("matmul", {x, weight})});
      g.add_output(cat("y", i), x.id);
    }
    REQUIRE(w.status().ok());
  };
  // Eight times as much: a square would take 64 times as long.
  CHECK(pass_seconds(users, 16000, 2 * 16000 + 2) < 24 * pass_seconds(users, 2000, 2 * 2000 + 2));
  CHECK(pass_seconds(layers, 16000, 16000) < 24 * pass_seconds(layers, 2000, 2000));
}

TEST_CASE("every pass of ordinary models has been named here") {
  const std::set<std::string> tested = {"fuse_quantized",
                                        "fuse_dynamic",
                                        "fuse_quantized_sums",
                                        "fold_evaluated",
                                        "cse",
                                        "sizes_as_attributes",
                                        "fuse_definitions",
                                        "fuse_quantized_epilogues",
                                        "matmul_to_linear",
                                        "fuse_attention",
                                        "fuse_epilogues",
                                        "channels_last",
                                        "winograd",
                                        "dce"};
  std::set<std::string> all;
  for (const Pass& p : tensor_passes()) all.insert(p.name);
  CHECK(all == tested);
}
