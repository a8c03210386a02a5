// `oar quantize` and quantizing at load, on the default model: what is written reads back, an interrupted run
// goes on, errors leave nothing behind, and error feedback is worth its time.
#include "engine/tune/quantize.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <sstream>

#include "engine/graph/passes/rotate.h"
#include "engine/loader/oar_quantized.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/tune/calibrated_quantizer.h"
#include "engine/tune/compare.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"
#include "tests/tune/shallow.h"

using namespace oar;
namespace fs = std::filesystem;

namespace {

const std::string kDemo = std::string(OAR_SOURCE_DIR) + "/configs/demo";

std::string heldout() {
  std::ifstream file(kDemo + "/heldout.txt");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Folder {
  std::string path = (fs::temp_directory_path() / ("oar-quantize-test-" + std::to_string(getpid()))).string();
  Folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return path + "/" + name; }
};

Checkpoint load(const std::string& path) {
  auto c = load_checkpoint(path);
  REQUIRE_OK(c);
  return std::move(*c);
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("statistics of inputs are the sums they stand for, over several blocks and calls") {
  constexpr int64_t kCols = 301;  // more than a block of the triangle, and no multiple of a panel
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> rows(37 * kCols);
  for (float& v : rows) v = normal(random);
  for (const int threads : {1, 3}) {
    ThreadPool pool({.threads = threads});
    InputStatistics statistics(kCols);
    const std::span<const float> all(rows);
    REQUIRE_OK(statistics.add(all.first(20 * kCols), pool));
    REQUIRE_OK(statistics.add(all.subspan(20 * kCols), pool));
    statistics.finish();
    CHECK(statistics.samples() == 37);
    double worst = 0;
    for (int64_t i = 0; i < kCols; ++i) {
      for (int64_t j = 0; j < kCols; ++j) {
        double sum = 0;
        for (int64_t t = 0; t < 37; ++t) {
          sum += static_cast<double>(rows[static_cast<size_t>(t * kCols + i)]) *
                 static_cast<double>(rows[static_cast<size_t>(t * kCols + j)]);
        }
        const double got = statistics.hessian()[static_cast<size_t>(i * kCols + j)];
        worst = std::max(worst, std::abs(got - sum));
      }
    }
    // 38 additions, each off by at most 2^-24 of a sum below 37 x 4 x 4.
    CHECK(worst < 38 * 37 * 16 * 0x1p-24);
  }
}

TEST_CASE("a quantized folder reads back, and error feedback beats rounding", "[slow][.]") {
  const Folder folder;
  const Checkpoint demo = load(kDemo);
  const auto tokenizer = std::move(make_tokenizer(demo.tokenizer, 2048)).value();
  const std::string text = heldout();
  std::vector<Checkpoint> made;
  for (const std::string method : {"rtn", "gptq", "awq"}) {
    QuantizeOptions o;
    o.method = method;
    o.weights = "q4_0";
    if (method != "rtn") o.calibration = text.substr(20000, 30000);
    o.calibration_context = 128;
    size_t told = 0;
    const auto report = quantize_model(demo, tokenizer.get(), folder / method, o, [&](const LayerError& e) {
      ++told;
      CHECK(e.format == "q4_0");
      CHECK(e.weight_error > 0.02);  // 4 bits: about 20 dB
      CHECK(e.weight_error < 0.2);
      CHECK((e.output_error > 0) == (method != "rtn"));
    });
    REQUIRE_OK(report);
    CHECK(told == 6 * 7 + 1);
    CHECK_FALSE(fs::exists(folder / (method + ".partial")));
    CHECK_FALSE(fs::exists(folder / (method + "/progress.json")));
    made.push_back(load(folder / method));
    CHECK(made.back().config.at("tie_word_embeddings") == false);
    CHECK(made.back().tensors.at("lm_head.weight").format() == *Format::find("q4_0"));
    CHECK(made.back().tensors.at("model.embed_tokens.weight").format() == Format::bf16());
  }
  CompareOptions compare;
  compare.contexts = {128};
  const auto table = compare_models(demo, *tokenizer, std::string_view(text).substr(0, 6000),
                                    {{"rtn", &made[0]}, {"gptq", &made[1]}, {"awq", &made[2]}}, compare);
  REQUIRE_OK(table);
  const double rtn = table->rows[0].mean_kld, gptq = table->rows[1].mean_kld, awq = table->rows[2].mean_kld;
  INFO("rtn " << rtn << " gptq " << gptq << " awq " << awq);
  CHECK(rtn < 0.02);
  CHECK(gptq < rtn);
  CHECK(awq < 1.1 * rtn);  // scales are taken where they help a layer's output
}

TEST_CASE("an interrupted run goes on to the same bytes") {
  const Folder folder;
  const Checkpoint demo = oar_test::shallow_demo();
  const auto tokenizer = std::move(make_tokenizer(demo.tokenizer, 2048)).value();
  for (const std::string method : {"hqq", "gptq", "smoothquant"}) {
    if (oar_test::kSlow && method != "gptq") continue;  // the one that keeps most between its stages
    INFO(method);
    QuantizeOptions o;
    o.method = method;
    o.weights = "q4_0";
    if (method != "hqq") o.calibration = heldout().substr(0, 1500);
    o.calibration_context = 64;
    REQUIRE_OK(quantize_model(demo, tokenizer.get(), folder / (method + "-whole"), o));
    const std::string out = folder / method;
    size_t calls = 0;
    const Progress stop_after_some = [&](std::string_view, uint64_t done, uint64_t total) {
      return ++calls < 4 || done * 10 < total * 6;  // within the second layer
    };
    const auto stopped = quantize_model(demo, tokenizer.get(), out, o, {}, stop_after_some);
    REQUIRE(stopped.status().code() == StatusCode::kCancelled);
    CHECK_FALSE(fs::exists(out));
    CHECK(fs::exists(out + ".partial/progress.json"));
    QuantizeOptions other = o;
    other.calibration_tokens = 7;
    CHECK(quantize_model(demo, tokenizer.get(), out, other).status().code() == StatusCode::kAlreadyExists);
    const auto report = quantize_model(demo, tokenizer.get(), out, o);
    REQUIRE_OK(report);
    CHECK(report->resumed > 0);
    CHECK(bytes_of(out + "/model.safetensors") == bytes_of(folder / (method + "-whole/model.safetensors")));
    CHECK(quantize_model(demo, tokenizer.get(), out, o).status().code() == StatusCode::kAlreadyExists);
  }
}

TEST_CASE("a rotated folder computes the same model") {
  const Folder folder;
  const Checkpoint demo = oar_test::shallow_demo();
  const auto tokenizer = std::move(make_tokenizer(demo.tokenizer, 2048)).value();
  for (const std::string method : {"rtn", "gptq"}) {
    if (oar_test::kSlow && method != "gptq") continue;
    INFO(method);
    QuantizeOptions o;
    o.method = method;
    o.weights = "q8_0";
    o.rotate = "all";
    o.calibration = heldout().substr(0, 1500);
    o.calibration_context = 64;
    REQUIRE_OK(quantize_model(demo, tokenizer.get(), folder / method, o));
    const Checkpoint made = load(folder / method);
    CompareOptions compare;
    compare.contexts = {64};
    const auto table = compare_models(demo, *tokenizer, heldout().substr(0, 1500), {{"r", &made}}, compare);
    REQUIRE_OK(table);
    CHECK(table->rows[0].logit_snr_db > 30);  // 8 bits of it are left; a wrong basis leaves nothing
  }
}

// Logits of a tiny golden's first tokens, and the ratio of what other logits differ from them.
std::vector<float> tiny_logits(const oar_test::TinyGolden& golden, const Checkpoint& c,
                               const std::string& rotate) {
  LanguageModelOptions options;
  options.threads = 2;
  options.kv = "f32";
  options.rotate = rotate;
  const auto model = EvalModel::open(c, options, make_backend(options).value(), 16);
  REQUIRE_OK(model);
  const auto out = (*model)->append(std::span(golden.tokens).first(8));
  REQUIRE_OK(out);
  return std::vector<float>(out->begin(), out->end());
}

double snr_db(const std::vector<float>& want, const std::vector<float>& got) {
  double signal = 0, noise = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    signal += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    noise += d * d;
  }
  return 10 * std::log10(signal / noise);
}

TEST_CASE("matrices stored (in, out) are quantized as rows of outputs") {
  const Folder folder;
  const auto golden = oar_test::load_tiny_golden("gpt2");
  const Checkpoint source = load(oar_test::write_tiny_model(golden, oar_test::TinyDtype::f32));
  const std::vector<float> want = tiny_logits(golden, source, "none");
  const Tensor& up = source.tensors.at("transformer.h.0.mlp.c_fc.weight");
  QuantizeOptions o;
  o.method = "rtn";
  o.weights = "q8_0";
  const auto report = quantize_model(source, nullptr, folder / "gpt2", o);
  REQUIRE_OK(report);
  CHECK(report->layers.size() == 2 * 4 + 1);  // two layers, and the head that shares the embedding
  ThreadPool pool({.threads = 2});
  const auto at_load = quantize_at_load(source, "q8_0", folder / "cache", pool, {}, {});
  REQUIRE_OK(at_load);
  const auto again = quantize_at_load(source, "q8_0", folder / "cache", pool, {}, {});  // mapped
  REQUIRE_OK(again);
  const Checkpoint offline = load(folder / "gpt2");
  CHECK(stored_rotation(offline.config)->any() == false);
  for (const Checkpoint* made : {&offline, &*at_load, &*again}) {
    const Tensor& t = made->tensors.at("transformer.h.0.mlp.c_fc.weight");
    CHECK(t.format() == *Format::find("q8_0"));
    CHECK(t.shape() == Shape({up.shape()[1], up.shape()[0]}));
    CHECK(snr_db(want, tiny_logits(golden, *made, "none")) > 25);
  }
}

TEST_CASE("every architecture, rotated and quantized, offline and at load, computes the same model") {
  const Folder folder;
  oar_test::Sample sample;
  for (const std::string& name : oar_test::tiny_golden_names()) {
    if (!sample.take()) continue;
    INFO(name);
    const auto golden = oar_test::load_tiny_golden(name);
    const Checkpoint source = load(oar_test::write_tiny_model(golden, oar_test::TinyDtype::f32));
    const std::vector<float> want = tiny_logits(golden, source, "none");
    QuantizeOptions o;
    o.method = "rtn";
    o.weights = "q8_0";
    o.rotate = "all";
    REQUIRE_OK(quantize_model(source, nullptr, folder / name, o));
    ThreadPool pool({.threads = 2});
    const auto at_load = quantize_at_load(source, "q8_0", folder / "cache", pool, {}, {}, "all");
    REQUIRE_OK(at_load);
    const auto again = quantize_at_load(source, "q8_0", folder / "cache", pool, {}, {}, "all");  // mapped
    REQUIRE_OK(again);
    // 8 bits of weights and of activations; a wrong basis leaves nothing, and a mixture may choose another
    // expert for a token.
    const double least =
        name.find("mixtral") != std::string::npos || name.find("moe") != std::string::npos ? 15 : 25;
    CHECK(snr_db(want, tiny_logits(golden, load(folder / name), "none")) > least);
    const std::vector<float> loaded = tiny_logits(golden, *at_load, "all");
    CHECK(snr_db(want, loaded) > least);
    CHECK(loaded == tiny_logits(golden, *again, "all"));
  }
}

TEST_CASE("quantizing refuses what it cannot do and leaves nothing behind") {
  const Folder folder;
  const Checkpoint demo = load(kDemo);
  QuantizeOptions o;
  o.method = "gptq";
  CHECK(quantize_model(demo, nullptr, folder / "a", o).status().message().find("calibrate") !=
        std::string::npos);
  o.method = "magic";
  CHECK(quantize_model(demo, nullptr, folder / "a", o).status().message().find("hqq") != std::string::npos);
  o.method = "rtn";
  o.weights = "int5";
  CHECK(quantize_model(demo, nullptr, folder / "a", o).status().message().find("int5") != std::string::npos);
  o.weights = "q4_0";
  REQUIRE_OK(quantize_model(demo, nullptr, folder / "q", o));
  CHECK_FALSE(quantize_model(load(folder / "q"), nullptr, folder / "a", o).ok());  // nothing left to quantize
  CHECK_FALSE(quantize_model(demo, nullptr, folder / "no/such/place", o).ok());
  Checkpoint broken = demo;
  auto t = Tensor::allocate({256, 256}, Format::f32());
  REQUIRE_OK(t);
  std::fill_n(t->mutable_values<float>().data(), 256 * 256, NAN);
  broken.tensors.insert_or_assign("model.layers.3.self_attn.q_proj.weight", *t);
  const auto bad = quantize_model(broken, nullptr, folder / "a", o);
  CHECK(bad.status().message().find("layers.3.self_attn.q_proj") != std::string::npos);
  CHECK_FALSE(fs::exists(folder / "a"));
  CHECK_FALSE(fs::exists(folder / "a.partial"));
}

// A disk that is full, as far as this process can tell: writes beyond `bytes` of a file fail while it lives.
class FullDisk {
 public:
  FullDisk() { getrlimit(RLIMIT_FSIZE, &before_); }
  void fill(rlim_t bytes) const {
    const rlimit now{bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &now) == 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST_CASE("a disk that fills half-way leaves nothing half-written") {
  const Folder folder;
  const Checkpoint demo = oar_test::shallow_demo();
  QuantizeOptions o;
  o.method = "rtn";
  o.weights = "q4_0";
  std::string message;
  size_t done_before = 0;
  {
    const FullDisk disk;
    const auto report = quantize_model(demo, nullptr, folder / "out", o, {},
                                       [&](std::string_view, uint64_t done, uint64_t total) {
                                         if (2 * done > total) disk.fill(4096);
                                         else ++done_before;
                                         return true;
                                       });
    message = report.status().message();
    CHECK_FALSE(report.ok());
  }
  INFO(message);
  CHECK(done_before > 0);
  CHECK(message.find("cannot write") != std::string::npos);
  CHECK(message.find("out.partial") != std::string::npos);
  CHECK(fs::is_empty(folder.path));
  {  // no room from the start
    const FullDisk disk;
    disk.fill(4096);
    CHECK_FALSE(quantize_model(demo, nullptr, folder / "out", o).ok());
  }
  CHECK(fs::is_empty(folder.path));
  // At load the model is served all the same, from memory, and says so.
  std::string said;
  const Logger log{[&](LogLevel, std::string_view m) { said += m; }};
  ThreadPool pool({.threads = 2});
  {
    const FullDisk disk;
    const auto loaded = quantize_at_load(demo, "w4a8", folder / "cache", pool, log,
                                         [&](std::string_view, uint64_t done, uint64_t total) {
                                           if (2 * done > total) disk.fill(4096);
                                           return true;
                                         });
    REQUIRE_OK(loaded);
    CHECK(loaded->tensors.at("model.layers.0.mlp.up_proj.weight").format() == *Format::find("w4a8_g128"));
  }
  CHECK(said.find("cannot be kept") != std::string::npos);
  CHECK(fs::is_empty(folder / "cache/weights"));
}

TEST_CASE("a layer whose matrices differ in format computes what they say") {
  Checkpoint mixed = oar_test::shallow_demo();
  ThreadPool pool({.threads = 2});
  const std::pair<const char*, const char*> formats[] = {
      {"self_attn.q_proj", "q4_0"},     {"self_attn.k_proj", "i8_channel"}, {"self_attn.v_proj", "w4a8_g128"},
      {"self_attn.o_proj", "u4_g64"},   {"mlp.gate_proj", "i4_s8_g32"},     {"mlp.up_proj", "q8_0"},
      {"mlp.down_proj", "e4m3_channel"}};
  for (const auto& [matrix, format] : formats) {
    const std::string name = std::string("model.layers.1.") + matrix + ".weight";
    auto made = quantize_weight(mixed.tensors.at(name), *Format::find(format), {}, {}, pool);
    REQUIRE_OK(made);
    mixed.tensors.insert_or_assign(name, made->tensor);
  }
  Checkpoint decoded = mixed;
  for (auto& [name, tensor] : decoded.tensors) tensor = to_f32(tensor).value();
  const auto tokenizer = std::move(make_tokenizer(mixed.tokenizer, 2048)).value();
  CompareOptions compare;
  compare.contexts = {64};
  const auto table = compare_models(decoded, *tokenizer, heldout().substr(0, 1500),
                                    {{"mixed", &mixed, "auto", "f32"}}, compare);
  REQUIRE_OK(table);
  CHECK(table->rows[0].logit_snr_db > 30);  // what 8-bit activations leave; a matrix misread leaves nothing
}

TEST_CASE("a folder of ours that contradicts itself is refused") {
  const Folder folder;
  QuantizeOptions o;
  o.method = "rtn";
  o.weights = "q4_0";
  REQUIRE_OK(quantize_model(oar_test::shallow_demo(), nullptr, folder / "q", o));
  const std::string path = folder / "q/config.json", good = bytes_of(path);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    std::ofstream(path, std::ios::binary) << text.replace(at, from.size(), to);
    return load_checkpoint(folder / "q").status().message();
  };
  CHECK(with("\"version\":1", "\"version\":2").find("version is 2") != std::string::npos);
  CHECK(with("\"format\":\"q4_0\"", "\"format\":\"q9_9\"").find("q9_9") != std::string::npos);
  CHECK(with("\"format\":\"q4_0\"", "\"format\":\"q4_1\"").find("q4_1") != std::string::npos);
  CHECK(with("\"shape\":[256,256]", "\"shape\":[256,255]").find("255") != std::string::npos);
  CHECK(with("\"shape\":[256,256]", "\"shape\":[256,-32]").find("shape") != std::string::npos);
  CHECK(with("\"model.layers.0.", "\"model.layers.77.").find("layers.77") != std::string::npos);
  CHECK(with("\"tensors\":", "\"tensors_\":").find("tensors") != std::string::npos);
}

TEST_CASE("weights quantized at load are kept and mapped") {
  const Folder folder;
  ThreadPool pool({.threads = 2});
  std::string said;
  const Logger log{[&](LogLevel, std::string_view m) { said += m; }};
  const auto load_int4 = [&](const std::string& cache) {
    auto c = quantize_at_load(oar_test::shallow_demo(), "int4", cache, pool, log, {});
    REQUIRE_OK(c);
    return std::move(*c);
  };
  const Checkpoint first = load_int4(folder / "cache");
  CHECK(said.find("are kept in") != std::string::npos);
  said.clear();
  const Checkpoint second = load_int4(folder / "cache");
  CHECK(said.empty());
  const auto files = fs::directory_iterator(folder / "cache/weights");
  REQUIRE(std::distance(begin(files), end(files)) == 1);
  const std::string cached = fs::directory_iterator(folder / "cache/weights")->path().string();
  // In memory, where nothing can be written, the bytes are the same.
  std::ofstream(folder / "file") << "in the way";
  const Checkpoint third = load_int4(folder / "file");
  CHECK(said.find("cannot be kept") != std::string::npos);
  for (const auto& [name, tensor] : first.tensors) {
    const Tensor &b = second.tensors.at(name), &c = third.tensors.at(name);
    CHECK(tensor.format() == b.format());
    CHECK(std::memcmp(tensor.data(), b.data(), tensor.bytes()) == 0);
    CHECK(std::memcmp(tensor.data(), c.data(), tensor.bytes()) == 0);
  }
  // A damaged cache is noticed and replaced.
  fs::resize_file(cached, fs::file_size(cached) / 2);
  said.clear();
  const Checkpoint fourth = load_int4(folder / "cache");
  CHECK(said.find("made anew") != std::string::npos);
  CHECK(fourth.bytes == first.bytes);
  CHECK(quantize_at_load(load(kDemo), "int5", "", pool, log, {}).status().message().find("int4") !=
        std::string::npos);
}

TEST_CASE("rotated and quantized at load: weights are rounded once") {
  const Folder folder;
  const Checkpoint demo = oar_test::kSlow ? oar_test::shallow_demo() : load(kDemo);
  const auto tokenizer = make_tokenizer(demo.tokenizer, 2048).value();
  CompareOptions compare;
  compare.contexts = {128};
  compare.model.cache_dir = folder / "cache";
  const auto table = compare_models(
      demo, *tokenizer, heldout().substr(0, oar_test::kSlow ? 1500 : 4000),
      {{"plain", &demo, "int4", "f32", "none"}, {"rotated", &demo, "int4", "f32", "all"}}, compare);
  REQUIRE_OK(table);
  CHECK(table->rows[1].rotate == "r1,r2,r3,r4");
  // Rounded twice, the rotated weights would lose about twice as much.
  CHECK(table->rows[1].mean_kld < 1.4 * table->rows[0].mean_kld);
  const auto files = fs::directory_iterator(folder / "cache/weights");
  CHECK(std::distance(begin(files), end(files)) == 2);  // each basis has its own
}

TEST_CASE("every scheme loads every architecture, cut or not") {
  oar_test::Sample sample;
  ThreadPool pool({.threads = 2});
  const Folder folder;
  for (const std::string& name : oar_test::tiny_golden_names()) {
    const auto golden = oar_test::load_tiny_golden(name);
    const std::string path = oar_test::write_tiny_model(golden, oar_test::TinyDtype::bf16);
    for (const std::string& scheme : weight_scheme_names()) {
      if (!sample.take()) continue;
      INFO(name << " " << scheme);
      auto c = quantize_at_load(load(path), scheme, folder / "cache", pool, {}, {});
      REQUIRE_OK(c);
      LanguageModelOptions options;
      options.weights = scheme;
      options.threads = 2;
      const auto model = EvalModel::open(*c, options, make_backend(options).value(), 16);
      REQUIRE_OK(model);
      const std::vector<int32_t> tokens(golden.tokens.begin(), golden.tokens.begin() + 8);
      const auto logits = (*model)->append(tokens);
      REQUIRE_OK(logits);
      for (const float x : *logits) REQUIRE(std::isfinite(x));
    }
  }
}
