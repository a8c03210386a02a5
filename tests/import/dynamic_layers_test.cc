// Layers whose operand is quantized by its range in the run, as quantize_dynamic writes them: the pass
// fuse_dynamic and what follows it.
#include "tests/import/passes_fixture.h"

using namespace oar;
using namespace oar_test;

TEST_CASE(
    "fuse_dynamic: products of operands that are quantized in the run become layers, to the same bits") {
  std::vector<int8_t> w(9 * 16);
  for (size_t k = 0; k < w.size(); ++k) w[k] = static_cast<int8_t>(static_cast<int>(k * 37 % 255) - 127);
  std::vector<uint8_t> u(w.begin(), w.end());
  const std::vector<Proto> constants = {number("s1", 0.01f),
                                        tensor_proto("s16", {16}, random_floats(16, 3)),
                                        tensor_proto("s9", {9, 1}, random_floats(9, 3)),
                                        raw_proto<int8_t>("z0", 3, {}, {0}),
                                        raw_proto<int8_t>("z3", 3, {}, {3}),
                                        raw_proto<uint8_t>("zu", 2, {}, {128}),
                                        raw_proto("w", 3, {9, 16}, w),
                                        raw_proto("u", 2, {9, 16}, u),
                                        tensor_proto("b", {16}, random_floats(16, 5))};
  const Proto relu = node_proto("Relu", {"h"}, {"y"});
  struct Case {
    const char *weight, *zero, *scale;
    std::vector<Proto> more;  // behind "m", the product by both scales
    int layers, left;         // of ops behind the layer and the quantization
    const char* reason = nullptr;
  };
  const Proto add = node_proto("Add", {"b", "m"}, {"h"}), identity = node_proto("Identity", {"m"}, {"y"});
  const std::vector<Case> cases = {
      {"w", "z0", "s1", {add, relu}, 1, 0},
      {"w", "", "s16", {add, node_proto("HardSwish", {"h"}, {"y"})}, 1, 0},
      {"w",
       "",
       "s16",
       {add, node_proto("Tanh", {"x"}, {"t"}), node_proto("ReduceSum", {"t"}, {"r"}),
        node_proto("Add", {"h", "r"}, {"y"})},
       1,
       2},
      // A quantization behind it stays one.
      {"w",
       "",
       "s1",
       {node_proto("QuantizeLinear", {"m", "s1", "zu"}, {"q"}),
        node_proto("DequantizeLinear", {"q", "s1", "zu"}, {"y"})},
       1,
       2},
      {"w", "z3", "s1", {identity}, 1, 1},
      {"u", "zu", "s1", {identity}, 1, 1},
      {"u", "", "s16", {add, relu}, 1, 0},
      {"w",
       "zu",
       "s1",
       {identity},
       0,
       0,
       "the weights' zero point is no constant of their type, one for all or per filter"},
      {"w", "z0", "s1", {node_proto("Add", {"m", "f"}, {"y"})}, 0, 0, "others read the sums too"}};
  for (size_t k = 0; k < cases.size(); ++k) {
    INFO("case " << k);
    const Case& c = cases[k];
    const bool turned = k % 2 == 1;
    std::vector<Proto> nodes = {
        node_proto("DynamicQuantizeLinear", {"x"}, {"xq", "xs", "xz"}),
        node_proto("MatMulInteger", {"xq", c.weight, "xz", c.zero}, {"i"}),
        node_proto("Cast", {"i"}, {"f"}, {int_attr("to", 1)}),
        node_proto("Mul",
                   turned ? std::vector<std::string>{c.scale, "xs"} : std::vector<std::string>{"xs", c.scale},
                   {"sc"}),
        node_proto("Mul", turned ? std::vector<std::string>{"sc", "f"} : std::vector<std::string>{"f", "sc"},
                   {"m"})};
    for (const Proto& n : c.more) nodes.push_back(n);
    const std::string m = model(nodes, constants, {5, 9}, {5, 16});
    const auto p = open_without(m, {});
    INFO(p->graph().to_string());
    CHECK(count(*p, "quantized_linear") == c.layers);
    CHECK(count(*p, "matmul_integer") == 1 - c.layers);
    if (c.layers != 0) CHECK(static_cast<int>(p->graph().nodes().size()) == 2 + c.left);
    CHECK(difference(m, image({5, 9}), "fuse_dynamic") == 0);
    if (c.reason == nullptr) continue;
    const auto refusals = passes::explain_dynamic(p->graph());
    REQUIRE(refusals.size() == 1);
    CHECK(refusals[0].reason == c.reason);
  }
}

TEST_CASE("fuse_dynamic: convolutions become layers with what follows them, to the same bits") {
  // What quantize_dynamic writes of `x` and its codes, into `y`.
  const auto layer = [](const std::string& x, const std::string& w, const std::string& zero,
                        const std::string& scale, const std::string& y, std::vector<Proto> attrs = {}) {
    return std::vector<Proto>{
        node_proto("ConvInteger", {x + "q", w, x + "z", zero}, {y + "i"}, std::move(attrs)),
        node_proto("Cast", {y + "i"}, {y + "f"}, {int_attr("to", 1)}),
        node_proto("Mul", {x + "s", scale}, {y + "s"}), node_proto("Mul", {y + "f", y + "s"}, {y})};
  };
  const auto codes = [](const std::string& x) {
    return node_proto("DynamicQuantizeLinear", {x}, {x + "q", x + "s", x + "z"});
  };
  std::vector<uint8_t> u(4 * 4 * 9);
  for (size_t k = 0; k < u.size(); ++k) u[k] = static_cast<uint8_t>(k * 37 % 256);
  const std::vector<int8_t> w(u.begin(), u.end());
  const std::vector<uint8_t> few(u.begin(), u.begin() + 36);
  const std::vector<Proto> constants = {
      number("s1", 0.01f),
      tensor_proto("s4", {4, 1, 1}, random_floats(4, 3)),
      tensor_proto("row", {4}, random_floats(4, 3)),
      tensor_proto("b", {1, 4, 1, 1}, random_floats(4, 5)),
      raw_proto<uint8_t>("z", 2, {}, {119}),
      raw_proto<int8_t>("z4", 3, {4}, {3, 0, -9, 1}),
      raw_proto("u", 2, {4, 4, 3, 3}, u),
      raw_proto("w", 3, {4, 4, 3, 3}, w),
      raw_proto("each", 2, {4, 1, 3, 3}, few),
      raw_proto<uint8_t>("pairs", 2, {4, 2, 3, 3}, {u.begin(), u.begin() + 72}),
      raw_proto<uint8_t>("point", 2, {4, 4, 1, 1}, {u.begin(), u.begin() + 16})};
  const Proto pads = ints_attr("pads", {1, 1, 1, 1}), add = node_proto("Add", {"m", "b"}, {"h"}),
              relu = node_proto("Relu", {"h"}, {"y"}), identity = node_proto("Identity", {"m"}, {"y"});
  struct Case {
    std::vector<std::vector<Proto>> parts;
    int layers, left;  // of ops beside layers, quantizations, and turns of the input and the result
    const char* reason = nullptr;
  };
  const std::vector<Case> cases = {
      {{{codes("x")}, layer("x", "u", "z", "s1", "m", {pads}), {add, relu}}, 1, 0},
      {{{codes("x")}, layer("x", "w", "z4", "s4", "m", {pads}), {add, node_proto("HardSwish", {"h"}, {"y"})}},
       1,
       0},
      {{{codes("x")}, layer("x", "u", "", "s4", "m", {pads}), {identity}}, 1, 1},
      {{{codes("x")}, layer("x", "each", "z", "s4", "m", {pads, int_attr("group", 4)}), {add, relu}}, 1, 0},
      // A residual block, whose second layer adds what went into the first; and one whose both sides are
      // layers.
      {{{codes("x")},
        layer("x", "u", "z", "s1", "a", {pads}),
        {node_proto("Relu", {"a"}, {"r"}), codes("r")},
        layer("r", "w", "z4", "s4", "m", {pads}),
        {add, node_proto("Add", {"h", "r"}, {"t"}), node_proto("Relu", {"t"}, {"y"})}},
       2,
       0},
      {{{codes("x")},
        layer("x", "u", "z", "s1", "a", {pads}),
        layer("x", "point", "z", "s1", "m"),
        {node_proto("Add", {"m", "a"}, {"t"}), node_proto("Relu", {"t"}, {"y"})}},
       2,
       0},
      // What is added broadcasts, before the bounds.
      {{{codes("x"), node_proto("GlobalMaxPool", {"x"}, {"g"})},
        layer("x", "u", "z", "s1", "m", {pads}),
        {node_proto("Add", {"m", "g"}, {"t"}), node_proto("Clip", {"t", "", "s1"}, {"y"})}},
       1,
       1},
      {{{codes("x")},
        layer("x", "u", "z", "s1", "a", {pads}),
        {node_proto("GlobalMaxPool", {"a"}, {"g"})},
        layer("x", "point", "z", "s1", "m"),
        {node_proto("Add", {"m", "g"}, {"t"}), node_proto("Relu", {"t"}, {"y"})}},
       2,
       1},
      // Along rows of the image, which are as long as there are channels.
      {{{codes("x")}, layer("x", "u", "z", "s1", "m", {pads}), {node_proto("Add", {"m", "row"}, {"y"})}},
       1,
       1},
      {{{codes("x")}, layer("x", "u", "z", "row", "m", {pads}), {identity}},
       0,
       0,
       "the weights' scale is no f32 constant, one for all or per filter"},
      {{{codes("x")}, layer("x", "pairs", "z", "s1", "m", {pads, int_attr("group", 2)}), {identity}},
       0,
       0,
       "there are groups of several channels"}};
  for (size_t k = 0; k < cases.size(); ++k) {
    INFO("case " << k);
    const Case& c = cases[k];
    std::vector<Proto> nodes;
    for (const auto& part : c.parts) nodes.insert(nodes.end(), part.begin(), part.end());
    const std::string m = model(nodes, constants, {2, 4, 5, 4}, {2, 4, 5, 4});
    const auto p = open_without(m, {});
    INFO(p->graph().to_string());
    CHECK(count(*p, "quantized_conv") == c.layers);
    const std::string said = cat(c.layers, " layers with ranges of the run");
    CHECK((p->summary().find(said) != std::string::npos) == (c.layers != 0));
    const int beside =
        count(*p, "quantized_conv") + count(*p, "dynamic_quantize_linear") + count(*p, "transpose");
    if (c.layers != 0) CHECK(static_cast<int>(p->graph().nodes().size()) == beside + c.left);
    if (c.layers != 0) CHECK(count(*p, "transpose") <= 3);
    for (const char* pass : {"fuse_dynamic", "fuse_quantized_epilogues", "channels_last"}) {
      INFO(pass);
      CHECK(difference(m, image({2, 4, 5, 4}), pass) == 0);
    }
    if (c.reason == nullptr) continue;
    const auto refusals = passes::explain_dynamic(p->graph());
    REQUIRE(refusals.size() == 1);
    CHECK(refusals[0].reason == c.reason);
  }
}
