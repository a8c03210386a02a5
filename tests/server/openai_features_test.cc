// What requests can ask for beyond text: log-probabilities, echo, stops, several prompts, open last messages,
// token endpoints, and the parameters that reach the engine.
#include "server/api/openai_answer.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::json::value;

std::string str(const value& v) { return std::string(v.as_string()); }

value post(const TestServer& t, const char* path, const std::string& body) {
  const HttpReply r = http(t.http(), "POST", path, body);
  INFO(r.body);
  REQUIRE(r.status == 200);
  return parse(r.body);
}

value complete(const TestServer& t, const std::string& fields) {
  return post(t, "/v1/completions", R"({"prompt":"ab",)" + fields + "}");
}

FakeEngineOptions replying(std::string text) {
  FakeEngineOptions o;
  o.reply = std::move(text);
  return o;
}

// The choices of a streamed answer put together: text, and the four arrays of completions' log-probabilities.
struct Streamed {
  std::string text, finish;
  oar::json::array tokens, token_logprobs, text_offset;
};
Streamed streamed(const TestServer& t, const std::string& fields) {
  const HttpReply r =
      http(t.http(), "POST", "/v1/completions", R"({"prompt":"ab","stream":true,)" + fields + "}");
  REQUIRE(r.status == 200);
  Streamed out;
  for (const std::string& data : sse_data(r.body)) {
    if (data == "[DONE]") break;
    const value v = parse(data);
    const value& c = v.at("choices").at(0);
    out.text += str(c.at("text"));
    if (c.at("logprobs").is_object()) {
      for (const auto& [name, list] : {std::pair<const char*, oar::json::array*>{"tokens", &out.tokens},
                                       {"token_logprobs", &out.token_logprobs},
                                       {"text_offset", &out.text_offset}}) {
        for (const value& e : c.at("logprobs").at(name).as_array()) list->push_back(e);
      }
    }
    if (!c.at("finish_reason").is_null()) out.finish = str(c.at("finish_reason"));
  }
  return out;
}

TEST_CASE("completions: log-probabilities, echo and offsets, the same streamed and whole") {
  TestServer t(replying("x\xC3\xA9z"));
  const value v = complete(t, R"("logprobs":2,"echo":true)");
  const value& c = v.at("choices").at(0);
  CHECK(str(c.at("text")) == "abx\xC3\xA9z");
  const value& l = c.at("logprobs");
  // a b x C3 A9 z: the prompt's first token has no probability; half a character reads U+FFFD.
  CHECK(serialize(l.at("tokens")) == "[\"a\",\"b\",\"x\",\"\xEF\xBF\xBD\",\"\xEF\xBF\xBD\",\"z\"]");
  CHECK(l.at("token_logprobs").at(0).is_null());
  CHECK(l.at("token_logprobs").at(1).to_number<double>() == Approx(-0.01 * ('b' + 1)));
  CHECK(l.at("token_logprobs").at(2).to_number<double>() == Approx(-0.01 * ('x' + 1)));
  CHECK(l.at("top_logprobs").at(0).is_null());
  // The two likeliest, and the token that was sampled.
  CHECK(l.at("top_logprobs").at(2).as_object().size() == 3);
  CHECK(l.at("top_logprobs").at(2).at("x") == l.at("token_logprobs").at(2));
  CHECK(l.at("top_logprobs").at(2).as_object().begin()->key() == "x");  // first, as in vLLM
  CHECK(serialize(l.at("text_offset")) == "[0,1,2,3,3,4]");
  CHECK(c.at("finish_reason") == "stop");

  const Streamed s = streamed(t, R"("logprobs":2,"echo":true)");
  CHECK(s.text == str(c.at("text")));
  CHECK(serialize(s.tokens) == serialize(l.at("tokens")));
  CHECK(serialize(s.token_logprobs) == serialize(l.at("token_logprobs")));
  CHECK(serialize(s.text_offset) == serialize(l.at("text_offset")));

  // The echo brings its own.
  const HttpReply raw =
      http(t.http(), "POST", "/v1/completions", R"({"prompt":"ab","stream":true,"logprobs":2,"echo":true})");
  const value first = parse(sse_data(raw.body).front()).at("choices").at(0);
  CHECK(str(first.at("text")) == "ab");
  CHECK(first.at("logprobs").at("tokens").as_array().size() == 2);

  const value prompt_only = complete(t, R"("logprobs":0,"echo":true,"max_tokens":0)");
  CHECK(str(prompt_only.at("choices").at(0).at("text")) == "ab");
  CHECK(prompt_only.at("choices").at(0).at("finish_reason") == "length");
  CHECK(prompt_only.at("usage").at("completion_tokens") == 0);
  CHECK(complete(t, R"("max_tokens":2)").at("choices").at(0).at("logprobs").is_null());
}

TEST_CASE("text_offset counts what is in the text: no added BOS, no special token that is left out") {
  // The byte tokenizer, which here puts <s> before every text.
  oar::json::object with_bos = parse(byte_tokenizer_json(true)).as_object();
  with_bos["post_processor"] = parse(
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
      R"("pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[256],"tokens":["<s>"]}}})");
  auto tokenizer = oar::tokenizer_from_json(serialize(with_bos));
  REQUIRE_OK(tokenizer);
  FakeEngine engine(replying("xy"));
  oar::ModelHandle model = fake_model(engine);
  model.tokenizer = *tokenizer;
  oar::ServerOptions o;
  o.http_address = "127.0.0.1:0";
  o.grpc_address.clear();
  auto server = oar::Server::start(o, serving({model}));
  REQUIRE_OK(server);
  const auto logprobs = [&](const std::string& fields) {
    const HttpReply r = http((*server)->http_port(), "POST", "/v1/completions",
                             R"({"logprobs":0,"echo":true,)" + fields + "}");
    INFO(r.body);
    REQUIRE(r.status == 200);
    return parse(r.body).at("choices").at(0).at("logprobs");
  };
  const value text = logprobs(R"("prompt":"ab")");
  CHECK(serialize(text.at("tokens")) == R"(["<s>","a","b","x","y"])");
  CHECK(serialize(text.at("text_offset")) == "[0,0,1,2,3]");
  // One that the caller wrote is in the echoed text.
  CHECK(serialize(logprobs(R"("prompt":"<s>ab")").at("text_offset")) == "[0,0,3,4,5,6]");
  // Of tokens the text leaves special ones out, unless told otherwise.
  CHECK(serialize(logprobs(R"("prompt":[256,97,98])").at("text_offset")) == "[0,0,1,2,3]");
  CHECK(serialize(logprobs(R"("prompt":[256,97],"skip_special_tokens":false)").at("text_offset")) ==
        "[0,3,4,5]");
}

TEST_CASE("prompt_logprobs: a list beside the answer, of completions per choice, of chat once") {
  TestServer t(replying("z"));
  const auto expect = [](const value& list, const char* token, double logprob) {
    CHECK(list.at(0).is_null());
    const value& known = list.at(list.as_array().size() - 1);
    CHECK(known.as_object().size() == 1);
    const value& entry = known.as_object().begin()->value();
    CHECK(entry.at("decoded_token") == token);
    CHECK(entry.at("logprob").to_number<double>() == Approx(logprob));
    CHECK(entry.at("rank").is_null());  // none of the likeliest that were asked for
  };
  const value v = complete(t, R"("prompt_logprobs":0,"n":2)");
  for (const value& choice : v.at("choices").as_array()) {
    expect(choice.at("prompt_logprobs"), "b", -0.01 * ('b' + 1));
    CHECK(choice.at("prompt_logprobs").at(1).as_object().contains("98"));
    CHECK(choice.at("logprobs").is_null());
  }
  const value chat =
      post(t, "/v1/chat/completions", R"({"messages":[{"role":"user","content":"q"}],"prompt_logprobs":1})");
  expect(chat.at("prompt_logprobs"), "<|assistant|>", -0.01 * 260);
  CHECK(complete(t, R"("n":1)").at("choices").at(0).at("prompt_logprobs").is_null());
}

TEST_CASE("best_of: the likeliest candidates per token, best first, and no log-probabilities unasked") {
  FakeEngine engine;
  oar::api::GenerationSpec spec;
  spec.model = std::make_shared<oar::ModelHandle>(fake_model(engine));
  spec.prompts = {{'q'}, {'r'}};
  spec.request.n = 3;
  spec.request.logprobs = 0;
  oar::api::AnswerOptions options;
  options.best = 2;
  options.hides_logprobs = true;
  oar::api::OpenAiAnswer answer(spec, options);
  // Sums alone would prefer the short one; per token the second of the first prompt is best.
  const std::vector<std::vector<float>> logprobs = {{-1.f}, {-0.5f, -0.6f, -0.7f}, {-2.f},
                                                    {-3.f}, {-1.f, -1.2f},         {-1.05f}};
  for (size_t i = 0; i < logprobs.size(); ++i) {
    oar::TextEvent e;
    e.text = std::string(1, static_cast<char>('a' + i));
    for (const float l : logprobs[i]) e.tokens.push_back({'x', l, {}});
    e.finish = oar::FinishReason::kStop;
    e.stats.completion_tokens = static_cast<int64_t>(logprobs[i].size());
    answer.collect(static_cast<int32_t>(i), e);
  }
  REQUIRE(answer.finished());
  const value v = parse(answer.body());
  std::string texts;
  for (size_t i = 0; i < v.at("choices").as_array().size(); ++i) {
    const value& choice = v.at("choices").at(i);
    CHECK(choice.at("index") == i);
    CHECK(choice.at("logprobs").is_null());
    texts += str(choice.at("text"));
  }
  CHECK(texts == "bafe");
  CHECK(v.at("usage").at("completion_tokens") == 9);  // candidates are paid for

  TestServer t(replying("hi"));
  const value whole = complete(t, R"("n":2,"best_of":5)");
  CHECK(whole.at("choices").as_array().size() == 2);
  CHECK(t.engine.last_request().n == 5);
  CHECK(whole.at("choices").at(0).at("logprobs").is_null());
  CHECK(complete(t, R"("n":1,"best_of":2,"logprobs":0)").at("choices").at(0).at("logprobs").is_object());
}

TEST_CASE("allowed_token_ids and bad_words: what may be drawn") {
  TestServer t(replying("abcabc"));
  const auto text = [&](const std::string& fields) {
    return str(complete(t, fields).at("choices").at(0).at("text"));
  };
  CHECK(text(R"("allowed_token_ids":[98,257],"max_tokens":4)") == "bbbb");
  oar::Request r = t.engine.last_request();
  CHECK(r.stop.stop_token_ids == std::vector<int32_t>{257});
  CHECK(r.stop.ignore_eos);
  CHECK(r.constraint_field == "allowed_token_ids");
  // An end that is not allowed ends nothing, nor does a stop token.
  CHECK(text(R"("allowed_token_ids":[97,98,99],"stop_token_ids":[120],"max_tokens":6)") == "abcabc");
  CHECK(t.engine.last_request().stop.stop_token_ids.empty());
  CHECK(text(R"("bad_words":["bc"],"max_tokens":4)") == "abab");
  CHECK(text(R"("bad_words":["b","c"],"max_tokens":2)") == "aa");
  // Beside a constraint: both hold.
  CHECK(text(R"("regex":"[a-c]{3}","bad_words":["bc"])") == "aba");
  CHECK(t.engine.last_request().constraint_field == "regex");
  CHECK(text(R"("bad_words":["ab"],"ignore_eos":true,"max_tokens":2)") == "ac");
  CHECK(t.engine.last_request().stop.stop_token_ids.empty());
  CHECK(text(R"("bad_words":[],"allowed_token_ids":[])") == "abcabc");
  CHECK(t.engine.last_request().constraint == nullptr);
}

TEST_CASE("truncate_prompt_tokens keeps the last tokens of a prompt") {
  TestServer t(replying("z"));
  const auto prompt = [&](const std::string& body) {
    post(t, "/v1/completions", body);
    const std::vector<int32_t> ids = t.engine.last_request().prompt;
    return std::string(ids.begin(), ids.end());
  };
  CHECK(prompt(R"({"prompt":"abcdef","truncate_prompt_tokens":2})") == "ef");
  CHECK(prompt(R"({"prompt":"abcdef","truncate_prompt_tokens":6})") == "abcdef");
  CHECK(prompt(R"({"prompt":[97,98,99],"truncate_prompt_tokens":1})") == "c");
  const std::string much(1000, 'x');
  CHECK(prompt(R"({"prompt":")" + much + R"(y","truncate_prompt_tokens":-1,"max_tokens":12})").size() == 500);
  CHECK(prompt(R"({"prompt":")" + much + R"(y","truncate_prompt_tokens":3})") == "xxy");
  post(t, "/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"q"}],"truncate_prompt_tokens":2})");
  CHECK(t.engine.last_request().prompt == std::vector<int32_t>{'q', 259});
}

TEST_CASE("suffix: the gap between two texts, by the model's own tokens") {
  struct Style {
    std::vector<const char*> tokens;  // 260 and on
    std::vector<int32_t> want;
  };
  for (const Style& style :
       {Style{{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}, {260, 'a', 261, 'b', 262}},
        Style{{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, {260, 'a', 261, 'b', 262}},
        Style{{"[PREFIX]", "[SUFFIX]"}, {261, 'b', 260, 'a'}}}) {
    oar::json::object made = parse(byte_tokenizer_json(true)).as_object();
    oar::json::object added = made.at("added_tokens").at(0).as_object();
    for (size_t i = 0; i < style.tokens.size(); ++i) {
      added["id"] = 260 + i;
      added["content"] = style.tokens[i];
      made["added_tokens"].as_array().push_back(added);
    }
    auto tokenizer = oar::tokenizer_from_json(serialize(made));
    REQUIRE_OK(tokenizer);
    FakeEngineOptions engine_options = replying("xy");
    engine_options.vocab_size = 264;
    FakeEngine engine(engine_options);
    oar::ModelHandle model = fake_model(engine);
    model.tokenizer = *tokenizer;
    oar::ServerOptions o;
    o.http_address = "127.0.0.1:0";
    o.grpc_address.clear();
    auto server = oar::Server::start(o, serving({model}));
    REQUIRE_OK(server);
    const HttpReply r =
        http((*server)->http_port(), "POST", "/v1/completions", R"({"prompt":"a","suffix":"b"})");
    INFO(r.body);
    REQUIRE(r.status == 200);
    CHECK(engine.last_request().prompt == style.want);
  }
}

TEST_CASE("chat log-probabilities: the tokens' bytes are the text's") {
  TestServer t(replying("h\xC3\xA9"));
  const std::string body = R"({"messages":[{"role":"user","content":"q"}],"logprobs":true,"top_logprobs":3)";
  const value v = post(t, "/v1/chat/completions", body + "}");
  const auto& content = v.at("choices").at(0).at("logprobs").at("content").as_array();
  REQUIRE(content.size() == 3);
  std::string bytes;
  for (const value& token : content) {
    CHECK(token.at("top_logprobs").as_array().size() == 3);
    for (const value& b : token.at("bytes").as_array()) bytes += static_cast<char>(b.as_int64());
  }
  CHECK(bytes == str(v.at("choices").at(0).at("message").at("content")));
  CHECK(content[1].at("token") == "\xEF\xBF\xBD");
  const HttpReply stream = http(t.http(), "POST", "/v1/chat/completions", body + R"(,"stream":true})");
  size_t tokens = 0;
  for (const std::string& data : sse_data(stream.body)) {
    if (data == "[DONE]") continue;
    const value chunk = parse(data);
    const value& l = chunk.at("choices").at(0).at("logprobs");
    if (!l.is_null()) tokens += l.at("content").as_array().size();
  }
  CHECK(tokens == 3);
}

TEST_CASE("stop strings and stop tokens") {
  TestServer t(replying("one two three"));
  value v = complete(t, R"("stop":" tw")");
  CHECK(v.at("choices").at(0).at("text") == "one");
  CHECK(v.at("choices").at(0).at("finish_reason") == "stop");
  CHECK(v.at("choices").at(0).at("stop_reason") == " tw");
  CHECK(complete(t, R"("stop":["zz"," tw"],"include_stop_str_in_output":true)")
            .at("choices")
            .at(0)
            .at("text") == "one tw");
  CHECK(complete(t, R"("max_tokens":4)").at("choices").at(0).at("finish_reason") == "length");
  const Streamed s = streamed(t, R"("stop":["two"])");
  CHECK(s.text == "one ");
  CHECK(s.finish == "stop");
  CHECK(t.engine.wait_idle());  // a stop found by the reader ends the sequence in the engine too
}

TEST_CASE("several prompts of one kind, several choices: numbered prompt by prompt") {
  TestServer t(replying("!"));
  const value v = post(t, "/v1/completions", R"({"prompt":["ab","cd","e"],"n":2,"echo":true})");
  const auto& choices = v.at("choices").as_array();
  REQUIRE(choices.size() == 6);
  const char* texts[] = {"ab!", "ab!", "cd!", "cd!", "e!", "e!"};
  for (size_t i = 0; i < 6; ++i) {
    CHECK(choices[i].at("index") == static_cast<int64_t>(i));
    CHECK(str(choices[i].at("text")) == texts[i]);
  }
  CHECK(v.at("usage").at("prompt_tokens") == 5);
  CHECK(v.at("usage").at("completion_tokens") == 12);
  const value ids = post(t, "/v1/completions", R"({"prompt":[[99,100],[101]]})");
  CHECK(ids.at("choices").as_array().size() == 2);
  CHECK(post(t, "/v1/completions", R"({"prompt":[104,105],"echo":true})").at("choices").at(0).at("text") ==
        "hi!");
}

TEST_CASE("parameters reach the engine") {
  TestServer t;
  complete(
      t,
      R"("temperature":0.25,"top_p":0.5,"top_k":7,"min_p":0.125,"repetition_penalty":1.5,"presence_penalty":-1,)"
      R"("frequency_penalty":2,"seed":-1,"logit_bias":{"65":-100,"66":5.5},"max_tokens":9,"min_tokens":3,)"
      R"("stop_token_ids":[10,11],"ignore_eos":true,"cache_salt":"s","n":3)");
  const oar::Request r = t.engine.last_request();
  CHECK(r.sampling.temperature == 0.25f);
  CHECK(r.sampling.top_p == 0.5f);
  CHECK(r.sampling.top_k == 7);
  CHECK(r.sampling.min_p == 0.125f);
  CHECK(r.sampling.repetition_penalty == 1.5f);
  CHECK(r.sampling.presence_penalty == -1);
  CHECK(r.sampling.frequency_penalty == 2);
  CHECK(r.sampling.seed == UINT64_MAX);
  CHECK(r.sampling.logit_bias == std::vector<std::pair<int32_t, float>>{{65, -100.f}, {66, 5.5f}});
  CHECK(r.stop.max_tokens == 9);
  CHECK(r.stop.min_tokens == 3);
  CHECK(r.stop.stop_token_ids == std::vector<int32_t>{10, 11});
  CHECK(r.stop.ignore_eos);
  CHECK(r.cache_salt == "s");
  CHECK(r.n == 3);
  complete(t, R"("max_tokens":16)");
  CHECK(t.engine.last_request().sampling.temperature == 1);  // the protocol's default
  CHECK(t.engine.last_request().stop.max_tokens == 16);
}

TEST_CASE("constraints reach the engine compiled, however they are called") {
  TestServer t(replying("{}"));
  const std::pair<const char*, const char*> kSame[] = {
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"const":"hi"}}})",
       "response_format.json_schema.schema"},
      {R"("guided_json":{"const":"hi"})", "guided_json"},
      {R"("guided_json":"{\"const\":\"hi\"}")", "guided_json"},
      {R"("json_schema":{"const":"hi"})", "json_schema"},
      {R"("structured_outputs":{"json":{"const":"hi"}})", "structured_outputs.json"},
      {R"("regex":"\"hi\"")", "regex"},
      {R"("guided_regex":"\"hi\"")", "guided_regex"},
      {R"("guided_choice":["\"hi\""])", "guided_choice"},
      {R"("structured_outputs":{"choice":["\"hi\""]})", "structured_outputs.choice"},
      {R"("ebnf":"root ::= \"\\\"hi\\\"\"")", "ebnf"},
      {R"("grammar":"root ::= \"\\\"hi\\\"\"")", "grammar"},
      {R"("structural_tag":{"format":{"type":"const_string","value":"\"hi\""}})", "structural_tag"},
  };
  for (const auto& [field, name] : kSame) {
    INFO(field);
    complete(t, std::string(R"("max_tokens":3,)") + field);
    const oar::Request r = t.engine.last_request();
    REQUIRE(r.constraint != nullptr);
    CHECK(r.constraint_field == name);
    const auto cursor = r.constraint->start();
    for (const char c : std::string_view("\"hi\"")) {
      CHECK(!cursor->may_end());
      CHECK(cursor->only() == c);  // a token is a byte here
      REQUIRE(cursor->advance(c));
    }
    CHECK(cursor->must_end());
  }
  complete(t, R"("max_tokens":3,"response_format":{"type":"json_object"})");
  REQUIRE(t.engine.last_request().constraint != nullptr);
  CHECK(t.engine.last_request().constraint->start()->only() == '{');
  complete(
      t,
      R"("max_tokens":3,"response_format":{"type":"text"},"guided_json":null,"regex":"","guided_choice":[])");
  CHECK(t.engine.last_request().constraint == nullptr);
}

TEST_CASE("a streamed chat with usage in every chunk: none comes without a token") {
  FakeEngine engine;
  oar::api::GenerationSpec spec;
  spec.model = std::make_shared<oar::ModelHandle>(fake_model(engine));
  spec.prompts = {{'q'}};
  for (const bool continuous : {true, false}) {
    oar::api::AnswerOptions options;
    options.chat = true;
    options.streaming = {true, true, continuous};
    oar::api::OpenAiAnswer answer(spec, options);
    std::string body;
    for (const char c : {'a', 'b'}) {
      oar::TextEvent e;
      e.text = std::string(1, c);
      e.tokens.push_back({c, 0.f, {}});
      e.stats.completion_tokens = c - 'a' + 1;
      if (c == 'b') e.finish = oar::FinishReason::kLength;
      body += answer.on_event(0, e);
    }
    const std::vector<std::string> chunks = sse_data(body);
    REQUIRE(chunks.size() == (continuous ? 5 : 6));  // role, a, b with the end or before it, usage, [DONE]
    for (size_t i = 0; continuous && i < 4; ++i)
      CHECK(parse(chunks[i]).at("usage").at("completion_tokens") == std::min<size_t>(i, 2));
    const value last = parse(chunks[continuous ? 2 : 3]).at("choices").at(0);
    CHECK(last.at("finish_reason") == "length");
    CHECK(last.at("delta").as_object().contains("content") == continuous);
  }
}

TEST_CASE("a streamed chat: half a character has log-probabilities and an empty text") {
  TestServer t(replying("x\xC3\xA9"));
  const HttpReply r = http(t.http(), "POST", "/v1/chat/completions",
                           R"({"messages":[{"role":"user","content":"q"}],"stream":true,"logprobs":true})");
  std::string text;
  size_t tokens = 0;
  for (const std::string& data : sse_data(r.body)) {
    if (data == "[DONE]") break;
    const value c = parse(data).at("choices").at(0);
    if (c.at("logprobs").is_null()) continue;
    tokens += c.at("logprobs").at("content").as_array().size();
    text += str(c.at("delta").at("content"));
  }
  CHECK(text == "x\xC3\xA9");
  CHECK(tokens == 3);
}

TEST_CASE("log-probabilities of all tokens, where the server allows as many") {
  FakeEngineOptions o = replying("!");
  o.max_logprobs = 260;
  TestServer t(o);
  const auto count = [](const value& list) { return list.at("top_logprobs").as_array().size(); };
  const value chat = post(
      t, "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"q"}],"logprobs":true,"top_logprobs":-1,"max_tokens":1})");
  CHECK(count(chat.at("choices").at(0).at("logprobs").at("content").at(0)) == 260);
  complete(t, R"("logprobs":-1,"prompt_logprobs":-1,"max_tokens":1)");
  CHECK(t.engine.last_request().sampling.logprobs == 260);
  CHECK(t.engine.last_request().sampling.prompt_logprobs == 260);
}

TEST_CASE("chat: parts, open last message, template variables, echo") {
  TestServer t(replying("!"));
  const auto prompt = [&](const std::string& fields) {
    post(t, "/v1/chat/completions", "{" + fields + "}");
    return byte_tokenizer()->decode(t.engine.last_request().prompt, false);
  };
  CHECK(
      prompt(
          R"("messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])") ==
      "<s><|user|>a\nb<|assistant|>");
  CHECK(prompt(R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":"Once"}],)"
               R"("continue_final_message":true)") == "<s><|user|>q<|assistant|>Once");
  CHECK(prompt(R"("messages":[{"role":"user","content":"q"}],"add_generation_prompt":false)") ==
        "<s><|user|>q");
  CHECK(prompt(R"("messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"tail":"T"})") ==
        "<s><|user|>qT<|assistant|>");
  // The template takes any role.
  CHECK(prompt(R"("messages":[{"role":"critic","content":"q"},{"role":"critic","content":"r"}])") ==
        "<s><|critic|>q<|critic|>r<|assistant|>");
  const value echoed =
      post(t, "/v1/chat/completions", R"({"messages":[{"role":"user","content":"q"}],"echo":true})");
  CHECK(echoed.at("choices").at(0).at("message").at("content") == "q!");
  CHECK(
      prompt(
          R"("messages":[{"role":"user","content":"q"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")") ==
      "<s><|user|>q<|assistant|>");
}

TEST_CASE("control tokens in the text of messages stay text") {
  const char* messages =
      R"([{"role":"user","content":"a<|assistant|>b"},{"role":"assistant","content":"</s>"},)"
      R"({"role":"user","content":[{"type":"text","text":"<|us"},{"type":"text","text":"er|>"}]}])";
  const auto specials = [](const std::vector<int32_t>& ids) {
    std::vector<int32_t> out;
    for (const int32_t id : ids)
      if (id >= 256) out.push_back(id);
    return out;
  };
  const std::vector<int32_t> templates_own = {256, 258, 259, 258, 259};
  TestServer t(replying("!"));
  const std::string body = oar::cat(R"({"messages":)", messages, "}");
  post(t, "/v1/chat/completions", body);
  CHECK(specials(t.engine.last_request().prompt) == templates_own);
  CHECK(byte_tokenizer()->decode(t.engine.last_request().prompt, false) ==
        "<s><|user|>a<|assistant|>b<|assistant|></s><|user|><|us\ner|><|assistant|>");
  std::vector<int32_t> ids;
  const value tokenized = post(t, "/tokenize", body);
  for (const value& id : tokenized.at("tokens").as_array()) ids.push_back(id.to_number<int32_t>());
  CHECK(ids == t.engine.last_request().prompt);
  post(t, "/v1/chat/completions",
       R"({"messages":[{"role":"assistant","content":"</s>x</s> "}],"continue_final_message":true})");
  CHECK(specials(t.engine.last_request().prompt) == std::vector<int32_t>{256, 259});
  // Raw prompts are the caller's.
  post(t, "/v1/completions", R"({"prompt":"a</s>"})");
  CHECK(t.engine.last_request().prompt == std::vector<int32_t>{'a', 257});
}

TEST_CASE("tokenize and detokenize") {
  TestServer t;
  value v = post(t, "/tokenize", R"({"prompt":"a\u00e9<s>","return_token_strs":true})");
  CHECK(serialize(v.at("tokens")) == "[97,195,169,256]");
  CHECK(v.at("count") == 4);
  CHECK(v.at("max_model_len") == 512);
  CHECK(v.at("token_strs").at(3) == "<s>");
  v = post(t, "/tokenize", R"({"messages":[{"role":"user","content":"a"}]})");
  CHECK(serialize(v.at("tokens")) == "[256,258,97,259]");
  CHECK(post(t, "/detokenize", R"({"tokens":[97,195,169,256]})").at("prompt") == "a\xC3\xA9<s>");
  CHECK(post(t, "/detokenize", R"({"tokens":[195]})").at("prompt") == "\xEF\xBF\xBD");
  CHECK(post(t, "/detokenize", R"({"tokens":[]})").at("prompt") == "");
}

TEST_CASE("models, version, Open Inference over REST") {
  TestServer t(replying("out"));
  const value list = parse(http(t.http(), "GET", "/v1/models").body);
  CHECK(list.at("object") == "list");
  CHECK(list.at("data").at(0).at("id") == "fake");
  CHECK(list.at("data").at(0).at("object") == "model");
  CHECK(parse(http(t.http(), "GET", "/v1/models/fake").body).at("max_model_len") == 512);
  const HttpReply missing = http(t.http(), "GET", "/v1/models/meta/other");
  CHECK(missing.status == 404);
  CHECK(parse(missing.body).at("error").at("param") == "model");
  CHECK(parse(http(t.http(), "GET", "/version").body).at("version").is_string());
  CHECK(http(t.http(), "GET", "/v2/health/live").status == 200);
  CHECK(http(t.http(), "GET", "/v2/health/ready").status == 200);
  CHECK(parse(http(t.http(), "GET", "/v2").body).at("name") == "oar");
  CHECK(parse(http(t.http(), "GET", "/v2/models/fake").body).at("inputs").at(0).at("name") == "text_input");
  CHECK(http(t.http(), "GET", "/v2/models/fake/versions/1/ready").status == 200);
  value v =
      post(t, "/v2/models/fake/generate", R"({"id":"7","text_input":"in ","parameters":{"temperature":0}})");
  CHECK(v.at("text_output") == "in out");
  CHECK(v.at("id") == "7");
  CHECK(post(t, "/v2/models/fake/generate", R"({"text_input":"in","exclude_input_in_output":true})")
            .at("text_output") == "out");
  const HttpReply stream =
      http(t.http(), "POST", "/v2/models/fake/generate_stream", R"({"text_input":"in"})");
  CHECK(stream.complete);
  std::string text;
  for (const std::string& data : sse_data(stream.body)) text += str(parse(data).at("text_output"));
  CHECK(text == "out");
  for (const char* body :
       {"{}", R"({"text_input":5})", R"({"text_input":"x","temperature":-1})", R"({"text_input":"x","n":2})",
        R"({"text_input":"x","parameters":[]})", "not json"}) {
    const HttpReply bad = http(t.http(), "POST", "/v2/models/fake/generate", body);
    CHECK(bad.status == 400);
    CHECK(parse(bad.body).at("error").is_string());
  }
  CHECK(http(t.http(), "POST", "/v2/models/none/generate", R"({"text_input":"x"})").status == 404);
}

TEST_CASE("API key and CORS") {
  oar::ServerOptions o;
  o.api_key = "secret";
  o.allowed_origins = {"https://ours.example"};
  TestServer t({}, o);
  const auto status = [&](const char* path, const Headers& headers) {
    return http(t.http(), "GET", path, "", headers).status;
  };
  CHECK(status("/health", {}) == 200);
  CHECK(status("/v2/health/live", {}) == 200);
  for (const char* path : {"/v1/models", "/metrics", "/version", "/v2", "/v2/models/fake"}) {
    CHECK(status(path, {}) == 401);
    CHECK(status(path, {{"Authorization", "Bearer secret"}}) == 200);
  }
  CHECK(status("/v1/models", {{"Authorization", "Bearer secre"}}) == 401);
  CHECK(status("/v1/models", {{"Authorization", "Bearer secret2"}}) == 401);
  CHECK(status("/v1/models", {{"Authorization", "Basic secret"}}) == 401);
  CHECK(status("/v1/models", {{"X-Api-Key", "secret"}}) == 200);
  const HttpReply refused = http(t.http(), "POST", "/v1/completions", R"({"prompt":"a"})");
  CHECK(refused.status == 401);
  CHECK(parse(refused.body).at("error").at("type") == "authentication_error");
  CHECK(refused.headers.at("www-authenticate") == "Bearer");

  const HttpReply ours = http(t.http(), "GET", "/health", "", {{"Origin", "https://ours.example"}});
  CHECK(ours.headers.at("access-control-allow-origin") == "https://ours.example");
  const Headers asking = {{"Origin", "https://ours.example"}, {"Authorization", "Bearer secret"}};
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","stream":true})", asking)
            .headers.at("access-control-allow-origin") == "https://ours.example");
  const HttpReply other = http(t.http(), "GET", "/health", "", {{"Origin", "https://other.example"}});
  CHECK(other.status == 403);
  CHECK_FALSE(other.headers.count("access-control-allow-origin"));
  // What OpenAI's and Anthropic's libraries for JavaScript send from a browser.
  constexpr const char* kSent =
      "anthropic-dangerous-direct-browser-access,anthropic-version,authorization,content-type,x-api-key,"
      "x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-package-version,x-stainless-retry-count,"
      "x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout";
  const auto preflight = [&](const char* origin, const char* path = "/v1/chat/completions") {
    return http(t.http(), "OPTIONS", path, "",
                {{"Origin", origin},
                 {"Access-Control-Request-Method", "POST"},
                 {"Access-Control-Request-Headers", kSent}});
  };
  const HttpReply allowed = preflight("https://ours.example");
  CHECK(allowed.status == 200);
  CHECK(allowed.headers.at("access-control-allow-methods") == "POST, GET");
  CHECK(allowed.headers.at("access-control-allow-headers") == kSent);
  for (const char* path : {"/v1/responses", "/v1/messages", "/v1/messages/count_tokens"})
    CHECK(preflight("https://ours.example", path).status == 200);
  const HttpReply keyed = http(
      t.http(), "POST", "/v1/messages",
      R"({"model":"fake","max_tokens":2,"messages":[{"role":"user","content":"a"}]})",
      {{"Origin", "https://ours.example"}, {"X-Api-Key", "secret"}, {"anthropic-version", "2023-06-01"}});
  CHECK(keyed.status == 200);
  CHECK(keyed.headers.at("access-control-expose-headers") == "X-Request-Id, Retry-After");
  CHECK(
      http(t.http(), "POST", "/v1/messages", "{}", {{"Origin", "https://ours.example"}, {"X-Api-Key", "no"}})
          .status == 401);
  // Without a word about this origin a browser sends nothing more.
  const HttpReply stranger = preflight("https://other.example");
  CHECK(stranger.status == 200);
  CHECK_FALSE(stranger.headers.count("access-control-allow-origin"));
  CHECK_FALSE(stranger.headers.count("access-control-allow-methods"));
}

}  // namespace
