// One vocabulary: an op means the same wherever it stands. Each row of the table is an op at odd sizes; its
// definition run in double (or, of a primitive, its evaluation) says what it is, and is held against
//   evaluate()        on host tensors, in every dtype of the row
//   by_kernels()      the same, where the op calls kernels by itself
//   its kernel        in a Program, which knows types, and in an Evaluator, which knows a run's operands; at
//                     every instruction-set level, with weights as constants and as values that were computed
#include <fstream>
#include <map>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/bound_call.h"
#include "engine/graph/evaluate.h"
#include "engine/graph/reference.h"
#include "engine/graph/run.h"
#include "tests/graph/graph_fixture.h"
#include "tests/support/sample.h"

namespace {
using namespace oar;

struct Argument {
  std::vector<int64_t> dims;
  bool weight = false;              // may be a constant of the model
  int64_t indices = 0;              // integers in [0, indices) instead of floats
  bool none = false;                // left out
  bool above = false;               // positive
  std::optional<DType> codes = {};  // all values of an integer type
};
const Argument kLeftOut{{}, false, 0, true};
Argument positive(std::vector<int64_t> dims, bool weight = true) {
  return {std::move(dims), weight, 0, false, true};
}
Argument codes(DType dtype, std::vector<int64_t> dims, bool weight = true) {
  return {std::move(dims), weight, 0, false, false, dtype};
}
Argument bytes(std::vector<int64_t> dims) { return codes(DType::kU8, std::move(dims)); }
Argument signed_bytes(std::vector<int64_t> dims) { return codes(DType::kI8, std::move(dims)); }
Attrs over(std::vector<int64_t> axes, int64_t keep) {
  return {{"axes", std::move(axes)}, {"keepdims", keep}};
}
struct Row {
  const char* op;
  Attrs attrs;
  std::vector<Argument> operands;
  double bound = 2.0 * 100 / (1 << 24);  // f32 in any order over at most 100 terms, twice for functions
  // For these operands. kTyped: by a graph's types alone, where weights are constants; kRun: by a run's sizes
  // alone.
  enum { kNone, kTyped, kRun, kAlways } kernel = kAlways;
  bool moves = false;  // every dtype, bit for bit
  size_t results = 1;
  bool wide = false;      // f32, whatever the operands are
  bool prepared = false;  // has kernels behind prepare() alone, with weights that are constants
  bool only_f32 = false;  // where narrower floats round in between, which the definition does not say
};

// A row in f32 alone: of an op that only language models have, between whose ops there is no other type.
Row in_f32(Row row) {
  row.only_f32 = true;
  return row;
}

// A row in f32 alone whose first result is `wide`, f32, or of another type than its operands.
Row quantized(const char* op, Attrs attrs, std::vector<Argument> operands, bool wide = false,
              bool prepared = false) {
  return {op, std::move(attrs), std::move(operands), 1e-5, Row::kNone, false, 1, wide, prepared, true};
}
Row sums(const char* equation, std::vector<Argument> operands) {
  return {"einsum", {{"equation", std::string(equation)}}, std::move(operands), 1e-5, Row::kNone};
}

// A layer whose weights are packed before any run.
Row layer(const char* op, Attrs attrs, std::vector<Argument> operands, bool wide = false) {
  return quantized(op, std::move(attrs), std::move(operands), wide, true);
}
Argument given_bytes(std::vector<int64_t> dims) { return codes(DType::kU8, std::move(dims), false); }
// Of a layer whose operand and result are u8.
Attrs codes_of(double y_scale, Attrs more) {
  more.set("x_scale", 0.02), more.set("x_zero", int64_t{110});
  more.set("y_dtype", std::string("u8")), more.set("y_scale", y_scale), more.set("y_zero", int64_t{100});
  return more;
}
// The same with a sum behind it.
Attrs added_codes(Attrs more) {
  for (const char* name : {"sum.a_scale", "sum.b_scale", "sum.y_scale"}) more.set(name, 0.1);
  more.set("sum.a_zero", int64_t{100}), more.set("sum.b_zero", int64_t{90});
  more.set("sum.y_zero", int64_t{120}), more.set("sum.y_dtype", std::string("u8"));
  return codes_of(4, std::move(more));
}
// Operands of rope by tables.
std::vector<Argument> tables(const std::vector<int64_t>& x, const std::vector<int64_t>& table,
                             const std::vector<int64_t>& positions = {}) {
  return {{x},           positions.empty() ? kLeftOut : Argument{positions, false, 7},
          kLeftOut,      kLeftOut,
          {table, true}, {table, true}};
}
Attrs padded_rows(int64_t heads, int64_t turned) {
  return {{"rows", std::string("padded")}, {"num_heads", heads}, {"rotary_dim", turned}};
}

// What moves numbers, in any dtype.
Row moved(const char* op, Attrs attrs, std::vector<Argument> operands,
          decltype(Row::kernel) kernel = Row::kRun) {
  return {op, std::move(attrs), std::move(operands), 0, kernel, true};
}
std::vector<int64_t> list(std::initializer_list<int64_t> of) { return of; }

Attrs reduced(const char* how, int64_t ignored) {
  return {{"reduction", std::string(how)}, {"ignore_index", ignored}};
}
std::vector<Argument> heads(const std::vector<int64_t>& q, const std::vector<int64_t>& k,
                            const std::vector<int64_t>& v, const Argument& mask = kLeftOut) {
  return {{q}, {k}, {v}, mask};
}
// Operands of a recurrent layer of 5 steps, 3 entries, 4 inputs and 2 outputs; `whole`: with biases, lengths
// and states, and peepholes where asked for.
std::vector<Argument> recurrent(int64_t gates, int64_t directions, bool whole = false,
                                bool peepholes = false) {
  const int64_t D = directions, G = gates * 2;
  std::vector<Argument> in{{{5, 3, 4}}, {{D, G, 4}}, {{D, G, 2}}};
  if (!whole) return in;
  in.insert(in.end(), {{{D, 2 * G}}, {{3}, false, 6}, {{D, 3, 2}}});
  if (gates == 4) in.push_back({{D, 3, 2}});
  if (peepholes) in.push_back({{D, 6}});
  return in;
}

const std::vector<Row>& table() {
  static const std::vector<Row> rows{
      {"relu", {}, {{{3, 37}}}},
      {"silu", {}, {{{3, 37}}}},
      {"gelu", {}, {{{3, 37}}}},
      {"gelu", {{"approximate", std::string("tanh")}}, {{{3, 37}}}},
      {"silu", {{"alpha", 1.7}}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"celu", {{"alpha", 0.7}}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"celu", {{"alpha", -0.7}}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"elu", {{"alpha", 1.3}}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"hard_sigmoid", {}, {{{3, 37}}}},
      {"hard_swish", {}, {{{3, 37}}}},
      {"hard_swish", {{"alpha", 0.3}, {"beta", 0.4}}, {{{3, 37}}}},
      {"leaky_relu", {}, {{{3, 37}}}},
      {"leaky_relu", {{"alpha", -0.5}}, {{{3, 37}}}},
      {"mish", {}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"selu", {}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"softplus", {}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"softsign", {}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"sigmoid", {}, {{{2, 3, 5}}}},
      {"abs", {}, {{{3, 37}}}},
      {"cos", {}, {{{3, 37}}}},
      {"erf", {}, {{{3, 37}}}},
      {"exp", {}, {{{3, 37}}}},
      {"floor", {}, {{{3, 37}}}},
      {"log", {}, {positive({3, 37}, false)}},
      {"neg", {}, {{{3, 37}}}},
      {"reciprocal", {}, {positive({3, 37}, false)}},
      {"rsqrt", {}, {positive({3, 37}, false)}},
      {"sin", {}, {{{3, 37}}}},
      {"sqrt", {}, {positive({3, 37}, false)}},
      {"square", {}, {{{3, 37}}}},
      {"tanh", {}, {{{3, 37}}}},
      {"min", {}, {{{7, 1, 5}}, {{1}, true}}},
      // In a run exponents that are integers, and squares, have a way of their own.
      {"pow", {}, {positive({3, 37}, false), {{37}, true}}, 1e-4, Row::kTyped},
      {"clip", {}, {{{3, 37}}, {{}, true}}, 1e-5, Row::kNone},
      {"clip", {}, {{{3, 37}}, kLeftOut, positive({})}, 1e-5, Row::kNone},
      {"matmul", {}, {{{2, 3, 7}}, {{2, 7, 5}, true}}, 1e-5, Row::kNone},
      {"matmul", {}, {{{2, 5, 3, 4}}, {{2, 5, 4, 2}}}, 1e-5, Row::kNone},
      {"conv",
       {{"pads", list({1, 0, 1, 1})}},
       {{{2, 3, 7, 6}}, {{4, 3, 3, 3}, true}, {{4}, true}},
       1e-5,
       Row::kNone},
      {"conv",
       {{"group", int64_t{4}}, {"strides", list({2, 1})}, {"dilations", list({1, 2})}},
       {{{1, 4, 9, 8}}, {{4, 1, 3, 3}, true}},
       1e-5,
       Row::kNone},
      {"conv", {{"group", int64_t{2}}}, {{{2, 6, 11}}, {{4, 3, 2}, true}, {{4}, true}}, 1e-5, Row::kNone},
      {"conv_transpose",
       {{"strides", list({2, 2})}},
       {{{2, 3, 4, 3}}, {{3, 5, 2, 2}, true}, {{5}, true}},
       1e-5,
       Row::kNone},
      {"conv_transpose",
       {{"strides", list({2, 1})}, {"pads", list({1, 0, 0, 1})}, {"output_padding", list({1, 0})}},
       {{{1, 3, 4, 5}}, {{3, 2, 3, 2}, true}},
       1e-5,
       Row::kNone},
      {"embedding", {{"scale", 2.0}}, {{{7, 5}, true}, {{4}, false, 7}}, 1e-6, Row::kTyped},
      {"hadamard", {{"block", int64_t{8}}}, {{{3, 16}}}, 1e-6, Row::kTyped},
      {"hadamard",
       {{"block", int64_t{12}}, {"seed", int64_t{5}}, {"inverse", int64_t{1}}},
       {{{5, 24}}},
       1e-6,
       Row::kTyped},
      {"grouped_linear",
       {{"experts", int64_t{3}}, {"first", int64_t{1}}},
       {{{4, 3, 6}}, kLeftOut, kLeftOut, kLeftOut, {{2, 4}, true}, {{2, 4}, true}, {{2, 4}, true}},
       1e-5,
       Row::kNone},
      in_f32({"causal_conv", {}, {{{9, 5}}, {{5, 3}, true}, {{5}, true}, {{9}, false, 1}}, 1e-5, Row::kNone}),
      {"causal_conv_with_state", {}, {{{2, 5, 7}}, {{5, 1, 3}, true}}, 1e-5, Row::kNone, false, 2},
      {"causal_conv_with_state",
       {{"activation", std::string("silu")}},
       {{{2, 5, 4}}, {{5, 1, 3}, true}, {{5}, true}, {{2, 5, 2}}},
       1e-5,
       Row::kNone,
       false,
       2},
      // Decays of up to e^2 in each of nine rows.
      in_f32({"state_scan",
              {{"delta", int64_t{0}}},
              {{{9, 2, 4}}, {{9, 2, 4}}, {{9, 4, 3}}, {{9, 4}}, {{9, 4}}, {{9}, false, 1}},
              1e-4,
              Row::kTyped}),
      {"add", {}, {{{3, 37}}, {{37}, true}}},
      {"mul", {}, {{{5}, true}, {{2, 3, 5}}}},
      {"sub", {}, {{{2, 3, 5}}, {{2, 3, 1}, true}}},
      {"div", {}, {{{2, 3, 5}}, {{2, 3, 5}}}, 1e-4},
      {"max", {}, {{{7, 1, 5}}, {{1}, true}}},
      {"softmax", {}, {{{3, 37}}}},
      {"softmax", {{"axis", int64_t{2}}}, {{{2, 3, 5}}}},
      {"softmax", {{"axis", int64_t{1}}}, {{{2, 3, 5}}}, 1e-5, Row::kNone},
      {"softmax", {{"axis", int64_t{1}}, {"flatten", int64_t{1}}}, {{{2, 3, 5}}}},
      {"log_softmax", {}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"log_softmax", {{"axis", int64_t{0}}}, {{{3, 5, 2}}}, 1e-5, Row::kNone},
      {"log_softmax", {{"axis", int64_t{1}}, {"flatten", int64_t{1}}}, {{{2, 3, 5}}}, 1e-5, Row::kNone},
      {"reduce_sum", over({0, -1}, 0), {{{3, 5, 7}}}, 1e-5, Row::kNone},
      {"reduce_mean", over({1}, 1), {{{3, 5, 7}}}, 1e-5, Row::kNone},
      {"reduce_max", {}, {{{3, 5, 7}}}, 1e-5, Row::kNone},
      {"reduce_max", {{"noop_with_empty_axes", int64_t{1}}}, {{{3, 5}}}, 1e-5, Row::kNone},
      {"reduce_l1", over({1}, 0), {{{3, 5, 7}}}, 1e-5, Row::kNone},
      {"reduce_l2", over({0, 2}, 1), {{{3, 5, 7}}}, 1e-5, Row::kNone},
      {"reduce_l2", {{"noop_with_empty_axes", int64_t{1}}}, {{{3, 5}}}, 1e-5, Row::kNone},
      {"reduce_log_sum", {}, {positive({3, 5})}, 1e-5, Row::kNone},
      {"reduce_log_sum_exp", over({-2}, 0), {{{3, 5, 7}}}, 1e-5, Row::kNone},
      {"reduce_log_sum_exp", {}, {{{13}}}, 1e-5, Row::kNone},
      {"reduce_min", over({1, 2}, 1), {{{3, 5, 7}}}, 1e-5, Row::kNone},
      {"reduce_prod", over({0, 2}, 0), {positive({3, 5, 2})}, 1e-5, Row::kNone},
      {"reduce_sum_square", over({2}, 0), {{{3, 5, 7}}}, 1e-5, Row::kNone},
      {"global_average_pool", {}, {{{2, 3, 5, 7}}}, 1e-5, Row::kNone},
      {"global_max_pool", {}, {{{2, 3, 5, 7}}}, 1e-5, Row::kNone},
      {"global_lp_pool", {{"p", int64_t{3}}}, {{{2, 3, 7}}}, 1e-5, Row::kNone},
      {"batch_norm",
       {},
       {{{2, 3, 5, 7}}, {{3}, true}, {{3}, true}, {{3}, true}, positive({3})},
       1e-5,
       Row::kNone},
      {"batch_norm",
       {{"training_mode", int64_t{1}}, {"momentum", 0.7}},
       {{{4, 3, 5}}, {{3}, true}, {{3}, true}, {{3}, true}, positive({3})},
       1e-5,
       Row::kNone,
       false,
       3},
      {"batch_norm", {}, {{{5, 3}}, {{3}, true}, {{3}, true}, {{3}, true}, positive({3})}, 1e-5, Row::kNone},
      {"instance_norm", {{"epsilon", 1e-3}}, {{{2, 3, 5, 7}}, {{3}, true}, {{3}, true}}, 1e-5, Row::kNone},
      {"group_norm", {{"num_groups", int64_t{2}}}, {{{3, 6, 5}}, {{6}, true}, {{6}, true}}, 1e-5, Row::kNone},
      {"group_norm", {{"num_groups", int64_t{2}}}, {{{3, 6, 5}}, {{2}, true}, {{2}, true}}, 1e-5, Row::kNone},
      {"lp_normalization", {}, {{{3, 37}}}, 1e-5, Row::kNone},
      {"lp_normalization", {{"axis", int64_t{0}}, {"p", int64_t{1}}}, {{{3, 5}}}, 1e-5, Row::kNone},
      {"lrn", {{"size", int64_t{3}}, {"alpha", 0.3}}, {{{2, 5, 3, 3}}}, 1e-5, Row::kNone},
      {"lrn", {{"size", int64_t{4}}, {"alpha", 0.7}, {"bias", 2.0}}, {{{1, 3, 7}}}, 1e-5, Row::kNone},
      {"mean_variance_normalization", {}, {{{2, 3, 5, 7}}}, 1e-5, Row::kNone},
      {"mean_variance_normalization", over({0, 2}, 1), {{{2, 3, 5}}}, 1e-5, Row::kNone},
      {"nll_loss", {}, {{{5, 7}}, {{5}, false, 7}}, 1e-5, Row::kNone},
      {"nll_loss",
       reduced("none", 2),
       {{{3, 5, 2, 3}}, {{3, 2, 3}, false, 5}, {{5}, true}},
       1e-5,
       Row::kNone},
      {"nll_loss", reduced("sum", -100), {{{5, 7}}, {{5}, false, 7}, {{7}, true}}, 1e-5, Row::kNone},
      {"softmax_cross_entropy_loss",
       {},
       {{{5, 7}}, {{5}, false, 7}, positive({7})},
       1e-5,
       Row::kNone,
       false,
       2},
      {"softmax_cross_entropy_loss",
       reduced("mean", 1),
       {{{2, 3, 9}}, {{2, 9}, false, 3}, positive({3})},
       1e-5,
       Row::kNone,
       false,
       2},
      {"head_attention", {}, heads({2, 3, 5, 8}, {2, 3, 7, 8}, {2, 3, 7, 5}), 1e-5, Row::kNone},
      {"head_attention",
       {{"is_causal", int64_t{1}},
        {"q_num_heads", int64_t{6}},
        {"kv_num_heads", int64_t{2}},
        {"softcap", 3.0}},
       heads({2, 5, 24}, {2, 5, 8}, {2, 5, 10}),
       1e-5,
       Row::kNone},
      {"head_attention",
       {{"layout", std::string("bshd")}, {"left_window_size", int64_t{2}}, {"right_window_size", int64_t{1}}},
       heads({1, 9, 2, 4}, {1, 9, 2, 4}, {1, 9, 2, 4}),
       1e-5,
       Row::kNone},
      {"head_attention",
       {{"scale", 0.3}, {"spelled", int64_t{1}}},
       heads({1, 3, 5, 4}, {2, 1, 7, 4}, {2, 3, 7, 4}, {{2, 1, 1, 7}}),
       1e-5,
       Row::kNone},
      {"head_attention", {}, heads({2, 2, 3, 4}, {2, 2, 7, 4}, {2, 2, 7, 4}, {{3, 5}}), 1e-5, Row::kNone},
      {"head_attention",
       {{"is_causal", int64_t{1}}},
       {{{2, 2, 3, 4}}, {{2, 1, 3, 4}}, {{2, 1, 3, 5}}, kLeftOut, {{2, 1, 4, 4}}, {{2, 1, 4, 5}}},
       1e-5,
       Row::kNone,
       false,
       3},
      {"head_attention",
       {{"is_causal", int64_t{1}}, {"qk_matmul_output_mode", int64_t{3}}},
       {{{2, 2, 3, 4}}, {{2, 2, 7, 4}}, {{2, 2, 7, 4}}, {{2, 1, 3, 7}}, kLeftOut, kLeftOut, {{2}, false, 8}},
       1e-5,
       Row::kNone,
       false,
       4},
      {"attention",
       {{"scale", 0.5}, {"causal", int64_t{0}}},
       {{{9, 4, 8}}, {{9, 2, 8}}, {{9, 2, 8}}, kLeftOut, {{9}, false, 1}},
       1e-5,
       Row::kTyped},
      {"attention",
       {{"scale", 0.5}, {"window", int64_t{3}}, {"softcap", 2.0}},
       {{{9, 4, 5}}, {{9, 2, 5}}, {{9, 2, 5}}, {{9}, false, 7}, {{9}, false, 3}},
       1e-5,
       Row::kNone},
      {"attention",
       {{"scale", 0.3}},
       {{{1, 6, 8}}, {{1, 6, 8}}, {{1, 6, 8}}, {{1}, false, 7}, {{1}, false, 3}},
       1e-5,
       Row::kNone},
      {"moe_combine", {}, {{{7, 5}}, {{3, 2}, false, 7}, {{3, 2}}}, 1e-5, Row::kTyped},
      {"max_pool",
       {{"kernel_shape", std::vector<int64_t>{3, 2}},
        {"strides", std::vector<int64_t>{2, 1}},
        {"pads", std::vector<int64_t>{1, 0, 0, 1}}},
       {{{2, 3, 7, 6}}},
       1e-5,
       Row::kNone},
      {"average_pool",
       {{"kernel_shape", std::vector<int64_t>{3, 2}},
        {"strides", std::vector<int64_t>{2, 2}},
        {"pads", std::vector<int64_t>{1, 1, 1, 1}},
        {"ceil_mode", int64_t{1}}},
       {{{2, 3, 6, 7}}},
       1e-5,
       Row::kNone},
      {"average_pool",
       {{"kernel_shape", std::vector<int64_t>{3}},
        {"pads", std::vector<int64_t>{1, 1}},
        {"count_include_pad", int64_t{1}}},
       {{{2, 3, 6}}},
       1e-5,
       Row::kNone},
      {"lp_pool",
       {{"kernel_shape", std::vector<int64_t>{2, 2}}, {"p", int64_t{3}}},
       {{{1, 2, 4, 5}}},
       1e-5,
       Row::kNone},
      {"padding_mask", {}, {{{2}, false, 6}, {{2, 5, 8}}}, 1e-5, Row::kNone, false, 1, true},
      {"padding_mask",
       {{"filter", -7.0}},
       {{{4}, false, 6}, {{2, 1, 4, 8}}, {{2, 1, 3, 8}}},
       1e-5,
       Row::kNone,
       false,
       1,
       true},
      {"padding_mask", {}, {{{2, 3, 5}, false, 2}, {{2, 5, 8}}}, 1e-5, Row::kNone, false, 1, true},
      {"rnn", {}, recurrent(1, 1), 1e-5, Row::kNone, false, 2},
      {"rnn",
       {{"direction", std::string("reverse")}, {"activations", std::vector<std::string>{"Relu"}}},
       recurrent(1, 1, true),
       1e-5,
       Row::kNone,
       false,
       2},
      {"gru",
       {{"direction", std::string("bidirectional")}},
       recurrent(3, 2, true),
       1e-5,
       Row::kNone,
       false,
       2},
      {"gru",
       {{"linear_before_reset", int64_t{1}},
        {"clip", 0.7},
        {"activations", std::vector<std::string>{"HardSigmoid", "ScaledTanh"}}},
       recurrent(3, 1),
       1e-5,
       Row::kNone,
       false,
       2},
      {"lstm", {}, recurrent(4, 1), 1e-5, Row::kNone, false, 3},
      {"lstm",
       {{"direction", std::string("bidirectional")}, {"input_forget", int64_t{1}}},
       recurrent(4, 2, true),
       1e-5,
       Row::kNone,
       false,
       3},
      {"lstm",
       {{"direction", std::string("reverse")},
        {"activations", std::vector<std::string>{"Softsign", "Elu", "LeakyRelu"}}},
       recurrent(4, 1, true, true),
       1e-5,
       Row::kNone,
       false,
       3},
      quantized("dequantize_linear", {}, {bytes({3, 37}), positive({}), bytes({})}, true),
      quantized("dequantize_linear", {{"axis", int64_t{1}}},
                {signed_bytes({2, 5, 3}), positive({5}), signed_bytes({5})}, true),
      quantized("dequantize_linear", {{"axis", int64_t{-1}}, {"block_size", int64_t{3}}},
                {bytes({4, 7}), positive({4, 3}), bytes({4, 3})}, true),
      quantized("dequantize_linear", {}, {codes(DType::kI32, {3, 5}), positive({1}), kLeftOut}, true),
      quantized("quantize_linear", {}, {{{3, 37}}, positive({}), bytes({})}),
      quantized("quantize_linear", {{"axis", int64_t{0}}}, {{{3, 5}}, positive({3}), signed_bytes({3})}),
      quantized("quantize_linear", {{"axis", int64_t{1}}, {"block_size", int64_t{2}}},
                {{{2, 5, 3}}, positive({2, 3, 3}), bytes({2, 3, 3})}),
      quantized("quantize_linear", {{"output_dtype", std::string("i16")}}, {{{3, 5}}, positive({1})}),
      {"dynamic_quantize_linear", {}, {{{3, 37}}}, 1e-6, Row::kNone, false, 3, false, false, true},
      {"dynamic_quantize_linear", {}, {positive({5})}, 1e-6, Row::kNone, false, 3, false, false, true},
      quantized("matmul_integer", {}, {bytes({3, 17}), signed_bytes({17, 5}), bytes({}), signed_bytes({})}),
      quantized("matmul_integer", {}, {bytes({2, 3, 7}), bytes({7, 5}), bytes({3}), bytes({5})}),
      quantized("matmul_integer", {}, {signed_bytes({3, 7}), signed_bytes({7, 1})}),
      quantized("conv_integer", {{"pads", std::vector<int64_t>{1, 1, 1, 1}}},
                {bytes({2, 3, 5, 4}), signed_bytes({4, 3, 3, 3}), bytes({}), signed_bytes({4})}),
      quantized("conv_integer", {{"strides", std::vector<int64_t>{2}}, {"group", int64_t{2}}},
                {bytes({1, 4, 9}), bytes({6, 2, 3})}),
      quantized("qlinear_matmul", {},
                {bytes({3, 17}), positive({}), bytes({}), signed_bytes({17, 5}), positive({5}),
                 signed_bytes({5}), positive({}), bytes({})}),
      quantized("qlinear_conv", {{"pads", std::vector<int64_t>{0, 1, 1, 0}}},
                {bytes({2, 3, 5, 4}), positive({}), bytes({}), signed_bytes({4, 3, 3, 2}), positive({4}),
                 signed_bytes({}), positive({}), signed_bytes({}), codes(DType::kI32, {4})}),
      quantized("quantized_add",
                codes_of(0.08, {{"a_scale", 0.05},
                                {"a_zero", int64_t{120}},
                                {"b_scale", 0.03},
                                {"b_zero", int64_t{-5}},
                                {"low", -2.5}}),
                {given_bytes({2, 5}), signed_bytes({5})}),
      layer("quantized_conv",
            codes_of(8, {{"layout", std::string("nhwc")}, {"pads", std::vector<int64_t>{1, 0, 1, 1}}}),
            {given_bytes({2, 5, 4, 3}), signed_bytes({4, 3, 3, 3}), positive({4}), codes(DType::kI32, {4})}),
      layer("quantized_conv",
            {{"x_scale", 0.02}, {"x_zero", int64_t{110}}, {"group", int64_t{4}}, {"low", 0.0}},
            {given_bytes({1, 4, 6, 5}), signed_bytes({4, 1, 3, 3}), positive({1})}, true),
      layer("quantized_conv", added_codes({{"layout", std::string("nhwc")}}),
            {given_bytes({1, 5, 4, 3}), signed_bytes({6, 3, 1, 1}), positive({6}), kLeftOut,
             given_bytes({1, 5, 4, 6})}),
      // A run's scale and zero point, a residual, and weights with zero points.
      layer("quantized_conv",
            {{"layout", std::string("nhwc")}, {"pads", std::vector<int64_t>{1, 0, 1, 1}}, {"low", 0.0}},
            {given_bytes({2, 5, 4, 3}),
             signed_bytes({4, 3, 3, 3}),
             positive({4}),
             {{4}, true},
             {{2, 5, 3, 4}},
             positive({}),
             given_bytes({}),
             signed_bytes({4})},
            true),
      layer("quantized_linear", codes_of(2, {{"activation", std::string("leaky_relu")}, {"act_alpha", 0.1}}),
            {given_bytes({2, 3, 17}), signed_bytes({5, 17}), positive({5}), {{5}, true}}),
      layer("quantized_linear", {{"x_scale", 0.02}, {"x_zero", int64_t{110}}, {"input_major", int64_t{1}}},
            {given_bytes({3, 17}), signed_bytes({17, 5}), positive({1}), kLeftOut, {{3, 5}}}, true),
      layer("quantized_linear", {{"input_major", int64_t{1}}},
            {given_bytes({3, 17}),
             signed_bytes({17, 5}),
             positive({5}),
             {{5}, true},
             kLeftOut,
             positive({}),
             given_bytes({})},
            true),
      layer("quantized_linear", {{"high", 3.0}},
            {given_bytes({3, 17}),
             signed_bytes({5, 17}),
             positive({1}),
             kLeftOut,
             {{3, 5}},
             positive({}),
             given_bytes({}),
             signed_bytes({1})},
            true),
      quantized("gather_nbits", {{"bits", int64_t{4}}, {"block_size", int64_t{4}}},
                {bytes({6, 8}), {{5}, false, 6}, positive({6, 4}), bytes({6, 2})}, true),
      quantized("gather_nbits", {{"bits", int64_t{8}}, {"block_size", int64_t{16}}},
                {bytes({3, 16}), {{2, 2}, false, 3}, positive({3, 1})}, true),
      layer("matmul_nbits",
            {{"N", int64_t{5}}, {"K", int64_t{20}}, {"bits", int64_t{4}}, {"block_size", int64_t{16}}},
            {{{3, 20}}, bytes({5, 2, 8}), positive({10}), bytes({5, 1}), {{5}, true}}, true),
      layer("matmul_nbits",
            {{"N", int64_t{3}}, {"K", int64_t{16}}, {"bits", int64_t{8}}, {"block_size", int64_t{16}}},
            {{{2, 2, 16}}, bytes({3, 1, 16}), positive({3}), positive({3})}, true),
      sums("ij,jk->ik", {{{3, 7}}, {{7, 5}}}),
      sums("bij,bjk", {{{2, 3, 7}}, {{2, 7, 5}}}),
      sums("...ij,...jk->...ik", {{{2, 1, 3, 4}}, {{5, 4, 2}}}),
      sums("ii->i", {{{5, 5}}}),
      sums("iij->j", {{{4, 4, 3}}}),
      sums("i,j,k->kji", {{{2}}, {{3}}, {{4}}}),
      sums("ij,ij->", {{{3, 5}}, {{3, 5}}}),
      sums("ij,kj->ik", {{{3, 1}}, {{2, 7}}}),
      {"swiglu", {}, {{{3, 37}}, {{3, 37}}}},
      {"swiglu", {{"alpha", 1.5}}, {{{3, 37}}, {{3, 37}}}, 1e-5, Row::kNone},
      {"rms_norm", {{"epsilon", 1e-6}}, {{{5, 33}}, {{33}, true}}},
      {"rms_norm", {}, {{{2, 3, 17}}, {{17}, true}}},
      {"rms_norm", {{"axis", int64_t{1}}}, {{{3, 5, 7}}, {{5, 7}, true}}},
      {"layer_norm", {{"epsilon", 1e-6}}, {{{5, 33}}, {{33}, true}, {{33}, true}}},
      {"layer_norm", {}, {{{2, 3, 17}}, {{17}, true}}},
      {"layer_norm", {}, {{{1, 96}}}},
      {"layer_norm", {{"axis", int64_t{-2}}}, {{{3, 5, 7}}, {{5, 7}, true}, {{5, 7}, true}}},
      {"linear", {}, {{{5, 33}}, kLeftOut, {{7, 33}, true}, kLeftOut}, 1e-5, Row::kTyped},
      {"linear", {}, {{{1, 2}}, {{1, 17}}, {{17, 2}, true}, {{17}, true}}, 1e-5, Row::kTyped},
      {"linear",
       {{"input_major", int64_t{1}}, {"activation", std::string("gelu")}},
       {{{2, 3, 33}}, {{2, 3, 5}}, {{33, 5}, true}, {{5}, true}},
       1e-5,
       Row::kNone},
      {"linear",
       {},
       {{{4, 20}}, {{4, 10}}, {{7, 20}, true}, {{7}, true}, {{3, 20}, true}, kLeftOut},
       1e-5,
       Row::kTyped},
      // The kernel's angle is position * frequency of f32: half an ulp of at most 2 * 50.
      {"rope", {}, {{{5, 3, 16}}, {{5}, false, 50}, {{8}, true}, kLeftOut}, 2e-5},
      {"rope",
       {{"interleaved", int64_t{1}}, {"mscale", 1.25}},
       {{{5, 3, 17}}, {{5}, false, 50}, {{5}, true}, {{17}, true}},
       2e-5},
      {"rope", {}, tables({2, 3, 5, 8}, {5, 4}), 1e-5, Row::kNone},
      {"rope", {}, tables({2, 5, 3, 10}, {5, 1, 10}), 1e-5, Row::kNone},
      {"rope",
       {{"interleaved", int64_t{1}}, {"rotary_dim", int64_t{6}}},
       tables({7, 9}, {7, 6}),
       1e-5,
       Row::kNone},
      {"rope", {{"interleaved", int64_t{1}}}, tables({3, 2, 6}, {1}), 1e-5, Row::kNone},
      {"rope", padded_rows(3, 0), tables({2, 5, 24}, {2, 5, 4}), 1e-5, Row::kNone},
      {"rope", padded_rows(0, -1), tables({2, 3, 5, 9}, {2, 5, 2}), 1e-5, Row::kNone},
      {"rope", padded_rows(0, 0), tables({2, 5, 24}, {7, 4}, {2, 5}), 1e-5, Row::kNone},
      {"rope", padded_rows(0, 4), tables({2, 3, 5, 7}, {7, 2}, {2, 5}), 1e-5, Row::kNone},
      {"rope", padded_rows(0, 0), tables({2, 3, 2, 6}, {9, 3}, {1}), 1e-5, Row::kNone},
      {"gather", {}, {{{7, 5}}, {{4}, false, 7}}, 0, Row::kTyped, true},
      {"gather", {}, {{{7, 2, 3}}, {{2, 2}, false, 7}}, 0, Row::kTyped, true},
      {"gather", {{"axis", int64_t{-1}}}, {{{3, 5}}, {{2}, false, 5}}, 0, Row::kNone, true},
      {"reshape", {{"shape", std::vector<int64_t>{0, -1}}}, {{{3, 5, 2}}}, 0, Row::kNone, true},
      moved("transpose", {{"perm", list({2, 0, 1})}}, {{{3, 5, 7}}}),
      moved("transpose", {{"perm", list({1, 0})}}, {{{5, 7}}}),
      moved("concat", {{"axis", int64_t{1}}}, {{{3, 5}}, {{3, 2}}}, Row::kAlways),
      moved("concat", {{"axis", int64_t{0}}}, {{{3, 5}}, {{1, 5}}, {{2, 5}}}),
      moved("pad", {{"pads", list({1, 0, 2, 3})}}, {{{5, 7}}}),
      moved("pad", {{"pads", list({0, -1, 1, 2})}}, {{{5, 7}}}),
      moved("pad", {{"pads", list({1, 2, 1, 0})}, {"mode", std::string("reflect")}}, {{{5, 7}}}, Row::kNone),
      moved("expand", {{"shape", list({2, 3, 5})}}, {{{3, 1}}}),
      moved("expand", {}, {{{1, 5}}, kLeftOut, {{2, 3, 5}}}),
      moved("tile", {{"repeats", list({2, 1, 3})}}, {{{3, 5}}}),
      moved("depth_to_space", {{"blocksize", int64_t{2}}}, {{{2, 8, 3, 2}}}),
      moved("depth_to_space", {{"blocksize", int64_t{2}}, {"mode", std::string("CRD")}}, {{{1, 12, 2, 3}}}),
      moved("space_to_depth", {{"blocksize", int64_t{2}}}, {{{2, 3, 4, 6}}}),
      moved("contiguous", {}, {{{3, 5, 2}}}, Row::kTyped),
      moved("cast", {}, {{{3, 37}}, {{2}}}, Row::kNone),
      {"cast", {}, {codes(DType::kI32, {3, 5}, false), {{2}}}, 0, Row::kNone},
      {"cast", {{"to", std::string("f32")}}, {{{3, 37}}}, 0, Row::kNone, false, 1, true},
      {"cast",
       {{"to", std::string("f32")}},
       {codes(DType::kI32, {3, 5}, false)},
       0,
       Row::kNone,
       false,
       1,
       true},
      {"slice",
       {{"axes", std::vector<int64_t>{1, 0}},
        {"starts", std::vector<int64_t>{1, -2}},
        {"ends", std::vector<int64_t>{4, 5}}},
       {{{5, 7}}},
       0,
       Row::kNone,
       true},
      {"slice",
       {{"axes", std::vector<int64_t>{-1}},
        {"starts", std::vector<int64_t>{-1}},
        {"ends", std::vector<int64_t>{-8}},
        {"steps", std::vector<int64_t>{-3}}},
       {{{2, 7}}},
       0,
       Row::kNone,
       true},
  };
  return rows;
}

std::vector<HostValue> values_for(const Row& row, DType dtype) {
  std::mt19937 random(7);
  std::vector<HostValue> out;
  for (const Argument& a : row.operands) {
    HostValue v;
    if (a.none) {
      out.push_back(std::move(v));
      continue;
    }
    v.shape = Shape(a.dims);
    v.dtype = a.codes ? *a.codes : a.indices > 0 ? DType::kI32 : dtype;
    std::uniform_real_distribution<float> u(-2, 2);
    for (int64_t k = 0; k < v.shape.numel(); ++k) {
      if (a.codes) {
        // Of wide types as many as their sums are exact in f32.
        const int bits = std::min(dtype_bits(*a.codes), 16);
        const int64_t least = *a.codes == DType::kU8 ? 0 : -(int64_t{1} << (bits - 1));
        v.i.push_back(least + static_cast<int64_t>(random() % (uint64_t{1} << bits)));
      } else if (a.indices > 0)
        v.i.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(a.indices)));
      else v.f.push_back(a.above ? 0.25 + std::abs(u(random)) : u(random));
    }
    // As the dtype has them.
    const auto t = to_tensor(v);
    REQUIRE_OK(t);
    out.push_back(std::move(*host_value(*t)));
  }
  return out;
}

// Undefined for an operand left out.
std::vector<Tensor> tensors_of(const Row& row, const std::vector<HostValue>& values) {
  std::vector<Tensor> out;
  for (size_t k = 0; k < values.size(); ++k)
    out.push_back(row.operands[k].none ? Tensor() : std::move(*to_tensor(values[k])));
  return out;
}
std::vector<Datum> data_of(const std::vector<Tensor>& tensors) {
  std::vector<Datum> out;
  for (const Tensor& t : tensors) out.push_back(t.defined() ? Datum(t) : Datum());
  return out;
}

void check_near(const Tensor& got, const HostValue& want, double bound) {
  CHECK(got.format() == Format::of(want.dtype));
  REQUIRE(got.shape() == want.shape);
  const auto v = host_value(got);
  REQUIRE_OK(v);
  if (!want.is_float()) CHECK(v->i == want.i);
  else CHECK(oar_test::distance(v->f, want.f) <= bound);
}

std::vector<Isa> levels() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::kReference, Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    if (isa < best_isa()) out.push_back(isa);
  }
  out.push_back(best_isa());
  return out;
}

// The row as a graph: operands that may be weights are constants, or inputs as all others.
struct RowGraph {
  Graph graph;
  std::vector<Tensor> inputs;

  RowGraph(const Row& row, const std::vector<Tensor>& operands, bool constants, bool typed) {
    std::vector<ValueId> ids;
    for (size_t k = 0; k < operands.size(); ++k) {
      const Tensor& t = operands[k];
      if (row.operands[k].none) {
        ids.push_back(kNoValue);
        continue;
      }
      if (row.operands[k].weight && constants) {
        ids.push_back(graph.add_constant(cat("w", k), t));
        continue;
      }
      TensorType type{t.format(), {}};
      for (const int64_t d : t.shape()) type.shape.emplace_back(d);
      ids.push_back(graph.add_input(cat("x", k), typed ? type : TensorType::unknown()));
      inputs.push_back(t);
    }
    if (typed) {
      const auto made = graph.add_node(find_op(row.op), ids, row.attrs);
      REQUIRE_OK(made);
      graph.add_output("y", (*made)[0]);
    } else {
      const auto made = graph.append(find_op(row.op), ids, row.results, row.attrs);
      for (size_t k = 0; k < made.size(); ++k) graph.add_output(cat("y", k), made[k]);
    }
  }
};

void check_program(const Row& row, const std::vector<Tensor>& operands, bool constants, const HostValue& want,
                   Backend& backend) {
  RowGraph g(row, operands, constants, true);
  std::string missing;  // what has no kernel
  ProgramOptions options;
  options.log.callback = [&](LogLevel level, std::string_view said) {
    if (level == LogLevel::kWarning) missing += said;
  };
  const auto program = Program::create(std::move(g.graph), backend, options);
  REQUIRE_OK(program);
  if (row.kernel != Row::kNone) CHECK((*program)->graph().nodes().back().is(row.op));
  if (row.kernel == Row::kAlways || (row.kernel == Row::kTyped && constants)) CHECK(missing == "");
  const auto run = Run::create(*program);
  REQUIRE_OK(run);
  std::vector<const void*> bytes;
  for (const Tensor& t : g.inputs) bytes.push_back(t.data());
  REQUIRE_OK((*run)->run(std::vector<int64_t>{}, bytes));
  std::vector<float> out(static_cast<size_t>(want.shape.numel()), NAN);
  REQUIRE_OK((*run)->read_output(0, out));
  CHECK(oar_test::distance({out.begin(), out.end()}, want.f) <= row.bound);
}

void check_evaluator(const Row& row, const std::vector<Tensor>& operands, bool constants,
                     const HostValue& want, Backend& backend) {
  RowGraph g(row, operands, constants, false);
  const auto graph = std::make_shared<const Graph>(std::move(g.graph));
  if (row.kernel == Row::kAlways || row.kernel == Row::kRun) {
    const std::vector<Datum> data = data_of(operands);
    std::vector<const Datum*> pointers;
    for (const Datum& d : data) pointers.push_back(&d);
    WeightStore weights(backend);
    const auto call = bind_call(*graph, graph->nodes()[0], pointers, weights, Prepared());
    REQUIRE_OK(call);
    CHECK((*call)->op != nullptr);
  }
  const auto evaluator = Evaluator::create(graph, backend);
  REQUIRE_OK(evaluator);
  EvalOptions options;
  options.backend = &backend;
  const auto out = (*evaluator)->run({g.inputs.begin(), g.inputs.end()}, options);
  REQUIRE_OK(out);
  check_near((*out)[0].tensor, want, row.moves ? 0 : row.bound);
}

}  // namespace

TEST_CASE("definition, kernel and evaluation of an op agree") {
  oar_test::Sample sample(3);
  for (const Row& row : table()) {
    if (!sample.take()) continue;
    INFO(row.op << " of " << Shape(row.operands[0].dims).to_string());
    const OpDef* op = find_op(row.op);
    REQUIRE(op != nullptr);
    REQUIRE(op->evaluate != nullptr);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      INFO(dtype_name(dtype));
      if (row.only_f32 && dtype != DType::kF32) continue;
      const std::vector<HostValue> values = values_for(row, dtype);
      std::vector<const HostValue*> operands;
      for (size_t k = 0; k < values.size(); ++k)
        operands.push_back(row.operands[k].none ? nullptr : &values[k]);
      auto made = evaluate_node(*op, operands, row.attrs);
      REQUIRE_OK(made);
      REQUIRE(made->size() >= row.results);
      for (HostValue& v : *made) {
        if (v.is_float() && !row.wide) v.dtype = dtype;  // language models have f32 between ops
      }
      const HostValue& want = (*made)[0];
      const std::vector<Tensor> tensors = tensors_of(row, values);
      // One rounding to the dtype beside that of the definition, by half a unit each.
      const double unit = dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : row.bound;
      RowGraph g(row, tensors, false, false);
      const std::vector<Datum> data = data_of(tensors);
      std::vector<const Datum*> pointers;
      for (const Datum& d : data) pointers.push_back(&d);
      for (const auto run : {evaluate_op, compute_op}) {
        INFO((run == evaluate_op ? "evaluated" : "by kernels"));
        const auto got = run(g.graph.nodes()[0], pointers, {});
        REQUIRE_OK(got);
        for (size_t k = 0; k < row.results; ++k)
          check_near((*got)[k].tensor, (*made)[k], row.moves ? 0 : unit);
      }
      if (dtype != DType::kF32) continue;
      for (const Isa isa : levels()) {
        INFO(isa_name(isa));
        const auto backend =
            make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), isa);
        for (const bool constants : {true, false}) {
          INFO(constants);
          if (row.prepared && !constants) continue;
          if (want.is_float() && !row.prepared) check_program(row, tensors, constants, want, *backend);
          check_evaluator(row, tensors, constants, want, *backend);
        }
      }
    }
  }
}

TEST_CASE("every op with a kernel or a definition has a row here, or a test of its own") {
  // Those that need a served model's state, or operands that no random numbers are.
  const std::map<std::string_view, const char*> elsewhere{
      {"add_rms_norm", "graph/definitions_test.cc"},
      {"expanded_attention", "models/latent_test.cc"},
      {"gated_linear", "graph/passes_test.cc"},
      {"generated_rows", "models/latent_test.cc"},
      {"kv_append", "kernels/attention_test.cc"},
      {"lora", "kernels/lora_test.cc"},
      {"moe_route", "kernels/moe_test.cc"},
      {"paged_attention", "kernels/attention_test.cc"},
      {"quant_kv_append", "kernels/attention_quant_test.cc"},
      {"quant_paged_attention", "kernels/attention_quant_test.cc"},
      {"resize", "kernels/resize_test.cc"},
      {"served_causal_conv", "models/state_test.cc"},
      {"served_state_scan", "kernels/state_scan_test.cc"},
      {"split", "graph/moved_test.cc"},
  };
  std::set<std::string_view> rows;
  for (const Row& row : table()) rows.insert(row.op);
  for (const OpDef* op : all_ops()) {
    if (op->lower == nullptr && op->by_kernels == nullptr && op->define == nullptr) continue;
    INFO(op->name);
    CHECK(rows.contains(op->name) != elsewhere.contains(op->name));
  }
  for (const auto& [name, where] : elsewhere) {
    INFO(name);
    CHECK(find_op(name) != nullptr);
    CHECK(std::ifstream(cat(OAR_SOURCE_DIR "/tests/", where)).good());
  }
}
