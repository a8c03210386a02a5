#include "tests/support/tiny_weights.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "engine/base/json.h"
#include "tests/support/test_data.h"

static_assert(std::endian::native == std::endian::little, "goldens and safetensors are little-endian");

namespace oar_test {
namespace {

namespace fs = std::filesystem;
namespace json = oar::json;

constexpr const char* kFolder = "tests/golden/models/";

// Output `index` of the splitmix64 stream that starts at `seed`.
uint64_t splitmix64(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

json::value read_json(const std::string& relative) {
  const std::string path = source_path(relative);
  auto parsed = oar::parse_json(read_file(path), path);
  if (!parsed.ok()) throw std::runtime_error(parsed.status().message());
  return std::move(parsed).value();
}

std::vector<float> read_floats(const std::string& relative, size_t count) {
  const std::string bytes = read_file(source_path(relative));
  if (bytes.size() != count * sizeof(float)) throw std::runtime_error(relative + ": wrong size");
  std::vector<float> values(count);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

uint64_t parse_hex(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) throw std::runtime_error("not a checksum");
  return value;
}

size_t element_count(std::span<const int64_t> shape) {
  size_t count = 1;
  for (int64_t dim : shape) count *= static_cast<size_t>(dim);
  return count;
}

// The header lists tensors and byte ranges relative to its own end; it is padded with spaces to a multiple
// of 8.
std::string safetensors_header(const TinyGolden& golden, TinyDtype dtype) {
  json::object header{{"__metadata__", {{"format", "pt"}}}};
  size_t offset = 0;
  for (const TinyTensor& t : golden.tensors) {
    const bool bytes = tiny_is_bytes(t.name), f32 = dtype == TinyDtype::f32;
    const size_t end = offset + element_count(t.shape) * (bytes ? 1 : f32 ? 4 : 2);
    header[t.name] = {{"dtype", bytes ? "U8"
                                : f32 ? "F32"
                                      : "BF16"},
                      {"shape", json::value_from(t.shape)},
                      {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

uint64_t fnv1a64(std::span<const unsigned char> bytes) {
  uint64_t h = 0xCBF29CE484222325u;
  for (unsigned char byte : bytes) h = (h ^ byte) * 0x100000001B3u;
  return h;
}

uint64_t fnv1a64(std::span<const float> values) {
  return fnv1a64({reinterpret_cast<const unsigned char*>(values.data()), values.size_bytes()});
}

uint16_t bf16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

std::vector<float> tiny_weights(std::string_view name, std::span<const int64_t> shape, uint64_t seed) {
  if (shape.empty()) throw std::runtime_error("tiny_weights: a scalar has no rule");
  const bool vector = shape.size() == 1;
  const bool norm =
      vector && (name.ends_with("weight") || name.ends_with("scale") || name.ends_with("scalar"));
  int exponent = 0;  // matrices: values in [-2^-exponent, 2^-exponent)
  while (int64_t{3} << (2 * (exponent + 1)) <= shape.back()) ++exponent;
  const uint64_t stream = seed ^ fnv1a64({reinterpret_cast<const unsigned char*>(name.data()), name.size()});

  std::vector<float> values(element_count(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    // 22 random bits, signed. Sums with 2^23 stay below 2^24, so float holds every value exactly.
    const int32_t k = static_cast<int32_t>(splitmix64(stream, i) >> 42) - (1 << 21);
    if (norm) values[i] = std::ldexp(static_cast<float>((1 << 23) + k), -23);
    else values[i] = std::ldexp(static_cast<float>(k), vector ? -24 : -(21 + exponent));
  }
  return values;
}

bool tiny_is_bytes(std::string_view name) { return name.ends_with("_blocks") || name.ends_with("_scales"); }

std::vector<uint8_t> tiny_bytes(std::string_view name, std::span<const int64_t> shape, uint64_t seed) {
  const uint64_t stream = seed ^ fnv1a64({reinterpret_cast<const unsigned char*>(name.data()), name.size()});
  std::vector<uint8_t> values(element_count(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t z = splitmix64(stream, i);
    values[i] = static_cast<uint8_t>(name.ends_with("_blocks") ? z >> 56 : 121 + (z >> 62));
  }
  return values;
}

std::vector<std::string> tiny_golden_names() {
  return {"llama2",           "llama3",      "llama-linear",  "llama-yarn",     "llama-bias",
          "mistral",          "qwen2",       "qwen3",         "gpt2",           "qwen3-moe",
          "mixtral",          "ministral3",  "phi3",          "phi4",           "smollm3",
          "granite",          "ernie4_5",    "seed_oss",      "olmo2",          "olmo3",
          "gemma2",           "gemma3",      "glm4",          "cohere2",        "hunyuan_v1_dense",
          "exaone4",          "starcoder2",  "qwen2-moe",     "glm4-moe",       "ernie4_5-moe",
          "minimax-m2",       "gpt-oss",     "llama4",        "gemma4-e2b",     "gemma4-12b",
          "gemma4-26b-a4b",   "lfm2",        "qwen3-next",    "qwen3_5",        "qwen3_5-moe",
          "deepseek-v2",      "deepseek-v3", "glm4-moe-lite", "minicpm3",       "mamba2",
          "granitemoehybrid", "falcon_h1",   "nemotron_h",    "nemotron_h-moe", "mistral4",
          "lfm2-moe"};
}

std::vector<std::string> all_golden_names() {
  std::vector<std::string> names = tiny_golden_names();
  names.push_back("gpt-oss-mxfp4");
  return names;
}

std::vector<std::string> long_golden_names() {
  return {"lfm2-long",          "qwen3_5-long",    "mamba2-long",      "granitemoehybrid-long",
          "falcon_h1-long",     "nemotron_h-long", "deepseek-v2-long", "deepseek-v3-long",
          "glm4-moe-lite-long", "minicpm3-long",   "mistral4-long"};
}

bool keeps(const TinyGolden& golden, std::string_view tier) {
  if (golden.config.find("kv_lora_rank") == std::string::npos) return true;
  for (const char* apart : {"k8v4", "int4-mean", "k4v3"})  // keys and values have codes of their own
    if (tier.find(apart) != tier.npos) return false;
  return true;
}

TinyGolden load_tiny_golden(std::string_view name) {
  TinyGolden golden;
  golden.name = name;
  const json::value manifest = read_json(kFolder + golden.name + ".json");
  golden.config = read_file(source_path(std::string(manifest.at("config").as_string())));
  // Python's word for an infinite number, which strict readers refuse, as newer files have it.
  if (golden.config.find("Infinity") != std::string::npos)
    golden.config = json::serialize(oar::parse_json(golden.config, name, {.python_floats = true}).value());
  golden.weight_seed = manifest.at("weight_seed").to_number<uint64_t>();
  golden.tokens = json::value_to<std::vector<int32_t>>(manifest.at("tokens"));
  const auto read_tensors = [](const json::value& list, std::vector<TinyTensor>& out) {
    for (const json::value& t : list.as_array())
      out.push_back({std::string(t.at("name").as_string()),
                     json::value_to<std::vector<int64_t>>(t.at("shape")),
                     parse_hex(t.at("checksum").as_string())});
  };
  read_tensors(manifest.at("tensors"), golden.tensors);
  if (const json::value* decoded = manifest.as_object().if_contains("decoded"))
    read_tensors(*decoded, golden.decoded);
  const auto read_logits = [&](const char* dtype, std::vector<float>& logits, std::optional<double>& margin) {
    const json::value& entry = manifest.at("logits").at(dtype);
    const auto shape = json::value_to<std::vector<int64_t>>(entry.at("shape"));
    if (shape.size() != 2 || shape[0] != static_cast<int64_t>(golden.tokens.size()))
      throw std::runtime_error(golden.name + ": logits are not (T, V)");
    golden.vocab = shape[1];
    logits = read_floats(kFolder + std::string(entry.at("file").as_string()), element_count(shape));
    if (const json::value* m = entry.as_object().if_contains("router_margin"))
      margin = m->to_number<double>();
  };
  read_logits("f32", golden.logits_f32, golden.router_margin_f32);
  if (manifest.at("logits").as_object().contains("bf16"))
    read_logits("bf16", golden.logits_bf16, golden.router_margin_bf16);
  return golden;
}

std::string write_tiny_model(const TinyGolden& golden, TinyDtype dtype) {
  const fs::path folder =
      fs::path(temp_dir()) / ("tiny-" + golden.name + (dtype == TinyDtype::f32 ? "-f32" : "-bf16"));
  fs::create_directories(folder);
  std::ofstream(folder / "config.json", std::ios::binary) << golden.config;

  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  const std::string header = safetensors_header(golden, dtype);
  const uint64_t header_size = header.size();
  out.write(reinterpret_cast<const char*>(&header_size), sizeof header_size);
  out << header;
  for (const TinyTensor& t : golden.tensors) {
    if (tiny_is_bytes(t.name)) {
      const std::vector<uint8_t> bytes = tiny_bytes(t.name, t.shape, golden.weight_seed);
      out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      continue;
    }
    const std::vector<float> values = tiny_weights(t.name, t.shape, golden.weight_seed);
    if (dtype == TinyDtype::f32) {
      out.write(reinterpret_cast<const char*>(values.data()),
                static_cast<std::streamsize>(values.size() * 4));
    } else {
      std::vector<uint16_t> rounded(values.size());
      for (size_t i = 0; i < values.size(); ++i) rounded[i] = bf16_bits(values[i]);
      out.write(reinterpret_cast<const char*>(rounded.data()),
                static_cast<std::streamsize>(rounded.size() * 2));
    }
  }
  out.close();
  if (!out) throw std::runtime_error("cannot write " + (folder / "model.safetensors").string());
  return folder.string();
}

std::string write_lettered_model(const TinyGolden& golden, TinyDtype dtype) {
  std::string folder = write_tiny_model(golden, dtype);
  json::object vocab;
  for (int c = '!'; c <= '~'; ++c) vocab[std::string(1, static_cast<char>(c))] = c;
  const json::object stage{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  std::ofstream(fs::path(folder) / "tokenizer.json") << json::serialize(
      json::object{{"version", "1.0"},
                   {"added_tokens", json::array{}},
                   {"normalizer", nullptr},
                   {"pre_tokenizer", stage},
                   {"post_processor", nullptr},
                   {"decoder", stage},
                   {"model", json::object{{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{}}}}});
  return folder;
}

}  // namespace oar_test
