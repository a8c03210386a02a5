// GGUF: every metadata type, tensor placement, each way to be wrong with the message it deserves, real files.
#include "engine/loader/gguf.h"

#include <filesystem>

#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace oar {
namespace {

using oar_test::append;
using oar_test::Contains;
using oar_test::exact_buffer;
using oar_test::floats;
using oar_test::GgufBuilder;
using oar_test::temp_dir;
using oar_test::write_file;

Result<GgufFile> parse(const GgufBuilder& b) { return parse_gguf(exact_buffer(b.bytes()), "m.gguf"); }

std::string error_of(const GgufBuilder& b) {
  const auto r = parse(b);
  REQUIRE_FALSE(r.ok());
  CHECK_THAT(r.status().message(), Contains("m.gguf"));
  return r.status().message();
}

TEST_CASE("gguf: every metadata type is read as what it is") {
  GgufBuilder b;
  b.scalar<uint8_t>("u8", GgufType::kU8, 200).scalar<int8_t>("i8", GgufType::kI8, -3);
  b.scalar<uint16_t>("u16", GgufType::kU16, 60000).scalar<int16_t>("i16", GgufType::kI16, 7);
  b.u32("u32", 4000000000u).scalar<int32_t>("i32", GgufType::kI32, -1);
  b.scalar<uint64_t>("u64", GgufType::kU64, UINT64_MAX).scalar<int64_t>("i64", GgufType::kI64, INT64_MIN);
  b.f32("f32", 1.5f).scalar<double>("f64", GgufType::kF64, 2.5).scalar<uint8_t>("bool", GgufType::kBool, 1);
  b.str("str", "text").strings("list", {"a", "", "bc"}).array<float>("floats", GgufType::kF32, {1, 2});
  b.array<int32_t>("empty", GgufType::kI32, {});
  // An array of arrays: [[1, 2], [3]] of u8.
  std::string nested = GgufBuilder::array_head(GgufType::kArray, 2);
  nested += GgufBuilder::array_head(GgufType::kU8, 2) + "\x01\x02" +
            GgufBuilder::array_head(GgufType::kU8, 1) + "\x03";
  b.raw("nested", GgufType::kArray, nested);

  for (uint32_t version : {2u, 3u}) {
    b.version = version;
    const auto file = parse(b);
    REQUIRE_OK(file);
    CHECK(file->version == version);
    CHECK(file->metadata.size() == 16);
    CHECK(file->get_uint("u8").value() == 200);
    CHECK(file->get_uint("u16").value() == 60000);
    CHECK(file->get_uint("i16").value() == 7);
    CHECK(file->get_uint("u32").value() == 4000000000u);
    CHECK(file->get_uint("u64").value() == UINT64_MAX);
    CHECK(file->get_float("i8").value() == -3.0);
    CHECK(file->get_float("i64").value() == -9223372036854775808.0);
    CHECK(file->get_float("f32").value() == 1.5);
    CHECK(file->get_float("f64").value() == 2.5);
    CHECK(file->get_bool("bool").value() == true);
    CHECK(file->get_string("str").value() == "text");
    CHECK(file->get_strings("list", 3).value() == std::vector<std::string>{"a", "", "bc"});
    CHECK(file->get_numbers("floats", 2).value() == std::vector<double>{1, 2});
    CHECK(file->get_numbers("empty", 0).value().empty());

    CHECK_FALSE(file->get_uint("absent").value().has_value());
    CHECK_FALSE(file->get_float("absent").value().has_value());
    CHECK_FALSE(file->get_bool("absent").value().has_value());
    CHECK_FALSE(file->get_string("absent").value().has_value());
    CHECK(file->get_strings("absent", 1).value().empty());

    CHECK_THAT(file->get_uint("i8").status().message(), Contains("'i8'") && Contains("not negative"));
    CHECK_THAT(file->get_uint("f32").status().message(), Contains("not f32"));
    CHECK_THAT(file->get_float("str").status().message(), Contains("not string"));
    CHECK_THAT(file->get_float("bool").status().message(), Contains("not bool"));
    CHECK_THAT(file->get_bool("u8").status().message(), Contains("not u8"));
    CHECK_THAT(file->get_string("list").status().message(), Contains("an array of string"));
    CHECK_THAT(file->get_strings("floats", 9).status().message(), Contains("an array of f32"));
    CHECK_THAT(file->get_numbers("list", 9).status().message(), Contains("an array of string"));
    CHECK_THAT(file->get_numbers("nested", 9).status().message(), Contains("an array of array"));
    CHECK_THAT(file->get_numbers("u8", 9).status().message(), Contains("not u8"));
    CHECK_THAT(file->get_strings("list", 2).status().message(),
               Contains("3 elements") && Contains("at most 2"));
  }
}

TEST_CASE("gguf: tensors are placed, dims reversed, types mapped") {
  GgufBuilder b;
  b.tensor("w", {2, 3}, 0, floats({0, 1, 2, 3, 4, 5}));
  b.tensor("q", {64, 2}, 8, std::string(136, '\1'));
  b.tensor("s", {}, 0, floats({7}));
  b.tensor("e", {0}, 0, "");
  const auto file = parse(b);
  REQUIRE_OK(file);
  const Tensor& w = file->tensors.at("w");
  CHECK(w.shape() == Shape{3, 2});  // [out, in]
  CHECK(w.values<float>()[5] == 5.0f);
  CHECK(file->tensors.at("q").shape() == Shape{2, 64});
  CHECK(std::string(file->tensors.at("q").format().name()) == "q8_0");
  CHECK(file->tensors.at("s").shape().rank() == 0);
  CHECK(file->tensors.at("s").values<float>()[0] == 7.0f);
  CHECK(file->tensors.at("e").numel() == 0);
}

TEST_CASE("gguf: every supported tensor type") {
  struct Case {
    uint32_t id;
    const char* format;
  };
  for (const Case& c :
       {Case{0, "f32"},     Case{1, "f16"},      Case{2, "q4_0"},    Case{3, "q4_1"},   Case{6, "q5_0"},
        Case{7, "q5_1"},    Case{8, "q8_0"},     Case{10, "q2_k"},   Case{11, "q3_k"},  Case{20, "iq4_nl"},
        Case{23, "iq4_xs"}, Case{16, "iq2_xxs"}, Case{17, "iq2_xs"}, Case{22, "iq2_s"}, Case{18, "iq3_xxs"},
        Case{21, "iq3_s"},  Case{39, "mxfp4"},   Case{12, "q4_k"},   Case{13, "q5_k"},  Case{14, "q6_k"},
        Case{24, "i8"},     Case{25, "i16"},     Case{26, "i32"},    Case{27, "i64"},   Case{28, "f64"},
        Case{30, "bf16"}}) {
    CAPTURE(c.format);
    const Format format = *Format::find(c.format);
    GgufBuilder b;
    b.tensor("t", {256}, c.id, std::string(static_cast<size_t>(*format.row_bytes(256)), '\0'));
    const auto file = parse(b);
    REQUIRE_OK(file);
    CHECK(file->tensors.at("t").format() == format);
  }
}

TEST_CASE("gguf: small alignments still give aligned tensors") {
  GgufBuilder b;
  b.alignment = 1;
  b.u32("general.alignment", 1).str("pad", "x");
  b.tensor("byte", {1}, 24, "\x07").tensor("f", {1}, 0, floats({3.0f}));
  const auto file = parse(b);
  REQUIRE_OK(file);
  CHECK(reinterpret_cast<uintptr_t>(file->tensors.at("f").data()) % 4 == 0);
  CHECK(file->tensors.at("f").values<float>()[0] == 3.0f);
}

TEST_CASE("gguf: each fault is named") {
  const std::string f4 = floats({0});
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {256}, 19, std::string(50, '\0'))),
             Contains("'t'") && Contains("19 (IQ1_S)") && Contains("requantize"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {256}, 4, "")), Contains("4 (unknown)"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {33}, 8, "")), Contains("'t'") && Contains("multiple of 32"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {1, 1, 1, 1, 1}, 0, f4)), Contains("5 dimensions"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {uint64_t{1} << 63}, 0, f4)), Contains("63 bits"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, f4)),
             Contains("overflow"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {2}, 0, f4)),
             Contains("8 bytes at offset 0") && Contains("4 bytes of data"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {1}, 0, f4, 32)), Contains("offset 32"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {1}, 0, f4, 4)), Contains("multiple of the alignment 32"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {1}, 0, f4, INT64_MAX - 31)), Contains("outside"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {1}, 0, f4).tensor("u", {1}, 0, f4, 0)), Contains("overlap"));
  CHECK_THAT(error_of(GgufBuilder().tensor("t", {1}, 0, f4).tensor("t", {1}, 0, f4)),
             Contains("'t' appears twice"));
  CHECK_THAT(error_of(GgufBuilder().u32("k", 1).u32("k", 2)), Contains("'k' appears twice"));
  CHECK_THAT(error_of(GgufBuilder().u32("general.alignment", 24)),
             Contains("24") && Contains("power of two"));
  CHECK_THAT(error_of(GgufBuilder().u32("general.alignment", 0)), Contains("power of two"));
  CHECK_THAT(error_of(GgufBuilder().u32("general.alignment", 1u << 31)), Contains("at most"));
  CHECK_THAT(error_of(GgufBuilder().str("general.alignment", "32")), Contains("not string"));
  CHECK_THAT(error_of(GgufBuilder().raw("k", static_cast<GgufType>(13), "")), Contains("no GGUF type"));
  CHECK_THAT(error_of(GgufBuilder().raw("k", GgufType::kArray,
                                        GgufBuilder::array_head(static_cast<GgufType>(99), 1))),
             Contains("no GGUF type"));

  GgufBuilder b;
  b.version = 1;
  CHECK_THAT(error_of(b), Contains("version 1"));
  b.version = 4;
  CHECK_THAT(error_of(b), Contains("version 4"));
  b.version = 0;
  CHECK_THAT(error_of(b), Contains("version 0"));
  b.version = 0x03000000;
  CHECK_THAT(error_of(b), Contains("big-endian"));
  CHECK_THAT(parse_gguf(exact_buffer("GGML0000"), "m.gguf").status().message(), Contains("not a GGUF file"));
}

TEST_CASE("gguf: counts that lie allocate nothing") {
  for (const int64_t lie : {int64_t{1000}, int64_t{1} << 20, int64_t{1} << 40, INT64_MAX, int64_t{-1}}) {
    CAPTURE(lie);
    GgufBuilder keys, tensors;
    keys.u32("k", 1).key_count_error = lie;
    tensors.tensor("t", {1}, 0, floats({1})).tensor_count_error = lie;
    if (lie != -1) {
      CHECK(parse(keys).status().code() == StatusCode::kDataLoss);
      CHECK(parse(tensors).status().code() == StatusCode::kDataLoss);
    }
    const uint64_t count = static_cast<uint64_t>(lie);
    for (const GgufType element : {GgufType::kU8, GgufType::kF64, GgufType::kString, GgufType::kArray}) {
      CHECK(parse(GgufBuilder().raw("k", GgufType::kArray, GgufBuilder::array_head(element, count)))
                .status()
                .code() == StatusCode::kDataLoss);
    }
    std::string length;
    append(length, count);
    CHECK(parse(GgufBuilder().raw("k", GgufType::kString, length)).status().code() == StatusCode::kDataLoss);
  }
}

TEST_CASE("gguf: nesting has an end") {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += GgufBuilder::array_head(GgufType::kArray, 1);
  deep += GgufBuilder::array_head(GgufType::kU8, 0);
  CHECK_THAT(error_of(GgufBuilder().raw("k", GgufType::kArray, deep)), Contains("nests deeper"));
}

TEST_CASE("gguf: the vocabulary") {
  GgufBuilder b;
  b.str("tokenizer.ggml.model", "gpt2")
      .str("tokenizer.ggml.pre", "qwen2")
      .str("tokenizer.chat_template", "{{ x }}");
  b.strings("tokenizer.ggml.tokens", {"<s>", "a", "b", "ab"}).strings("tokenizer.ggml.merges", {"a b"});
  b.array<float>("tokenizer.ggml.scores", GgufType::kF32, {0, -1, -2, -3});
  b.array<int8_t>("tokenizer.ggml.token_type", GgufType::kI8, {3, 1, 1, 1});
  b.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 4);
  b.u32("tokenizer.ggml.padding_token_id", UINT32_MAX)
      .scalar<int32_t>("tokenizer.ggml.unknown_token_id", GgufType::kI32, -1);
  b.u32("tokenizer.ggml.seperator_token_id", 2)
      .scalar<uint8_t>("tokenizer.ggml.add_bos_token", GgufType::kBool, 0);
  b.array<uint8_t>("tokenizer.ggml.precompiled_charsmap", GgufType::kU8, {1, 0, 2});
  const auto file = parse(b);
  REQUIRE_OK(file);
  const auto r = gguf_vocab(*file);
  REQUIRE_OK(r);
  REQUIRE(r->has_value());
  const GgufVocab& v = **r;
  CHECK(v.model == "gpt2");
  CHECK(v.pre == "qwen2");
  CHECK(v.chat_template == "{{ x }}");
  CHECK(v.tokens == std::vector<std::string>{"<s>", "a", "b", "ab"});
  CHECK(v.merges == std::vector<std::string>{"a b"});
  CHECK(v.scores == std::vector<float>{0, -1, -2, -3});
  CHECK(v.types == std::vector<int32_t>{3, 1, 1, 1});
  CHECK(v.bos_id == 0u);
  CHECK_FALSE(v.eos_id.has_value());      // outside the vocabulary
  CHECK_FALSE(v.padding_id.has_value());  // 0xFFFFFFFF
  CHECK_FALSE(v.unknown_id.has_value());  // -1
  CHECK(v.separator_id == 2u);
  CHECK(v.add_bos == false);
  CHECK_FALSE(v.add_eos.has_value());
  CHECK(v.precompiled_charsmap == std::string("\1\0\2", 3));

  CHECK_FALSE(gguf_vocab(*parse(GgufBuilder())).value().has_value());
  CHECK_FALSE(gguf_vocab(*parse(GgufBuilder().str("tokenizer.ggml.model", "no_vocab"))).value().has_value());
  const auto bad = [](GgufBuilder& g) {
    return gguf_vocab(*parse(g.str("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", {"a"})))
        .status()
        .message();
  };
  CHECK_THAT(bad(GgufBuilder().array<float>("tokenizer.ggml.scores", GgufType::kF32, {1, 2})),
             Contains("scores has 2") && Contains("tokens 1"));
  CHECK_THAT(bad(GgufBuilder().u32("tokenizer.ggml.token_type", 1)), Contains("array of numbers"));
  CHECK_THAT(bad(GgufBuilder().str("tokenizer.ggml.bos_token_id", "1")), Contains("a token id"));
  CHECK_THAT(bad(GgufBuilder().u32("tokenizer.ggml.add_bos_token", 1)), Contains("a boolean"));
  CHECK_THAT(bad(GgufBuilder().str("tokenizer.ggml.precompiled_charsmap", "1")), Contains("array of bytes"));
}

TEST_CASE("gguf: split models") {
  const std::string dir = temp_dir() + "/split";
  std::filesystem::create_directories(dir);
  const auto part = [](uint16_t no, uint16_t count, const char* tensor) {
    GgufBuilder b;
    b.scalar<uint16_t>("split.no", GgufType::kU16, no).scalar<uint16_t>("split.count", GgufType::kU16, count);
    if (no == 0) b.str("general.name", "whole");
    return b.tensor(tensor, {1}, 0, floats({static_cast<float>(no)})).bytes();
  };
  write_file(dir + "/m-00001-of-00002.gguf", part(0, 2, "a"));
  write_file(dir + "/m-00002-of-00002.gguf", part(1, 2, "b"));
  for (const char* name : {"/m-00001-of-00002.gguf", "/m-00002-of-00002.gguf"}) {
    const auto file = open_gguf(dir + name);
    REQUIRE_OK(file);
    CHECK(file->get_string("general.name").value() == "whole");
    REQUIRE(file->tensors.size() == 2);
    CHECK(file->tensors.at("b").values<float>()[0] == 1.0f);
  }
  // Progress is told of all parts as one, also when memory is read; stopping it stops the load.
  for (const bool mmap : {true, false}) {
    uint64_t last = 0, total = 0;
    REQUIRE_OK(open_gguf(dir + "/m-00002-of-00002.gguf", {.mmap = mmap}, [&](auto, uint64_t d, uint64_t t) {
      CHECK(d > last);
      CHECK((total == 0 || t == total));
      last = d;
      total = t;
      return true;
    }));
    CHECK(last == total);
    CHECK(total == std::filesystem::file_size(dir + "/m-00001-of-00002.gguf") +
                       std::filesystem::file_size(dir + "/m-00002-of-00002.gguf"));
  }
  CHECK(
      open_gguf(dir + "/m-00001-of-00002.gguf", {}, [](auto, auto, auto) { return false; }).status().code() ==
      StatusCode::kCancelled);
  write_file(dir + "/other.gguf", part(0, 2, "a"));
  CHECK_THAT(open_gguf(dir + "/other.gguf").status().message(),
             Contains("must end with -00001-of-00002.gguf"));
  write_file(dir + "/m-00002-of-00002.gguf", part(1, 2, "a"));
  CHECK_THAT(open_gguf(dir + "/m-00001-of-00002.gguf").status().message(),
             Contains("'a' is also in an earlier part"));
  write_file(dir + "/m-00002-of-00002.gguf", part(0, 2, "b"));
  CHECK_THAT(open_gguf(dir + "/m-00001-of-00002.gguf").status().message(),
             Contains("does not say that it is part 2 of 2"));
  std::filesystem::remove(dir + "/m-00002-of-00002.gguf");
  write_file(temp_dir() + "/elsewhere.gguf", part(1, 2, "b"));
  std::filesystem::create_symlink("../elsewhere.gguf", dir + "/m-00002-of-00002.gguf");
  CHECK_THAT(open_gguf(dir + "/m-00001-of-00002.gguf").status().message(), Contains("elsewhere.gguf"));
  std::filesystem::remove(dir + "/m-00002-of-00002.gguf");
  CHECK(open_gguf(dir + "/m-00001-of-00002.gguf").status().code() == StatusCode::kNotFound);
}

TEST_CASE("gguf: a file of the gguf package") {
  const auto file = open_gguf(oar_test::source_path("tests/fuzz/seeds/gguf/llama"));
  REQUIRE_OK(file);
  CHECK(file->get_uint("llama.embedding_length").value() == 32u);
  REQUIRE(file->tensors.size() == 3);
  CHECK(file->tensors.at("token_embd.weight").shape() == Shape{3, 32});
  CHECK(file->tensors.at("token_embd.weight").values<float>()[95] == 1.0f);
  const Tensor& q = file->tensors.at("blk.0.attn_q.weight");
  CHECK(q.shape() == Shape{2, 32});
  CHECK(std::string(q.format().name()) == "q8_0");
  const auto vocab = gguf_vocab(*file);
  REQUIRE_OK(vocab);
  CHECK((*vocab)->tokens == std::vector<std::string>{"<unk>", "<s>", "a"});
  CHECK((*vocab)->scores == std::vector<float>{0, -1, -2});
  CHECK((*vocab)->bos_id == 1u);
  CHECK_FALSE((*vocab)->padding_id.has_value());
}

TEST_CASE("gguf: vocabularies of other programs' writers") {
  struct Case {
    std::string file;
    const char* model;
    size_t tokens, merges;
  };
  const std::string own = oar_test::source_path("tests/data/vocab/");
  std::vector<Case> cases = {Case{own + "gpt2.gguf", "gpt2", 769, 512},
                             Case{own + "spm.gguf", "llama", 512, 0},
                             Case{own + "bert.gguf", "bert", 715, 0}};
  for (const Case& c : {Case{"gpt-2", "gpt2", 50257, 50000}, Case{"llama-spm", "llama", 32000, 0},
                        Case{"bert-bge", "bert", 30522, 0}, Case{"deepseek-coder", "gpt2", 32256, 31757}}) {
    if (const auto path = oar_test::data_path(cat("tokenizers/ggml-vocab/ggml-vocab-", c.file, ".gguf")))
      cases.push_back({*path, c.model, c.tokens, c.merges});
  }
  for (const Case& c : cases) {
    CAPTURE(c.file);
    for (bool mmap : {true, false}) {
      const auto file = open_gguf(c.file, {.mmap = mmap});
      REQUIRE_OK(file);
      const auto vocab = gguf_vocab(*file);
      REQUIRE_OK(vocab);
      REQUIRE(vocab->has_value());
      CHECK((*vocab)->model == c.model);
      CHECK((*vocab)->tokens.size() == c.tokens);
      CHECK((*vocab)->merges.size() == c.merges);
      CHECK((*vocab)->types.size() == c.tokens);
    }
  }
}

}  // namespace
}  // namespace oar
