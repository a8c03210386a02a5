// API keys: comparison, the file and its reload, both transports behind it.
#include "server/api/auth.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar_test;
using oar::api::ApiKeys;

void write(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new", std::ios::binary) << text;
  std::filesystem::rename(path + ".new", path);  // a new inode: seen whatever the clock's grain
}

TEST_CASE("keys come from the command line and from a file") {
  const std::string path = temp_dir() + "/keys";
  write(path, "# the team's\nfirst\r\n\n  second  \n");
  auto keys = ApiKeys::load("own", path);
  REQUIRE_OK(keys);
  for (const char* key : {"own", "first", "second"}) {
    CHECK((*keys)->accepts(key));
    CHECK((*keys)->accepts_bearer(std::string("Bearer ") + key));
  }
  for (const char* key : {"", "firs", "first2", "# the team's", "own "}) CHECK(!(*keys)->accepts(key));
  CHECK(ApiKeys::load("", "")->get() == nullptr);
  CHECK(ApiKeys::load("", "/nonexistent/keys").status().code() == oar::StatusCode::kNotFound);
  write(path, "# none\n\n");
  CHECK(ApiKeys::load("own", path).status().message().find("holds no key") != std::string::npos);
  write(path, "two words\n");
  CHECK(ApiKeys::load("", path).status().message().find(":1 is no key") != std::string::npos);
}

TEST_CASE("a changed file counts, a broken one does not, an empty one revokes") {
  const std::string path = temp_dir() + "/rotating";
  write(path, "old\n");
  int errors = 0, warnings = 0;
  oar::Logger log;
  log.callback = [&](oar::LogLevel level, std::string_view) {
    errors += level == oar::LogLevel::kError;
    warnings += level == oar::LogLevel::kWarning;
  };
  auto keys = ApiKeys::load("", path, log);
  REQUIRE_OK(keys);
  const auto later = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1050)); };
  write(path, "old\nnew\n");
  later();
  CHECK((*keys)->accepts("new"));
  CHECK((*keys)->accepts("old"));
  write(path, "new\n");
  later();
  CHECK(!(*keys)->accepts("old"));
  write(path, "two words\n");
  later();
  CHECK((*keys)->accepts("new"));
  CHECK(errors == 1);
  write(path, "# all of them left\n");
  later();
  for (const char* key : {"new", "old", ""}) {
    CHECK(!(*keys)->accepts(key));
    CHECK(!(*keys)->accepts_bearer(std::string("Bearer ") + key));
  }
  CHECK(warnings == 1);
  write(path, "again\n");
  later();
  CHECK((*keys)->accepts("again"));

  auto both = ApiKeys::load("own", path, log);
  REQUIRE_OK(both);
  write(path, "");
  later();
  CHECK(!(*both)->accepts("again"));
  CHECK((*both)->accepts("own"));
  CHECK(warnings == 2);
}

TEST_CASE("a server with a key file") {
  const std::string path = temp_dir() + "/served";
  write(path, "alpha\nbeta\n");
  oar::ServerOptions o;
  o.api_key_file = path;
  TestServer t({}, o);
  const auto status = [&](const Headers& headers) {
    return http(t.http(), "GET", "/v1/models", "", headers).status;
  };
  CHECK(status({}) == 401);
  CHECK(status({{"Authorization", "Bearer alpha"}}) == 200);
  CHECK(status({{"X-Api-Key", "beta"}}) == 200);
  CHECK(status({{"Authorization", "Bearer gamma"}}) == 401);
}

TEST_CASE("a listener of its own answers metrics and health without a key") {
  oar::ServerOptions o;
  o.api_key = "secret";
  o.metrics_address = "127.0.0.1:0";
  TestServer t({}, o);
  const int port = t.server->metrics_port();
  REQUIRE(port != 0);
  CHECK(http(t.http(), "GET", "/metrics").status == 401);
  const HttpReply metrics = http(port, "GET", "/metrics");
  CHECK(metrics.status == 200);
  CHECK_THAT(metrics.body, Contains("oar_step_duration_seconds_count"));
  for (const char* path : {"/health", "/health/live", "/health/ready", "/v2/health/ready"})
    CHECK(http(port, "GET", path).status == 200);
  for (const char* path : {"/v1/models", "/", "/v2"}) CHECK(http(port, "GET", path).status == 404);
  t.server->set_ready(false);
  CHECK(http(port, "GET", "/health/ready").status == 503);
}

TEST_CASE("a server beyond loopback without a key says so") {
  std::vector<std::string> warnings;
  oar::ServerOptions o;
  o.log.callback = [&](oar::LogLevel level, std::string_view text) {
    if (level == oar::LogLevel::kWarning) warnings.emplace_back(text);
  };
  o.http_address = "127.0.0.1:0";
  o.grpc_address = "[::1]:0";
  CHECK((TestServer({}, o), warnings.empty()));
  o.http_address = "0.0.0.0:0";
  o.grpc_address = "";
  CHECK((TestServer({}, o), warnings.size() == 1));
  CHECK_THAT(warnings.at(0), Contains("0.0.0.0:0") && Contains("--api-key-file"));
  o.api_key = "secret";
  CHECK((TestServer({}, o), warnings.size() == 1));
}

}  // namespace
