// Adapters (LoRA) in every family of architectures: against PEFT's logits (tests/golden/adapters), against
// merged weights, in mixed batches, through rotations, over quantized bases.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/runtime/rotated_model.h"
#include "engine/runtime/stored_basis.h"
#include "tests/models/runner_fixture.h"
#include "tests/models/tiny_adapter.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
namespace fs = std::filesystem;
namespace json = oar::json;

const std::vector<std::string> kAdapterGoldens = {
    "llama3", "llama3-few", "qwen2",      "qwen3", "mistral",   "gemma2",  "gemma3", "phi3",
    "glm4",   "olmo2",      "starcoder2", "gpt2",  "qwen3-moe", "gpt-oss", "llama4"};

oar::LanguageModelOptions adapter_options() {
  oar::LanguageModelOptions o;
  o.threads = 2;
  o.max_batch_tokens = 64;
  o.max_sequences = 64;
  o.page_tokens = 16;
  o.max_loras = 3;
  return o;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct AdapterGolden {
  TinyGolden base;
  std::vector<int32_t> tokens;
  json::object config;
  std::vector<TinyTensor> tensors;
  uint64_t seed = 0;
  std::vector<float> logits;
};

AdapterGolden load_adapter_golden(const std::string& name) {
  const fs::path folder = fs::path(OAR_SOURCE_DIR) / "tests/golden/adapters";
  const json::value root = json::parse(read_file(folder / (name + ".json")));
  AdapterGolden g;
  g.base = load_tiny_golden(std::string_view(root.at("base").as_string()));
  g.tokens.assign(g.base.tokens.begin(), g.base.tokens.begin() + root.at("tokens").as_int64());
  g.config = root.at("adapter_config").as_object();
  g.seed = static_cast<uint64_t>(root.at("seed").as_int64());
  for (const json::value& t : root.at("tensors").as_array()) {
    TinyTensor tensor;
    tensor.name = std::string(t.at("name").as_string());
    for (const json::value& d : t.at("shape").as_array()) tensor.shape.push_back(d.as_int64());
    g.tensors.push_back(std::move(tensor));
  }
  const std::string bytes = read_file(folder / (name + ".f32.bin"));
  g.logits.resize(bytes.size() / sizeof(float));
  std::memcpy(g.logits.data(), bytes.data(), bytes.size());
  REQUIRE(g.logits.size() == g.tokens.size() * static_cast<size_t>(g.base.vocab));
  return g;
}

// The adapter as a folder, its numbers drawn from `seed`.
std::string write_adapter(const AdapterGolden& g, uint64_t seed) {
  return oar_test::write_adapter(oar::cat("adapter-", g.base.name, "-", g.tensors.size(), "-", seed),
                                 g.config, g.tensors, seed);
}

int32_t load_into(RunnerFixture& model, const std::string& name, const std::string& folder) {
  const auto info = model.adapters->load(name, folder);
  INFO(info.status().message());
  REQUIRE(info.ok());
  return model.adapters->find(name)->slot;
}

std::vector<float> run_with(RunnerFixture& model, const std::vector<int32_t>& tokens, int32_t slot,
                            int32_t first = 0) {
  return model.run({{tokens, 0, model.blocks(tokens.size(), first), true, slot}});
}

// |a - b| / |b| of all together: the noise of integer kernels, of which a maximum would tell the worst row.
double rms_error(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double error = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    error += (x - y) * (x - y);
    scale += y * y;
  }
  return std::sqrt(error / scale);
}

// Every matrix of a layer in `format`, where its width is a multiple of the block's.
oar::Checkpoint stored_in(oar::Checkpoint checkpoint, oar::Format format) {
  size_t stored = 0;
  for (auto& [name, tensor] : checkpoint.tensors) {
    if (tensor.shape().rank() != 2 || name.find(".layers.") == std::string::npos) continue;
    const int64_t cols = tensor.shape().cols();
    if (!format.row_bytes(cols)) continue;
    const auto f32 = oar::to_f32(tensor);
    auto out = oar::Tensor::allocate(tensor.shape(), format);
    REQUIRE((f32.ok() && out.ok()));
    auto* bytes = static_cast<uint8_t*>(out->mutable_data());
    for (int64_t r = 0; r < tensor.shape().rows(); ++r)
      format.encode_row(f32->values<float>().data() + r * cols, cols, bytes + r * format.stride(cols));
    tensor = std::move(*out);
    ++stored;
  }
  REQUIRE(stored > 0);
  return checkpoint;
}

oar::Checkpoint decoded(oar::Checkpoint checkpoint) {
  for (auto& [name, tensor] : checkpoint.tensors) {
    auto f32 = oar::to_f32(tensor);
    REQUIRE(f32.ok());
    tensor = std::move(*f32);
  }
  return checkpoint;
}

}  // namespace

TEST_CASE("adapters: f32 logits equal PEFT's to 1e-4", "[adapters]") {
  for (const std::string& name : kAdapterGoldens) {
    const AdapterGolden g = load_adapter_golden(name);
    const std::string base = write_tiny_model(g.base, TinyDtype::f32), folder = write_adapter(g, g.seed);
    for (const bool reference : {false, true}) {
      auto options = adapter_options();
      options.reference = reference;
      RunnerFixture model(base, options);
      const int32_t slot = load_into(model, name, folder);
      INFO(name << (reference ? ", reference kernels" : ""));
      const double error = relative_error(run_with(model, g.tokens, slot), g.logits);
      CAPTURE(error);
      CHECK(error < 1e-4);
    }
  }
}

TEST_CASE("adapters: a model with slots computes rows without an adapter as one without slots, to the bit",
          "[adapters]") {
  for (const std::string& name : kAdapterGoldens) {
    const AdapterGolden g = load_adapter_golden(name);
    for (const TinyDtype dtype : {TinyDtype::f32, TinyDtype::bf16}) {
      const std::string base = write_tiny_model(g.base, dtype);
      auto options = adapter_options();
      RunnerFixture with(base, options);
      const int32_t slot = load_into(with, name, write_adapter(g, g.seed));
      options.max_loras = 0;
      RunnerFixture without(base, options);
      CHECK(without.adapters == nullptr);
      INFO(name);
      const std::vector<float> plain = without.run_prompt(g.tokens);
      CHECK((with.run_prompt(g.tokens) == plain));
      CHECK(relative_error(run_with(with, g.tokens, slot), plain) > 0.05);
    }
  }
}

TEST_CASE("adapters: rows of a mixed batch equal each alone, to the bit, in prompts and in decodes",
          "[adapters]") {
  for (const std::string& name :
       {std::string("llama3"), std::string("qwen2"), std::string("phi3"), std::string("gemma2")}) {
    const AdapterGolden g = load_adapter_golden(name);
    for (const TinyDtype dtype : {TinyDtype::f32, TinyDtype::bf16}) {
      RunnerFixture model(write_tiny_model(g.base, dtype), adapter_options());
      const std::vector<int32_t> slots = {load_into(model, "one", write_adapter(g, 2)), -1,
                                          load_into(model, "two", write_adapter(g, 3)),
                                          load_into(model, "three", write_adapter(g, 4)), 0};
      INFO(name);
      std::vector<std::vector<float>> alone;
      for (const int32_t slot : slots) alone.push_back(run_with(model, g.tokens, slot));
      CHECK(alone[0] == alone[4]);
      CHECK(alone[0] != alone[2]);
      // Prompts of three tokens each together, then one token of each at a time.
      std::vector<std::vector<float>> mixed(slots.size());
      for (size_t begin = 0; begin < g.tokens.size();) {
        const size_t n = begin == 0 ? 3 : 1;
        std::vector<Chunk> chunks;
        for (size_t b = 0; b < slots.size(); ++b) {
          chunks.push_back({{g.tokens.begin() + static_cast<int64_t>(begin),
                             g.tokens.begin() + static_cast<int64_t>(begin + n)},
                            static_cast<int32_t>(begin),
                            model.blocks(g.tokens.size(), static_cast<int32_t>(8 + 4 * b)),
                            true,
                            slots[b]});
        }
        const std::vector<float> rows = model.run(chunks);
        const size_t each = n * static_cast<size_t>(model.vocab());
        for (size_t b = 0; b < slots.size(); ++b)
          mixed[b].insert(mixed[b].end(), rows.begin() + static_cast<int64_t>(b * each),
                          rows.begin() + static_cast<int64_t>((b + 1) * each));
        begin += n;
      }
      for (size_t b = 0; b < slots.size(); ++b) CHECK((mixed[b] == alone[b]));
    }
  }
}

TEST_CASE("adapters go through the rotations of their weights", "[adapters]") {
  oar_test::Sample sample;
  for (const std::string& name :
       {std::string("llama3"), std::string("qwen2"), std::string("qwen3"), std::string("mistral"),
        std::string("phi3"), std::string("gemma2"), std::string("gpt2"), std::string("starcoder2")}) {
    const AdapterGolden g = load_adapter_golden(name);
    const std::string base = write_tiny_model(g.base, TinyDtype::f32), folder = write_adapter(g, g.seed);
    for (const std::string rotate : {"all", "r1", "r2", "r4", "kv", "r4-exact"}) {
      if (!sample.take()) continue;
      auto options = adapter_options();
      options.rotate = rotate;
      INFO(name << " " << rotate);
      if (rotate == "r1" && (name == "gemma2" || name == "gpt2" || name == "starcoder2"))
        continue;  // refused
      RunnerFixture model(base, options);
      const int32_t slot = load_into(model, name, folder);
      const double error = relative_error(run_with(model, g.tokens, slot), g.logits);
      CAPTURE(error);
      CHECK(error < 2e-4);
    }
  }
}

namespace {
// As `oar quantize --rotate` writes a folder, but for the rounding.
oar::Checkpoint written_rotated(const oar::Checkpoint& source, const std::string& rotate) {
  oar::ThreadPool pool({.threads = 2});
  const auto config = oar::read_model_config(source.config);
  REQUIRE_OK(config);
  auto wanted = oar::parse_rotation(rotate);
  REQUIRE_OK(wanted);
  wanted->named = false;  // of the list what there is
  const auto rotated = oar::RotatedModel::make(source, *config, *wanted);
  REQUIRE_OK(rotated);
  oar::Checkpoint out = rotated->layout();
  for (auto& [name, tensor] : out.tensors) {
    auto numbers = rotated->tensor(name, pool);
    REQUIRE_OK(numbers);
    tensor = std::move(*numbers);
  }
  return out;
}
}  // namespace

TEST_CASE("adapters go through the rotations that weights were stored with", "[adapters]") {
  oar_test::Sample sample;
  for (const std::string& name : kAdapterGoldens) {
    const AdapterGolden g = load_adapter_golden(name);
    const auto source = oar::load_checkpoint(write_tiny_model(g.base, TinyDtype::f32));
    REQUIRE_OK(source);
    const std::string folder = write_adapter(g, g.seed);
    for (const std::string rotate : {"all", "r1", "r2", "r1,r4", "r4-exact"}) {
      if (!sample.take()) continue;
      INFO(name << " " << rotate);
      const oar::Checkpoint stored = written_rotated(*source, rotate);
      auto options = adapter_options();
      options.rotate = "none";
      RunnerFixture model(stored, options);
      const double error =
          relative_error(run_with(model, g.tokens, load_into(model, name, folder)), g.logits);
      CAPTURE(error);
      CHECK(error < 2e-4);
      // What is rotated at load goes behind it.
      options.rotate = "all";
      RunnerFixture more(stored, options);
      CHECK(relative_error(run_with(more, g.tokens, load_into(more, name, folder)), g.logits) < 2e-4);
    }
  }
}

TEST_CASE("folders that lack what adapters must go through, or damage it, are refused; R4 needs nothing",
          "[adapters]") {
  const AdapterGolden g = load_adapter_golden("llama3");
  const auto source = oar::load_checkpoint(write_tiny_model(g.base, TinyDtype::f32));
  REQUIRE_OK(source);
  const auto config = oar::read_model_config(source->config);
  REQUIRE_OK(config);
  const auto built = [&](const oar::Checkpoint& stored) {
    return oar::build_serving_graph(stored, *config, adapter_options()).status();
  };
  const auto kept_of = [](const oar::Checkpoint& stored) {
    std::vector<std::string> out;
    for (const auto& [name, tensor] : stored.tensors)
      if (name.starts_with(oar::kBasisPrefix)) out.push_back(name);
    return out;
  };
  const auto layers = static_cast<size_t>(config->layers);
  for (const auto& [rotate, vectors] : std::vector<std::pair<std::string, size_t>>{
           {"r1", 2 * layers + 1}, {"r2", layers}, {"all", 3 * layers + 1}, {"r4", 0}}) {
    INFO(rotate);
    const oar::Checkpoint stored = written_rotated(*source, rotate);
    const std::vector<std::string> kept = kept_of(stored);
    CHECK(kept.size() == vectors);
    REQUIRE_OK(built(stored));
    oar::Checkpoint old = stored;
    for (const std::string& name : kept) old.tensors.erase(name);
    const oar::Status refused = built(old);
    CHECK(refused.ok() == (vectors == 0));
    if (vectors == 0) continue;
    CHECK(refused.code() == oar::StatusCode::kUnimplemented);
    CHECK(refused.message().find("quantize the model again") != std::string::npos);
    const std::string& first = kept.front();
    oar::Checkpoint damaged = stored;
    auto numbers = oar::Tensor::allocate(stored.tensors.at(first).shape(), oar::Format::f32());
    REQUIRE_OK(numbers);
    for (float& v : numbers->mutable_values<float>()) v = std::nanf("");
    damaged.tensors.at(first) = *numbers;
    CHECK(built(damaged).message().find("not finite") != std::string::npos);
    damaged.tensors.at(first) = oar::Tensor::allocate({3}, oar::Format::f32()).value();
    CHECK(built(damaged).message().find("is [3], expected") != std::string::npos);
  }
}

TEST_CASE("adapters of bf16 and quantized bases: as the merged model, as far as the base allows",
          "[adapters]") {
  // The merged model's weights are rounded again with the adapter in them, so both differ from the exact one
  // by the base's own loss: its distance from f32 is the measure.
  for (const std::string& name : {std::string("llama3"), std::string("qwen3"), std::string("gemma2")}) {
    const AdapterGolden g = load_adapter_golden(name);
    const std::string base = write_tiny_model(g.base, TinyDtype::bf16), folder = write_adapter(g, g.seed);
    RunnerFixture exact(base, [] {
      auto o = adapter_options();
      o.reference = true;
      o.kv = "f32";
      return o;
    }());
    const std::vector<float> want = run_with(exact, g.tokens, load_into(exact, name, folder));
    const std::vector<float> want_plain = exact.run_prompt(g.tokens);
    for (const std::string weights : {"auto", "int8", "int4", "w4a8", "fp8"}) {
      auto options = adapter_options();
      options.weights = weights;
      RunnerFixture model(base, options);
      const int32_t slot = load_into(model, name, folder);
      INFO(name << " " << weights);
      const double lost = relative_error(run_with(model, g.tokens, slot), want);
      const double lost_plain = relative_error(model.run_prompt(g.tokens), want_plain);
      CAPTURE(lost, lost_plain);
      CHECK(lost < 3 * lost_plain + 0.01);
    }
  }
}

TEST_CASE("adapters of quantized bases: as the base's decoded numbers with the adapter merged, in f32",
          "[adapters]") {
  for (const std::string& name : {std::string("llama3"), std::string("qwen3"), std::string("gemma2")}) {
    const AdapterGolden g = load_adapter_golden(name);
    const std::string folder = write_adapter(g, g.seed);
    const auto f32 = oar::load_checkpoint(write_tiny_model(g.base, TinyDtype::f32));
    REQUIRE(f32.ok());
    for (const char* format : {"q8_0", "i4_s8_g32", "e4m3_channel"}) {
      INFO(name << " " << format);
      const oar::Checkpoint stored = stored_in(*f32, *oar::Format::find(format));
      auto options = adapter_options();
      options.kv = "f32";
      options.reference = true;
      RunnerFixture truth(merged(decoded(stored), folder), options), plain_truth(decoded(stored), options);
      const std::vector<float> want = truth.run_prompt(g.tokens),
                               want_plain = plain_truth.run_prompt(g.tokens);
      const double effect = rms_error(want_plain, want);
      for (const bool reference : {true, false}) {
        options.reference = reference;
        RunnerFixture model(stored, options);
        const int32_t slot = load_into(model, name, folder);
        const double error = rms_error(run_with(model, g.tokens, slot), want);
        const double error_plain = rms_error(model.run_prompt(g.tokens), want_plain);
        CAPTURE(reference, error, error_plain, effect);
        // The reference computes with the decoded numbers. Fast kernels round the activations, too, and
        // how much of that arrives is the function's: other adapters of these bases have 0.3 to 2.8 times.
        if (reference) CHECK(error < 1e-4);
        else CHECK(error < 4 * error_plain + 1e-4);
        CHECK(error < effect / 4);
      }
    }
  }
}

TEST_CASE("adapters: merged weights give the same logits", "[adapters]") {
  for (const std::string& name :
       {std::string("llama3"), std::string("qwen2"), std::string("gemma3"), std::string("phi3")}) {
    const AdapterGolden g = load_adapter_golden(name);
    const std::string base = write_tiny_model(g.base, TinyDtype::f32), folder = write_adapter(g, 9);
    RunnerFixture model(base, adapter_options());
    const int32_t slot = load_into(model, name, folder);
    auto options = adapter_options();
    options.max_loras = 0;
    auto checkpoint = oar::load_checkpoint(base);
    REQUIRE(checkpoint.ok());
    RunnerFixture other(merged(std::move(*checkpoint), folder), options);
    INFO(name);
    CHECK(relative_error(run_with(model, g.tokens, slot), other.run_prompt(g.tokens)) < 1e-4);
  }
}

TEST_CASE("adapters: slots are given back when the last holder goes, and say who holds them", "[adapters]") {
  const AdapterGolden g = load_adapter_golden("llama3");
  auto options = adapter_options();
  options.max_loras = 2;
  RunnerFixture model(write_tiny_model(g.base, TinyDtype::f32), options);
  const int32_t first = load_into(model, "one", write_adapter(g, 2));
  const auto held = model.adapters->find("one");
  const std::vector<float> before = run_with(model, g.tokens, first);
  load_into(model, "two", write_adapter(g, 3));
  const auto again = model.adapters->load("two", write_adapter(g, 3));
  CHECK(again.status().param() == "lora_name");
  CHECK(model.adapters->load("three", write_adapter(g, 4)).status().message().find("loaded: one, two") !=
        std::string::npos);
  REQUIRE(model.adapters->unload("one").ok());
  CHECK(model.adapters->find("one") == nullptr);
  CHECK(model.adapters->unload("one").code() == oar::StatusCode::kNotFound);
  // Somebody still runs with it.
  CHECK(model.adapters->load("three", write_adapter(g, 4)).status().code() ==
        oar::StatusCode::kResourceExhausted);
  CHECK((run_with(model, g.tokens, held->slot) == before));
  const uint64_t old = held->load;
  const_cast<std::shared_ptr<const oar::AdapterLease>&>(held).reset();
  CHECK(load_into(model, "three", write_adapter(g, 4)) == first);
  CHECK(model.adapters->find("three")->load > old);
  CHECK(run_with(model, g.tokens, first) != before);
  // A smaller adapter in a slot that held a larger one: nothing of that is left.
  REQUIRE(model.adapters->unload("three").ok());
  const AdapterGolden few = load_adapter_golden("llama3-few");
  const int32_t slot = load_into(model, "few", write_adapter(few, few.seed));
  CHECK(slot == first);
  CHECK(relative_error(run_with(model, g.tokens, slot), few.logits) < 1e-4);
}

TEST_CASE("adapters of another base or too large are refused by what does not fit", "[adapters]") {
  const AdapterGolden g = load_adapter_golden("llama3");
  const std::string base = write_tiny_model(g.base, TinyDtype::f32);
  const auto refusal = [&](RunnerFixture& model, const AdapterGolden& other) {
    const auto info = model.adapters->load("a", write_adapter(other, 2));
    CHECK_FALSE(info.ok());
    CHECK(model.adapters->list().empty());
    return std::string(info.status().message());
  };
  auto options = adapter_options();
  RunnerFixture model(base, options);
  CHECK(refusal(model, load_adapter_golden("mistral")).find("another base model: it changes") !=
        std::string::npos);
  CHECK(refusal(model, load_adapter_golden("gpt2")).find("which is no linear layer of this model") !=
        std::string::npos);
  options.max_lora_rank = 4;
  RunnerFixture narrow(base, options);
  CHECK(refusal(narrow, g).find("rank 8 is above max_lora_rank 4") != std::string::npos);
}
