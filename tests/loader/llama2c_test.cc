// llama2.c checkpoints.
#include "engine/loader/llama2c.h"

#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace oar {
namespace {

using oar_test::append;
using oar_test::Contains;
using oar_test::exact_buffer;

// dim 4, ffn 6, 2 layers, 2 heads of 2, 1 KV head, 3 tokens, context 5; every weight is its own index in the
// file.
std::string small_file(int32_t vocab, std::array<int32_t, 7> header = {4, 6, 2, 2, 1, 0, 5},
                       int extra_floats = 0) {
  header[5] = vocab;
  std::string out;
  for (int32_t v : header) append(out, v);
  // embedding, then per layer: norm 4, q 16, k 8, v 8, o 16, norm 4, gate/down/up 24 each; final norm; two
  // 5x1 tables.
  const int count = 3 * 4 + 2 * (4 + 16 + 8 + 8 + 16 + 4 + 3 * 24) + 4 + 2 * 5 + (vocab < 0 ? 3 * 4 : 0);
  for (int i = 0; i < count + extra_floats; ++i) append(out, static_cast<float>(i));
  return out;
}

TEST_CASE("llama2c: layout") {
  for (int32_t vocab : {3, -3}) {
    CAPTURE(vocab);
    const auto m = parse_llama2c(exact_buffer(small_file(vocab)), "m.bin");
    REQUIRE_OK(m);
    CHECK(m->width == 4);
    CHECK(m->ffn == 6);
    CHECK(m->vocab == 3);
    CHECK(m->context == 5);
    CHECK(m->tied == (vocab > 0));
    CHECK(m->tensors.size() == (vocab < 0 ? 21u : 20u));
    const auto first = [&](const char* name) { return m->tensors.at(name).values<float>()[0]; };
    CHECK(first("model.embed_tokens.weight") == 0);
    CHECK(first("model.layers.0.input_layernorm.weight") == 12);
    CHECK(first("model.layers.1.input_layernorm.weight") == 16);
    CHECK(first("model.layers.0.self_attn.q_proj.weight") == 20);
    CHECK(first("model.layers.1.self_attn.k_proj.weight") == 20 + 32 + 8);
    CHECK(first("model.layers.0.mlp.gate_proj.weight") == 20 + 32 + 16 + 16 + 32 + 8);
    CHECK(first("model.layers.0.mlp.down_proj.weight") == 124 + 48);
    CHECK(first("model.layers.0.mlp.up_proj.weight") == 124 + 96);
    CHECK(first("model.norm.weight") == 124 + 144);
    CHECK(m->tensors.at("model.layers.0.self_attn.k_proj.weight").shape() == Shape{2, 4});
    CHECK(m->tensors.at("model.layers.0.mlp.down_proj.weight").shape() == Shape{4, 6});
    if (vocab < 0) CHECK(first("lm_head.weight") == 124 + 144 + 4 + 10);
  }
}

TEST_CASE("llama2c: each fault is named") {
  const auto error = [](const std::string& bytes) {
    const auto r = parse_llama2c(exact_buffer(bytes), "m.bin");
    REQUIRE_FALSE(r.ok());
    return r.status().message();
  };
  CHECK_THAT(error(small_file(3, {4, 6, 2, 2, 1, 0, 5}, 1)), Contains("truncated or damaged"));
  CHECK_THAT(error(small_file(3, {4, 6, 2, 2, 1, 0, 5}, -1)), Contains("truncated or damaged"));
  CHECK_THAT(error(small_file(0)), Contains("vocab_size is 0"));
  CHECK_THAT(error(small_file(3, {0, 6, 2, 2, 1, 0, 5})), Contains("dim is 0"));
  CHECK_THAT(error(small_file(3, {4, 6, 2, 2, -1, 0, 5})), Contains("n_kv_heads is -1"));
  CHECK_THAT(error(small_file(3, {4, 6, 2, 3, 1, 0, 5})), Contains("multiple of n_heads"));
  CHECK_THAT(error(small_file(3, {4, 6, 2, 4, 1, 0, 5})), Contains("even multiple"));
  CHECK_THAT(error(small_file(INT32_MIN, {4, INT32_MAX, INT32_MAX, 2, 1, 0, 5})), Contains("overflow"));
  CHECK_THAT(error(small_file(3, {INT32_MAX - 1, INT32_MAX, INT32_MAX, 1, 1, 0, INT32_MAX})),
             Contains("overflow"));
  CHECK_THAT(error(small_file(3, {0x616b3432, 1, 2, 2, 1, 0, 5})), Contains("ak42"));
  for (size_t n = 0; n < 28; ++n) error(small_file(3).substr(0, n));
}

TEST_CASE("llama2c: trained models, whole") {
  struct Model {
    int64_t width, context;
    size_t layers;
  };
  const Model models[] = {{48, 256, 3}, {64, 512, 5}};
  const auto files = oar_test::files_of_kind("tales/tales.bin", "llm/stories260K/stories260K.bin");
  for (size_t k = 0; k < files.size(); ++k) {
    CAPTURE(files[k]);
    const auto m = open_llama2c(files[k]);
    REQUIRE_OK(m);
    CHECK(m->width == models[k].width);
    CHECK(m->context == models[k].context);
    CHECK(m->tied);
    CHECK(m->tensors.size() == 9 * models[k].layers + 2);
  }
}

}  // namespace
}  // namespace oar
