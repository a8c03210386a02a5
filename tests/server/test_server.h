// A complete Server over a FakeEngine and a byte-level tokenizer: token id b is the byte b, 256 is <s>, 257
// </s>, 258 <|user|>, 259 <|assistant|>.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "server/server.h"
#include "tests/server/fake_engine.h"

namespace oar_test {

std::shared_ptr<const oar::Tokenizer> byte_tokenizer();
// The tokenizer.json of it, or of the 256 bytes alone.
std::string byte_tokenizer_json(bool special_tokens);
// "<s>" then "<|role|>content" per message, "<|assistant|>" when a generation prompt is asked for; raises for
// a role "function".
const oar::ChatTemplate& simple_template();
oar::ModelHandle fake_model(oar::Engine& engine, std::string name = "fake");
std::shared_ptr<oar::api::ModelCatalog> serving(std::vector<oar::ModelHandle> models);

struct TestServer {
  explicit TestServer(FakeEngineOptions engine_options = {}, oar::ServerOptions options = {});

  int http() const { return server->http_port(); }
  int grpc() const { return server->grpc_port(); }

  FakeEngine engine;
  std::shared_ptr<oar::api::ModelCatalog> catalog;
  std::unique_ptr<oar::Server> server;
};

// Parsed JSON; throws on anything else, which fails the test.
oar::json::value parse(const std::string& text);

}  // namespace oar_test
