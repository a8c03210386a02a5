#include "tests/server/test_server.h"

#include <stdexcept>

#include "engine/text/utf8.h"

namespace oar_test {

using oar::json::array;
using oar::json::object;

namespace {

// GPT-2's printable stand-ins: bytes that are printable Latin-1 stand for themselves, the rest for U+0100
// onwards.
std::string byte_letter(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  if (printable(byte)) return oar::to_utf8(static_cast<char32_t>(byte));
  int rank = 0;
  for (int b = 0; b < byte; ++b) rank += !printable(b);
  return oar::to_utf8(static_cast<char32_t>(256 + rank));
}

}  // namespace

std::string byte_tokenizer_json(bool special_tokens) {
  object vocab;
  for (int b = 0; b < 256; ++b) vocab[byte_letter(b)] = b;
  array added;
  int id = 256;
  for (const char* text : {"<s>", "</s>", "<|user|>", "<|assistant|>"}) {
    if (!special_tokens) break;
    added.push_back(object{{"id", id++},
                           {"content", text},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"normalized", false},
                           {"special", true}});
  }
  const object byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  return serialize(object{{"version", "1.0"},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model", object{{"type", "BPE"}, {"vocab", vocab}, {"merges", array{}}}}});
}

std::shared_ptr<const oar::Tokenizer> byte_tokenizer() {
  static const std::shared_ptr<const oar::Tokenizer> tokenizer = [] {
    auto made = oar::tokenizer_from_json(byte_tokenizer_json(true));
    if (!made.ok()) throw std::runtime_error(made.status().message());
    return *made;
  }();
  return tokenizer;
}

const oar::ChatTemplate& simple_template() {
  static const oar::ChatTemplate made = [] {
    auto parsed = oar::ChatTemplate::parse(
        "<s>{% for m in messages %}{% if m['role'] == 'function' %}{{ raise_exception('no functions here') }}"
        "{% endif %}<|{{ m['role'] }}|>{{ m['content'] }}{% if tail is defined %}{{ tail }}{% endif %}{% "
        "endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}");
    if (!parsed.ok()) throw std::runtime_error(parsed.status().message());
    return *parsed;
  }();
  return made;
}

oar::ModelHandle fake_model(oar::Engine& engine, std::string name) {
  oar::ModelHandle model;
  model.name = std::move(name);
  model.engine = &engine;
  model.tokenizer = byte_tokenizer();
  model.constraints = std::make_shared<oar::grammar::ConstraintCompiler>(model.tokenizer);
  model.chat_template = &simple_template();
  model.info.architecture = "FakeForCausalLM";
  model.info.max_context = engine.request_limits().max_context;
  model.end_tokens = {257};
  model.bos_token = "<s>";
  model.eos_token = "</s>";
  return model;
}

std::shared_ptr<oar::api::ModelCatalog> serving(std::vector<oar::ModelHandle> models) {
  auto catalog = std::make_shared<oar::api::ModelCatalog>();
  for (oar::ModelHandle& m : models) {
    const oar::Status s = catalog->add({std::make_shared<oar::ModelHandle>(std::move(m)), nullptr});
    if (!s.ok()) throw std::runtime_error(s.message());
  }
  return catalog;
}

TestServer::TestServer(FakeEngineOptions engine_options, oar::ServerOptions options)
    : engine(std::move(engine_options)), catalog(serving({fake_model(engine)})) {
  // The tests that listen elsewhere say so.
  const oar::ServerOptions usual;
  if (options.http_address == usual.http_address) options.http_address = "127.0.0.1:0";
  if (options.grpc_address == usual.grpc_address) options.grpc_address = "127.0.0.1:0";
  auto started = oar::Server::start(std::move(options), catalog);
  if (!started.ok()) throw std::runtime_error(started.status().message());
  server = std::move(*started);
}

oar::json::value parse(const std::string& text) { return oar::json::parse(text); }

}  // namespace oar_test
