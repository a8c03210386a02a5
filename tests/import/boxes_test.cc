// Ops on boxes: non_max_suppression against its definition, pair by pair; roi_align where there is nothing to
// sample; grid_sample by hand.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/import/onnx_predictor.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/random.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT

double overlap(const float* p, const float* q) {  // y1 x1 y2 x2 in any order
  const auto sides = [](const float* b, int k) {
    return std::minmax({static_cast<double>(b[k]), static_cast<double>(b[k + 2])});
  };
  const auto [py1, py2] = sides(p, 0);
  const auto [px1, px2] = sides(p, 1);
  const auto [qy1, qy2] = sides(q, 0);
  const auto [qx1, qx2] = sides(q, 1);
  const double both = std::max(std::min(py2, qy2) - std::max(py1, qy1), 0.0) *
                      std::max(std::min(px2, qx2) - std::max(px1, qx1), 0.0);
  return both / ((py2 - py1) * (px2 - px1) + (qy2 - qy1) * (qx2 - qx1) - both);
}

}  // namespace

TEST_CASE("non_max_suppression: images and classes apart, the same on any number of threads") {
  constexpr int64_t N = 2, C = 5, B = 170;
  constexpr float kIou = 0.2f, kScore = 0.15f;
  const auto boxes = random_floats(static_cast<size_t>(N * B * 4), 5);  // corners in any order
  const auto scores = random_floats(static_cast<size_t>(N * C * B), 6);
  for (const int64_t most : {int64_t{0}, int64_t{9}, B}) {
    std::vector<int64_t> expected;
    for (int64_t k = 0; k < N * C; ++k) {
      const float* s = scores.data() + k * B;
      std::vector<int64_t> order(B), kept;
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return s[a] > s[b]; });
      for (const int64_t b : order) {
        const auto box = [&](int64_t i) { return boxes.data() + (k / C * B + i) * 4; };
        if (!(s[b] > kScore) || static_cast<int64_t>(kept.size()) == most) break;
        if (std::any_of(kept.begin(), kept.end(),
                        [&](int64_t i) { return overlap(box(b), box(i)) > static_cast<double>(kIou); }))
          continue;
        kept.push_back(b);
        expected.insert(expected.end(), {k / C, k % C, b});
      }
    }
    const std::string model = model_bytes(
        graph_proto({node_proto("NonMaxSuppression", {"boxes", "scores", "most", "iou", "least"}, {"y"})},
                    {tensor_proto("scores", {N, C, B}, scores), ints_proto("most", {most}),
                     tensor_proto("iou", {1}, {kIou}), tensor_proto("least", {1}, {kScore})},
                    {value_proto("boxes", {N, B, 4})}, {name_proto("y")}));
    for (const int threads : {1, 3}) {
      INFO("at most " << most << ", " << threads << " threads");
      PredictorOptions o;
      o.threads = threads;
      const auto out = open_test_model(model, o)->run(std::vector<Datum>{input({N, B, 4}, boxes)});
      REQUIRE_OK(out);
      const Tensor& y = (*out)[0].tensor;
      REQUIRE(y.shape() == Shape{static_cast<int64_t>(expected.size() / 3), 3});
      CHECK(std::equal(expected.begin(), expected.end(), elements<int64_t>(y)));
      CHECK((most == 0) == expected.empty());
    }
  }
}

TEST_CASE("roi_align: an image without pixels gives zeros, and a batch index that is not there an error") {
  const auto model = [](int64_t which) {
    return model_bytes(
        graph_proto({node_proto("RoiAlign", {"x", "rois", "which"}, {"y"},
                                {int_attr("output_height", 2), int_attr("output_width", 2)})},
                    {tensor_proto("rois", {1, 4}, {0.f, 0.f, 1.f, 1.f}), ints_proto("which", {which})},
                    {value_proto("x", {1, 3, 0, 5})}, {name_proto("y")}));
  };
  CHECK(values(*open_test_model(model(0)), input({1, 3, 0, 5}, {})) == std::vector<float>(12, 0.f));
  CHECK_THAT(
      std::string(
          open_test_model(model(1))->run(std::vector<Datum>{input({1, 3, 0, 5}, {})}).status().message()),
      Contains("batch index 1"));
}

TEST_CASE("grid_sample: the same on any number of threads; bilinear by hand; an unknown padding is refused") {
  constexpr int64_t N = 2, C = 3, H = 7, W = 5, G = 11;
  const auto image = random_floats(static_cast<size_t>(N * C * H * W), 7);
  auto grid = random_floats(static_cast<size_t>(N * G * G * 2), 8);  // beyond the borders, too
  for (float& v : grid) v *= 1.3f;
  const auto model = [&](const char* mode, const char* padding) {
    return model_bytes(graph_proto(
        {node_proto(
            "GridSample", {"x", "grid"}, {"y"},
            {text_attr("mode", mode), text_attr("padding_mode", padding), int_attr("align_corners", 1)})},
        {tensor_proto("grid", {N, G, G, 2}, grid)}, {value_proto("x", {N, C, H, W})}, {name_proto("y")}));
  };
  for (const char* mode : {"nearest", "bilinear", "bicubic"}) {
    std::vector<std::vector<float>> seen;
    for (const int threads : {1, 3}) {
      PredictorOptions o;
      o.threads = threads;
      seen.push_back(values(*open_test_model(model(mode, "zeros"), o), input({N, C, H, W}, image)));
    }
    CHECK(seen[0] == seen[1]);
  }
  const auto got = values(*open_test_model(model("bilinear", "zeros")), input({N, C, H, W}, image));
  for (int64_t k = 0; k < N * C * G * G; ++k) {
    const int64_t n = k / (C * G * G), o = n * G * G + k % (G * G);
    const auto at = [&](int64_t axis, int64_t size) {
      return (static_cast<double>(grid[static_cast<size_t>(2 * o + axis)]) + 1) / 2 *
             static_cast<double>(size - 1);
    };
    double want = 0;
    for (int64_t y = 0; y < H; ++y)
      for (int64_t x = 0; x < W; ++x)
        want += std::max(0.0, 1 - std::fabs(at(1, H) - static_cast<double>(y))) *
                std::max(0.0, 1 - std::fabs(at(0, W) - static_cast<double>(x))) *
                static_cast<double>(image[static_cast<size_t>((k / (G * G) * H + y) * W + x)]);
    CHECK(std::fabs(want - static_cast<double>(got[static_cast<size_t>(k)])) < 1e-5);
  }
  CHECK_THAT(std::string(open_test_model(model("bilinear", "wrap"))
                             ->run(std::vector<Datum>{input({N, C, H, W}, image)})
                             .status()
                             .message()),
             Contains("padding_mode 'wrap'"));
}
