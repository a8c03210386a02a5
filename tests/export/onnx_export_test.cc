// ONNX written from our graphs: what is read back computes the same. Random graphs over the ops that
// importers emit, control flow, every element type, external data, real models of three formats; and what
// cannot be written says why.
#include <filesystem>
#include <fstream>

#include "engine/export/export.h"
#include "engine/import/onnx.h"
#include "engine/import/onnx_proto.h"
#include "tests/export/export_models.h"

using namespace oar;
using namespace oar_test;  // NOLINT: the helpers of this room

namespace {

namespace fs = std::filesystem;

// Exports, reads back, and compares the two on `inputs`. False: it does not run on these. 1e-6: what an op
// spelled out (swish) rounds elsewhere.
// ONNX cannot say that an extent is only the usual one.
IoSpec declared(IoSpec io) {
  for (IoDim& d : io.dims) d = {d.declared(), d.name};
  return io;
}

bool round_trip(const ImportedModel& model, const std::vector<Datum>& inputs, double tolerance = 1e-6,
                const OnnxExportOptions& options = {}) {
  const std::string path = temp("round_trip.onnx");
  const Status written = export_onnx(model, path, options);
  INFO(written.message());
  REQUIRE(written.ok());
  auto again = import_model(path);
  REQUIRE_OK(again);
  REQUIRE(again->inputs.size() == model.inputs.size());
  for (size_t k = 0; k < model.inputs.size(); ++k)
    CHECK(again->inputs[k].to_string() == declared(model.inputs[k]).to_string());
  REQUIRE(again->outputs.size() == model.outputs.size());
  for (size_t k = 0; k < model.outputs.size(); ++k) CHECK(again->outputs[k].name == model.outputs[k].name);
  // Once more: what was read back is written as it was.
  const std::string twice = temp("twice.onnx");
  REQUIRE(export_onnx(*again, twice, {}).ok());
  const auto first = predictor_of(model), second = predictor_of(std::move(*again));
  const auto want = first->run(inputs);
  const auto got = second->run(inputs);
  REQUIRE(want.ok() == got.ok());
  INFO((want.ok() ? "" : want.status().message()));
  if (!want.ok()) return false;
  for (size_t k = 0; k < want->size(); ++k) {
    INFO(model.outputs[k].name);
    CHECK(difference((*got)[k], (*want)[k]) <= tolerance);
  }
  return true;
}

TEST_CASE("ONNX export: random graphs are the same when they are read back") {
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    INFO(seed);
    const ImportedModel model = RandomGraph(seed).build(1 + static_cast<int>(seed % 12));
    CHECK(round_trip(model, {Datum(numbers({2, 3, 4}, DType::kF32, seed + 1000)),
                             Datum(numbers({2, 3, 4}, DType::kF32, seed + 2000))}));
  }
}

TEST_CASE("ONNX export: constants of every element type, inline and beside the file") {
  ImportedModel model;
  model.graph = std::make_shared<Graph>();
  model.inputs.push_back(spec("x", DType::kF32, {{1, ""}}));
  add_graph_input(*model.graph, model.inputs[0]);
  OpWriter w(*model.graph);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI8, DType::kU8,
                            DType::kI16, DType::kU16, DType::kI32, DType::kU32, DType::kI64, DType::kU64,
                            DType::kE4M3, DType::kE5M2, DType::kI4, DType::kU4}) {
    const std::string name = dtype_name(dtype);
    model.graph->add_output(name,
                            w.op("identity", {w.constant(numbers({37, 33}, dtype, 5), name + "_c")}).id);
    model.outputs.push_back(result(name, dtype));
  }
  REQUIRE(w.status().ok());
  const std::vector<Datum> x = {Datum(numbers({1}, DType::kF32, 1))};
  CHECK(round_trip(model, x, 0));
  CHECK(round_trip(model, x, 0, {.inline_bytes = 100}));
  CHECK(fs::file_size(temp("round_trip.onnx.data")) > 37 * 33 * 8);
  CHECK(fs::file_size(temp("round_trip.onnx")) < 20'000);
}

TEST_CASE("ONNX export: operands that are aligned at an axis") {
  for (const int64_t axis : {0, 1}) {
    for (const char* op : {"add", "sub", "mul", "div", "max"}) {
      INFO(op << " " << axis);
      ImportedModel model;
      auto g = std::make_shared<Graph>();
      model.graph = g;
      model.inputs = {spec("x", DType::kF32, {{3, ""}, {3, ""}, {5, ""}}), spec("y", DType::kF32, {{3, ""}})};
      const Val x{add_graph_input(*g, model.inputs[0])}, y{add_graph_input(*g, model.inputs[1])};
      OpWriter w(*g);
      g->add_output("z", w.op(op, {x, y}, {{"axis", axis}}).id);
      REQUIRE(w.status().ok());
      model.outputs.push_back(result("z"));
      CHECK(round_trip(model,
                       {Datum(numbers({3, 3, 5}, DType::kF32, 1)), Datum(numbers({3}, DType::kF32, 2))}, 0));
    }
  }
}

TEST_CASE("ONNX export: a loop keeps its state and what it scans") {
  // state = state + x, `trips` times; scanned: each state times the outer y.
  ImportedModel model;
  auto g = std::make_shared<Graph>();
  model.graph = g;
  for (const char* name : {"x", "y"}) model.inputs.push_back(spec(name, DType::kF32, {{3, ""}}));
  const Val x{add_graph_input(*g, model.inputs[0])}, y{add_graph_input(*g, model.inputs[1])};
  auto body = std::make_shared<Graph>();
  OpWriter inner(*body);
  const Val trip{body->add_input("trip", TensorType::unknown())},
      go{body->add_input("go", TensorType::unknown())},
      state{body->add_input("state", TensorType::unknown())},
      outer{body->add_input("y", TensorType::unknown())};
  (void)trip;
  const Val next = inner.op("add", {state, inner.op("mul", {state, inner.float_scalar(0.5)})});
  body->add_output("go", inner.op("identity", {go}).id);
  body->add_output("state", next.id);
  body->add_output("scanned", inner.op("mul", {next, outer}).id);
  OpWriter w(*g);
  w.set_node_name("the loop");
  const auto out = w.ops("loop", {w.int_scalar(5), {}, x, y}, 2, {{"states", int64_t{1}}}, {body});
  REQUIRE(w.status().ok());
  g->add_output("state", out[0].id);
  g->add_output("all", out[1].id);
  model.outputs = {result("state"), result("all")};
  CHECK(round_trip(model, {Datum(numbers({3}, DType::kF32, 3)), Datum(numbers({3}, DType::kF32, 4))}));
  // What onnxruntime wants to know of the body: its trip count and condition are scalars.
  const std::string written = read_file(temp("round_trip.onnx"));
  const auto msg = onnx::read_model(written);
  REQUIRE_OK(msg);
  const onnx::NodeMsg& node = msg->graph.nodes.at(0);
  REQUIRE(node.op == "Loop");
  const onnx::GraphMsg& inner_graph = node.attrs.at(0).graphs.at(0);
  const auto typed = [](const onnx::ValueMsg& v, DType dtype, bool scalar) {
    CHECK(v.type.elem == onnx_type_of(dtype));
    CHECK(v.type.ranked == scalar);
    CHECK(v.type.dims.empty());
  };
  typed(inner_graph.inputs.at(0), DType::kI64, true);
  typed(inner_graph.inputs.at(1), DType::kBool, true);
  typed(inner_graph.inputs.at(2), DType::kF32, false);  // its extents may change from trip to trip
  typed(inner_graph.outputs.at(0), DType::kBool, false);
}

TEST_CASE("ONNX export: what cannot be written names node and op, and leaves the file alone") {
  const std::string path = temp("refused.onnx");
  const auto refusal = [&](const char* op, Attrs attrs, size_t operands = 1) {
    ImportedModel model;
    auto g = std::make_shared<Graph>();
    model.graph = g;
    model.inputs.push_back(spec("x", DType::kF32, {{3, ""}}));
    const Val x{add_graph_input(*g, model.inputs[0])};
    OpWriter w(*g);
    w.set_node_name("culprit");
    g->add_output("y", w.op(op, std::vector<Val>(operands, x), std::move(attrs)).id);
    REQUIRE(w.status().ok());
    model.outputs.push_back(result("y"));
    std::ofstream(path) << "kept";
    const Status s = export_onnx(model, path);
    CHECK(s.code() == StatusCode::kUnimplemented);
    CHECK(oar_test::read_file(path) == "kept");
    CHECK_THAT(s.message(), Contains("node 'culprit'") && Contains(op));
    return s.message();
  };
  CHECK_THAT(refusal("quantized_add", {}), Contains("no op for it"));
  CHECK_THAT(refusal("relu", {{"axis", int64_t{0}}}), Contains("'axis'"));
  CHECK_THAT(refusal("leaky_relu", {{"alpha", std::string("x")}}), Contains("'alpha'") && Contains("type"));
  CHECK_THAT(refusal("cast", {{"to", std::string("nonsense")}}), Contains("nonsense"));
  const ImportedModel model = RandomGraph(3).build(2);
  CHECK(export_onnx(model, "/nonexistent/folder/x.onnx").code() == StatusCode::kUnavailable);
}

TEST_CASE("ONNX export: trained models of three formats compute the same when they are read back") {
  const auto compared =
      each_published([](const char*, const ImportedModel& model, const std::vector<Datum>& inputs) {
        CHECK(round_trip(model, inputs, 1e-5));
        return true;
      });
  CHECK(compared >= 3);
}

}  // namespace
