// oar classify: the likeliest classes of images.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "clients/cli/command.h"
#include "clients/cli/image_file.h"
#include "clients/cli/ranges.h"
#include "clients/cli/text_reader.h"
#include "engine/base/json.h"
#include "engine/tensor/mapped_file.h"

namespace oar::cli {
namespace {

struct ClassifyOptions {
  std::string model, params, labels;
  std::vector<std::string> images;
  std::vector<float> mean{0.485f, 0.456f, 0.406f}, std{0.229f, 0.224f, 0.225f};
  int top = 5, threads = 0, size = 0;
  bool bgr = false, stretch = false, json = false;
};

// Scores as probabilities: as they are when they already are, through softmax otherwise.
std::vector<double> probabilities(std::span<const float> scores) {
  std::vector<double> p(scores.begin(), scores.end());
  double sum = 0;
  bool proper = true;
  for (double v : p) sum += v, proper = proper && v >= 0;
  if (proper && std::abs(sum - 1) < 1e-2) return p;
  const double top = *std::max_element(p.begin(), p.end());
  sum = 0;
  for (double& v : p) sum += v = std::exp(v - top);
  for (double& v : p) v /= sum;
  return p;
}

Status classify_one(const ClassifyOptions& o, const Predictor& model, const std::vector<std::string>& labels,
                    const std::string& path) {
  OAR_ASSIGN(const vision::Image image, read_image(path));
  OAR_ASSIGN(ImageInput in, image_input(model, o.model));
  const auto open_side = [&](int usual) { return o.size > 0 ? o.size : usual > 0 ? usual : 224; };
  if (in.height == 0) in.height = open_side(in.usual_height);
  if (in.width == 0) in.width = open_side(in.usual_width);
  vision::Normalization how;
  std::copy_n(o.mean.begin(), 3, how.mean.begin());
  std::copy_n(o.std.begin(), 3, how.std.begin());
  how.bgr = o.bgr;
  OAR_ASSIGN(vision::Image small,
             vision::fitted(image, in.width, in.height, o.stretch || in.width != in.height));
  OAR_ASSIGN(const Tensor scores, run_on_image(model, {std::move(small), in.width}, how));
  if (scores.numel() < 1) return invalid_argument(cat(o.model, " gives no scores"));
  const std::vector<double> p = probabilities(scores.values<float>());
  if (!labels.empty() && labels.size() != p.size()) {
    return invalid_argument(cat(o.labels, " has ", labels.size(), " labels for ", p.size(), " classes"));
  }
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t top = std::min(static_cast<size_t>(o.top), p.size());
  // NaN goes last, so that the order is one.
  auto key = [&](size_t k) { return std::isnan(p[k]) ? -1.0 : p[k]; };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(),
                    [&](size_t a, size_t b) { return key(a) > key(b) || (key(a) == key(b) && a < b); });
  json::array list;
  if (!o.json && o.images.size() > 1) std::printf("%s:\n", path.c_str());
  for (size_t k = 0; k < top; ++k) {
    const std::string label = labels.empty() ? cat("class ", order[k]) : labels[order[k]];
    if (o.json)
      list.emplace_back(json::object{{"class", order[k]}, {"label", label}, {"probability", p[order[k]]}});
    else std::printf("%8.5f  %5zu  %s\n", p[order[k]], order[k], label.c_str());
  }
  if (o.json)
    std::printf("%s\n", json::serialize(json::object{{"image", path}, {"classes", std::move(list)}}).c_str());
  std::fflush(stdout);
  return ok_status();
}

int classify(const ClassifyOptions& o) {
  PredictorOptions options;
  options.threads = o.threads;
  options.import.parameters = o.params;
  const auto model = Predictor::open(o.model, options);
  if (!model.ok()) return fail(model.status());
  std::vector<std::string> labels;
  if (!o.labels.empty()) {
    const auto text = read_small_file(o.labels, uint64_t{16} << 20);
    if (!text.ok()) return fail(text.status());
    labels = vision::read_dictionary(*text);
  }
  int code = kSuccess;
  for (const std::string& path : o.images) {
    if (const Status s = classify_one(o, **model, labels, path); !s.ok()) code = fail(s);
  }
  return code;
}

}  // namespace

void add_classify(CLI::App& app, Action& action) {
  auto o = std::make_shared<ClassifyOptions>();
  CLI::App* c = app.add_subcommand("classify", "Name what images show with a classifier (ONNX or Paddle)");
  c->add_option("images", o->images, "JPEG or PNG files")->required()->type_name("IMAGE");
  c->add_option("--model", o->model, "the classifier")->required()->type_name("MODEL");
  c->add_option("--params", o->params,
                "Paddle: the file with the parameters; default: found beside the model")
      ->type_name("FILE");
  c->add_option("--labels", o->labels, "names of the classes, one per line")->type_name("FILE");
  c->add_option("--top", o->top, "how many classes")->check(in_range(1, 1000))->capture_default_str();
  c->add_option("--size", o->size,
                "side of the input where the model leaves it open; default: what it was made for, or 224")
      ->check(in_range(1, 4096));
  c->add_option("--mean", o->mean, "per channel, of pixels in 0..1")->expected(3);
  c->add_option("--std", o->std, "per channel")->expected(3)->check(above_zero());
  c->add_flag("--bgr", o->bgr, "channel 0 is blue");
  c->add_flag("--stretch", o->stretch, "the whole image, not its middle");
  c->add_option("--threads", o->threads, "threads; 0: all this process may use")->check(in_range(0, 1024));
  c->add_flag("--json", o->json, "one JSON object per image");
  c->footer("Example:\n  oar classify dog.jpg --model resnet50.onnx --labels imagenet.txt");
  c->callback([o, &action] { action = [o] { return classify(*o); }; });
}

}  // namespace oar::cli
