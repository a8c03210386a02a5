// A scale that is NaN or infinite inside a block is found and named; zero scales and healthy files pass.
#include "engine/loader/weight_scan.h"

#include <cmath>

#include "engine/loader/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;

namespace {

Tensor encoded(const char* format, int64_t rows, int64_t cols) {
  const Format f = *Format::find(format);
  Tensor t = Tensor::allocate({rows, cols}, f).value();
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c)
      row[static_cast<size_t>(c)] = std::sin(static_cast<float>(r * cols + c));
    f.encode_row(row.data(), cols, static_cast<std::byte*>(t.mutable_data()) + r * f.stride(cols));
  }
  return t;
}

// Puts an f16 or f32 into a tensor's bytes.
template <class T>
void put(Tensor& t, int64_t at, T value) {
  memcpy(static_cast<std::byte*>(t.mutable_data()) + at, &value, sizeof value);
}

std::string scan(const char* name, const Tensor& t) {
  ThreadPool pool({.threads = 2});
  const Status s = check_weights({{"good", encoded("q8_0", 3, 64)}, {name, t}}, pool);
  if (!s.ok()) CHECK(s.code() == StatusCode::kDataLoss);
  return std::string(s.message());
}

}  // namespace

TEST_CASE("a damaged scale inside a block is named with its tensor and place") {
  Tensor q = encoded("q4_0", 300, 96);  // blocks of 32: 18 bytes, the scale first
  CHECK(scan("w", q).empty());
  put(q, 7 * q.format().stride(96) + 2 * 18, to_f16(0.f));  // a block of zeros
  CHECK(scan("w", q).empty());
  put(q, 250 * q.format().stride(96), to_f16(NAN));  // not the first
  put(q, 41 * q.format().stride(96) + 18, to_f16(INFINITY));
  const std::string said = scan("model.layers.3.mlp.up_proj.weight", q);
  INFO(said);
  CHECK(said.find("model.layers.3.mlp.up_proj.weight (q4_0)") != std::string::npos);
  CHECK(said.find("row 41, block 1 (columns 32 to 63)") != std::string::npos);

  Tensor rows = encoded("i4_s8_g32", 5, 64);  // one f32 for each row
  CHECK(scan("w", rows).empty());
  put(rows, 4 * rows.format().stride(64), NAN);
  CHECK(scan("w", rows).find("row 4, block 0") != std::string::npos);

  Tensor plain = encoded("f32", 5, 64);
  put(plain, (2 * 64 + 9) * 4, -INFINITY);
  CHECK(scan("w", plain).find("row 2, column 9") != std::string::npos);
}

TEST_CASE("a healthy model passes, and reading it can be stopped") {
  const Checkpoint demo = load_checkpoint(oar_test::source_path("configs/demo")).value();
  ThreadPool pool({.threads = 2});
  uint64_t last = 0;
  CHECK(check_weights(demo.tensors, pool, [&](std::string_view, uint64_t done, uint64_t total) {
          CHECK(done > last);
          CHECK(done <= total);
          last = done;
          return true;
        }).ok());
  CHECK(last == demo.bytes);
  const Progress stop = [](std::string_view, uint64_t, uint64_t) { return false; };
  CHECK(check_weights(demo.tensors, pool, stop).code() == StatusCode::kCancelled);
}
