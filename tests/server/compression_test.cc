// gzip and deflate: bodies come back whole, bombs and broken ones are refused with a bound on what is held,
// and over HTTP tensors travel compressed both ways.
#include "server/http/compression.h"

#include "server/http/http_server.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;   // NOLINT
using namespace oar::http;  // NOLINT

std::string words(size_t bytes) {
  std::string out;
  for (size_t i = 0; out.size() < bytes; ++i) out += std::to_string(i * i % 9973) + ' ';
  out.resize(bytes);
  return out;
}

TEST_CASE("compression: there and back, to the byte") {
  for (const Coding coding : {Coding::kGzip, Coding::kDeflate})
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{65535}, size_t{65536}, size_t{65537}, size_t{1000000}}) {
      INFO(coding_name(coding) << " " << bytes);
      const std::string text = words(bytes), packed = compress(text, coding);
      if (bytes > 1000) CHECK(packed.size() < bytes);
      const auto back = decompress(packed, coding, bytes);  // just fits
      REQUIRE_OK(back);
      CHECK(*back == text);
      if (bytes > 0)
        CHECK(decompress(packed, coding, bytes - 1).status().code() == oar::StatusCode::kOutOfRange);
      const Coding other = coding == Coding::kGzip ? Coding::kDeflate : Coding::kGzip;
      CHECK(decompress(packed, other, 1 << 20).status().code() == oar::StatusCode::kInvalidArgument);
      CHECK(decompress(packed + "x", coding, 1 << 20).status().code() == oar::StatusCode::kInvalidArgument);
      for (const size_t cut : {size_t{1}, packed.size() / 2, packed.size() - 1})
        CHECK(decompress(packed.substr(0, packed.size() - cut), coding, 1 << 20).status().code() ==
              oar::StatusCode::kInvalidArgument);
    }
  CHECK_FALSE(decompress("", Coding::kGzip, 10).ok());
}

TEST_CASE("compression: names and weights of codings") {
  CHECK(read_coding("") == Coding::kIdentity);
  CHECK(read_coding(" GZip ") == Coding::kGzip);
  CHECK(read_coding("deflate") == Coding::kDeflate);
  CHECK_FALSE(read_coding("br").has_value());
  CHECK_FALSE(read_coding("gzip, deflate").has_value());
  CHECK(accepted_coding("") == Coding::kIdentity);
  CHECK(accepted_coding("br, zstd") == Coding::kIdentity);
  CHECK(accepted_coding("deflate, gzip") == Coding::kGzip);
  CHECK(accepted_coding("gzip;q=0.2, deflate;q=0.5") == Coding::kDeflate);
  CHECK(accepted_coding("gzip;q=0, deflate;q=0.0") == Coding::kIdentity);
  CHECK(accepted_coding("gzip;q=x") == Coding::kIdentity);
  CHECK(accepted_coding(";;,,gzip ; q=1") == Coding::kGzip);
}

TEST_CASE("compression over HTTP: requests everywhere, answers below /v2") {
  oar::ServerOptions options;
  options.http_limits.body_bytes = 100'000;
  FakeEngineOptions engine;
  engine.max_context = 2048;
  engine.reply = std::string(800, '"');  // each is two bytes of JSON
  TestServer t(engine, options);
  const std::string prompt = words(200);
  const std::string body = R"({"text_input":")" + prompt + R"(","parameters":{"max_tokens":3}})";
  const auto generate = [&](const std::string& bytes, const Headers& headers) {
    return http(t.http(), "POST", "/v2/models/fake/generate", bytes, headers);
  };
  const HttpReply plain = generate(body, {});
  REQUIRE(plain.status == 200);
  CHECK(plain.headers.count("content-encoding") == 0);
  for (const Coding coding : {Coding::kGzip, Coding::kDeflate}) {
    const HttpReply r = generate(compress(body, coding), {{"Content-Encoding", coding_name(coding)}});
    CHECK(r.status == 200);
    CHECK(r.body == plain.body);
  }
  CHECK(generate(body, {{"Content-Encoding", "gzip"}}).status == 400);
  // A bomb: small on the wire, beyond the bound on bodies.
  const HttpReply bomb =
      generate(compress(std::string(5'000'000, ' '), Coding::kGzip), {{"Content-Encoding", "gzip"}});
  CHECK(bomb.status == 413);

  // Short answers are sent as they are, and so are those that are no tensors.
  CHECK(http(t.http(), "GET", "/v2/models/fake", "", {{"Accept-Encoding", "gzip"}})
            .headers.count("content-encoding") == 0);
  const HttpReply long_answer =
      generate(R"({"text_input":"q","parameters":{"max_tokens":700}})", {{"Accept-Encoding", "gzip"}});
  CHECK(long_answer.body.size() > 1024);
  CHECK(long_answer.headers.count("content-encoding") == 0);
  const HttpReply page = http(t.http(), "GET", "/openapi.json", "", {{"Accept-Encoding", "gzip"}});
  CHECK(page.headers.count("content-encoding") == 0);
}

}  // namespace
