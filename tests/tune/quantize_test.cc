// `oar quantize` on the default model and on tiny ones: what is written reads back, an interrupted run goes
// on, errors leave nothing behind, and error feedback is worth its time.
#include "engine/tune/quantize/quantize.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <span>

#include "engine/graph/passes/rotate.h"
#include "engine/loader/oar_quantized.h"
#include "engine/runtime/language_model.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/tune/measure/quant_report.h"
#include "engine/tune/quantize/calibrated_quantizer.h"
#include "tests/models/runner_fixture.h"
#include "tests/models/tiny_adapter.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/tune/quantize_fixture.h"
#include "tests/tune/shallow.h"

using namespace oar;
namespace fs = std::filesystem;
using oar_test::heldout;
using oar_test::kDemo;
using oar_test::load;
using oar_test::snr_db;
using oar_test::tiny_logits;
using Folder = oar_test::QuantizeFolder;

namespace {

std::string calibration_text() { return heldout().substr(0, oar_test::kSlow ? 1700 : 2500); }

}  // namespace

TEST_CASE("statistics of inputs are the sums they stand for, over several blocks and calls") {
  constexpr int64_t kCols = 301;  // more than a block of the triangle, and no multiple of a panel
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> rows(37 * kCols);
  for (float& v : rows) v = normal(random);
  for (const int threads : {1, 3}) {
    const auto backend =
        make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = threads}), best_isa());
    InputStatistics statistics(kCols);
    const std::span<const float> all(rows);
    REQUIRE_OK(statistics.add(all.first(20 * kCols), *backend));
    REQUIRE_OK(statistics.add(all.subspan(20 * kCols), *backend));
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
    if (method != "hqq") o.calibration = calibration_text();
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
    CHECK(oar_test::read_file(out + "/model.safetensors") ==
          oar_test::read_file(folder / (method + "-whole/model.safetensors")));
    CHECK(quantize_model(demo, tokenizer.get(), out, o).status().code() == StatusCode::kAlreadyExists);
  }
}

TEST_CASE("a quantized folder is served in the memory that it takes, its packed weights counted once") {
  const Folder folder;
  QuantizeOptions o;
  o.weights = "int8";
  REQUIRE_OK(quantize_model(load(kDemo), nullptr, folder / "int8", o));
  LanguageModelOptions serve;
  serve.max_sequences = 2;
  serve.max_batch_tokens = 64;
  serve.memory_bytes = 8 << 20;
  const auto model = LanguageModel::load(folder / "int8", serve);
  REQUIRE_OK(model);
  const ModelInfo& info = (*model)->info();
  CHECK(info.weight_bytes + info.scratch_bytes + info.kv_bytes <= serve.memory_bytes);
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
    if (method != "rtn") o.calibration = calibration_text();
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

TEST_CASE("adapters fit folders whose channels were scaled and whose basis was rotated") {
  const Folder folder;
  const Checkpoint demo = oar_test::shallow_demo();
  const auto tokenizer = std::move(make_tokenizer(demo.tokenizer, 2048)).value();
  // One of each input: the stream's two norms, attention's heads and the gate.
  std::vector<oar_test::TinyTensor> pairs;
  for (const char* module :
       {"self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"}) {
    const std::string name = std::string("model.layers.1.") + module;
    const Tensor& w = demo.tensors.at(name + ".weight");
    pairs.push_back({"base_model.model." + name + ".lora_A.weight", {4, w.shape()[1]}});
    pairs.push_back({"base_model.model." + name + ".lora_B.weight", {w.shape()[0], 4}});
  }
  const std::string adapter = oar_test::write_adapter(
      "adapter-of-channels",
      {{"peft_type", "LORA"},
       {"r", 4},
       {"lora_alpha", 8},
       {"target_modules", json::array{"q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"}}},
      pairs, 3);
  LanguageModelOptions options;
  options.threads = 2;
  options.kv = "f32";
  options.max_loras = 1;
  const std::vector<int32_t> tokens = tokenizer->encode("Once upon a time there was a king").value();
  const auto logits = [&](const Checkpoint& c, bool with) {
    oar_test::RunnerFixture model(c, options);
    REQUIRE_OK(model.adapters->load("a", adapter));
    return model.run({{tokens, 0, model.blocks(tokens.size()), true, with ? 0 : -1}});
  };
  const std::vector<float> want = logits(demo, true), plain = logits(demo, false);
  CHECK(oar_test::snr_db(want, plain) < 10);
  for (const std::string method : {"awq", "smoothquant", "rtn"}) {
    for (const std::string rotate : {"none", "all"}) {
      if (oar_test::kSlow && (method != "awq" || rotate != "all")) continue;
      INFO(method << " " << rotate);
      QuantizeOptions o;
      o.method = method;
      o.weights = "q8_0";
      o.rotate = rotate;
      if (method != "rtn") o.calibration = calibration_text();
      o.calibration_context = 64;
      const std::string made = folder / (method + "-" + rotate);
      REQUIRE_OK(quantize_model(demo, tokenizer.get(), made, o));
      const Checkpoint stored = load(made);
      const double all = oar_test::snr_db(want, logits(stored, true));
      CAPTURE(all);
      CHECK(all > 25);  // 8 bits of the weights are left
      // Scales that were given away are needed.
      if (method == "rtn") continue;
      Checkpoint old = stored;
      std::erase_if(old.tensors, [](const auto& t) { return t.first.ends_with(".channels"); });
      const auto refused = build_serving_graph(old, read_model_config(old.config).value(), options);
      CHECK(refused.status().message().find("quantize the model again") != std::string::npos);
    }
  }
}

TEST_CASE("int4 without a text is rounding, which loses less than HQQ on every real model at hand") {
  CHECK(weight_scheme("int4").value().method == calibrate::FitMethod::kMse);
  CHECK(QuantizeOptions{}.method == "rtn");
  const Folder folder;
  struct Real {
    std::string name, path, text;
    int64_t context;
  };
  std::vector<Real> models{{"demo", kDemo, heldout().substr(0, oar_test::kSlow ? 1500 : 6000), 256}};
  const auto stories = oar_test::data_path("llm/stories260K/stories260K.bin");
  const auto tale = oar_test::data_path("tokenizers/bpe_training_golden/tinystories_sample.txt");
  if (stories && tale && !oar_test::kSlow)
    models.push_back({"stories", *stories, oar_test::read_file(*tale), 512});
  for (const Real& real : models) {
    INFO(real.name);
    const Checkpoint model = load(real.path);
    const auto vocab = static_cast<int64_t>(model.config.at("vocab_size").as_int64());
    const auto tokenizer = make_tokenizer(model.tokenizer, vocab).value();
    QuantizeOptions o;
    o.method = "hqq";
    REQUIRE_OK(quantize_model(model, nullptr, folder / real.name, o));
    const Checkpoint hqq = load(folder / real.name);
    CompareOptions compare;
    compare.contexts = {real.context};
    compare.model.cache_dir = folder / "cache";
    const auto table = compare_models(model, *tokenizer, real.text,
                                      {{"m", &model, "int4", "f32"}, {"hqq", &hqq, "auto", "f32"}}, compare);
    REQUIRE_OK(table);
    CHECK(table->rows[0].bits.bits_per_weight == table->rows[1].bits.bits_per_weight);
    CHECK(table->rows[0].mean_kld < table->rows[1].mean_kld);
  }
}

TEST_CASE("matrices whose width is no multiple of 32 are named where they stay as they are") {
  const Folder folder;
  const auto golden = oar_test::load_tiny_golden("llama2");  // down projections of 176 columns
  const Checkpoint source = load(oar_test::write_tiny_model(golden, oar_test::TinyDtype::bf16));
  QuantizeOptions o;
  const auto report = quantize_model(source, nullptr, folder / "out", o);
  REQUIRE_OK(report);
  REQUIRE_FALSE(report->uneven.empty());
  for (const UnevenMatrix& m : report->uneven) {
    CHECK(m.name.ends_with(".mlp.down_proj.weight"));
    CHECK(m.cols == 176);
    CHECK(m.format == "bf16");
  }
  CHECK(uneven_text(report->uneven).find("model.layers.0.mlp.down_proj.weight (64 x 176, bf16)") !=
        std::string::npos);
  CHECK(uneven_text({}).empty());
  // At load, whether the quantizer or the kernels make the format; a table of formats names them too.
  for (const char* weights : {"int4", "int8", "auto"}) {
    INFO(weights);
    std::string said;
    LanguageModelOptions options;
    options.weights = weights;
    options.cache_dir = folder / "cache";
    options.log = Logger{[&](LogLevel, std::string_view m) { said += m; }};
    const auto quant = quant_report(source, options);
    REQUIRE_OK(quant);
    const bool named = std::string_view(weights) != "auto";
    CHECK((said.find("model.layers.0.mlp.down_proj.weight") != std::string::npos) == named);
    CHECK((quant->uneven.size() == report->uneven.size()) == named);
    CHECK((quant_text(*quant).find("multiple of 32") != std::string::npos) == named);
    // Every matrix counts, those that a fused product reads too.
    uint64_t matrices = 0;
    for (const auto& format : quant->formats) matrices += format.matrices;
    CHECK(matrices == report->layers.size() + report->uneven.size());
  }
}

TEST_CASE("error feedback that does not help on what was held back gives way to rounding") {
  constexpr int64_t kCols = 64, kRows = 16;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto normals = [&](int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& v : out) v = normal(random);
    return out;
  };
  // Samples of few directions, whose errors feedback can move out of the way.
  const std::vector<float> few = normals(4 * kCols), others = normals(4 * kCols);
  const auto samples = [&](const std::vector<float>& directions, int64_t count) {
    std::vector<float> rows(static_cast<size_t>(count * kCols));
    for (int64_t r = 0; r < count; ++r) {
      const std::vector<float> part = normals(4);
      for (int64_t c = 0; c < kCols; ++c) {
        for (int64_t d = 0; d < 4; ++d)
          rows[static_cast<size_t>(r * kCols + c)] +=
              part[static_cast<size_t>(d)] * directions[static_cast<size_t>(d * kCols + c)];
      }
    }
    return rows;
  };
  const auto backend =
      make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), best_isa());
  ThreadPool& pool = backend->host_pool();
  const auto statistics = [&](const std::vector<float>& rows) {
    InputStatistics s(kCols);
    REQUIRE_OK(s.add(rows, *backend));
    s.finish();
    return s;
  };
  auto w = Tensor::allocate({kRows, kCols}, Format::f32());
  REQUIRE_OK(w);
  const std::vector<float> values = normals(kRows * kCols);
  std::copy(values.begin(), values.end(), w->mutable_values<float>().data());
  QuantizeOptions gptq;
  gptq.method = "gptq";
  const Format format = *Format::find("q4_0");
  const InputStatistics fitted = statistics(samples(few, 600)), alike = statistics(samples(few, 60)),
                        unlike = statistics(samples(others, 60));
  const auto kept = CalibratedQuantizer(gptq, fitted, alike, pool).quantize(*w, format);
  REQUIRE_OK(kept);
  CHECK_FALSE(kept->error.fell_back);
  const auto rounded = quantize_weight(*w, format, {}, {}, pool);
  REQUIRE_OK(rounded);
  const auto left = CalibratedQuantizer(gptq, fitted, unlike, pool).quantize(*w, format);
  REQUIRE_OK(left);
  CHECK(left->error.fell_back);
  CHECK(std::memcmp(left->tensor.data(), rounded->tensor.data(), rounded->tensor.bytes()) == 0);
  CHECK(kept->error.output_error < 0.5 * left->error.output_error);
}

TEST_CASE("a text too short to calibrate on is refused") {
  const Folder folder;
  const Checkpoint demo = oar_test::shallow_demo();
  const auto tokenizer = std::move(make_tokenizer(demo.tokenizer, 2048)).value();
  QuantizeOptions o;
  o.method = "gptq";
  o.weights = "q4_0";
  o.calibration = heldout().substr(0, 600);
  const auto refused = quantize_model(demo, tokenizer.get(), folder / "out", o);
  CHECK(refused.status().param() == "calibration");
  CHECK(refused.status().message().find("at least 512 tokens") != std::string::npos);
  o.calibration = heldout().substr(0, 20000);
  o.calibration_tokens = 100;
  o.calibration_context = 32;
  const auto thinned = quantize_model(demo, tokenizer.get(), folder / "out", o);
  CHECK(thinned.status().message().find("--calibration-tokens") != std::string::npos);
  o.method = "rtn";
  CHECK(quantize_model(demo, tokenizer.get(), folder / "out", o).status().message().find("gptq") !=
        std::string::npos);
  CHECK(fs::is_empty(folder.path));
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
    const auto loaded = quantize_at_load(demo, "w4a8", {folder / "cache"}, pool, log,
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
