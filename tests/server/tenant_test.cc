// Tenants: what a key may take, in time that the test makes, and over both transports.
#include "server/api/tenant.h"

#include <fstream>
#include <random>

#include "server/api/auth.h"
#include "server/grpc/call_support.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar_test;
using oar::api::ApiKeys;
using oar::api::Tenant;
using Clock = Tenant::Clock;
using std::chrono::milliseconds;

TEST_CASE("tenants: a minute's requests at once, then evenly") {
  const auto t = std::make_shared<Tenant>("search");
  t->set_limits({.requests_per_minute = 6});
  const auto start = Clock::now();
  for (int k = 0; k < 6; ++k) REQUIRE_OK(t->admit(start));
  const oar::Status refused = t->admit(start).status();
  CHECK(refused.code() == oar::StatusCode::kResourceExhausted);
  CHECK(refused.retry_after() == 10);
  CHECK(refused.message().find("'search'") != std::string::npos);
  CHECK(refused.message().find("6 requests per minute") != std::string::npos);
  CHECK(refused.message().find("10 s") != std::string::npos);
  // What it says is true: not before, but then.
  CHECK(!t->admit(start + milliseconds(9900)).ok());
  REQUIRE_OK(t->admit(start + milliseconds(10'000)));
  CHECK(!t->admit(start + milliseconds(10'000)).ok());
  // Idle hours are worth no more than a minute.
  for (int k = 0; k < 6; ++k) REQUIRE_OK(t->admit(start + std::chrono::hours(5)));
  CHECK(!t->admit(start + std::chrono::hours(5)).ok());
}

TEST_CASE("tenants: tokens are paid when they are known, and a debt is waited for") {
  const auto t = std::make_shared<Tenant>("batch");
  t->set_limits({.tokens_per_minute = 600});
  const auto start = Clock::now();
  REQUIRE_OK(t->admit(start));
  t->charge(500, start);
  REQUIRE_OK(t->admit(start));
  t->charge(400, start);  // an answer longer than what was left: 300 too many
  const oar::Status refused = t->admit(start).status();
  CHECK(refused.retry_after() == 31);  // 300 tokens, and one, at 10 a second
  CHECK(!t->admit(start + milliseconds(29'000)).ok());
  REQUIRE_OK(t->admit(start + milliseconds(31'000)));
}

TEST_CASE("tenants: over a long time nobody gets more than the rate") {
  std::mt19937 random(3);
  for (const double rate : {1.0, 7.0, 90.0}) {
    const auto t = std::make_shared<Tenant>("x");
    t->set_limits({.requests_per_minute = rate});
    auto now = Clock::now();
    int admitted = 0;
    for (double seconds = 0; seconds < 3600;) {
      const auto step = static_cast<int64_t>(random() % 2000);
      now += milliseconds(step), seconds += static_cast<double>(step) / 1000;
      admitted += t->admit(now).ok();
    }
    CHECK(admitted <= 61 * rate + 1);
    CHECK(admitted >= std::min(59 * rate, 3000.0));
  }
}

TEST_CASE("tenants: requests at once, and limits that change") {
  const auto t = std::make_shared<Tenant>("x");
  t->set_limits({.concurrency = 2});
  auto first = t->admit(), second = t->admit();
  REQUIRE_OK(first);
  REQUIRE_OK(second);
  CHECK(t->admit().status().message().find("2 requests running") != std::string::npos);
  first->reset();
  auto third = t->admit();
  REQUIRE_OK(third);
  CHECK(!t->admit().ok());
  t->set_limits({.concurrency = 3});
  REQUIRE_OK(t->admit());
  // Of a new rate as much is used as of the old one.
  const auto start = Clock::now();
  const auto u = std::make_shared<Tenant>("y");
  u->set_limits({.requests_per_minute = 4});
  for (int k = 0; k < 4; ++k) REQUIRE_OK(u->admit(start));
  u->set_limits({.requests_per_minute = 6});
  REQUIRE_OK(u->admit(start));
  REQUIRE_OK(u->admit(start));
  CHECK(!u->admit(start).ok());
}

TEST_CASE("tenants: when one of the requests at once may end is told from what lately took how long") {
  using std::chrono::seconds;
  const auto wait_at = [](Tenant& t, Clock::time_point now) { return t.admit(now).status().retry_after(); };
  const auto t = std::make_shared<Tenant>("x");
  t->set_limits({.concurrency = 2});
  const auto now = Clock::now();
  REQUIRE_OK(t->admit(now - seconds(40)));  // ends here
  auto first = t->admit(now), second = t->admit(now + seconds(4));
  REQUIRE_OK(first);
  REQUIRE_OK(second);
  const double wait = wait_at(*t, now + seconds(10));
  CHECK(wait >= 30);  // of the first, 10 of some 40 s are gone
  CHECK(wait <= 32);
  CHECK(wait_at(*t, now + seconds(39)) <= 3);
  CHECK(wait_at(*t, now + milliseconds(43'999)) == 1);  // never less
  CHECK(wait_at(*t, now + seconds(60)) == 56);  // longer than usual, both: as long again, at the least
  first->reset();
  REQUIRE_OK(t->admit(now));
  // Before any has ended, the oldest says how long they take.
  const auto u = std::make_shared<Tenant>("y");
  u->set_limits({.concurrency = 2});
  const auto one = u->admit(now), two = u->admit(now + seconds(19));
  CHECK(wait_at(*u, now) == 1);
  CHECK(wait_at(*u, now + seconds(20)) == 20);
}

TEST_CASE("tenants: lines of the keys file") {
  const std::string path = temp_dir() + "/tenants";
  const auto load = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return ApiKeys::load("", path);
  };
  const auto keys = load(
      "plain\n# of search\na name=search concurrency=2\nb  name=search\tconcurrency=2\nc "
      "requests-per-minute=0.5 "
      "tokens-per-minute=1e6 weight=2.5\n");
  REQUIRE_OK(keys);
  CHECK((*keys)->find("plain")->name() == "key 1");
  CHECK((*keys)->find("a") == (*keys)->find("b"));
  CHECK((*keys)->find("a")->name() == "search");
  CHECK((*keys)->find("c")->name() == "key 5");
  CHECK((*keys)->find("c")->weight() == 2.5);
  CHECK((*keys)->find("a")->weight() == 1);
  CHECK((*keys)->find("d") == nullptr);
  CHECK((*keys)->find_bearer("Bearer b")->name() == "search");

  struct Bad {
    const char *line, *says;
  };
  for (const Bad& bad :
       {Bad{"k rpm=5", "'rpm='"}, Bad{"k request-per-minute=5", "did you mean requests-per-minute"},
        Bad{"k weight=0.001", "between 0.01 and 1000"}, Bad{"k weight=heavy", "leave it out for 1"},
        Bad{"k concurrency=0", "concurrency=0 is no number above 0"}, Bad{"k concurrency=1.5", "whole"},
        Bad{"k tokens-per-minute=-3", "tokens-per-minute=-3"},
        Bad{"k requests-per-minute=many", "requests-per-minute=many"}, Bad{"k tokens-per-minute=nan", "nan"},
        Bad{"k name=", "name="}, Bad{"two words", ":1 is no key"}, Bad{"k concurrency=inf", "inf"}}) {
    INFO(bad.line);
    const auto refused = load(bad.line);
    REQUIRE(!refused.ok());
    CHECK(refused.status().message().find(bad.says) != std::string::npos);
  }
  // Calls that load and unload models are not counted.
  std::ofstream(path, std::ios::binary) << "k name=ops concurrency=2\n";
  CHECK(ApiKeys::load("", path, {}, "admin-key-file", false).status().message().find("has limits") !=
        std::string::npos);
  std::ofstream(path, std::ios::binary) << "k name=ops\n";
  CHECK(ApiKeys::load("", path, {}, "admin-key-file", false).ok());
  // A secret is never repeated in a message.
  CHECK(load("hunter2 rpm=5").status().message().find("hunter2") == std::string::npos);
  CHECK(load("hunter2 hunter3").status().message().find("hunter3") == std::string::npos);
  CHECK(load("k name=x concurrency=1\nl name=x concurrency=2").status().message().find("other limits") !=
        std::string::npos);
}

TEST_CASE("tenants: 429 with a Retry-After, for that key alone, and the log has the name") {
  const std::string path = temp_dir() + "/tenants-served", log = temp_dir() + "/tenants.jsonl";
  std::ofstream(path, std::ios::binary) << "a name=alpha requests-per-minute=2\nb name=beta\n";
  oar::ServerOptions o;
  o.api_key_file = path;
  o.request_log = log;
  TestServer t({}, o);
  const auto ask = [&](const char* key) {
    return http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","max_tokens":1})",
                {{"Authorization", std::string("Bearer ") + key}});
  };
  CHECK(ask("a").status == 200);
  CHECK(ask("a").status == 200);
  const HttpReply refused = ask("a");
  CHECK(refused.status == 429);
  CHECK(refused.headers.at("retry-after") == "30");
  CHECK(refused.body.find("2 requests per minute") != std::string::npos);
  CHECK(parse(refused.body).at("error").at("type") == "rate_limit_error");
  CHECK(ask("b").status == 200);
  std::ifstream lines(log);
  std::string all((std::istreambuf_iterator<char>(lines)), {});
  CHECK(all.find(R"("finish":"refused","status":"RESOURCE_EXHAUSTED")") != std::string::npos);
  CHECK(all.find(R"("key":"alpha")") != std::string::npos);
  CHECK(all.find(R"("key":"beta")") != std::string::npos);
  CHECK(all.find(R"("key":"a")") == std::string::npos);
}

TEST_CASE("tenants: the engine knows who asks, over both transports") {
  const std::string path = temp_dir() + "/tenants-weighed";
  std::ofstream(path, std::ios::binary) << "a name=alpha weight=2.5\n";
  oar::ServerOptions o;
  o.api_key_file = path;
  TestServer keyed({}, o);
  CHECK(http(keyed.http(), "POST", "/v1/completions", R"({"prompt":"a","max_tokens":1,"priority":-3})",
             {{"Authorization", "Bearer a"}})
            .status == 200);
  const oar::Request known = keyed.engine.last_request();
  CHECK(known.caller == "alpha");
  CHECK(known.weight == 2.5);
  CHECK(known.priority == -3);

  TestServer open;
  CHECK(http(open.http(), "POST", "/v1/completions", R"({"prompt":"a","max_tokens":1})").status == 200);
  CHECK(open.engine.last_request().caller == "127.0.0.1");
  CHECK(open.engine.last_request().weight == 1);
  CHECK(http(open.http(), "POST", "/v1/completions", R"({"prompt":"a","priority":1001})").status == 400);
  using oar::grpc_api::address_of;
  CHECK(address_of("ipv4:127.0.0.1:4711") == "127.0.0.1");
  CHECK(address_of("ipv6:%5B::1%5D:4711") == "::1");
  CHECK(address_of("ipv6:[fe80::1%25eth0]:4711") == "fe80::1%25eth0");
  CHECK(address_of("unix:") == "unix:");
}

}  // namespace
