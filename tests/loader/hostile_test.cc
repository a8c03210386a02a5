// Damaged and hostile files: every truncation, random mutations, extreme numbers in every field. Whatever the
// bytes, a parser gives a tensor table whose every byte can be read, or an error with a message; it does not
// crash, and it does not allocate much more than the file's own size.
#include <array>
#include <atomic>
#include <random>

#include "engine/loader/gguf.h"
#include "engine/loader/gguf_model.h"
#include "engine/loader/llama2c.h"
#include "engine/loader/safetensors.h"
#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace oar_test {
extern std::atomic<uint64_t> allocated_bytes;  // ever, through operator new (counting_new.cc)
}

namespace oar {
namespace {

using oar_test::append;
using oar_test::exact_buffer;
using oar_test::floats;
using oar_test::GgufBuilder;
using oar_test::safetensors_bytes;
using oar_test::touch;

// True when the bytes parsed.
using Parser = bool (*)(const Buffer&);

bool accept(const Status& s) {
  if (s.ok()) return true;
  REQUIRE_FALSE(s.message().empty());
  REQUIRE(s.message().size() < 2000);  // names from the file are cut
  return false;
}

bool parse_safetensors_bytes(const Buffer& bytes) {
  const auto r = parse_safetensors(bytes, "m");
  if (!accept(r.status())) return false;
  for (const auto& [name, t] : r->tensors) touch(t);
  return true;
}

bool parse_gguf_bytes(const Buffer& bytes) {
  const auto r = parse_gguf(bytes, "m");
  if (!accept(r.status())) return false;
  for (const auto& [name, t] : r->tensors) {
    touch(t);
    hugging_face_name("llama", name);
  }
  accept(gguf_config(*r).status());
  accept(gguf_vocab(*r).status());
  return true;
}

bool parse_llama2c_bytes(const Buffer& bytes) {
  const auto r = parse_llama2c(bytes, "m");
  if (!accept(r.status())) return false;
  for (const auto& [name, t] : r->tensors) touch(t);
  return true;
}

// Parses, and checks that the work stayed in proportion: all allocations together at most `factor` bytes per
// byte of file, and a constant.
bool parse_bounded(Parser parser, std::string_view bytes, uint64_t factor = 100) {
  const Buffer buffer = exact_buffer(bytes);
  const uint64_t before = oar_test::allocated_bytes;
  const bool ok = parser(buffer);
  const uint64_t used = oar_test::allocated_bytes - before;
  CAPTURE(used, bytes.size());
  if (used > factor * bytes.size() + 65536) FAIL("a parser allocated too much");
  return ok;
}

// A file with a bit of everything.
std::string tiny_gguf() {
  GgufBuilder b;
  b.str("general.architecture", "llama").u32("general.alignment", 32).u32("llama.embedding_length", 32);
  b.u32("llama.attention.head_count", 2)
      .f32("llama.rope.freq_base", 1e4f)
      .str("llama.rope.scaling.type", "linear");
  b.f32("llama.rope.scaling.factor", 2)
      .array<uint32_t>("llama.feed_forward_length", GgufType::kU32, {64, 64});
  b.str("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", {"<s>", "a", "bc"});
  b.array<float>("tokenizer.ggml.scores", GgufType::kF32, {0, 1, 2});
  b.array<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, {3, 1, 1})
      .u32("tokenizer.ggml.bos_token_id", 0);
  b.tensor("token_embd.weight", {32, 3}, 8, std::string(3 * 34, '\x11'));
  b.tensor("blk.0.attn_norm.weight", {32}, 0, std::string(128, '\x22'));
  b.tensor("blk.0.ffn_down.weight", {256, 1}, 14, std::string(210, '\x33'));
  b.tensor("rope_freqs.weight", {2}, 0, floats({1, 2}));
  return b.bytes();
}

std::string tiny_safetensors() {
  return safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b.weight":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"c":{"dtype":"I64","shape":[],"data_offsets":[22,30]}})",
      std::string(30, '\x11'));
}

std::string tiny_llama2c() {
  std::string out;
  for (int32_t v : {4, 6, 2, 2, 1, 3, 5}) append(out, v);
  out.resize(out.size() + 4 * (3 * 4 + 2 * (4 + 16 + 8 + 8 + 16 + 4 + 3 * 24) + 4 + 2 * 5), '\0');
  return out;
}

struct Kind {
  const char* name;
  Parser parser;
  std::string (*make)();
};
const std::array<Kind, 3> kKinds = {Kind{"safetensors", &parse_safetensors_bytes, &tiny_safetensors},
                                    Kind{"gguf", &parse_gguf_bytes, &tiny_gguf},
                                    Kind{"llama2c", &parse_llama2c_bytes, &tiny_llama2c}};

TEST_CASE("hostile: every truncation of a small file is an error") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.name);
    const std::string bytes = kind.make();
    REQUIRE(parse_bounded(kind.parser, bytes));
    for (size_t n = 0; n < bytes.size(); ++n) {
      CAPTURE(n);
      REQUIRE_FALSE(parse_bounded(kind.parser, std::string_view(bytes).substr(0, n)));
    }
  }
}

TEST_CASE("hostile: 20000 random mutations of each kind") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.name);
    const std::string original = kind.make();
    std::mt19937_64 rng(99);
    int parsed = 0;
    for (int i = 0; i < 20000; ++i) {
      CAPTURE(i);
      std::string bytes = original;
      for (uint64_t edits = 1 + rng() % 3; edits > 0 && !bytes.empty(); --edits) {
        const size_t at = rng() % bytes.size();
        switch (rng() % 5) {
          case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng() % 8)); break;
          case 1: bytes[at] = static_cast<char>(rng()); break;
          case 2: bytes.erase(at, 1 + rng() % 8); break;
          case 3: bytes.insert(at, 1 + rng() % 8, static_cast<char>(rng())); break;
          default: {  // a number as attackers like them, at any byte
            static constexpr uint64_t kNumbers[] = {
                0,          1,         0x7f,       0xff,       0x7fffffff,      0x80000000,
                0xffffffff, INT64_MAX, 1ull << 63, UINT64_MAX, UINT64_MAX - 31, 1ull << 61,
                1ull << 32};
            const uint64_t v = kNumbers[rng() % std::size(kNumbers)];
            const size_t n = std::min<size_t>(rng() % 2 ? 4 : 8, bytes.size() - at);
            memcpy(bytes.data() + at, &v, n);
          }
        }
      }
      parsed += parse_bounded(kind.parser, bytes);
    }
    CHECK(parsed > 0);      // flips in tensor data are not the parser's business
    CHECK(parsed < 20000);  // and the rest must have been noticed
  }
}

TEST_CASE("hostile: extreme numbers in every 4- and 8-byte field") {
  const uint64_t kNumbers[] = {
      0,         1, INT64_MAX, 1ull << 63, (1ull << 63) + 1, (1ull << 63) - 1, UINT64_MAX, UINT64_MAX - 1,
      1ull << 32};
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.name);
    const std::string original = kind.make();
    for (size_t at = 0; at < std::min<size_t>(original.size(), 1200); ++at) {
      for (uint64_t v : kNumbers) {
        for (size_t width : {size_t{4}, size_t{8}}) {
          std::string bytes = original;
          memcpy(bytes.data() + at, &v, std::min(width, bytes.size() - at));
          parse_bounded(kind.parser, bytes);
        }
      }
    }
  }
}

TEST_CASE("hostile: safetensors sizes around 2^63") {
  for (const char* n :
       {"9223372036854775806", "9223372036854775807", "9223372036854775808", "9223372036854775809",
        "18446744073709551615", "18446744073709551616", "-1", "-9223372036854775808", "1e400", "1e18"}) {
    CAPTURE(n);
    const auto header = [&](const char* shape, const char* begin, const char* end) {
      return safetensors_bytes(std::string(R"({"x":{"dtype":"F32","shape":[)") + shape +
                                   R"(],"data_offsets":[)" + begin + "," + end + "]}}",
                               floats({1}));
    };
    CHECK_FALSE(parse_bounded(&parse_safetensors_bytes, header(n, "0", "4")));
    CHECK_FALSE(parse_bounded(&parse_safetensors_bytes, header("1", n, "4")));
    CHECK_FALSE(parse_bounded(&parse_safetensors_bytes, header("1", "0", n)));
    CHECK_FALSE(parse_bounded(&parse_safetensors_bytes, header("0,0", n, n)));
  }
}

TEST_CASE("hostile: a header of brackets, of keys, of digits, of names") {
  const auto header = [](std::string h) {
    return parse_bounded(&parse_safetensors_bytes, safetensors_bytes(h, ""));
  };
  CHECK_FALSE(header(std::string(1000000, '[')));
  std::string objects;
  for (int i = 0; i < 200000; ++i) objects += "{\"a\":";
  CHECK_FALSE(header(objects));
  CHECK_FALSE(header("{\"x\":{\"shape\":[" + std::string(1000000, '1') + "]}}"));
  std::string numbers = "{\"x\":{\"shape\":[1";
  for (int i = 0; i < 500000; ++i) numbers += ",1";
  CHECK_FALSE(header(numbers + "]}}"));
  CHECK_FALSE(header("{\"" + std::string(1000000, 'n') + "\":{}}"));
  CHECK_FALSE(header("{\"\xff\xfe\":{}}"));
  std::string empty_entries = "{\"k\":{}";
  for (int i = 0; i < 50000; ++i) empty_entries += cat(",\"", i, "\":{}");
  CHECK_FALSE(header(empty_entries + "}"));
}

TEST_CASE("hostile: many tensors stay fast and in bounds") {
  constexpr int kTensors = 50000;
  std::string header = "{", data(static_cast<size_t>(kTensors), '\0');
  for (int i = 0; i < kTensors; ++i) {
    header += cat(i == 0 ? "" : ",", "\"t", i, R"(":{"dtype":"U8","shape":[1],"data_offsets":[)", i, ",",
                  i + 1, "]}");
  }
  CHECK(parse_bounded(&parse_safetensors_bytes, safetensors_bytes(header + "}", data)));
  // The same with all of them on the same byte: still n log n.
  header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += cat(i == 0 ? "" : ",", "\"t", i, R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})");
  }
  CHECK_FALSE(parse_bounded(&parse_safetensors_bytes, safetensors_bytes(header + "}", "x")));

  GgufBuilder b;
  b.alignment = 1;
  b.u32("general.alignment", 1);
  for (int i = 0; i < kTensors; ++i) b.tensor(cat("t", i), {1}, 24, "x");
  CHECK(parse_bounded(&parse_gguf_bytes, b.bytes()));
}

TEST_CASE("hostile: whole models cut at every 4 KB, and with damaged headers") {
  struct Real {
    const char *own, *published;
    Parser parser;
  };
  for (const Real& real :
       {Real{"tales/tales.gguf", "llm/stories260K/stories260K.gguf", &parse_gguf_bytes},
        Real{"tales/tales.bin", "llm/stories260K/stories260K.bin", &parse_llama2c_bytes},
        Real{"../loader/quantized/ct_fp8.safetensors", "llm/silero_safetensors/silero_vad_16k.safetensors",
             &parse_safetensors_bytes}}) {
    for (const std::string& path : oar_test::files_of_kind(real.own, real.published)) {
      CAPTURE(path);
      const std::string bytes = oar_test::read_file(path);
      REQUIRE(parse_bounded(real.parser, bytes));
      for (size_t n = 0; n < bytes.size(); n += 4096) {
        CAPTURE(n);
        REQUIRE_FALSE(parse_bounded(real.parser, std::string_view(bytes).substr(0, n)));
      }
      REQUIRE_FALSE(parse_bounded(real.parser, std::string_view(bytes).substr(0, bytes.size() - 1)));
      std::mt19937_64 rng(5);
      for (int i = 0; i < 100; ++i) {
        std::string damaged = bytes;
        for (int flips = 0; flips < 4; ++flips) {
          const size_t at = rng() % 1200;
          damaged[at] = static_cast<char>(damaged[at] ^ (1 << rng() % 8));
        }
        parse_bounded(real.parser, damaged);
      }
    }
  }
}

TEST_CASE("hostile: a vocabulary cut at every 4 KB") {
  std::vector<std::string> paths;
  for (const char* own : {"gpt2", "spm", "bert"})
    paths.push_back(oar_test::source_path(cat("tests/data/vocab/", own, ".gguf")));
  for (const char* name : {"gpt-2", "llama-spm", "bert-bge", "deepseek-coder"}) {
    if (const auto path = oar_test::data_path(cat("tokenizers/ggml-vocab/ggml-vocab-", name, ".gguf")))
      paths.push_back(*path);
  }
  for (const std::string& path : paths) {
    const std::string bytes = oar_test::read_file(path);
    REQUIRE(parse_bounded(&parse_gguf_bytes, bytes));
    for (size_t n = 0; n < bytes.size(); n += 4096) {
      CAPTURE(path, n);
      REQUIRE_FALSE(parse_bounded(&parse_gguf_bytes, std::string_view(bytes).substr(0, n)));
    }
  }
}

}  // namespace
}  // namespace oar
