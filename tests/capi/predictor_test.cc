// Predictors through the C interface, on models written here byte by byte (ONNX is protobuf).
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/capi/fixture.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

std::string field(int number, const std::string& bytes) {  // length-delimited, shorter than 128
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string varint(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
// A ValueInfoProto of f32[n, 2] with a free first extent.
std::string value(const std::string& name) {
  const std::string shape = field(1, field(2, "n")) + field(1, varint(1, 2));
  return field(1, name) + field(2, field(1, varint(1, 1) + field(2, shape)));
}
// z = op(x, y); w = Identity(x).
std::string write_model(const std::string& op) {
  const std::string node = field(1, "x") + field(1, "y") + field(2, "z") + field(4, op);
  const std::string same = field(1, "x") + field(2, "w") + field(4, "Identity");
  const std::string graph = field(1, node) + field(1, same) + field(2, "g") + field(11, value("x")) +
                            field(11, value("y")) + field(12, value("z")) + field(12, value("w"));
  std::string size{static_cast<char>((graph.size() & 127) | 128), static_cast<char>(graph.size() >> 7)};
  const std::string model =
      varint(1, 8) + std::string(1, static_cast<char>((7 << 3) | 2)) + size + graph + field(8, varint(2, 17));
  const std::string path = oar_test::temp_dir() + "/capi_" + op + ".onnx";
  std::ofstream(path, std::ios::binary) << model;
  return path;
}

oar_tensor tensor(const std::vector<float>& data) {
  oar_tensor t = {};
  t.dtype = OAR_F32;
  t.rank = 2;
  t.shape[0] = static_cast<int64_t>(data.size() / 2);
  t.shape[1] = 2;
  t.data = data.data();
  t.bytes = data.size() * sizeof(float);
  return t;
}

std::vector<float> values(oar_outputs outputs, size_t index) {
  oar_tensor t;
  REQUIRE(oar_outputs_get(outputs, index, &t) == OAR_OK);
  REQUIRE(t.dtype == OAR_F32);
  std::vector<float> v(t.bytes / sizeof(float));
  std::memcpy(v.data(), t.data, t.bytes);
  return v;
}

TEST_CASE("predictor: load, describe, run, clone, close") {
  oar_predictor p = 0, clone = 0;
  INFO(oar_last_error());
  REQUIRE(oar_predictor_load(write_model("Add").c_str(), 1, &p) == OAR_OK);
  size_t inputs = 0, outputs = 0;
  REQUIRE(oar_predictor_counts(p, &inputs, &outputs) == OAR_OK);
  CHECK(inputs == 2);
  CHECK(outputs == 2);
  oar_tensor_info info;
  REQUIRE(oar_predictor_input(p, 1, &info, sizeof info) == OAR_OK);
  CHECK(std::string(info.name) == "y");
  CHECK(info.dtype == OAR_F32);
  CHECK(info.rank == 2);
  CHECK(info.shape[0] == -1);
  CHECK(info.shape[1] == 2);
  CHECK(oar_predictor_output(p, 2, &info, sizeof info) == OAR_OUT_OF_RANGE);
  REQUIRE(oar_predictor_clone(p, &clone) == OAR_OK);
  REQUIRE(oar_predictor_close(p) == OAR_OK);
  CHECK(oar_predictor_close(p) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_shrink(p, nullptr) == OAR_INVALID_ARGUMENT);

  std::vector<float> x = {1, 2, 3, 4}, y = {10, 20, 30, 40};
  const oar_tensor in[] = {tensor(x), tensor(y)};
  oar_outputs out = 0;
  uint64_t bytes = 0, freed = 1;
  REQUIRE(oar_predictor_memory(clone, in, 2, &bytes) == OAR_OK);
  CHECK(bytes >= 16);  // the sum, at least
  CHECK(oar_predictor_memory(clone, in, 1, &bytes) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_memory(clone, in, 2, nullptr) == OAR_INVALID_ARGUMENT);
  REQUIRE(oar_predictor_run(clone, in, 2, &out) == OAR_OK);
  CHECK(oar_predictor_shrink(clone, &freed) == OAR_OK);
  CHECK(oar_predictor_shrink(clone, nullptr) == OAR_OK);
  x.assign(4, -1);  // what was handed through is not the caller's memory any more
  CHECK(values(out, 0) == std::vector<float>{11, 22, 33, 44});
  CHECK(values(out, 1) == std::vector<float>{1, 2, 3, 4});
  CHECK(oar_predictor_close(clone) == OAR_OK);
  CHECK(values(out, 0)[3] == 44);  // results outlive the predictor
  oar_tensor t;
  CHECK(oar_outputs_get(out, 2, &t) == OAR_OUT_OF_RANGE);
  CHECK(oar_outputs_close(out) == OAR_OK);
  CHECK(oar_outputs_get(out, 0, &t) == OAR_INVALID_ARGUMENT);
}

TEST_CASE("predictor: options") {
  oar_predictor_options o;
  REQUIRE(oar_predictor_options_init(&o, sizeof o) == OAR_OK);
  CHECK(o.struct_size == sizeof o);
  oar_predictor p = 0;
  const std::string path = write_model("Add");
  for (const char* precision : {static_cast<const char*>(nullptr), "f32", "bf16", "int8"}) {
    o.threads = 1, o.precision = precision;
    REQUIRE(oar_predictor_open(path.c_str(), &o, &p) == OAR_OK);
    CHECK(oar_predictor_close(p) == OAR_OK);
  }
  REQUIRE(oar_predictor_open(path.c_str(), nullptr, &p) == OAR_OK);
  CHECK(oar_predictor_close(p) == OAR_OK);
  o.device = "cpu";
  REQUIRE(oar_predictor_open(path.c_str(), &o, &p) == OAR_OK);
  CHECK(oar_predictor_close(p) == OAR_OK);
  o.device = "nowhere";
  CHECK(oar_predictor_open(path.c_str(), &o, &p) == OAR_NOT_FOUND);
  CHECK(std::string(oar_last_error_param()) == "device");
  o.device = nullptr;
  o.precision = "int7";
  CHECK(oar_predictor_open(path.c_str(), &o, &p) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("f32, bf16, f16, tf32 or int8") != std::string::npos);
  o.precision = nullptr, o.struct_size = 0;
  CHECK(oar_predictor_open(path.c_str(), &o, &p) == OAR_INVALID_ARGUMENT);
  CHECK(p == 0);
}

TEST_CASE("predictor: inputs by name, results in the caller's memory, a model from memory") {
  const std::string bytes = oar_test::read_file(write_model("Sub"));
  oar_predictor_options o;
  REQUIRE(oar_predictor_options_init(&o, sizeof o) == OAR_OK);
  o.threads = 1;
  o.disabled_passes = "all";
  oar_predictor p = 0;
  INFO(oar_last_error());
  REQUIRE(oar_predictor_open_memory(bytes.data(), bytes.size(), nullptr, 0, &o, &p) == OAR_OK);

  const std::vector<float> x = {10, 20, 30, 40}, y = {1, 2, 3, 4};
  const oar_tensor swapped[] = {tensor(y), tensor(x)}, in[] = {tensor(x), tensor(y)};
  const char* names[] = {"y", "x"};
  oar_outputs out = 0;
  REQUIRE(oar_predictor_run_named(p, names, swapped, 2, &out) == OAR_OK);
  CHECK(values(out, 0) == std::vector<float>{9, 18, 27, 36});
  CHECK(oar_outputs_close(out) == OAR_OK);
  const char* twice[] = {"x", "x"};
  CHECK(oar_predictor_run_named(p, twice, in, 2, &out) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()) == "names: 'x' is given twice; its inputs are x, y");
  const char* wrong[] = {"x", "q"};
  CHECK(oar_predictor_run_named(p, wrong, in, 2, &out) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()) == "names: 'q' is no input of the model; its inputs are x, y");
  CHECK(std::string(oar_last_error_param()) == "names");
  CHECK(oar_predictor_run_named(p, nullptr, in, 2, &out) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_run_named(p, names, in, 1, &out) == OAR_INVALID_ARGUMENT);

  std::vector<float> z(6, -1), w(4, -1);
  oar_tensor results[2] = {};
  results[0].data = z.data(), results[0].bytes = z.size() * sizeof(float);
  results[1].data = w.data(), results[1].bytes = 8;
  CHECK(oar_predictor_run_into(p, in, 2, results, 2) == OAR_OUT_OF_RANGE);
  CHECK(results[1].bytes == 16);
  CHECK(z[0] == -1);  // nothing has been written
  results[0].bytes = z.size() * sizeof(float);
  REQUIRE(oar_predictor_run_into(p, in, 2, results, 2) == OAR_OK);
  CHECK(z == std::vector<float>{9, 18, 27, 36, -1, -1});
  CHECK(w == x);
  CHECK(results[0].bytes == 16);
  CHECK(results[0].rank == 2);
  CHECK(results[0].shape[0] == 2);
  CHECK(results[0].dtype == OAR_F32);
  CHECK(oar_predictor_run_into(p, in, 2, results, 1) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_run_into(p, in, 2, nullptr, 2) == OAR_INVALID_ARGUMENT);
  results[1].data = nullptr;
  CHECK(oar_predictor_run_into(p, in, 2, results, 2) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_close(p) == OAR_OK);

  CHECK(oar_predictor_open_memory(nullptr, 0, nullptr, 0, nullptr, &p) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_open_memory(bytes.data(), 9, nullptr, 0, nullptr, &p) != OAR_OK);
  CHECK(oar_predictor_open_memory(bytes.data(), bytes.size(), nullptr, 3, nullptr, &p) ==
        OAR_INVALID_ARGUMENT);
  o.params = "beside.pdiparams";
  CHECK(oar_predictor_open_memory(bytes.data(), bytes.size(), nullptr, 0, &o, &p) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error_param()) == "params");
  CHECK(oar_predictor_open(write_model("Sub").c_str(), &o, &p) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("is an ONNX model") != std::string::npos);
  o.params = nullptr;
  o.disabled_passes = "cse,frobnicate";
  CHECK(oar_predictor_open(write_model("Sub").c_str(), &o, &p) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("'frobnicate'") != std::string::npos);
  CHECK(p == 0);
}

TEST_CASE("predictor: every wrong argument has its message") {
  oar_predictor p = 0;
  CHECK(oar_predictor_load(nullptr, 1, &p) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_load("/nonexistent.onnx", 1, &p) == OAR_NOT_FOUND);
  CHECK(oar_predictor_load("x", -1, &p) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_load("x", 1, nullptr) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_load(write_model("NoSuchOp").c_str(), 1, &p) != OAR_OK);
  CHECK(p == 0);
  REQUIRE(oar_predictor_load(write_model("Mul").c_str(), 1, &p) == OAR_OK);
  const std::vector<float> x = {1, 2, 3, 4};
  const auto run_with = [&](auto&& spoil) {
    oar_tensor in[] = {tensor(x), tensor(x)};
    spoil(in[1]);
    oar_outputs out = 1;
    const oar_status status = oar_predictor_run(p, in, 2, &out);
    CHECK(out == 0);
    CHECK(oar_last_error()[0] != '\0');
    return status;
  };
  CHECK(run_with([](oar_tensor& t) { t.data = nullptr; }) == OAR_INVALID_ARGUMENT);
  CHECK(run_with([](oar_tensor& t) { t.bytes -= 1; }) == OAR_INVALID_ARGUMENT);
  CHECK(run_with([](oar_tensor& t) { t.rank = 9; }) == OAR_INVALID_ARGUMENT);
  CHECK(run_with([](oar_tensor& t) { t.rank = -1; }) == OAR_INVALID_ARGUMENT);
  CHECK(run_with([](oar_tensor& t) { t.shape[0] = -2; }) == OAR_INVALID_ARGUMENT);
  CHECK(run_with([](oar_tensor& t) { t.shape[0] = INT64_MAX; }) == OAR_INVALID_ARGUMENT);
  CHECK(run_with([](oar_tensor& t) { t.dtype = static_cast<oar_dtype>(77); }) == OAR_INVALID_ARGUMENT);
  CHECK(run_with([](oar_tensor& t) { t.dtype = OAR_I32; }) == OAR_INVALID_ARGUMENT);
  CHECK(run_with([](oar_tensor& t) { t.shape[0] = 4, t.shape[1] = 1; }) == OAR_INVALID_ARGUMENT);
  oar_outputs out = 0;
  CHECK(oar_predictor_run(p, nullptr, 2, &out) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_run(p, nullptr, 0, &out) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_run(p, nullptr, SIZE_MAX, &out) == OAR_INVALID_ARGUMENT);
  CHECK(oar_generation_close(p) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_run(oar_test::demo_model(), nullptr, 0, &out) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_close(p) == OAR_OK);
}

TEST_CASE("predictor: many threads on one handle") {
  oar_predictor p = 0;
  REQUIRE(oar_predictor_load(write_model("Sub").c_str(), 2, &p) == OAR_OK);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<float> x(64, static_cast<float>(t) + 5), y(64, 5);
      for (int i = 0; i < 50; ++i) {
        const oar_tensor in[] = {tensor(x), tensor(y)};
        oar_outputs out = 0;
        oar_tensor z;
        if (oar_predictor_run(p, in, 2, &out) != OAR_OK || oar_outputs_get(out, 0, &z) != OAR_OK) continue;
        right += static_cast<const float*>(z.data)[63] == static_cast<float>(t);
        oar_outputs_close(out);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(right == 200);
  CHECK(oar_predictor_close(p) == OAR_OK);
}

}  // namespace

namespace {

// An op of a test's own: says that it runs, and lasts until it is told to end.
struct Lasting {
  std::atomic<int> running{0};
  std::atomic<bool> end{false};
};
oar_status lasting_shape(oar_op_call*, const oar_tensor* in, size_t, oar_tensor* out, size_t, void*) {
  out[0] = in[0];
  return OAR_OK;
}
oar_status lasting_compute(oar_op_call*, const oar_tensor* in, size_t, oar_tensor* out, size_t, void* user) {
  auto& own = *static_cast<Lasting*>(user);
  ++own.running;
  while (!own.end) std::this_thread::yield();
  std::memcpy(const_cast<void*>(out[0].data), in[0].data, in[0].bytes);
  return OAR_OK;
}

}  // namespace

TEST_CASE("predictor: runs are cancelled, and end at their deadline") {
  static Lasting own;  // for as long as the process, as the op
  oar_op op;
  REQUIRE(oar_op_init(&op, sizeof op) == OAR_OK);
  op.name = "Lasting", op.shape = lasting_shape, op.compute = lasting_compute, op.user = &own;
  REQUIRE(oar_register_op(&op) == OAR_OK);
  oar_predictor p = 0, clone = 0;
  REQUIRE(oar_predictor_load(write_model("Lasting").c_str(), 1, &p) == OAR_OK);
  REQUIRE(oar_predictor_clone(p, &clone) == OAR_OK);
  const std::vector<float> x = {1, 2}, y = {3, 4};
  const oar_tensor in[] = {tensor(x), tensor(y)};
  const auto run = [&](oar_predictor of) {
    oar_outputs out = 0;
    const oar_status status = oar_predictor_run(of, in, 2, &out);
    if (status == OAR_OK) {
      CHECK(values(out, 0) == x);
      CHECK(oar_outputs_close(out) == OAR_OK);
    }
    return status;
  };

  // Both runs of the handle end; the clone's goes on, and so does the next.
  std::atomic<int> cancelled{0}, ok{0};
  std::vector<std::thread> threads;
  for (const oar_predictor of : {p, p, clone})
    threads.emplace_back([&, of] {
      const oar_status status = run(of);
      if (status == OAR_CANCELLED) ++cancelled;
      if (status == OAR_OK) ++ok;
    });
  while (own.running < 3) std::this_thread::yield();
  CHECK(oar_predictor_cancel(p) == OAR_OK);
  own.end = true;
  for (std::thread& t : threads) t.join();
  CHECK(cancelled == 2);
  CHECK(ok == 1);
  CHECK(run(p) == OAR_OK);

  // A limit that has passed when the step ends.
  CHECK(oar_predictor_set_timeout(p, 1) == OAR_OK);
  own.end = false, own.running = 0;
  std::thread late([&] {
    CHECK(run(p) == OAR_DEADLINE_EXCEEDED);
    CHECK(std::string(oar_last_error()).find("timeout of 1 ms") != std::string::npos);
  });
  while (own.running < 1) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  own.end = true;
  late.join();
  CHECK(run(clone) == OAR_OK);
  for (const int64_t none : {int64_t{60'000}, int64_t{0}}) {
    CHECK(oar_predictor_set_timeout(p, none) == OAR_OK);
    CHECK(run(p) == OAR_OK);
  }
  for (const int64_t bad : {int64_t{-1}, INT64_MAX})
    CHECK(oar_predictor_set_timeout(p, bad) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_close(clone) == OAR_OK);
  CHECK(oar_predictor_close(p) == OAR_OK);
  CHECK(oar_predictor_cancel(p) == OAR_INVALID_ARGUMENT);
  CHECK(oar_predictor_set_timeout(p, 0) == OAR_INVALID_ARGUMENT);
}
