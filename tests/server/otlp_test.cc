// Traces in OpenTelemetry's JSON: the encoding's rules, and what spans say of records.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "server/api/trace_file.h"
#include "server/api/trace_parent.h"
#include "tests/server/otlp_spans.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::Clock;
using oar::api::TraceFile;
using oar::api::TraceKind;

TEST_CASE("traceparent: the header of the W3C's trace context") {
  using oar::api::parse_traceparent;
  const auto good = parse_traceparent(parent());
  REQUIRE(good);
  CHECK(good->trace == kTrace);
  CHECK(good->span == kCaller);
  CHECK(good->sampled);
  CHECK(format_traceparent(*good) == parent());
  CHECK_FALSE(parse_traceparent(parent("00"))->sampled);
  CHECK(parse_traceparent(parent("03"))->sampled);
  CHECK(parse_traceparent("cc" + parent().substr(2) + "-more"));  // a version to come
  const std::string zeros = std::string(32, '0');
  for (const std::string& bad :
       {std::string(), std::string("00"), parent() + "-more", parent() + "x", "ff" + parent().substr(2),
        "0G" + parent().substr(2), cat("00-", zeros, "-", kCaller, "-01"),
        cat("00-", kTrace, "-", zeros.substr(16), "-01"),
        cat("00-", "4BF92F3577B34DA6A3CE929D0E0E4736", "-", kCaller, "-01"), parent().substr(0, 54),
        parent("0g"), cat("cc", parent().substr(2), "x")}) {
    INFO(bad);
    CHECK_FALSE(parse_traceparent(bad));
  }
}

TEST_CASE("OTLP: a prompt and an answer with their parts") {
  const std::string path = temp_dir() + "/otlp-records.jsonl";
  auto trace = TraceFile::open(path, TraceFile::kDefaultBytes, {}, TraceKind::kOtlp);
  REQUIRE_OK(trace);
  const int32_t model = (*trace)->add_model("demo", {"engine"}, "2");
  const auto start = Clock::now();
  const auto at = [&](int us) { return start + std::chrono::microseconds(us); };
  oar::api::PromptRecord whole{model, "cmpl-1", "polite", 1, 2, {}, oar::FinishReason::kStop, parent()};
  whole.stats.prompt_tokens = 5, whole.stats.completion_tokens = 9, whole.stats.cached_tokens = 4;
  whole.stats.submitted = at(0), whole.stats.scheduled = at(10), whole.stats.first_token = at(30);
  whole.stats.finished = at(100);
  (*trace)->add(whole);
  oar::api::PromptRecord early = whole;
  early.finish = oar::FinishReason::kCancelled;
  early.stats.scheduled = early.stats.first_token = {};
  early.trace = "";
  (*trace)->add(early);
  early.trace = parent("00");  // its caller does not keep it
  (*trace)->add(early);
  oar::InferAnswer answer{{}, 3, at(0), at(5), at(50), oar::StatusCode::kOk};
  (*trace)->add(
      oar::api::AnswerRecord{model, "seven", answer, parent(), cat("00-", kTrace, "-1111111111111111-01")});
  (*trace)->close();
  const auto spans = spans_in(path);
  REQUIRE(spans.size() == 4 + 2 + 3);
  CHECK(text(spans[0].at("traceId")) == kTrace);
  CHECK(text(spans[0].at("parentSpanId")) == kCaller);
  CHECK(spans[0].at("kind") == 2);
  CHECK(attribute(spans[0], "gen_ai.request.model") == "demo");
  CHECK(attribute(spans[0], "oar.model.version") == "2");
  CHECK(attribute(spans[0], "gen_ai.usage.input_tokens") == "5");
  CHECK(attribute(spans[0], "gen_ai.usage.output_tokens") == "9");
  CHECK(attribute(spans[0], "oar.cached_tokens") == "4");
  CHECK(attribute(spans[0], "oar.adapter") == "polite");
  CHECK_FALSE(spans[0].contains("status"));
  const auto nanoseconds = [](const Object& s) {
    return std::stoll(text(s.at("endTimeUnixNano"))) - std::stoll(text(s.at("startTimeUnixNano")));
  };
  CHECK(nanoseconds(spans[0]) == 100'000);
  const std::pair<const char*, int64_t> parts[] = {
      {"queued", 10'000}, {"prefill", 20'000}, {"decode", 70'000}};
  for (size_t k = 0; k < 3; ++k) {
    const Object& part = spans[k + 1];
    CHECK(text(part.at("name")) == parts[k].first);
    CHECK(nanoseconds(part) == parts[k].second);
    CHECK(part.at("parentSpanId") == spans[0].at("spanId"));
    CHECK(part.at("kind") == 1);
  }
  // The time of day, to the second.
  const auto now = std::chrono::system_clock::now().time_since_epoch() / std::chrono::seconds(1);
  CHECK(std::abs(std::stoll(text(spans[0].at("startTimeUnixNano"))) / 1'000'000'000 - now) < 60);
  CHECK(text(spans[4].at("status").at("message")) == "cancelled");
  CHECK_FALSE(spans[4].contains("parentSpanId"));
  CHECK(text(spans[4].at("traceId")) != kTrace);
  CHECK(text(spans[5].at("name")) == "queued");
  CHECK(text(spans[6].at("spanId")) == "1111111111111111");
  CHECK(attribute(spans[6], "oar.rows") == "3");
  CHECK(attribute(spans[6], "oar.request.id") == "seven");
  CHECK(spans[8].at("parentSpanId") == spans[6].at("spanId"));
}

TEST_CASE("OTLP: a step and a run are traces of their own, with their parts inside") {
  const std::string path = temp_dir() + "/otlp-steps.jsonl";
  auto trace = TraceFile::open(path, TraceFile::kDefaultBytes, {}, TraceKind::kOtlp);
  REQUIRE_OK(trace);
  const int32_t model = (*trace)->add_model("demo", {"engine"}, "2");
  const auto start = Clock::now();
  const auto at = [&](int us) { return start + std::chrono::microseconds(us); };
  oar::api::StepRecord step{model, {}};
  step.step.number = 3, step.step.sequences = 2, step.step.tokens = 7, step.step.prefill_tokens = 6;
  step.step.generated_tokens = 1, step.step.running = 2, step.step.waiting = 4, step.step.blocks_used = 11;
  step.step.times = {at(0), at(5), at(10), at(80), at(80), at(90), at(95), at(100)};
  (*trace)->add(step);
  // Planned while the one before was at work.
  step.step.times = {at(100), at(60), at(70), at(75), at(75), at(76), at(150), at(180)};
  (*trace)->add(step);
  (*trace)->add(oar::api::RunRecord{model, {1, 5, 2, at(0), {2000, 40000, 0}}});
  (*trace)->close();
  const auto spans = spans_in(path);
  REQUIRE(spans.size() == 5 + 5 + 3);
  const auto from = [](const Object& s) { return std::stoll(text(s.at("startTimeUnixNano"))); };
  const auto until = [](const Object& s) { return std::stoll(text(s.at("endTimeUnixNano"))); };
  std::set<std::string> traces;
  const auto check = [&](const char* root, size_t number, int64_t length,
                         const std::vector<std::tuple<const char*, int64_t, int64_t>>& parts) {
    const Object& all = called(spans, root, number);
    INFO(root << " " << number);
    CHECK_FALSE(all.contains("parentSpanId"));
    CHECK(all.at("kind") == 1);
    CHECK(until(all) - from(all) == length);
    CHECK(traces.insert(text(all.at("traceId"))).second);
    CHECK(attribute(all, "gen_ai.request.model") == "demo");
    CHECK(attribute(all, "oar.model.version") == "2");
    for (const auto& [name, begins, ends] : parts) {
      INFO(name);
      const Object& part = called(spans, name, number);
      CHECK(part.at("parentSpanId") == all.at("spanId"));
      CHECK(part.at("traceId") == all.at("traceId"));
      CHECK(from(part) - from(all) == begins);
      CHECK(until(part) - from(all) == ends);
    }
  };
  check("step", 0, 100'000,
        {{"plan", 5'000, 10'000},
         {"forward", 10'000, 80'000},
         {"sample", 80'000, 90'000},
         {"commit", 95'000, 100'000}});
  check("step", 1, 120'000,
        {{"plan", 0, 10'000},
         {"forward", 10'000, 15'000},
         {"sample", 15'000, 16'000},
         {"commit", 90'000, 120'000}});
  check("batch", 0, 42'000, {{"input", 0, 2'000}, {"compute", 2'000, 42'000}});
  const std::pair<const char*, const char*> said[] = {
      {"oar.step", "3"},           {"oar.sequences", "2"},        {"oar.tokens", "7"},
      {"oar.prefill_tokens", "6"}, {"oar.generated_tokens", "1"}, {"oar.draft_tokens", "0"},
      {"oar.running", "2"},        {"oar.waiting", "4"},          {"oar.suspended", "0"},
      {"oar.pages_used", "11"}};
  for (const auto& [name, value] : said) {
    INFO(name);
    CHECK(attribute(called(spans, "step"), name) == value);
  }
  CHECK(attribute(called(spans, "batch"), "oar.instance") == "2");
  CHECK(attribute(called(spans, "batch"), "oar.rows") == "5");
  CHECK(attribute(called(spans, "batch"), "oar.requests") == "2");
}

TEST_CASE("OTLP: at its limit a file of steps has whole lines, and says so") {
  const std::string path = temp_dir() + "/otlp-step-limit.jsonl";
  auto trace = TraceFile::open(path, TraceFile::kLeastBytes, {}, TraceKind::kOtlp);
  REQUIRE_OK(trace);
  const int32_t model = (*trace)->add_model("demo", {"engine"}, "1");
  for (int k = 0; k < 100; ++k) (*trace)->add(oar::api::StepRecord{model, {}});
  (*trace)->close();
  CHECK(std::filesystem::file_size(path) <= TraceFile::kLeastBytes);
  const auto spans = spans_in(path);
  CHECK(spans.size() > 20 * 5);
  CHECK(spans.size() % 5 == 1);  // whole steps, and the mark
  called(spans, "trace limit reached");
}

TEST_CASE("OTLP: at its limit the file has whole lines, and says so") {
  const std::string path = temp_dir() + "/otlp-limit.jsonl";
  auto trace = TraceFile::open(path, TraceFile::kLeastBytes, {}, TraceKind::kOtlp);
  REQUIRE_OK(trace);
  const int32_t model = (*trace)->add_model("a \"model\"", {"engine"}, "1");
  for (int k = 0; k < 200; ++k) {
    (*trace)->add(oar::api::RefusalRecord{model, cat("r", k, "\xff"), oar::StatusCode::kResourceExhausted,
                                          Clock::now(), ""});
  }
  (*trace)->close();
  CHECK(std::filesystem::file_size(path) <= TraceFile::kLeastBytes);
  const auto spans = spans_in(path);
  CHECK(spans.size() > 50);
  CHECK(attribute(called(spans, "generate"), "gen_ai.request.model") == "a \"model\"");
  CHECK(attribute(called(spans, "trace limit reached"), "oar.bytes") == cat(TraceFile::kLeastBytes));
}

}  // namespace
