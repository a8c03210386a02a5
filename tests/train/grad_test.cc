// Every op's gradient against differences to second order, at odd shapes, with broadcasts, and without rows.
#include <set>

#include "engine/graph/evaluate.h"
#include "engine/graph/passes/typed.h"
#include "tests/train/gradient_check.h"

namespace {
using namespace oar;
using Ints = std::vector<int64_t>;

struct Operand {
  Ints dims;
  double low = -1.7, high = 1.7;
  int64_t indices = 0;  // integers in [0, indices) instead
  bool none = false;
  std::vector<int64_t> values = {};  // these integers instead
  bool fixed = false;                // nobody wants its gradient
  bool constant = false;             // nor is it an input
  DType dtype = DType::kI32;         // of integers
};
Operand in(Ints dims, double low, double high) { return {std::move(dims), low, high}; }
Operand index(Ints dims, int64_t n) { return {std::move(dims), 0, 0, n}; }
Operand codes(Ints dims, int64_t n) {
  Operand o = index(std::move(dims), n);
  o.dtype = DType::kU8;
  return o;
}
Operand numbers(Ints values) {
  return {{static_cast<int64_t>(values.size())}, 0, 0, 0, false, std::move(values)};
}
Operand number(int64_t v) { return {{}, 0, 0, 0, false, {v}}; }
const Operand kNone{{}, 0, 0, 0, true};
Operand fixed(Ints dims, double low, double high) { return {std::move(dims), low, high, 0, false, {}, true}; }
Operand constant(Operand o) {
  o.constant = o.fixed = true;
  return o;
}

struct Row {
  const char* op;
  Attrs attrs;
  std::vector<Operand> operands;
  int order = 2;
  size_t result = 0;
  double bound = 1e-7;
};
Attrs over(Ints axes, int64_t keep) { return {{"axes", std::move(axes)}, {"keepdims", keep}}; }
Attrs one(const char* name, AttrValue v) { return {{name, std::move(v)}}; }

const std::vector<Row>& table() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> r;
    for (const char* op : {"neg", "exp", "square", "sigmoid", "erf", "floor"})
      r.push_back({op, {}, {{{3, 5}}}});
    for (const char* op : {"abs",  "sign",       "ceil",         "round",      "relu",     "silu",
                           "gelu", "elu",        "celu",         "selu",       "softplus", "softsign",
                           "mish", "leaky_relu", "hard_sigmoid", "hard_swish", "identity", "contiguous",
                           "atan", "asinh",      "sinh",         "cosh",       "tan"}) {
      r.push_back({op, {}, {in({2, 5}, -1.23, 1.19)}});
    }
    for (const char* op : {"log", "sqrt", "rsqrt", "reciprocal"}) r.push_back({op, {}, {in({3, 5}, 0.5, 2)}});
    for (const char* op : {"acos", "asin", "atanh"}) r.push_back({op, {}, {in({3, 5}, -0.7, 0.7)}});
    r.push_back({"acosh", {}, {in({3, 5}, 1.5, 3)}});
    for (const char* op : {"tanh", "sin", "cos"}) r.push_back({op, {}, {{{3, 5}}}, 4});
    r.push_back({"gelu", {}, {{{2, 3}}}, 4});
    r.push_back({"gelu", one("approximate", std::string("tanh")), {{{2, 3}}}, 4});
    r.push_back({"silu", one("alpha", 1.7), {{{2, 3}}}});
    r.push_back({"swiglu", {}, {{{3, 5}}, {{3, 5}}}, 3});
    r.push_back({"swiglu", one("act", std::string("gelu_tanh")), {{{3, 5}}, {{3, 5}}}});
    r.push_back({"shrink", {}, {in({3, 5}, -1.23, 1.19)}});
    r.push_back({"thresholded_relu", {}, {in({3, 5}, -1.5, 2.1)}});
    r.push_back({"clip", {}, {{{3, 5}}, in({}, -1, -0.9), in({}, 0.8, 0.9)}});
    r.push_back({"clip", {}, {{{3, 5}}, kNone, in({}, 0.8, 0.9)}});
    r.push_back({"prelu", {}, {{{3, 5}}, {{5}}}});
    r.push_back({"prelu", {}, {in({2, 3, 4}, -1.3, 1.2), {{3}}}});
    for (const char* op : {"add", "sub", "mul"}) {
      r.push_back({op, {}, {{{3, 5}}, {{3, 5}}}, 4});
      r.push_back({op, {}, {{{5}}, {{2, 3, 5}}}});
      r.push_back({op, {}, {{{2, 3, 1}}, {{1, 5}}}});
      r.push_back({op, {}, {{{2, 3}}, {{}}}});
    }
    for (const char* op : {"add", "sub", "mul"})
      r.push_back({op, one("axis", int64_t{1}), {{{2, 3, 4}}, {{3}}}});
    r.push_back({"div", one("axis", int64_t{0}), {{{2, 3, 4}}, in({2, 3}, 0.7, 2)}});
    r.push_back({"max", one("axis", int64_t{2}), {{{2, 3, 4}}, in({4}, -1.61, 1.57)}});
    r.push_back({"min", one("axis", int64_t{1}), {{{2, 3, 4}}, in({3}, -1.61, 1.57)}});
    r.push_back({"pow", one("axis", int64_t{1}), {in({2, 3, 4}, 0.5, 2), {{3}}}});
    r.push_back({"div", {}, {{{3, 5}}, in({5}, 0.7, 2)}});
    r.push_back({"div", {}, {{{1, 5}}, in({3, 1}, 0.7, 2)}});
    for (const char* op : {"max", "min"}) {
      r.push_back({op, {}, {{{3, 5}}, in({5}, -1.61, 1.57)}});
      r.push_back({op, {}, {{{3, 1}}, in({2, 1, 5}, -1.5, 1.7)}});
    }
    r.push_back({"pow", {}, {in({3, 5}, 0.5, 2), {{5}}}});
    r.push_back({"pow", {}, {{{3, 5}}, fixed({}, 2, 2)}});
    r.push_back({"where", {}, {{{3, 5}, 0, 0, 2}, {{3, 5}}, {{5}}}});
    for (const char* op : {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_l1", "reduce_l2",
                           "reduce_sum_square", "reduce_log_sum_exp"}) {
      const bool sum = std::string_view(op) == "reduce_sum" || std::string_view(op) == "reduce_mean";
      r.push_back({op, over({0, -1}, 0), {in({3, 5, 2}, -1.23, 1.19)}, sum ? 4 : 2});
      r.push_back({op, over({1}, 1), {in({3, 5, 2}, -1.23, 1.19)}});
      r.push_back({op, {}, {in({3, 4}, -1.23, 1.19)}});
    }
    r.push_back({"reduce_prod", over({0, 2}, 0), {in({3, 2, 2}, 0.4, 1.6)}, 3});
    r.push_back({"reduce_prod", over({1}, 1), {{{2, 4}}}});
    for (const char* mode : {"DCR", "CRD"}) {
      const Attrs attrs{{"blocksize", int64_t{2}}, {"mode", std::string(mode)}};
      r.push_back({"depth_to_space", attrs, {{{1, 8, 2, 3}}}});
      r.push_back({"space_to_depth", attrs, {{{2, 1, 4, 6}}}});
    }
    r.push_back({"reduce_log_sum", over({1}, 0), {in({3, 4}, 0.5, 2)}});
    r.push_back({"reduce_sum", one("noop_with_empty_axes", int64_t{1}), {{{3, 4}}}});
    r.push_back({"cum_sum", {}, {{{3, 5}}, number(1)}});
    r.push_back({"cum_sum", {{"exclusive", int64_t{1}}, {"reverse", int64_t{1}}}, {{{3, 5}}, number(0)}});
    r.push_back({"matmul", {}, {{{3, 5}}, {{5, 4}}}, 4});
    r.push_back({"matmul", {}, {{{2, 3, 5}}, {{2, 5, 1}}}});
    r.push_back({"linear", {}, {{{3, 5}}, kNone, {{4, 5}}, {{4}}}});
    r.push_back({"linear", {}, {{{3, 5}}, {{3, 6}}, {{4, 5}}, {{4}}, {{2, 5}}, kNone}});
    r.push_back({"linear", one("input_major", int64_t{1}), {{{2, 3, 5}}, kNone, {{5, 4}}, {{4}}}});
    r.push_back({"gated_linear", {}, {{{3, 5}}, {{3, 5}}, {{3, 4}}, {{4, 5}}, {{4}}}});
    r.push_back({"hadamard", {{"block", int64_t{4}}, {"seed", int64_t{5}}}, {{{3, 8}}}});
    r.push_back({"hadamard", {{"block", int64_t{12}}, {"inverse", int64_t{1}}}, {{{3, 12}}}});
    r.push_back({"einsum", one("equation", std::string("bij,bjk->bik")), {{{2, 3, 4}}, {{2, 4, 5}}}});
    r.push_back({"einsum", one("equation", std::string("ij,j->")), {{{3, 4}}, {{4}}}});
    r.push_back({"reshape", one("shape", Ints{5, -1}), {{{3, 5}}}});
    r.push_back({"flatten", {}, {{{2, 3, 5}}}});
    r.push_back({"squeeze", one("axes", Ints{1}), {{{3, 1, 5}}}});
    r.push_back({"unsqueeze", one("axes", Ints{0, 2}), {{{3, 5}}}});
    r.push_back({"transpose", one("perm", Ints{2, 0, 1}), {{{2, 3, 5}}}});
    r.push_back({"slice", {{"axes", Ints{1}}, {"starts", Ints{1}}, {"ends", Ints{4}}}, {{{3, 5}}}});
    r.push_back(
        {"slice",
         {{"axes", Ints{0, 1}}, {"starts", Ints{1, 6}}, {"ends", Ints{7, -100}}, {"steps", Ints{3, -2}}},
         {{{8, 7}}}});
    r.push_back({"slice",
                 {{"axes", Ints{1}}, {"starts", Ints{0}}, {"ends", Ints{6}}, {"steps", Ints{2}}},
                 {{{2, 7}}}});
    r.push_back({"concat", one("axis", int64_t{1}), {{{3, 2}}, {{3, 1}}, {{3, 4}}}});
    r.push_back({"cast", one("to", std::string("f32")), {{{3, 5}}}});
    r.push_back({"expand", one("shape", Ints{2, 3, 5}), {{{3, 1}}}});
    r.push_back({"expand", {}, {{{3, 1}}, kNone, {{2, 3, 5}}}});
    r.push_back({"tile", one("repeats", Ints{2, 1, 3}), {{{3, 2}}}});
    r.push_back({"pad", one("pads", Ints{1, 0, 2, 3}), {{{3, 5}}}});
    r.push_back({"pad", one("pads", Ints{1, -1, 0, -2}), {{{3, 5}}}});
    r.push_back({"trilu", {}, {{{3, 5}}}});
    r.push_back({"trilu", one("upper", int64_t{0}), {{{2, 4, 3}}, number(1)}});
    const Attrs crop{{"axes", Ints{2}},
                     {"mode", std::string("linear")},
                     {"coordinate_transformation_mode", std::string("tf_crop_and_resize")},
                     {"extrapolation_value", 0.5}};
    r.push_back({"resize", crop, {{{2, 3, 5}}, constant(in({2}, -0.5, 2)), kNone, number(7)}});
    for (const char* mode : {"nearest", "linear", "cubic"}) {
      const Attrs middle{{"mode", std::string(mode)}, {"axes", Ints{1, 2}}},
          corners{{"mode", std::string(mode)},
                  {"axes", Ints{-1}},
                  {"coordinate_transformation_mode", std::string("align_corners")},
                  {"exclude_outside", int64_t{1}}};
      r.push_back({"resize", middle, {{{2, 3, 4, 2}}, kNone, kNone, constant(numbers({5, 3}))}});
      r.push_back({"resize", corners, {{{2, 5}}, kNone, constant(in({1}, 1.7, 1.7))}});
      Attrs smooth = middle;
      smooth.set("antialias", int64_t{1});
      r.push_back({"resize", smooth, {{{1, 5, 7}}, kNone, kNone, constant(numbers({2, 3}))}});
    }
    r.push_back({"dropout", {}, {{{3, 5}}}});
    r.push_back({"dropout", one("seed", int64_t{5}), {{{3, 5}}, constant(in({}, 0.4, 0.4)), number(1)}});
    r.push_back({"gather", {}, {{{5, 3}}, index({4}, 5)}});
    r.push_back({"gather", one("axis", int64_t{1}), {{{3, 5, 2}}, index({2, 2}, 5)}});
    r.push_back({"gather_elements", one("axis", int64_t{1}), {{{3, 5}}, index({3, 4}, 5)}});
    r.push_back({"gather_nd", {}, {{{4, 5, 2}}, index({3, 2}, 4)}});
    r.push_back({"scatter_elements",
                 one("axis", int64_t{1}),
                 {{{3, 5}}, {{2, 3}, 0, 0, 0, false, {0, 3, 2, 4, 1, 0}}, {{2, 3}}}});
    r.push_back({"scatter_elements",
                 {{"axis", int64_t{0}}, {"reduction", std::string("add")}},
                 {{{3, 5}}, index({2, 5}, 3), {{2, 5}}}});
    r.push_back({"scatter_nd", {}, {{{4, 3}}, {{2, 1}, 0, 0, 0, false, {2, 0}}, {{2, 3}}}});
    r.push_back({"scatter_nd", one("reduction", std::string("add")), {{{4, 3}}, index({5, 1}, 4), {{5, 3}}}});
    r.push_back({"embedding", one("scale", 1.5), {{{6, 3}}, index({5}, 6)}});
    r.push_back({"softmax", {}, {{{3, 5}}}, 4});
    r.push_back({"softmax", one("axis", int64_t{1}), {{{2, 3, 2}}}});
    r.push_back({"log_softmax", {}, {{{3, 5}}}, 3});
    r.push_back({"rms_norm", one("epsilon", 1e-3), {{{3, 5}}, {{5}}}, 4});
    r.push_back({"layer_norm", one("epsilon", 1e-3), {{{3, 5}}, {{5}}, {{5}}}, 4});
    r.push_back({"layer_norm", one("axis", int64_t{1}), {{{2, 3, 4}}}});
    r.push_back({"add_rms_norm", one("epsilon", 1e-3), {{{3, 5}}, in({3, 5}, -1.3, 1.2), {{5}}}});
    r.push_back({"batch_norm", {}, {{{2, 3, 5}}, {{3}}, {{3}}, {{3}}, in({3}, 0.5, 2)}});
    r.push_back({"batch_norm",
                 one("training_mode", int64_t{1}),
                 {{{4, 3, 2}}, {{3}}, {{3}}, fixed({3}, 0, 1), fixed({3}, 0.5, 2)},
                 4});
    r.push_back({"instance_norm", {}, {{{2, 3, 5}}, {{3}}, {{3}}}, 4});
    r.push_back({"group_norm", one("num_groups", int64_t{2}), {{{2, 4, 3}}, {{4}}, {{4}}}, 4});
    r.push_back({"lp_normalization", {}, {{{3, 5}}}});
    r.push_back({"lrn", one("size", int64_t{3}), {{{2, 5, 3}}}});
    r.push_back({"mean_variance_normalization", over({0, 2}, 1), {{{2, 3, 5}}}});
    r.push_back({"global_average_pool", {}, {{{2, 3, 4, 5}}}});
    r.push_back({"global_max_pool", {}, {{{2, 3, 4}}}});
    r.push_back({"global_lp_pool", one("p", int64_t{3}), {in({2, 3, 4}, 0.3, 1.7)}});
    r.push_back({"nll_loss", {}, {{{5, 7}}, index({5}, 7)}});
    r.push_back({"nll_loss",
                 {{"reduction", std::string("sum")}, {"ignore_index", int64_t{2}}},
                 {{{5, 7}}, index({5}, 7), in({7}, 0.5, 2)}});
    r.push_back({"softmax_cross_entropy_loss", {}, {{{5, 7}}, index({5}, 7)}, 3});
    r.push_back({"softmax_cross_entropy_loss",
                 {{"ignore_index", int64_t{1}}},
                 {{{2, 3, 4}}, index({2, 4}, 3), in({3}, 0.5, 2)}});
    r.push_back({"head_attention", {}, {{{1, 2, 3, 4}}, {{1, 2, 5, 4}}, {{1, 2, 5, 3}}}});
    for (const auto& [causal, window, cap] :
         std::vector<std::tuple<int64_t, int64_t, double>>{{1, 0, 0.}, {0, 0, 0.}, {1, 2, 1.5}, {0, 1, 0.}}) {
      r.push_back(
          {"attention",
           {{"scale", 0.6}, {"causal", causal}, {"window", window}, {"softcap", cap}},
           {{{5, 4, 2}}, {{5, 2, 2}}, {{5, 2, 2}}, numbers({0, 1, 2, 0, 1}), numbers({0, 0, 0, 1, 1})}});
    }
    for (const int64_t interleaved : {0, 1}) {
      r.push_back({"rope",
                   {{"interleaved", interleaved}, {"mscale", 1.25}},
                   {{{3, 2, 6}}, numbers({0, 3, 8}), fixed({2}, 0.1, 1)}});
    }
    r.push_back({"rope", {}, {{{3, 2, 4}}, numbers({0, 3, 8}), fixed({2}, 0.1, 1), {{4}}}});
    for (const char* op : {"rnn", "gru", "lstm"}) {
      const int64_t gates = std::string_view(op) == "rnn" ? 1 : std::string_view(op) == "gru" ? 3 : 4;
      r.push_back({op, {}, {{{3, 2, 4}}, {{1, gates * 2, 4}}, {{1, gates * 2, 2}}}});
    }
    r.push_back({"moe_combine", {}, {{{6, 3}}, {{3, 2}, 0, 0, 0, false, {0, 3, 1, 4, 5, 2}}, {{3, 2}}}});
    r.push_back(
        {"grouped_linear",
         one("experts", int64_t{3}),
         {{{2, 4}}, numbers({0, 1, 0, 1}), numbers({0, 1, 1, 4}), {{3, 3}}, {{3, 4}}, {{3, 4}}, {{3, 4}}}});
    r.push_back({"causal_conv", {}, {{{7, 3}}, {{3, 4}}, {{3}}, numbers({0, 0, 0, 1, 1, 1, 1})}});
    r.push_back({"causal_conv", {}, {{{5, 2}}, {{2, 1, 3}}, kNone, numbers({4, 4, 2, 2, 2})}});
    r.push_back({"causal_conv_with_state",
                 one("activation", std::string("silu")),
                 {{{2, 3, 5}}, {{3, 1, 4}}, {{3}}, {{2, 3, 3}}}});
    r.push_back({"padding_mask", {}, {index({2, 4}, 2), {{2, 4, 3}}}});
    r.push_back({"dequantize_linear", one("axis", int64_t{1}), {codes({3, 5}, 200), {{5}}, codes({5}, 9)}});
    r.push_back({"dequantize_linear", {}, {codes({3, 5}, 200), {{}}}});
    const Attrs four{{"bits", int64_t{4}}, {"block_size", int64_t{16}}},
        layer{{"bits", int64_t{4}}, {"block_size", int64_t{16}}, {"K", int64_t{32}}, {"N", int64_t{3}}};
    r.push_back({"gather_nbits", four, {codes({5, 16}, 256), index({4}, 5), {{5, 2}}, codes({5, 1}, 256)}});
    r.push_back({"matmul_nbits", layer, {{{2, 32}}, codes({3, 2, 8}, 256), {{3, 2}}}});
    r.push_back({"matmul_nbits",
                 layer,
                 {{{2, 32}}, codes({3, 2, 8}, 256), {{3, 2}}, codes({3, 1}, 256), kNone, {{3}}}});
    r.push_back({"conv", {}, {{{2, 3, 6}}, {{4, 3, 3}}, {{4}}}});
    r.push_back({"conv",
                 {{"strides", Ints{2, 3}}, {"pads", Ints{1, 0, 0, 2}}, {"dilations", Ints{1, 2}}},
                 {{{2, 3, 6, 7}}, {{2, 3, 3, 2}}}});
    r.push_back({"conv", {{"group", int64_t{2}}, {"strides", Ints{2}}}, {{{2, 4, 6}}, {{6, 2, 3}}}});
    r.push_back({"conv",
                 {{"group", int64_t{3}}, {"auto_pad", std::string("SAME_UPPER")}},
                 {{{1, 3, 4, 4}}, {{3, 1, 2, 3}}}});
    r.push_back({"conv_transpose",
                 {{"strides", Ints{2}}, {"pads", Ints{1, 0}}, {"output_padding", Ints{1}}},
                 {{{2, 3, 4}}, {{3, 2, 3}}, {{2}}}});
    r.push_back({"conv_transpose",
                 {{"group", int64_t{2}}, {"dilations", Ints{2, 1}}},
                 {{{1, 4, 3, 3}}, {{4, 2, 2, 3}}}});
    for (const char* pool : {"max_pool", "average_pool", "lp_pool"}) {
      r.push_back({pool, {{"kernel_shape", Ints{2, 3}}, {"strides", Ints{2, 1}}}, {{{2, 3, 5, 6}}}});
      r.push_back(
          {pool,
           {{"kernel_shape", Ints{3}}, {"strides", Ints{2}}, {"pads", Ints{1, 1}}, {"ceil_mode", int64_t{1}}},
           {{{2, 3, 6}}}});
    }
    r.push_back(
        {"average_pool",
         {{"kernel_shape", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}, {"count_include_pad", int64_t{1}}},
         {{{1, 2, 4, 5}}}});
    for (const char* score : {"softmax", "sigmoid", "sqrt_softplus"}) {
      for (const int64_t normalize : {0, 1}) {
        r.push_back(
            {"moe_route",
             {{"top_k", int64_t{2}}, {"score", std::string(score)}, {"normalize", normalize}, {"scale", 1.3}},
             {{{4, 5}}},
             2,
             2});
      }
    }
    return r;
  }();
  return rows;
}

Ints reversed(Ints v) {
  std::reverse(v.begin(), v.end());
  return v;
}

// What operands are: inputs; inputs without rows; or every second number of inputs whose axes lie in reverse.
enum class Given { kInputs, kNothing, kViews };

// The row as a graph: L is a sum of the result times numbers, so that no gradient is that of a plain sum.
struct RowGraph {
  Graph graph;
  oar_test::Inputs inputs;
  std::vector<std::string> wanted;
  explicit RowGraph(const Row& row, Given given = Given::kInputs) {
    Builder b(graph);
    std::mt19937 random(3);
    std::vector<Val> operands;
    for (size_t k = 0; k < row.operands.size(); ++k) {
      const Operand& o = row.operands[k];
      if (o.none) {
        operands.emplace_back();
        continue;
      }
      HostValue v;
      Ints dims = o.dims;
      if (given == Given::kNothing && !dims.empty()) dims[0] = 0;
      v.shape = Shape(dims);
      const std::string name = cat("x", k);
      if (o.indices > 0 || !o.values.empty()) {
        v.dtype = std::string_view(row.op) == "where" ? DType::kBool : o.dtype;
        v.i = o.values;
        for (int64_t i = 0; o.values.empty() && i < v.shape.numel(); ++i)
          v.i.push_back((i * 7 + 3) % o.indices);
        v.i.resize(static_cast<size_t>(v.shape.numel()));
      } else {
        v.f = oar_test::apart(v.shape.numel(), o.low, o.high, random);
        if (!o.fixed) wanted.push_back(name);
      }
      // Sizes and axes are constants where types are known.
      if (o.values.size() == 1 || o.constant) {
        if (!o.values.empty()) v.dtype = DType::kI64;
        auto t = to_tensor(v);
        REQUIRE_OK(t);
        operands.push_back(b.constant(name, std::move(*t)));
        continue;
      }
      const bool view = given == Given::kViews && !v.f.empty() && v.shape.rank() > 0;
      if (view) v = apart_and_turned(v);
      Val x{graph.add_input(name, oar_test::type_of(v))};
      if (view) x = plain_view(b, x, v.shape);
      operands.push_back(x);
      inputs[name] = std::move(v);
    }
    const std::vector<Val> made = b.ops(row.op, operands, row.attrs);
    REQUIRE_OK(b.status());
    REQUIRE(made.size() > row.result);
    const Val y = made[row.result];
    HostValue seed;
    Ints dims;
    for (const Dim& d : b.shape(y)) dims.push_back(d.const_value());
    seed.shape = Shape(dims);
    for (int64_t k = 0; k < seed.shape.numel(); ++k)
      seed.f.push_back(std::cos(1.7 * static_cast<double>(k)) + 0.2);
    const Val by{graph.add_input("seed", oar_test::type_of(seed))};
    inputs["seed"] = seed;
    const Val L = b.op("reduce_sum", {b.op("mul", {y, by})}, {{"keepdims", int64_t{0}}});
    REQUIRE_OK(b.status());
    graph.add_output("L", L.id);
  }

  std::map<std::string, HostValue> gradients() const {
    std::vector<ValueId> ids;
    for (const std::string& name : wanted) ids.push_back(*passes::find_value(graph, name));
    const ValueId outputs[] = {*passes::find_value(graph, "L")};
    const auto made = passes::grad(graph, outputs, ids);
    REQUIRE_OK(made);
    auto at = evaluate_reference(*made, inputs);
    REQUIRE_OK(at);
    std::map<std::string, HostValue> out;
    for (const std::string& name : wanted) out[name] = at->at("grad/" + name);
    return out;
  }

  // Where number k of a value of this shape lies in its apart_and_turned().
  static size_t place(const Shape& shape, size_t k) {
    size_t at = 0, stride = 2;
    Ints index;
    for (int axis = shape.rank(); axis-- > 0;) {
      index.push_back(static_cast<int64_t>(k) % shape[axis]);
      k /= static_cast<size_t>(shape[axis]);
    }
    for (int axis = 0; axis < shape.rank(); ++axis) {  // the first axis is the innermost
      at += static_cast<size_t>(index[static_cast<size_t>(shape.rank() - 1 - axis)]) * stride;
      stride *= static_cast<size_t>(shape[axis]);
    }
    return at;
  }

 private:
  static HostValue apart_and_turned(const HostValue& v) {
    Ints dims = reversed({v.shape.begin(), v.shape.end()});
    dims.back() *= 2;
    HostValue out;
    out.shape = Shape(dims);
    out.f.assign(2 * v.f.size(), 0.77);  // what lies between is read by nobody
    for (size_t k = 0; k < v.f.size(); ++k) out.f[place(v.shape, k)] = v.f[k];
    return out;
  }
  static Val plain_view(Builder& b, Val x, const Shape& turned) {
    const int last = turned.rank() - 1;
    x = b.op("slice", {x},
             {{"axes", Ints{last}}, {"starts", Ints{0}}, {"ends", Ints{turned[last]}}, {"steps", Ints{2}}});
    Ints perm;
    for (int axis = last; axis >= 0; --axis) perm.push_back(axis);
    return b.op("transpose", {x}, one("perm", perm));
  }
};

// Rows of the table whose first axes are not all the same rows, with none of them.
const std::vector<Row>& without_rows() {
  static const std::vector<Row> rows = [] {
    const Operand nobody = index({0}, 1);
    std::vector<Row> r;
    for (const char* op : {"div", "max", "min"}) r.push_back({op, {}, {{{0, 5}}, in({5}, 0.7, 2)}});
    r.push_back({"reshape", one("shape", Ints{5, -1}), {{{0, 5}}}});
    r.push_back({"expand", one("shape", Ints{2, 0, 5}), {{{0, 1}}}});
    r.push_back({"expand", {}, {{{0, 1}}, kNone, {{2, 0, 5}}}});
    r.push_back({"slice", {{"axes", Ints{1}}, {"starts", Ints{1}}, {"ends", Ints{4}}}, {{{0, 5}}}});
    r.push_back({"hadamard", {{"block", int64_t{4}}, {"seed", int64_t{5}}}, {{{0, 8}}}});
    r.push_back({"concat", one("axis", int64_t{1}), {{{0, 2}}, {{0, 1}}}});
    r.push_back({"concat", one("axis", int64_t{0}), {{{0, 2}}, {{3, 2}}}});
    r.push_back({"where", {}, {{{0, 5}, 0, 0, 2}, {{0, 5}}, {{5}}}});
    r.push_back({"einsum", one("equation", std::string("bij,bjk->bik")), {{{0, 3, 4}}, {{0, 4, 5}}}});
    r.push_back({"einsum", one("equation", std::string("ij,j->")), {{{0, 4}}, {{4}}}});
    r.push_back({"pow", {}, {{{0, 5}}, {{5}}}});
    r.push_back({"batch_norm", {}, {{{0, 3, 5}}, {{3}}, {{3}}, {{3}}, in({3}, 0.5, 2)}});
    r.push_back({"instance_norm", {}, {{{0, 3, 5}}, {{3}}, {{3}}}});
    r.push_back({"group_norm", one("num_groups", int64_t{2}), {{{0, 4, 3}}, {{4}}, {{4}}}});
    r.push_back({"layer_norm", one("epsilon", 1e-3), {{{0, 5}}, {{5}}, {{5}}}});
    r.push_back({"rms_norm", one("epsilon", 1e-3), {{{0, 5}}, {{5}}}});
    r.push_back({"add_rms_norm", one("epsilon", 1e-3), {{{0, 5}}, {{0, 5}}, {{5}}}});
    r.push_back({"lrn", one("size", int64_t{3}), {{{0, 5, 3}}}});
    r.push_back({"grouped_linear",
                 one("experts", int64_t{3}),
                 {{{2, 4}}, nobody, numbers({0, 0, 0, 0}), {{3, 3}}, {{3, 4}}, {{3, 4}}, {{3, 4}}}});
    r.push_back({"moe_combine", {}, {{{0, 3}}, index({0, 2}, 1), {{0, 2}}}});
    r.push_back({"scatter_elements",
                 {{"axis", int64_t{0}}, {"reduction", std::string("add")}},
                 {{{3, 5}}, index({0, 5}, 3), {{0, 5}}}});
    r.push_back({"scatter_nd", {}, {{{4, 3}}, index({0, 1}, 4), {{0, 3}}}});
    r.push_back({"gated_linear", {}, {{{0, 5}}, {{0, 5}}, {{0, 4}}, {{4, 5}}, {{4}}}});
    r.push_back({"attention", one("scale", 0.6), {{{0, 4, 2}}, {{0, 2, 2}}, {{0, 2, 2}}, nobody, nobody}});
    r.push_back({"head_attention", {}, {{{0, 2, 3, 4}}, {{0, 2, 5, 4}}, {{0, 2, 5, 3}}}});
    r.push_back({"rope", {}, {{{0, 2, 6}}, nobody, fixed({2}, 0.1, 1)}});
    // The mean of nothing is no number.
    r.push_back({"nll_loss", one("reduction", std::string("sum")), {{{0, 7}}, index({0}, 7)}});
    r.push_back(
        {"softmax_cross_entropy_loss", one("reduction", std::string("sum")), {{{0, 7}}, index({0}, 7)}});
    r.push_back({"causal_conv", {}, {{{0, 3}}, {{3, 4}}, {{3}}, nobody}});
    r.push_back({"causal_conv_with_state", {}, {{{0, 3, 5}}, {{3, 1, 4}}, {{3}}, {{0, 3, 3}}}});
    r.push_back({"padding_mask", {}, {index({0, 4}, 2), {{0, 4, 3}}}});
    r.push_back({"dequantize_linear", one("axis", int64_t{1}), {codes({0, 5}, 200), {{5}}, codes({5}, 9)}});
    const Attrs four{{"bits", int64_t{4}}, {"block_size", int64_t{16}}},
        layer{{"bits", int64_t{4}}, {"block_size", int64_t{16}}, {"K", int64_t{32}}, {"N", int64_t{3}}};
    r.push_back({"gather_nbits", four, {codes({5, 16}, 256), nobody, {{5, 2}}}});
    r.push_back({"matmul_nbits", layer, {{{0, 32}}, codes({3, 2, 8}, 256), {{3, 2}}}});
    r.push_back({"tile", one("repeats", Ints{2, 3}), {{{0, 2}}}});
    r.push_back({"prelu", {}, {{{0, 5}}, {{5}}}});
    r.push_back({"clip", {}, {{{0, 5}}, in({}, -1, -0.9), in({}, 0.8, 0.9)}});
    r.push_back({"gather", {}, {{{5, 3}}, index({0}, 5)}});
    r.push_back({"gather_elements", one("axis", int64_t{1}), {{{3, 5}}, index({3, 0}, 5)}});
    r.push_back({"gather_nd", {}, {{{4, 5, 2}}, index({0, 2}, 4)}});
    r.push_back({"embedding", one("scale", 1.5), {{{6, 3}}, index({0}, 6)}});
    r.push_back({"matmul", {}, {{{0, 5}}, {{5, 4}}}});
    r.push_back({"linear", {}, {{{0, 5}}, kNone, {{4, 5}}, {{4}}}});
    r.push_back({"cum_sum", {}, {{{0, 5}}, number(1)}});
    r.push_back({"conv", {}, {{{0, 3, 6}}, {{4, 3, 3}}, {{4}}}});
    r.push_back({"conv_transpose", {}, {{{0, 3, 4}}, {{3, 2, 3}}, {{2}}}});
    r.push_back({"dropout", {}, {{{0, 5}}, constant(in({}, 0.4, 0.4)), number(1)}});
    r.push_back({"resize",
                 {{"mode", std::string("linear")}, {"axes", Ints{1, 2}}},
                 {{{0, 3, 4}}, kNone, kNone, constant(numbers({5, 3}))}});
    for (const char* op : {"rnn", "gru", "lstm"}) {  // their batch is the second axis
      const int64_t rows = std::string_view(op) == "rnn" ? 2 : std::string_view(op) == "gru" ? 6 : 8;
      const Operand w{{1, rows, 4}}, recurrent{{1, rows, 2}};
      r.push_back({op, {}, {{{3, 0, 4}}, w, recurrent}});
      r.push_back({op, {}, {{{3, 0, 4}}, w, recurrent, {{1, 2 * rows}}, nobody, {{1, 0, 2}}}});
      r.push_back({op, one("layout", int64_t{1}), {{{0, 3, 4}}, w, recurrent}});
    }
    return r;
  }();
  return rows;
}

}  // namespace

TEST_CASE("gradients of every op equal differences to second order and beyond") {
  for (const Row& row : table()) {
    INFO(row.op << " of " << Shape(row.operands[0].dims).to_string());
    RowGraph g(row);
    oar_test::check_gradients(g.graph, g.inputs, g.wanted, row.order, row.bound);
  }
}

TEST_CASE("every op that has a gradient is in the table") {
  std::set<std::string> listed;
  for (const Row& row : table()) listed.insert(row.op);
  for (const OpDef* op : all_ops()) {
    if (std::string_view(differentiability(*op)) != "any order") continue;
    INFO(op->name);
    CHECK(listed.contains(op->name));
  }
}

TEST_CASE("what an op is said to have no gradient of is refused by name, and nothing else is said") {
  struct Refused {
    Row row;
    const char* words;
  };
  const auto by = [](const char* reduction) { return one("reduction", std::string(reduction)); };
  std::vector<Refused> all{
      {{"gather_nd", one("batch_dims", int64_t{1}), {{{4, 5, 2}}, index({4, 1}, 5)}}, "batch_dims"},
      {{"pad", {{"pads", Ints{1, 1}}, {"mode", std::string("edge")}}, {{{5}}}}, "'edge'"},
      {{"pad", {{"pads", Ints{1, 1}}, {"mode", std::string("reflect")}}, {{{5}}}}, "'reflect'"},
      {{"pad", one("pads", Ints{1, 1}), {{{5}}, kNone, {{}}}}, "value"},
      {{"pad", {}, {{{5}}, constant(numbers({1, 1})), kNone, constant(numbers({0}))}}, "axes"},
      {{"conv_transpose", one("auto_pad", std::string("SAME_UPPER")), {{{2, 3, 4}}, {{3, 2, 3}}}},
       "SAME_UPPER"},
      {{"conv_transpose", one("output_shape", Ints{6}), {{{2, 3, 4}}, {{3, 2, 3}}}}, "'output_shape'"},
      {{"resize",
        {{"axes", Ints{1}},
         {"mode", std::string("linear")},
         {"coordinate_transformation_mode", std::string("tf_crop_and_resize")}},
        {{{2, 5}}, in({2}, 0, 1), kNone, number(7)}},
       "region"},
      {{"hadamard", one("block", int64_t{4}), {{{3, 8}}, {{8}}}}, "factors"},
      {{"reduce_prod", one("axes", Ints{0}), {{{4097}}}}, "4097 factors"}};
  for (const char* reduction : {"mul", "min", "max"}) {
    all.push_back({{"scatter_elements", by(reduction), {{{3, 5}}, index({2, 5}, 3), {{2, 5}}}}, reduction});
    all.push_back({{"scatter_nd", by(reduction), {{{4, 3}}, index({5, 1}, 4), {{5, 3}}}}, reduction});
  }
  std::set<std::string> seen;
  // Axes that are computed leave a graph without types, which gradients need.
  for (const OpDef* op : all_ops()) {
    if (!std::string_view(op->name).starts_with("reduce_")) continue;
    Graph g;
    const TensorType x{Format::f32(), {Dim(3), Dim(4)}}, axes{Format::of(DType::kI64), {Dim(1)}};
    const ValueId y = g.append(
        op, {g.add_input("x", TensorType::unknown()), g.add_input("axes", TensorType::unknown())}, 1, {})[0];
    g.add_output("y", y);
    const Status s = passes::typed(g, {{"x", x}, {"axes", axes}}).status();
    INFO(op->name << ": " << s.message());
    CHECK_FALSE(s.ok());
    CHECK(s.message().find(op->lower != nullptr && op->vjp != nullptr ? "axes are an attribute"
                                                                      : "operand 1") != std::string::npos);
    seen.insert(op->name);
  }
  for (const Refused& r : all) {
    INFO(r.row.op << ": " << r.words);
    const RowGraph g(r.row);
    std::vector<ValueId> ids;
    for (const std::string& name : g.wanted) ids.push_back(*passes::find_value(g.graph, name));
    const ValueId outputs[] = {*passes::find_value(g.graph, "L")};
    const Status s = passes::grad(g.graph, outputs, ids).status();
    INFO(s.message());
    CHECK(s.code() == StatusCode::kUnimplemented);
    CHECK(s.message().find(r.words) != std::string::npos);
    CHECK(find_op(r.row.op)->no_gradient_of != nullptr);
    seen.insert(r.row.op);
  }
  for (const OpDef* op : all_ops()) {
    INFO(op->name);
    CHECK((op->no_gradient_of != nullptr) == seen.contains(op->name));
  }
}

TEST_CASE("gradients of views of inputs, turned and with steps, lie where their numbers were") {
  for (const Row& row : table()) {
    INFO(row.op << " of " << Shape(row.operands[0].dims).to_string());
    const RowGraph plain(row), views(row, Given::kViews);
    const auto want = plain.gradients(), got = views.gradients();
    for (const auto& [name, w] : want) {
      INFO(name);
      std::vector<double> expected(got.at(name).f.size(), 0);
      const bool turned = w.shape.rank() > 0;
      REQUIRE(expected.size() == (turned ? 2 : 1) * w.f.size());
      for (size_t k = 0; k < w.f.size(); ++k) expected[turned ? RowGraph::place(w.shape, k) : k] = w.f[k];
      CHECK(got.at(name).f == expected);
    }
  }
}

TEST_CASE(
    "gradients of nothing are nothing, those of weights that nothing was read with are zeros, others "
    "differences") {
  std::set<std::string> seen;
  const auto check = [&](const Row& row, Given given) {
    INFO(row.op << " of " << Shape(row.operands[0].dims).to_string());
    const RowGraph g(row, given);
    for (const auto& [name, d] : g.gradients()) {
      INFO(name);
      CHECK(d.shape == g.inputs.at(name).shape);
      const bool nothing = g.inputs.at("seed").f.empty();
      for (const double v : d.f) CHECK((nothing ? v == 0 : std::isfinite(v)));
    }
    // The mean or the largest of nothing is no number, and differs by none.
    const auto at = evaluate_reference(g.graph, g.inputs);
    REQUIRE_OK(at);
    if (std::isfinite(at->at("L").f[0])) {
      oar_test::check_gradients(g.graph, g.inputs, g.wanted, std::min(row.order, 2), row.bound);
    } else {
      for (const std::string& name : g.wanted) CHECK(g.inputs.at(name).f.empty());
    }
    seen.insert(row.op);
  };
  for (const Row& row : without_rows()) check(row, Given::kInputs);
  const std::set<std::string> listed = seen;
  for (const Row& row : table()) {
    // All operands have the same rows.
    const bool even = std::all_of(row.operands.begin(), row.operands.end(), [&](const auto& o) {
      return o.dims.size() == row.operands[0].dims.size() && o.dims[0] == row.operands[0].dims[0];
    });
    if (!listed.contains(row.op) && even && row.operands[0].dims.size() > 1) check(row, Given::kNothing);
  }
  for (const Row& row : table()) {
    INFO(row.op);
    CHECK(seen.contains(row.op));
  }
}
