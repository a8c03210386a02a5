// Damaged and hostile Paddle files: cut at every byte, with any bit flipped, with sizes that overflow. The
// answer is an error that says what and where, never a crash, a hang or memory that the file does not account
// for. (Sanitizer builds make this a check of every access.)
#include <random>

#include "engine/import/paddle_program.h"
#include "tests/import/paddle_builders.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar::paddle;
namespace pd = oar_test::pd;

namespace {

// Copied, so that reading past the end is outside the allocation.
Result<std::vector<Tensor>> read_copy(const Program& p, const std::string& bytes) {
  OAR_ASSIGN(Buffer buffer, Buffer::allocate(bytes.size()));
  if (!bytes.empty()) memcpy(buffer.mutable_data(), bytes.data(), bytes.size());
  return read_parameters(p, buffer, "cut.pdiparams");
}

std::string small_pir() {
  return pd::pir(pd::pir_parameter(1, "w", "[2,3]") + "," + pd::pir_data(2, "x", "[-1,2]") + "," +
                 pd::pir_op("1.matmul", "{\"%\":2},{\"%\":1}", pd::pir_out(3, "[-1,3]"),
                            pd::pir_attr("transpose_x", "0.a_bool", "\"D\":false")) +
                 "," + pd::pir_fetch(3, 4, "y"));
}

bool mentions(const Status& s, std::string_view word) { return s.message().find(word) != std::string::npos; }

void survives_flips(const std::string& whole, int rounds) {
  std::mt19937 random(7);
  for (int k = 0; k < rounds; ++k) {
    std::string bytes = whole;
    const int flips = 1 + static_cast<int>(random() % 3);
    for (int f = 0; f < flips; ++f) bytes[random() % bytes.size()] ^= static_cast<char>(1u << (random() % 8));
    const auto p = parse_program(bytes, "flipped");
    if (!p.ok()) {
      CHECK_FALSE(p.status().message().empty());
      continue;
    }
    for (const Block& b : p->blocks) {
      for (const Op& op : b.ops) {
        for (const Slot& s : op.inputs) {
          for (ValueIndex v : s.values) REQUIRE(static_cast<size_t>(v) < p->values.size());
        }
        for (int32_t block : op.blocks) REQUIRE(static_cast<size_t>(block) < p->blocks.size());
      }
    }
  }
}

}  // namespace

TEST_CASE("programs cut at every byte never read as whole by mistake") {
  const std::string desc = pd::small_program();
  // Cut between two fields of the outermost message it is a shorter program: only that may pass.
  const size_t block_end = desc.size() - pd::version(2002002).size();
  for (size_t n = 0; n < desc.size(); ++n) {
    INFO(n);
    CHECK(parse_program(std::string(desc.data(), n), "cut").ok() == (n == block_end));
  }
  const std::string json = small_pir();
  REQUIRE(parse_program(json, "whole").ok());
  for (size_t n = 0; n < json.size(); ++n) {
    INFO(n);
    CHECK_FALSE(parse_program(std::string(json.data(), n), "cut").ok());
  }
}

TEST_CASE("a saved program and its parameters cut at every byte") {
  const auto programs =
      oar_test::files_of_kind("ocr/conv_bn/inference.pdmodel", "paddle/fuse_pass/conv_bn.pdmodel");
  const auto parameters =
      oar_test::files_of_kind("ocr/conv_bn/inference.pdiparams", "paddle/fuse_pass/conv_bn.pdiparams");
  REQUIRE(programs.size() == parameters.size());
  for (size_t k = 0; k < programs.size(); ++k) {
    INFO(programs[k]);
    const std::string desc = oar_test::read_file(programs[k]), records = oar_test::read_file(parameters[k]);
    const auto whole = parse_program(desc, "whole");
    REQUIRE(whole.ok());
    int passed = 0;
    for (size_t n = 0; n < desc.size(); ++n) passed += parse_program(std::string(desc.data(), n), "cut").ok();
    CHECK(passed <= 2);  // at most the two borders between fields of the outermost message
    REQUIRE(read_copy(*whole, records).ok());
    // Headers at every byte, the long stretches of values at every 97th.
    for (size_t n = 0; n < records.size(); n += n % 9000 < 600 || n > records.size() - 400 ? 1 : 97) {
      const auto r = read_copy(*whole, records.substr(0, n));
      INFO(n);
      REQUIRE_FALSE(r.ok());
      CHECK(mentions(r.status(), "byte"));
    }
    CHECK(mentions(read_copy(*whole, records + "x").status(), "another program"));
    survives_flips(desc, 3000);
  }
}

TEST_CASE("flipped bits") {
  survives_flips(pd::small_program(), 20000);
  survives_flips(small_pir(), 20000);
}

TEST_CASE("parameters that do not fit their program are named") {
  const auto p = parse_program(pd::small_program(), "small");
  REQUIRE(p.ok());
  const std::string b = pd::record(5, {3}, pd::floats({1, 2, 3}));
  const auto error = [&](const std::string& bytes) { return read_copy(*p, bytes).status(); };
  CHECK(mentions(error(b + pd::record(5, {3, 2}, pd::floats({1, 2, 3, 4, 5, 6}))), "w"));
  CHECK(mentions(error(b + pd::record(3, {2, 3}, std::string(48, '\0'))), "int64[2, 3]"));
  CHECK(mentions(error(b + pd::record(5, {int64_t{1} << 62, 8}, "")), "another program"));
  CHECK(mentions(error(b + pd::record(23, {2, 3}, "")), "23"));
  std::string lod = b;
  lod[4] = '\xff';  // 255 levels in a file that has no room for them
  CHECK(mentions(error(lod), "LoD"));
  std::string versioned = b;
  versioned[0] = 1;
  CHECK(mentions(error(versioned), "version 1"));
}

TEST_CASE("a parameter without a data type is refused, also where the program declares none") {
  const auto p = parse_program(pd::small_program(), "small");
  REQUIRE(p.ok());
  Program untyped = *p;
  for (Value& v : untyped.values) v.type.dtype.clear();
  const std::string desc = pd::num(2, 3);  // dims alone
  const std::string record = pd::raw(uint32_t{0}) + pd::raw(uint64_t{0}) + pd::raw(uint32_t{0}) +
                             pd::raw(static_cast<int32_t>(desc.size())) + desc + std::string(12, '\0');
  CHECK(mentions(read_copy(*p, record).status(), "no data type"));
  CHECK(mentions(read_copy(untyped, record).status(), "no data type"));
}

TEST_CASE("a program that declares overflowing sizes fails on its parameters, not in arithmetic") {
  const auto p =
      parse_program(pd::block(0, -1, pd::var("w", {int64_t{1} << 40, int64_t{1} << 40}, true)), "huge");
  REQUIRE(p.ok());
  CHECK_FALSE(read_copy(*p, pd::record(5, {int64_t{1} << 40, int64_t{1} << 40}, "")).ok());
  const auto negative = parse_program(pd::block(0, -1, pd::var("w", {-1}, true)), "negative");
  REQUIRE(negative.ok());
  CHECK_FALSE(read_copy(*negative, pd::record(5, {-1}, "")).ok());
  const auto deep = parse_program(pd::block(0, -1, pd::var("w", std::vector<int64_t>(9, 1), true)), "deep");
  REQUIRE(deep.ok());
  CHECK(mentions(read_copy(*deep, pd::record(5, std::vector<int64_t>(9, 1), pd::floats({1}))).status(),
                 "9 axes"));
}

TEST_CASE("errors name op, attribute, version and place") {
  const auto error = [](const std::string& bytes) { return parse_program(bytes, "bad").status(); };
  CHECK(mentions(error(pd::pir("", 5)), "version 5"));
  CHECK(mentions(error(pd::pir("", 0)), "version 0"));
  CHECK(mentions(error(pd::small_program() + pd::version(9'000'000)), "9000000"));
  CHECK(mentions(error(pd::pir(pd::pir_op("1.relu", "{\"%\":9}", pd::pir_out(1, "[1]")))), "): operand %9"));
  CHECK(mentions(error(pd::pir(pd::pir_op("1.full", "", pd::pir_out(1, "[1]"),
                                          pd::pir_attr("value", "0.a_f64", "\"VD\":\"many\"")))),
                 "value"));
  CHECK(mentions(error(pd::pir(pd::pir_op("1.full", "", pd::pir_out(1, "[1]"),
                                          pd::pir_attr("value", "0.a_f16", "\"D\":1")))),
                 "a_f16"));
  CHECK(mentions(error(pd::pir(pd::pir_data(1, "x", "[1]") + "," + pd::pir_data(1, "y", "[1]"))),
                 "%1 is defined twice"));
  CHECK(mentions(error(pd::block(0, -1, pd::op("relu", pd::slot(1, "X", {"ghost"})))), "ghost"));
  CHECK(mentions(error(pd::block(0, -1, pd::op("relu", pd::attr("a", 42, "")))), "type 42"));
  CHECK(mentions(error("{\"base_code\":{\"magic\":\"onnx\"}}"), "magic"));
  CHECK_FALSE(error("").ok());
  CHECK_FALSE(error("hello").ok());
}

TEST_CASE("regions nested without end are refused") {
  std::string ops = pd::pir_op("2.yield", "", "");
  for (int k = 0; k < 200; ++k) {
    ops = pd::pir_op("1.while", "", "", "",
                     ",\"regions\":[{\"blocks\":[{\"args\":[],\"ops\":[" + ops + "]}]}]");
  }
  CHECK_FALSE(parse_program(pd::pir(ops), "deep").ok());
}
