// Whose requests a server answers: Host, Origin and Sec-Fetch-Site, as browsers and programs send them.
#include "server/http/origin.h"

#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::http::HostCheck;
using oar::http::OriginPolicy;

OriginPolicy policy(std::vector<std::string> origins, std::vector<std::string> hosts) {
  auto made = OriginPolicy::create(std::move(origins), std::move(hosts));
  REQUIRE_OK(made);
  return *made;
}

bool passes(const OriginPolicy& p, HostCheck check, const Headers& headers, const char* method = "POST") {
  oar::http::Request request;
  request.method = method;
  for (const auto& [name, value] : headers) request.headers.push_back({name, value});
  return !p.refusal(request, check).has_value();
}

// With a Host of the caller's choice.
HttpReply ask(int port, const std::string& head, const std::string& body = {}) {
  RawClient client(port);
  client.send(head + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  return client.read_reply();
}

std::string header_of(const HttpReply& reply, const char* name) {
  const auto found = reply.headers.find(name);
  return found == reply.headers.end() ? std::string() : found->second;
}

TEST_CASE("Host is checked where only this machine asks, or where names are given") {
  const OriginPolicy own;
  for (const char* host : {"localhost", "LocalHost:8000", "localhost.", "127.0.0.1", "127.0.0.1:80",
                           "127.1.2.3", "[::1]", "[::1]:8000"})
    CHECK(passes(own, HostCheck::kOwn, {{"Host", host}}));
  for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example",
                           "127.0.0.1.evil.example", "10.1.2.3", "", "[fe80::1]"})
    CHECK_FALSE(passes(own, HostCheck::kOwn, {{"Host", host}}));
  CHECK(passes(own, HostCheck::kOwn, {}));  // HTTP/1.0
  // A probe by the pod's address.
  CHECK(passes(own, HostCheck::kNames, {{"Host", "10.1.2.3:8000"}}));
  CHECK_FALSE(passes(own, HostCheck::kNames, {{"Host", "evil.example"}}));
  CHECK(passes(own, HostCheck::kNone, {{"Host", "any.example"}}));
  const OriginPolicy named = policy({}, {"Oar.Example", "10.0.0.5"});
  CHECK(passes(named, HostCheck::kOwn, {{"Host", "oar.example:8000"}}));
  CHECK(passes(named, HostCheck::kOwn, {{"Host", "10.0.0.5"}}));
  CHECK_FALSE(passes(named, HostCheck::kNames, {{"Host", "b.example"}}));
  CHECK(passes(policy({}, {"*"}), HostCheck::kOwn, {{"Host", "evil.example"}}));
}

TEST_CASE("a browser's request comes from an allowed origin") {
  const OriginPolicy p = policy({"https://app.example"}, {});
  const auto from = [&](Headers headers, const char* method = "POST") {
    headers.emplace_back("Host", "oar.example:8000");
    return passes(p, HostCheck::kNone, headers, method);
  };
  CHECK(from({}));
  CHECK(from({{"Content-Type", "text/plain"}}));
  CHECK(from({{"Origin", "https://app.example"}, {"Sec-Fetch-Site", "cross-site"}}));
  CHECK(from({{"Origin", "http://oar.example:8000"}, {"Sec-Fetch-Site", "same-origin"}}));
  CHECK(from({{"Origin", "https://oar.example:8000"}}));  // behind a proxy that ends TLS
  CHECK(from({{"Sec-Fetch-Site", "none"}}, "GET"));
  for (const char* origin :
       {"http://evil.example", "https://app.example:444", "http://app.example", "null", "",
        "http://oar.example", "http://oar.example:8000.evil.example", "oar.example:8000"})
    for (const char* method : {"POST", "GET"}) CHECK_FALSE(from({{"Origin", origin}}, method));
  CHECK_FALSE(from({{"Sec-Fetch-Site", "cross-site"}}));
  CHECK_FALSE(from({{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "no-cors"}}, "GET"));
  // A followed link, but no frame and no form.
  const Headers link = {{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}};
  const auto with = [&](const char* destination) {
    Headers h = link;
    h.emplace_back("Sec-Fetch-Dest", destination);
    return h;
  };
  CHECK(from(link, "GET"));
  CHECK(from(with("document"), "GET"));
  CHECK_FALSE(from(with("iframe"), "GET"));
  CHECK_FALSE(from(with("document"), "POST"));
  CHECK(passes(policy({"*"}, {}), HostCheck::kNone, {{"Origin", "http://evil.example"}}));
}

TEST_CASE("localhost allows this machine's pages on any port") {
  const OriginPolicy p = policy({"localhost"}, {});
  for (const char* origin : {"http://localhost", "https://localhost:8443", "http://127.0.0.1:3000",
                             "http://[::1]", "http://[::1]:3000"}) {
    CHECK(p.allows(origin));
    CHECK(passes(p, HostCheck::kNone, {{"Origin", origin}, {"Host", "oar.example:8000"}}));
  }
  for (const char* origin : {"http://notlocalhost", "http://localhost.evil.example",
                             "http://127.0.0.1.evil.example", "localhost", "null", ""})
    CHECK_FALSE(p.allows(origin));
}

TEST_CASE("what is no origin or host is refused by name") {
  for (const char* origin :
       {"app.example", "https://", "https://a.example/", "https://a.example/path", "null", ""}) {
    const auto r = OriginPolicy::create({origin}, {});
    CHECK_THAT(r.status().message(), Contains("allowed-origins: '" + std::string(origin) + "'"));
  }
  for (const char* host : {"http://a.example", "a.example:80", "", "*.example", "[::1]"})
    CHECK_THAT(OriginPolicy::create({}, {host}).status().message(),
               Contains("allowed-hosts: '" + std::string(host)));
  CHECK(OriginPolicy::create({}, {"::1", "fe80::2"}).ok());
}

TEST_CASE("pages of other sites neither generate nor load models") {
  TestServer t;
  const std::string post = "POST /v1/chat/completions HTTP/1.1\r\n";
  const std::string body = R"({"messages":[{"role":"user","content":"hi"}]})";
  const std::string plain = "Content-Type: text/plain\r\n";
  const HttpReply forged =
      ask(t.http(), post + "Host: evil.example\r\nOrigin: http://evil.example\r\n" + plain, body);
  CHECK(forged.status == 403);
  CHECK_THAT(std::string(parse(forged.body).at("error").at("message").as_string()),
             Contains("evil.example") && Contains("--allowed-hosts"));
  CHECK(ask(t.http(), post + "Host: localhost\r\nOrigin: http://evil.example\r\n" + plain, body).status ==
        403);
  CHECK(ask(t.http(), post + "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n" + plain, body).status ==
        403);
  CHECK(ask(t.http(), "POST /v2/repository/models/m/unload HTTP/1.1\r\nHost: evil.example\r\n" + plain, "{}")
            .status == 403);
  CHECK(t.engine.submitted() == 0);
  // Programs: any type or none. The page: its own origin.
  const std::string host = "Host: 127.0.0.1:" + std::to_string(t.http()) + "\r\n";
  CHECK(ask(t.http(), post + host + "Content-Type: application/x-www-form-urlencoded\r\n", body).status ==
        200);
  CHECK(ask(t.http(), post + host, body).status == 200);
  const std::string own = "Origin: http://127.0.0.1:" + std::to_string(t.http()) + "\r\n";
  CHECK(ask(t.http(), post + host + own + "Sec-Fetch-Site: same-origin\r\n", body).status == 200);
  // A link to the page.
  const HttpReply page = ask(t.http(), "GET / HTTP/1.1\r\n" + host +
                                           "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
                                           "Sec-Fetch-Dest: document\r\n");
  CHECK(page.status == 200);
}

TEST_CASE("a server of the network answers by any address, but no name that was rebound to this machine") {
  oar::ServerOptions o;
  o.http_address = "0.0.0.0:0";
  TestServer t({}, o);
  const std::string get = "GET /health HTTP/1.1\r\nHost: ";
  CHECK(ask(t.http(), get + "10.244.1.7:8000\r\n").status == 200);
  CHECK(ask(t.http(), get + "localhost\r\n").status == 200);
  CHECK(ask(t.http(), get + "evil.example\r\n").status == 403);
}

TEST_CASE("origins: what a preflight request is told can be given to the server") {
  oar::ServerOptions o;
  o.allowed_origins = {"https://app.example"};
  const auto preflight = [&](const oar::ServerOptions& options) {
    TestServer t({}, options);
    return ask(t.http(),
               "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example\r\n"
               "Access-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: x-own\r\n");
  };
  const HttpReply plain = preflight(o);
  CHECK(header_of(plain, "access-control-allow-headers") == "x-own");
  CHECK(header_of(plain, "access-control-allow-credentials").empty());
  o.cors = {"GET, POST", "authorization", true};
  const HttpReply given = preflight(o);
  CHECK(header_of(given, "access-control-allow-methods") == "GET, POST");
  CHECK(header_of(given, "access-control-allow-headers") == "authorization");
  CHECK(header_of(given, "access-control-allow-credentials") == "true");
  TestServer t({}, o);
  const auto credentials = [&](const char* origin) {
    return header_of(ask(t.http(), std::string("GET /health HTTP/1.1\r\nHost: localhost\r\n") + origin),
                     "access-control-allow-credentials");
  };
  CHECK(credentials("Origin: https://app.example\r\n") == "true");
  CHECK(credentials("").empty());
}

TEST_CASE("origins: CORS settings that no page could use are refused by name") {
  const auto refusal = [](std::vector<std::string> origins, oar::http::CorsAnswer cors) {
    FakeEngine engine;
    oar::ServerOptions o;
    o.http_address = "127.0.0.1:0";
    o.grpc_address.clear();
    o.allowed_origins = std::move(origins);
    o.cors = std::move(cors);
    return oar::Server::start(o, serving({fake_model(engine)})).status().message();
  };
  CHECK_THAT(refusal({"*"}, {"", "", true}), Contains("cors-credentials") && Contains("origin *"));
  CHECK_THAT(refusal({"https://a.example", "*"}, {"", "", true}), Contains("cors-credentials"));
  CHECK_THAT(refusal({}, {"GET", "", false}), Contains("cors-methods") && Contains("--allowed-origins"));
  CHECK_THAT(refusal({}, {"", "x", false}), Contains("cors-headers"));
  CHECK_THAT(refusal({"*"}, {"GET\r\nX: y", "", false}), Contains("cors-methods") && Contains("ASCII"));
}

}  // namespace
