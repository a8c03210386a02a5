// Tensors of requests: options, JSON bodies, binary bodies, and everything that is wrong with them.
#include "clients/loadtest/tensor_request.h"

#include <cmath>
#include <cstring>

#include "clients/loadtest/workload.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "tests/support/catch.h"

namespace {
using namespace oar;
using namespace oar::loadtest;

template <class T>
std::vector<T> values(const std::string& raw) {
  std::vector<T> out(raw.size() / sizeof(T));
  std::memcpy(out.data(), raw.data(), out.size() * sizeof(T));
  return out;
}

std::string failure(const std::string& body) {
  const auto r = parse_tensor_body(body);
  return r.ok() ? "fine" : r.status().message();
}

TEST_CASE("--tensor makes the same random numbers for the same seed") {
  const auto a = parse_tensor_option("image:0:FP32:2,3", 1), b = parse_tensor_option("image:0:FP32:2,3", 1);
  REQUIRE_OK(a);
  CHECK(a->name == "image:0");
  CHECK(a->shape == std::vector<int64_t>{2, 3});
  CHECK(a->raw == b->raw);
  CHECK(a->raw != parse_tensor_option("image:0:FP32:2,3", 2)->raw);
  for (const float f : values<float>(a->raw)) CHECK((f >= 0 && f < 1));
  CHECK(parse_tensor_option("scalar:INT64:", 1)->raw.size() == 8);
  CHECK(parse_tensor_option("t:BYTES:3", 1)->raw.size() > 3 * 4);
  CHECK(parse_tensor_option("b:BOOL:64", 1)->raw.find_first_not_of(std::string("\0\1", 2)) ==
        std::string::npos);
  for (const char* wrong :
       {"", "x", "x:FP32", ":FP32:1", "x:FP31:1", "x:FP32:1,", "x:FP32:,1", "x:FP32:-1", "x:FP32:a",
        "x:FP32:1000000,1000000", "x:FP32:9223372036854775807,9223372036854775807"})
    CHECK(!parse_tensor_option(wrong, 1).ok());
}

TEST_CASE("JSON tensors become raw bytes of their type") {
  const auto r = parse_tensor_body(
      R"({"inputs": [{"name": "f", "datatype": "FP32", "shape": [2, 2], "data": [[1, -2.5], [3e38, 0]]},
                     {"name": "h", "datatype": "FP16", "shape": [5], "data": [1, -2, 65504, 1e6, 6e-8]},
                     {"name": "b", "datatype": "BF16", "shape": [2], "data": [1, -3.140625]},
                     {"name": "i", "datatype": "INT8", "shape": [2], "data": [-128, 127]},
                     {"name": "u", "datatype": "UINT64", "shape": [1], "data": [18446744073709551615]},
                     {"name": "t", "datatype": "BOOL", "shape": [2], "data": [true, 0]},
                     {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["ab", ""]}]})");
  REQUIRE_OK(r);
  CHECK(values<float>((*r)[0].raw) == std::vector<float>{1, -2.5f, 3e38f, 0});
  CHECK(values<uint16_t>((*r)[1].raw) == std::vector<uint16_t>{0x3c00, 0xc000, 0x7bff, 0x7c00, 0x0001});
  CHECK(values<uint16_t>((*r)[2].raw) == std::vector<uint16_t>{0x3f80, 0xc049});
  CHECK(values<int8_t>((*r)[3].raw) == std::vector<int8_t>{-128, 127});
  CHECK(values<uint64_t>((*r)[4].raw) == std::vector<uint64_t>{UINT64_MAX});
  CHECK((*r)[5].raw == std::string("\1\0", 2));
  CHECK((*r)[6].raw == std::string("\2\0\0\0ab\0\0\0\0", 10));
}

TEST_CASE("wrong bodies are refused by field") {
  const auto one = [](const char* datatype, const char* shape, const char* data) {
    return cat(R"({"inputs":[{"name":"x","datatype":")", datatype, R"(","shape":)", shape, R"(,"data":)",
               data, "}]}");
  };
  CHECK(failure(one("FP32", "[1]", "[1]")) == "fine");
  CHECK(failure("{}").find("inputs") == 0);
  CHECK(failure(R"({"inputs":[3]})").find("inputs") == 0);
  CHECK(failure(R"({"inputs":[{"datatype":"FP32"}]})").find("inputs.name") == 0);
  CHECK(failure(one("FP33", "[1]", "[1]")).find("FP33") != std::string::npos);
  CHECK(failure(one("FP32", "[-1]", "[1]")).find("-1") != std::string::npos);
  CHECK(failure(one("FP32", "[2]", "[1]")).find("holds 1 elements, the shape wants 2") != std::string::npos);
  CHECK(failure(one("FP32", "3", "[1]")).find("shape") != std::string::npos);
  CHECK(failure(one("FP32", "[1]", "1")).find("data") != std::string::npos);
  CHECK(failure(one("FP32", "[1]", R"(["1"])")).find("numbers") != std::string::npos);
  CHECK(failure(one("INT8", "[1]", "[128]")).find("128 is no INT8") != std::string::npos);
  CHECK(failure(one("UINT8", "[1]", "[-1]")).find("-1 is no UINT8") != std::string::npos);
  CHECK(failure(one("INT32", "[1]", "[1.5]")).find("no INT32") != std::string::npos);
  CHECK(failure(one("BOOL", "[1]", "[2]")).find("no BOOL") != std::string::npos);
  CHECK(failure(one("BYTES", "[1]", "[1]")).find("strings") != std::string::npos);
}

TEST_CASE("a binary body: the header's length, then the tensors in their order") {
  const auto a = parse_tensor_option("a:INT32:2", 1), b = parse_tensor_option("b:FP32:1", 1);
  const BinaryBody body = binary_body({*a, *b});
  CHECK(body.body.size() == body.header_length + 12);
  CHECK(body.body.substr(body.header_length) == a->raw + b->raw);
  const json::value v = json::parse(body.body.substr(0, body.header_length));
  CHECK(v.at("inputs").at(0).at("parameters").at("binary_data_size") == 8);
  CHECK(v.at("parameters").at("binary_data_output") == true);
}

TEST_CASE("endpoints take the tensors they can send") {
  WorkloadSpec s;
  s.model = "m";
  s.endpoint = Endpoint::kInfer;
  CHECK(!Workload::create(s).ok());
  s.tensors = {"x:FP32:4"};
  const auto http = Workload::create(s);
  REQUIRE_OK(http);
  CHECK(http->content_headers().find("Inference-Header-Content-Length: ") != std::string::npos);
  CHECK(http->target() == "/v2/models/m/infer");
  s.endpoint = Endpoint::kGrpcInfer;
  CHECK(Workload::create(s)->tensors().size() == 1);
  s.endpoint = Endpoint::kChat;
  CHECK(!Workload::create(s).ok());
  s.endpoint = Endpoint::kGrpcInfer;
  s.body = "{}";
  CHECK(!Workload::create(s).ok());
  s.tensors.clear();
  CHECK(!Workload::create(s).ok());
  s.body.clear();
  CHECK(Workload::create(s).ok());  // text
  s.model.clear();
  CHECK(!Workload::create(s).ok());
}

}  // namespace
