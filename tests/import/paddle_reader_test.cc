// Readers of Paddle programs and parameters: what files say comes out as it stands, on programs written by
// hand and on published models. Counts of published models were taken with other tools (protobuf's own
// parser, Python's json).
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/import/paddle_program.h"
#include "tests/import/paddle_builders.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar::paddle;
namespace pd = oar_test::pd;

namespace {

Buffer buffer_of(const std::string& s) { return Buffer::wrap_const(s.data(), s.size(), nullptr); }

template <class T>
const T& data_of(const Op& op, const char* name) {
  const Attr* a = op.attr(name);
  REQUIRE(a != nullptr);
  const T* v = std::get_if<T>(&a->data);
  REQUIRE(v != nullptr);
  return *v;
}

std::map<std::string, int> histogram(const Program& p) {
  std::map<std::string, int> h;
  for (const Block& b : p.blocks) {
    for (const Op& op : b.ops) ++h[op.type];
  }
  return h;
}

int64_t parameter_count(const Program& p) {
  int64_t n = 0;
  for (ValueIndex v : p.parameters) {
    int64_t k = 1;
    for (int64_t d : p.values[v].type.dims) k *= d;
    n += k;
  }
  return n;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

TEST_CASE("a ProgramDesc gives ops, attributes, ports and parameters in stored order") {
  const std::string bytes = pd::small_program();
  const auto p = parse_program(bytes, "small");
  INFO(p.status().message());
  REQUIRE(p.ok());
  CHECK(p->kind == Program::Kind::kLegacy);
  CHECK(p->version == 2002002);
  REQUIRE(p->blocks.size() == 1);
  REQUIRE(p->blocks[0].ops.size() == 2);
  const Op& matmul = p->blocks[0].ops[0];
  CHECK(matmul.type == "matmul_v2");
  CHECK(data_of<bool>(matmul, "trans_x") == false);
  CHECK(matmul.attr("op_role") == nullptr);  // what training left behind
  CHECK(p->values[matmul.input("Y")->values.at(0)].name == "w");
  CHECK(data_of<int64_t>(p->blocks[0].ops[1], "axis") == -1);
  REQUIRE(p->inputs.size() == 1);
  CHECK(p->inputs[0].name == "x");
  CHECK(p->values[p->inputs[0].value].type.dims == std::vector<int64_t>{-1, 2});
  REQUIRE(p->outputs.size() == 1);
  CHECK(p->outputs[0].name == "y");
  REQUIRE(p->parameters.size() == 2);  // b before w, though w is declared first
  CHECK(p->values[p->parameters[0]].name == "b");

  const std::string records = pd::small_parameters();
  const auto tensors = read_parameters(*p, buffer_of(records), "small.pdiparams");
  INFO(tensors.status().message());
  REQUIRE(tensors.ok());
  CHECK((*tensors)[0].values<float>()[2] == 30);
  CHECK((*tensors)[1].shape() == Shape{2, 3});
  CHECK((*tensors)[1].values<float>()[5] == 6);
}

TEST_CASE("a boolean parameter is 0 or 1, whatever byte the file has") {
  Program p;
  p.values.resize(1);
  p.values[0].name = "mask";
  p.values[0].type = {ValueType::Kind::kTensor, "bool", {4}};
  p.parameters = {0};
  const std::string records = pd::record(0, {4}, std::string("\x00\x01\x02\xff", 4));
  const auto tensors = read_parameters(p, buffer_of(records), "mask.pdiparams");
  INFO(tensors.status().message());
  REQUIRE(tensors.ok());
  const auto* values = static_cast<const uint8_t*>((*tensors)[0].data());
  CHECK(std::vector<int>(values, values + 4) == std::vector<int>{0, 1, 1, 1});
}

TEST_CASE("every attribute type of a ProgramDesc is read, lists packed and unpacked") {
  const auto with = [](const std::string& attrs) {
    const std::string bytes =
        pd::block(0, -1, pd::var("x", {1}) + pd::op("any", pd::slot(1, "X", {"x"}) + attrs));
    auto p = parse_program_desc(bytes, "attrs");
    INFO(p.status().message());
    REQUIRE(p.ok());
    return std::move(p->blocks[0].ops[0]);
  };
  CHECK(data_of<int64_t>(with(pd::attr("a", 0, pd::num(3, -7))), "a") == -7);
  CHECK(data_of<double>(with(pd::attr("a", 1, pd::f32(4, 0.5f))), "a") == 0.5);
  CHECK(data_of<std::string>(with(pd::attr("a", 2, pd::msg(5, "NCHW"))), "a") == "NCHW");
  const std::vector<int64_t> ints{-1, 3};
  CHECK(data_of<std::vector<int64_t>>(with(pd::attr("a", 3, pd::num(6, -1) + pd::num(6, 3))), "a") == ints);
  CHECK(data_of<std::vector<int64_t>>(
            with(pd::attr("a", 3, pd::msg(6, pd::varint(static_cast<uint64_t>(-1)) + pd::varint(3)))), "a") ==
        ints);
  const std::vector<double> reals{0.25, -2};
  CHECK(data_of<std::vector<double>>(with(pd::attr("a", 4, pd::f32(7, 0.25f) + pd::f32(7, -2))), "a") ==
        reals);
  CHECK(data_of<std::vector<double>>(with(pd::attr("a", 4, pd::msg(7, pd::raw(0.25f) + pd::raw(-2.f)))),
                                     "a") == reals);
  CHECK(data_of<std::vector<std::string>>(with(pd::attr("a", 5, pd::msg(8, "u") + pd::msg(8, "v"))),
                                          "a")[1] == "v");
  CHECK(data_of<bool>(with(pd::attr("a", 6, pd::num(10, 1))), "a"));
  CHECK(data_of<std::vector<int64_t>>(with(pd::attr("a", 7, pd::num(11, 1) + pd::num(11, 0))), "a")[0] == 1);
  CHECK(data_of<int64_t>(with(pd::attr("a", 9, pd::num(13, int64_t{1} << 40))), "a") == int64_t{1} << 40);
  CHECK(data_of<std::vector<int64_t>>(with(pd::attr("a", 11, pd::num(15, -5))), "a")[0] == -5);
  CHECK(data_of<std::vector<double>>(with(pd::attr("a", 12, pd::f64(16, 1e300))), "a")[0] == 1e300);
  CHECK(data_of<double>(with(pd::attr("a", 15, pd::f64(19, -INFINITY))), "a") == -INFINITY);
  CHECK(data_of<double>(with(pd::attr("a", 16, pd::msg(20, pd::num(1, 3) + pd::f64(4, 1.5)))), "a") == 1.5);
  const std::string scalars =
      pd::msg(21, pd::num(1, 2) + pd::num(3, -4)) + pd::msg(21, pd::num(1, 2) + pd::num(3, 9));
  CHECK(data_of<std::vector<int64_t>>(with(pd::attr("a", 17, scalars)), "a") == std::vector<int64_t>{-4, 9});
  const Op var = with(pd::attr("shape", 13, pd::msg(17, "x")));  // computed: an operand, not an attribute
  CHECK(var.attr("shape") == nullptr);
  REQUIRE(var.input("shape") != nullptr);
  CHECK(var.input("shape")->values.size() == 1);
}

TEST_CASE("sub-blocks see the variables of the blocks around them") {
  const std::string body = pd::op("scale", pd::slot(1, "X", {"x"}) + pd::slot(2, "Out", {"x"}));
  const std::string loop =
      pd::op("while", pd::slot(1, "X", {"x"}) + pd::attr("sub_block", 8, pd::num(12, 1)));
  const auto p =
      parse_program_desc(pd::block(0, -1, pd::var("x", {1}) + loop) + pd::block(1, 0, body), "loop");
  INFO(p.status().message());
  REQUIRE(p.ok());
  REQUIRE(p->blocks.size() == 2);
  CHECK(p->blocks[0].ops[0].blocks == std::vector<int32_t>{1});
  CHECK(p->blocks[1].ops[0].inputs[0].values == p->blocks[0].ops[0].inputs[0].values);
  // A block that names itself or its parent would run for ever.
  CHECK_FALSE(parse_program_desc(pd::block(0, -1, pd::var("x", {1})) + pd::block(1, 0, loop), "cycle").ok());
}

TEST_CASE("PIR: every attribute type, non-finite constants included") {
  const std::string attrs =
      pd::pir_attr("b", "0.a_bool", "\"D\":true") + "," + pd::pir_attr("i", "0.a_i64", "\"D\":-3") + "," +
      pd::pir_attr("f", "0.a_f32", "\"D\":0.5") + "," + pd::pir_attr("whole", "0.a_f64", "\"D\":2") + "," +
      pd::pir_attr("nan", "0.a_f64", "\"VD\":\"NaN\"") + "," +
      pd::pir_attr("inf", "0.a_f32", "\"VD\":\"INF\"") + "," +
      pd::pir_attr("minf", "0.a_f64", "\"VD\":\"-INF\"") + "," + pd::pir_attr("s", "0.a_str", "\"D\":\"x\"") +
      "," + pd::pir_attr("ia", "1.a_intarray", "\"D\":[1,-1]") + "," +
      pd::pir_attr("dt", "1.a_dtype", "\"D\":\"float32\"") + "," +
      pd::pir_attr("sc", "1.a_scalar", "\"D\":[\"float32\",1.5]") + "," +
      pd::pir_attr("si", "1.a_scalar", "\"D\":[\"int64\",7]") + "," +
      pd::pir_attr("pl", "1.a_place", "\"D\":[1,0,\"\"]") + "," + pd::pir_attr("null", "NULL", "\"D\":0") +
      "," +
      pd::pir_attr("ar", "0.a_array", "\"D\":[{\"#\":\"0.a_i32\",\"D\":4},{\"#\":\"0.a_i32\",\"D\":5}]") +
      "," +
      pd::pir_attr("fa", "0.a_array",
                   "\"D\":[{\"#\":\"0.a_f32\",\"D\":4.0},{\"#\":\"0.a_f32\",\"VD\":\"-INF\"}]") +
      "," + pd::pir_attr("sa", "0.a_array", "\"D\":[{\"#\":\"0.a_str\",\"D\":\"u\"}]");
  const auto p =
      parse_program(pd::pir(pd::pir_op("1.any", "", pd::pir_out(1, "[2,-1]"), attrs), 4), "attrs.json");
  INFO(p.status().message());
  REQUIRE(p.ok());
  CHECK(p->version == 4);
  const Op& op = p->blocks[0].ops[0];
  CHECK(op.type == "any");
  CHECK(data_of<bool>(op, "b"));
  CHECK(data_of<int64_t>(op, "i") == -3);
  CHECK(data_of<double>(op, "f") == 0.5);
  CHECK(data_of<double>(op, "whole") == 2);
  CHECK(std::isnan(data_of<double>(op, "nan")));
  CHECK(data_of<double>(op, "inf") == INFINITY);
  CHECK(data_of<double>(op, "minf") == -INFINITY);
  CHECK(data_of<std::string>(op, "s") == "x");
  CHECK(data_of<std::vector<int64_t>>(op, "ia") == std::vector<int64_t>{1, -1});
  CHECK(data_of<std::string>(op, "dt") == "float32");
  CHECK(data_of<double>(op, "sc") == 1.5);
  CHECK(data_of<int64_t>(op, "si") == 7);
  CHECK(std::holds_alternative<std::monostate>(op.attr("pl")->data));
  CHECK(std::holds_alternative<std::monostate>(op.attr("null")->data));
  CHECK(data_of<std::vector<int64_t>>(op, "ar") == std::vector<int64_t>{4, 5});
  CHECK(data_of<std::vector<double>>(op, "fa")[1] == -INFINITY);
  CHECK(data_of<std::vector<std::string>>(op, "sa")[0] == "u");
}

TEST_CASE("PIR: ports, absent operands, regions that use outer values") {
  const std::string branch = "{\"#\":\"region_1\",\"blocks\":[{\"#\":\"block_1\",\"args\":[],\"ops\":[" +
                             pd::pir_op("2.yield", "{\"%\":1}", "") + "]}]}";
  const std::string ops =
      pd::pir_parameter(2, "w", "[3]") + "," + pd::pir_data(1, "image", "[-1]") + "," +
      pd::pir_op("1.if", "{\"%\":1}", pd::pir_out(3, "[-1]"), "", ",\"regions\":[" + branch + "]") + "," +
      pd::pir_op("1.layer_norm", "{\"%\":3},{\"%\":0}", pd::pir_out(4, "[-1]") + ",{\"%\":0}") + "," +
      pd::pir_fetch(4, 5, "out");
  const auto p = parse_program(pd::pir(ops), "if.json");
  INFO(p.status().message());
  REQUIRE(p.ok());
  CHECK(p->inputs.at(0).name == "image");
  CHECK(p->outputs.at(0).name == "out");
  REQUIRE(p->blocks.size() == 2);
  CHECK(p->blocks[1].parent == 0);
  CHECK(p->blocks[1].ops[0].type == "cf.yield");
  const Op& norm = p->blocks[0].ops[1];
  CHECK(norm.inputs[1].values.empty());
  CHECK(norm.outputs[1].values.empty());
  CHECK(p->values[p->parameters.at(0)].name == "w");
}

TEST_CASE("open_model finds programs and parameters by the names Paddle's exporters write") {
  namespace fs = std::filesystem;
  const std::string folder = oar_test::temp_dir() + "/paddle_names";
  const auto fresh = [&] {
    fs::remove_all(folder);
    fs::create_directory(folder);
  };
  const auto loads = [&](const std::string& path) {
    const auto m = open_model(path);
    INFO(m.status().message());
    REQUIRE(m.ok());
    CHECK(m->parameters.at(0).values<float>()[0] == 10);
  };
  fresh();
  write_file(folder + "/inference.pdmodel", pd::small_program());
  CHECK(open_model(folder).status().code() == StatusCode::kNotFound);  // and says what it looked for
  OpenOptions bare;
  bare.allow_topology = true;
  CHECK(open_model(folder, bare).ok());
  write_file(folder + "/inference.pdiparams", pd::small_parameters());
  loads(folder);
  loads(folder + "/inference.pdmodel");
  fresh();
  write_file(folder + "/__model__", pd::small_program());
  write_file(folder + "/__params__", pd::small_parameters());
  loads(folder);
  fresh();
  write_file(folder + "/__model__", pd::small_program());
  write_file(folder + "/b", pd::record(5, {3}, pd::floats({10, 20, 30})));
  write_file(folder + "/w", pd::record(5, {2, 3}, pd::floats({1, 2, 3, 4, 5, 6})));
  loads(folder);
  fresh();
  write_file(folder + "/__model__", pd::small_program());
  write_file(folder + "/params", pd::small_parameters());
  loads(folder);
}

namespace {

struct Expected {
  const char* path;
  int64_t version;
  size_t parameters;
  int64_t elements;
  std::map<std::string, int> some_ops;
  const char* input;
  const char* output;
  bool weights;
};

void check_model(const std::string& path, const Expected& want) {
  OpenOptions options;
  options.allow_topology = !want.weights;
  const auto m = open_model(path, options);
  INFO(want.path << ": " << m.status().message());
  REQUIRE(m.ok());
  const Program& p = m->program;
  CHECK(p.version == want.version);
  CHECK(p.parameters.size() == want.parameters);
  CHECK(parameter_count(p) == want.elements);
  CHECK(m->parameters.size() == (want.weights ? want.parameters : 0));
  const auto h = histogram(p);
  for (const auto& [op, count] : want.some_ops) {
    INFO(op);
    const auto it = h.find(op);
    CHECK((it == h.end() ? 0 : it->second) == count);
  }
  REQUIRE(p.inputs.size() == 1);
  CHECK(p.inputs[0].name == want.input);
  REQUIRE(p.outputs.size() >= 1);
  CHECK(p.outputs[0].name == want.output);
  for (const Tensor& t : m->parameters) {
    if (t.format().dtype() != DType::kF32) continue;
    for (float x : t.values<float>()) REQUIRE(std::isfinite(x));
  }
}

void check_published(const Expected& want) {
  if (const auto path = oar_test::data_path(want.path)) check_model(*path, want);
}

void check_published_paddle_2() {
  const std::string saved = "save_infer_model/scale_0.tmp_1";
  const auto mobile = [&](const char* path, int64_t version, int64_t elements) {
    return Expected{
        path, version,       229, elements, {{"conv2d", 42}, {"rnn", 1}, {"transpose2", 3}, {"fetch", 0}},
        "x",  saved.c_str(), true};
  };
  check_published({"paddle/v3_ch_det",
                   2002002,
                   288,
                   592625,
                   {{"conv2d", 57}, {"batch_norm", 49}, {"depthwise_conv2d", 15}, {"nearest_interp_v2", 6}},
                   "x",
                   "sigmoid_0.tmp_0",
                   true});
  check_published({"paddle/v2_cls",
                   0,
                   213,
                   133628,
                   {{"conv2d", 42}, {"shape", 2}, {"slice", 2}},
                   "x",
                   saved.c_str(),
                   true});
  check_published(mobile("paddle/v2_en_rec", 2000000, 454321));
  check_published(mobile("paddle/v2_korean_rec", 0, 802745));
  for (const char* name : {"conv_bn", "conv_bn_relu", "conv_bn_hard_swish"}) {
    const std::string path = std::string("paddle/fuse_pass/") + name + ".pdmodel";
    check_published({path.c_str(),
                     0,
                     5,
                     9664,
                     {{"conv2d", 1}, {"batch_norm", 1}},
                     "x",
                     "save_infer_model/scale_0.tmp_0",
                     true});
  }
}

void check_published_topologies() {
  check_published({"paddle/topology_only/ch_PP-OCRv4_det_infer",
                   2004001,
                   234,
                   1171721,
                   {{"conv2d", 48}, {"hard_swish", 24}, {"conv2d_transpose", 2}},
                   "x",
                   "sigmoid_0.tmp_0",
                   false});
  check_published({"paddle/topology_only/ch_PP-OCRv4_rec_infer",
                   2004002,
                   234,
                   2690221,
                   {{"matmul_v2", 13}, {"slice", 9}, {"layer_norm", 5}, {"fill_constant", 15}},
                   "x",
                   "softmax_11.tmp_0",
                   false});
  check_published({"paddle/topology_only/resnet50",
                   0,
                   267,
                   25610152,
                   {{"conv2d", 53}, {"batch_norm", 53}, {"elementwise_add", 17}},
                   "inputs",
                   "save_infer_model/scale_0.tmp_1",
                   false});
}

void check_published_paddle_3() {
  check_published({"paddle3_pir/PP-LCNet_x0_25_textline_ori",
                   1,
                   145,
                   79354,
                   {{"batch_norm_", 27}, {"hardswish", 27}, {"depthwise_conv2d", 13}, {"full_int_array", 7}},
                   "x",
                   "fetch_name_0",
                   true});
  check_published({"paddle3_pir/topology_only/PP-OCRv5_mobile_det_infer",
                   1,
                   234,
                   1171721,
                   {{"add", 117}, {"full_int_array", 66}, {"builtin.combine", 1}},
                   "x",
                   "fetch_name_0",
                   false});
}

}  // namespace

TEST_CASE("programs of both formats, as PaddlePaddle saved them, read whole") {
  // Counts as Paddle's own protobuf classes and the JSON give them.
  const std::string own = oar_test::source_path("tests/data/");
  for (const Expected& want :
       {Expected{"ocr/det",
                 3003001,
                 47,
                 5649,
                 {{"conv2d", 7},
                  {"batch_norm", 9},
                  {"depthwise_conv2d", 3},
                  {"nearest_interp_v2", 2},
                  {"feed", 0}},
                 "x",
                 "sigmoid_0.tmp_0",
                 true},
        Expected{"ocr/rec",
                 3003001,
                 41,
                 39262,
                 {{"conv2d", 4}, {"rnn", 1}, {"transpose2", 3}, {"fill_constant", 6}, {"fetch", 0}},
                 "x",
                 "softmax_0.tmp_0",
                 true},
        Expected{"ocr/conv_bn_hard_swish/inference.pdmodel",
                 3003001,
                 5,
                 248,
                 {{"conv2d", 1}, {"batch_norm", 1}, {"hard_swish", 1}},
                 "x",
                 "hardswish_0.tmp_0",
                 true},
        Expected{"ocr/cls",
                 4,
                 37,
                 7986,
                 {{"batch_norm_", 7}, {"hardswish", 7}, {"depthwise_conv2d", 3}, {"full_int_array", 1}},
                 "x",
                 "fetch_name_0",
                 true}}) {
    check_model(own + want.path, want);
  }
  // Published ones, where the data collection is there: with weights, without (counts alone), and of
  // Paddle 3.
  check_published_paddle_2();
  check_published_topologies();
  check_published_paddle_3();
}
