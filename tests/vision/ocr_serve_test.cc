// Text reading as a served ensemble: the repository that `oar repository ocr` makes gives the lines of `oar
// ocr`, with our own small models and, where the data collection is there, with published ones.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "clients/cli/image_file.h"
#include "clients/cli/ocr_steps.h"
#include "engine/base/format.h"
#include "engine/tensor/element.h"
#include "engine/tensor/mapped_file.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar::cli;
using oar_test::Contains;
namespace fs = std::filesystem;

namespace {

struct Published {
  TextReaderOptions models;
  std::string image;
};
std::vector<Published> all_models() {
  const std::string own = oar_test::source_path("tests/data/ocr/");
  std::vector<Published> all(2);
  all[0].models.detector = own + "det";
  all[0].models.recognizer = own + "rec";
  all[0].models.classifier = own + "cls";
  all[0].image = own + "line.png";
  all[1] = all[0];
  all[1].models.detector = own + "det.onnx";
  all[1].models.classifier.clear();
  const auto detector = oar_test::data_path("paddle/v3_ch_det");
  const auto classifier = oar_test::data_path("paddle/v2_cls");
  for (const auto& [recognizer, image] : {std::pair("paddle/v2_en_rec", "vision/ocr/en_rec.jpg"),
                                          std::pair("paddle/v2_korean_rec", "vision/ocr/korean.jpg")}) {
    const auto rec = oar_test::data_path(recognizer);
    const auto picture = oar_test::data_path(image);
    if (!rec || !picture || !detector || !classifier) continue;
    Published& p = all.emplace_back();
    p.models.detector = *detector;
    p.models.recognizer = *rec;
    p.models.classifier = *classifier;
    p.image = *picture;
  }
  return all;
}

std::string new_folder() {
  static int number = 0;
  return cat(oar_test::temp_dir(), "/ocr", number++);
}

std::shared_ptr<api::ModelCatalog> served(const std::string& folder) {
  RepositoryOptions options;
  options.predictor.threads = 2;
  options.built_in = ocr_steps();
  auto catalog = open_repository(folder, "", options);
  REQUIRE_OK(catalog);
  return std::move(*catalog);
}

Result<std::vector<Datum>> ask(api::ModelCatalog& catalog, const char* model, const char* input,
                               Tensor given) {
  const auto found = catalog.find(model, "");
  if (!found.ok()) return found.status();
  OAR_ASSIGN(InferJob job, api::make_job(found->tensor->config, {{input, std::move(given)}}));
  std::promise<Result<std::vector<Datum>>> answer;
  job.done = [&](Result<std::vector<Datum>> r) { answer.set_value(std::move(r)); };
  OAR_RETURN_IF_ERROR(found->tensor->runner->submit(std::move(job)).status());
  return answer.get_future().get();
}

Tensor pixels(const vision::Image& image) {
  Tensor t = *Tensor::allocate({image.height, image.width, 3}, Format::of(DType::kU8));
  std::memcpy(t.mutable_data(), image.rgb.data(), image.rgb.size());
  return t;
}

Tensor text_tensor(const std::string& bytes) {
  Tensor t = *allocate_elements({1}, DType::kString, 1 << 20, false);
  *mutable_elements<std::string>(t) = bytes;
  return t;
}

void check_same(const std::vector<Datum>& got, const std::vector<TextLine>& lines) {
  REQUIRE(got.size() == 4);
  const auto n = static_cast<int64_t>(lines.size());
  REQUIRE(got[0].tensor.shape() == Shape({n, 4, 2}));
  REQUIRE(got[1].tensor.numel() == n);
  for (size_t k = 0; k < lines.size(); ++k) {
    CHECK(elements<std::string>(got[1].tensor)[k] == lines[k].read.text);
    // A shared run may sum in another order.
    CHECK(std::abs(got[2].tensor.values<float>()[k] - lines[k].read.confidence) < 1e-4f);
    CHECK(got[3].tensor.values<float>()[k] == lines[k].box_score);
    for (size_t c = 0; c < 4; ++c) {
      CHECK(got[0].tensor.values<float>()[8 * k + 2 * c] == lines[k].box[c].x);
      CHECK(got[0].tensor.values<float>()[8 * k + 2 * c + 1] == lines[k].box[c].y);
    }
  }
}

}  // namespace

TEST_CASE("the served ensemble reads what oar ocr reads") {
  for (const Published& p : all_models()) {
    INFO(p.models.recognizer);
    const std::string folder = new_folder();
    REQUIRE_OK(write_ocr_repository(folder, p.models));
    const auto catalog = served(folder);
    const auto image = read_image(p.image);
    REQUIRE_OK(image);
    const auto reader = TextReader::open(p.models);
    REQUIRE_OK(reader);
    const auto lines = (*reader)->read(*image);
    REQUIRE_OK(lines);
    REQUIRE_FALSE(lines->empty());
    const auto got = ask(*catalog, "ocr", "image", pixels(*image));
    REQUIRE_OK(got);
    check_same(*got, *lines);
    const auto bytes = read_small_file(p.image, uint64_t{16} << 20);
    REQUIRE_OK(bytes);
    const auto of_file = ask(*catalog, "ocr_file", "encoded", text_tensor(*bytes));
    REQUIRE_OK(of_file);
    check_same(*of_file, *lines);
    // Two lines of one image, one of them upside down where a classifier turns it.
    vision::Image page = *vision::make_image(image->width, 2 * image->height);
    const vision::Image second = p.models.classifier.empty() ? *image : vision::rotate_180(*image);
    std::ranges::copy(image->rgb, page.rgb.begin());
    std::ranges::copy(second.rgb, page.rgb.begin() + static_cast<std::ptrdiff_t>(image->rgb.size()));
    const auto both = (*reader)->read(page);
    REQUIRE_OK(both);
    const auto got_both = ask(*catalog, "ocr", "image", pixels(page));
    REQUIRE_OK(got_both);
    check_same(*got_both, *both);
    // An image without any text.
    const auto none = ask(*catalog, "ocr", "image", pixels(*vision::make_image(64, 64)));
    REQUIRE_OK(none);
    check_same(*none, {});
    CHECK(catalog->find("ocr_recognizer", "")->tensor->runner->stats().success >= lines->size() * 2);
  }
}

TEST_CASE("a served ensemble of text reading refuses what is no image, by the name of its step") {
  const std::string folder = new_folder();
  REQUIRE_OK(write_ocr_repository(folder, all_models()[0].models));
  CHECK(write_ocr_repository(folder, all_models()[0].models).code() == StatusCode::kAlreadyExists);
  const auto catalog = served(folder);
  const auto bad = ask(*catalog, "ocr_file", "encoded", text_tensor("no picture"));
  CHECK_THAT(bad.status().message(), Contains("step \"ocr_decode\" of the ensemble \"ocr_file\""));
  const Tensor empty = *Tensor::allocate({0, 5, 3}, Format::of(DType::kU8));
  const auto nothing = ask(*catalog, "ocr", "image", empty);
  CHECK(nothing.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(nothing.status().message(), Contains("ocr_detector_input"));
  const Tensor grey = *Tensor::allocate({4, 5, 1}, Format::of(DType::kU8));
  CHECK_THAT(ask(*catalog, "ocr", "image", grey).status().message(), Contains("UINT8 [-1, -1, 3]"));
  // A list is for the steps of an ensemble.
  const auto lines = catalog->find("ocr_lines", "");
  REQUIRE_OK(lines);
  const auto list =
      api::make_job(lines->tensor->config, {{"boxes", *Tensor::allocate({0, 4, 2}, Format::f32())},
                                            {"box_scores", *Tensor::allocate({0}, Format::f32())},
                                            {"text", text_tensor("x")}});
  CHECK_THAT(list.status().message(), Contains("list of tensors"));
}

TEST_CASE("a built-in step's parameters") {
  const std::string folder = new_folder();
  const auto reason = [&](const char* step, const std::string& config) {
    std::error_code ec;
    fs::create_directories(fs::path(folder) / step, ec);
    std::ofstream(fs::path(folder) / step / "config.pbtxt") << "backend: \"" << step << "\"\n" << config;
    const auto path = fs::path(folder);
    RepositoryOptions options;
    options.built_in = ocr_steps();
    return std::string(open_repository(folder, "", options).status().message());
  };
  const auto parameter = [](const char* name, const char* value) {
    return cat("parameters { key: \"", name, "\" value: { string_value: \"", value, "\" } }\n");
  };
  CHECK(reason("ocr_crops", "").empty());
  fs::remove_all(folder);
  CHECK_THAT(reason("ocr_boxes", parameter("unclipp", "1")), Contains("unclipp") && Contains("'unclip'"));
  CHECK_THAT(reason("ocr_boxes", parameter("unclip", "-1")), Contains("unclip") && Contains("[0, 10]"));
  CHECK_THAT(reason("ocr_boxes", parameter("unclip", "nan")), Contains("unclip"));
  CHECK_THAT(reason("ocr_boxes", "parameters { key: \"unclip\" value: 3 }\n"), Contains("string_value"));
  CHECK_THAT(reason("ocr_boxes", "max_batch_size: 4\n"), Contains("max_batch_size"));
  CHECK_THAT(reason("ocr_boxes", "dynamic_batching {}\n"), Contains("dynamic_batching"));
  fs::remove_all(folder);
  CHECK_THAT(reason("ocr_text", parameter("dictionary", "../dict.txt")), Contains("dictionary"));
  CHECK_THAT(reason("ocr_text", ""), Contains("dict.txt"));
  std::ofstream(fs::path(folder) / "ocr_text/dict.txt") << "a\nb\n";
  CHECK_THAT(reason("ocr_text", parameter("data_type", "TYPE_INT8")), Contains("TYPE_FP16"));
  CHECK(reason("ocr_text", parameter("data_type", "TYPE_FP16")).empty());
}
