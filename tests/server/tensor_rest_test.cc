// Ordinary models over REST: JSON and binary tensors, what can be asked about a model, refusals, metrics.
#include <cstring>
#include <fstream>

#include "engine/base/format.h"
#include "server/http/compression.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_server.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}
HttpReply post(const TensorServer& t, const std::string& path, const std::string& body,
               const Headers& headers = {}) {
  return http(t.http(), "POST", path, body, headers);
}
HttpReply get(const TensorServer& t, const std::string& path) { return http(t.http(), "GET", path); }
std::string refusal(const HttpReply& reply, int status = 400) {
  CHECK(reply.status == status);
  return std::string(parse(reply.body).at("error").as_string());
}

TEST_CASE("Tensors over REST: JSON in and out") {
  TensorServer t;
  const HttpReply r = post(t, "/v2/models/scale/infer",
                           R"({"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[2,3],)"
                           R"("data":[[1,2,3],[4,5,6.5]]}]})");
  REQUIRE(r.status == 200);
  const auto v = parse(r.body);
  CHECK(v.at("id").as_string() == "7");
  CHECK(v.at("model_name").as_string() == "scale");
  CHECK(v.at("model_version").as_string() == "3");
  const auto& out = v.at("outputs").at(0);
  CHECK(out.at("datatype").as_string() == "FP32");
  CHECK(out.at("data").as_array().size() == 6);
  CHECK(out.at("data").at(5).to_number<double>() == 19.5);
  // A version, flat data, and values of each datatype.
  CHECK(parse(post(t, "/v2/models/scale/versions/1/infer",
                   R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]})")
                  .body)
            .at("outputs")
            .at(0)
            .at("data")
            .at(2)
            .to_number<double>() == 3);
  const auto echo = [&](const std::string& type, const std::string& data) {
    const HttpReply reply =
        post(t, cat("/v2/models/same_", type, "/infer"),
             cat(R"({"inputs":[{"name":"x","shape":[1,3],"datatype":")", type, R"(","data":)", data, "}]}"));
    INFO(type << " " << reply.body);
    REQUIRE(reply.status == 200);
    return serialize(parse(reply.body).at("outputs").at(0).at("data"));
  };
  CHECK(echo("BOOL", "[true,false,1]") == "[true,false,true]");
  CHECK(echo("INT8", "[-128,0,127]") == "[-128,0,127]");
  CHECK(echo("UINT64", "[0,1,18446744073709551615]") == "[0,1,18446744073709551615]");
  CHECK(echo("INT64", "[-9223372036854775808,0,1]") == "[-9223372036854775808,0,1]");
  CHECK(echo("FP16", "[0.5,2,-1]") == "[5E-1,2,-1]");
  CHECK(echo("BYTES", R"(["a","","\u00e9"])") == "[\"a\",\"\",\"\xC3\xA9\"]");
}

TEST_CASE("Tensors over REST: the largest values of an output, as texts") {
  TensorServer t;
  const auto classes = [&](const std::string& data, int64_t count, const char* shape = "[2,3]") {
    const HttpReply r =
        post(t, "/v2/models/scale/versions/1/infer",
             cat(R"({"inputs":[{"name":"x","datatype":"FP32","shape":)", shape, R"(,"data":)", data,
                 R"(}],"outputs":[{"name":"y","parameters":{"classification":)", count, "}}]}"));
    INFO(r.body);
    REQUIRE(r.status == 200);
    const auto out = parse(r.body).at("outputs").at(0);
    CHECK(out.at("datatype") == "BYTES");
    return serialize(out.at("shape")) + serialize(out.at("data"));
  };
  CHECK(classes("[0.5,-1,7,3,3,2]", 2) ==
        R"([2,2]["7.000000:2","0.500000:0","3.000000:0","3.000000:1"])");  // equal ones by index
  CHECK(classes("[1,2,3]", 9, "[1,3]") ==
        R"([1,3]["3.000000:2","2.000000:1","1.000000:0"])");  // no more than all
  const auto integers = parse(
      post(t, "/v2/models/same_INT64/infer",
           R"({"inputs":[{"name":"x","shape":[1,3],"datatype":"INT64","data":[-1,9223372036854775807,5]}],)"
           R"("outputs":[{"name":"y","parameters":{"classification":2}}]})")
          .body);
  CHECK(serialize(integers.at("outputs").at(0).at("data")).find(R"("9223372036854775807:1","5:2")") !=
        std::string::npos);
  // 0 asks for nothing; texts have no largest.
  CHECK(parse(post(t, "/v2/models/scale/versions/1/infer",
                   R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}],)"
                   R"("outputs":[{"name":"y","parameters":{"classification":0}}]})")
                  .body)
            .at("outputs")
            .at(0)
            .at("datatype") == "FP32");
  CHECK_THAT(refusal(post(t, "/v2/models/same_BYTES/infer",
                          R"({"inputs":[{"name":"x","shape":[1,3],"datatype":"BYTES","data":["a","b","c"]}],)"
                          R"("outputs":[{"name":"y","parameters":{"classification":1}}]})")),
             Contains("no numbers"));
  CHECK_THAT(refusal(post(t, "/v2/models/scale/versions/1/infer",
                          R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}],)"
                          R"("outputs":[{"name":"y","parameters":{"classification":-1}}]})")),
             Contains("classification"));
}

TEST_CASE("Tensors over REST: binary tensors") {
  TensorServer t;
  const std::string json =
      R"({"inputs":[{"name":"a","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}},)"
      R"({"name":"b","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}],)"
      R"("outputs":[{"name":"twice","parameters":{"binary_data":true}},{"name":"sum"}]})";
  const HttpReply r = post(t, "/v2/models/two/infer", json + floats({1, 2}) + floats({10, 20}),
                           {{"Inference-Header-Content-Length", cat(json.size())}});
  REQUIRE(r.status == 200);
  CHECK(r.headers.at("content-type") == "application/octet-stream");
  const size_t length = std::stoul(r.headers.at("inference-header-content-length"));
  const auto v = parse(r.body.substr(0, length));
  CHECK(v.at("outputs").at(0).at("parameters").at("binary_data_size").to_number<int>() == 8);
  CHECK(v.at("outputs").at(1).at("data").at(1).to_number<double>() == 22);
  CHECK(r.body.substr(length) == floats({2, 4}));
  // Nothing but the tensor's bytes.
  const HttpReply raw =
      post(t, "/v2/models/scale/infer", floats({1, 2, 3}), {{"Inference-Header-Content-Length", "0"}});
  REQUIRE(raw.status == 200);
  CHECK(raw.body.substr(std::stoul(raw.headers.at("inference-header-content-length"))) == floats({3, 6, 9}));
  for (const auto& [model, why] : {std::pair("two", "must only have 1 input (found 1)"),
                                   std::pair("same_BYTES", "must have input shape [1]; send JSON")})
    CHECK_THAT(refusal(post(t, cat("/v2/models/", model, "/infer"), "12345678",
                            {{"Inference-Header-Content-Length", "0"}})),
               Contains(why));
}

TEST_CASE("Tensors over REST: compressed both ways, binary tensors behind the JSON") {
  using namespace oar::http;  // NOLINT
  TensorServer t;
  std::string raw;
  for (const char letter : {'a', 'b', 'c'}) {
    raw += std::string("\xE8\3\0\0", 4) + std::string(1000, letter);  // its length in four bytes
  }
  const std::string head =
      cat(R"({"inputs":[{"name":"x","datatype":"BYTES","shape":[1,3],"parameters":{"binary_data_size":)",
          raw.size(), R"(}}],"parameters":{"binary_data_output":true}})");
  const Headers length{{"Inference-Header-Content-Length", cat(head.size())}};
  const HttpReply plain = post(t, "/v2/models/same_BYTES/infer", head + raw, length);
  REQUIRE(plain.status == 200);
  for (const Coding coding : {Coding::kGzip, Coding::kDeflate}) {
    Headers headers = length;
    headers.push_back({"Content-Encoding", coding_name(coding)});
    headers.push_back({"Accept-Encoding", coding_name(coding)});
    const HttpReply r = post(t, "/v2/models/same_BYTES/infer", compress(head + raw, coding), headers);
    REQUIRE(r.status == 200);
    CHECK(r.headers.at("content-encoding") == coding_name(coding));
    CHECK(r.headers.at("vary") == "Accept-Encoding");
    CHECK(r.body.size() < plain.body.size() / 4);
    const auto back = decompress(r.body, coding, 1 << 20);
    REQUIRE_OK(back);
    CHECK(*back == plain.body);
    CHECK(r.headers.at("inference-header-content-length") ==
          plain.headers.at("inference-header-content-length"));
  }
}

TEST_CASE("Tensors over REST: what is refused") {
  TensorServer t;
  const auto infer = [&](const std::string& body, const Headers& headers = {}) {
    return post(t, "/v2/models/scale/infer", body, headers);
  };
  const auto with = [](const std::string& input) { return cat(R"({"inputs":[{"name":"x",)", input, "}]}"); };
  CHECK_THAT(refusal(infer("{}")), Contains("inputs is missing"));
  CHECK_THAT(refusal(infer("[]")), Contains("object"));
  CHECK_THAT(refusal(infer("{")), Contains("request body"));
  CHECK_THAT(refusal(infer(R"({"inputs":[1]})")), Contains("objects"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"FP33","shape":[1,3],"data":[1,2,3])"))), Contains("FP33"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"FP32","shape":[1,-3],"data":[1,2,3])"))),
             Contains("negative"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"FP32","shape":[1,3],"data":[1,2])"))), Contains("2 elements"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"FP32","shape":[1,3],"data":[1,2,3,4])"))),
             Contains("more elements"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"FP32","shape":[1,3],"data":[1,"b",3])"))),
             Contains("element 1"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"INT8","shape":[1,3],"data":[1,300,3])"))), Contains("300"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"FP32","shape":[4294967296],"data":[1])"))),
             Contains("binary"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"INT32","shape":[1,3],"data":[1,2,3])"))),
             Contains("INT32 [1, 3]") && Contains("FP32 [-1, 3]"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"FP32","shape":[1,3])"))), Contains("neither data"));
  CHECK_THAT(refusal(infer(with(R"("datatype":"FP32","shape":[1,3],"parameters":{"binary_data_size":12})"))),
             Contains("0 bytes are left"));
  CHECK_THAT(refusal(infer("{}", {{"Inference-Header-Content-Length", "3"}})), Contains("3"));
  CHECK_THAT(refusal(infer("{}", {{"Inference-Header-Content-Length", "x"}})), Contains("number"));
  CHECK_THAT(refusal(infer(R"({"inputs":[]}....)", {{"Inference-Header-Content-Length", "13"}})),
             Contains("4 bytes"));
  CHECK_THAT(refusal(infer("123", {{"Inference-Header-Content-Length", "0"}})), Contains("3 raw bytes"));
  CHECK_THAT(refusal(post(t, "/v2/models/nowhere/infer", "{}"), 404), Contains("nowhere"));
  CHECK_THAT(refusal(post(t, "/v2/models/broken/infer", "{}"), 503), Contains("not loaded"));
  CHECK(post(t, "/v2/models/scale/infer", with(R"("datatype":"FP32","shape":[1,3],"data":[1,2,3])")).status ==
        200);
  // Before a handler sees them as well: the dialect follows from the path.
  for (const char* head :
       {"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        "POST /v2/models/scale/infer HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        "GET /v2/models/scale%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        "PATCH /v2/models/scale HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /v2/nothing/at/all HTTP/1.1\r\nHost: localhost\r\n\r\n"}) {
    INFO(head);
    RawClient c(t.http());
    REQUIRE(c.send(head));
    const HttpReply r = c.read_reply();
    CHECK(r.status >= 400);
    CHECK(parse(r.body).at("error").is_string());
  }
}

TEST_CASE("Tensors over REST: about models, and the repository") {
  oar::ServerOptions options;
  options.model_control = true;
  TensorServer t(options);
  CHECK(get(t, "/v2/models/scale/ready").status == 200);
  CHECK(get(t, "/v2/models/broken/ready").status == 503);
  CHECK(get(t, "/v2/models/none/ready").status == 404);
  const auto metadata = parse(get(t, "/v2/models/scale").body);
  CHECK(metadata.at("versions").as_array().size() == 2);
  CHECK(metadata.at("inputs").at(0).at("shape").at(0).to_number<int>() == -1);
  const auto config = parse(get(t, "/v2/models/scale/config").body);
  CHECK(config.at("max_batch_size").to_number<int>() == 8);
  CHECK(config.at("input").at(0).at("data_type").as_string() == "TYPE_FP32");
  CHECK(parse(get(t, "/v2").body).at("name").as_string() == "oar");
  REQUIRE(post(t, "/v2/models/scale/infer",
               R"({"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]})")
              .status == 200);
  CHECK(parse(get(t, "/v2/models/scale/stats").body).at("model_stats").as_array().size() == 2);
  const auto stats = parse(get(t, "/v2/models/scale/versions/3/stats").body).at("model_stats").at(0);
  CHECK(stats.at("inference_count").to_number<int>() == 2);
  CHECK(stats.at("execution_count").to_number<int>() == 1);
  CHECK(stats.at("batch_stats").at(0).at("batch_size").to_number<int>() == 2);
  CHECK(parse(get(t, "/v2/models/stats").body).at("model_stats").as_array().size() > 10);
  CHECK(post(t, "/v2/repository/models/scale/unload", "{}").status == 200);
  CHECK(get(t, "/v2/models/scale/ready").status == 503);
  CHECK(post(t, "/v2/repository/models/scale/load", R"({"parameters":{"config":"{\"max_batch_size\":5}"}})")
            .status == 200);
  CHECK(parse(get(t, "/v2/models/scale/config").body).at("max_batch_size").to_number<int>() == 5);
  CHECK(post(t, "/v2/repository/models/%2e%2e/load", "").status == 404);
  // Nothing of a body is passed over.
  for (const char* path :
       {"/v2/repository/models/scale/load", "/v2/repository/models/scale/unload", "/v2/repository/index"}) {
    INFO(path);
    CHECK_THAT(refusal(post(t, path, R"({"version":"3"})")), Contains("version"));
    CHECK_FALSE(refusal(post(t, path, "[")).empty());
  }
  CHECK_THAT(refusal(post(t, "/v2/repository/models/scale/unload", R"({"parameters":{"config":"{}"}})"), 501),
             Contains("config"));
  CHECK(post(t, "/v2/repository/models/scale/load", R"({"parameters":{"unload_dependents":true}})").status ==
        200);
  const auto ready = parse(post(t, "/v2/repository/index", R"({"ready":true})").body);
  CHECK(ready.as_array().size() > 5);
  for (const auto& m : ready.as_array()) CHECK(m.at("state") == "READY");
  CHECK(ready.as_array().size() < parse(post(t, "/v2/repository/index", "{}").body).as_array().size());
  // What is listed is honoured; priorities are not.
  const std::string extensions = oar::json::serialize(parse(get(t, "/v2").body).at("extensions"));
  CHECK_THAT(extensions, Contains("binary_tensor_data") && !Contains("schedule_policy"));
  const auto index = parse(post(t, "/v2/repository/index", "").body);
  CHECK(index.as_array().size() > 10);
  const std::string metrics = get(t, "/metrics").body;
  CHECK_THAT(metrics, Contains("nv_inference_request_success{model=\"two\",version=\"1\"} 0") &&
                          Contains("nv_inference_pending_request_count"));
}

TEST_CASE("Tensors over REST: models are not loaded and unloaded by everybody") {
  {
    TensorServer t;
    CHECK_THAT(refusal(post(t, "/v2/repository/models/scale/unload", "{}"), 403),
               Contains("--model-control explicit"));
    CHECK_THAT(refusal(post(t, "/v2/repository/models/scale/load", "{}"), 403),
               Contains("--model-control explicit"));
    CHECK(get(t, "/v2/models/scale/ready").status == 200);
  }
  oar::ServerOptions o;
  o.api_key = "user";
  o.model_control = true;
  const std::string path = temp_dir() + "/admin-keys";
  std::ofstream(path) << "admin\n";
  o.admin_key_file = path;
  TensorServer t(o);
  const auto unload = [&](const char* key) {
    return post(t, "/v2/repository/models/scale/unload", "{}", {{"Authorization", oar::cat("Bearer ", key)}})
        .status;
  };
  CHECK(unload("user") == 401);
  CHECK(unload("admin") == 200);
  CHECK(http(t.http(), "GET", "/v2/models/stats", "", {{"X-Api-Key", "admin"}}).status == 401);
}

}  // namespace
