// The tiny models' weights are made twice, by numpy when the goldens are computed and by C++ when they are
// tested: here is the proof that both make the same bits, and that the files beside this one hold together.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "engine/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace oar_test {
namespace {

TEST_CASE("tiny weights: every tensor has the checksum numpy recorded", "[golden]") {
  for (const std::string& name : tiny_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    REQUIRE(golden.tensors.size() > 10);
    for (const TinyTensor& t : golden.tensors) {
      INFO(name << " " << t.name);
      const std::vector<float> values = tiny_weights(t.name, t.shape, golden.weight_seed);
      REQUIRE(fnv1a64(values) == t.checksum);
    }
  }
}

TEST_CASE("tiny weights: the rule, by hand", "[golden]") {
  // FNV-1a's published vector for "a".
  const std::string a = "a";
  const uint64_t hash = fnv1a64({reinterpret_cast<const unsigned char*>(a.data()), a.size()});
  REQUIRE(hash == 0xaf63dc4c8601ec8cu);
  // A seed equal to the hash starts the stream at 0, whose first output is published as 0xe220a8397b1dcdaf;
  // its upper 22 bits are 3704874.
  const int64_t one[] = {1};
  REQUIRE(tiny_weights(a, one, hash)[0] == float(3704874 - 2097152) / 16777216.0f);
  const int64_t matrix[] = {2, 64}, vector[] = {1000};
  for (float x : tiny_weights("w", matrix, 1)) REQUIRE(std::fabs(x) <= 0.25f);
  const auto norm = tiny_weights("norm.weight", vector, 1);
  const auto [low, high] = std::minmax_element(norm.begin(), norm.end());
  REQUIRE((*low >= 0.75f && *low < 0.76f));
  REQUIRE((*high < 1.25f && *high > 1.24f));
  const auto bias = tiny_weights("q.bias", vector, 1);
  REQUIRE(*std::max_element(bias.begin(), bias.end()) < 0.125f);
  REQUIRE(tiny_weights("q.bias", vector, 2) != bias);
  REQUIRE(tiny_weights("k.bias", vector, 1) != bias);
}

TEST_CASE("bf16_bits rounds to nearest, ties to even", "[golden]") {
  REQUIRE(bf16_bits(1.0f) == 0x3f80);
  REQUIRE(bf16_bits(1.0f + 0x1p-8f) == 0x3f80);             // a tie, down to even
  REQUIRE(bf16_bits(1.0f + 0x1p-7f + 0x1p-8f) == 0x3f82);   // a tie, up to even
  REQUIRE(bf16_bits(1.0f + 0x1p-8f + 0x1p-20f) == 0x3f81);  // above the tie
  REQUIRE(bf16_bits(-2.0f) == 0xc000);
}

TEST_CASE("goldens: logits are finite, vary by position, and differ between dtypes", "[golden]") {
  for (const std::string& name : tiny_golden_names()) {
    INFO(name);
    const TinyGolden g = load_tiny_golden(name);
    const size_t count = g.tokens.size() * static_cast<size_t>(g.vocab);
    REQUIRE(g.logits_f32.size() == count);
    REQUIRE(g.logits_bf16.size() == count);
    double largest = 0;
    for (size_t i = 0; i < count; ++i) {
      REQUIRE(std::isfinite(g.logits_f32[i]));
      largest = std::max(largest, std::fabs(double{g.logits_f32[i]} - g.logits_bf16[i]));
    }
    REQUIRE(largest > 1e-4);  // rounding the weights is visible
    // And leaves the same model: a state keeps the roundings of the rows before, and a choice of experts by a
    // few thousandths of a score becomes another.
    const bool sways = name.starts_with("qwen3_5") || name == "qwen3-next" || name == "deepseek-v3" ||
                       name == "glm4-moe-lite" || name == "mistral4";
    REQUIRE(largest < (sways ? 2.0 : 1.0));
    const auto row = [&](size_t t) {
      return std::vector(g.logits_f32.begin() + t * g.vocab, g.logits_f32.begin() + (t + 1) * g.vocab);
    };
    REQUIRE(row(0) != row(1));
    for (int32_t id : g.tokens) REQUIRE((id >= 0 && id < g.vocab));
    // By corrected scores, which change by a quarter of what their logits do at most.
    const auto is = [&](std::string_view one) { return name == one; };
    constexpr std::string_view kScored[] = {"glm4-moe",      "ernie4_5-moe",   "minimax-m2",
                                            "llama4",        "gemma4-26b-a4b", "deepseek-v3",
                                            "glm4-moe-lite", "lfm2-moe",       "nemotron_h-moe"},
                               kRouted[] = {"qwen2-moe",   "qwen3-moe",        "mixtral",
                                            "gpt-oss",     "deepseek-v2",      "qwen3-next",
                                            "qwen3_5-moe", "granitemoehybrid", "mistral4"};
    const bool scored = std::any_of(std::begin(kScored), std::end(kScored), is);
    const bool routed = scored || std::any_of(std::begin(kRouted), std::end(kRouted), is);
    REQUIRE(g.router_margin_f32.has_value() == routed);
    // Gemma 4 chooses by probabilities of 8, which change by a ninth; of its candidates the widest has half
    // of that.
    const double least = name == "gemma4-26b-a4b" ? 0.01 / 18 : scored ? 0.01 / 4 : 0.01;
    if (routed) REQUIRE((*g.router_margin_f32 > least && *g.router_margin_bf16 > least));
  }
}

TEST_CASE("goldens: no manifest is left out of the list", "[golden]") {
  std::set<std::string> found, listed;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("tests/golden/models")))
    if (entry.path().extension() == ".json") found.insert(entry.path().stem().string());
  for (const std::string& name : all_golden_names()) listed.insert(name);
  // Over several pages: tests/models/state_test.cc, recurrent_test.cc and latent_test.cc.
  for (const std::string& name : long_golden_names()) listed.insert(name);
  REQUIRE(found == listed);
}

TEST_CASE("write_tiny_model: the folder's tensors are the generated ones", "[golden]") {
  const TinyGolden g = load_tiny_golden("qwen2");
  for (TinyDtype dtype : {TinyDtype::f32, TinyDtype::bf16}) {
    const size_t item = dtype == TinyDtype::f32 ? 4 : 2;
    const std::string file = read_file(write_tiny_model(g, dtype) + "/model.safetensors");
    uint64_t header_size = 0;
    std::memcpy(&header_size, file.data(), 8);
    const auto header = oar::parse_json(file.substr(8, header_size), "header");
    REQUIRE_OK(header);
    size_t bytes = 0;
    for (const TinyTensor& t : g.tensors) {
      INFO(t.name);
      const auto& entry = header.value().at(t.name);
      const auto offsets = oar::json::value_to<std::vector<uint64_t>>(entry.at("data_offsets"));
      const auto values = tiny_weights(t.name, t.shape, g.weight_seed);
      REQUIRE(offsets[1] - offsets[0] == values.size() * item);
      const char* data = file.data() + 8 + header_size + offsets[0];
      for (size_t i = 0; i < values.size(); i += 97) {
        uint32_t bits = 0;
        std::memcpy(&bits, data + i * item, item);
        const uint32_t expected =
            dtype == TinyDtype::f32 ? std::bit_cast<uint32_t>(values[i]) : bf16_bits(values[i]);
        REQUIRE(bits == expected);
      }
      bytes += values.size() * item;
    }
    REQUIRE(file.size() == 8 + header_size + bytes);
  }
}

}  // namespace
}  // namespace oar_test
