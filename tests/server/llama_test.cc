// llama.cpp's native endpoints: fields arrive at the engine, chunks add up to the whole answer, counts and
// times are there, gaps are filled, and what has no meaning here is refused by name in its shape.
#include <cmath>
#include <thread>

#include "engine/base/format.h"
#include "tests/server/gap_tokenizer.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using oar::json::value;

value answered(const HttpReply& r) {
  INFO(r.body);
  REQUIRE(r.status == 200);
  return parse(r.body);
}

value refusal(const HttpReply& r, int status = 400) {
  INFO(r.body);
  CHECK(r.status == status);
  value error = parse(r.body).at("error");
  CHECK(error.as_object().size() == 3);
  CHECK(error.at("code") == status);
  return error;
}

std::string text_of(const value& v) { return std::string(v.as_string()); }

FakeEngineOptions says(const char* reply) {
  FakeEngineOptions o;
  o.reply = reply;
  return o;
}

TEST_CASE("llama completion: whole, in chunks, and what ended it") {
  TestServer t(says("One.\nTwo STOP three"));
  const auto ask = [&](const std::string& fields, const char* path = "/completion") {
    return http(t.http(), "POST", path, R"({"prompt":"q",)" + fields + "}");
  };
  const value whole = answered(ask(R"("n_predict":100,"temperature":0.5,"repeat_penalty":1.5,"seed":7,)"
                                   R"("cache_prompt":true,"id_slot":-1,"n_probs":2,"return_tokens":true)"));
  CHECK(whole.at("content") == "One.\nTwo STOP three");
  CHECK(whole.at("stop") == true);
  CHECK(whole.at("stop_type") == "eos");
  CHECK(whole.at("has_new_line") == true);
  CHECK(whole.at("prompt") == "q");
  CHECK(whole.at("tokens").as_array().size() == 19);
  CHECK(whole.at("tokens_evaluated") == 1);
  CHECK(whole.at("tokens_predicted") == 20);  // the end too
  CHECK(whole.at("generation_settings").at("repeat_penalty").to_number<float>() == 1.5f);
  CHECK(whole.at("generation_settings").at("seed").to_number<int>() == 7);
  const value& probabilities = whole.at("completion_probabilities");
  REQUIRE(probabilities.as_array().size() == 19);
  CHECK(probabilities.at(0).at("token") == "O");
  CHECK(probabilities.at(0).at("id") == 'O');
  const value& timings = whole.at("timings");
  CHECK(timings.at("prompt_n") == 1);
  CHECK(timings.at("predicted_n") == 20);
  CHECK(timings.at("predicted_ms").to_number<double>() > 0);
  CHECK(t.engine.last_request().sampling.repetition_penalty == 1.5f);
  CHECK(t.engine.last_request().sampling.seed == 7u);

  const HttpReply streamed = ask(R"("stream":true,"return_tokens":true,"n_probs":2)", "/completions");
  REQUIRE(streamed.status == 200);
  const std::vector<std::string> chunks = sse_data(streamed.body);
  std::string content;
  size_t tokens = 0, listed = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const value v = parse(chunks[i]);  // there is no [DONE]
    CHECK(v.at("stop") == (i + 1 == chunks.size()));
    content += v.at("content").as_string();
    tokens += v.at("tokens").as_array().size();
    if (const value* p = v.as_object().if_contains("completion_probabilities"))
      listed += p->as_array().size();
  }
  CHECK(chunks.size() > 3);
  CHECK(content == text_of(whole.at("content")));
  CHECK(tokens == 19);
  CHECK(listed == 19);
  CHECK(parse(chunks.back()).at("timings").at("predicted_n") == 20);
  CHECK(t.engine.last_request().stop.max_tokens == 511);  // what the context has room for

  const value word = answered(ask(R"("stop":["STOP"])"));
  CHECK(word.at("content") == "One.\nTwo ");
  CHECK(word.at("stop_type") == "word");
  CHECK(word.at("stopping_word") == "STOP");
  const value cut = answered(ask(R"("n_predict":3)"));
  CHECK(cut.at("content") == "One");
  CHECK(cut.at("stop_type") == "limit");
  CHECK(cut.at("has_new_line") == false);
}

TEST_CASE("llama: a stream tells how far its prompt is, and times with every piece, where it is asked to") {
  TestServer t(says("abc"));
  const std::string asks = R"("stream":true,"return_progress":true,"timings_per_token":true)";
  const auto chunks_of = [&](const char* path, const std::string& body) {
    const HttpReply r = http(t.http(), "POST", path, body);
    INFO(r.body);
    REQUIRE(r.status == 200);
    std::vector<value> out;
    for (const std::string& data : sse_data(r.body))
      if (data != "[DONE]") out.push_back(parse(data));
    return out;
  };
  const std::string chat =
      R"({"messages":[{"role":"user","content":"q"}],"max_tokens":9,"stream_options":{"include_usage":true},)";
  const std::vector<std::pair<const char*, std::string>> requests = {
      {"/completion", R"({"prompt":"long","n_predict":9,)"},
      {"/v1/completions", R"({"prompt":"long","max_tokens":9,)"},
      {"/v1/chat/completions", chat},
      {"/v1/responses", R"({"input":"q","max_output_tokens":9,)"}};
  for (const auto& [path, body] : requests) {
    INFO(path);
    std::vector<int64_t> processed;
    int64_t total = 0, timed = 0, predicted = 0;
    for (const value& chunk : chunks_of(path, body + asks + "}")) {
      const oar::json::object& o = chunk.as_object();
      if (const value* p = o.if_contains("prompt_progress")) {
        processed.push_back(p->at("processed").as_int64());
        total = p->at("total").as_int64();
        CHECK(p->at("cache") == 0);
        CHECK(p->at("time_ms").as_int64() >= 0);
        CHECK(o.at("timings").at("predicted_n") == 0);
        if (processed.size() == 1) CHECK(o.at("timings").at("prompt_ms").to_number<double>() == 0);
      } else if (const value* times = o.if_contains("timings")) {
        ++timed;
        CHECK(times->at("prompt_n") == total);
        CHECK(times->at("predicted_n").as_int64() >= predicted);
        predicted = times->at("predicted_n").as_int64();
      }
    }
    CHECK(processed == std::vector<int64_t>{0, total / 2, total});
    CHECK(timed >= 4);
    CHECK(predicted == 4);  // the end too
    for (const value& chunk : chunks_of(path, body + R"("stream":true})")) {
      CHECK_FALSE(chunk.as_object().contains("prompt_progress"));
      if (path != requests[0].first) CHECK_FALSE(chunk.as_object().contains("timings"));
    }
  }
  // A choice's first chunk has a role and no times; a whole answer has times alone.
  const std::vector<value> chunks =
      chunks_of("/chat/completions", chat + R"("stream":true,"timings_per_token":true})");
  CHECK(chunks.front().at("choices").at(0).at("delta").at("role") == "assistant");
  CHECK(chunks.front().at("choices").at(0).at("delta").at("content").is_null());
  CHECK_FALSE(chunks.front().as_object().contains("timings"));
  CHECK(chunks.back().at("choices").as_array().empty());
  CHECK(chunks.back().at("timings").at("predicted_n") == 4);
  const value whole = answered(http(
      t.http(), "POST", "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"q"}],"return_progress":true,"timings_per_token":true})"));
  CHECK(whole.at("timings").at("predicted_n") == 4);
  CHECK_FALSE(whole.as_object().contains("prompt_progress"));
  const HttpReply refused =
      http(t.http(), "POST", "/v1/messages",
           R"({"max_tokens":2,"messages":[{"role":"user","content":"q"}],"return_progress":true})");
  CHECK(refused.status == 400);
  CHECK(refused.body.find("return_progress") != std::string::npos);
}

TEST_CASE("llama completion: probabilities of what was drawn from") {
  TestServer t(says("ab"));
  const value v =
      answered(http(t.http(), "POST", "/completion",
                    R"({"prompt":"q","n_probs":2,"post_sampling_probs":true,"backend_sampling":true})"));
  CHECK(t.engine.last_request().sampling.drawn_logprobs);
  const value& first = v.at("completion_probabilities").at(0);
  CHECK(first.at("id") == 'a');
  CHECK(first.at("prob").to_number<double>() == Approx(std::exp(-0.01 * ('a' + 1))).epsilon(1e-5));
  CHECK(first.at("top_probs").as_array().size() == 2);
  CHECK(first.at("top_probs").at(1).at("prob").to_number<double>() > 0);
  CHECK_FALSE(first.as_object().contains("logprob"));
  CHECK_FALSE(first.as_object().contains("top_logprobs"));
}

TEST_CASE("Vertex AI: several requests in one, and health") {
  oar::ServerOptions o;
  o.predict_path = "/predict";
  o.health_path = "/ready-there";
  TestServer t(says("abc"), o);
  const std::string chat =
      R"({"@requestFormat":"chatCompletions","messages":[{"role":"user","content":"q"}])";
  const auto predict = [&](const std::string& instances) {
    return http(t.http(), "POST", "/predict", cat(R"({"instances":)", instances, "}"));
  };
  const value v = answered(predict(cat("[", chat, R"(},)", chat, R"(,"max_tokens":2}])")));
  REQUIRE(v.at("predictions").as_array().size() == 2);
  CHECK(v.at("predictions").at(0).at("choices").at(0).at("message").at("content") == "abc");
  CHECK(v.at("predictions").at(1).at("choices").at(0).at("message").at("content") == "ab");
  CHECK(v.at("predictions").at(0).at("id") != v.at("predictions").at(1).at("id"));
  CHECK(http(t.http(), "GET", "/ready-there").status == 200);
  for (const std::string& bad : {std::string("[]"), std::string("[1]"), cat("[", chat, R"(,"stream":true}])"),
                                 cat("[", chat, "},", chat, R"(,"temperature":-1}])"),
                                 std::string(R"([{"@requestFormat":"images"}])")}) {
    INFO(bad);
    const HttpReply r = predict(bad);
    CHECK(r.status == 400);
    CHECK(parse(r.body).at("error").at("type") == "invalid_request_error");
  }
  CHECK(http(TestServer(says("a")).http(), "POST", "/predict", "{}").status == 404);
}

TEST_CASE("llama completion: prompts, constraints, seeds") {
  TestServer t(says("abc"));
  const auto ask = [&](const std::string& body) { return http(t.http(), "POST", "/completion", body); };
  for (const char* second : {R"("yz")", "[121,122]", R"({"prompt_string":"yz"})", R"(["y",122])"}) {
    INFO(second);
    const value two = answered(ask(cat(R"({"prompt":["x",)", second, R"(],"n_predict":2})")));
    REQUIRE(two.as_array().size() == 2);
    CHECK(two.at(0).at("prompt") == "x");
    CHECK(two.at(1).at("index") == 1);
    if (std::string_view(second) != R"(["y",122])") CHECK(two.at(1).at("prompt") == "yz");
  }
  CHECK(answered(ask(R"({"prompt":[120,"yz",33],"n_predict":2})")).at("prompt") == "xyz!");
  CHECK(answered(ask(R"({"prompt":{"prompt_string":"xy"},"n_predict":2})")).at("prompt") == "xy");
  CHECK(answered(ask(R"({"prompt":[120,121],"n_predict":2})")).at("prompt") == "xy");
  CHECK(answered(ask(R"({"prompt":"q","grammar":"root ::= \"no\""})")).at("content") == "no");
  const value made = answered(ask(R"({"prompt":"q","json_schema":{"const":7}})"));
  CHECK(made.at("content") == "7");
  for (const char* seed : {"-1", "4294967295"}) {
    answered(ask(std::string(R"({"prompt":"q","seed":)") + seed + "}"));
    CHECK_FALSE(t.engine.last_request().sampling.seed.has_value());
  }
}

TEST_CASE("llama completion: what is reported") {
  FakeEngineOptions o = says("abc");
  o.max_context = 8;
  TestServer t(o);
  const auto ask = [&](const std::string& fields) {
    return http(t.http(), "POST", "/completion", R"({"prompt":"q",)" + fields + "}");
  };
  const value few = answered(ask(
      R"("seed":7,"response_fields":["content","generation_settings/seed","timings/predicted_n","none"])"));
  CHECK(few == parse(R"({"content":"abc","generation_settings/seed":7,"timings/predicted_n":4})"));
  const HttpReply streamed = ask(R"("stream":true,"response_fields":["stop_type"])");
  const std::vector<std::string> chunks = sse_data(streamed.body);
  CHECK(parse(chunks.back()) == parse(R"({"stop_type":"eos"})"));
  CHECK(parse(chunks.front()).at("tokens") == parse("[97]"));  // chunks have them unasked

  const value one = answered(ask(R"("n_predict":1)"));
  CHECK(one.at("truncated") == false);
  CHECK(one.at("timings").at("predicted_per_second").to_number<double>() == 0);  // it came with the prompt
  CHECK(one.at("generation_settings").at("logit_bias") == parse("[]"));
  const value endless = answered(ask(R"("ignore_eos":true,"logit_bias":{"5":-1})"));
  CHECK(endless.at("truncated") == true);
  answered(ask(R"("logit_bias":[["ab",false],[7,1.5]])"));
  using Biases = std::vector<std::pair<int32_t, float>>;
  CHECK(t.engine.last_request().sampling.logit_bias == Biases{{97, -100.f}, {98, -100.f}, {7, 1.5f}});
  const value& biases = endless.at("generation_settings").at("logit_bias");
  CHECK(biases.at(0) == parse(R"({"token":5,"bias":-1})"));
  CHECK(biases.at(1).at("bias").is_null());
}

TEST_CASE("llama infill: the text around a gap, and what it begins with") {
  FakeEngine engine(says("mid"));
  oar::ModelHandle model = fake_model(engine);
  TestServer plain;
  CHECK(text_of(refusal(http(plain.http(), "POST", "/infill", R"({"input_prefix":"a","input_suffix":""})"))
                    .at("message"))
            .find("input_suffix") != std::string::npos);
  model.tokenizer = gap_tokenizer();
  FakeEngineOptions o = says("mid");
  o.vocab_size = 263;
  FakeEngine wide(o);
  model.engine = &wide;
  oar::ServerOptions options;
  options.http_address = "127.0.0.1:0";
  options.grpc_address.clear();
  auto server = oar::Server::start(options, serving({model}));
  REQUIRE_OK(server);
  const int port = (*server)->http_port();
  const auto asked = [&](const std::string& body) {
    CHECK(answered(http(port, "POST", "/infill", body)).at("content") == "mid");
    return model.tokenizer->decode(wide.last_request().prompt, false);
  };
  CHECK(asked(R"({"input_prefix":"a","input_suffix":"z","input_extra":[]})") ==
        "<|fim_prefix|>a<|fim_suffix|>z<|fim_middle|>");
  CHECK(asked(R"({"input_prefix":"a","input_suffix":"","prompt":"b"})") ==
        "<|fim_prefix|>a<|fim_suffix|><|fim_middle|>b");
  CHECK(asked(R"({"input_prefix":"a","input_suffix":"z","input_extra":[{"filename":"f","text":"t"}]})") ==
        "\n\n--- snippet ---\n\nt<|fim_prefix|>a<|fim_suffix|>z<|fim_middle|>");
  const struct {
    const char *body, *named;
  } kCases[] = {{R"({"input_suffix":"z"})", "input_prefix"},
                {R"({"input_prefix":"a"})", "input_suffix"},
                {R"({"input_prefix":"a","input_suffix":"z","input_extra":[{}]})", "input_extra[0].text"},
                {R"({"input_prefix":"a","input_suffix":"z","input_extra":[{"text":"t","filename":7}]})",
                 "input_extra[0].filename"}};
  for (const auto& c : kCases)
    CHECK(text_of(refusal(http(port, "POST", "/infill", c.body)).at("message")).find(c.named) !=
          std::string::npos);
  CHECK(parse(http(port, "POST", "/api/show", R"({"model":"fake"})").body).at("capabilities") ==
        parse(R"(["completion","insert"])"));
}

TEST_CASE("llama: /props names a model's file and not where it lies") {
  const struct {
    const char *path, *file;
  } kCases[] = {{"/srv/models/a.gguf", "a.gguf"}, {"models/folder/", "folder"}, {"embedded:x", "embedded:x"}};
  for (const auto& c : kCases) {
    FakeEngine engine;
    oar::ModelHandle model = fake_model(engine);
    model.info.path = c.path;
    oar::ServerOptions o;
    o.http_address = "127.0.0.1:0";
    o.grpc_address.clear();
    auto started = oar::Server::start(std::move(o), serving({std::move(model)}));
    REQUIRE_OK(started);
    CHECK(answered(http((*started)->http_port(), "GET", "/props")).at("model_path") == c.file);
  }
}

TEST_CASE("llama: templates, tokens, props, slots, health") {
  TestServer t(says("abc"));
  const auto post = [&](const char* path, const std::string& body) {
    return http(t.http(), "POST", path, body);
  };
  const auto get = [&](const char* path) { return http(t.http(), "GET", path); };
  CHECK(answered(post("/apply-template", R"({"messages":[{"role":"user","content":"q"}]})")).at("prompt") ==
        "<s><|user|>q<|assistant|>");
  CHECK(answered(post("/tokenize", R"({"content":"ab"})")) == parse(R"({"tokens":[97,98]})"));
  CHECK(answered(post("/tokenize", R"({"content":"a","with_pieces":true,"add_special":false})")) ==
        parse(R"({"tokens":[{"id":97,"piece":"a"}]})"));
  CHECK(post("/tokenize", R"({"content":"a","parse_special":false})").status == 400);
  CHECK(post("/tokenize", R"({"prompt":"a","with_pieces":true})").status == 400);
  CHECK(answered(post("/detokenize", R"({"tokens":[97,98]})")).at("content") == "ab");

  const value props = answered(get("/props"));
  CHECK(props.at("default_generation_settings").at("n_ctx") == 512);
  CHECK(props.at("model_alias") == "fake");
  CHECK(props.at("eos_token") == "</s>");
  CHECK(answered(get("/props?model=fake")) == props);
  CHECK(text_of(refusal(get("/props?model=other"), 404).at("message")).find("other") != std::string::npos);
  CHECK(text_of(refusal(get("/slots?fail_on_no_slot=1")).at("message")).find("fail_on_no_slot") !=
        std::string::npos);
  CHECK(refusal(post("/props", "{}"), 501).at("type") == "not_supported_error");
  CHECK(refusal(post("/slots/0", "{}"), 501).at("type") == "not_supported_error");

  CHECK(answered(get("/slots")).as_array().empty());  // the model does not say how many run at once
  t.engine.pause(true);
  RawClient c(t.http());
  REQUIRE(c.send(make_request("POST", "/completion", R"({"prompt":"q"})")));
  for (int i = 0; i < 500 && t.engine.stats().running + t.engine.stats().waiting == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(std::ssize(answered(get("/slots")).as_array()) == t.engine.stats().running);
  t.engine.pause(false);
  CHECK(c.read_reply().status == 200);

  CHECK(answered(get("/health")) == parse(R"({"status":"ok"})"));
  t.server->set_ready(false);
  CHECK(refusal(get("/health"), 503).at("type") == "unavailable_error");
}

TEST_CASE("llama: refusals name the field") {
  TestServer t;
  const struct {
    const char *body, *named;
  } kCases[] = {{R"({})", "prompt"},
                {R"({"prompt":5})", "prompt"},
                {R"({"prompt":["x",[1,900]]})", "prompt[1]"},
                {R"({"prompt":["x",{"text":"y"}]})", "prompt_string"},
                {R"({"prompt":{"prompt_string":"x","multimodal_data":["A"]}})", "multimodal_data"},
                {R"({"prompt":"q","n_probs":-1})", "n_probs"},
                {R"({"prompt":"q","n_predict":-2})", "n_predict"},
                {R"({"prompt":"q","mirostat":2})", "mirostat"},
                {R"({"prompt":"q","samplers":["top_k"]})", "samplers"},
                {R"({"prompt":"q","response_fields":[7]})", "response_fields"},
                {R"({"prompt":"q","n_indent":4})", "n_indent"},
                {R"({"prompt":"q","logit_bias":[[5]]})", "logit_bias[0]"},
                {R"({"prompt":"q","logit_bias":[[5000,1]]})", "logit_bias"},
                {R"({"prompt":"q","n":2})", "n is 2"},
                {R"({"prompt":"q","lora":[{"id":0,"scale":1}]})", "lora"},
                {R"({"prompt":"q","grammar":"root ::= ("})", "grammar"}};
  for (const auto& c : kCases) {
    INFO(c.body);
    const value error = refusal(http(t.http(), "POST", "/completion", c.body));
    CHECK(error.at("type") == "invalid_request_error");
    CHECK(text_of(error.at("message")).find(c.named) != std::string::npos);
  }
  const std::string longer(600, 'x');
  for (const char* path : {"/completion", "/chat/completions", "/v1/chat/completions"}) {
    INFO(path);
    const bool chat = std::string_view(path) != "/completion";
    const HttpReply r = http(t.http(), "POST", path,
                             chat ? R"({"messages":[{"role":"user","content":")" + longer + "\"}]}"
                                  : R"({"prompt":")" + longer + "\"}");
    CHECK(r.status == 400);
    const value error = parse(r.body).at("error");
    const bool theirs = std::string_view(path) != "/v1/chat/completions";
    CHECK(error.at("type") == (theirs ? "exceed_context_size_error" : "invalid_request_error"));
    if (theirs) CHECK(error.at("n_prompt_tokens").to_number<int>() > 512);
    if (theirs) CHECK(error.at("n_ctx") == 512);
    if (chat) CHECK(error.at("code") == "context_length_exceeded");
  }
  CHECK(refusal(http(t.http(), "POST", "/completion", R"({"prompt":"q","model":"other"})"), 404).at("type") ==
        "not_found_error");
  CHECK(t.engine.submitted() == 0);
}

}  // namespace
