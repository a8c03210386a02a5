// Checkpoints of every kind through the one door.
#include "engine/loader/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace oar {
namespace {

namespace fs = std::filesystem;
using oar_test::Contains;
using oar_test::floats;
using oar_test::GgufBuilder;
using oar_test::safetensors_bytes;
using oar_test::temp_dir;
using oar_test::write_file;

// A fresh folder.
std::string folder(const char* name) {
  const fs::path p = fs::path(temp_dir()) / name;
  fs::remove_all(p);
  fs::create_directories(p);
  return p.string();
}

std::string one_tensor(const std::string& name) {
  return safetensors_bytes(R"({")" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                           floats({1, 2}));
}

TEST_CASE("checkpoint: a Hugging Face folder") {
  const std::string dir = folder("hf");
  write_file(dir + "/config.json", R"({"model_type":"llama","dtype":"bfloat16"})");
  write_file(dir + "/model.safetensors", one_tensor("model.norm.weight"));
  write_file(dir + "/tokenizer.json", "{\"version\":\"1.0\"}");
  write_file(dir + "/tokenizer_config.json", R"({"chat_template":"{{ messages }}"})");
  write_file(dir + "/generation_config.json", R"({"eos_token_id":[1,2]})");
  const auto c = load_checkpoint(dir);
  REQUIRE_OK(c);
  CHECK(c->kind == "safetensors");
  CHECK(c->source_path == dir);
  CHECK(c->config.at("model_type") == "llama");
  CHECK(c->config.at("torch_dtype") == "bfloat16");
  CHECK(c->bytes == 8);
  CHECK(c->tensors.at("model.norm.weight").values<float>()[1] == 2.0f);
  CHECK(c->tokenizer.tokenizer_json == "{\"version\":\"1.0\"}");
  CHECK(c->tokenizer.chat_template == "{{ messages }}");
  CHECK(c->tokenizer.generation_config.at("eos_token_id") == json::array{1, 2});

  // The file itself finds what lies beside it.
  const auto file = load_checkpoint(dir + "/model.safetensors", {.mmap = false});
  REQUIRE_OK(file);
  CHECK(file->config.at("model_type") == "llama");

  // tiktoken's lines, as Kimi K2 names the file; a .tiktoken beside it comes first.
  const std::string ranks = folder("ranks");
  write_file(ranks + "/tiktoken.model", "IQ== 0\n");
  CHECK(read_tokenizer(ranks)->tiktoken == "IQ== 0\n");
  CHECK(read_tokenizer(ranks)->sentencepiece_model.empty());
  write_file(ranks + "/x.tiktoken", "Ig== 0\n");
  CHECK(read_tokenizer(ranks)->tiktoken == "Ig== 0\n");

  // A template in its own file wins; a list has a default.
  write_file(dir + "/tokenizer_config.json",
             R"({"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]})");
  CHECK(load_checkpoint(dir)->tokenizer.chat_template == "D");
  write_file(dir + "/chat_template.jinja", "J");
  CHECK(load_checkpoint(dir)->tokenizer.chat_template == "J");

  // GPT-2's pair of files counts only where there is no tokenizer.json.
  write_file(dir + "/vocab.json", "{}");
  write_file(dir + "/merges.txt", "#version: 0.2\n");
  CHECK_FALSE(load_checkpoint(dir)->tokenizer.has_vocab_merges());
  std::filesystem::rename(dir + "/tokenizer.json", dir + "/kept.json");
  const auto pair = load_checkpoint(dir);
  REQUIRE_OK(pair);
  CHECK(pair->tokenizer.has_vocab_merges());
  CHECK(pair->tokenizer.vocab_json == "{}");
  std::filesystem::remove(dir + "/merges.txt");
  CHECK(load_checkpoint(dir)->tokenizer.empty());
  std::filesystem::rename(dir + "/kept.json", dir + "/tokenizer.json");

  // Another tokenizer by path; the rest stays.
  write_file(temp_dir() + "/other.json", "{}");
  const auto other = load_checkpoint(dir, {.tokenizer = temp_dir() + "/other.json"});
  REQUIRE_OK(other);
  CHECK(other->tokenizer.tokenizer_json == "{}");
  CHECK(other->tokenizer.generation_config.contains("eos_token_id"));
  CHECK_THAT(load_checkpoint(dir, {.tokenizer = dir + "/none.model"}).status().message(),
             Contains("none.model"));
  CHECK_THAT(load_checkpoint(dir, {.tokenizer = "x.txt"}).status().message(),
             Contains("x.txt") && Contains("tokenizer.json"));
  CHECK_THAT(load_checkpoint(dir, {.tokenizer = folder("notok")}).status().message(),
             Contains("has no tokenizer.json"));
}

TEST_CASE("checkpoint: sharded") {
  const std::string dir = folder("sharded");
  write_file(dir + "/config.json", "{}");
  write_file(dir + "/model-1.safetensors", one_tensor("model.a"));
  write_file(dir + "/model-2.safetensors", one_tensor("model.b"));
  CHECK_THAT(load_checkpoint(dir).status().message(),
             Contains("2 .safetensors files") && Contains("index.json"));
  write_file(dir + "/model.safetensors.index.json",
             R"({"weight_map":{"model.a":"model-1.safetensors","model.b":"model-2.safetensors"}})");
  const auto c = load_checkpoint(dir);
  REQUIRE_OK(c);
  CHECK(c->tensors.size() == 2);
  CHECK(c->bytes == 16);
}

TEST_CASE("checkpoint: a base model's names get their prefix") {
  const std::string dir = folder("base");
  write_file(dir + "/config.json", "{}");
  const auto names = [&](const char* a, const char* b) {
    write_file(dir + "/model.safetensors",
               safetensors_bytes(cat(R"({")", a, R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},")", b,
                                     R"(":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
                                 floats({1, 2})));
    const auto c = load_checkpoint(dir);
    REQUIRE_OK(c);
    std::string out;
    for (const auto& [name, t] : c->tensors) out += name + " ";
    return out;
  };
  CHECK(names("wte.weight", "h.0.ln_1.bias") == "transformer.h.0.ln_1.bias transformer.wte.weight ");
  CHECK(names("embed_tokens.weight", "lm_head.weight") == "lm_head.weight model.embed_tokens.weight ");
  CHECK(names("model.embed_tokens.weight", "lm_head.weight") == "lm_head.weight model.embed_tokens.weight ");
}

TEST_CASE("checkpoint: the text model of a multimodal one") {
  const std::string config = R"({"model_type":"mistral3","torch_dtype":"bfloat16","tie_word_embeddings":true,
      "eos_token_id":[1,106],"vision_config":{"hidden_size":8},
      "text_config":{"model_type":"ministral3","hidden_size":64,"tie_word_embeddings":false,"eos_token_id":7}})";
  const auto tensor = [](const std::string& name, int at) {
    return "\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" + std::to_string(4 * at) + "," +
           std::to_string(4 * at + 4) + "]}";
  };
  struct Layout {
    const char *norm, *head, *eye;
  };
  for (const Layout& l :
       {Layout{"language_model.model.norm.weight", "language_model.lm_head.weight", "vision_tower.a.weight"},
        Layout{"model.language_model.norm.weight", "lm_head.weight", "model.vision_tower.a.weight"},
        Layout{"model.norm.weight", "lm_head.weight", "model.vision_tower.a.weight"}}) {
    INFO(l.norm);
    const std::string dir = folder("multimodal");
    write_file(dir + "/config.json", config);
    write_file(
        dir + "/model.safetensors",
        safetensors_bytes("{" + tensor(l.norm, 0) + "," + tensor(l.head, 1) + "," + tensor(l.eye, 2) + "}",
                          floats({1, 2, 3})));
    const auto c = load_checkpoint(dir);
    REQUIRE_OK(c);
    CHECK(c->config.at("model_type") == "ministral3");
    CHECK(c->config.at("hidden_size") == 64);
    CHECK(c->config.at("torch_dtype") == "bfloat16");
    CHECK(c->config.at("tie_word_embeddings") == true);          // either side says so
    CHECK(c->config.at("eos_token_id") == json::array{1, 106});  // the chat's
    CHECK(c->tensors.size() == 2);
    CHECK(c->tensors.at("model.norm.weight").values<float>()[0] == 1.0f);
    CHECK(c->tensors.at("lm_head.weight").values<float>()[0] == 2.0f);
    REQUIRE(c->notices.size() == 1);
    CHECK_THAT(c->notices[0], Contains("'vision_tower' (1)"));
    CHECK(c->bytes == 8);
  }
}

TEST_CASE("checkpoint: heads that draft tokens are set apart, and told") {
  struct Case {
    const char* config;
    std::vector<std::string> own, drafts;
    const char* told;
  };
  const Case cases[] = {
      {R"({"model_type":"qwen3_next","num_hidden_layers":2})",
       {"model.layers.1.a", "model.mtpx"},
       {"mtp.fc.weight", "mtp.layers.0.a"},
       "'mtp' (2)"},
      // DeepSeek V3 and GLM: layers behind the last.
      {R"({"model_type":"deepseek_v3","num_hidden_layers":10,"num_nextn_predict_layers":1})",
       {"model.layers.1.a", "model.layers.9.b", "model.norm.weight"},
       {"model.layers.10.a", "model.layers.10.eh_proj.weight", "model.layers.11.a"},
       "'layer 10' (2), 'layer 11' (1)"},
      {R"({"model_type":"outer","text_config":{"model_type":"qwen3_5","num_hidden_layers":1}})",
       {"model.layers.0.a"},
       {"model.layers.1.a", "mtp.norm.weight"},
       "'layer 1' (1), 'mtp' (1)"}};
  for (const Case& c : cases) {
    INFO(c.told);
    const std::string dir = folder("drafts");
    write_file(dir + "/config.json", c.config);
    std::string header;
    int at = 0;
    for (const auto* names : {&c.own, &c.drafts})
      for (const std::string& name : *names) {
        header += cat(header.empty() ? "{" : ",", "\"", name,
                      R"(":{"dtype":"F32","shape":[1],"data_offsets":[)", 4 * at, ",", 4 * at + 4, "]}");
        ++at;
      }
    write_file(dir + "/model.safetensors",
               safetensors_bytes(header + "}", std::string(static_cast<size_t>(4 * at), 'x')));
    const auto made = load_checkpoint(dir);
    REQUIRE_OK(made);
    std::vector<std::string> own, drafts;
    for (const auto& [name, t] : made->tensors) own.push_back(name);
    for (const auto& [name, t] : made->drafts) drafts.push_back(name);
    CHECK(own == c.own);
    CHECK(drafts == c.drafts);
    REQUIRE(made->notices.size() == 1);
    CHECK_THAT(made->notices[0], Contains("draft heads") && Contains(c.told));
    CHECK(made->bytes == 4 * c.own.size());
  }
}

TEST_CASE("checkpoint: GGUF's layers that draft tokens are set apart, and told") {
  const std::string dir = folder("gguf-drafts");
  GgufBuilder b;
  b.str("general.architecture", "glm4moe").u32("glm4moe.embedding_length", 8).u32("glm4moe.block_count", 3);
  b.u32("glm4moe.attention.head_count", 2).u32("glm4moe.context_length", 128);
  b.u32("glm4moe.feed_forward_length", 16).u32("glm4moe.nextn_predict_layers", 1);
  for (const char* name :
       {"token_embd.weight", "blk.1.attn_q.weight", "blk.2.attn_q.weight", "blk.2.nextn.eh_proj.weight"})
    b.tensor(name, {8, 1}, 0, floats({1, 2, 3, 4, 5, 6, 7, 8}));
  write_file(dir + "/m.gguf", b.bytes());
  const auto c = load_checkpoint(dir);
  REQUIRE_OK(c);
  CHECK(c->config.at("num_hidden_layers") == 2);
  CHECK(c->tensors.contains("model.layers.1.self_attn.q_proj.weight"));
  CHECK(c->tensors.size() == 2);
  CHECK(c->drafts.contains("model.layers.2.self_attn.q_proj.weight"));
  CHECK(c->drafts.size() == 2);
  CHECK(std::ranges::any_of(c->notices, [](const std::string& n) {
    return n.find("draft heads") != n.npos && n.find("'layer 2' (2)") != n.npos;
  }));
}

TEST_CASE("checkpoint: GGUF") {
  const std::string dir = folder("gguf");
  GgufBuilder b;
  b.str("general.architecture", "llama")
      .str("tokenizer.ggml.model", "llama")
      .strings("tokenizer.ggml.tokens", {"a", "b", "c"});
  b.u32("tokenizer.ggml.bos_token_id", 0)
      .u32("tokenizer.ggml.eos_token_id", 1)
      .u32("tokenizer.ggml.eot_token_id", 2);
  b.str("tokenizer.chat_template", "T").tensor("token_embd.weight", {2, 3}, 0, std::string(24, '\0'));
  b.tensor("rope_freqs.weight", {1}, 0, floats({1}));
  b.f32("general.sampling.temp", 0.5f).u32("general.sampling.top_k", 64).u32("general.sampling.mirostat", 1);
  write_file(dir + "/m.gguf", b.bytes());
  for (const std::string& path : {dir, dir + "/m.gguf"}) {
    const auto c = load_checkpoint(path);
    REQUIRE_OK(c);
    CHECK(c->kind == "gguf");
    CHECK(c->config.at("vocab_size") == 3);
    CHECK(c->config.at("bos_token_id") == 0);
    CHECK(c->config.at("eos_token_id") == 1);
    CHECK(c->tokenizer.generation_config.at("eos_token_id") == json::array{1, 2});
    CHECK(c->tokenizer.generation_config.at("temperature") == 0.5);
    CHECK(c->tokenizer.generation_config.at("top_k") == 64);
    REQUIRE(c->notices.size() == 1);
    CHECK_THAT(c->notices[0], Contains("'general.sampling.mirostat'"));
    CHECK(c->tokenizer.chat_template == "T");
    CHECK(c->tensors.size() == 1);
    CHECK(c->tensors.at("model.embed_tokens.weight").shape() == Shape{3, 2});
  }
  // A vocabulary-less file takes the tokenizer beside it.
  write_file(dir + "/m.gguf", GgufBuilder().str("general.architecture", "llama").bytes());
  write_file(dir + "/tokenizer.json", "{}");
  const auto plain = load_checkpoint(dir + "/m.gguf");
  REQUIRE_OK(plain);
  CHECK(plain->tokenizer.tokenizer_json == "{}");
  // Two names that mean the same tensor.
  write_file(dir + "/m.gguf", GgufBuilder()
                                  .str("general.architecture", "llama")
                                  .tensor("output.weight", {1}, 0, floats({1}))
                                  .tensor("lm_head.weight", {1}, 0, floats({1}))
                                  .bytes());
  CHECK_THAT(load_checkpoint(dir + "/m.gguf").status().message(),
             Contains("two tensors mean 'lm_head.weight'"));
}

TEST_CASE("checkpoint: what is not a model says what was found") {
  const std::string dir = folder("nothing");
  CHECK_THAT(load_checkpoint(dir + "/absent").status().message(),
             Contains("no such model") && Contains("absent"));
  CHECK(load_checkpoint("").status().code() == StatusCode::kNotFound);
  CHECK_THAT(load_checkpoint(dir).status().message(),
             Contains("expected a folder") && Contains("it is empty"));
  for (int i = 0; i < 20; ++i) write_file(dir + "/f" + std::to_string(i), "");
  CHECK_THAT(load_checkpoint(dir).status().message(), Contains("'f0'") && Contains("and 8 more"));
  write_file(dir + "/pytorch_model.bin", "PK\x03\x04");
  CHECK_THAT(load_checkpoint(dir).status().message(), Contains("pickle"));
  CHECK_THAT(load_checkpoint(dir + "/pytorch_model.bin").status().message(), Contains("pickle"));
  write_file(dir + "/x.txt", "hello world");
  CHECK_THAT(load_checkpoint(dir + "/x.txt").status().message(),
             Contains("68 65 6c 6c 6f") && Contains(".gguf"));
  CHECK_THAT(load_checkpoint(dir + "/f0").status().message(), Contains("it is empty"));
  write_file(dir + "/model.safetensors", one_tensor("a"));
  CHECK_THAT(load_checkpoint(dir).status().message(), Contains("no config.json"));
  CHECK(load_checkpoint(dir + "/model.safetensors")->config.empty());
  for (const char* bad : {"[]", "{", "", "nul"}) {
    write_file(dir + "/config.json", bad);
    CHECK_THAT(load_checkpoint(dir).status().message(), Contains("config.json"));
  }
  CHECK(load_checkpoint("/dev/null").status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("checkpoint: a trained model in its three forms is one model") {
  struct Forms {
    std::string bin, gguf;
    int64_t context, gguf_context;
    size_t tokenizer_bin, tokenizer_model;
  };
  const std::string own = oar_test::source_path("tests/data/tales/");
  std::vector<Forms> all = {{own + "tales.bin", own + "tales.gguf", 256, 128, 6231, 7488}};
  if (const auto folder = oar_test::data_path("llm/stories260K"))
    all.push_back({*folder + "/stories260K.bin", *folder + "/stories260K.gguf", 512, 128, 6227, 7645});
  for (const Forms& f : all) {
    CAPTURE(f.bin);
    const auto a = load_checkpoint(f.bin), b = load_checkpoint(f.gguf, {.mmap = false});
    REQUIRE_OK(a);
    REQUIRE_OK(b);
    for (const char* key :
         {"model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size", "rope_interleaved",
          "rope_theta", "hidden_act", "bos_token_id", "eos_token_id", "torch_dtype"}) {
      CAPTURE(key);
      CHECK(a->config.at(key) == b->config.at(key));
    }
    CHECK(a->config.at("rms_norm_eps").as_double() == Approx(b->config.at("rms_norm_eps").as_double()));
    CHECK(a->config.at("max_position_embeddings") == f.context);
    CHECK(b->config.at("max_position_embeddings") == f.gguf_context);  // what the file says
    CHECK(a->config.at("tie_word_embeddings") == true);
    CHECK(b->config.at("tie_word_embeddings") == false);  // the classifier is written out
    for (const auto& [name, t] : a->tensors) {
      CAPTURE(name);
      REQUIRE(b->tensors.count(name) == 1);
      const Tensor& other = b->tensors.at(name);
      REQUIRE(t.shape() == other.shape());
      CHECK(memcmp(t.data(), other.data(), t.bytes()) == 0);
    }
    CHECK(b->tensors.size() == a->tensors.size() + 1);
    const Tensor& embedding = a->tensors.at("model.embed_tokens.weight");
    CHECK(memcmp(b->tensors.at("lm_head.weight").data(), embedding.data(), embedding.bytes()) == 0);
    CHECK(a->tokenizer.llama2c_bin.size() == f.tokenizer_bin);
    CHECK(a->tokenizer.sentencepiece_model.size() == f.tokenizer_model);
    REQUIRE(b->tokenizer.gguf.has_value());
    CHECK(b->tokenizer.gguf->tokens.size() == 512);
    CHECK(b->tokenizer.gguf->bos_id == 1u);
    CHECK_FALSE(b->tokenizer.gguf->separator_id.has_value());  // 0xFFFFFFFF in the file
    CHECK_FALSE(b->tokenizer.gguf->padding_id.has_value());
  }
}

}  // namespace
}  // namespace oar
