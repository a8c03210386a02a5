// What `oar quantize` reads and writes beside weights: other files of a folder, GGUF with its vocabulary,
// llama2.c with its tokenizer.
#include "engine/tune/quantize/quantize.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "engine/runtime/model_tokenizer.h"
#include "tests/loader/builders.h"
#include "tests/support/catch.h"
#include "tests/tune/quantize_fixture.h"

using namespace oar;
namespace fs = std::filesystem;
using oar_test::heldout;
using oar_test::kDemo;
using oar_test::load;
using oar_test::snr_db;
using oar_test::tiny_logits;
using Folder = oar_test::QuantizeFolder;

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

TEST_CASE("heads that draft tokens are kept as they are, or left out with a word where they do not fit") {
  const Folder folder;
  const auto golden = oar_test::load_tiny_golden("qwen3");
  const Checkpoint plain = load(oar_test::write_tiny_model(golden, oar_test::TinyDtype::bf16));
  Checkpoint source = plain;
  source.drafts["mtp.fc.weight"] = plain.tensors.at("model.norm.weight");
  source.drafts[cat("model.layers.", plain.config.at("num_hidden_layers").as_int64(), ".eh_proj.weight")] =
      plain.tensors.at("model.embed_tokens.weight");
  QuantizeOptions o;
  o.weights = "q8_0";
  const auto kept = quantize_model(source, nullptr, folder / "kept", o);
  REQUIRE_OK(kept);
  CHECK(kept->drafts == 0);
  const Checkpoint made = load(folder / "kept");
  CHECK(made.drafts.size() == 2);
  CHECK_FALSE(made.tensors.contains("mtp.fc.weight"));
  for (const auto& [name, tensor] : source.drafts) {
    const Tensor& now = made.drafts.at(name);
    REQUIRE(now.bytes() == tensor.bytes());
    CHECK(now.format() == tensor.format());
    CHECK(std::memcmp(now.data(), tensor.data(), tensor.bytes()) == 0);
  }
  CHECK(std::ranges::any_of(made.notices,
                            [](const std::string& n) { return n.find("draft heads") != n.npos; }));
  o.rotate = "r1";
  const auto rotated = quantize_model(source, nullptr, folder / "rotated", o);
  REQUIRE_OK(rotated);
  CHECK(rotated->drafts == 2);
  CHECK(load(folder / "rotated").drafts.empty());
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
