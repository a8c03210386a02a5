// What a model repository's folders and configurations mean: what is found, how a config.pbtxt is read, what
// of it is refused.
#include "server/repository/repository.h"

#include <filesystem>

#include "engine/base/format.h"
#include "server/repository/text_config.h"
#include "tests/import/onnx_writer.h"
#include "tests/server/tensor_repository.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT
namespace fs = std::filesystem;

TEST_CASE("config.pbtxt: protobuf's text format as JSON") {
  const auto parsed = parse_text_config(
      "name: \"a\\\"b\" 'c'  # a comment\n"
      "max_batch_size: 8;\n"
      "input [ { name: \"x\" dims: [ -1, 3 ] }, { name: 'y' } ]\n"
      "output { name: \"z\" } output { name: \"w\" }\n"
      "nested < deep: { v: 1.5e-3 flag: true kind: KIND_CPU } >\n"
      "parameters: { key: \"k\" value: { string_value: \"v\" } }\n",
      "config");
  REQUIRE_OK(parsed);
  CHECK(
      json::serialize(*parsed) ==
      R"({"name":"a\"bc","max_batch_size":8,"input":[{"name":"x","dims":[-1,3]},{"name":"y"}],)"
      R"("output":[{"name":"z"},{"name":"w"}],"nested":{"deep":{"v":1.5E-3,"flag":true,"kind":"KIND_CPU"}},)"
      R"("parameters":{"key":"k","value":{"string_value":"v"}}})");
  for (const char* bad : {"name", "name:", "name \"x\"", "a {", "a: [1, 2", "a: \"x", "}", "a: \"\\q\"",
                          "a: \"x\ny\"", ": 1"}) {
    INFO(bad);
    CHECK_FALSE(parse_text_config(bad, "config").ok());
  }
  CHECK_FALSE(parse_text_config(std::string(5000, '{'), "config").ok());
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "a{";
  CHECK_THAT(parse_text_config(deep, "config").status().message(), Contains("deep"));
  CHECK_THAT(parse_text_config("a: 1\nb: 2\nc", "config").status().message(), Contains("config, line 3"));
}

TEST_CASE("config.pbtxt: truncated anywhere it is an error or a shorter config, never a crash") {
  const std::string text =
      "name: \"x\" input [ { dims: [ -1, 3 ] } ] version_policy: { specific { versions: [1] } }";
  for (size_t n = 0; n < text.size(); ++n) (void)parse_text_config(text.substr(0, n), "config");
}

TEST_CASE("Repository: what a path holds") {
  const std::string folder = write_repository();
  CHECK(find_model_at(folder + "/scale").versions.size() == 2);
  CHECK(find_model_at(folder + "/scale/3/model.onnx").name == "scale");
  CHECK(find_model_at(folder + "/scale/3").name == "scale");
  CHECK(find_model_at(folder).kind == api::ModelKind::kNone);
  CHECK(find_models_in(folder).size() == wire_types().size() + 5);
  CHECK(find_models_in(folder + "/scale").empty());
  write_below(folder, "lm/config.json", "{}");
  write_below(folder, "lm/model.safetensors", "");
  CHECK(find_model_at(folder + "/lm").kind == api::ModelKind::kLanguage);
  write_below(folder, "pd/2/inference.json", "{}");
  CHECK(find_model_at(folder + "/pd").versions ==
        std::vector<std::pair<int64_t, std::string>>{{2, folder + "/pd/2"}});
  CHECK_FALSE(is_model_name("../x"));
  CHECK_FALSE(is_model_name(".hidden"));
  CHECK_FALSE(is_model_name(""));
  CHECK(is_model_name("resnet-50_v1.5"));
}

std::string load_error(const std::string& folder, const std::string& config) {
  auto r = open_repository(folder, "", {});
  REQUIRE_OK(r);
  const Status s = (*r)->load("two", config);
  return s.ok() ? "" : s.message();
}

TEST_CASE("Repository: what a configuration may say") {
  const std::string folder = write_repository();
  CHECK(
      load_error(folder, R"({"max_batch_size":4,"input":[{"name":"a","data_type":"TYPE_FP32","dims":[2]}]})")
          .empty());
  CHECK(load_error(folder, R"({"optimization":{"graph":{"level":1}},"parameters":{},"model_warmup":[]})")
            .empty());
  CHECK_THAT(
      load_error(folder, R"({"max_batch_size":4,"input":[{"name":"a","data_type":"TYPE_INT8","dims":[2]}]})"),
      Contains("input 'a' has data_type INT8, the model has FP32"));
  CHECK_THAT(
      load_error(folder, R"({"max_batch_size":4,"input":[{"name":"a","data_type":"TYPE_FP32","dims":[5]}]})"),
      Contains("[-1, 5]") && Contains("[-1, 2]"));
  CHECK_THAT(load_error(folder, R"({"input":[{"name":"c","data_type":"TYPE_FP32","dims":[2]}]})"),
             Contains("no input 'c'; it has a, b"));
  CHECK_THAT(load_error(folder, R"({"name":"three"})"), Contains("three"));
  CHECK_THAT(load_error(folder, R"({"max_batch_size":-1})"), Contains("max_batch_size"));
  CHECK_THAT(load_error(folder, R"({"max_batch_size":4,"dynamic_batching":{"preferred_batch_size":[8]}})"),
             Contains("larger than max_batch_size 4"));
  CHECK_THAT(load_error(folder, R"({"backend":"python"})"), Contains("python"));
  CHECK_THAT(load_error(folder, R"({"ensemble_scheduling":{}})"), Contains("ensemble_scheduling"));
  CHECK_THAT(load_error(folder, R"({"dynamic_baching":{}})"),
             Contains("no field 'dynamic_baching'; did you mean 'dynamic_batching'?"));
  CHECK_THAT(load_error(folder, R"({"instance_group":[{"kind":"KIND_GPU"}]})"),
             Contains("KIND_GPU") && Contains("--device"));
  CHECK_THAT(load_error(folder, R"({"instance_group":[{"kind":"KIND_TPU"}]})"), Contains("KIND_TPU"));
  CHECK_THAT(load_error(folder, R"({"instance_group":[{"kind":"KIND_CPU"},{"kind":"KIND_AUTO"}]})"),
             Contains("KIND_CPU") && Contains("KIND_AUTO"));
  CHECK_THAT(load_error(folder, R"({"version_policy":{"specific":{"versions":[9]}}})"),
             Contains("none of the versions"));
  auto r = open_repository(folder, "", {});
  REQUIRE_OK(r);
  CHECK_THAT((*r)->load("fixed", R"({"max_batch_size":4})").message(),
             Contains("whose first axis is no variable batch"));
}

TEST_CASE("Repository: a batch axis is taken for one where the model says so") {
  const std::string folder = write_repository();
  auto r = open_repository(folder, "", {});
  REQUIRE_OK(r);
  const auto batch_of = [&](const char* name) { return (*r)->find(name, "")->tensor->config.max_batch; };
  CHECK(batch_of("two") == 32);
  CHECK(batch_of("scale") == 8);
  CHECK(batch_of("fixed") == 0);
  RepositoryOptions given;
  given.defaults.max_batch = 5;
  auto limited = open_repository(folder + "/two", "renamed", given);
  REQUIRE_OK(limited);
  CHECK((*limited)->find("renamed", "")->tensor->config.max_batch == 5);
  CHECK_FALSE(open_repository(folder + "/broken", "", {}).ok());
  CHECK(open_repository(temp_dir() + "/nothing", "", {}).status().code() == StatusCode::kNotFound);
}

TEST_CASE("Repository: a graph beside a tokenizer that is no encoder is served as tensors") {
  const std::string folder = write_repository();
  write_below(folder, "two/1/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n");
  std::vector<std::string> log;
  RepositoryOptions options;
  options.log = {[&](LogLevel, std::string_view m) { log.emplace_back(m); }};
  auto r = open_repository(folder, "", options);
  REQUIRE_OK(r);
  const auto two = (*r)->find("two", "");
  REQUIRE_OK(two);
  CHECK(two->tensor->encoder == nullptr);
  CHECK(two->tensor->config.inputs.size() == 2);
  REQUIRE_FALSE(log.empty());
  bool said = false;
  for (const std::string& line : log)
    said = said || line.find("two is served without texts") != std::string::npos;
  CHECK(said);
  RepositoryOptions batched;
  batched.defaults.max_batch = 4;  // of those that can; the others run alone
  auto b = open_repository(folder, "", batched);
  REQUIRE_OK(b);
  CHECK((*b)->find("two", "")->tensor->config.max_batch == 4);
  CHECK((*b)->find("fixed", "")->tensor->config.max_batch == 0);
}

TEST_CASE("Repository: Paddle models of both formats") {
  auto paths = files_of_kind("ocr/cls", "paddle3_pir/PP-LCNet_x0_25_textline_ori");
  for (std::string& path : files_of_kind("ocr/det", "paddle/v3_ch_det")) paths.push_back(std::move(path));
  for (const std::string& path : paths) {
    INFO(path);
    auto r = open_repository(path, "", {});
    REQUIRE_OK(r);
    CHECK((*r)->loaded().size() == 1);
    CHECK((*r)->loaded()[0].tensor->config.max_batch == 32);
  }
}

}  // namespace
