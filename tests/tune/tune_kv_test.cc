// The choice of KV tiers: bounds are kept, time is kept, decisions are found again and refused when they are
// another model's.
#include "engine/tune/quantize/tune_kv.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/runtime/content_hash.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/tune/measure/random_checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"
#include "tests/tune/shallow.h"

using namespace oar;
namespace fs = std::filesystem;

namespace {

struct KvFolder {
  std::string path = (fs::temp_directory_path() / ("oar-tune-" + std::to_string(getpid()))).string();
  KvFolder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~KvFolder() { fs::remove_all(path); }
};

struct Demo {
  std::string path = oar_test::source_path("configs/demo");
  Checkpoint checkpoint = load_checkpoint(path).value();
  std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(checkpoint.tokenizer, 2048).value();
};

TuneKvOptions small() {
  TuneKvOptions o;
  o.context = o.tokens = oar_test::kSlow ? 336 : 512;
  o.model.threads = 2;
  return o;
}

double kld_of(const TuneKvReport& report, const std::string& kv) {
  for (const TuneKvStep& s : report.steps) {
    if (s.kv == kv) return s.mean_kld;
  }
  return -1;
}

}  // namespace

TEST_CASE("a loose bound takes the cheapest tier at once") {
  const Demo demo;
  TuneKvOptions o = small();
  o.max_kld = 0.01;
  const auto report = tune_kv(demo.checkpoint, *demo.tokenizer, tuning_text(), o);
  REQUIRE(report.ok());
  CHECK(report->decision.kv == "k4v3");
  CHECK(report->decision.kv_bits == 4.0);
  // The first page, beside which nothing is quantized, and the last token, which predicts nothing, are out.
  CHECK(report->decision.positions == o.tokens - 64 - 1);
  CHECK(report->steps.size() == 1);
  CHECK(report->within);
  CHECK(report->complete);
}

TEST_CASE("a bound between the tiers gives a mixture that was measured under it") {
  Demo demo;
  demo.checkpoint = oar_test::shallow_demo(oar_test::kSlow ? 2 : 3);  // each layer is measured in each tier
  TuneKvOptions o = small();
  const auto uniform = [&](double bound) {
    o.max_kld = bound;
    auto report = tune_kv(demo.checkpoint, *demo.tokenizer, tuning_text(), o);
    REQUIRE(report.ok());
    return *report;
  };
  const TuneKvReport all = uniform(1e-9);  // nothing holds it: every tier is measured, the safest wins
  CHECK_FALSE(all.within);
  CHECK(all.complete);
  CHECK(all.decision.kv == "int8");
  const double four = kld_of(all, "k4v3"), eight = kld_of(all, "int8");
  REQUIRE(four > 2 * eight);
  const TuneKvReport mixed = uniform((four + eight) / 2);
  CAPTURE(mixed.decision.kv, mixed.decision.mean_kld, four, eight);
  CHECK(mixed.within);
  CHECK(mixed.complete);
  CHECK(mixed.decision.mean_kld <= (four + eight) / 2);
  CHECK(mixed.decision.kv_bits < 8.25);
  CHECK(kld_of(mixed, mixed.decision.kv) == mixed.decision.mean_kld);
}

TEST_CASE("no time, no decision; a stop is a stop; a bound of zero is refused") {
  const Demo demo;
  TuneKvOptions o = small();
  o.seconds = 1e-6;
  const auto report = tune_kv(demo.checkpoint, *demo.tokenizer, tuning_text(), o);
  REQUIRE(report.ok());
  CHECK(report->decision.kv.empty());
  CHECK_FALSE(report->within);
  o.seconds = 0;
  const Progress stop = [](std::string_view, uint64_t, uint64_t) { return false; };
  CHECK(tune_kv(demo.checkpoint, *demo.tokenizer, tuning_text(), o, stop).status().code() ==
        StatusCode::kCancelled);
  o.max_kld = 0;
  CHECK(tune_kv(demo.checkpoint, *demo.tokenizer, tuning_text(), o).status().param() == "max_kld");
}

TEST_CASE("documents that lie within the 16-bit pages decide nothing") {
  Demo demo;
  demo.checkpoint = oar_test::shallow_demo();
  TuneKvOptions o = small();
  o.max_kld = 0.01;
  std::string brief;
  for (int k = 0; k < 60; ++k) brief += "Once more unto the breach, dear friends.\n<|endoftext|>\n";
  for (const std::string& text : {brief, std::string("a"), std::string(tuning_text().substr(0, 300))}) {
    const auto refused = tune_kv(demo.checkpoint, *demo.tokenizer, text, o);
    CHECK(refused.status().param() == "text");
    CHECK(refused.status().message().find("needs 256") != std::string::npos);
    CHECK(refused.status().message().find("longer documents") != std::string::npos);
  }
  CHECK(tune_kv(demo.checkpoint, *demo.tokenizer, "", o).status().param() == "text");  // not the built-in one
  TuneKvOptions narrow = o;
  narrow.context = 64;
  CHECK(
      tune_kv(demo.checkpoint, *demo.tokenizer, tuning_text(), narrow).status().message().find("--context") !=
      std::string::npos);
  // Beside a long document they change nothing: not the count, not the divergence.
  const std::string one(tuning_text().substr(0, 4000));
  const auto alone = tune_kv(demo.checkpoint, *demo.tokenizer, one, o);
  const auto among = tune_kv(demo.checkpoint, *demo.tokenizer, brief + one, o);
  REQUIRE(alone.ok());
  REQUIRE(among.ok());
  CHECK(among->decision.positions == alone->decision.positions);
  CHECK(among->decision.mean_kld == alone->decision.mean_kld);
}

TEST_CASE("--kv auto of a model whose context is one page is int8, and says so") {
  const KvFolder folder;
  const std::string model = folder.path + "/model";
  fs::copy(oar_test::source_path("configs/demo"), model);
  json::object config = parse_json(oar_test::read_file(model + "/config.json"), "config").value().as_object();
  config["max_position_embeddings"] = 64;
  std::ofstream(model + "/config.json") << json::serialize(config);
  std::string said;
  TuneKvOptions o = small();
  o.model.cache_dir = folder.path;
  o.model.log = Logger{[&](LogLevel, std::string_view m) { said += m; }};
  o.seconds = 60;
  CHECK(choose_kv(model, o).value() == "int8");
  CHECK(said.find("needs 256") != std::string::npos);
}

TEST_CASE("--kv auto: searches once, then finds; without time int8, and says so") {
  const KvFolder folder;
  const Demo demo;
  std::string said;
  TuneKvOptions o = small();
  o.model.cache_dir = folder.path;
  o.model.log = Logger{[&](LogLevel, std::string_view m) { said += m; }};
  o.seconds = 0;
  CHECK(choose_kv(demo.path, o).value() == "int8");
  CHECK(said.find("oar tune") != std::string::npos);
  said.clear();
  o.seconds = 1000;
  o.max_kld = 0.01;
  CHECK(choose_kv(demo.path, o).value() == "k4v3");
  CHECK(said.find("kept in " + folder.path) != std::string::npos);
  said.clear();
  o.seconds = 0;
  CHECK(choose_kv(demo.path, o).value() == "k4v3");
  CHECK(said.find("decided before") != std::string::npos);
  // Another model's, or a damaged one, is passed over: also one that is damaged into another decision.
  const std::string file = fs::directory_iterator(folder.path + "/kv")->path().string();
  const std::string good = oar_test::read_file(file);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const size_t fields = good.find(",");
  for (const std::string& text : {changed("k4v3", "int4"), changed("\"positions\":", "\"positions\":1"),
                                  "{" + good.substr(fields + 1)}) {
    std::ofstream(file) << text;
    said.clear();
    CHECK(choose_kv(demo.path, o).value() == "int8");
    CHECK(said.find("checksum") != std::string::npos);
  }
  std::ofstream(file) << good;
  CHECK(choose_kv(demo.path, o).value() == "k4v3");
  for (const char* text : {"{\"version\":1}", "{", "{\"version\":3,\"model\":\"x\",\"kv\":\"int4\"}"}) {
    std::ofstream(file) << text;
    said.clear();
    CHECK(choose_kv(demo.path, o).value() == "int8");
    CHECK(said.find("is not used") != std::string::npos);
  }
}

TEST_CASE("tiers of a latent are those it is kept in, those of a hybrid its layers of attention have") {
  const Demo demo;
  for (const char* name : {"minicpm3", "qwen3_5"}) {
    const oar_test::TinyGolden golden = oar_test::load_tiny_golden(name);
    Checkpoint model;
    model.config = json::parse(golden.config).as_object();
    model.config["vocab_size"] = 2048;
    model.config["max_position_embeddings"] = 512;
    const auto tensors = checkpoint_tensors(model.config);
    REQUIRE(tensors.ok());
    for (const TensorSpec& t : *tensors) {
      Tensor own = Tensor::allocate(Shape(t.shape), Format::f32()).value();
      std::ranges::copy(oar_test::tiny_weights(t.name, t.shape, golden.weight_seed),
                        own.mutable_values<float>().begin());
      model.tensors[t.name] = std::move(own);
    }
    TuneKvOptions o = small();
    o.max_kld = 1e-12;  // that nothing keeps: every tier is measured
    const auto report = tune_kv(model, *demo.tokenizer, tuning_text(), o);
    INFO(name << ": " << report.status().message());
    REQUIRE(report.ok());
    CHECK(report->complete);
    const bool latent = std::string_view(name) == "minicpm3";
    CHECK(report->layers == (latent ? 4 : 1));
    CHECK(kld_of(*report, "int4") >= 0);
    CHECK(kld_of(*report, "int8") >= 0);
    CHECK((kld_of(*report, "k4v3") >= 0) == !latent);
  }
}

TEST_CASE("a decision is read back as written, and wrong fields are named") {
  const KvDecision d{"int4/int8", 0.005, 0.004, 6.375, 1000};
  const json::object good = kv_decision_json(d, "me");
  const auto back = read_kv_decision(good, "me");
  REQUIRE(back.ok());
  CHECK(back->kv == d.kv);
  CHECK(back->mean_kld == d.mean_kld);
  CHECK(back->kv_bits == d.kv_bits);
  CHECK(back->positions == d.positions);
  CHECK(read_kv_decision(good, "you").status().param() == "model");
  const auto with = [&](const char* field, const json::value& v) {
    json::object o = good;
    o[field] = v;
    return read_kv_decision(o, "me").status().param();
  };
  CHECK(with("version", 1) == "version");
  CHECK(with("kv", 4) == "kv");
  CHECK(with("kv", "int4/int5") == "kv");
  CHECK(with("max_kld", "x") == "max_kld");
  CHECK(with("mean_kld", -1) == "mean_kld");
  CHECK(with("positions", 0.5) == "positions");
  CHECK_FALSE(read_kv_decision(json::value(3), "me").ok());
}
