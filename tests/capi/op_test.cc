// Ops of the embedding program, from C.
#include <atomic>
#include <fstream>

#include "tests/capi/fixture.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar_test;

namespace {

std::atomic<int> g_calls{0};

// y = scale * x + bias of each row's sum, and the number of rows as i64: two results, one operand optional.
oar_status row_shape(oar_op_call* call, const oar_tensor* in, size_t num_in, oar_tensor* out, size_t num_out,
                     void* user) {
  if (num_in != 2 || num_out != 2 || user != &g_calls) return OAR_INTERNAL;
  if (in[0].dtype != OAR_F32 || in[0].rank != 2) return oar_op_fail(call, "x must be a matrix of f32");
  if (in[0].data != nullptr || out[0].data != nullptr) return OAR_INTERNAL;
  out[0].dtype = OAR_F32, out[0].rank = 1, out[0].shape[0] = in[0].shape[0];
  out[1].dtype = OAR_I64, out[1].rank = 0;
  return OAR_OK;
}

oar_status row_compute(oar_op_call* call, const oar_tensor* in, size_t, oar_tensor* out, size_t, void*) {
  ++g_calls;
  double scale = 0;
  if (const oar_status s = oar_op_float(call, "scale", &scale); s != OAR_OK) return s;
  const int64_t* shift = nullptr;
  size_t count = 0;
  if (oar_op_ints(call, "shift", &shift, &count) != OAR_OK || count != 2)
    return oar_op_fail(call, "shift: two integers");
  int64_t absent = 0;
  if (oar_op_int(call, "absent", &absent) != OAR_NOT_FOUND) return OAR_INTERNAL;
  if (oar_op_int(call, "scale", &absent) != OAR_INVALID_ARGUMENT) return OAR_INTERNAL;
  const char* mode = nullptr;
  if (oar_op_string(call, "mode", &mode) != OAR_OK) return OAR_INTERNAL;
  if (std::string(mode) == "fail") return oar_op_fail(call, "the mode is to fail");
  const auto* x = static_cast<const float*>(in[0].data);
  const auto* bias = static_cast<const float*>(in[1].data);
  if ((bias == nullptr) != (in[1].dtype == OAR_DTYPE_NONE)) return OAR_INTERNAL;
  auto* y = static_cast<float*>(const_cast<void*>(out[0].data));
  for (int64_t r = 0; r < in[0].shape[0]; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < in[0].shape[1]; ++c) sum += double(x[r * in[0].shape[1] + c]);
    y[r] = static_cast<float>(scale * sum + double(shift[0] + shift[1]) +
                              (bias != nullptr ? double(bias[0]) : 0));
  }
  *static_cast<int64_t*>(const_cast<void*>(out[1].data)) = in[0].shape[0];
  return OAR_OK;
}

oar_op row_op(const char* name) {
  oar_op op;
  REQUIRE(oar_op_init(&op, sizeof op) == OAR_OK);
  op.name = name, op.domain = "mine";
  op.shape = row_shape, op.compute = row_compute, op.user = &g_calls;
  return op;
}

// The op between two of ours, so that the memory of both sides is planned.
std::string model_file(const std::string& name, const std::string& op, const std::string& mode, bool bias) {
  const Proto scale = Proto().text(1, "scale").number(20, 1).varint(2 << 3 | 5);
  Proto with_value = scale;
  const float value = 0.5f;
  with_value.bytes.append(reinterpret_cast<const char*>(&value), 4);
  const Proto node = node_proto(op, {"a", bias ? "b" : ""}, {"rows", "count"},
                                {with_value, ints_attr("shift", {1, 2}), text_attr("mode", mode)}, "mine");
  const std::string path = temp_dir() + "/" + name + ".onnx";
  std::ofstream(path, std::ios::binary) << model_bytes(
      graph_proto({node_proto("Add", {"x", "x"}, {"a"}), node, node_proto("Neg", {"rows"}, {"y"})},
                  {tensor_proto("b", {1}, {10})}, {value_proto("x", {-1, 3})},
                  {value_proto("y", {-1}), value_proto("count", {}, 7)}),
      17, {}, {"mine"});
  return path;
}

}  // namespace

TEST_CASE("custom op: registered, imported and run") {
  const std::string path = model_file("custom", "Rows", "sum", true);
  oar_predictor p = 0;
  // Not known yet: the error names it.
  CHECK(oar_predictor_load(path.c_str(), 1, &p) == OAR_UNIMPLEMENTED);
  CHECK(std::string(oar_last_error()).find("Rows") != std::string::npos);
  const oar_op op = row_op("Rows");
  REQUIRE(oar_register_op(&op) == OAR_OK);
  CHECK(oar_register_op(&op) == OAR_ALREADY_EXISTS);
  for (const bool bias : {true, false}) {
    REQUIRE(oar_predictor_load(model_file("custom", "Rows", "sum", bias).c_str(), 2, &p) == OAR_OK);
    for (const int64_t rows : {2, 4}) {
      std::vector<float> x(static_cast<size_t>(rows * 3));
      for (size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(k);
      oar_tensor t = {};
      t.dtype = OAR_F32, t.rank = 2, t.shape[0] = rows, t.shape[1] = 3;
      t.data = x.data(), t.bytes = x.size() * sizeof(float);
      const int before = g_calls;
      oar_outputs out = 0;
      REQUIRE(oar_predictor_run(p, &t, 1, &out) == OAR_OK);
      CHECK(g_calls == before + 1);  // sizes are asked for without computing
      oar_tensor y, count;
      REQUIRE(oar_outputs_get(out, 0, &y) == OAR_OK);
      REQUIRE(oar_outputs_get(out, 1, &count) == OAR_OK);
      CHECK(*static_cast<const int64_t*>(count.data) == rows);
      for (int64_t r = 0; r < rows; ++r) {
        const double sum = 2 * double(9 * r + 3);
        CHECK(static_cast<const float*>(y.data)[r] == Approx(-(0.5 * sum + 3 + (bias ? 10 : 0))));
      }
      CHECK(oar_outputs_close(out) == OAR_OK);
    }
    CHECK(oar_predictor_close(p) == OAR_OK);
  }
}

TEST_CASE("custom op: what it says went wrong reaches the caller") {
  const oar_op op = row_op("Failing");
  REQUIRE(oar_register_op(&op) == OAR_OK);
  oar_predictor p = 0;
  REQUIRE(oar_predictor_load(model_file("failing", "Failing", "fail", true).c_str(), 1, &p) == OAR_OK);
  const std::vector<float> x(6, 1);
  oar_tensor t = {};
  t.dtype = OAR_F32, t.rank = 2, t.shape[0] = 2, t.shape[1] = 3;
  t.data = x.data(), t.bytes = x.size() * sizeof(float);
  oar_outputs out = 0;
  CHECK(oar_predictor_run(p, &t, 1, &out) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("the mode is to fail") != std::string::npos);
  CHECK(oar_predictor_close(p) == OAR_OK);
}

TEST_CASE("custom op: what is missing is named") {
  oar_op op = row_op("Incomplete");
  op.shape = nullptr;
  CHECK(oar_register_op(&op) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error_param()) == "shape");
  op = row_op("Incomplete");
  op.compute = nullptr;
  CHECK(oar_register_op(&op) == OAR_INVALID_ARGUMENT);
  op = row_op("");
  CHECK(oar_register_op(&op) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error_param()) == "name");
  op = row_op("Incomplete");
  op.reserved = 1;
  CHECK(oar_register_op(&op) == OAR_INVALID_ARGUMENT);
  CHECK(oar_register_op(nullptr) == OAR_INVALID_ARGUMENT);
}
