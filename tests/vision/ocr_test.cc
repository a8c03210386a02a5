// Text out of images: our own small models of PP-OCR's shape on a line that was drawn for them
// (tests/data/ocr, tests/golden/generate_ocr.py), and, where the data collection is there, published ones on
// published images.
#include <filesystem>
#include <fstream>

#include "clients/cli/image_file.h"
#include "clients/cli/text_reader.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar::cli;

namespace {

struct Ocr {
  std::string image, text;  // of one line
  std::string recognizer, detector, detector_onnx, classifier;
  float confidence = 0.95f;  // of the recognizer, at least
};
std::vector<Ocr> all_models() {
  const std::string own = oar_test::source_path("tests/data/ocr/");
  std::vector<Ocr> all = {{own + "line.png", "OAR READS THIS LINE", own + "rec", own + "det",
                           own + "det.onnx", own + "cls", 0.9f}};
  const auto image = oar_test::data_path("vision/ocr/en_rec.jpg");
  const auto recognizer = oar_test::data_path("paddle/v2_en_rec");
  const auto detector = oar_test::data_path("paddle/v3_ch_det");
  const auto onnx = oar_test::data_path("onnx/ppocr_v3_det/model.onnx");
  const auto classifier = oar_test::data_path("paddle/v2_cls");  // declares 32 x 100, is meant for 48 x 192
  if (image && recognizer && detector && onnx && classifier) {
    all.push_back({*image,
                   "To facilitate the shot type analysis in videos, we collect MovieShots, a large-scale",
                   *recognizer, *detector, *onnx, *classifier});
  }
  return all;
}

vision::Image picture(const std::string& path) {
  auto image = read_image(path);
  REQUIRE_OK(image);
  return std::move(*image);
}

std::vector<TextLine> lines_of(const TextReaderOptions& options, const vision::Image& image) {
  const auto reader = TextReader::open(options);
  REQUIRE_OK(reader);
  auto lines = (*reader)->read(image);
  REQUIRE_OK(lines);
  return *lines;
}

// A published recognizer of another script, where the data collection is there.
void check_korean() {
  const auto image = oar_test::data_path("vision/ocr/korean.jpg");
  const auto recognizer = oar_test::data_path("paddle/v2_korean_rec");
  const auto detector = oar_test::data_path("paddle/v3_ch_det");
  if (!image || !recognizer || !detector) return;
  TextReaderOptions options;
  options.recognizer = *recognizer;
  options.detector = *detector;
  const auto lines = lines_of(options, picture(*image));
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].box[1].x - lines[0].box[0].x > 1000);
  CHECK(lines[0].read.text.find("\xEB\x86\x8D\xEC\x97\x85") != std::string::npos);  // agriculture
}

}  // namespace

TEST_CASE("ocr: the characters that Paddle's inference.yml lists") {
  const char* const yaml =
      "Global:\n  model_name: x\nPostProcess:\n  name: CTCLabelDecode\n  character_dict:\n"
      "  - '!'\n  - \"\\u3042\"\n  - ''''\n  - ' '\n  - \"\n  - a\r\n  - '-'\n  - \\\nOther: 1\n";
  CHECK(dictionary_in_config(yaml) == "!\n\u3042\n'\n \n\"\na\n-\n\\\n");
  CHECK(dictionary_in_config("character_dict:\n- 0\n-   1") == "0\n1\n");
  CHECK(dictionary_in_config("PostProcess:\n  name: DBPostProcess\n").empty());
  // Beside a recognizer without dict.txt.
  const std::string folder = oar_test::temp_dir() + "/characters";
  std::filesystem::create_directories(folder);
  const std::string own = oar_test::source_path("tests/data/ocr/rec");
  for (const char* file : {"inference.pdmodel", "inference.pdiparams"})
    std::filesystem::copy_file(own + "/" + file, folder + "/" + file);
  TextReaderOptions options;
  options.recognizer = folder;
  const auto none = read_dictionary_of(options);
  REQUIRE(!none.ok());
  CHECK(std::string(none.status().message()).find("--dict") != std::string::npos);
  std::ofstream(folder + "/inference.yml") << "PostProcess:\n  character_dict:\n  - A\n  - B\n";
  const auto found = read_dictionary_of(options);
  REQUIRE_OK(found);
  CHECK(*found == "A\nB\n");
}

TEST_CASE("a recognizer reads one line") {
  for (const Ocr& m : all_models()) {
    INFO(m.recognizer);
    TextReaderOptions options;
    options.recognizer = m.recognizer;
    const auto lines = lines_of(options, picture(m.image));
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].read.text == m.text);
    CHECK(lines[0].read.confidence > m.confidence);
  }
}

TEST_CASE("the angle classifier turns a line that stands on its head") {
  for (const Ocr& m : all_models()) {
    INFO(m.classifier);
    const vision::Image image = picture(m.image);
    TextReaderOptions options;
    options.recognizer = m.recognizer;
    options.classifier = m.classifier;
    const auto upright = lines_of(options, image);
    const auto turned = lines_of(options, vision::rotate_180(image));
    REQUIRE(upright.size() == 1);
    REQUIRE(turned.size() == 1);
    CHECK(upright[0].read.text == m.text);
    CHECK(turned[0].read.text == m.text);
  }
}

TEST_CASE("detector and recognizer together find the line and where it lies; Paddle and ONNX agree") {
  for (const Ocr& m : all_models()) {
    INFO(m.detector);
    const vision::Image line = picture(m.image);
    // The line on a white page, 60 pixels down and 40 to the right.
    vision::Image page = std::move(vision::make_image(line.width + 80, 256)).value();
    std::fill(page.rgb.begin(), page.rgb.end(), uint8_t{255});
    for (int y = 0; y < line.height; ++y)
      std::copy_n(line.at(0, y), static_cast<size_t>(line.width) * 3, page.at(40, 60 + y));
    TextReaderOptions options;
    options.recognizer = m.recognizer;
    options.detector = m.detector;
    const auto lines = lines_of(options, page);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].read.text.find(m.text.substr(3, 10)) != std::string::npos);
    CHECK(lines[0].box[0].x == Approx(40).margin(15));
    CHECK(lines[0].box[0].y == Approx(60).margin(12));
    CHECK(lines[0].box[2].x == Approx(40 + line.width).margin(15));
    options.detector = m.detector_onnx;
    const auto same = lines_of(options, page);
    REQUIRE(same.size() == 1);
    CHECK(same[0].read.text == lines[0].read.text);
    for (size_t k = 0; k < 4; ++k) CHECK(same[0].box[k].x == Approx(lines[0].box[k].x).margin(2));
  }
  check_korean();
}

TEST_CASE("images of one pixel and without text are read as nothing") {
  for (const Ocr& m : all_models()) {
    INFO(m.detector);
    TextReaderOptions options;
    options.recognizer = m.recognizer;
    options.detector = m.detector;
    CHECK(lines_of(options, *vision::make_image(1, 1)).empty());
    CHECK(lines_of(options, *vision::make_image(320, 64)).empty());
  }
}

TEST_CASE("a missing dictionary says so") {
  TextReaderOptions options;
  options.recognizer = all_models().front().recognizer;
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
  const auto y = run_on_image(**p, {image, 2}, plain);
  REQUIRE_OK(y);
  const std::vector<float> want{0, 0.6f, 0.2f, 0.8f, 0.4f, 1};  // channel by channel
  for (size_t k = 0; k < want.size(); ++k)
    CHECK(std::abs(y->values<float>()[k] + want[k]) <= want[k] / 2048);  // half a unit of f16's 11 bits
}
