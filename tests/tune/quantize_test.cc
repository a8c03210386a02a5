// `oar quantize` and quantizing at load, on the default model: what is written reads back, an interrupted run
// goes on, errors leave nothing behind, and error feedback is worth its time.
#include "engine/tune/quantize/quantize.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <span>
#include <sstream>

#include "engine/graph/passes/rotate.h"
#include "engine/loader/oar_quantized.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/tune/measure/compare.h"
#include "engine/tune/measure/quant_report.h"
#include "engine/tune/quantize/calibrated_quantizer.h"
#include "tests/loader/builders.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"
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
    if (method != "hqq") o.calibration = heldout().substr(0, 2500);
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
    if (method != "rtn") o.calibration = heldout().substr(0, 2500);
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
  const auto at_load = quantize_at_load(source, "q8_0", {folder / "cache"}, pool, {}, {});
  REQUIRE_OK(at_load);
  const auto again = quantize_at_load(source, "q8_0", {folder / "cache"}, pool, {}, {});  // mapped
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
    const auto at_load = quantize_at_load(source, "q8_0", {folder / "cache"}, pool, {}, {}, "all");
    REQUIRE_OK(at_load);
    const auto again = quantize_at_load(source, "q8_0", {folder / "cache"}, pool, {}, {}, "all");  // mapped
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
  if (stories && tale && !oar_test::kSlow) models.push_back({"stories", *stories, bytes_of(*tale), 512});
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

TEST_CASE("the output has the model's files and no others, and brings its tokenizer") {
  const Folder folder;
  fs::copy(kDemo, folder / "source");
  fs::remove(folder / "source/tokenizer.json");
  const auto put = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / ("source/" + name), std::ios::binary) << text;
  };
  // llama2.c's tokenizer: the longest token, then score, length and bytes of each.
  std::string vocabulary("\4\0\0\0", 4);
  for (int i = 0; i < 2048; ++i) {
    std::string token = i < 3 ? "<" + std::to_string(i) + ">" : i < 259 ? std::string(1, char(i - 3)) : "t";
    const float score = static_cast<float>(-i);
    const auto length = static_cast<int32_t>(token.size());
    vocabulary.append(reinterpret_cast<const char*>(&score), 4);
    vocabulary.append(reinterpret_cast<const char*>(&length), 4);
    vocabulary += token;
  }
  put("tokenizer.bin", vocabulary);
  put("notes.txt", "mine");
  put("training.json", "{}");
  put("LICENSE", "terms");
  QuantizeOptions o;
  o.weights = "q4_0";
  REQUIRE_OK(quantize_model(load(folder / "source"), nullptr, folder / "out", o));
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "out")) names.insert(entry.path().filename());
  CHECK(names == std::set<std::string>{"LICENSE", "chat_template.jinja", "config.json",
                                       "generation_config.json", "model.safetensors", "tokenizer.bin",
                                       "tokenizer_config.json"});
  const Checkpoint made = load(folder / "out");
  CHECK(made.tokenizer.llama2c_bin == vocabulary);
  CHECK(made.tokenizer.chat_template == load(folder / "source").tokenizer.chat_template);
  REQUIRE_OK(make_tokenizer(made.tokenizer, 2048));
}

// A mixture as GGUF has it: experts in one tensor, the vocabulary in the metadata.
std::string mixture_gguf(const oar_test::TinyGolden& golden) {
  const json::object c = parse_json(golden.config, "config").value().as_object();
  const auto count = [&](const char* key) { return static_cast<uint32_t>(c.at(key).as_int64()); };
  const uint32_t layers = count("num_hidden_layers"), experts = count("num_local_experts");
  oar_test::GgufBuilder b;
  b.str("general.architecture", "llama");
  b.u32("llama.embedding_length", count("hidden_size")).u32("llama.block_count", layers);
  b.u32("llama.feed_forward_length", count("intermediate_size")).u32("llama.context_length", 256);
  b.u32("llama.attention.head_count", count("num_attention_heads"));
  b.u32("llama.attention.head_count_kv", count("num_key_value_heads"));
  b.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  b.u32("llama.expert_count", experts).u32("llama.expert_used_count", count("num_experts_per_tok"));
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{2, 3, 3};
  while (tokens.size() < static_cast<size_t>(golden.vocab)) {
    const size_t k = tokens.size() - 3;
    char byte[8];
    std::snprintf(byte, sizeof byte, "<0x%02X>", static_cast<unsigned>(k % 256));
    tokens.push_back(k < 26 ? std::string(1, static_cast<char>('a' + k)) : cat(byte, k < 256 ? "" : "+"));
    types.push_back(k < 26 ? 1 : 6);
  }
  b.str("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", tokens);
  b.array<float>("tokenizer.ggml.scores", GgufType::kF32, std::vector<float>(tokens.size(), 0.f));
  b.array<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, types);
  b.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
  b.str("tokenizer.chat_template", "{{ messages[0].content }}");
  const auto add = [&](const std::string& name, const std::vector<std::string>& sources) {
    std::string bytes;
    std::vector<uint64_t> dims;
    for (const std::string& source : sources) {
      const auto t = std::find_if(golden.tensors.begin(), golden.tensors.end(),
                                  [&](const auto& tensor) { return tensor.name == source; });
      REQUIRE(t != golden.tensors.end());
      const auto values = oar_test::tiny_weights(t->name, t->shape, golden.weight_seed);
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
      dims.assign(t->shape.rbegin(), t->shape.rend());
    }
    if (sources.size() > 1) dims.push_back(sources.size());
    b.tensor(name + ".weight", dims, 0, bytes);
  };
  add("token_embd", {"model.embed_tokens.weight"});
  add("output_norm", {"model.norm.weight"});
  add("output", {"lm_head.weight"});
  for (uint32_t n = 0; n < layers; ++n) {
    const std::string from = cat("model.layers.", n, "."), to = cat("blk.", n, ".");
    for (const auto& [gguf, name] : std::initializer_list<std::pair<const char*, const char*>>{
             {"attn_norm", "input_layernorm"},
             {"attn_q", "self_attn.q_proj"},
             {"attn_k", "self_attn.k_proj"},
             {"attn_v", "self_attn.v_proj"},
             {"attn_output", "self_attn.o_proj"},
             {"ffn_norm", "post_attention_layernorm"},
             {"ffn_gate_inp", "block_sparse_moe.gate"}}) {
      add(to + gguf, {from + name + ".weight"});
    }
    for (const auto& [gguf, part] : std::initializer_list<std::pair<const char*, const char*>>{
             {"ffn_gate_exps", "w1"}, {"ffn_up_exps", "w3"}, {"ffn_down_exps", "w2"}}) {
      std::vector<std::string> sources;
      for (uint32_t e = 0; e < experts; ++e)
        sources.push_back(cat(from, "block_sparse_moe.experts.", e, ".", part, ".weight"));
      add(to + gguf, sources);
    }
  }
  return b.bytes();
}

TEST_CASE("a GGUF file is quantized, its experts and its vocabulary too") {
  const Folder folder;
  const auto golden = oar_test::load_tiny_golden("mixtral");
  oar_test::write_file(folder / "m.gguf", mixture_gguf(golden));
  const Checkpoint source = load(folder / "m.gguf");
  REQUIRE(source.kind == "gguf");
  QuantizeOptions o;
  o.weights = "q8_0";
  const auto report = quantize_model(source, nullptr, folder / "out", o);
  REQUIRE_OK(report);
  const Checkpoint made = load(folder / "out");
  const Tensor& expert = made.tensors.at("model.layers.0.mlp.experts.1.up_proj.weight");
  CHECK(expert.format() == *Format::find("q8_0"));
  CHECK(snr_db(tiny_logits(golden, source, "none"), tiny_logits(golden, made, "none")) > 15);
  const auto before = make_tokenizer(source.tokenizer, golden.vocab),
             after = make_tokenizer(made.tokenizer, 0);
  REQUIRE_OK(before);
  REQUIRE_OK(after);
  CHECK((*before)->encode("badge").value() == (*after)->encode("badge").value());
  CHECK(made.tokenizer.chat_template == "{{ messages[0].content }}");
  CHECK(made.tokenizer.generation_config == source.tokenizer.generation_config);
  // And once more, from the folder.
  o.weights = "int8";
  CHECK(quantize_model(made, nullptr, folder / "again", o).status().message().find("16 or 32 bits") !=
        std::string::npos);
  // A file that is quantized already says so.
  auto taken = load(folder / "m.gguf");
  taken.tensors.insert_or_assign("model.layers.0.self_attn.q_proj.weight",
                                 made.tensors.at("model.layers.0.self_attn.q_proj.weight"));
  CHECK(quantize_model(taken, nullptr, folder / "again", o).status().message().find("q_proj") !=
        std::string::npos);
}

TEST_CASE("a llama2.c file is quantized and brings its tokenizer") {
  const Folder folder;
  // dim, ffn, layers, heads, KV heads, vocabulary, context; then every weight and two tables of RoPE.
  constexpr int32_t kHeader[] = {64, 96, 2, 4, 2, 300, 32};
  std::string bytes(reinterpret_cast<const char*>(kHeader), sizeof kHeader);
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0, 0.1f);
  const int count =
      300 * 64 + 2 * (64 + 64 * 64 + 2 * 32 * 64 + 64 * 64 + 64 + 3 * 96 * 64) + 64 + 2 * 32 * 8;
  for (int i = 0; i < count; ++i) oar_test::append(bytes, normal(random));
  oar_test::write_file(folder / "m.bin", bytes);
  std::string vocabulary("\1\0\0\0", 4);
  for (int i = 0; i < 300; ++i) {
    oar_test::append(vocabulary, static_cast<float>(-i));
    oar_test::append(vocabulary, int32_t{1});
    vocabulary += static_cast<char>(i % 256);
  }
  oar_test::write_file(folder / "tok300.bin", vocabulary);
  const Checkpoint source = load(folder / "m.bin");
  REQUIRE(source.kind == "llama2c");
  QuantizeOptions o;
  o.weights = "q8_0";
  REQUIRE_OK(quantize_model(source, nullptr, folder / "out", o));
  const Checkpoint made = load(folder / "out");
  CHECK(made.tokenizer.llama2c_bin == vocabulary);
  REQUIRE_OK(make_tokenizer(made.tokenizer, 300));
  oar_test::TinyGolden golden;
  golden.tokens = {1, 5, 9, 2, 7, 8, 3, 4};
  CHECK(snr_db(tiny_logits(golden, source, "none"), tiny_logits(golden, made, "none")) > 25);
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
    auto c = quantize_at_load(oar_test::shallow_demo(), "int4", {cache}, pool, log, {});
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
  // A damaged cache is noticed and replaced: cut, or with 64 KB lost in the middle.
  const auto replaced = [&](const std::string& with) {
    fs::remove(cached);  // the old one is mapped
    std::ofstream(cached, std::ios::binary) << with;
    said.clear();
    const Checkpoint again = load_int4(folder / "cache");
    CHECK(said.find("made anew") != std::string::npos);
    for (const auto& [name, tensor] : first.tensors) {
      CHECK(std::memcmp(tensor.data(), again.tensors.at(name).data(), tensor.bytes()) == 0);
    }
  };
  std::string bytes = oar_test::read_file(cached);
  replaced(bytes.substr(0, bytes.size() / 2));
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), 64 << 10, '\0');
  replaced(bytes);
  // And it can be off.
  fs::remove(cached);
  const auto off = quantize_at_load(oar_test::shallow_demo(), "int4", {folder / "cache", 0}, pool, log, {});
  REQUIRE_OK(off);
  CHECK_FALSE(fs::exists(cached));
  const Checkpoint fourth = load_int4(folder / "cache");
  CHECK(fourth.bytes == first.bytes);
  CHECK(quantize_at_load(load(kDemo), "int5", {}, pool, log, {}).status().message().find("int4") !=
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
      auto c = quantize_at_load(load(path), scheme, {folder / "cache"}, pool, {}, {});
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
