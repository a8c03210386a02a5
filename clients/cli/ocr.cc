// oar ocr: the lines of text in images.
#include <cstdio>
#include <filesystem>

#include "clients/cli/command.h"
#include "clients/cli/image_file.h"
#include "clients/cli/progress.h"
#include "clients/cli/ranges.h"
#include "clients/cli/text_reader.h"
#include "engine/base/json.h"

namespace oar::cli {
namespace {

struct OcrOptions {
  TextReaderOptions reader;
  std::vector<std::string> images;
  std::string draw;
  bool json = false;
};

json::object line_json(const TextLine& line) {
  json::array corners;
  for (vision::Point p : line.box) corners.emplace_back(json::array{p.x, p.y});
  return {{"text", line.read.text},
          {"confidence", line.read.confidence},
          {"box", std::move(corners)},
          {"box_score", line.box_score}};
}

// One file is drawn to `draw` itself, several into the folder of that name.
Result<std::string> drawing_path(const OcrOptions& o, const std::string& image) {
  namespace fs = std::filesystem;
  if (o.images.size() == 1) return o.draw;
  std::error_code ec;
  fs::create_directories(o.draw, ec);
  if (ec) return unavailable(cat("cannot make the folder ", o.draw, ": ", ec.message()));
  return (fs::path(o.draw) / (fs::path(image).stem().string() + ".png")).string();
}

Status read_one(const OcrOptions& o, const TextReader& reader, const std::string& path) {
  OAR_ASSIGN(vision::Image image, read_image(path));
  auto lines = reader.read(image);
  if (!lines.ok()) return {lines.status().code(), cat(path, ": ", lines.status().message())};
  if (o.json) {
    json::array list;
    for (const TextLine& line : *lines) list.emplace_back(line_json(line));
    const json::object out{
        {"image", path}, {"width", image.width}, {"height", image.height}, {"lines", std::move(list)}};
    std::printf("%s\n", json::serialize(out).c_str());
  } else {
    if (o.images.size() > 1) std::printf("%s:\n", path.c_str());
    for (const TextLine& line : *lines) {
      std::printf("%.3f  (%d,%d) (%d,%d) (%d,%d) (%d,%d)  %s\n", static_cast<double>(line.read.confidence),
                  static_cast<int>(line.box[0].x), static_cast<int>(line.box[0].y),
                  static_cast<int>(line.box[1].x), static_cast<int>(line.box[1].y),
                  static_cast<int>(line.box[2].x), static_cast<int>(line.box[2].y),
                  static_cast<int>(line.box[3].x), static_cast<int>(line.box[3].y), line.read.text.c_str());
    }
  }
  std::fflush(stdout);
  if (o.draw.empty()) return ok_status();
  for (const TextLine& line : *lines) vision::draw_quad(image, line.box, {220, 30, 30});
  OAR_ASSIGN(const std::string to, drawing_path(o, path));
  return write_png(image, to);
}

int ocr(const OcrOptions& o) {
  const auto reader = TextReader::open(o.reader);
  if (!reader.ok()) return fail(reader.status());
  ProgressBar bar(o.images.size() == 1);
  Progress progress = bar.callback();
  int code = kSuccess;
  for (size_t k = 0; k < o.images.size(); ++k) {
    bar.clear();
    // A broken image is reported and the others are read.
    if (const Status s = read_one(o, **reader, o.images[k]); !s.ok()) code = fail(s);
    if (progress && !progress(o.images[k], k + 1, o.images.size())) break;
  }
  return code;
}

}  // namespace

void add_ocr_options(CLI::App& c, TextReaderOptions& o) {
  c.add_option("--rec", o.recognizer, "text recognizer")->required()->type_name("MODEL");
  c.add_option("--cls", o.classifier, "classifier of upside-down lines")->type_name("MODEL");
  c.add_option("--dict", o.dictionary,
               "the recognizer's characters, one per line; default: dict.txt beside it, or what its "
               "metadata or inference.yml say")
      ->type_name("FILE");
  c.add_option("--side", o.side_limit, "longest side the detector sees")
      ->check(in_range(32, 8192))
      ->capture_default_str();
  c.add_option("--box-threshold", o.boxes.box_threshold, "mean probability of a box")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
  c.add_option("--unclip", o.boxes.unclip, "how far boxes grow")
      ->check(in_range(0.0, 10.0))
      ->capture_default_str();
  c.add_option("--min-confidence", o.min_confidence, "lines below are left out")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
}

void add_ocr(CLI::App& app, Action& action) {
  auto o = std::make_shared<OcrOptions>();
  CLI::App* c = app.add_subcommand("ocr", "Read the text in images with a detector and a recognizer");
  c->add_option("images", o->images, "JPEG or PNG files")->required()->type_name("IMAGE");
  c->add_option("--det", o->reader.detector,
                "text detector (Paddle or ONNX); without it an image is one line")
      ->type_name("MODEL");
  add_ocr_options(*c, o->reader);
  c->add_option("--threads", o->reader.threads, "threads; 0: all this process may use")
      ->check(in_range(0, 1024));
  c->add_option("--draw", o->draw, "PNG with the boxes; a folder for several images")->type_name("PATH");
  c->add_flag("--json", o->json, "one JSON object per image");
  c->footer(
      "Example:\n  oar ocr receipt.jpg --det ch_PP-OCRv3_det_infer --rec en_PP-OCRv3_rec_infer --dict "
      "en_dict.txt");
  c->callback([o, &action] { action = [o] { return ocr(*o); }; });
}

}  // namespace oar::cli
