// What the importer makes of a Paddle program. Nothing of an op is dropped in silence: what is not read has
// no effect, or is refused by name, in both generations. Programs and parameters are found by any names.
#include <filesystem>
#include <fstream>

#include "engine/import/paddle.h"
#include "tests/import/paddle_builders.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar::paddle;
namespace pd = oar_test::pd;

namespace {

Result<ImportedModel> import(const std::string& bytes, const std::string& records = {}) {
  Model model;
  OAR_ASSIGN(model.program, parse_program(bytes, "m"));
  OAR_ASSIGN(
      model.parameters,
      read_parameters(model.program, Buffer::wrap_const(records.data(), records.size(), nullptr), "p"));
  return import_paddle_model(model);
}

std::vector<float> run(const std::string& bytes, const std::string& records, const std::vector<float>& x,
                       DType dtype = DType::kF32) {
  auto imported = import(bytes, records);
  REQUIRE_OK(imported);
  Tensor t = must(allocate_elements({1, 1, 1, static_cast<int64_t>(x.size())}, dtype));
  for (size_t k = 0; k < x.size(); ++k) {
    if (dtype == DType::kF32) mutable_elements<float>(t)[k] = x[k];
    else mutable_elements<int64_t>(t)[k] = static_cast<int64_t>(x[k]);
  }
  auto evaluator = Evaluator::create(imported->graph);
  REQUIRE_OK(evaluator);
  auto y = (*evaluator)->run({Datum(t)}, EvalOptions{});
  REQUIRE_OK(y);
  const Tensor& out = (*y)[0].tensor;
  return {elements<float>(out), elements<float>(out) + out.numel()};
}

// A 1 x 1 convolution of x by 2, a ProgramDesc; `more` operands and attributes.
std::string conv(const std::string& more) {
  return pd::block(0, -1,
                   pd::holder("feed", 9) + pd::holder("fetch", 10) + pd::var("x", {-1, 1, 1, 3}) +
                       pd::var("w", {1, 1, 1, 1}, true) + pd::var("y", {-1, 1, 1, 3}) + pd::feed("x", 0) +
                       pd::op("conv2d", pd::slot(1, "Input", {"x"}) + pd::slot(1, "Filter", {"w"}) +
                                            pd::slot(2, "Output", {"y"}) + more) +
                       pd::fetch("y", 0)) +
         pd::version(2004000);
}
const std::string kTwo = pd::record(5, {1, 1, 1, 1}, pd::floats({2}));

// The same in PIR.
std::string pir_conv(const std::string& attrs, const std::string& operands = "") {
  return pd::pir(
      pd::pir_parameter(1, "w", "[1,1,1,1]") + "," + pd::pir_data(2, "x", "[-1,1,1,3]") + "," +
      pd::pir_op("1.conv2d", "{\"%\":2},{\"%\":1}" + operands, pd::pir_out(3, "[-1,1,1,3]"), attrs) + "," +
      pd::pir_fetch(3, 4, "y"));
}

std::string refusal(const std::string& bytes) {
  const auto imported = import(bytes, kTwo);
  REQUIRE_FALSE(imported.ok());
  return imported.status().message();
}

using Values = std::vector<float>;

Buffer buffer_of(const std::string& s) { return Buffer::wrap_const(s.data(), s.size(), nullptr); }
void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

TEST_CASE("Paddle: activations and residuals that were fused into a convolution are computed") {
  const Values x{-1, 0.25f, 4};
  CHECK(run(conv(""), kTwo, x) == Values{-2, 0.5f, 8});
  CHECK(run(conv(pd::attr("fuse_activation", 2, pd::msg(5, "relu"))), kTwo, x) == Values{0, 0.5f, 8});
  CHECK(run(conv(pd::attr("fuse_relu", 6, pd::num(10, 1))), kTwo, x) == Values{0, 0.5f, 8});
  CHECK(run(conv(pd::attr("fuse_activation", 2, pd::msg(5, "leaky_relu")) +
                 pd::attr("fuse_alpha", 1, pd::f32(4, 0.5f))),
            kTwo, x) == Values{-1, 0.5f, 8});
  CHECK(run(conv(pd::attr("fuse_activation", 2, pd::msg(5, "relu6"))), kTwo, x) == Values{0, 0.5f, 6});
  CHECK(
      run(conv(pd::slot(1, "ResidualData", {"x"}) + pd::attr("fuse_residual_connection", 6, pd::num(10, 1)) +
               pd::attr("fuse_activation", 2, pd::msg(5, "relu"))),
          kTwo, x) == Values{0, 0.75f, 12});
}

TEST_CASE("Paddle: attributes without effect pass, at the values where they have none") {
  CHECK(
      run(conv(pd::attr("use_mkldnn", 6, pd::num(10, 1)) + pd::attr("workspace_size_MB", 0, pd::num(3, 512)) +
               pd::attr("op_role", 0, pd::num(3, 1)) + pd::attr("fuse_activation", 2, pd::msg(5, "")) +
               pd::attr("Scale_in", 1, pd::f32(4, 1)) + pd::attr("Scale_weights", 4, pd::f32(7, 1)) +
               pd::attr("Output0_threshold", 1, pd::f32(4, 3)) +
               pd::attr("fuse_relu_before_depthwise_conv", 6, pd::num(10, 0))),
          kTwo, {1, 2, 3}) == Values{2, 4, 6});
  CHECK(import(pir_conv(pd::pir_attr("op_role", "0.a_i32", "\"D\":1")), kTwo).ok());
}

TEST_CASE("Paddle: what the importer does not know is refused with op, name, value and remedy") {
  std::string s = refusal(conv(pd::attr("frobnicate", 0, pd::num(3, 7))));
  CHECK_THAT(s, oar_test::Contains("m: op 'conv2d' at byte"));
  CHECK_THAT(s, oar_test::Contains("attribute 'frobnicate' (7) is not supported"));
  CHECK_THAT(s, oar_test::Contains("export the model without it"));
  s = refusal(conv(pd::slot(1, "Extra", {"x"})));
  CHECK_THAT(s, oar_test::Contains("operand 'Extra'"));
  s = refusal(conv(pd::attr("fuse_activation", 2, pd::msg(5, "wobble"))));
  CHECK_THAT(s, oar_test::Contains("'fuse_activation' is 'wobble'"));
  s = refusal(conv(pd::attr("fuse_relu_before_depthwise_conv", 6, pd::num(10, 1))));
  CHECK_THAT(s, oar_test::Contains("'fuse_relu_before_depthwise_conv' (1)"));
  s = refusal(conv(pd::attr("Scale_weights", 4, pd::f32(7, 0.5f))));
  CHECK_THAT(s, oar_test::Contains("'Scale_weights' ([0.5])"));
  s = refusal(
      conv(pd::slot(1, "ResidualData", {"x"}) + pd::attr("fuse_residual_connection", 6, pd::num(10, 0))));
  CHECK_THAT(s, oar_test::Contains("ResidualData"));

  s = refusal(pir_conv(pd::pir_attr("frobnicate", "0.a_f32", "\"D\":0.5")));
  CHECK_THAT(s, oar_test::Contains("('conv2d'): attribute 'frobnicate' (0.5) is not supported"));
  s = refusal(pir_conv(pd::pir_attr("mesh", "4.a_process_mesh", "\"D\":[]")));
  CHECK_THAT(s, oar_test::Contains("attribute 'mesh' (null)"));
  s = refusal(pir_conv("", ",{\"%\":0},{\"%\":0},{\"%\":2}"));
  CHECK_THAT(s, oar_test::Contains("operand 4 ('x') is not supported"));
}

TEST_CASE("Paddle: the first generation's lookup_table has a padding row") {
  const auto program = [](int64_t padding) {
    return pd::block(
               0, -1,
               pd::holder("feed", 9) + pd::holder("fetch", 10) +
                   pd::msg(3, pd::msg(1, "ids") +
                                  pd::msg(2, pd::num(1, 7) +
                                                 pd::msg(3, pd::msg(1, pd::tensor_desc(3, {1, 1, -1, 1}))))) +
                   pd::var("w", {3, 1}, true) + pd::var("y", {1, 1, -1, 1}) + pd::feed("ids", 0) +
                   pd::op("lookup_table", pd::slot(1, "Ids", {"ids"}) + pd::slot(1, "W", {"w"}) +
                                              pd::slot(2, "Out", {"y"}) +
                                              pd::attr("padding_idx", 9, pd::num(13, padding)) +
                                              pd::attr("is_sparse", 6, pd::num(10, 0))) +
                   pd::fetch("y", 0)) +
           pd::version(1008000);
  };
  const std::string table = pd::record(5, {3, 1}, pd::floats({5, 6, 7}));
  CHECK(run(program(-1), table, {1}, DType::kI64) == Values{6});
  CHECK(run(program(1), table, {1}, DType::kI64) == Values{0});
}

TEST_CASE("a program and its parameters by any names, and from memory") {
  namespace fs = std::filesystem;
  const std::string folder = oar_test::temp_dir() + "/paddle_any_names";
  fs::create_directories(folder + "/elsewhere");
  const std::string program = folder + "/net", weights = folder + "/elsewhere/weights.bin";
  write_file(program, pd::small_program());
  write_file(weights, pd::small_parameters());
  const auto named = import_model(program, {.parameters = weights});
  REQUIRE_OK(named);
  CHECK(named->inputs.at(0).name == "x");
  CHECK(named->files == std::vector<std::string>{program, weights});
  const auto refused = import_model("model.onnx", {.parameters = weights});
  CHECK(refused.status().param() == "params");
  CHECK_THAT(refused.status().message(), oar_test::Contains("is an ONNX model"));

  const std::string bytes = pd::small_program(), records = pd::small_parameters();
  const auto held = import_model_bytes(buffer_of(bytes), buffer_of(records), "the caller's model");
  REQUIRE_OK(held);
  CHECK(held->outputs.at(0).name == "y");
  const auto cut =
      import_model_bytes(buffer_of(bytes), buffer_of(records.substr(0, 9)), "the caller's model");
  CHECK_THAT(cut.status().message(), oar_test::Contains("the caller's model: params"));
}
