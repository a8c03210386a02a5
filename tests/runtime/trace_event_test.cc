// Events of traces: the text that viewers read.
#include "engine/runtime/trace_event.h"

#include "engine/base/json.h"
#include "tests/support/catch.h"

namespace {
using namespace oar;

std::string text_of(const TraceEvent& e, std::initializer_list<TraceArgument> args = {}) {
  std::string out;
  append_event(out, e, args);
  return out;
}

TEST_CASE("trace events: each phase has the fields that it needs, and no others") {
  TraceEvent e{.name = "run", .process = 2, .track = 3, .id = 7, .at_ns = 1234567, .duration_ns = 89};
  CHECK(text_of(e) == R"({"ph":"X","pid":2,"tid":3,"name":"run","ts":1234.567,"dur":0.089})");
  e.category = "request";
  e.phase = TracePhase::kAsyncBegin;
  CHECK(text_of(e) == R"({"ph":"b","pid":2,"id":"7","cat":"request","name":"run","ts":1234.567})");
  e.phase = TracePhase::kAsyncEnd;
  CHECK(text_of(e) == R"({"ph":"e","pid":2,"id":"7","cat":"request","name":"run","ts":1234.567})");
  e.category = "";
  e.phase = TracePhase::kMark;
  CHECK(text_of(e) == R"({"ph":"i","pid":2,"s":"p","name":"run","ts":1234.567})");
  e.phase = TracePhase::kCounter;
  CHECK(text_of(e, {{"running", 4}, {"waiting", -1}}) ==
        R"({"ph":"C","pid":2,"name":"run","ts":1234.567,"args":{"running":4,"waiting":-1}})");
  e.phase = TracePhase::kName;
  CHECK(text_of(e, {{"name", "demo"}}) ==
        R"({"ph":"M","pid":2,"tid":3,"name":"run","args":{"name":"demo"}})");
}

TEST_CASE("trace events: times are exact after years, before the origin, and never in exponents") {
  const auto ts = [](int64_t ns) {
    const std::string all = text_of({.phase = TracePhase::kMark, .at_ns = ns});
    const size_t at = all.find("\"ts\":") + 5;
    return all.substr(at, all.size() - at - 1);
  };
  CHECK(ts(0) == "0.000");
  CHECK(ts(1) == "0.001");
  CHECK(ts(999) == "0.999");
  CHECK(ts(1000) == "1.000");
  CHECK(ts(-1) == "-0.001");
  CHECK(ts(-2500) == "-2.500");
  CHECK(ts(315'360'000'000'000'001) == "315360000000000.001");  // ten years
  CHECK(ts(INT64_MAX) == "9223372036854775.807");
  CHECK(ts(INT64_MIN) == "-9223372036854775.808");
}

TEST_CASE("trace events: whatever a caller calls its request is JSON") {
  const std::string hostile("\"\\\n\x01\xff\xc3", 6);
  const auto parsed =
      parse_json(text_of({.name = hostile, .category = hostile}, {{hostile, hostile}}), "event");
  REQUIRE(parsed.ok());
  const std::string_view safe = parsed->at("name").as_string();
  CHECK(safe == "\"\\\n\x01\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(parsed->at("cat").as_string() == safe);
  CHECK(parsed->at("args").at(safe).as_string() == safe);
}

}  // namespace
