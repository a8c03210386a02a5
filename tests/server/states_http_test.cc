// Chats with models that have recurrent states, or a latent, over HTTP: what the next turn finds of the one
// before it, with a template that keeps an answer whole and with one that drops its reasoning; and streams
// whose readers leave.
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/format.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
namespace json = oar::json;

constexpr const char* kWhole =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";
// As that of Qwen 3.5: an answer begins in thought, and of those before only what follows it is told.
constexpr const char* kDropping =
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]<think>{% endif %}";

struct Tiny {
  std::unique_ptr<oar::Server> server;

  Tiny(const char* golden, const char* turns, bool prefix_cache) {
    const std::string folder = write_tiny_model(load_tiny_golden(golden), TinyDtype::f32);
    std::ofstream(std::filesystem::path(folder) / "tokenizer.json") << byte_tokenizer_json(false);
    std::ofstream(std::filesystem::path(folder) / "chat_template.jinja") << turns;
    oar::LanguageModelOptions o;
    o.name = "tiny";
    o.threads = 1;
    o.max_sequences = 4;
    o.max_batch_tokens = 48;
    o.page_tokens = 16;
    o.memory_bytes = 64 << 20;
    o.prefix_cache = prefix_cache;
    o.reasoning_parser = "none";  // thoughts come as text, and go back so
    auto model = oar::LanguageModel::load(folder, o);
    REQUIRE_OK(model);
    oar::ServerOptions options;
    options.http_address = options.grpc_address = "127.0.0.1:0";
    auto started = oar::Server::start(
        options, serving({oar::make_handle(std::shared_ptr<oar::LanguageModel>(std::move(*model)))}));
    REQUIRE_OK(started);
    server = std::move(*started);
  }

  struct Answer {
    std::string text;
    int64_t prompt = 0, cached = 0;
  };
  // Letters, so that what was generated is what is told; 40 tokens.
  Answer ask(const json::array& messages) const {
    const HttpReply r =
        oar_test::http(server->http_port(), "POST", "/v1/chat/completions",
                       json::serialize(json::object{{"model", "tiny"},
                                                    {"messages", messages},
                                                    {"max_tokens", 50},
                                                    {"temperature", 0},
                                                    {"guided_regex", "[a-z]{16}</think>[a-z]{16}"}}));
    INFO(r.body);
    REQUIRE(r.status == 200);
    const json::value v = parse(r.body);
    const json::value& usage = v.at("usage");
    REQUIRE(usage.at("completion_tokens").as_int64() == 40);
    return {std::string(v.at("choices").at(0).at("message").at("content").as_string()),
            usage.at("prompt_tokens").as_int64(),
            usage.at("prompt_tokens_details").at("cached_tokens").as_int64()};
  }
  // Whether in time no block is used any more.
  bool comes_to_rest() const {
    for (int k = 0; k < 200; ++k) {
      const std::string all = oar_test::http(server->http_port(), "GET", "/metrics").body;
      REQUIRE(all.find("oar_kv_blocks{") != all.npos);
      if (all.find("state=\"used\"} 0\n") != all.npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
};

json::object said(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

}  // namespace

TEST_CASE(
    "states over HTTP: the next turn of a chat goes on from the answer, or from the prompt that it shares") {
  for (const char* golden : {"qwen3_5-long", "lfm2-long", "deepseek-v3"}) {
    for (const char* turns : {kWhole, kDropping}) {
      INFO(golden << " " << turns);
      const Tiny cached(golden, turns, true), plain(golden, turns, false);
      // Of 140 tokens where thoughts begin in it, the last 7 of which no other prompt has.
      json::array chat{said("user", std::string(116, 'q'))};
      const Tiny::Answer first = cached.ask(chat);
      CHECK(first.cached == 0);
      CHECK(first.text == plain.ask(chat).text);
      chat.push_back(said("assistant", first.text));
      chat.push_back(said("user", "and then?"));
      const Tiny::Answer second = cached.ask(chat);
      CHECK(second.text == plain.ask(chat).text);
      if (turns == kDropping) {
        CHECK(first.prompt == 140);
        CHECK(second.cached == 128);  // the prompt's last border
      } else {
        CHECK(second.cached >= first.prompt + 39 - 15);  // the answer's
      }
      CHECK(cached.ask(chat).cached == (second.prompt - 1) / 16 * 16);
    }
  }
}

TEST_CASE("states over HTTP: a stream whose reader leaves frees what it held, and changes no other") {
  for (const char* golden : {"qwen3_5-long", "mamba2-long", "deepseek-v3"}) {
    INFO(golden);
    const Tiny t(golden, kDropping, true);
    const json::array chat{said("user", std::string(60, 'x'))};
    const std::string alone = t.ask(chat).text;
    for (const bool begun : {false, true}) {
      RawClient client(t.server->http_port());
      REQUIRE(client.send(make_request("POST", "/v1/chat/completions",
                                       json::serialize(json::object{{"model", "tiny"},
                                                                    {"messages", chat},
                                                                    {"stream", true},
                                                                    {"n", 2},
                                                                    {"ignore_eos", true},
                                                                    {"max_tokens", 150}}))));
      if (begun) REQUIRE(client.read_until("data: "));
      client.reset();
      CHECK(t.ask(chat).text == alone);
    }
    CHECK(t.comes_to_rest());
  }
}
