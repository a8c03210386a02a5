// Published PP-OCR models on published images: the text that their authors report.
#include "clients/cli/image_file.h"
#include "clients/cli/text_reader.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar::cli;

namespace {

struct Found {
  std::optional<std::string> image, recognizer, detector;
  bool all() const { return image && recognizer && detector; }
};
Found find(const char* image, const char* recognizer) {
  Found f{oar_test::data_path(std::string("vision/ocr/") + image),
          oar_test::data_path(std::string("paddle/") + recognizer), oar_test::data_path("paddle/v3_ch_det")};
  if (!f.all()) return {};
  return f;
}

std::vector<TextLine> lines_of(const TextReaderOptions& options, const vision::Image& image) {
  const auto reader = TextReader::open(options);
  REQUIRE_OK(reader);
  auto lines = (*reader)->read(image);
  REQUIRE_OK(lines);
  return *lines;
}

}  // namespace

TEST_CASE("a recognizer reads one line as published") {
  const Found f = find("en_rec.jpg", "v2_en_rec");
  if (!f.all()) OAR_SKIP("no real data");
  const auto image = read_image(*f.image);
  REQUIRE_OK(image);
  TextReaderOptions options;
  options.recognizer = *f.recognizer;
  const auto lines = lines_of(options, *image);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].read.text ==
        "To facilitate the shot type analysis in videos, we collect MovieShots, a large-scale");
  CHECK(lines[0].read.confidence > 0.95f);
}

TEST_CASE("the angle classifier turns a line that stands on its head") {
  const Found f = find("en_rec.jpg", "v2_en_rec");
  const auto classifier = oar_test::data_path("paddle/v2_cls");  // declares 32 x 100, is meant for 48 x 192
  if (!f.all() || !classifier) OAR_SKIP("no real data");
  const auto image = read_image(*f.image);
  REQUIRE_OK(image);
  TextReaderOptions options;
  options.recognizer = *f.recognizer;
  options.classifier = *classifier;
  const auto upright = lines_of(options, *image);
  const auto turned = lines_of(options, vision::rotate_180(*image));
  REQUIRE(upright.size() == 1);
  REQUIRE(turned.size() == 1);
  CHECK(upright[0].read.text.starts_with("To facilitate the shot type analysis"));
  CHECK(turned[0].read.text == upright[0].read.text);
}

TEST_CASE("a Korean line is found and read") {
  const Found f = find("korean.jpg", "v2_korean_rec");
  if (!f.all()) OAR_SKIP("no real data");
  const auto image = read_image(*f.image);
  REQUIRE_OK(image);
  TextReaderOptions options;
  options.recognizer = *f.recognizer;
  options.detector = *f.detector;
  const auto lines = lines_of(options, *image);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].box[1].x - lines[0].box[0].x > 1000);
  CHECK(lines[0].read.text.find("\xEB\x86\x8D\xEC\x97\x85") != std::string::npos);  // agriculture
}

TEST_CASE("detector and recognizer together find the line and where it lies; Paddle and ONNX agree") {
  const Found f = find("en_rec.jpg", "v2_en_rec");
  if (!f.all()) OAR_SKIP("no real data");
  const auto line = read_image(*f.image);
  REQUIRE_OK(line);
  // The line on a white page, 60 pixels down and 40 to the right.
  vision::Image page = std::move(vision::make_image(line->width + 80, 256)).value();
  std::fill(page.rgb.begin(), page.rgb.end(), uint8_t{255});
  for (int y = 0; y < line->height; ++y)
    std::copy_n(line->at(0, y), static_cast<size_t>(line->width) * 3, page.at(40, 60 + y));
  TextReaderOptions options;
  options.recognizer = *f.recognizer;
  options.detector = *f.detector;
  const auto lines = lines_of(options, page);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].read.text.find("facilitate") != std::string::npos);
  CHECK(lines[0].box[0].x == Approx(40).margin(15));
  CHECK(lines[0].box[0].y == Approx(60).margin(12));
  CHECK(lines[0].box[2].x == Approx(40 + line->width).margin(15));
  if (const auto onnx = oar_test::data_path("onnx/ppocr_v3_det/model.onnx")) {
    options.detector = *onnx;
    const auto same = lines_of(options, page);
    REQUIRE(same.size() == 1);
    CHECK(same[0].read.text == lines[0].read.text);
    for (size_t k = 0; k < 4; ++k) CHECK(same[0].box[k].x == Approx(lines[0].box[k].x).margin(2));
  }
}

TEST_CASE("images of one pixel and without text are read as nothing") {
  const Found f = find("en_rec.jpg", "v2_en_rec");
  if (!f.all()) OAR_SKIP("no real data");
  TextReaderOptions options;
  options.recognizer = *f.recognizer;
  options.detector = *f.detector;
  CHECK(lines_of(options, *vision::make_image(1, 1)).empty());
  CHECK(lines_of(options, *vision::make_image(320, 64)).empty());
}

TEST_CASE("a missing dictionary and a model that takes no image say so") {
  const Found f = find("en_rec.jpg", "v2_en_rec");
  if (!f.all()) OAR_SKIP("no real data");
  TextReaderOptions options;
  options.recognizer = *f.recognizer;
  options.dictionary = "/nonexistent/dict.txt";
  CHECK(TextReader::open(options).status().message().find("--dict") != std::string::npos);
}

TEST_CASE("a model of f16 sees the same pixels, rounded") {
  ImportedModel model;
  model.graph = std::make_shared<Graph>();
  IoSpec in;
  in.name = "x";
  in.dtype = DType::kF16;
  in.typed = in.ranked = true;
  in.dims = {{-1, "batch"}, {3, ""}, {-1, "height"}, {-1, "width"}};
  model.inputs.push_back(in);
  IoSpec out;
  out.name = "y";
  model.outputs.push_back(out);
  OpWriter w(*model.graph);
  model.graph->add_output("y", w.op("neg", {Val{add_graph_input(*model.graph, in)}}).id);
  PredictorOptions options;
  options.threads = 1;
  const auto p = Predictor::create(std::move(model), options);
  REQUIRE_OK(p);
  REQUIRE_OK(image_input(**p, "half.onnx"));
  vision::Image image = std::move(vision::make_image(2, 1)).value();
  image.rgb = {0, 51, 102, 153, 204, 255};
  const vision::Normalization plain{{0, 0, 0}, {1, 1, 1}, false};
  const auto y = run_on_image(**p, image, plain, 2);
  REQUIRE_OK(y);
  const std::vector<float> want{0, 0.6f, 0.2f, 0.8f, 0.4f, 1};  // channel by channel
  for (size_t k = 0; k < want.size(); ++k)
    CHECK(std::abs(y->values<float>()[k] + want[k]) <= want[k] / 2048);  // half a unit of f16's 11 bits
}
