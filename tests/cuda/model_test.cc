// Whole language models on the device: every tiny architecture against transformers' logits, and nothing
// beside the device; a batch equals each alone, decode equals prefill, and the default model says what it
// says elsewhere.
#include <algorithm>

#include "engine/runtime/text_stream.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/stored_weights.h"
#include "tests/models/runner_fixture.h"
#include "tests/models/tiny_adapter.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar;
using namespace oar_test;

// Options of a model on the device; what it says of kernels that it lacks comes into `missing`.
LanguageModelOptions device_options(std::vector<std::string>* missing, const std::string& kv) {
  LanguageModelOptions o;
  o.device = kCudaPlugin;
  o.threads = 2;
  o.max_batch_tokens = 64;
  o.max_sequences = 64;  // rows of logits
  o.page_tokens = 16;
  o.memory_bytes = uint64_t{256} << 20;
  o.kv = kv;
  o.log = Logger([missing](LogLevel, std::string_view text) {
    if (missing != nullptr && text.find("no kernel for") != std::string_view::npos)
      missing->emplace_back(text);
  });
  return o;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

// Logits of a sequence that comes in pieces of at most `step` tokens, in pages from block 8 on.
std::vector<float> in_pieces(RunnerFixture& model, const std::vector<int32_t>& tokens, size_t step) {
  std::vector<float> out;
  const auto blocks = model.blocks(tokens.size(), 8);
  for (size_t at = 0; at < tokens.size(); at += step) {
    const size_t end = std::min(at + step, tokens.size());
    const std::vector<int32_t> part(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                    tokens.begin() + static_cast<std::ptrdiff_t>(end));
    const auto logits = model.run({{part, static_cast<int32_t>(at), blocks, true}});
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

// A golden's tokens, again and again until there are `count`.
std::vector<int32_t> repeated(const std::vector<int32_t>& tokens, size_t count) {
  std::vector<int32_t> out;
  while (out.size() < count) out.push_back(tokens[out.size() % tokens.size()]);
  return out;
}

// The device within the processor's reference by the roundings of keys and values: codes of one at the border
// of two may differ, as do bf16's: 2 of the places of a layer at a step of 4 bits, 1/15 of a head's range, on
// one token of its context. Of a mixture such a code may turn a route where the closest choice of experts
// lies within that, `margin` in the golden: then it is held so with every expert chosen. Whether that was so
// is returned. The same in pieces, to the bit, and nothing beside the device.
bool check_tier(const std::string& path, const std::string& weights, const std::string& kv,
                const std::vector<int32_t>& tokens, double margin = INFINITY) {
  std::vector<std::string> missing;
  auto options = device_options(&missing, kv);
  options.weights = weights;
  options.max_context = 64;
  const auto is_near = [&](const std::function<void(ModelConfig&)>& edit, bool may_be_far) {
    options.device = kCudaPlugin;
    options.reference = false;
    RunnerFixture device(load_with_weights(path, weights), options, 64, edit);
    options.device = "cpu";
    options.reference = true;
    RunnerFixture cpu(load_with_weights(path, weights), options, 64, edit);
    const std::vector<float> whole = device.run_prompt(tokens);
    const double places = rounded_places(device.config) * static_cast<double>(device.config.layers) + 1;
    const double error = relative_error(whole, cpu.run_prompt(tokens)), bound = places / 512;
    CAPTURE(error, margin);
    const bool far = may_be_far && margin < bound && error >= bound;
    if (!far) CHECK(error < bound);
    CHECK((in_pieces(device, tokens, 7) == whole));
    return !far;
  };
  const bool rerouted = !is_near({}, true);
  if (rerouted) {
    INFO("every expert");
    (void)is_near(
        [](ModelConfig& c) {
          c.experts_per_token = c.experts;
          c.route.top_groups = c.route.groups;
        },
        false);
  }
  CHECK(joined(missing) == "");
  return rerouted;
}

}  // namespace

TEST_CASE("cuda: every architecture gives transformers' logits, and no op runs beside the device",
          "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const std::string& name : all_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    for (const TinyDtype dtype : {TinyDtype::f32, TinyDtype::bf16}) {
      const bool bf16 = dtype == TinyDtype::bf16;
      if (golden.logits(dtype).empty()) continue;
      INFO(name << (bf16 ? " bf16" : " f32"));
      std::vector<std::string> missing;
      RunnerFixture model(write_tiny_model(golden, dtype), device_options(&missing, "f32"));
      const auto error = relative_error(model.run_prompt(golden.tokens), golden.logits(dtype));
      // As the processor's kernels are held to (golden_test.cc); x in two bf16 leaves 2^-17 at each place
      // where one leaves 2^-9.
      const double places = rounded_places(model.config) * static_cast<double>(model.config.layers) + 1;
      CAPTURE(error);
      CHECK(error < 1e-4 + (bf16 || golden.has_codes() ? std::ldexp(places, -17) : 0));
      CHECK(joined(missing) == "");
    }
  }
}

namespace {

// 150 tokens, over several pages.
void check_long(const std::string& name) {
  const TinyGolden golden = load_tiny_golden(name);
  INFO(name);
  std::vector<std::string> missing;
  auto options = device_options(&missing, "f32");
  options.max_batch_tokens = options.max_sequences = 160;
  RunnerFixture model(write_tiny_model(golden, TinyDtype::f32), options);
  const std::vector<float> whole = model.run_prompt(golden.tokens);
  const double error = relative_error(whole, golden.logits_f32);
  CAPTURE(error);
  CHECK(error < 1e-4);
  CHECK((in_pieces(model, golden.tokens, 70) == whole));
  CHECK(joined(missing) == "");
}

}  // namespace

TEST_CASE("cuda: a state and a latent over several pages give transformers' logits", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* name : {"lfm2-long", "minicpm3-long"}) check_long(name);
}

TEST_CASE("cuda: every state and latent over several pages gives transformers' logits", "[cuda][slow][.]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const std::string& name : long_golden_names()) check_long(name);
}

namespace {

void check_company(const std::string& name) {
  INFO(name);
  const TinyGolden golden = load_tiny_golden(name);
  std::vector<std::string> missing;
  RunnerFixture model(write_tiny_model(golden, TinyDtype::bf16), device_options(&missing, "bf16"));
  const auto& t = golden.tokens;
  const std::vector<float> whole = model.run_prompt(t);
  const auto V = static_cast<size_t>(model.vocab());
  // Keys and values in bf16: 2 of the roundings that golden_test.cc counts for each layer.
  const double places = rounded_places(model.config) * static_cast<double>(model.config.layers) + 1;
  if (!golden.logits_bf16.empty()) CHECK(relative_error(whole, golden.logits_bf16) < places / 512);
  // Two sequences in a batch, the first cut short; then single tokens behind it.
  const std::vector<int32_t> head(t.begin(), t.begin() + 5);
  const std::vector<float> batch = model.run({{head, 0, {3}, true}, {t, 0, model.blocks(t.size(), 5), true}});
  CHECK(std::equal(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(5 * V), whole.begin()));
  CHECK(std::equal(whole.begin(), whole.end(), batch.begin() + static_cast<std::ptrdiff_t>(5 * V)));
  for (size_t k = 5; k < 7; ++k) {
    const std::vector<float> step = model.run({{{t[k]}, static_cast<int32_t>(k), {3}, true}});
    CHECK(std::equal(step.begin(), step.end(), whole.begin() + static_cast<std::ptrdiff_t>(k * V)));
  }
  CHECK(joined(missing) == "");
}

}  // namespace

// Every third; all with --all.
TEST_CASE("cuda: a batch equals each alone and decode equals prefill, to the bit", "[cuda][models][bits]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::vector<std::string> names = all_golden_names();
  for (size_t i = 0; i < names.size(); i += 3) check_company(names[i]);
}

TEST_CASE("cuda: the same of every architecture, to the bit", "[cuda][slow][.]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const std::string& name : all_golden_names()) check_company(name);
}

TEST_CASE("cuda: products of prompts of their own change nothing but what a row's phase says",
          "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  using Pair = std::pair<const char*, const char*>;
  for (const auto& [name, by] : {Pair{"llama3", "cublaslt"}, {"gpt2", "cublaslt"}, {"llama3", "wgmma"}}) {
    INFO(name << " by " << by);
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::bf16);
    std::vector<std::string> missing;
    RunnerFixture own(path, device_options(&missing, "f32"));
    CHECK_FALSE(own.runner->limits().phases);
    const WithLibraries with(by);
    RunnerFixture model(path, device_options(&missing, "f32"));
    if (!model.runner->limits().phases) OAR_SKIP(std::string("no ") + by + " here");
    const auto& t = golden.tokens;
    const auto V = static_cast<size_t>(model.vocab());
    const std::vector<float> whole = model.run_prompt(t);
    // Rows are rounded to bf16 where a product begins, as the processor's kernels round them.
    const double places = rounded_places(model.config) * static_cast<double>(model.config.layers) + 1;
    CHECK(relative_error(whole, golden.logits_bf16) < places / 512);
    // Generated tokens have our own kernels' bits.
    const std::vector<float> generated = model.run({{t, 0, model.blocks(t.size()), true}});
    CHECK(generated == own.run_prompt(t));
    CHECK(generated != whole);
    // A prompt in pieces, the second beside a token that another sequence generated, is the same prompt.
    const std::vector<int32_t> head(t.begin(), t.begin() + 5), tail(t.begin() + 5, t.end());
    const auto blocks = model.blocks(t.size()), others = model.blocks(t.size(), 8);
    const std::vector<float> first = model.run({{head, 0, blocks, true}}, 5);
    CHECK(std::equal(first.begin(), first.end(), whole.begin()));
    (void)model.run({{head, 0, others, true}}, 5);
    const Chunk token{{t[7]}, 5, others, true}, rest{tail, 5, blocks, true};
    const std::vector<float> alone = model.run({token});
    const std::vector<float> both = model.run({token, rest}, static_cast<int64_t>(tail.size()));
    const auto border = both.begin() + static_cast<std::ptrdiff_t>(V);
    CHECK(std::equal(both.begin(), border, alone.begin(), alone.end()));
    CHECK(std::equal(border, both.end(), whole.begin() + static_cast<std::ptrdiff_t>(5 * V), whole.end()));
    CHECK(joined(missing) == "");
  }
  for (const auto& [names, says] :
       {Pair{"cublaslt,cudnn9",
             "OAR_CUDA_LIBRARIES has \"cudnn9\"; it may have cublaslt or wgmma, and cudnn, or be none"},
        {"cublaslt,wgmma", "two names for products of prompts"}}) {
    const WithLibraries unknown(names);
    const auto refused = make_backend(kCudaPlugin, std::make_shared<ThreadPool>(), Isa::kReference, {});
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.status().message(), Contains(says));
  }
}

TEST_CASE("cuda: quantized weights and every tier of the cache, nothing beside the device",
          "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const TinyGolden golden = load_tiny_golden("llama3");
  const std::string path = write_tiny_model(golden, TinyDtype::bf16);
  const std::vector<int32_t> tokens = repeated(golden.tokens, 56);
  struct Case {
    const char *weights, *kv;
  };
  for (const Case& c : {Case{"auto", "f16"}, Case{"auto", "int8"}, Case{"auto", "fp8"}, Case{"auto", "k8v4"},
                        Case{"auto", "int4"}, Case{"auto", "int4-mean"}, Case{"auto", "k4v3"},
                        Case{"auto", "bf16/int4"}, Case{"int8", "bf16"}, Case{"int4", "int8"}}) {
    INFO(c.weights << " " << c.kv);
    check_tier(path, c.weights, c.kv, tokens);
  }
  // Heads of 512 beside heads of 256 within windows; keys of the former are their values, too.
  const TinyGolden wide = load_tiny_golden("gemma4-12b");
  check_tier(write_tiny_model(wide, TinyDtype::bf16), "auto", "k8v4", repeated(wide.tokens, 36));
}

TEST_CASE("cuda: mixtures with codes in weights and caches, nothing beside the device", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  struct Case {
    const char *name, *weights, *kv;
  };
  int rerouted = 0;
  for (const Case& c :
       {Case{"qwen2-moe", "auto", "k8v4"}, Case{"qwen2-moe", "int4", "int4"}, Case{"gpt-oss", "int8", "int8"},
        Case{"gpt-oss", "int4", "k8v4"}, Case{"gpt-oss-mxfp4", "auto", "int8"},
        Case{"mixtral", "int8", "int4"}, Case{"deepseek-v3", "int4", "int8"}}) {
    INFO(c.name << " " << c.weights << " " << c.kv);
    const TinyGolden golden = load_tiny_golden(c.name);
    REQUIRE(golden.router_margin_bf16.has_value());
    rerouted += check_tier(write_tiny_model(golden, TinyDtype::bf16), c.weights, c.kv,
                           repeated(golden.tokens, 42), *golden.router_margin_bf16);
  }
  CHECK(rerouted <= 1);  // of gpt-oss-mxfp4
}

TEST_CASE("cuda: every tier of the cache on every architecture, nothing beside the device",
          "[cuda][slow][.]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::vector<std::string> rerouted;
  for (const std::string& name : all_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::bf16);
    const std::vector<int32_t> tokens = repeated(golden.tokens, 42);
    for (const char* kv : {"f32", "f16", "bf16", "int8", "fp8", "k8v4", "int4", "int4-mean", "k4v3"}) {
      if (!keeps(golden, kv)) continue;
      INFO(name << " " << kv);
      if (check_tier(path, "auto", kv, tokens, golden.router_margin_bf16.value_or(INFINITY)))
        rerouted.push_back(name + " " + kv);
    }
    // Of codes of weights, of which each expert has its own.
    if (!golden.router_margin_bf16) continue;
    for (const auto& [weights, kv] : {std::pair{"int8", "int8"}, {"int4", "int4"}, {"fp8", "int8"}}) {
      INFO(name << " " << weights << " " << kv);
      if (check_tier(path, weights, kv, tokens, *golden.router_margin_bf16))
        rerouted.push_back(name + " " + weights + " " + kv);
    }
  }
  INFO(joined(rerouted));
  CHECK(rerouted.size() <= 8);  // of 200 of mixtures
}

TEST_CASE("cuda: weights of every storage format, nothing beside the device", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::string path = source_path("configs/demo");
  const std::vector<int32_t> tokens{5, 300, 17, 1200, 43, 7, 900, 61};
  const auto first_layer = [](ModelConfig& config) { config.layers = 1; };
  const auto check = [&](const Checkpoint& stored, const std::string& weights) {
    std::vector<std::string> missing;
    auto options = device_options(&missing, "f32");
    options.max_context = 64;
    options.weights = weights;
    RunnerFixture device(stored, options, 64, first_layer);
    options.device = "cpu";
    options.reference = true;
    RunnerFixture cpu(stored, options, 64, first_layer);
    const double error = relative_error(device.run_prompt(tokens), cpu.run_prompt(tokens));
    CAPTURE(error);
    CHECK(error < 1e-4);
    CHECK(joined(missing) == "");
  };
  CHECK(for_stored_weights(path, check) >= 37);
}

TEST_CASE("cuda: latents in every tier of the cache that keeps them, nothing beside the device",
          "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const TinyGolden golden = load_tiny_golden("deepseek-v2");
  const std::string path = write_tiny_model(golden, TinyDtype::bf16);
  const std::vector<int32_t> tokens = repeated(golden.tokens, 42);
  for (const char* kv : {"f16", "bf16", "int8", "fp8", "int4"}) {
    INFO(kv);
    check_tier(path, "auto", kv, tokens);
  }
  auto options = device_options(nullptr, "bf16");
  options.mla = "expanded";
  CHECK_THROWS_WITH(RunnerFixture(path, options), Contains("attends to latents in the absorbed form alone"));
}

TEST_CASE("cuda: adapters in one batch, nothing beside the device", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const char* name : {"llama3", "qwen3-moe", "deepseek-v2", "lfm2"}) {
    INFO(name);
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    const std::string folders[] = {write_adapter_of(golden, 3), write_adapter_of(golden, 4)};
    std::vector<std::string> missing;
    auto options = device_options(&missing, "f32");
    options.max_loras = 2;
    options.max_batch_tokens = options.max_sequences = 256;  // three texts
    RunnerFixture device(path, options);
    options.device = "cpu";
    options.reference = true;
    RunnerFixture cpu(path, options);
    const auto load = [&](RunnerFixture& model, const std::string& as, const std::string& folder) {
      REQUIRE_OK(model.adapters->load(as, folder));
      return model.adapters->find(as)->slot;
    };
    const auto& t = golden.tokens;
    const std::vector<float> plain = device.run_prompt(t);
    const int32_t slots[] = {load(device, "a", folders[0]), load(device, "b", folders[1])};
    CHECK((load(cpu, "a", folders[0]) == slots[0] && load(cpu, "b", folders[1]) == slots[1]));
    const auto chunk = [&](int32_t first, int32_t slot) {
      return Chunk{t, 0, device.blocks(t.size(), first), true, slot};
    };
    const std::vector<Chunk> batch = {chunk(0, slots[0]), chunk(8, -1), chunk(16, slots[1])};
    const std::vector<float> got = device.run(batch), want = cpu.run(batch);
    const double error = relative_error(got, want);
    CAPTURE(error);
    CHECK(error < 2e-4);  // two computations that are each held to 1e-4
    const auto part = [&](size_t k) {
      const auto begin = got.begin() + static_cast<std::ptrdiff_t>(k * plain.size());
      return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(plain.size()));
    };
    CHECK(part(1) == plain);
    CHECK(relative_error(part(0), plain) > 0.02);  // it does something
    for (size_t k = 0; k < 3; ++k) CHECK(device.run({batch[k]}) == part(k));
    // Another adapter takes the slot of one that is gone.
    REQUIRE_OK(device.adapters->unload("a"));
    CHECK(load(device, "c", folders[1]) == slots[0]);
    CHECK(device.run({chunk(24, slots[0])}) == part(2));
    CHECK(joined(missing) == "");
  }
}

TEST_CASE("cuda: the default model says on the device what it says on the processor", "[cuda][models]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::vector<std::vector<int32_t>> answers;
  std::vector<std::string> missing;
  for (const char* device : {"cpu", kCudaPlugin}) {
    auto options = device_options(&missing, "bf16");
    options.device = device;
    options.reference = true;
    auto model = LanguageModel::load(source_path("configs/demo"), options);
    REQUIRE_OK(model);
    Request request;
    request.prompt = (*model)->tokenizer()->encode("ROMEO:").value();
    request.sampling.temperature = 0;
    request.stop.max_tokens = 12;
    auto stream = TextStream::create((*model)->tokenizer(), {}, 1);
    REQUIRE_OK(stream->start((*model)->engine(), std::move(request)));
    std::vector<int32_t>& ids = answers.emplace_back();
    while (!stream->done()) {
      auto event = stream->next(std::chrono::seconds(120));
      REQUIRE(event.has_value());
      for (const auto& token : event->tokens) ids.push_back(token.id);
    }
  }
  CHECK(answers[0].size() == 12);
  CHECK(answers[0] == answers[1]);
  CHECK(joined(missing) == "");
}
