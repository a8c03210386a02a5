// The HTTP transport against clients that break the rules: each gets a clear answer or is dropped, memory and
// connections are given back, and a well-behaved neighbour's stream goes on.
#include <thread>

#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using std::chrono::milliseconds;

oar::ServerOptions small_bodies() {
  oar::ServerOptions o;
  o.http_limits.body_bytes = 1 << 20;
  return o;
}

// For tests of deadlines alone: on a busy machine a client that means well misses them too.
oar::ServerOptions short_timeouts() {
  oar::ServerOptions o = small_bodies();
  o.http_limits.header_timeout = milliseconds(200);
  o.http_limits.body_timeout = milliseconds(400);
  o.http_limits.idle_timeout = milliseconds(600);
  o.http_limits.write_timeout = milliseconds(300);
  o.http_limits.linger_timeout = milliseconds(500);
  return o;
}

const std::string kChat = R"({"messages":[{"role":"user","content":"hi"}]})";
const std::string kStream = R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"ignore_eos":true,)"
                            R"("max_tokens":400})";

// The status of the one reply to these raw bytes; the connection must end after an error.
int status_of(int port, std::string_view bytes) {
  RawClient c(port);
  c.send(bytes);
  return c.read_reply().status;
}

std::string error_message(const HttpReply& r) {
  const auto v = parse(r.body);
  const auto& error = v.at("error").as_object();
  CHECK(error.size() == 4);
  for (const char* key : {"message", "type", "param", "code"}) CHECK(error.contains(key));
  return std::string(error.at("message").as_string());
}

TEST_CASE("framing that could smuggle a request is refused") {
  TestServer t({}, small_bodies());
  const int port = t.http();
  const std::string start = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  CHECK(status_of(port, start + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n") == 400);
  CHECK(status_of(port, start + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n") == 400);
  CHECK(status_of(port, start + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello") == 400);
  CHECK(status_of(port, start + "Content-Length: -5\r\n\r\nhello") == 400);
  CHECK(status_of(port, start + "Content-Length: +5\r\n\r\nhello") == 400);
  CHECK(status_of(port, start + "Content-Length: 0x5\r\n\r\nhello") == 400);
  CHECK(status_of(port, start + "Content-Length: 99999999999999999999999\r\n\r\n") == 400);
  CHECK(status_of(port, start + "Content-Length: 9223372036854775807\r\n\r\n") == 413);
  CHECK(status_of(port, start + "Transfer-Encoding: gzip\r\n\r\n") == 501);
  CHECK(status_of(port, start + "Transfer-Encoding: chunked, gzip\r\n\r\n") == 501);
  CHECK(status_of(port, start + "Transfer-Encoding: identity\r\n\r\n") == 501);
  CHECK(status_of(port, start + "X-Folded: a\r\n b\r\n\r\n") == 400);
  CHECK(status_of(port, start + "X-Space : a\r\n\r\n") == 400);
  CHECK(status_of(port, start + "X-Bare: a\rb\r\n\r\n") == 400);
  CHECK(status_of(port, "GET /health HTTP/1.1\nHost: localhost\r\n\r\n") == 400);
  CHECK(status_of(port, std::string("GET /health HTTP/1.1\r\nHost: localhost\r\nX: a") + '\0' +
                            "b\r\n\r\n") == 400);
  CHECK(status_of(port, "GET /health HTTP/1.1\r\n\r\n") == 400);                        // no Host
  CHECK(status_of(port, "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n") == 400);  // two
  CHECK(status_of(port, "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n") ==
        400);
  CHECK(status_of(port, "GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n") == 505);
  CHECK(status_of(port, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15)) ==
        400);  // a TLS hello
  CHECK(status_of(port, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") >= 400);
  CHECK(t.engine.submitted() == 0);
}

TEST_CASE("chunk framing is checked") {
  TestServer t({}, small_bodies());
  const std::string start =
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  const auto answer = [&](const std::string& body) { return status_of(t.http(), start + body); };
  CHECK(answer("10\r\n{\"prompt\": \"abc\"\r\n1\r\n}\r\n0\r\n\r\n") == 200);
  CHECK(answer("10;name=value\r\n{\"prompt\": \"abc\"\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n") == 200);
  CHECK(answer("-1\r\nx\r\n0\r\n\r\n") == 400);
  CHECK(answer("zz\r\nx\r\n0\r\n\r\n") == 400);
  CHECK(answer("ffffffffffffffffff\r\nx\r\n0\r\n\r\n") == 400);
  CHECK(answer("7fffffffffffffff\r\nx\r\n") == 413);
  CHECK(answer("3\r\nabcXY0\r\n\r\n") == 400);
  CHECK(answer("1;" + std::string(100'000, 'e') + "\r\n") == 400);            // an endless extension
  CHECK(answer("0\r\nT: " + std::string(100'000, 'e') + "\r\n\r\n") == 400);  // an endless trailer
}

TEST_CASE("a flood of one-byte chunks is cut short") {
  oar::ServerOptions o = small_bodies();
  o.http_limits.body_bytes = 16 << 20;
  o.http_limits.body_timeout = milliseconds(20'000);
  TestServer t({}, o);
  RawClient c(t.http());
  c.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string thousand;
  for (int i = 0; i < 1000; ++i) thousand += "1\r\nx\r\n";
  int sent = 0;
  while (sent < 3'000'000 && c.send(thousand)) {
    sent += 1000;
    if (!c.receive(milliseconds(0)).empty()) break;
  }
  CHECK(sent < 3'000'000);
  CHECK(http(t.http(), "GET", "/health").status == 200);
}

TEST_CASE("sizes have limits, and the refusal reaches a client that is still sending") {
  TestServer t({}, small_bodies());
  const int port = t.http();
  const HttpReply huge_header = http(port, "GET", "/health", "", {{"X-Huge", std::string(64 << 10, 'a')}});
  CHECK(huge_header.status == 431);
  CHECK(error_message(huge_header).find("16384") != std::string::npos);
  std::string many = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 20'000; ++i) many += "a: b\r\n";
  CHECK(status_of(port, many) == 431);
  CHECK(http(port, "GET", "/" + std::string(100'000, 'a')).status == 414);
  CHECK(http(port, "GET", "/" + std::string(10'000, 'a')).status == 414);

  RawClient c(port);
  REQUIRE(c.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n"));
  const std::string part(100'000, 'x');
  int sent = 0;
  for (; sent < 80; ++sent) {
    if (!c.send(part))
      break;  // all of it is swallowed or the server has closed, never reset before the answer
  }
  const HttpReply r = c.read_reply();
  CHECK(r.status == 413);
  CHECK(error_message(r).find("1048576") != std::string::npos);
  CHECK(r.headers.at("connection") == "close");
}

TEST_CASE("bodies together have a limit") {
  oar::ServerOptions o = small_bodies();
  o.http_limits.total_body_bytes = 3000;
  o.http_limits.body_timeout = milliseconds(5000);
  TestServer t({}, o);
  const std::string half = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000\r\n\r\n{";
  RawClient first(t.http());
  first.send(half);
  RawClient probe(t.http());  // by the time this is answered the first header has been read
  probe.send(make_request("GET", "/health"));
  CHECK(probe.read_reply().status == 200);
  // One that came before the first was counted runs out of time, and the next one is refused.
  HttpReply refused;
  for (int i = 0; i < 10 && refused.status != 503; ++i) {
    RawClient second(t.http());
    second.send(half);
    refused = second.read_reply();
  }
  CHECK(refused.status == 503);
  CHECK(refused.headers.at("retry-after") == "1");
  first.close();
  int status = 503;
  for (int i = 0; i < 1000 && status == 503; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    status = http(t.http(), "POST", "/tokenize", R"({"prompt":")" + std::string(1900, 'a') + "\"}").status;
  }
  CHECK(status == 200);
}

TEST_CASE("slow clients meet a deadline in every state") {
  TestServer t({}, short_timeouts());
  RawClient idle(t.http()), header(t.http()), body(t.http());
  header.send("GET /health HTT");
  body.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"pro");
  std::atomic<bool> stop{false};
  std::thread dripper([&] {  // a slowloris: one header byte at a time, always in time for a per-byte timer
    RawClient drip(t.http());
    drip.send("GET /health HTTP/1.1\r\nHost: localhost\r\n");
    while (!stop && drip.send("a")) std::this_thread::sleep_for(milliseconds(20));
  });
  CHECK(header.read_reply().status == 408);
  CHECK(body.read_reply().status == 408);
  CHECK(idle.closed_by_peer());
  std::this_thread::sleep_for(milliseconds(900));
  stop = true;
  dripper.join();
  CHECK(http(t.http(), "GET", "/health").status == 200);
}

TEST_CASE("keep-alive, pipelining, HEAD, OPTIONS, HTTP/1.0, Expect") {
  TestServer t({}, small_bodies());
  RawClient c(t.http());
  std::string two = make_request("GET", "/health");
  two += make_request("POST", "/tokenize", R"({"prompt":"ab"})");
  two += "\r\n" + make_request("GET", "/v1/models");  // a stray empty line between requests
  REQUIRE(c.send(two));
  CHECK(c.read_reply().status == 200);
  const HttpReply tokens = c.read_reply();
  CHECK(parse(tokens.body).at("count") == 2);
  CHECK(parse(c.read_reply().body).at("data").at(0).at("id") == "fake");
  REQUIRE(c.send(make_request("HEAD", "/v1/models")));
  const HttpReply head = c.read_reply(true);
  CHECK(head.status == 200);
  CHECK(std::stoi(head.headers.at("content-length")) > 20);
  REQUIRE(c.send(make_request("OPTIONS", "/v1/completions")));
  const HttpReply options = c.read_reply();
  CHECK(options.status == 200);
  CHECK(options.headers.at("allow") == "POST");
  REQUIRE(c.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n"));
  CHECK(c.read_reply().status == 100);
  REQUIRE(c.send(R"({"prompt":"ab"})"));
  CHECK(c.read_reply().status == 200);
  REQUIRE(c.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\nContent-Length: 15\r\n\r\n"));
  CHECK(c.read_reply().status == 417);
  CHECK(c.closed_by_peer());

  RawClient old(t.http());
  old.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(kStream.size()) +
           "\r\n\r\n" + kStream);
  const std::string raw = old.receive_all();  // until close, not chunked
  CHECK(raw.find("Transfer-Encoding") == std::string::npos);
  CHECK(raw.substr(raw.size() - 14) == "data: [DONE]\n\n");
}

TEST_CASE("pipelined requests beyond the read-ahead bound wait their turn") {
  TestServer t;
  RawClient c(t.http());
  const std::string one =
      make_request("POST", "/tokenize", R"({"prompt":")" + std::string(9000, 'a') + "\"}");
  std::thread sender([&] {
    for (int i = 0; i < 100; ++i) c.send(one);  // 900 KB; the bound is 64 KB
  });
  int answered = 0;
  while (answered < 100 && c.read_reply().status == 200) ++answered;
  sender.join();
  CHECK(answered == 100);
}

TEST_CASE("a thousand requests at once, each answered on the spot, get their answers in order") {
  TestServer t;
  RawClient c(t.http());
  std::string all;
  for (int i = 0; i < 1000; ++i) all += make_request("GET", i % 10 == 9 ? "/nothing" : "/health");
  REQUIRE(c.send(all));
  for (int i = 0; i < 1000; ++i) REQUIRE(c.read_reply().status == (i % 10 == 9 ? 404 : 200));
}

TEST_CASE("paths and methods") {
  TestServer t({}, small_bodies());
  const int port = t.http();
  CHECK(http(port, "GET", "/nothing").status == 404);
  CHECK(http(port, "GET", "/../../etc/passwd").status == 404);
  CHECK(http(port, "GET", "/v1/models/..%2f..%2fetc").status == 404);
  CHECK(http(port, "GET", "/health%00").status == 400);
  CHECK(http(port, "GET", "/health%zz").status == 400);
  const HttpReply wrong = http(port, "GET", "/v1/completions");
  CHECK(wrong.status == 405);
  CHECK(wrong.headers.at("allow") == "POST");
  CHECK(error_message(wrong).find("POST") != std::string::npos);
  CHECK(http(port, "TRACE", "/health").status == 405);
  CHECK(http(port, "DELETE", "/health").status == 405);
  CHECK(http(port, "BREW", "/health").status == 405);
  CHECK(status_of(port, "CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n") >= 400);
  CHECK(status_of(port, "GET http://test/health HTTP/1.1\r\nHost: localhost\r\n\r\n") == 200);
  CHECK(http(port, "POST", "/tokenize", "\x1f\x8b", {{"Content-Encoding", "gzip"}}).status == 400);
  CHECK(http(port, "POST", "/tokenize", "{}", {{"Content-Encoding", "br"}}).status == 415);
  CHECK(http(port, "POST", "/tokenize", "{}", {{"Content-Encoding", "gzip, gzip"}}).status == 415);
  CHECK(parse(http(port, "GET", "/v2/nothing").body).at("error").is_string());
}

TEST_CASE("half-close: a finished answer arrives, a running generation counts as abandoned") {
  FakeEngineOptions slow;
  slow.step = std::chrono::milliseconds(5);
  TestServer t(slow, small_bodies());
  RawClient quick(t.http());
  quick.send(make_request("GET", "/health") + make_request("GET", "/v1/models"));
  quick.shutdown_send();
  CHECK(quick.read_reply().status == 200);
  CHECK(quick.read_reply().status == 200);
  RawClient half(t.http());
  half.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  half.shutdown_send();
  CHECK(half.receive_all().find(" 400 ") != std::string::npos);
  RawClient leaver(t.http());
  leaver.send(make_request("POST", "/v1/chat/completions", kStream));
  REQUIRE(leaver.read_until("data: "));
  leaver.shutdown_send();
  CHECK(t.engine.wait_idle());
  CHECK(t.engine.stats().finished[static_cast<size_t>(oar::FinishReason::kCancelled)] == 1);
}

TEST_CASE("a client that leaves is noticed while waiting, while streaming, and while queued") {
  FakeEngineOptions slow;
  slow.step = std::chrono::milliseconds(5);
  slow.max_running = 2;
  TestServer t(slow);
  RawClient neighbour(t.http());
  neighbour.send(make_request(
      "POST", "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"n"}],"stream":true,"ignore_eos":true,"max_tokens":400})"));
  REQUIRE(neighbour.read_until("data: "));
  const auto cancelled = [&] {
    return t.engine.stats().finished[static_cast<size_t>(oar::FinishReason::kCancelled)];
  };

  auto waiting = std::make_unique<RawClient>(t.http());  // not streaming: nothing has been sent to it yet
  waiting->send(
      make_request("POST", "/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"w"}],"ignore_eos":true,"max_tokens":400})"));
  while (t.engine.stats().running < 2) std::this_thread::sleep_for(milliseconds(1));
  auto queued = std::make_unique<RawClient>(t.http());
  queued->send(make_request("POST", "/v1/chat/completions", kStream));
  while (t.engine.stats().waiting < 1) std::this_thread::sleep_for(milliseconds(1));
  queued.reset();
  for (int i = 0; i < 2000 && cancelled() < 1; ++i) std::this_thread::sleep_for(milliseconds(1));
  CHECK(cancelled() == 1);
  waiting.reset();
  for (int i = 0; i < 2000 && cancelled() < 2; ++i) std::this_thread::sleep_for(milliseconds(1));
  CHECK(cancelled() == 2);
  RawClient streaming(t.http());
  streaming.send(make_request("POST", "/v1/chat/completions", kStream));
  REQUIRE(streaming.read_until("data: "));
  streaming.reset();
  for (int i = 0; i < 2000 && cancelled() < 3; ++i) std::this_thread::sleep_for(milliseconds(1));
  CHECK(cancelled() == 3);

  const HttpReply answer = neighbour.read_reply();
  CHECK(answer.complete);
  CHECK(answer.body.find("[DONE]") != std::string::npos);
  CHECK(t.engine.wait_idle());
  CHECK(t.engine.stats().blocks_used == 0);
}

TEST_CASE("a client that never reads is dropped and its sequences are freed") {
  FakeEngineOptions fast;
  fast.step = std::chrono::microseconds(20);
  fast.max_context = 1 << 20;
  TestServer t(fast, short_timeouts());
  RawClient c(t.http(), 4096);  // a small receive window, so that the kernel's buffers fill soon
  c.send(make_request("POST", "/v1/chat/completions",
                      R"({"messages":[{"role":"user","content":"x"}],"stream":true,"ignore_eos":true,)"
                      R"("n":64,"max_tokens":1000000})"));
  for (int i = 0; i < 20'000 && t.engine.stats().finished[3] == 0; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  CHECK(t.engine.wait_idle());
  CHECK(t.engine.stats().finished[static_cast<size_t>(oar::FinishReason::kCancelled)] == 64);
  CHECK(http(t.http(), "GET", "/health").status == 200);
}

TEST_CASE("readers that are behind leave their slots, and read the same text later") {
  constexpr int kSlots = 2, kTokens = 2000, kChoices = 8;
  FakeEngineOptions fast;
  fast.step = std::chrono::microseconds(20);
  fast.max_context = 1 << 20;
  fast.max_running = kSlots;
  TestServer t(fast);
  const std::string body = oar::cat(R"({"prompt":"x","stream":true,"ignore_eos":true,"logprobs":5,"n":)",
                                    kChoices, R"(,"max_tokens":)", kTokens, "}");
  std::vector<std::unique_ptr<RawClient>> behind;
  for (int i = 0; i < kSlots; ++i) {
    behind.push_back(std::make_unique<RawClient>(t.http(), 4096));
    behind.back()->send(make_request("POST", "/v1/completions", body));
  }
  // Until the system's buffers are full as well, they come back now and then.
  const auto all_suspended = [&] {
    for (int i = 0; i < 20'000 && t.engine.stats().suspended < kSlots; ++i)
      std::this_thread::sleep_for(milliseconds(1));
    return t.engine.stats().suspended == kSlots;
  };
  REQUIRE(all_suspended());
  CHECK(http(t.http(), "POST", "/v1/chat/completions", kChat).status == 200);
  CHECK(all_suspended());
  std::string want;
  while (want.size() < kTokens) want += fast.reply;
  want.resize(want.find_last_of(' ', kTokens));  // the last character may be cut
  for (auto& client : behind) {
    const HttpReply reply = client->read_reply();
    CHECK(reply.complete);
    std::vector<std::string> texts(kChoices);
    for (const std::string& data : sse_data(reply.body)) {
      if (data == "[DONE]") continue;
      const auto event = parse(data);
      for (const auto& choice : event.at("choices").as_array())
        texts[static_cast<size_t>(choice.at("index").as_int64())] += choice.at("text").as_string();
    }
    for (const std::string& text : texts) {
      CHECK(text.size() > kTokens - 8);
      CHECK(text.substr(0, want.size()) == want);
    }
  }
  CHECK(t.engine.wait_idle());
}

TEST_CASE("too many connections: the one that was idle longest makes room") {
  oar::ServerOptions o;
  o.http_limits.max_connections = 3;
  TestServer t({}, o);
  RawClient a(t.http()), b(t.http()), c(t.http());
  const auto ask = [](RawClient& client) {
    client.send(make_request("GET", "/v1/models"));
    const int status = client.read_reply().status;
    // The server notes that the connection waits once the answer has left, which its client cannot see.
    std::this_thread::sleep_for(milliseconds(100));
    return status;
  };
  CHECK(ask(a) == 200);
  CHECK(ask(b) == 200);
  CHECK(ask(c) == 200);
  CHECK(ask(a) == 200);  // now b waits longest
  RawClient extra(t.http());
  CHECK(ask(extra) == 200);
  CHECK(b.closed_by_peer());
  CHECK(ask(a) == 200);
  CHECK(ask(c) == 200);
}

TEST_CASE("thousands of idle connections keep nobody out") {
  oar::ServerOptions o;
  o.http_limits.max_connections = 64;
  TestServer t({}, o);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(std::make_unique<RawClient>(t.http()));
    if (i % 2) idle.back()->send("GET /slow HTTP/1.1\r\n");  // a header that does not end
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(http(t.http(), "GET", "/health/live").status == 200);
    CHECK(http(t.http(), "POST", "/v1/chat/completions", kChat).status == 200);
  }
  const std::string metrics = http(t.http(), "GET", "/metrics").body;
  const size_t at = metrics.find("\noar_http_connections ");
  REQUIRE(at != std::string::npos);
  CHECK(std::stoi(metrics.substr(at + 22)) <= 64 + static_cast<int>(oar::http::kVitalConnections));
}

TEST_CASE("where every connection is busy, health and metrics still answer") {
  oar::ServerOptions o;
  o.http_limits.max_connections = 3;
  TestServer t({}, o);
  std::vector<std::unique_ptr<RawClient>> busy;
  for (int i = 0; i < 3; ++i) {
    busy.push_back(std::make_unique<RawClient>(t.http()));
    busy.back()->send(make_request("POST", "/v1/chat/completions", kStream));
    REQUIRE(busy.back()->read_until("data: "));
  }
  t.engine.pause(true);
  for (int i = 0; i < 40; ++i) CHECK(http(t.http(), "GET", "/health/live").status == 200);
  CHECK(http(t.http(), "GET", "/metrics").status == 200);
  const HttpReply full = http(t.http(), "GET", "/v1/models");
  CHECK(full.status == 503);
  CHECK(full.headers.at("retry-after") == "1");
  CHECK(full.headers.at("connection") == "close");
  busy[0]->reset();
  int status = 0;
  for (int i = 0; i < 200 && status != 200; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    status = http(t.http(), "GET", "/v1/models").status;
  }
  CHECK(status == 200);
}

TEST_CASE("many connections that come and go leave nothing behind") {
  TestServer t;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 20; ++i) {
      clients.push_back(std::make_unique<RawClient>(t.http()));
      clients.back()->send(make_request("POST", "/v1/chat/completions", i % 2 ? kStream : kChat));
      if (i % 3 == 0) clients.back()->reset();
    }
  }
  CHECK(t.engine.wait_idle());
  std::string metrics;
  for (int i = 0; i < 1000; ++i) {
    metrics = http(t.http(), "GET", "/metrics").body;
    if (metrics.find("oar_http_connections 1\n") != std::string::npos) break;
    std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(metrics.find("oar_http_connections 1\n") != std::string::npos);
}

}  // namespace
