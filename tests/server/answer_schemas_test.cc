// What /openapi.json says of answers, held against the answers: of every route, and both ways. No answer has
// a field that the description lacks, and nothing is described that no answer had.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <thread>

#include "engine/base/format.h"
#include "engine/text/tools/style.h"
#include "server/api/answer_schemas.h"
#include "tests/server/adapter_server.h"
#include "tests/server/described_answers.h"
#include "tests/server/ensemble_texts.h"
#include "tests/server/gap_tokenizer.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_repository.h"
#include "tests/server/test_server.h"
#include "tests/server/tool_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using oar::json::value;
namespace fs = std::filesystem;

std::string memory_prefix() { return cat("/oar-answers-", getpid(), "-"); }

FakeEngineOptions scripted() {
  FakeEngineOptions o;
  o.reply =
      "<think>\nLook.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
      "{\"city\": \"Bern\"}}\n</tool_call>";
  o.vocab_size = 263;
  o.max_context = 4096;
  return o;
}

// A model of each kind: "fake", which reasons and calls, "scale", the ensemble "chain", the encoders "bert"
// and "cross".
struct EveryKindServer {
  EveryKindServer() : engine(scripted()) {
    const std::string folder = write_repository();
    write_below(folder, "chain/config.pbtxt", chain());
    for (const auto& [name, golden] : {std::pair{"bert", "bert"}, {"cross", "bert-classifier"}})
      fs::copy(write_tiny_encoder(golden), fs::path(folder) / name, fs::copy_options::recursive);
    oar::RepositoryOptions r;
    r.predictor.threads = 1;
    auto opened = oar::open_repository(folder, "", r);
    REQUIRE_OK(opened);
    const std::shared_ptr<oar::api::ModelCatalog> catalog = std::move(*opened);
    oar::ModelHandle model = fake_model(engine);
    model.tokenizer = gap_tokenizer();
    model.constraints = std::make_shared<oar::grammar::ConstraintCompiler>(model.tokenizer);
    model.chat_template = &tool_template(false);
    model.tool_style = *oar::tools::find_tool_style("hermes", {});
    model.reasoning_style = *oar::tools::find_reasoning_style("think", {});
    model.info.path = folder;
    REQUIRE(catalog->add({std::make_shared<oar::ModelHandle>(std::move(model)), nullptr}).ok());
    oar::ServerOptions o;
    o.http_address = "127.0.0.1:0";
    o.grpc_address.clear();
    o.model_control = true;
    o.files = (fs::path(temp_dir()) / "answer-files").string();
    o.shared_memory = memory_prefix();
    fs::remove_all(o.files);
    auto started = oar::Server::start(std::move(o), catalog);
    REQUIRE_OK(started);
    server = std::move(*started);
  }
  FakeEngine engine;
  std::unique_ptr<oar::Server> server;
};

// One way to ask, and a server.
struct Client {
  Described& api;
  int port;
  HttpReply get(const std::string& path, std::vector<std::string> names = {}, std::string query = {}) const {
    return api.ask(port, {"GET", path, "", std::move(names), std::move(query)});
  }
  HttpReply post(const std::string& path, const std::string& body = "{}",
                 std::vector<std::string> names = {}) const {
    return api.ask(port, {"POST", path, body, std::move(names)});
  }
  std::string made(const std::string& path, const std::string& body = "{}",
                   std::vector<std::string> names = {}) const {
    return std::string(parse(post(path, body, std::move(names)).body).at("id").as_string());
  }
};

const std::string kChat = R"("messages":[{"role":"user","content":"q"}])";
const std::string kUsage = R"("stream":true,"stream_options":{"include_usage":true})";

void ask_openai(const Client& c) {
  const std::string chat = "/v1/chat/completions", text = "/v1/completions";
  c.post(chat, cat("{", kChat, ",", kTools, R"(,"logprobs":true,"top_logprobs":2,"prompt_logprobs":1})"));
  c.post(chat, cat("{", kChat, R"(,"max_tokens":3})"));
  c.post(chat, cat("{", kChat, ",", kTools, ",", kUsage, R"(,"logprobs":true,"top_logprobs":2})"));
  c.post(text, R"({"prompt":"q","max_tokens":9,"logprobs":2,"prompt_logprobs":1,"stop":["hin"]})");
  c.post(text, cat(R"({"prompt":["q","r"],"max_tokens":9,"logprobs":1,)", kUsage, "}"));
  c.post(text, R"({"prompt":"q","suffix":"z"})");
  const std::string timed = R"(,"timings_per_token":true,"return_progress":true,"request_metrics":true)";
  for (const std::string& more : {std::string("}"), cat(",", kUsage, "}")}) {
    c.post(chat, cat("{", kChat, timed, more));
    c.post(text, cat(R"({"prompt":"q")", timed, more));
  }
  const std::string stored = c.made(chat, cat("{", kChat, R"(,"store":true,"metadata":{"k":"v"}})"));
  c.get(chat);
  c.get("/chat/completions");
  c.get("/openai/deployments/{model}/chat/completions", {"fake"});
  c.get(chat + "/{id}", {stored});
  c.get(chat + "/{id}/messages", {stored});
  c.post(chat + "/{id}", R"({"metadata":{"k":"w"}})", {stored});
  c.api.ask(c.port, {"DELETE", chat + "/{id}", "", {stored}});
  c.post("/v1/decisions",
         R"({"input":"q","questions":[{"type":"predicate","instructions":"?"},{"type":"choice","name":"n",)"
         R"("instructions":"?","choices":[{"value":"a"},{"value":true}]},{"type":"score","instructions":"?",)"
         R"("levels":[{"label":"a"},{"label":"b"}]}]})");
  c.get("/load");
  c.get("/ping");
  for (const char* more : {"}", R"(,"stream":true})"}) {
    c.post("/invocations", cat("{", kChat, R"(,"max_tokens":3)", more));
    c.post("/invocations", cat(R"({"prompt":"q","max_tokens":3)", more));
  }
  for (const char* more : {R"(,"verbose":true,"return_token_ids":true})",
                           R"(,"verbose":true,"return_token_ids":true,"stream":true})"}) {
    c.post(chat, cat("{", kChat, R"(,"max_tokens":3)", more));
    c.post("/chat/completions", cat("{", kChat, R"(,"max_tokens":3)", more));
    c.post(text, cat(R"({"prompt":"q","max_tokens":3)", more));
    const std::string azure = "/openai/deployments/{model}";
    c.post(azure + chat.substr(3), cat("{", kChat, R"(,"max_tokens":3)", more), {"fake"});
    c.post(azure + text.substr(3), cat(R"({"prompt":"q","max_tokens":3)", more), {"fake"});
  }
  for (const char* path : {"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"})
    c.post(path, cat("{", kChat, "}"));
  c.post("/v1/responses/input_tokens", R"({"input":"q"})");
  for (const char* more : {"}", R"(,"stream":true})"})
    c.post("/responses", cat(R"({"input":"q","max_output_tokens":16)", more));
  c.get("/models");
  c.get("/v1/models");
  for (const char* model : {"fake", "bert"}) c.get("/v1/models/{id}", {model});
  c.api.ask(c.port, {"GET", "/v1/models", "", {}, {}, "", {{"anthropic-version", "2023-06-01"}}});
  c.api.ask(c.port, {"GET", "/v1/models/{id}", "", {"fake"}, {}, "", {{"anthropic-version", "2023-06-01"}}});

  const std::string said =
      R"({"input":"q","instructions":"be brief","metadata":{"k":"v"},"tools":[{"type":"function",)"
      R"("name":"get_weather","parameters":{"type":"object"}}])";
  const std::string id = c.made("/v1/responses", said + "}");
  c.post("/v1/responses", said + R"(,"stream":true})");
  c.post("/v1/responses", R"({"input":"q","max_output_tokens":16,"tool_choice":"none"})");
  c.post("/v1/responses",
         R"({"input":"q","max_output_tokens":4,"top_logprobs":2,"enable_response_messages":true})");
  c.get("/v1/responses/{id}", {id});
  c.get("/v1/responses/{id}", {id}, "?stream=true");
  const std::string talks = "/v1/conversations", talk = talks + "/{id}", items = talk + "/items";
  const std::string in = c.made(talks, R"({"items":[{"role":"user","content":"q"}],"metadata":{"k":"v"}})");
  c.get(talk, {in});
  c.post(talk, R"({"metadata":{"k":"w"}})", {in});
  c.post("/v1/responses", cat(R"({"input":"q","conversation":")", in, "\"}"));
  c.post(items, R"({"items":[{"role":"user","content":"r"}]})", {in});
  const std::string item(parse(c.get(items, {in}).body).at("data").at(0).at("id").as_string());
  c.get(items + "/{item}", {in, item});
  c.api.ask(c.port, {"DELETE", items + "/{item}", "", {in, item}});
  c.api.ask(c.port, {"DELETE", talk, "", {in}});
  c.get("/v1/responses/{id}/input_items", {id});
  c.post("/v1/responses/{id}/cancel", "", {id});
  c.api.ask(c.port, {"DELETE", "/v1/responses/{id}", "", {id}});

  const std::string messages = R"({"messages":[{"role":"user","content":"q"}],"max_tokens":)",
                    tools = R"(300,"tools":[{"name":"get_weather","input_schema":{"type":"object"}}])";
  for (const std::string& more :
       {std::string("4"), std::string(R"(99,"stop_sequences":["mom"])"), tools,
        tools + R"(,"thinking":{"type":"enabled","budget_tokens":200})", tools + R"(,"stream":true)"})
    c.post("/v1/messages", messages + more + "}");
  c.post("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"q"}]})");
}

void ask_batches(const Client& c) {
  const auto upload = [&](const std::string& content, const std::string& more = {}) {
    const std::string form =
        cat("--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n", more,
            "--b\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n", content, "\r\n--b--");
    const HttpReply r =
        c.api.ask(c.port, {"POST", "/v1/files", form, {}, {}, "multipart/form-data; boundary=b"});
    return std::string(parse(r.body).at("id").as_string());
  };
  const std::string line = R"({"custom_id":"r","method":"POST","url":"/v1/completions",)"
                           R"("body":{"prompt":"p","max_tokens":4}})";
  std::string batch;
  for (const std::string& content : {line, line.substr(1), line}) {
    const std::string file =
        upload(content + "\n",
               "--b\r\nContent-Disposition: form-data; name=\"expires_after[anchor]\"\r\n\r\ncreated_at\r\n"
               "--b\r\nContent-Disposition: form-data; name=\"expires_after[seconds]\"\r\n\r\n3600\r\n");
    batch = c.made("/v1/batches", cat(R"({"input_file_id":")", file,
                                      R"(","endpoint":"/v1/completions","completion_window":"24h",)"
                                      R"("metadata":{"k":"v"}})"));
    const std::set<std::string> ends = {"completed", "failed"};
    std::string status;
    for (int i = 0; i < 2000 && !ends.contains(status); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      status = parse(http(c.port, "GET", "/v1/batches/" + batch).body).at("status").as_string();
    }
    REQUIRE(ends.contains(status));
    c.get("/v1/batches/{id}", {batch});
    c.get("/v1/files/{id}", {file});
  }
  c.get("/v1/batches");
  c.get("/v1/files", {}, "?limit=1");
  std::string many;  // so that the batch is not over before it is cancelled
  for (int i = 0; i < 1000; ++i)
    many += cat(R"({"custom_id":"r)", i, R"(","method":"POST","url":"/v1/completions",)",
                R"("body":{"prompt":"p","max_tokens":64}})", "\n");
  const std::string file = upload(many);
  c.get("/v1/files/{id}/content", {file});
  const std::string other = c.made(
      "/v1/batches",
      cat(R"({"input_file_id":")", file, R"(","endpoint":"/v1/completions","completion_window":"24h"})"));
  c.post("/v1/batches/{id}/cancel", "", {other});
  c.api.ask(c.port, {"DELETE", "/v1/files/{id}", "", {upload(line)}});
}

void ask_encoders(const Client& c) {
  for (const char* path : {"/v1/embeddings", "/embeddings", "/v1/pooling", "/pooling", "/api/embed"})
    c.post(path, R"({"model":"bert","input":["w5 w6","w7"]})");
  c.post("/v1/embeddings", R"({"model":"bert","input":"w5","encoding_format":"base64"})");
  c.post("/openai/deployments/{model}/embeddings", R"({"model":"bert","input":"w5"})", {"bert"});
  c.post("/pooling", R"({"model":"bert","input":"w5","encoding_format":"base64"})");
  c.post("/api/embeddings", R"({"model":"bert","prompt":"w5"})");
  for (const char* path : {"/v1/classify", "/classify"})
    c.post(path, R"({"model":"cross","input":["w5","w6"]})");
  for (const char* path : {"/v1/score", "/score"})
    c.post(path, R"({"model":"cross","text_1":"w5","text_2":["w6","w7"]})");
  for (const char* path : {"/v1/score", "/score"})
    c.post(path, R"({"model":"fake","query":"q","items":["a","b"],"label_token_ids":[97,98]})");
  for (const char* path : {"/v1/rerank", "/rerank", "/v2/rerank", "/reranking", "/v1/reranking"}) {
    c.post(path, R"({"model":"cross","query":"w5","documents":["w6","w7"],"return_documents":true})");
    c.post(path, R"({"model":"cross","query":"w5","texts":["w6","w7"],"return_text":true})");
  }
}

// What is listed while a completion runs.
void ask_slots(const Client& c) {
  RawClient runs(c.port);
  REQUIRE(runs.send(make_request("POST", "/completion",
                                 R"({"prompt":"q","stream":true,"ignore_eos":true,"n_predict":4000})",
                                 {{"Content-Type", kJson}})));
  REQUIRE(runs.read_until("data:"));
  c.get("/slots");
}

void ask_llama(const Client& c) {
  for (const char* path : {"/completion", "/completions"}) {
    c.post(path, R"({"prompt":"q","n_probs":2,"return_tokens":true,"seed":7})");
    c.post(path, R"({"prompt":["q","r"],"n_predict":3})");
    c.post(path, R"({"prompt":"q","n_probs":2,"stream":true,"return_progress":true})");
    c.post(path, R"({"prompt":"q","n_probs":2,"post_sampling_probs":true})");
  }
  c.post("/infill", R"({"input_prefix":"a","input_suffix":"z"})");
  c.post("/infill", R"({"input_prefix":"a","input_suffix":"z","stream":true})");
  c.post("/apply-template", cat("{", kChat, "}"));
  c.get("/props");
  c.get("/slots");
  ask_slots(c);
  c.post("/props");
  c.post("/slots/{id}", "{}", {"0"});
  c.post("/tokenize", R"({"prompt":"ab","return_token_strs":true})");
  c.post("/tokenize", R"({"prompt":"ab"})");
  c.post("/tokenize", R"({"content":"ab","with_pieces":true})");
  c.post("/detokenize", R"({"tokens":[97]})");
}

void ask_ollama(const Client& c) {
  const std::string logs = R"(,"logprobs":true,"top_logprobs":1)";
  for (const char* stream : {"true", "false"}) {
    const std::string form = cat(R"("model":"fake","stream":)", stream, R"(,"options":{"num_predict":300})");
    c.post("/api/chat", cat("{", form, ",", kChat, ",", kTools, logs, "}"));
    c.post("/api/generate", cat("{", form, R"(,"prompt":"q")", logs, "}"));
  }
  c.post("/api/generate", R"({"model":"fake","prompt":"","stream":false})");
  for (const char* path : {"/api/tags", "/api/ps", "/api/version"}) c.get(path);
  for (const char* model : {"fake", "bert"})
    c.post("/api/show", cat(R"({"model":")", model, R"(","verbose":true})"));
  for (const char* path : {"/api/pull", "/api/create", "/api/copy", "/api/push"}) c.post(path);
  c.post("/api/blobs/{digest}", "x", {"sha256:0"});
  c.api.ask(c.port, {"DELETE", "/api/delete", "{}"});
}

void ask_memory(const Client& c) {
  const std::string key = memory_prefix() + "m", one = "/v2/systemsharedmemory/region/{name}";
  const int fd = shm_open(key.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  REQUIRE(fd >= 0);
  const bool sized = ftruncate(fd, 64) == 0;
  close(fd);
  CHECK(sized);
  c.post(one + "/register", cat(R"({"key":")", key, R"(","byte_size":64})"), {"r"});
  c.get("/v2/systemsharedmemory/status");
  c.get(one + "/status", {"r"});
  c.post("/v2/models/{model}/infer",
         R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}],"outputs":[{"name":"y",)"
         R"("parameters":{"shared_memory_region":"r","shared_memory_byte_size":12}}]})",
         {"scale"});
  c.post(one + "/unregister", "{}", {"r"});
  c.post("/v2/systemsharedmemory/unregister");
  shm_unlink(key.c_str());
  c.get("/v2/cudasharedmemory/status");
  c.post("/v2/cudasharedmemory/unregister", "{}");
  c.get("/v2/cudasharedmemory/region/{rest}", {"x/status"});
  c.post("/v2/cudasharedmemory/region/{rest}", "{}", {"x/unregister"});
}

void ask_tensors(const Client& c) {
  const auto row = [](const char* input, const char* more) {
    return cat(R"({"id":"7","inputs":[{"name":")", input,
               R"(","datatype":"FP32","shape":[1,3],"data":[1,2,4]}])", more, "}");
  };
  const std::string prompt = R"({"id":"7","text_input":"q","parameters":{"max_tokens":4}})";
  for (const std::string of : {"/v2/models/{model}", "/v2/models/{model}/versions/{version}"}) {
    for (const char* more : {"", R"(,"parameters":{"binary_data_output":true})"})
      c.post(of + "/infer", row("x", more), {"scale", "1"});
    c.post(of + "/generate", prompt, {"fake", "1"});
    c.post(of + "/generate_stream", prompt, {"fake", "1"});
    for (const char* model : {"scale", "chain", "fake", "bert"})
      for (const char* about : {"", "/ready", "/config", "/stats"}) c.get(of + about, {model, "1"});
  }
  c.post("/v2/models/{model}/infer", row("raw", ""), {"chain"});
  c.post("/v2/models/{model}/infer",
         R"({"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["q"]}]})", {"fake"});
  c.get("/v2/models/stats");
  c.post("/v2/repository/index");
  c.post("/v2/repository/models/{model}/unload", "{}", {"two"});
  c.post("/v2/repository/index");
  c.post("/v2/repository/models/{model}/load", "{}", {"two"});
  c.post("/v1/models/{model}/unload", "", {"two"});
  c.post("/v1/models/{model}/load", "{}", {"two"});
}

void ask_settings(const Client& c) {
  for (const char* path : {"/", "/docs", "/openapi.json", "/metrics", "/version", "/health", "/health/live",
                           "/health/ready", "/v2", "/v2/health/live", "/v2/health/ready", "/is_sleeping"})
    c.get(path);
  for (const char* path : {"/v2/trace/setting", "/v2/models/{model}/trace/setting", "/v2/logging"}) {
    c.get(path, {"scale"});
    c.post(path, "{}", {"scale"});
  }
}

TEST_CASE("openapi: every route's answers are as described, and nothing is described that no answer has") {
  EveryKindServer all;
  const int port = all.server->http_port();
  Described api(parse(http(port, "GET", "/openapi.json").body).as_object());
  const Client c{api, port};
  ask_openai(c);
  ask_batches(c);
  ask_encoders(c);
  ask_llama(c);
  ask_ollama(c);
  ask_tensors(c);
  ask_memory(c);
  ask_settings(c);
  for (const auto& [method, pattern] : oar::api::answered_routes()) {
    std::string path(pattern);
    std::erase(path, '*');
    CHECK(api.has(std::string(method), path));
  }
  api.refuse(port, "POST", "/v1/chat/completions", "{}");
  api.refuse(port, "POST", "/api/show", "{}");

  // Loads and adapters need a real model.
  AdapterServer real;
  const Client a{api, real.server->http_port()};
  a.post("/v1/load_lora_adapter",
         cat(R"({"lora_name":"polite","base_model_name":"lm","lora_path":")", real.adapter, "\"}"));
  a.get("/v1/models");
  a.get("/api/ps");
  a.post("/v2/repository/index");
  a.post("/v1/unload_lora_adapter", R"({"lora_name":"polite"})");
  a.post("/sleep");
  a.get("/is_sleeping");
  a.post("/wake_up");

  FakeEngine engine;
  const auto catalog = serving({fake_model(engine)});
  catalog->call_also("fake", {"other"}, {"small"});
  oar::ServerOptions options;
  options.http_address = "127.0.0.1:0";
  options.grpc_address.clear();
  auto named = oar::Server::start(options, catalog);
  REQUIRE_OK(named);
  Client{api, (*named)->http_port()}.get("/v1/models");
  const std::string tokens = (fs::path(temp_dir()) / "token-vectors").string();
  fs::create_directories(tokens);
  fs::copy(write_tiny_encoder("bert"), fs::path(tokens) / "bert", fs::copy_options::recursive);
  oar::RepositoryOptions vectors;
  vectors.predictor.threads = 1;
  vectors.token_vectors = true;
  auto opened = oar::open_repository(tokens, "", vectors);
  REQUIRE_OK(opened);
  auto encoders = oar::Server::start(options, std::move(*opened));
  REQUIRE_OK(encoders);
  for (const char* more : {"}", R"(,"encoding_format":"base64"})"})
    Client{api, (*encoders)->http_port()}.post("/embeddings", cat(R"({"input":"w5 w6")", more));
  c.post("/pooling", R"({"model":"bert","input":"w5","task":"token_embed"})");
  for (const std::string& what : api.missing()) {
    INFO(what);
    CHECK(what == "");
  }
}

}  // namespace
