// The published JSON Schema test suite, of the real-data collection or where OAR_JSON_SCHEMA_SUITE names a
// folder of its files (tests/draft2020-12): none wrongly accepted or refused in what is supported.
// tests/text/grammar_schema_test.cc has our own cases.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/text/grammar_schema.h"

namespace {

using namespace oar;
using namespace oar::grammar::testing;

TEST_CASE("JSON Schema: the published suite", "[grammar][suite]") {
  std::string folder;
  if (const char* named = std::getenv("OAR_JSON_SCHEMA_SUITE")) {
    folder = named;
  } else {
    const auto archive = oar_test::data_path("json_schema/test_suite_draft7_2020-12.tar.xz");
    if (!archive) OAR_SKIP("the published suite is not there");
    const std::string home = oar_test::temp_dir();
    REQUIRE(std::system(("tar -xJf '" + *archive + "' -C '" + home + "'").c_str()) == 0);
    folder = home + "/tests";  // draft 7 too
  }
  int groups = 0, unsupported = 0, tests = 0, accepted = 0, refused = 0;
  const std::set<std::string> kRefused = {"bignum.json", "ref.json", "format.json", "vocabulary.json"};
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (file.path().extension() != ".json") continue;
    std::stringstream text;
    text << std::ifstream(file.path()).rdbuf();
    const auto list = parse_json(text.str(), "suite");
    REQUIRE(list.ok());
    for (const auto& group : list->as_array()) {
      ++groups;
      const json::value& schema = group.as_object().at("schema");
      const auto automaton = compile_schema(schema);
      bool any_valid = false;
      for (const auto& test : group.as_object().at("tests").as_array())
        any_valid |= test.as_object().at("valid").as_bool();
      if (!automaton.ok() && automaton.status().message().find("no text satisfies") != std::string::npos) {
        ++tests;
        INFO(file.path() << ": " << json::serialize(group.as_object().at("description")));
        CHECK(!any_valid);
        continue;
      }
      if (!automaton.ok()) {
        ++unsupported;
        std::printf("UNSUPPORTED %s: %s\n", file.path().filename().c_str(),
                    automaton.status().message().c_str());
        continue;
      }
      for (const auto& test : group.as_object().at("tests").as_array()) {
        const auto& t = test.as_object();
        ++tests;
        const std::string document = written_for(schema, t.at("data"));
        const bool valid = t.at("valid").as_bool(), have = accepts(*automaton, document);
        if (valid == have) continue;
        ++(valid ? refused : accepted);
        // Known: numbers of many digits, formats that are notes by default, and
        // what says that keywords beside it do not count.
        if (valid) CHECK(kRefused.contains(file.path().filename().string()));
        std::printf("%s %s: %s: %s: %s\n", valid ? "REFUSED" : "ACCEPTED", file.path().filename().c_str(),
                    json::serialize(group.as_object().at("description")).c_str(),
                    json::serialize(t.at("description")).c_str(), document.c_str());
      }
    }
  }
  std::printf("%d groups, %d not supported; %d tests, %d wrongly accepted, %d wrongly refused\n", groups,
              unsupported, tests, accepted, refused);
  CHECK(tests > 0);
  CHECK(accepted == 0);
}

}  // namespace
