// TLS of both transports with an authority of the test's own: streams, refusals, a certificate replaced under
// open connections, mutual TLS, files that do not fit, an orderly end.
#include "server/tls/tls.h"

#include <openssl/ssl.h>

#include <cstdio>
#include <future>
#include <mutex>
#include <thread>

#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_ca.h"
#include "tests/server/test_server.h"
#include "tests/server/tls_client.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using std::chrono::milliseconds;

struct Setup {
  explicit Setup(const std::string& name, bool mutual = false)
      : ca("Test CA"), folder(temp_dir() + "/" + name) {
    options.tls.certificate = folder + ".crt";
    options.tls.key = folder + ".key";
    renew("first");
    if (!mutual) return;
    options.tls.client_ca = folder + ".ca";
    write_file(options.tls.client_ca, clients.certificate());
  }
  void renew(const std::string& name) const {
    const Identity id = ca.issue(name);
    write_file(options.tls.certificate, id.certificate);
    write_file(options.tls.key, id.key);
  }
  TlsClient::Options client() const { return {ca.certificate(), {}, {}}; }
  TlsClient::Options client(const Identity& id) const { return {ca.certificate(), id.certificate, id.key}; }

  TestCa ca, clients{"Clients' CA"};
  std::string folder;
  oar::ServerOptions options;
};

std::shared_ptr<grpc::Channel> tls_channel(int port, const Setup& s, const Identity& id = {}) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::SslCredentials({s.ca.certificate(), id.key, id.certificate}),
                                   arguments);
}

bool live(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  inference::ServerLiveRequest request;
  inference::ServerLiveResponse answer;
  return inference::GRPCInferenceService::NewStub(channel)->ServerLive(&context, request, &answer).ok() &&
         answer.live();
}

// The files are looked at by a handshake that comes a second after the last look.
void wait_for_reload() { std::this_thread::sleep_for(milliseconds(1100)); }

const std::string kStream = R"({"prompt":"a","stream":true,"ignore_eos":true,"max_tokens":300})";
const std::string kEnd = "data: [DONE]";

TEST_CASE("HTTP over TLS: requests, streams, keep-alive, large bodies, both versions of the protocol") {
  const Setup s("https");
  TestServer t({}, s.options);
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    auto o = s.client();
    o.most_version = version;
    TlsClient c(t.http(), o);
    INFO(c.error());
    REQUIRE(c.connected());
    CHECK(c.peer() == "first");
    REQUIRE(c.send(make_request("GET", "/v1/models")));
    CHECK(c.read_until("]}").find("\"fake\"") != std::string::npos);
    REQUIRE(c.send(make_request("POST", "/v1/completions", kStream)));
    CHECK(c.read_until(kEnd).find(kEnd) != std::string::npos);
    const std::string text(200'000, 'x');  // many records; more than the model takes
    REQUIRE(c.send(make_request("POST", "/v1/completions", R"({"prompt":")" + text + "\"}")));
    CHECK(c.read_until("error").find("400") != std::string::npos);
  }
}

TEST_CASE("what is no TLS, or too old, or trusts somebody else, gets nothing") {
  const Setup s("refused");
  TestServer t({}, s.options);
  const oar_test::HttpReply plain = http(t.http(), "GET", "/v1/models");
  CHECK(plain.status == 400);
  CHECK(plain.body.find("https://") != std::string::npos);
  RawClient garbage(t.http());
  garbage.send(std::string(3000, '\x7f'));
  CHECK(garbage.closed_by_peer());
  auto old = s.client();
  old.most_version = TLS1_1_VERSION;
  CHECK_FALSE(TlsClient(t.http(), old).connected());
  auto stranger = s.client();
  stranger.ca = TestCa("Other CA").certificate();
  CHECK_FALSE(TlsClient(t.http(), stranger).connected());
  auto elsewhere = s.client();
  elsewhere.host = "example.org";
  CHECK_FALSE(TlsClient(t.http(), elsewhere).connected());
  CHECK_FALSE(live(channel_to(t.grpc())));  // plain gRPC
  CHECK(TlsClient(t.http(), s.client()).connected());
}

TEST_CASE("a client that begins a handshake and waits is dropped in time") {
  Setup s("slow");
  s.options.http_limits.header_timeout = milliseconds(200);
  TestServer t({}, s.options);
  RawClient silent(t.http());
  CHECK(silent.closed_by_peer());
  RawClient halfway(t.http());
  halfway.send("\x16\x03\x01\x02");
  CHECK(halfway.closed_by_peer());
}

TEST_CASE("a new certificate is for new connections; old ones and their streams go on") {
  const Setup s("renewed");
  FakeEngineOptions slow;
  slow.step = milliseconds(15);  // 300 tokens: 4.5 s, longer than the reloads take
  TestServer t(slow, s.options);
  TlsClient stream(t.http(), s.client()), kept(t.http(), s.client());
  REQUIRE(stream.send(make_request("POST", "/v1/completions", kStream)));
  const auto channel = tls_channel(t.grpc(), s);
  REQUIRE(live(channel));

  s.renew("second");
  wait_for_reload();
  CHECK(TlsClient(t.http(), s.client()).peer() == "second");
  bool fresh = false;
  for (int i = 0; i < 30 && !fresh; ++i) {
    fresh = TlsClient(t.grpc(), s.client()).peer() == "second";
    std::this_thread::sleep_for(milliseconds(100));
  }
  CHECK(fresh);  // gRPC also asks for HTTP/2, which does not matter for the certificate
  CHECK(live(channel));
  CHECK(live(tls_channel(t.grpc(), s)));

  write_file(s.options.tls.certificate, "no certificate\n");
  wait_for_reload();
  CHECK(TlsClient(t.http(), s.client()).peer() == "second");
  CHECK(live(channel));
  CHECK(live(tls_channel(t.grpc(), s)));
  s.renew("third");
  wait_for_reload();
  CHECK(TlsClient(t.http(), s.client()).peer() == "third");

  REQUIRE(kept.send(make_request("GET", "/health/live")));
  CHECK(kept.read_until("\r\n\r\n").find("200") != std::string::npos);
  CHECK(stream.read_until(kEnd).find(kEnd) != std::string::npos);
}

TEST_CASE("files that cannot be used change nothing, over gRPC alone and under a stream of new connections") {
  const Setup s("unusable");
  std::mutex mutex;
  std::string log;
  oar::ServerOptions options = s.options;
  options.http_address.clear();  // nobody but gRPC looks at the files
  options.grpc_address = "127.0.0.1:0";
  options.log.callback = [&](oar::LogLevel level, std::string_view line) {
    std::lock_guard lock(mutex);
    if (level == oar::LogLevel::kError) (log += line) += '\n';
  };
  FakeEngine engine{FakeEngineOptions{}};
  const auto started = oar::Server::start(options, serving({fake_model(engine)}));
  REQUIRE_OK(started);
  const int port = (*started)->grpc_port();
  const auto peer = [&] { return TlsClient(port, s.client()).peer(); };
  REQUIRE(peer() == "first");
  const Identity next = s.ca.issue("next");
  const auto logged = [&](const char* text) {
    std::lock_guard lock(mutex);
    const bool found = log.find(text) != std::string::npos;
    log.clear();
    return found;
  };
  const auto still_first = [&](const char* complaint) {
    INFO(complaint);
    wait_for_reload();
    for (int i = 0; i < 5; ++i) CHECK(peer() == "first");
    CHECK(live(tls_channel(port, s)));
    CHECK(logged(complaint));
  };
  write_file(s.options.tls.key, next.key);  // of the certificate that is yet to come
  still_first("does not belong to the certificate");
  write_file(s.options.tls.key, "");
  still_first("is no private key");
  write_file(s.options.tls.certificate, next.certificate.substr(0, next.certificate.size() / 2));
  still_first("holds no certificate");
  REQUIRE(std::remove(s.options.tls.certificate.c_str()) == 0);
  still_first("cannot be read");
  write_file(s.options.tls.key, next.key);
  write_file(s.options.tls.certificate, next.certificate + s.ca.certificate());  // with a chain
  wait_for_reload();
  CHECK(peer() == "next");
  CHECK(live(tls_channel(port, s)));
  CHECK_FALSE(logged("tls"));
}

TEST_CASE("a server with files that cannot be used does not start, over either transport") {
  const Setup s("refused");
  write_file(s.options.tls.key, "no key\n");
  FakeEngine engine{FakeEngineOptions{}};
  for (const bool http : {true, false}) {
    oar::ServerOptions options = s.options;
    options.http_address = http ? "127.0.0.1:0" : "";
    options.grpc_address = http ? "" : "127.0.0.1:0";
    const auto started = oar::Server::start(options, serving({fake_model(engine)}));
    REQUIRE_FALSE(started.ok());
    CHECK(started.status().code() == oar::StatusCode::kInvalidArgument);
    CHECK_THAT(started.status().message(), Contains("tls-key") && Contains("refused.key"));
  }
}

TEST_CASE("mutual TLS: only certificates of the clients' authority come in") {
  const Setup s("mutual", true);
  TestServer t({}, s.options);
  const Identity good = s.clients.issue("client"), wrong = s.ca.issue("client"),
                 expired = s.clients.issue("client", "localhost", -1);
  const auto answered = [&](const TlsClient::Options& o) {
    TlsClient c(t.http(), o);  // under TLS 1.3 the refusal comes after the client's side is done
    return c.connected() && c.send(make_request("GET", "/v1/models")) &&
           c.read_until("]}").find("\"fake\"") != std::string::npos;
  };
  CHECK(answered(s.client(good)));
  CHECK(answered(s.client(good)));
  CHECK_FALSE(answered(s.client()));
  CHECK_FALSE(answered(s.client(wrong)));
  CHECK_FALSE(answered(s.client(expired)));
  CHECK(live(tls_channel(t.grpc(), s, good)));
  CHECK_FALSE(live(tls_channel(t.grpc(), s)));
  CHECK_FALSE(live(tls_channel(t.grpc(), s, wrong)));
}

TEST_CASE("the end: close_notify behind the last answer, in the time that a drain has") {
  const Setup s("drained");
  FakeEngineOptions slow;
  slow.step = milliseconds(2);
  TestServer t(slow, s.options);
  TlsClient stream(t.http(), s.client()), idle(t.http(), s.client());
  RawClient handshake(t.http());  // never finishes its handshake
  // Answered once: the server has seen the end of its handshake, too.
  REQUIRE(idle.send(make_request("GET", "/health/live", "")));
  REQUIRE_FALSE(idle.read_until("\r\n\r\n").empty());
  REQUIRE(stream.send(make_request("POST", "/v1/completions", kStream)));
  REQUIRE_FALSE(stream.read_until("data: ").empty());
  auto stopped =
      std::async(std::launch::async, [&] { return t.server->drain_and_stop(std::chrono::seconds(10)); });
  std::string rest, body;
  CHECK(stream.read_to_end(rest).empty());
  CHECK(rest.find(kEnd) != std::string::npos);
  CHECK(idle.read_to_end(body).empty());
  CHECK(stopped.get());
}

TEST_CASE("a refused upload over TLS still gets its answer") {
  Setup s("upload");
  s.options.http_limits.body_bytes = 1000;
  TestServer t({}, s.options);
  TlsClient c(t.http(), s.client());
  std::string request = make_request("POST", "/v1/completions", std::string(300'000, 'x'));
  c.send(request);
  CHECK(c.read_until("\r\n\r\n").find("413") != std::string::npos);
}

TEST_CASE("files that do not fit are refused by name before anything listens") {
  const Setup s("files");
  const auto failure = [&](auto&& change) {
    oar::tls::Files f = s.options.tls;
    change(f);
    const auto made = oar::tls::ServerContext::load(f);
    return made.ok() ? std::string("fine") : made.status().message();
  };
  using F = oar::tls::Files;
  CHECK(failure([](F&) {}) == "fine");
  CHECK(failure([](F& f) { f.key.clear(); }).find("--tls-key FILE") != std::string::npos);
  CHECK(failure([](F& f) { f.certificate.clear(); }).find("--tls-cert FILE") != std::string::npos);
  CHECK(failure([](F& f) { f.key = "/nonexistent"; }).find("tls-key: /nonexistent cannot be read") == 0);
  CHECK(failure([](F& f) { f.certificate = "/nonexistent"; }).find("tls-cert: /nonexistent") == 0);
  CHECK(failure([](F& f) { f.client_ca = "/nonexistent"; }).find("tls-client-ca: /nonexistent") == 0);
  CHECK(failure([](F& f) { f.certificate = f.key; }).find("holds no certificate") != std::string::npos);
  const std::string other = s.folder + ".other";
  write_file(other, s.ca.issue("other").key);
  CHECK(failure([&](F& f) { f.key = other; }).find("tls-key") == 0);
  CHECK(oar::tls::ServerContext::load({})->get() == nullptr);
}

}  // namespace
