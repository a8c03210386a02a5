// safetensors: good files, each way to be wrong with the message it deserves, shards, and whole models.
#include "engine/loader/safetensors.h"

#include <cmath>
#include <filesystem>

#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace oar {
namespace {

using oar_test::Contains;
using oar_test::exact_buffer;
using oar_test::floats;
using oar_test::safetensors_bytes;
using oar_test::temp_dir;
using oar_test::write_file;

Result<Safetensors> parse(std::string_view header, std::string_view data) {
  return parse_safetensors(exact_buffer(safetensors_bytes(header, data)), "m.safetensors");
}

std::string error_of(std::string_view header, std::string_view data) {
  const auto r = parse(header, data);
  REQUIRE_FALSE(r.ok());
  CHECK_THAT(r.status().message(), Contains("m.safetensors"));
  return r.status().message();
}

TEST_CASE("safetensors: tensors, metadata, trailing spaces") {
  const auto r = parse(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
      R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"I32"},"none":{"dtype":"F16","shape":[0,5],"data_offsets":[12,12]}}   )",
      std::string("\x05\0\0\0", 4) + floats({1.5f, NAN}));
  REQUIRE_OK(r);
  REQUIRE(r->tensors.size() == 3);
  CHECK(r->metadata.at("format") == "pt");
  CHECK(r->tensors.at("a").values<int32_t>()[0] == 5);
  CHECK(r->tensors.at("b").shape() == Shape{2, 1});
  CHECK(r->tensors.at("b").values<float>()[0] == 1.5f);
  CHECK(std::isnan(r->tensors.at("b").values<float>()[1]));  // NaN weights load; the engine reports them
  CHECK(r->tensors.at("none").numel() == 0);
}

TEST_CASE("safetensors: an empty directory is legal") {
  const auto r = parse("{}", "");
  REQUIRE_OK(r);
  CHECK(r->tensors.empty());
}

TEST_CASE("safetensors: every dtype") {
  struct Case {
    const char* name;
    const char* format;
    int bytes;
  };
  for (const Case& c :
       {Case{"F64", "f64", 8}, Case{"F32", "f32", 4}, Case{"F16", "f16", 2}, Case{"BF16", "bf16", 2},
        Case{"F8_E4M3", "e4m3", 1}, Case{"F8_E5M2", "e5m2", 1}, Case{"I64", "i64", 8}, Case{"I32", "i32", 4},
        Case{"I16", "i16", 2}, Case{"I8", "i8", 1}, Case{"U64", "u64", 8}, Case{"U32", "u32", 4},
        Case{"U16", "u16", 2}, Case{"U8", "u8", 1}, Case{"BOOL", "bool", 1}}) {
    CAPTURE(c.name);
    const auto r =
        parse(cat(R"({"t":{"dtype":")", c.name, R"(","shape":[3],"data_offsets":[0,)", 3 * c.bytes, "]}}"),
              std::string(static_cast<size_t>(3 * c.bytes), '\0'));
    REQUIRE_OK(r);
    CHECK(std::string(r->tensors.at("t").format().name()) == c.format);
  }
}

TEST_CASE("safetensors: misaligned tensors are copied to aligned memory") {
  // A header of odd length puts every f32 on an odd address.
  for (int pad = 0; pad < 4; ++pad) {
    const auto r = parse(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})" +
                             std::string(static_cast<size_t>(pad), ' '),
                         floats({2.5f}));
    REQUIRE_OK(r);
    const Tensor& t = r->tensors.at("t");
    CHECK(reinterpret_cast<uintptr_t>(t.data()) % 4 == 0);
    CHECK(t.values<float>()[0] == 2.5f);
  }
}

TEST_CASE("safetensors: each fault is named") {
  const std::string f4(4, '\0'), f8(8, '\0');
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", f4),
             Contains("'x'") && Contains("hold 4 bytes") && Contains("needs 8"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", f4),
             Contains("'x'") && Contains("[0, 8]") && Contains("outside the 4 bytes"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", f4), Contains("[4, 0]"));
  CHECK_THAT(
      error_of(
          R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})",
          f8),
      Contains("'x' [0, 4)") && Contains("'y' [3, 7)") && Contains("overlap"));
  CHECK_THAT(
      error_of(
          R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
          f4),
      Contains("overlap"));
  CHECK_THAT(
      error_of(
          R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
          f8),
      Contains("'x' appears twice"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", f8),
             Contains("belong to no tensor"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", f8),
             Contains("end at data byte 4"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}})", f4),
             Contains("'F4'") && Contains("supported: F64"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", f4),
             Contains("negative"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", f4),
             Contains("integers"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", f8),
             Contains("more than 2"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", f4),
             Contains("two numbers"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", f4),
             Contains("more than 8"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1]}})", f4),
             Contains("must have dtype, shape and data_offsets"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", f4),
             Contains("'dtype'"));
  CHECK_THAT(error_of(R"({"x":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", f4), Contains("a number"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", f4),
             Contains("an array"));
  CHECK_THAT(error_of(R"({"x":{"extra":1}})", f4), Contains("'extra'"));
  CHECK_THAT(error_of(R"({"x":3})", f4), Contains("must be an object"));
  CHECK_THAT(error_of(R"([1])", ""), Contains("JSON object"));
  CHECK_THAT(error_of(R"({"x":)", ""), Contains("not valid JSON"));
  CHECK_THAT(error_of(R"({} {})", ""), Contains("extra"));
  CHECK_THAT(error_of("", ""), Contains("not valid JSON"));
  CHECK_THAT(error_of(R"({"__metadata__":{"a":1}})", ""), Contains("must be a string"));
  CHECK_THAT(error_of(R"({"__metadata__":{},"__metadata__":{}})", ""), Contains("twice"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", f4),
             Contains("63 bits"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
             Contains("overflow"));
  CHECK_THAT(error_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", f4),
             Contains("18446744073709551615"));
}

TEST_CASE("safetensors: header lengths that lie") {
  for (const uint64_t size :
       {uint64_t{3}, uint64_t{99999999}, uint64_t{100000001}, uint64_t{1} << 63, UINT64_MAX}) {
    std::string bytes;
    oar_test::append(bytes, size);
    bytes += "{}";
    const auto r = parse_safetensors(exact_buffer(bytes), "m.safetensors");
    REQUIRE_FALSE(r.ok());
    CHECK(r.status().code() == StatusCode::kDataLoss);
  }
  CHECK_FALSE(parse_safetensors(exact_buffer(""), "m").ok());
  CHECK_FALSE(parse_safetensors(exact_buffer("1234567"), "m").ok());
}

TEST_CASE("safetensors: names in messages are cut and cleaned") {
  const std::string message = error_of(cat(R"({")", std::string(5000, 'n'), "\\u0007\":3}"), "");
  CHECK(message.size() < 300);
  CHECK_THAT(error_of("{\"a\\u0007b\":3}", ""), Contains("'a?b'"));
}

TEST_CASE("safetensors: shards") {
  const std::string dir = temp_dir() + "/shards";
  std::filesystem::create_directories(dir);
  const auto one = [](const char* name) {
    return safetensors_bytes(cat(R"({")", name, R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
                             floats({1.0f}));
  };
  const auto open = [&](std::string_view index) {
    write_file(dir + "/model.safetensors.index.json", index);
    return open_sharded_safetensors(dir + "/model.safetensors.index.json");
  };
  write_file(dir + "/1.safetensors", one("a"));
  write_file(dir + "/2.safetensors", one("b"));
  const auto both =
      open(R"({"metadata":{"total_size":8},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  REQUIRE_OK(both);
  CHECK(both->size() == 2);
  CHECK(both->at("b").values<float>()[0] == 1.0f);

  CHECK_THAT(open(R"({"weight_map":{"a":"3.safetensors"}})").status().message(),
             Contains("3.safetensors") && Contains("download"));
  CHECK_THAT(open(R"({"weight_map":{"z":"1.safetensors"}})").status().message(),
             Contains("'z'") && Contains("1.safetensors"));
  for (const char* name : {"../1.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\\\b"}) {
    CAPTURE(name);
    CHECK_THAT(open(cat(R"({"weight_map":{"a":")", name, "\"}}")).status().message(),
               Contains("without any path"));
  }
  CHECK_THAT(open(R"({"weight_map":{"a":"1\u0000"}})").status().message(), Contains("without any path"));
  CHECK_THAT(open(R"({"weight_map":{"a":7}})").status().message(), Contains("without any path"));
  CHECK_THAT(open(R"({"weight_map":[]})").status().message(), Contains("weight_map"));
  CHECK_THAT(open("[]").status().message(), Contains("weight_map"));
  CHECK_THAT(open("{").status().message(), Contains("not valid JSON"));

  // A shard is a file of the model's, not a link out of its folder.
  write_file(temp_dir() + "/elsewhere.safetensors", one("a"));
  std::filesystem::create_symlink("../elsewhere.safetensors", dir + "/link.safetensors");
  CHECK_THAT(open(R"({"weight_map":{"a":"link.safetensors"}})").status().message(),
             Contains("link.safetensors") && Contains("elsewhere") && Contains("copy it there"));

  // Progress covers all shards; stopping it stops the load.
  uint64_t last = 0, total = 0;
  write_file(dir + "/model.safetensors.index.json",
             R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  REQUIRE_OK(
      open_sharded_safetensors(dir + "/model.safetensors.index.json", {}, [&](auto, uint64_t d, uint64_t t) {
        CHECK(d > last);
        last = d;
        total = t;
        return true;
      }));
  CHECK(last == total);
  CHECK(open_sharded_safetensors(dir + "/model.safetensors.index.json", {},
                                 [](auto, auto, auto) { return false; })
            .status()
            .code() == StatusCode::kCancelled);
}

// Sum of all magnitudes.
double magnitude(const Safetensors& file) {
  double sum = 0;
  for (const auto& [name, t] : file.tensors) {
    const Tensor values = to_f32(t).value();
    for (float v : values.values<float>()) sum += std::fabs(v);
  }
  return sum;
}

TEST_CASE("safetensors: whole models as the safetensors package reads them") {
  for (bool mmap : {true, false}) {
    CAPTURE(mmap);
    const auto r = open_safetensors(oar_test::source_path("configs/demo/model.safetensors"), {.mmap = mmap});
    REQUIRE_OK(r);
    REQUIRE(r->tensors.size() == 56);
    const Tensor& down = r->tensors.at("model.layers.3.mlp.down_proj.weight");
    CHECK(down.shape() == Shape{256, 768});
    CHECK(to_f32(down).value().values<float>()[3 * 768 + 7] == -0.0306396484375f);
    CHECK(to_f32(r->tensors.at("model.norm.weight")).value().values<float>()[5] == 1.546875f);
    CHECK(magnitude(*r) == Approx(223898.91411594482));
  }
  const auto path = oar_test::data_path("llm/silero_safetensors/silero_vad_16k.safetensors");
  for (bool mmap : {true, false}) {
    if (!path) break;
    const auto r = open_safetensors(*path, {.mmap = mmap});
    REQUIRE_OK(r);
    REQUIRE(r->tensors.size() == 15);
    CHECK(r->tensors.at("stft_conv.weight").shape() == Shape{258, 1, 256});
    CHECK(r->tensors.at("lstm_cell.weight_hh").shape() == Shape{512, 128});
    CHECK(r->tensors.at("lstm_cell.weight_hh").values<float>()[3 * 128 + 7] == 0.086245164f);
    CHECK(r->tensors.at("conv1.bias").values<float>()[5] == 0.07376304268836975f);
    CHECK(magnitude(*r) == Approx(63151.2629394306));
  }
}

}  // namespace
}  // namespace oar
