// What the importer makes of a Paddle program. Nothing of an op is dropped in silence: what is not read has
// no effect, or is refused by name, in both generations. Programs and parameters are found by any names.
#include <filesystem>
#include <fstream>

#include "engine/import/paddle.h"
#include "engine/ops/custom.h"
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
  // PaddleSlim's ranges end in it too, after an operand's number.
  s = refusal(conv(pd::attr("score_threshold", 1, pd::f32(4, 0.5f))));
  CHECK_THAT(s, oar_test::Contains("attribute 'score_threshold' (0.5) is not supported"));
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

TEST_CASE("Paddle: what detection ops do not do is refused by name") {
  const std::string kIn = pd::slot(1, "BBoxes", {"a"}) + pd::slot(1, "Scores", {"b"});
  // An op of operands a, b and c, all fed.
  const auto refused = [](const std::string& type, const std::string& more, const std::vector<int64_t>& a,
                          const std::vector<int64_t>& b) {
    const auto imported =
        import(pd::block(0, -1,
                         pd::holder("feed", 9) + pd::holder("fetch", 10) + pd::var("a", a) + pd::var("b", b) +
                             pd::var("c", {-1, 4}) + pd::var("y", {-1, 6}) + pd::feed("a", 0) +
                             pd::feed("b", 1) + pd::feed("c", 2) + pd::op(type, more) + pd::fetch("y", 0)) +
               pd::version(2004000));
    REQUIRE_FALSE(imported.ok());
    return imported.status().message();
  };
  const std::string out = pd::slot(2, "Out", {"y"}), coded = pd::slot(2, "OutputBox", {"y"}),
                    boxes = pd::slot(2, "Boxes", {"y"});
  CHECK_THAT(refused("multiclass_nms3", kIn + out, {-1, 5, 8}, {-1, 2, 5}),
             oar_test::Contains("boxes of 8 coordinates"));
  CHECK_THAT(refused("multiclass_nms3", kIn + out, {-1, 2, 4}, {-1, 2}), oar_test::Contains("'RoisNum'"));
  CHECK_THAT(
      refused("multiclass_nms3", kIn + out + pd::attr("wobble", 0, pd::num(3, 7)), {-1, 5, 4}, {-1, 2, 5}),
      oar_test::Contains("attribute 'wobble' (7)"));

  const std::string pair = pd::slot(1, "PriorBox", {"a"}) + pd::slot(1, "TargetBox", {"b"}) + coded;
  const auto variance = [](int count) {
    std::string s;
    for (int k = 0; k < count; ++k) s += pd::f32(7, 0.5f);
    return pd::attr("variance", 4, s);
  };
  CHECK_THAT(refused("box_coder", pair + pd::attr("code_type", 2, pd::msg(5, "wobble")), {-1, 4}, {-1, 4}),
             oar_test::Contains("'code_type' is 'wobble'"));
  CHECK_THAT(refused("box_coder", pair + variance(3), {-1, 4}, {-1, 4}),
             oar_test::Contains("'variance' of 3 numbers"));
  CHECK_THAT(refused("box_coder", pair + pd::slot(1, "PriorBoxVar", {"c"}) + variance(4), {-1, 4}, {-1, 4}),
             oar_test::Contains("none beside operand 'PriorBoxVar'"));
  CHECK_THAT(refused("box_coder", pair + pd::attr("axis", 0, pd::num(3, 2)), {-1, 4}, {-1, 4}),
             oar_test::Contains("'axis' is 2"));

  const std::string image = pd::slot(1, "X", {"a"}) + pd::slot(1, "ImgSize", {"b"}) + boxes;
  CHECK_THAT(refused("yolo_box", image + pd::attr("anchors", 3, pd::num(6, 10)), {-1, 6, 2, 2}, {-1, 2}),
             oar_test::Contains("'anchors' of 1 numbers"));
  const std::string sizes = pd::slot(1, "Input", {"a"}) + pd::slot(1, "Image", {"b"}) + boxes +
                            pd::attr("min_sizes", 4, pd::f32(7, 2)) +
                            pd::attr("max_sizes", 4, pd::f32(7, 3) + pd::f32(7, 4));
  CHECK_THAT(refused("prior_box", sizes, {-1, 1, 2, 2}, {-1, 1, 8, 8}),
             oar_test::Contains("'min_sizes' of 1 numbers and 'max_sizes' of 2"));
}

TEST_CASE("Paddle: detection ops refuse operands that do not fit, before they read them") {
  const auto status = [](const char* op, std::vector<Datum> inputs) {
    Node node;
    node.op = find_op(op);
    REQUIRE(node.op);
    node.outputs.resize(3);
    std::vector<const Datum*> in;
    for (const Datum& d : inputs) in.push_back(&d);
    const auto y = evaluate_op(node, in, EvalOptions{});
    return y.ok() ? std::string() : y.status().message();
  };
  const auto of = [](const Shape& shape, DType dtype = DType::kF32) {
    Tensor t = must(allocate_elements(shape, dtype));
    memset(t.mutable_data(), 0, t.bytes());
    return Datum(t);
  };
  Datum counts = of({2}, DType::kI32);
  mutable_elements<int32_t>(counts.tensor)[1] = 9;
  CHECK(status("multiclass_nms", {of({1, 5, 4}), of({1, 2, 5})}).empty());
  // Shapes without values may name anything.
  CHECK_THAT(status("multiclass_nms", {of({int64_t{1} << 50, 0, 4}), of({int64_t{1} << 50, 2, 0})}),
             oar_test::Contains("the limit is"));
  CHECK(status("multiclass_nms", {of({1, 0, 4}), of({1, int64_t{1} << 60, 0})}).empty());
  CHECK_THAT(status("multiclass_nms", {of({1, 5, 4}), of({1, 2, 6})}), oar_test::Contains("are meant"));
  CHECK_THAT(status("multiclass_nms", {of({1, 5, 8}), of({1, 2, 5})}), oar_test::Contains("are meant"));
  CHECK_THAT(status("multiclass_nms", {of({1, 5, 4}, DType::kF64), of({1, 2, 5})}),
             oar_test::Contains("only f32 is supported"));
  CHECK_THAT(status("multiclass_nms", {of({3, 2, 4}), of({3, 2}), counts}),
             oar_test::Contains("an image has 9 of 3 boxes"));
  const auto proposals = [&](const Shape& sizes, const Shape& anchors) {
    return status("generate_proposals",
                  {of({1, 2, 3, 3}), of({1, 8, 3, 3}), of(sizes), of(anchors), of({3, 3, 2, 4})});
  };
  CHECK(proposals({1, 2}, {3, 3, 2, 4}).empty());
  CHECK_THAT(proposals({2, 2}, {3, 3, 2, 4}), oar_test::Contains("scores must be"));
  CHECK_THAT(proposals({1, 2}, {3, 3, 1, 4}), oar_test::Contains("scores must be"));
  CHECK_THAT(status("generate_proposals",
                    {of({0, int64_t{1} << 62, 0, 1}), of({0, 8, 0, 1}), of({0, 2}), of({0, 4}), of({0, 4})}),
             oar_test::Contains("scores must be"));
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

TEST_CASE("Paddle: an op of the embedding program, with its operands and attributes in the file's order") {
  const auto program = [](const std::string& mode) {
    return pd::block(
               0, -1,
               pd::holder("feed", 9) + pd::holder("fetch", 10) + pd::var("x", {-1, 1, 1, 3}) +
                   pd::var("w", {1, 1, 1, 1}, true) + pd::var("y", {-1, 1, 1, 3}) + pd::feed("x", 0) +
                   pd::op("my_scale", pd::slot(1, "X", {"x"}) + pd::slot(1, "W", {"w"}) +
                                          pd::slot(2, "Out", {"y"}) + pd::attr("add", 0, pd::num(3, 5)) +
                                          pd::attr("mode", 2, pd::msg(5, mode))) +
                   pd::fetch("y", 0)) +
           pd::version(2004000);
  };
  CHECK(import(program("plain"), kTwo).status().code() == StatusCode::kUnimplemented);
  CustomOp op;
  op.name = "my_scale", op.domain = "paddle";
  op.shape = [](const Attrs&, std::span<const ValueInfo> in, std::span<ValueInfo> out) -> Status {
    if (in.size() != 2 || out.size() != 1) return internal_error("two operands, one result");
    out[0] = in[0];
    return ok_status();
  };
  op.compute = [](const Attrs& attrs, std::span<const Tensor> in, std::span<Tensor> out) -> Status {
    if (attrs.get_string("mode") != "plain") return invalid_argument("mode must be plain");
    const auto x = in[0].values<float>();
    for (size_t k = 0; k < x.size(); ++k)
      mutable_elements<float>(out[0])[k] =
          x[k] * in[1].values<float>()[0] + static_cast<float>(attrs.get_int("add"));
    return ok_status();
  };
  REQUIRE_OK(register_custom_op(std::move(op)));
  CHECK(run(program("plain"), kTwo, {1, -2, 3}) == std::vector<float>{7, 1, 11});
}
