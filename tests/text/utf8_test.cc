// UTF-8 decoding: well-formed boundaries, and ill-formed input replaced by maximal subparts.
#include "engine/text/utf8.h"

#include "tests/support/catch.h"

using namespace oar;

TEST_CASE("every scalar value survives a round trip and no other encoding is accepted") {
  for (char32_t c = 0; c <= kMaxCodePoint; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const std::string s = to_utf8(c);
    const CodePoint d = decode_utf8(s, 0);
    if (!(d.valid && d.value == c && d.length == s.size() && utf8_length(s[0]) == s.size()))
      FAIL("U+" << std::hex << static_cast<uint32_t>(c));
  }
  for (const char* bad : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\x80", "\xFF", "\xF5\x80\x80\x80"})
    CHECK_FALSE(is_valid_utf8(bad));
}

TEST_CASE("ill-formed input becomes one replacement per maximal subpart") {
  const std::string r = "\xEF\xBF\xBD";
  CHECK(repair_utf8("a\xF0\x9F\x98z") == "a" + r + "z");  // truncated four-byte sequence: one
  CHECK(repair_utf8("\xED\xA0\x80") == r + r + r);        // surrogate: each byte
  CHECK(repair_utf8("\xE2\x82") == r);                    // end of text inside a sequence
  CHECK(repair_utf8("\xE2\xC3\xA9") == r + "\xC3\xA9");   // the next lead byte is not swallowed
  CHECK(repair_utf8("\xF4\x90\x80\x80") == r + r + r + r);
}

TEST_CASE("a probe tells incomplete from invalid") {
  CHECK(probe_utf8("\xF0\x9F\x98", 0).kind == Utf8Prefix::kIncomplete);
  CHECK(probe_utf8("\xF0\x9F\x98", 0).length == 3);
  CHECK(probe_utf8("\xF0\x8F", 0).kind == Utf8Prefix::kInvalid);
  CHECK(probe_utf8("\xE2\x82\xAC", 0).kind == Utf8Prefix::kComplete);
}
