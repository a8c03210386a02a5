// What users of Predictor see besides results: shared memory, wrong inputs, the trace, the summary.
#include "engine/runtime/predictor.h"

#include <fstream>
#include <random>

#include "engine/base/json.h"
#include "engine/runtime/chrome_trace.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT

// y = exp(x w), x (batch, 3).
std::unique_ptr<Predictor> small_model(const PredictorOptions& options = {}) {
  const std::string path = temp_dir() + "/predictor.onnx";
  std::ofstream(path, std::ios::binary)
      << model_bytes(graph_proto({node_proto("MatMul", {"x", "w"}, {"a"}), node_proto("Exp", {"a"}, {"y"})},
                                 {tensor_proto("w", {3, 2}, {1, 0, 0, 1, 0, 0})}, {value_proto("x", {-1, 3})},
                                 {value_proto("y", {-1, 2})}));
  auto predictor = Predictor::open(path, options);
  REQUIRE_OK(predictor);
  return std::move(*predictor);
}

}  // namespace

TEST_CASE("predictor: the caller's memory is an input without a copy") {
  const auto p = small_model();
  alignas(64) float x[6] = {0, 1, 2, 3, 4, 5};
  auto owner = std::make_shared<int>(0);
  {
    auto shared = share_memory(x, sizeof x, {2, 3}, DType::kF32, owner);
    REQUIRE_OK(shared);
    CHECK(shared->data() == x);
    CHECK(owner.use_count() == 2);
    const auto results = p->run(std::vector<Datum>{*shared});
    REQUIRE_OK(results);
    CHECK(std::abs((*results)[0].tensor.values<float>()[1] - std::exp(1.0f)) < 1e-6f);
    x[1] = 0;
    const auto again = p->run(std::vector<Datum>{*shared});
    REQUIRE_OK(again);
    CHECK((*again)[0].tensor.values<float>()[1] == 1.0f);
  }
  CHECK(owner.use_count() == 1);
  CHECK(share_memory(x, 20, {2, 3}, DType::kF32).status().message() == "bytes is 20 but f32[2, 3] takes 24");
  CHECK(share_memory(reinterpret_cast<char*>(x) + 1, 12, {1, 3}, DType::kF32).status().message() ==
        "data is not aligned to 4 bytes");
  CHECK_FALSE(share_memory(x, 24, {2}, DType::kString).ok());
}

TEST_CASE("predictor: a profile is a trace that viewers read") {
  const auto p = small_model();
  std::vector<NodeTime> times;
  REQUIRE_OK(p->profile({Datum(must(Tensor::zeros({4, 3}, Format::f32())))}, &times));
  REQUIRE(times.size() == p->graph().nodes().size());
  times[0].name = "quote \" and \\ and \n";
  const auto parsed = parse_json(chrome_trace(times, "a model"), "trace");
  REQUIRE_OK(parsed);
  const auto& events = parsed->at("traceEvents").as_array();
  REQUIRE(events.size() == times.size() + 1);
  CHECK(events[0].at("args").at("name").as_string() == "a model");
  double end = 0;
  for (size_t k = 0; k < times.size(); ++k) {
    const auto& e = events[k + 1];
    CHECK(e.at("ph").as_string() == "X");
    CHECK(e.at("name").as_string() == times[k].op);
    CHECK(e.at("args").at("node").as_string() == times[k].name);
    CHECK(e.at("ts").to_number<double>() >= end);
    end = e.at("ts").to_number<double>() + e.at("dur").to_number<double>() - 1e-6;
  }
  CHECK(parse_json(chrome_trace({}, "nothing"), "trace").ok());
}

TEST_CASE("predictor: the summary names inputs, passes, ops and what was switched off") {
  PredictorOptions options;
  options.threads = 1;
  options.disabled_passes = {"matmul_to_linear"};
  const std::string s = small_model(options)->summary();
  for (const char* part :
       {"format   onnx by test", "input    x: f32[batch, 3]", "output   y: f32[batch, 2]",
        "pass     matmul_to_linear: off", "op       1 x matmul", "op       1 x exp", "threads  1"}) {
    INFO(s);
    CHECK(s.find(part) != std::string::npos);
  }
  options.disabled_passes = {"fuse_danse"};
  const auto unknown = Predictor::open(temp_dir() + "/predictor.onnx", options);
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.status().message().find("fuse_danse") != std::string::npos);
}

TEST_CASE("predictor: steps without a kernel are named, at load and by what they took") {
  const auto path = temp_dir() + "/loops.onnx";
  std::ofstream(path, std::ios::binary)
      << model_bytes(graph_proto({node_proto("Exp", {"x"}, {"a"}), node_proto("Det", {"a"}, {"y"})}, {},
                                 {value_proto("x", {8, 256, 256})}, {value_proto("y", {8})}));
  std::vector<std::string> said;
  PredictorOptions options;
  options.log = Logger([&](LogLevel level, std::string_view text) {
    if (level >= LogLevel::kInfo) said.emplace_back(text);
  });
  auto opened = Predictor::open(path, options);
  REQUIRE_OK(opened);
  const auto p = std::move(*opened);
  const auto has = [&](std::string_view part) {
    return std::any_of(said.begin(), said.end(),
                       [&](const std::string& s) { return s.find(part) != std::string::npos; });
  };
  CHECK(
      has("1 of 2 steps have no kernel and run as plain loops over operands and results of: det (2.0 MiB)"));

  const Shape shape{8, 256, 256};
  const auto found = p->steps(std::span(&shape, 1));
  REQUIRE_OK(found);
  const std::vector<StepGroup>& steps = *found;
  REQUIRE(steps.size() == 2);
  CHECK((steps[0].op == "exp" && steps[0].steps == 1 && steps[0].bytes == 2 * 8 * 256 * 256 * 4));
  CHECK_FALSE(steps[0].where.empty());
  CHECK((steps[1].op == "det" && steps[1].where.empty() && !steps[1].on_device));
  CHECK(steps[1].bytes == 8 * 256 * 256 * 4 + 8 * 4);

  // Forty million products of a loop beside half a million of a kernel: always more than a tenth of the run.
  // Zeros would make matrices of ones, whose elimination ends with the first column.
  said.clear();
  const Tensor values = must(Tensor::zeros(shape, Format::f32()));
  std::mt19937 random(7);
  for (float& v : values.mutable_values<float>()) v = static_cast<float>(random()) * 0x1p-32f;
  const Datum x(values);
  REQUIRE_OK(p->run(std::vector<Datum>{x}));
  CHECK(has("ms of the first run: det "));
  said.clear();
  REQUIRE_OK(p->run(std::vector<Datum>{x}));
  CHECK(said.empty());

  // Open extents: as the file says they usually are, else one sample of 64; no plan is left of that.
  std::ofstream(path, std::ios::binary) << model_bytes(graph_proto(
      {node_proto("Det", {"x"}, {"y"})}, {}, {value_proto("x", {-1, -1, -1})}, {value_proto("y", {-1})}));
  said.clear();
  auto with_open = Predictor::open(path, options);
  REQUIRE_OK(with_open);
  CHECK(has("1 of 1 steps have no kernel"));
  CHECK(has("det (16.0 KiB); with x [1, 64, 64]"));
  CHECK((*with_open)->kept_plans() == 0);
  // Where such extents do not go together, with ones.
  std::ofstream(path, std::ios::binary)
      << model_bytes(graph_proto({node_proto("Add", {"x", "b"}, {"a"}), node_proto("Det", {"a"}, {"y"})},
                                 {tensor_proto("b", {3, 3}, std::vector<float>(9, 1))},
                                 {value_proto("x", {-1, -1, -1})}, {value_proto("y", {-1})}));
  said.clear();
  REQUIRE_OK(Predictor::open(path, options));
  CHECK(has("1 of 2 steps have no kernel"));
  CHECK(has("; with x [1, 1, 1]"));
  said.clear();
  const auto small = small_model(options);
  CHECK(said.empty());
  const auto of_small = small->steps(std::vector<Shape>{{5, 3}});
  REQUIRE_OK(of_small);
  CHECK(of_small->size() == 2);

  // A transpose that keeps its long axes in order is a view; a loop that writes over its operand is none.
  const auto to = [](int64_t type) { return Proto().text(1, "to").number(3, type).number(20, 2); };
  std::ofstream(path, std::ios::binary) << model_bytes(graph_proto(
      {node_proto(
           "Transpose", {"x"}, {"t"},
           {Proto().text(1, "perm").number(8, 0).number(8, 2).number(8, 3).number(8, 1).number(20, 7)}),
       node_proto("Cast", {"t"}, {"d"}, {to(11)}), node_proto("Erf", {"d"}, {"e"}),
       node_proto("Cast", {"e"}, {"y"}, {to(1)})},
      {}, {value_proto("x", {1, 8, 1, 1})}, {value_proto("y", {1, 1, 1, 8})}));
  said.clear();
  const auto moved = Predictor::open(path, options);
  REQUIRE_OK(moved);
  const Shape thin{1, 8, 1, 1};
  const auto of_moved = (*moved)->steps(std::span(&thin, 1));
  REQUIRE_OK(of_moved);
  const auto names = [&](std::string_view op) {
    return std::ranges::count(*of_moved, op, [](const StepGroup& g) { return std::string_view(g.op); });
  };
  CHECK(names("transpose") == 0);
  CHECK(names("erf") == 1);
  CHECK(has("3 of 3 steps have no kernel"));
}

TEST_CASE("predictor: wrong inputs are refused by name, and the next run is right") {
  const auto p = small_model();
  const auto refused = [&](Datum d, const char* part) {
    const auto r = p->run(std::vector<Datum>{std::move(d)});
    REQUIRE(r.status().code() == StatusCode::kInvalidArgument);
    INFO(r.status().message());
    CHECK(r.status().message().find(part) != std::string::npos);
    CHECK(r.status().message().find("'x'") != std::string::npos);
  };
  refused(Datum(), "missing");
  refused(Datum::sequence({}), "given a sequence");
  refused(must(Tensor::zeros({2, 4}, Format::f32())), "f32[2, 4]");
  refused(must(Tensor::zeros({3}, Format::f32())), "f32[3]");
  refused(must(Tensor::zeros({2, 3}, Format::of(DType::kI32))), "i32[2, 3]");
  CHECK_FALSE(p->run(std::vector<Datum>{}).ok());
  CHECK_FALSE(p->run(std::map<std::string, Datum>{}).ok());
  const auto by_other_name = p->run(std::map<std::string, Datum>{{"z", Datum()}});
  CHECK(by_other_name.status().message().find("its inputs are x") != std::string::npos);
  CHECK_FALSE(p->plan(std::vector<Shape>{}).ok());
  CHECK_FALSE(p->plan(std::vector<Shape>{{2, 4}}).ok());
  // No rows at all are a batch like any other.
  const auto none = p->run(std::vector<Datum>{must(Tensor::zeros({0, 3}, Format::f32()))});
  REQUIRE_OK(none);
  CHECK((*none)[0].tensor.shape() == Shape({0, 2}));
  // Values are the model's affair: NaN goes in and comes out.
  Tensor nan = must(Tensor::zeros({1, 3}, Format::f32()));
  nan.mutable_values<float>()[0] = std::nanf("");
  const auto spread = p->run(std::vector<Datum>{nan});
  REQUIRE_OK(spread);
  CHECK(std::isnan((*spread)[0].tensor.values<float>()[0]));
}
