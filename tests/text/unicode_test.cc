// The generated Unicode tables against the database's own conformance files, where the distribution has them.
#include "engine/text/unicode/unicode.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "engine/text/code_point_set.h"
#include "engine/text/unicode/normalize.h"
#include "engine/text/utf8.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

std::string utf8_of(std::string_view hex_code_points) {
  std::string out;
  std::istringstream in{std::string(hex_code_points)};
  for (std::string token; in >> token;)
    append_utf8(out, static_cast<char32_t>(std::stoul(token, nullptr, 16)));
  return out;
}

}  // namespace

TEST_CASE("categories, case and binary properties of well-known code points") {
  CHECK(unicode_version() == "15.0.0");
  CHECK(general_category(U'a') == GeneralCategory::kLl);
  CHECK(general_category(0x1C5) == GeneralCategory::kLt);
  CHECK(general_category(0x378) == GeneralCategory::kCn);
  CHECK(general_category(0x20AC) == GeneralCategory::kSc);
  CHECK(general_category(0xE000) == GeneralCategory::kCo);
  CHECK(general_category(0x110000) == GeneralCategory::kCn);
  CHECK(in_categories(0x0663, kNumbers));
  CHECK(is_white_space(0x3000));
  CHECK_FALSE(is_white_space(0x200B));
  CHECK(is_word(0x203F));
  CHECK_FALSE(is_word(U'-'));
  CHECK(simple_lowercase(0x1E9E) == 0xDF);
  CHECK(simple_fold(0x17F) == U's');
  CHECK(is_bert_punctuation(U'$'));
  CHECK_FALSE(is_bert_punctuation(0x20AC));
}

TEST_CASE("normal forms of composed, blocked and reordered sequences") {
  CHECK(normalized("e\u0301", NormalForm::kNfc) == "é");
  CHECK(normalized("é", NormalForm::kNfd) == "e\u0301");
  CHECK(normalized("\u1100\u1161\u11A8", NormalForm::kNfc) == "\uAC01");
  CHECK(normalized("\uAC01", NormalForm::kNfd) == "\u1100\u1161\u11A8");
  CHECK(normalized("q\u0307\u0323", NormalForm::kNfc) == "q\u0323\u0307");  // marks are put in order
  CHECK(normalized("a\u0327\u0301", NormalForm::kNfc) == "á\u0327");  // the cedilla does not block the acute
  CHECK(normalized("\u0344", NormalForm::kNfc) == "\u0308\u0301");    // excluded from composition
  CHECK(normalized("ﬁ㎏", NormalForm::kNfkc) == "fikg");
  CHECK(normalized("\u0301a", NormalForm::kNfc) == "\u0301a");
}

TEST_CASE("a long run of marks in reverse order is sorted in time") {
  std::string marks = "a";
  for (int i = 0; i < 200000; ++i) marks += i % 2 ? "\u0323" : "\u0301";
  const std::string n = normalized(marks, NormalForm::kNfd);
  CHECK(n.size() == marks.size());
  CHECK(n.substr(1, 2) == "\u0323");
  CHECK(n.ends_with("\u0301"));
}

// The committed file holds every 31st line; OAR_NORMALIZATION_TEST names the whole NormalizationTest.txt
// instead.
TEST_CASE("lines of NormalizationTest.txt") {
  const char* whole = std::getenv("OAR_NORMALIZATION_TEST");
  std::istringstream in(oar_test::read_file(
      whole ? whole : oar_test::source_path("tests/text/golden/normalization_sample.txt")));
  size_t lines = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#' || line[0] == '@') continue;
    std::array<std::string, 5> c;
    size_t begin = 0;
    for (auto& column : c) {
      const size_t end = line.find(';', begin);
      column = utf8_of(line.substr(begin, end - begin));
      begin = end + 1;
    }
    INFO(line);
    for (size_t i = 0; i < 5; ++i) {
      REQUIRE(normalized(c[i], NormalForm::kNfc) == (i < 3 ? c[1] : c[3]));
      REQUIRE(normalized(c[i], NormalForm::kNfd) == (i < 3 ? c[2] : c[4]));
      REQUIRE(normalized(c[i], NormalForm::kNfkc) == c[3]);
      REQUIRE(normalized(c[i], NormalForm::kNfkd) == c[4]);
    }
    ++lines;
  }
  CHECK(lines > 600);
}

TEST_CASE("every line of GraphemeBreakTest.txt") {
  const std::string path = "/usr/share/unicode/auxiliary/GraphemeBreakTest.txt";
  if (!std::filesystem::exists(path)) OAR_SKIP("no " + path);
  std::istringstream in(oar_test::read_file(path));
  size_t lines = 0;
  for (std::string line; std::getline(in, line);) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    // "÷ 0020 × 0308 ÷"
    std::vector<std::string> clusters;
    std::istringstream tokens(line);
    for (std::string t; tokens >> t;) {
      if (t == "÷") clusters.emplace_back();
      else if (t != "×") clusters.back() += utf8_of(t);
    }
    clusters.pop_back();
    std::string text;
    for (const auto& c : clusters) text += c;
    INFO(line);
    size_t pos = 0;
    for (const auto& c : clusters) {
      REQUIRE(grapheme_length(std::string_view(text).substr(pos)) == c.size());
      pos += c.size();
    }
    ++lines;
  }
  CHECK(lines > 500);
}

TEST_CASE("set algebra agrees with the property of each code point") {
  const CodePointRanges letters = CodePointRanges::of_categories(kLetters),
                        han = CodePointRanges::of_script("Han");
  const CodePointSet set(letters.intersected(han.complement()).united({U'0', U'9'}));
  const CodePointSet only_han(han);
  for (char32_t c = 0; c <= kMaxCodePoint; ++c) {
    const bool want = (in_categories(c, kLetters) && !only_han.contains(c)) || (c >= U'0' && c <= U'9');
    if (set.contains(c) != want) FAIL("U+" << std::hex << static_cast<uint32_t>(c));
  }
  CHECK_FALSE(set.contains(0x110000));
  const CodePointSet folded(CodePointRanges(U's', U's').case_closed());
  CHECK(folded.contains(U'S'));
  CHECK(folded.contains(0x17F));
  CHECK_FALSE(folded.contains(U't'));
}
