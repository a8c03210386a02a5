// /v1/embeddings, /v1/rerank and oar.v1.Encoding over tiny encoders: shapes of requests and answers, equality
// of the transports and of rows alone and together, refusals in OpenAI's form, clients that leave.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "engine/base/format.h"
#include "server/repository/repository.h"
#include "server/server.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
namespace fs = std::filesystem;
namespace v1 = oar::v1;

// A repository with the encoders "bert" and "cross" (a classifier).
struct EncoderServer {
  explicit EncoderServer(oar::RepositoryOptions r = {}) {
    const fs::path folder = fs::path(temp_dir()) / "encoders";
    fs::create_directories(folder);
    for (const auto& [name, golden] : {std::pair{"bert", "bert"}, {"cross", "bert-classifier"}}) {
      fs::remove_all(folder / name);
      fs::copy(write_tiny_encoder(golden), folder / name, fs::copy_options::recursive);
    }
    r.predictor.threads = 2;
    auto opened = oar::open_repository(folder.string(), "", r);
    REQUIRE_OK(opened);
    oar::ServerOptions o{.http_address = "127.0.0.1:0", .grpc_address = "127.0.0.1:0"};
    o.files = (folder.parent_path() / "encoder-files").string();
    catalog = std::move(*opened);
    auto started = oar::Server::start(std::move(o), catalog);
    REQUIRE_OK(started);
    server = std::move(*started);
  }
  HttpReply post(const std::string& path, const std::string& body) {
    return http(server->http_port(), "POST", path, body);
  }
  std::string refusal(const std::string& path, const std::string& body, int status = 400,
                      const char* param = nullptr) {
    const HttpReply r = post(path, body);
    CHECK(r.status == status);
    const auto error = parse(r.body).at("error");
    if (param) CHECK(error.at("param") == oar::json::value(param));
    last_code = error.at("code");
    return std::string(error.at("message").as_string());
  }
  std::unique_ptr<v1::Encoding::Stub> stub() {
    return v1::Encoding::NewStub(channel_to(server->grpc_port()));
  }
  std::shared_ptr<oar::api::ModelCatalog> catalog;
  std::unique_ptr<oar::Server> server;
  oar::json::value last_code;  // of refusal()
};

std::vector<float> vector_of(const oar::json::value& reply, size_t index) {
  std::vector<float> out;
  for (const auto& v : reply.at("data").at(index).at("embedding").as_array())
    out.push_back(static_cast<float>(v.to_number<double>()));
  return out;
}

TEST_CASE("Embeddings: an encoder that nobody asks for sleeps, and the next request wakes it") {
  EncoderServer t;
  const auto asleep = [&](size_t wanted) {
    for (int i = 0; i < 2000 && t.catalog->sleepers() != wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return t.catalog->sleepers() == wanted;
  };
  const std::string body = R"({"model":"bert","input":["w5 w6","w7"]})";
  const auto before = parse(t.post("/v1/embeddings", body).body);
  t.catalog->sleep_when_idle(std::chrono::milliseconds(100));
  REQUIRE(asleep(2));
  CHECK(t.catalog->loaded().empty());
  // Whoever looks finds them, and wakes none.
  const int port = t.server->http_port();
  CHECK(parse(http(port, "GET", "/v1/models").body).at("data").as_array().size() == 2);
  CHECK(parse(http(port, "GET", "/v1/models/bert").body).at("max_model_len").to_number<int>() > 0);
  CHECK(http(port, "GET", "/v2/models/bert/ready").status == 200);
  CHECK(http(port, "GET", "/health/ready").status == 200);
  CHECK(http(port, "GET", "/props").status == 404);  // llama.cpp's, of a language model
  CHECK(t.catalog->sleepers() == 2);
  CHECK(parse(t.post("/v1/embeddings", body).body).at("data") == before.at("data"));
  CHECK(t.catalog->sleepers() == 1);
  REQUIRE(asleep(2));
  CHECK(t.post("/v1/rerank", R"({"model":"cross","query":"w5","documents":["w6","w7"]})").status == 200);
  REQUIRE(asleep(2));
  grpc::ClientContext context;
  v1::EmbedRequest request;
  request.set_model("bert");
  request.add_inputs()->set_text("w5");
  v1::EmbedResponse response;
  CHECK(t.stub()->Embed(&context, request, &response).ok());
  REQUIRE(asleep(2));
  CHECK_THAT(t.refusal("/v1/embeddings", R"({"input":"w5"})"), Contains("model is missing"));
  // The only one may go by no name.
  REQUIRE_OK(t.catalog->unload("cross"));
  CHECK(t.post("/v1/embeddings", R"({"input":"w5"})").status == 200);
}

TEST_CASE("Embeddings: every form of input") {
  EncoderServer t;
  const HttpReply r = t.post("/v1/embeddings", R"({"model":"bert","input":["w5 w6","w7"]})");
  REQUIRE(r.status == 200);
  const auto v = parse(r.body);
  CHECK(v.at("object").as_string() == "list");
  CHECK(v.at("model").as_string() == "bert");
  CHECK(v.at("data").as_array().size() == 2);
  CHECK(v.at("data").at(1).at("index").to_number<int>() == 1);
  CHECK(v.at("data").at(1).at("object").as_string() == "embedding");
  CHECK(v.at("usage").at("prompt_tokens").to_number<int>() == 7);
  const auto first = vector_of(v, 0);
  REQUIRE(first.size() == 32);
  CHECK(http(t.server->http_port(), "GET", "/metrics").body.find("llamacpp:prompt_tokens_total 7\n") !=
        std::string::npos);
  double square = 0;
  for (const float x : first) square += static_cast<double>(x) * static_cast<double>(x);
  CHECK(square == Approx(1).margin(1e-5));
  // Text, tokens and lists of tokens say the same.
  for (const char* input : {R"("w5 w6")", "[2,5,6,3]", "[[2,5,6,3]]", R"(["w5 w6"])"}) {
    const auto same =
        vector_of(parse(t.post("/v1/embeddings", cat(R"({"model":"bert","input":)", input, "}")).body), 0);
    REQUIRE(same.size() == 32);
    for (size_t k = 0; k < 32; ++k) CHECK(same[k] == Approx(first[k]).margin(2e-6));
  }
  const auto coded =
      parse(t.post("/v1/embeddings", R"({"model":"bert","input":"w5 w6","encoding_format":"base64"})").body);
  const std::string text(coded.at("data").at(0).at("embedding").as_string());
  CHECK(text.size() == (32 * 4 + 2) / 3 * 4);
  const auto digit = [](char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
                                  : 63;
  };
  uint32_t bits = 0;
  for (int k = 0; k < 6; ++k) {
    const int d = digit(text[static_cast<size_t>(k)]);
    for (int b = 0; b < 6; ++b) {
      const int at = k * 6 + 5 - b;  // of 36 bits, of which the first 32 are the float's bytes in order
      if (at < 32 && (d >> b & 1)) bits |= 1u << (at / 8 * 8 + 7 - at % 8);
    }
  }
  float value;
  std::memcpy(&value, &bits, 4);
  CHECK(value == Approx(first[0]).margin(2e-6));
}

TEST_CASE("Embeddings: a batch says what requests say") {
  EncoderServer t;
  const std::string lines =
      R"({"custom_id":"a","url":"/v1/embeddings","body":{"model":"bert","input":["w5 w6","w7"]}})"
      "\n"
      R"({"custom_id":"b","url":"/v1/embeddings","body":{"model":"bert","input":"w5","dimensions":5}})";
  const HttpReply file =
      http(t.server->http_port(), "POST", "/v1/files",
           cat("--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--b\r\n"
               "Content-Disposition: form-data; name=file; filename=f\r\n\r\n",
               lines, "\r\n--b--"),
           {{"Content-Type", "multipart/form-data; boundary=b"}});
  REQUIRE(file.status == 200);
  const HttpReply made =
      t.post("/v1/batches", cat(R"({"input_file_id":)", serialize(parse(file.body).at("id")),
                                R"(,"endpoint":"/v1/embeddings","completion_window":"24h"})"));
  REQUIRE(made.status == 200);
  const std::string path = cat("/v1/batches/", std::string(parse(made.body).at("id").as_string()));
  oar::json::value v;
  for (int i = 0; i < 1000; ++i) {
    v = parse(http(t.server->http_port(), "GET", path).body);
    if (v.at("status") == "completed") break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  REQUIRE(v.at("request_counts").at("completed") == 1);
  CHECK(v.at("request_counts").at("failed") == 1);
  const HttpReply answer =
      http(t.server->http_port(), "GET",
           cat("/v1/files/", std::string(v.at("output_file_id").as_string()), "/content"));
  const auto line = parse(answer.body.substr(0, answer.body.find('\n')));
  const auto direct = parse(t.post("/v1/embeddings", R"({"model":"bert","input":["w5 w6","w7"]})").body);
  CHECK(line.at("custom_id") == "a");
  for (const size_t row : {0, 1}) {
    const auto batched = vector_of(line.at("response").at("body"), row), alone = vector_of(direct, row);
    REQUIRE(batched.size() == alone.size());
    for (size_t k = 0; k < alone.size(); ++k) CHECK(batched[k] == Approx(alone[k]).margin(2e-6));
  }
}

TEST_CASE("Embeddings: encoders are among the models") {
  EncoderServer t;
  const auto list = parse(http(t.server->http_port(), "GET", "/v1/models").body).at("data");
  REQUIRE(list.as_array().size() == 2);
  CHECK(list.at(0).at("id").as_string() == "bert");
  CHECK(list.at(0).at("max_model_len").to_number<int>() == 40);
  CHECK(parse(http(t.server->http_port(), "GET", "/v1/models/cross").body).at("id").as_string() == "cross");
  CHECK(http(t.server->http_port(), "GET", "/v1/models/none").status == 404);
}

TEST_CASE("Embeddings: many texts, alone and together, over both transports") {
  EncoderServer t;
  std::string inputs;
  v1::EmbedRequest request;
  request.set_model("bert");
  for (int n = 0; n < 150; ++n) {
    std::string text;
    for (int k = 0; k <= n % 30; ++k) text += cat("w", 5 + (n * 7 + k * 3) % 91, " ");
    inputs += cat(n ? "," : "", "\"", text, "\"");
    request.add_inputs()->set_text(text);
  }
  const auto v = parse(t.post("/v1/embeddings", cat(R"({"model":"bert","input":[)", inputs, "]}")).body);
  REQUIRE(v.at("data").as_array().size() == 150);
  grpc::ClientContext context;
  v1::EmbedResponse response;
  REQUIRE(t.stub()->Embed(&context, request, &response).ok());
  REQUIRE(response.embeddings_size() == 150);
  CHECK(response.prompt_tokens() == v.at("usage").at("prompt_tokens").to_number<int>());
  for (int n = 0; n < 150; ++n) {
    const auto row = vector_of(v, static_cast<size_t>(n));
    REQUIRE(response.embeddings(n).values_size() == 32);
    for (int k = 0; k < 32; ++k)
      CHECK(response.embeddings(n).values(k) == Approx(row[static_cast<size_t>(k)]).margin(2e-6));
  }
}

TEST_CASE("Rerank: scores by a classifier and by cosines") {
  EncoderServer t;
  for (const char* model : {"cross", "bert"}) {
    INFO(model);
    const HttpReply r = t.post(
        "/v1/rerank",
        cat(R"({"model":")", model, R"(","query":"w5 w6","documents":["w9","w5 w6",{"text":"w20 w21"}]})"));
    REQUIRE(r.status == 200);
    const auto v = parse(r.body);
    const auto& results = v.at("results").as_array();
    REQUIRE(results.size() == 3);
    for (size_t k = 0; k + 1 < 3; ++k)
      CHECK(results[k].at("relevance_score").to_number<double>() >=
            results[k + 1].at("relevance_score").to_number<double>());
    if (std::string(model) == "bert") {
      CHECK(results[0].at("index").to_number<int>() == 1);  // the query itself
      CHECK(results[0].at("relevance_score").to_number<double>() == Approx(1).margin(1e-5));
      CHECK(results[0].at("document").at("text").as_string() == "w5 w6");
    }
    grpc::ClientContext context;
    v1::RerankRequest request;
    request.set_model(model);
    request.set_query("w5 w6");
    for (const char* d : {"w9", "w5 w6", "w20 w21"}) request.add_documents(d);
    request.set_top_n(2);
    v1::RerankResponse response;
    REQUIRE(t.stub()->Rerank(&context, request, &response).ok());
    REQUIRE(response.results_size() == 2);
    for (int k = 0; k < 2; ++k) {
      CHECK(response.results(k).index() == results[static_cast<size_t>(k)].at("index").to_number<int>());
      CHECK(response.results(k).relevance_score() ==
            Approx(results[static_cast<size_t>(k)].at("relevance_score").to_number<double>()).margin(2e-6));
    }
  }
}

TEST_CASE("Score: one against many and two lists, by a classifier and by cosines") {
  EncoderServer t;
  for (const char* model : {"bert", "cross"}) {
    const auto scores = [&](const std::string& texts) {
      const HttpReply r = t.post("/v1/score", cat(R"({"model":")", model, R"(",)", texts, "}"));
      INFO(r.body);
      REQUIRE(r.status == 200);
      const auto v = parse(r.body);
      CHECK(v.at("object") == "list");
      CHECK(v.at("model") == model);
      CHECK(v.at("usage").at("prompt_tokens").to_number<int>() > 0);
      std::vector<double> out;
      for (const auto& d : v.at("data").as_array()) {
        CHECK(d.at("object") == "score");
        CHECK(d.at("index").to_number<size_t>() == out.size());
        out.push_back(d.at("score").to_number<double>());
      }
      return out;
    };
    const auto rows = scores(R"("text_1":"w5 w6","text_2":["w5 w6","w7","w8 w9"])");
    REQUIRE(rows.size() == 3);
    if (model == std::string("bert")) CHECK(rows[0] == Approx(1).margin(1e-5));
    // The scores of rerank, in the order of the texts.
    const auto ranked =
        parse(t.post("/v1/rerank",
                     cat(R"({"model":")", model, R"(","query":"w5 w6","documents":["w5 w6","w7","w8 w9"]})"))
                  .body);
    for (const auto& r : ranked.at("results").as_array())
      CHECK(rows[r.at("index").to_number<size_t>()] ==
            Approx(r.at("relevance_score").to_number<double>()).margin(1e-6));
    // One by one, under another name.
    const auto pairs = scores(R"("queries":["w5 w6","w7"],"documents":["w7","w7"])");
    REQUIRE(pairs.size() == 2);
    CHECK(pairs[0] == Approx(rows[1]).margin(1e-6));
    CHECK(scores(R"("text_1":"w7","text_2":"w7")")[0] == Approx(pairs[1]).margin(1e-6));
  }
}

TEST_CASE("Classify: labels and how likely they are, by a head over texts") {
  EncoderServer t;
  const auto v = parse(t.post("/classify", R"({"model":"cross","input":["w5 w6","w7"]})").body);
  CHECK(v.at("object") == "list");
  CHECK(v.at("model") == "cross");
  CHECK(v.at("usage").at("prompt_tokens") == 7);
  REQUIRE(v.at("data").as_array().size() == 2);
  for (size_t k = 0; k < 2; ++k) {
    const auto& one = v.at("data").at(k);
    CHECK(one.at("index") == k);
    CHECK(one.at("label") == "LABEL_0");
    CHECK(one.at("num_classes") == 1);
    const double p = one.at("probs").at(0).to_number<double>();
    CHECK((p > 0 && p < 1));
  }
  const auto tokens = parse(t.post("/v1/classify", R"({"model":"cross","input":[2,7,3]})").body);
  CHECK(tokens.at("data").at(0).at("probs") == v.at("data").at(1).at("probs"));
  const std::string long_text = R"({"model":"cross","input":"w5)" + [] {
    std::string out;
    for (int k = 0; k < 60; ++k) out += " w5";
    return out;
  }() + "\"";
  CHECK_THAT(t.refusal("/classify", long_text + "}", 400, "input"), Contains("at most 40"));
  CHECK(t.post("/classify", long_text + R"(,"truncate_prompt_tokens":-1})").status == 200);
  CHECK_THAT(t.refusal("/classify", R"({"model":"bert","input":"w5"})", 400, "model"), Contains("no head"));
  CHECK_THAT(t.refusal("/classify", R"({"model":"cross","input":"w5","dimensions":3})", 400, "dimensions"),
             Contains("dimensions"));
}

TEST_CASE("Pooling: the vectors of embeddings") {
  EncoderServer t;
  const auto v = parse(t.post("/pooling", R"({"model":"bert","input":["w5 w6","w7"],"task":"embed"})").body);
  const auto same = parse(t.post("/v1/embeddings", R"({"model":"bert","input":["w5 w6","w7"]})").body);
  for (size_t k = 0; k < 2; ++k) {
    CHECK(v.at("data").at(k).at("object") == "pooling");
    const auto want = vector_of(same, k);
    REQUIRE(v.at("data").at(k).at("data").as_array().size() == want.size());
    for (size_t i = 0; i < want.size(); ++i)
      CHECK(v.at("data").at(k).at("data").at(i).to_number<double>() == Approx(want[i]).margin(2e-6));
  }
  const auto coded =
      parse(t.post("/pooling", R"({"model":"bert","input":"w5","encoding_format":"base64"})").body);
  CHECK(coded.at("data").at(0).at("data").is_string());
}

TEST_CASE("Embeddings: tokens and texts mixed, and an empty text") {
  EncoderServer t;
  const auto vectors = [&](const std::string& input) {
    const HttpReply r = t.post("/v1/embeddings", cat(R"({"model":"bert","input":)", input, "}"));
    INFO(r.body);
    REQUIRE(r.status == 200);
    return parse(r.body);
  };
  const auto want = vector_of(vectors(R"("w5 w6 w7")"), 0);
  for (const char* input :
       {R"([2,5,"w6",7,3])", R"(["w9",[2,"w5 w6",7,3]])", R"([[2,"w5","w6 w7",3],[2,3]])"}) {
    INFO(input);
    const auto v = vectors(input);
    const size_t at = v.at("data").as_array().size() == 2 && input[1] == '"' ? 1 : 0;
    const auto got = vector_of(v, at);
    REQUIRE(got.size() == want.size());
    for (size_t k = 0; k < want.size(); ++k) CHECK(got[k] == Approx(want[k]).margin(2e-6));
  }
  // It is what stands around a text.
  CHECK(vectors(R"("")").at("usage").at("prompt_tokens") == 2);
  CHECK(vector_of(vectors(R"("")"), 0) == vector_of(vectors("[2,3]"), 0));
  t.refusal("/v1/embeddings", R"({"model":"bert","input":[2,"w5",96]})", 400, "input");
}

TEST_CASE("Embeddings: a vector of each token, and other ways to make one") {
  const auto rows_of = [](const oar::json::value& list) {
    std::vector<std::vector<double>> out;
    for (const auto& row : list.as_array()) {
      out.emplace_back();
      for (const auto& x : row.as_array()) out.back().push_back(x.to_number<double>());
    }
    return out;
  };
  const auto unit = [](std::vector<double> v) {
    double square = 0;
    for (const double x : v) square += x * x;
    for (double& x : v) x /= std::sqrt(square);
    return v;
  };
  std::vector<std::vector<double>> tokens;
  {
    EncoderServer t;
    const auto v =
        parse(t.post("/pooling", R"({"model":"bert","input":["w5 w6","w7"],"task":"token_embed"})").body);
    tokens = rows_of(v.at("data").at(0).at("data"));
    REQUIRE(tokens.size() == 4);
    CHECK(rows_of(v.at("data").at(1).at("data")).size() == 3);
    // Their mean is the model's own vector of the text.
    std::vector<double> mean(tokens[0].size());
    for (const auto& row : tokens)
      for (size_t k = 0; k < mean.size(); ++k) mean[k] += row[k] / 4;
    mean = unit(mean);
    const auto own =
        vector_of(parse(t.post("/v1/embeddings", R"({"model":"bert","input":"w5 w6"})").body), 0);
    for (size_t k = 0; k < own.size(); ++k) CHECK(own[k] == Approx(mean[k]).margin(1e-5));
    const auto coded = parse(
        t.post("/pooling", R"({"model":"bert","input":"w5","task":"token_embed","encoding_format":"base64"})")
            .body);
    CHECK(coded.at("data").at(0).at("data").at(2).is_string());
  }
  {
    oar::RepositoryOptions r;
    r.token_vectors = true;
    EncoderServer t(r);
    const auto v = parse(t.post("/embeddings", R"({"model":"bert","input":["w7","w5 w6"]})").body);
    REQUIRE(v.as_array().size() == 2);
    CHECK(v.at(1).at("index") == 1);
    const auto rows = rows_of(v.at(1).at("embedding"));
    REQUIRE(rows.size() == 4);
    for (size_t k = 0; k < rows[0].size(); ++k) CHECK(rows[2][k] == Approx(tokens[2][k]).margin(1e-5));
    t.refusal("/v1/embeddings", R"({"model":"bert","input":"w5"})", 400, "input");
  }
  {
    oar::RepositoryOptions r;
    r.vectors.pooling = oar::Pooling::kLast;
    EncoderServer t(r);
    const auto last = vector_of(parse(t.post("/embeddings", R"({"model":"bert","input":"w5 w6"})").body), 0);
    const auto want = unit(tokens[3]);
    for (size_t k = 0; k < want.size(); ++k) CHECK(last[k] == Approx(want[k]).margin(1e-5));
  }
}

TEST_CASE("Embeddings and rerank: as llama.cpp and Text Embeddings Inference ask") {
  EncoderServer t;
  const auto plain = parse(t.post("/v1/embeddings", R"({"model":"bert","input":"w5 w6"})").body);
  for (const char* input : {R"({"prompt_string":"w5 w6"})",
                            R"({"content":[{"type":"text","text":"w5 "},{"type":"text","text":"w6"}]})",
                            R"([{"prompt_string":"w5 w6"}])"}) {
    INFO(input);
    const HttpReply r = t.post("/v1/embeddings", cat(R"({"model":"bert","input":)", input, "}"));
    REQUIRE(r.status == 200);
    CHECK(parse(r.body).at("data").at(0) == plain.at("data").at(0));
  }
  for (const char* input : {R"({"content":"w5"})", R"({"content":[{"type":"image_url"}]})", R"({})",
                            R"({"prompt_string":"w5","content":[]})", R"({"content":[{"type":"text"}]})"}) {
    INFO(input);
    t.refusal("/v1/embeddings", cat(R"({"model":"bert","input":)", input, "}"));
  }
  const std::string asked = R"({"model":"cross","query":"w5","top_n":2,)";
  const auto ranked = parse(t.post("/rerank", asked + R"("documents":["w6","w7","w8"]})").body).at("results");
  const auto list = parse(t.post("/rerank", asked + R"("texts":["w6","w7","w8"]})").body);
  REQUIRE(list.as_array().size() == 2);
  CHECK(list.at(0).at("index") == ranked.at(0).at("index"));
  CHECK(list.at(0).at("score") == ranked.at(0).at("relevance_score"));
  CHECK_FALSE(list.at(0).as_object().contains("text"));
  CHECK(parse(t.post("/reranking", asked + R"("texts":["w6"],"return_text":true})").body).at(0).at("text") ==
        "w6");
  t.refusal("/rerank", asked + R"("texts":["w6"],"documents":["w7"]})", 400, "texts");
  t.refusal("/rerank", asked + R"("texts":["w6"],"raw_scores":true})", 400, "raw_scores");
}

TEST_CASE("Embeddings and rerank: what is refused") {
  EncoderServer t;
  CHECK(t.refusal("/v1/score", R"({"model":"bert","text_2":"a"})", 400, "text_1").find("missing") !=
        std::string::npos);
  CHECK(t.refusal("/v1/score", R"({"model":"bert","text_1":"a","text_2":[]})", 400, "text_2").find("empty") !=
        std::string::npos);
  CHECK(t.refusal("/v1/score", R"({"model":"bert","text_1":["a","b"],"text_2":["a","b","c"]})", 400, "text_1")
            .find("as many as text_2") != std::string::npos);
  CHECK(t.refusal("/v1/score", R"({"model":"bert","text_1":"a","queries":"b","text_2":"c"})", 400, "queries")
            .find("are the same") != std::string::npos);
  CHECK(t.refusal("/v1/score", R"({"model":"bert","text_1":5,"text_2":"c"})", 400, "text_1").find("string") !=
        std::string::npos);
  CHECK(t.refusal("/v1/score", R"({"model":"bert","text_1":"a","text_2":"c","text_3":"d"})", 400, "text_3")
            .find("no field") != std::string::npos);
  CHECK(t.refusal("/pooling", R"({"model":"bert","input":"a","task":"classify"})", 400, "task")
            .find("token_embed") != std::string::npos);
  const auto embed = [&](const std::string& rest, int status = 400, const char* param = "input") {
    return t.refusal("/v1/embeddings", cat(R"({"model":"bert",)", rest, "}"), status, param);
  };
  CHECK_THAT(embed(R"("x":1)"), Contains("input is missing"));
  CHECK_THAT(embed(R"("input":[])"), Contains("not empty"));
  CHECK_THAT(embed(R"("input":[[]])"), Contains("empty list"));
  CHECK_THAT(embed(R"("input":5)"), Contains("input must be"));
  CHECK_THAT(embed(R"("input":[5,[6]])"), Contains("list of tokens"));
  CHECK_THAT(embed(R"("input":["w5",true])"), Contains("entries"));
  CHECK_THAT(embed(R"("input":[96])"), Contains("token 96"));
  CHECK_THAT(embed(R"("input":[-1])"), Contains("-1"));
  CHECK_THAT(embed(cat(R"("input":[")", std::string(100, 'a'), R"(",")",
                       [] {
                         std::string s;
                         for (int k = 0; k < 60; ++k) s += "w5 ";
                         return s;
                       }(),
                       "\"]")),
             Contains("62 tokens") && Contains("at most 40"));
  CHECK(t.last_code == "context_length_exceeded");
  std::string many = "\"w5\"";
  for (int k = 0; k < 2048; ++k) many += ",\"w5\"";
  CHECK_THAT(embed(cat("\"input\":[", many, "]")), Contains("at most 2048"));
  CHECK_THAT(embed(R"("input":"w5","encoding_format":"hex")", 400, "encoding_format"), Contains("hex"));
  CHECK_THAT(embed(R"("input":"w5","dimensions":16)", 400, "dimensions"), Contains("32"));
  CHECK_THAT(embed(R"("input":"w5","dimensions":"x")", 400, "dimensions"), Contains("dimensions"));
  CHECK_THAT(t.refusal("/v1/embeddings", R"({"model":"none","input":"w5"})", 404, "model"),
             Contains("there is: bert, cross"));
  CHECK_THAT(t.refusal("/v1/embeddings", R"({"input":"w5"})", 400, "model"), Contains("name an encoder"));
  CHECK_FALSE(t.refusal("/v1/embeddings", "{").empty());
  CHECK_THAT(t.refusal("/v1/rerank", R"({"model":"bert","documents":["w5"]})", 400, "query"),
             Contains("query"));
  CHECK_THAT(t.refusal("/v1/rerank", R"({"model":"bert","query":"w5","documents":[]})", 400, "documents"),
             Contains("documents"));
  CHECK_THAT(t.refusal("/v1/rerank", R"({"model":"bert","query":"w5","documents":[1]})", 400, "documents"),
             Contains("1"));
  CHECK_THAT(
      t.refusal("/v1/rerank", R"({"model":"bert","query":"w5","documents":["w5"],"top_n":-1})", 400, "top_n"),
      Contains("-1"));
  CHECK(t.last_code.is_null());
  std::string query;
  for (int k = 0; k < 60; ++k) query += "w5 ";
  CHECK_THAT(t.refusal("/v1/rerank", cat(R"({"model":"cross","documents":["w5"],"query":")", query, "\"}"),
                       400, "query"),
             Contains("60 tokens") && Contains("no room"));
  CHECK(t.last_code == "context_length_exceeded");
  grpc::ClientContext c1, c2;
  v1::EmbedResponse response;
  CHECK(t.stub()->Embed(&c1, {}, &response).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  v1::EmbedRequest none;
  none.set_model("none");
  none.add_inputs()->set_text("w5");
  CHECK(t.stub()->Embed(&c2, none, &response).error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(t.post("/v1/embeddings", R"({"model":"bert","input":"w5","truncate_prompt_tokens":-1})").status ==
        200);
}

TEST_CASE("Embeddings: clients that leave in the middle") {
  EncoderServer t;
  std::string inputs = "\"w5\"";
  for (int n = 0; n < 400; ++n) inputs += cat(",\"w", 5 + n % 90, " w6 w7 w8\"");
  const std::string body = cat(R"({"model":"bert","input":[)", inputs, "]}");
  for (int n = 0; n < 5; ++n) {
    RawClient client(t.server->http_port());
    client.send(make_request("POST", "/v1/embeddings", body));
    std::this_thread::sleep_for(std::chrono::milliseconds(n));
    client.reset();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(n));
    v1::EmbedRequest request;
    request.set_model("bert");
    for (int k = 0; k < 400; ++k) request.add_inputs()->set_text("w5 w6 w7");
    v1::EmbedResponse response;
    t.stub()->Embed(&context, request, &response);
  }
  CHECK(t.post("/v1/embeddings", R"({"model":"bert","input":"w5"})").status == 200);
}

TEST_CASE("embed: Ollama's words for the same vectors") {
  EncoderServer s;
  const auto ours = parse(s.post("/v1/embeddings", R"({"model":"bert","input":["a b","c"]})").body);
  const HttpReply r =
      s.post("/api/embed", R"({"model":"bert:latest","input":["a b","c"],"keep_alive":"5m"})");
  INFO(r.body);
  REQUIRE(r.status == 200);
  const auto v = parse(r.body);
  REQUIRE(v.at("embeddings").as_array().size() == 2);
  for (size_t i = 0; i < 2; ++i) CHECK(v.at("embeddings").at(i) == ours.at("data").at(i).at("embedding"));
  CHECK(v.at("prompt_eval_count") == ours.at("usage").at("prompt_tokens"));
  CHECK(v.at("total_duration").as_int64() > 0);
  const HttpReply old = s.post("/api/embeddings", R"({"model":"bert","prompt":"c"})");
  REQUIRE(old.status == 200);
  CHECK(parse(old.body).at("embedding") == v.at("embeddings").at(1));

  // A long text is cut, unless that is not wanted.
  const std::string spaced = [&] {
    std::string out;
    for (int i = 0; i < 2000; ++i) out += "a ";
    return out;
  }();
  CHECK(s.post("/api/embed", R"({"model":"bert","input":")" + spaced + "\"}").status == 200);
  for (const std::string& body :
       {R"({"model":"bert","truncate":false,"input":")" + spaced + "\"}", std::string(R"({"model":"bert"})"),
        std::string(R"({"model":"bert","input":"a","options":{"temperature":1}})")}) {
    const HttpReply refused = s.post("/api/embed", body);
    CHECK(refused.status == 400);
    CHECK(parse(refused.body).at("error").is_string());
  }
  CHECK(parse(http(s.server->http_port(), "GET", "/api/tags").body).at("models").as_array().size() == 2);
  const auto shown = parse(s.post("/api/show", R"({"model":"bert"})").body);
  CHECK(shown.at("capabilities") == parse(R"(["embedding"])"));
}

}  // namespace
