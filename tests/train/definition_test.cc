// What defines the ops of training: the same results, gradients, and how often they are differentiated.

#include <random>

#include "engine/graph/pass.h"
#include "engine/graph/passes/grad.h"
#include "tests/train/one_op.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

// An op of training over small operands.
struct Form {
  const OpDef& op;
  std::vector<TensorType> in;  // of no known type: left out
  Attrs attrs = {};
  size_t result = 0;
  std::vector<size_t> wanted = {};  // operands that have a gradient; empty: all floats
};

std::vector<Form> forms() {
  using Ints = std::vector<int64_t>;
  const TensorType matrix = f32_of({4, 6}), out = f32_of({4, 5}), w = f32_of({5, 6}), a = f32_of({2, 6}),
                   up = f32_of({5, 2}), bias = f32_of({5}), columns = f32_of({6}), heads = f32_of({4, 2, 8}),
                   images = f32_of({4, 3, 2}), channels = f32_of({3}), rows{Format::i32(), {Dim(4)}},
                   starts{Format::i32(), {Dim(3)}}, none = TensorType::unknown();
  const Attrs scale{{"scale", 0.3}}, factor{{"factor", 0.5}}, epsilon{{"epsilon", 1e-3}},
      experts{{"experts", int64_t{2}}};
  return {
      {op_segment_attention, {heads, heads, heads, rows, rows}, scale},
      {op_segment_attention_back, {heads, heads, heads, rows, rows, heads}, scale},
      {op_segment_attention, {heads, heads, heads, rows, rows, f32_of({2})}, scale},
      {op_segment_attention_back, {heads, heads, heads, rows, rows, heads, f32_of({2})}, scale},
      {op_rotate, {heads, rows, f32_of({4})}, {}, 0, {0}},
      {op_table_rows, {f32_of({7, 6}), rows}, {{"scale", 1.5}}},
      {op_barrier, {matrix, matrix}},
      {op_rows_linear, {matrix, w, bias}},
      {op_rows_product, {out, w}},
      {op_rows_gradient, {out, matrix}},
      {op_lora_linear, {matrix, w, bias, a, up}, factor, 0, {0, 3, 4}},
      {op_lora_back, {out, w, a, up}, factor, 1},
      {op_rows_rms_norm, {matrix, columns}, epsilon},
      {op_rows_rms_norm_back, {matrix, columns, matrix}, epsilon},
      {op_rows_add, {matrix, matrix}},
      {op_rows_swiglu, {matrix, matrix}},
      {op_rows_swiglu_back, {matrix, matrix, matrix}},
      {op_segment_scan,
       {f32_of({4, 1, 3}), f32_of({4, 1, 3}), f32_of({4, 1, 2}), f32_of({4, 1}), f32_of({4, 1}), rows},
       {{"delta", int64_t{1}}}},
      {op_batch_statistics_norm, {images, channels, channels}, epsilon},
      {op_batch_statistics_norm_back, {images, channels, channels, channels, images}, epsilon},
      {op_counted_dropout, {matrix, {Format::of(DType::kI64), {}}}, {{"rate", 0.1}, {"site", int64_t{0}}}},
      {op_expert_rows, {matrix, none, starts, none, w, w}, experts},
      {op_expert_rows, {matrix, none, starts, f32_of({2, 5}), w, w}, experts},
      {op_expert_rows_back, {out, none, starts, none, w, w}, experts},
      {op_expert_products, {out, matrix, none, starts}, {{"expert", int64_t{1}}, {"rows", Ints{5}}}},
      {op_route, {matrix}, {{"top_k", int64_t{2}}}, 2},
      {op_row_parts, {f32_of({2, 3, 4})}, {{"rows", Ints{1, 3, 0, 2}}}, 1}};
}

}  // namespace

TEST_CASE("ops of training are differentiated as often as is said of them") {
  std::map<std::string_view, std::string_view> said;
  for (const TrainingOp& t : training_ops()) {
    CHECK(find_op(t.op->name) == nullptr);  // in no registry
    CHECK(said.emplace(t.op->name, t.gradient).second);
    if (t.gradient == std::string_view("not")) CHECK(t.op->vjp == nullptr);
  }
  auto without_form = said;
  for (const Form& c : forms()) {
    INFO(c.op.name);
    Graph g;
    Builder b(g);
    std::vector<Val> in;
    for (const TensorType& type : c.in)
      in.push_back(type.known ? Val{g.add_input(cat("in ", in.size()), type)} : Val{});
    const std::vector<Val> made = emit(b, c.op, in, c.attrs);
    REQUIRE(b.status().ok());
    const ValueId by[] = {in[0].id};
    std::string failure;
    Val y = made[c.result];
    for (int order = 1; order <= 2 && failure.empty(); ++order) {
      const ValueId of[] = {b.op("square", {y}).id};
      REQUIRE(b.status().ok());
      auto next = passes::grad(g, of, by, {.prefix = cat("order ", order, "/")});
      if (!next.ok()) failure = cat(order, ": ", next.status().message());
      else g = std::move(*next), y = {*passes::find_value(g, cat("order ", order, "/in 0"))};
    }
    INFO(failure);
    CHECK(failure.find("1: ") != 0);
    CHECK((said.at(c.op.name) == "any order") == failure.empty());
    if (!failure.empty()) CHECK(failure.find(" has no gradient") != std::string::npos);
    without_form.erase(c.op.name);
  }
  for (const auto& [name, gradient] : without_form) {
    INFO(name);
    CHECK(gradient == "not");
  }
}

TEST_CASE("what ops of training are said to have no gradient of is refused by name") {
  std::map<std::string_view, size_t> refused;
  for (const Form& c : forms()) {
    if (c.op.no_gradient_of == nullptr) continue;
    INFO(c.op.name << ": " << c.op.no_gradient_of);
    Graph g;
    Builder b(g);
    std::vector<Val> in;
    for (const TensorType& type : c.in) in.push_back({g.add_input(cat("in ", in.size()), type)});
    const std::vector<Val> made = emit(b, c.op, in, c.attrs);
    REQUIRE(b.status().ok());
    // Of an adapter's layer the weight and the bias as operands, of a norm its numbers as results.
    const bool adapter = &c.op == &op_lora_linear;
    for (const size_t k : {1, 2}) {
      const ValueId by[] = {in[adapter ? k : 0].id}, of[] = {made[adapter ? 0 : k].id};
      const Status s = passes::grad(g, of, by).status();
      INFO(s.message());
      CHECK(s.code() == StatusCode::kUnimplemented);
      CHECK(s.message().find(adapter ? "the layer itself" : "mean and variance") != std::string::npos);
    }
    ++refused[c.op.name];
  }
  for (const TrainingOp& t : training_ops())
    CHECK((t.op->no_gradient_of != nullptr) == refused.contains(t.op->name));
}

TEST_CASE("ops of training mean what defines them, and its gradients equal differences to second order") {
  for (const Form& c : forms()) {
    if (c.op.define == nullptr) continue;
    INFO(c.op.name);
    Graph g;
    Builder b(g);
    std::mt19937 random(3);
    Inputs inputs;
    std::vector<Val> in;
    std::vector<std::string> wanted;
    for (size_t k = 0; k < c.in.size(); ++k) {
      in.emplace_back();
      if (!c.in[k].known) continue;
      HostValue v;
      std::vector<int64_t> dims;
      for (const Dim& d : c.in[k].shape) dims.push_back(d.const_value());
      v.shape = Shape(dims), v.dtype = c.in[k].format.dtype();
      const std::string name = cat("in ", k);
      if (!v.is_float()) {
        v.i = dims[0] == 3 ? std::vector<int64_t>{0, 1, 4} : std::vector<int64_t>{0, 0, 1, 1};
      } else {
        v.f = apart(v.shape.numel(), -1.3, 1.2, random);
        if (c.wanted.empty() || std::count(c.wanted.begin(), c.wanted.end(), k) > 0) wanted.push_back(name);
      }
      in.back() = {g.add_input(name, c.in[k])};
      inputs[name] = std::move(v);
    }
    const std::vector<Val> made = emit(b, c.op, in, c.attrs);
    REQUIRE(b.status().ok());
    HostValue by;
    std::vector<int64_t> dims;
    for (const Dim& d : b.shape(made[c.result])) dims.push_back(d.const_value());
    by.shape = Shape(dims);
    by.f = apart(by.shape.numel(), -0.7, 1.1, random);
    const Val seed{g.add_input("seed", type_of(by))};
    inputs["seed"] = by;
    const Val L = b.op("reduce_sum", {b.op("mul", {made[c.result], seed})}, {{"keepdims", int64_t{0}}});
    REQUIRE(b.status().ok());
    g.add_output("L", L.id);
    check_gradients(g, inputs, wanted, 2);
    // What is left out is no tensor; and here no batch has this mean and variance (image_test.cc).
    if (inputs.size() <= in.size() || &c.op == &op_batch_statistics_norm_back) continue;
    std::vector<Tensor> operands;
    for (size_t k = 0; k < in.size(); ++k) operands.push_back(to_tensor(inputs.at(cat("in ", k))).value());
    const auto want = defined_results(c.op, operands, c.attrs);
    const auto got = OneOp(c.op, operands, 9, c.attrs).run();
    REQUIRE(got.size() == want.size());
    for (size_t k = 0; k < got.size(); ++k) check_close(got[k], want[k].f, 4);
  }
}

TEST_CASE("a step decomposes into ops without definitions, which have the gradients that kernels have") {
  for (const std::string name : {"llama3", "qwen3-moe", "gpt-oss", "llama4", "minicpm3"}) {
    for (const bool full : {true, false}) {
      if (full && name != "llama3" && name != "qwen3-moe") continue;
      INFO(name << (full ? " full" : " lora"));
      const TinyGolden golden = load_tiny_golden(name);
      const Checkpoint c = load_checkpoint(write_tiny_model(golden, TinyDtype::f32)).value();
      GraphOptions o;
      o.tokens = 12, o.full = full, o.lora.targets = {"all"};
      ModelGraphs graphs = build_model_graphs(c, read_model_config(c.config).value(), o).value();
      std::vector<Tensor> values = first_values(graphs, c);
      for (size_t k = 0; k < values.size() && !full; ++k)  // B is zero, and A would have no gradient
        if (graphs.parameters[k].name.ends_with(".lora_B.weight"))
          values[k] = f32(values[k].shape(), random_values(static_cast<size_t>(values[k].numel()), 5, 0.1f));
      oar_test::SampleRows rows;
      rows.add({3, 1, 4, 1, 5}, next_tokens({3, 1, 4, 1, 5}));
      rows.add({9, 2, 6}, next_tokens({9, 2, 6}));
      rows.pad(12);
      const std::vector<Tensor> want = micro_batch(graphs, values, rows);
      Graph g = *graphs.step;
      const auto rewrites = decompose(g, [](const Node&) { return false; });
      INFO((rewrites.ok() ? std::string() : rewrites.status().message()));
      REQUIRE(rewrites.ok());
      for (const Node& n : g.nodes()) CHECK(n.op->define == nullptr);
      graphs.step = std::make_shared<const Graph>(std::move(g));
      const std::vector<Tensor> got = micro_batch(graphs, values, rows);
      REQUIRE(got.size() == want.size());
      for (size_t k = 0; k < want.size(); ++k) {
        double most = 1e-3;
        for (const float v : want[k].values<float>()) most = std::max(most, std::abs(static_cast<double>(v)));
        CHECK(farthest(got[k], host(want[k]).f) < 2e-5 * most);
      }
    }
  }
}
