// Tiny random models and the logits transformers computed for them (tests/golden). The weights are not
// stored: each tensor's values follow from its name, here as in tests/golden/tiny_weights.py, bit for bit;
// the manifest's checksums prove it. tests/golden/README.md has the rule and the formats. Any fault throws,
// which fails the test.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oar_test {

enum class TinyDtype { f32, bf16 };

struct TinyTensor {
  std::string name;            // as in a Hugging Face checkpoint
  std::vector<int64_t> shape;  // row-major
  uint64_t checksum = 0;       // fnv1a64 of the f32 bytes
};

struct TinyGolden {
  std::string name;    // "llama3": tests/golden/models/llama3.json
  std::string config;  // the text of its config.json
  uint64_t weight_seed = 0;
  std::vector<int32_t> tokens;      // (T), one sequence from position 0
  std::vector<TinyTensor> tensors;  // the whole checkpoint
  // Of experts in mxfp4: what transformers makes of blocks and scales, f32 (X, K, N).
  std::vector<TinyTensor> decoded;
  int64_t vocab = 0;
  std::vector<float> logits_f32;  // (T, V) with the weights as generated
  // (T, V) with the weights rounded to bf16; arithmetic in double all the same. Empty for long latents.
  std::vector<float> logits_bf16;
  // Mixtures of experts: the least difference, over tokens and layers, between the router logits of the last
  // expert chosen and the best one not chosen.
  std::optional<double> router_margin_f32, router_margin_bf16;

  bool has_codes() const { return !decoded.empty(); }
  const std::vector<float>& logits(TinyDtype dtype) const {
    return dtype == TinyDtype::f32 ? logits_f32 : logits_bf16;
  }
};

// Every golden whose weights are floats, in the order of the generator.
std::vector<std::string> tiny_golden_names();
// And those with codes among their weights, as they are released: what is multiplied with these is rounded to
// 8 bits by fast kernels, so only reference kernels compute the numbers of the golden.
std::vector<std::string> all_golden_names();
// States and latents over several pages of tokens, beside these.
std::vector<std::string> long_golden_names();
// Whether a cache of this tier is one for the golden: a latent is kept in plain floats, int8, fp8 and int4.
bool keeps(const TinyGolden& golden, std::string_view tier);
TinyGolden load_tiny_golden(std::string_view name);

// A checkpoint folder (config.json, model.safetensors) below temp_dir(), written anew; returns its path.
std::string write_tiny_model(const TinyGolden& golden, TinyDtype dtype);

// And a tokenizer.json beside it, of the letters that no other byte stands for: '!' to '~'.
std::string write_lettered_model(const TinyGolden& golden, TinyDtype dtype);

// Codes and scales of mxfp4 are bytes, in either dtype, by a rule of their own.
bool tiny_is_bytes(std::string_view name);
std::vector<uint8_t> tiny_bytes(std::string_view name, std::span<const int64_t> shape, uint64_t seed);

// The values of one tensor, by the rule.
std::vector<float> tiny_weights(std::string_view name, std::span<const int64_t> shape, uint64_t seed);

uint64_t fnv1a64(std::span<const unsigned char> bytes);
uint64_t fnv1a64(std::span<const float> values);  // over their little-endian bytes

// Round to nearest even. Finite values only.
uint16_t bf16_bits(float value);

}  // namespace oar_test
