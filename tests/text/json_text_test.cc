// Strings in JSON: whatever bytes come, a parser reads them back, and in pieces they are written as in whole.
#include "engine/text/json_text.h"

#include <random>

#include "engine/base/json.h"
#include "engine/text/utf8.h"
#include "tests/support/catch.h"

using namespace oar;

TEST_CASE("any bytes as a JSON string are read back, ill-formed ones as U+FFFD", "[json]") {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (unsigned left = random() % 40; left > 0; --left) {
      if (random() % 2 == 0) append_utf8(text, static_cast<char32_t>(random() % 0xD800));
      else text += static_cast<char>(random() % (round % 2 == 0 ? 128 : 256));
    }
    std::string written;
    append_json_string(written, text);
    const Result<json::value> read = parse_json(written, "text");
    REQUIRE(read.ok());
    CHECK(read->as_string() == repair_utf8(text));

    std::string whole, pieces;
    append_json_escaped(whole, text);
    for (const char c : text) append_json_escaped(pieces, {&c, 1});
    CHECK(pieces == whole);
  }
}

TEST_CASE("control characters have the short escapes of JSON where there are some", "[json]") {
  std::string out;
  append_json_string(out, std::string_view("\"\\\n\r\t\b\x1f\0/", 9));
  CHECK(out == R"("\"\\\n\r\t\u0008\u001f\u0000/")");
}
