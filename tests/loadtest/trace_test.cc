#include "clients/loadtest/trace.h"

#include <algorithm>

#include "clients/loadtest/workload.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar;
using namespace oar::loadtest;

TEST_CASE("CSV traces") {
  const auto t = parse_trace(
      "Model,TIMESTAMP,GeneratedTokens,ContextTokens\r\ng,2023-11-16 18:17:03.9799600,10,4808\r\n"
      "g,2023-11-16 23:59:59.5,8,3180\r\n\r\ng,2023-11-17 00:00:00,1,2\r\n",
      "t.csv");
  REQUIRE_OK(t);
  REQUIRE(t->size() == 3);
  CHECK((*t)[0].at == 0);
  CHECK((*t)[0].input_tokens == 4808);
  CHECK((*t)[0].output_tokens == 10);
  CHECK((*t)[2].at - (*t)[1].at == Approx(0.5));
  CHECK((*t)[1].at == Approx(5 * 3600 + 42 * 60 + 55.52004));
  CHECK(parse_trace("time,input_length,output_length\n5,1,2\n3.5,3,4\n", "t", 0)->front().input_tokens == 3);
}

TEST_CASE("wrong traces are refused with line and remedy") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "empty"},
      {"TIMESTAMP,ContextTokens\n1,2\n", "no column for output tokens"},
      {"a,b,c\n", "no column for time"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", "t:2: has no GeneratedTokens column"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,2,3\n", "'noon' is no time"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,x\n", "whole numbers"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n1,-2,3\n", "input tokens is -2"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n1,99999999999,3\n", "input tokens is 99999999999"},
      {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03,1,3\n", "is no time"},
      {"{\"timestamp\": 1, \"input_length\": 3}\n", "has no \"output_length\""},
      {"{\"timestamp\": 1, \"input_length\": 3, \"output_length\": \"x\"}\n", "must be a whole number"},
      {"{\"timestamp\": 1, \"input_length\": 3, \"output_length\": 1, \"hash_ids\": 3}\n",
       "must be an array"},
      {"{\"timestamp\": 1}\n[]\n", "has no \"input_length\""},
      {"{\"timestamp\"\n", "not valid JSON"},
  };
  for (const auto& [text, message] : cases) {
    INFO(text);
    const auto t = parse_trace(text, "t");
    REQUIRE(!t.ok());
    CHECK(t.status().code() == StatusCode::kInvalidArgument);
    CHECK(t.status().message().find(message) != std::string::npos);
  }
  CHECK(read_trace("/nonexistent.csv").status().code() == StatusCode::kNotFound);
}

TEST_CASE("traces of both published layouts") {
  const auto requests = read_trace(oar_test::source_path("tests/data/traces/requests.csv"));
  REQUIRE_OK(requests);
  CHECK(requests->size() == 40);
  CHECK((*requests)[0].at == 0);
  CHECK((*requests)[1].at > 0);
  const auto prefixes = read_trace(oar_test::source_path("tests/data/traces/prefixes.jsonl"), 100);
  REQUIRE_OK(prefixes);
  CHECK(prefixes->size() == 100);
  for (const TraceEntry& one : *prefixes) {
    const auto blocks = static_cast<int64_t>(one.prefix_blocks.size());
    CHECK((one.input_tokens > 512 * (blocks - 1) && one.input_tokens <= 512 * blocks));
  }
}

TEST_CASE("published traces") {
  const auto azure = oar_test::data_path("traces/AzureLLMInferenceTrace_code.csv");
  const auto mooncake = oar_test::data_path("traces/mooncake_synthetic_trace.jsonl");
  if (!azure || !mooncake) OAR_SKIP("no traces in the test data");
  const auto a = read_trace(*azure);
  REQUIRE_OK(a);
  CHECK(a->size() == 8819);
  CHECK((*a)[1].at == Approx(0.052));
  const auto m = read_trace(*mooncake, 100);
  REQUIRE_OK(m);
  CHECK(m->size() == 100);
  CHECK((*m)[0].input_tokens == 40160);
  CHECK((*m)[0].prefix_blocks.size() == 79);

  WorkloadSpec spec;
  spec.model = "x";
  const auto w = Workload::create(spec);
  const auto plans = w->plan(*m, 2, 2000, 5);
  CHECK(plans[1].at == Approx((*m)[1].at / 2));
  CHECK(plans[0].prompt_words == 2000);
  CHECK(plans[0].output_tokens <= 5);
  // Equal blocks are equal words in front: what a prefix cache finds.
  Plan one = plans[0], other = plans[1];
  one.prompt_words = other.prompt_words = 1200;
  one.prefix_blocks = {7, 8};
  other.prefix_blocks = {7, 9};
  const std::string x = w->prompt(one), y = w->prompt(other);
  const auto words = [](std::string_view text) { return std::count(text.begin(), text.end(), ' ') + 1; };
  CHECK(words(x) == 1200);
  const size_t same =
      static_cast<size_t>(std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin());
  CHECK(words(std::string_view(x).substr(0, same)) >= 512);
  CHECK(words(std::string_view(x).substr(0, same)) < 540);
}

}  // namespace
