// Whole models on the loopback device: the logits of the processor's reference kernels, bit for bit where
// both run the same kernels, and the same tokens where a definition or the processor stands in. Another
// device is held to the roundings of one that computes in 16 bits.
#include "engine/base/format.h"
#include "engine/runtime/text_stream.h"
#include "tests/models/runner_fixture.h"
#include "tests/models/tiny_adapter.h"
#include "tests/plugin/tested_device.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar;
using namespace oar_test;

LanguageModelOptions small_options(const std::string& device = "cpu") {
  LanguageModelOptions o;
  o.device = device;
  o.reference = true;
  o.threads = 2;
  o.max_batch_tokens = 64;
  o.max_sequences = 64;  // rows of logits
  o.page_tokens = 16;
  o.memory_bytes = uint64_t{256} << 20;
  return o;
}

std::vector<int32_t> greedy(LanguageModel& model, const std::string& prompt, int64_t max_tokens) {
  Request request;
  request.prompt = model.tokenizer()->encode(prompt).value();
  request.sampling.temperature = 0;
  request.stop.max_tokens = max_tokens;
  auto stream = TextStream::create(model.tokenizer(), {}, 1);
  REQUIRE_OK(stream->start(model.engine(), std::move(request)));
  std::vector<int32_t> ids;
  while (!stream->done()) {
    auto event = stream->next(std::chrono::seconds(120));
    REQUIRE(event.has_value());
    for (const auto& token : event->tokens) ids.push_back(token.id);
  }
  return ids;
}

// The loopback device has the processor's bits.
void check_logits(const RunnerFixture& device, const std::vector<float>& got,
                  const std::vector<float>& want) {
  if (on_loopback()) {
    CHECK((got == want));
    return;
  }
  const double error = relative_error(got, want);
  CAPTURE(error);
  CHECK(error < (rounded_places(device.config) * static_cast<double>(device.config.layers) + 1) / 512);
}

// Without mixtures of another device, whose roundings may turn a route: with two kinds of layers and a
// latent.
std::vector<std::string> tested_names() {
  if (on_loopback()) return all_golden_names();
  return {"llama3", "gpt2", "lfm2", "minicpm3"};
}

}  // namespace

TEST_CASE("plugin: every architecture gives the processor's logits, prompts, batches and decoding", "[any]") {
  Sample sample(3);
  for (const std::string& name : tested_names()) {
    if (on_loopback() && !sample.take()) continue;
    INFO(name);
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::bf16);
    RunnerFixture cpu(path, small_options()), device(path, small_options(tested_device()));
    const auto& t = golden.tokens;
    check_logits(device, device.run_prompt(t), cpu.run_prompt(t));
    // Two sequences in a batch, then single tokens behind the first.
    const std::vector<int32_t> head(t.begin(), t.begin() + 5), tail(t.begin() + 5, t.begin() + 8);
    const std::vector<Chunk> batch = {{head, 0, {3}, true}, {t, 0, device.blocks(t.size(), 5), false}};
    check_logits(device, device.run(batch), cpu.run(batch));
    for (size_t k = 0; k < tail.size(); ++k) {
      const std::vector<Chunk> step = {{{tail[k]}, 5 + static_cast<int32_t>(k), {3}, true}};
      check_logits(device, device.run(step), cpu.run(step));
    }
  }
}

TEST_CASE("plugin: models on a device that lacks what it may lack") {
  struct Case {
    const char* config;
    bool same_bits;  // no definition stands in for a fused kernel
  };
  const Case cases[] = {
      {"missing=gather_rows+embedding", true},
      {"missing=matmul+grouped_matmul", true},
      {"missing=paged_attention", true},  // the cache then lies beside the device, kv_append runs there too
      {"missing=kv_append+moe_route", true},
      {"missing=rope+swiglu", false},
      {"missing=rms_norm+layer_norm+binary+unary", false},
      {"plain=1", true},
      {"plain=1,missing=matmul+rope+rms_norm+paged_attention", false},
  };
  for (const std::string name : {"llama3", "qwen3-moe", "gpt2"}) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    RunnerFixture cpu(path, small_options());
    const auto expected = cpu.run_prompt(golden.tokens);
    for (const Case& c : cases) {
      INFO(name << " " << c.config);
      LoopbackConfig config(c.config);
      RunnerFixture device(path, small_options("loopback"));
      const auto got = device.run_prompt(golden.tokens);
      if (c.same_bits) CHECK(got == expected);
      // f32 arithmetic in another order: what the processor's own kernels are held to (golden_test.cc).
      CHECK(relative_error(got, expected) < 1e-4);
    }
  }
}

TEST_CASE("plugin: adapters in one batch, and a device without a kernel for them", "[any]") {
  const TinyGolden golden = load_tiny_golden("llama3");
  const std::string path = write_tiny_model(golden, TinyDtype::f32), folder = write_adapter_of(golden);
  auto options = small_options(), on_device = small_options(tested_device());
  for (auto* o : {&options, &on_device}) o->max_loras = 2, o->max_batch_tokens = o->max_sequences = 256;
  RunnerFixture cpu(path, options), device(path, on_device);
  const auto& t = golden.tokens;
  check_logits(device, device.run_prompt(t), cpu.run_prompt(t));
  for (RunnerFixture* model : {&cpu, &device}) REQUIRE_OK(model->adapters->load("a", folder));
  const std::vector<Chunk> batch = {{t, 0, cpu.blocks(t.size()), true, cpu.adapters->find("a")->slot},
                                    {t, 0, cpu.blocks(t.size(), 8), true}};
  check_logits(device, device.run(batch), cpu.run(batch));
  if (!on_loopback()) return;
  LoopbackConfig config("missing=lora");
  CHECK_THROWS_WITH(RunnerFixture(path, on_device), Contains("there is no kernel for adapters on loopback"));
}

TEST_CASE("plugin: quantized weights and caches", "[any]") {
  const TinyGolden golden = load_tiny_golden("llama3");
  const std::string path = write_tiny_model(golden, TinyDtype::bf16);
  for (const char* weights : {"int8", "auto"}) {
    for (const char* kv : {"bf16", "int8", "int4"}) {
      INFO(weights << " " << kv);
      auto options = small_options();
      options.weights = weights;
      options.kv = kv;
      RunnerFixture cpu(path, options);
      options.device = tested_device();
      RunnerFixture device(path, options);
      check_logits(device, device.run_prompt(golden.tokens), cpu.run_prompt(golden.tokens));
    }
  }
}

TEST_CASE("plugin: an automatic cache is of the first tier that the device attends in") {
  const std::string path = write_tiny_model(load_tiny_golden("llama3"), TinyDtype::bf16);
  const auto checkpoint = load_checkpoint(path);
  REQUIRE_OK(checkpoint);
  const auto config = read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  const auto tier = [&](const char* lacks, const char* preferred, const char* kv = "auto") {
    INFO(lacks << " " << preferred);
    const auto backend = loopback_backend(lacks);
    auto options = small_options("loopback");
    options.kv = kv;
    options.preferred_kv = preferred;
    const auto settled = with_kv_of(*backend, *checkpoint, *config, options);
    REQUIRE_OK(settled);
    return settled->kv;
  };
  CHECK(tier("", "") == "bf16");
  CHECK(tier("", "int8") == "int8");
  for (const char* lacks : {"quant_paged_attention", "quant_kv_append", "hadamard"})
    CHECK(tier(cat("missing=", lacks).c_str(), "int8") == "bf16");
  CHECK(tier("missing=quant_paged_attention+paged_attention:bf16", "int8") == "f32");
  CHECK(tier("missing=quant_paged_attention+paged_attention:bf16+kv_append:f32", "int8") == "f16");
  // What has no tier at all keeps the file's width beside the device.
  CHECK(tier("missing=quant_paged_attention+paged_attention", "int8") == "auto");
  // What was asked for is not looked at.
  CHECK(tier("missing=quant_paged_attention", "int8", "int4") == "int4");
}

TEST_CASE("plugin: blocks are copied where their state lies", "[any]") {
  const TinyGolden golden = load_tiny_golden("llama3");
  const std::string path = write_tiny_model(golden, TinyDtype::f32);
  for (const char* text : configs({"", "missing=kv_append"})) {
    LoopbackConfig config(text);
    RunnerFixture device(path, small_options(tested_device()));
    const std::vector<int32_t> head(golden.tokens.begin(), golden.tokens.begin() + 6);
    device.run({{head, 0, {1}, true}});
    const BlockCopy copy[] = {{0, 1, 4}};
    REQUIRE_OK(device.runner->copy_blocks(copy));
    const std::vector<int32_t> next = {golden.tokens[6]};
    CHECK(device.run({{next, 6, {1}, true}}) == device.run({{next, 6, {4}, true}}));
  }
}

TEST_CASE("plugin: the default model says the same on the device", "[any]") {
  std::vector<std::vector<int32_t>> answers;
  for (const std::string& device : {std::string("cpu"), tested_device()}) {
    auto model = LanguageModel::load(source_path("configs/demo"), small_options(device));
    REQUIRE_OK(model);
    CHECK(((*model)->info().isa.find(device + ":0") == 0) == (device != "cpu"));
    answers.push_back(greedy(**model, "The capital of France", 12));
    CHECK(answers.back().size() > 4);
  }
  CHECK(answers[0] == answers[1]);
}

TEST_CASE("plugin: the device's memory is the budget, and too little is refused with a message") {
  const TinyGolden golden = load_tiny_golden("llama3");
  LoopbackConfig config("memory=100000");
  auto options = small_options("loopback");
  options.memory_bytes = 0;
  const auto model = LanguageModel::load(source_path("configs/demo"), options);
  REQUIRE_FALSE(model.ok());
  CHECK(model.status().code() == StatusCode::kResourceExhausted);
}
