// The maximum of bytes over windows of channels that lie together, as 8-bit networks ask for it.
#include "engine/graph/evaluate.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace {

using namespace oar;  // NOLINT

template <class T>
void check(DType dtype, int64_t channels, int64_t height, int64_t kernel, int64_t stride, int64_t pad) {
  const Shape shape{2, height, height + 1, channels};
  Tensor x = must(Tensor::allocate(shape, Format::of(dtype)));
  const std::vector<float> values = oar_test::random_floats(static_cast<size_t>(x.numel()), 5);
  for (int64_t k = 0; k < x.numel(); ++k)
    x.mutable_values<T>()[static_cast<size_t>(k)] =
        static_cast<T>(static_cast<int>(values[static_cast<size_t>(k)] * 1000));
  Node node;
  node.op = find_op("max_pool");
  node.attrs = {{"layout", std::string("nhwc")},
                {"kernel_shape", std::vector<int64_t>{kernel, kernel}},
                {"strides", std::vector<int64_t>{stride, stride}},
                {"pads", std::vector<int64_t>{pad, pad, pad, pad}}};
  node.outputs.resize(1);
  const Datum d(x);
  const Datum* in[] = {&d};
  const auto out = compute_op(node, in, EvalOptions()), plain = evaluate_op(node, in, EvalOptions());
  REQUIRE_OK(out);
  REQUIRE_OK(plain);
  const Tensor& y = (*out)[0].tensor;
  CHECK(memcmp(y.data(), (*plain)[0].tensor.data(), y.bytes()) == 0);
  const Shape& s = y.shape();
  REQUIRE(s[1] == (height + 2 * pad - kernel) / stride + 1);
  REQUIRE(s[3] == channels);
  for (int64_t k = 0; k < y.numel(); ++k) {
    const int64_t c = k % channels, ow = k / channels % s[2], oh = k / channels / s[2] % s[1];
    const int64_t n = k / channels / s[2] / s[1];
    T most = std::numeric_limits<T>::lowest();
    for (int64_t i = oh * stride - pad; i < oh * stride - pad + kernel; ++i) {
      for (int64_t j = ow * stride - pad; j < ow * stride - pad + kernel; ++j) {
        if (i < 0 || i >= shape[1] || j < 0 || j >= shape[2]) continue;
        most = std::max(
            most, x.values<T>()[static_cast<size_t>(((n * shape[1] + i) * shape[2] + j) * channels + c)]);
      }
    }
    if (y.values<T>()[static_cast<size_t>(k)] != most) FAIL("element " << k << " of " << s.to_string());
  }
}

}  // namespace

TEST_CASE("max pooling of bytes: channels in whole vectors and left over, windows over borders") {
  for (const int64_t channels : {1, 7, 63, 64, 65, 130, 256}) {
    for (const int64_t height : {1, 3, 8}) {
      check<uint8_t>(DType::kU8, channels, height, 3, 2, 1);
      check<int8_t>(DType::kI8, channels, height, 3, 2, 1);
      check<int8_t>(DType::kI8, channels, height + 1, 2, 1, 0);
      check<uint8_t>(DType::kU8, channels, height, 9, 1, 4);  // larger than the image
    }
  }
}
