#include "clients/cli/text_reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/tensor/mapped_file.h"
#include "kernels/thread_pool.h"

namespace oar::cli {
namespace {

constexpr int kStride = 32;  // a detector's input is a multiple of it

// Pixels in the element type that a model was exported in, f16 say.
Result<Tensor> rounded(const Tensor& x, DType dtype) {
  OAR_ASSIGN(Tensor y, Tensor::allocate(x.shape(), Format::of(dtype)));
  const std::span<const float> from = x.values<float>();
  dispatch_number(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = mutable_elements<T>(y);
    for (size_t k = 0; k < from.size(); ++k)
      to[k] = Element<T>::store(static_cast<typename Element<T>::Compute>(from[k]));
  });
  return y;
}

std::string file_beside(const std::string& model, const char* name) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path folder = fs::is_directory(model, ec) ? fs::path(model) : fs::path(model).parent_path();
  return (folder / name).string();
}

constexpr uint64_t kMostDictionary = uint64_t{16} << 20;

std::string_view trimmed(std::string_view s) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!s.empty() && space(s.front())) s.remove_prefix(1);
  while (!s.empty() && space(s.back())) s.remove_suffix(1);
  return s;
}

// A scalar of YAML: plain, in single quotes (a quote is doubled), or in double quotes as JSON has them.
std::string yaml_scalar(std::string_view s) {
  if (s.size() >= 2 && s.front() == '\'' && s.back() == '\'') {
    std::string out;
    for (size_t i = 1; i + 1 < s.size(); ++i) {
      out += s[i];
      if (s[i] == '\'' && i + 2 < s.size() && s[i + 1] == '\'') ++i;
    }
    return out;
  }
  if (s.size() >= 2 && s.front() == '"' && s.back() == '"') {
    const auto text = parse_json(s, "inference.yml");
    if (text.ok() && text->is_string()) return std::string(text->as_string());
  }
  return std::string(s);
}

}  // namespace

Result<ImageInput> image_input(const Predictor& model, const std::string& name) {
  if (model.inputs().size() != 1)
    return invalid_argument(cat(name, " has ", model.inputs().size(), " inputs; one image is meant"));
  const IoSpec& in = model.inputs()[0];
  const bool image = in.ranked && in.dims.size() == 4 && (in.dims[1].value == 3 || in.dims[1].value < 0);
  if (!image || !dtype_is_float(in.dtype)) {
    return invalid_argument(
        cat(name, " takes ", in.to_string(), "; floats [batch, 3, height, width] are meant"));
  }
  auto side = [](int64_t v) { return v > 0 && v <= vision::kMaxSide ? static_cast<int>(v) : 0; };
  const IoDim &height = in.dims[2], &width = in.dims[3];
  return ImageInput{side(height.value), side(width.value), side(height.declared()), side(width.declared())};
}

const vision::Normalization kDetectorPixels{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}, true};
const vision::Normalization kLinePixels{};

Result<Tensor> image_tensor(const NetworkImage& image, const vision::Normalization& how, DType dtype) {
  OAR_ASSIGN(Tensor x, Tensor::allocate({1, 3, image.image.height, image.row}, Format::f32()));
  vision::normalize(image.image, how, image.row, static_cast<float*>(x.mutable_data()));
  if (dtype == DType::kF32) return x;
  return rounded(x, dtype);
}

Result<Tensor> run_on_image(const Predictor& model, const NetworkImage& image,
                            const vision::Normalization& how) {
  OAR_ASSIGN(Tensor x, image_tensor(image, how, model.inputs()[0].dtype));
  OAR_ASSIGN(const std::vector<Datum> out, model.run({Datum(std::move(x))}));
  if (out.empty() || !out[0].is_tensor()) return invalid_argument("the model's first output is no tensor");
  return to_f32(out[0].tensor);
}

Result<NetworkImage> detector_image(const vision::Image& image, ImageInput in, int side_limit) {
  const double shrink = std::min(1.0, static_cast<double>(side_limit) / std::max(image.width, image.height));
  auto fit = [&](int side) {
    return std::max(kStride, static_cast<int>(std::lround(side * shrink / kStride)) * kStride);
  };
  if (in.height == 0) in.height = fit(image.height);
  if (in.width == 0) in.width = fit(image.width);
  OAR_ASSIGN(vision::Image small, vision::resize(image, in.width, in.height));
  return NetworkImage{std::move(small), in.width};
}

Result<NetworkImage> classifier_image(const vision::Image& line, ImageInput in) {
  if (in.height == 0) in.height = 48;
  if (in.width == 0) in.width = 192;
  const int natural = static_cast<int>(std::ceil(static_cast<double>(in.height) * line.width / line.height));
  OAR_ASSIGN(vision::Image small, vision::resize(line, std::clamp(natural, 1, in.width), in.height));
  return NetworkImage{std::move(small), in.width};
}

Result<NetworkImage> recognizer_image(const vision::Image& line, ImageInput in) {
  if (in.height == 0) in.height = in.usual_height > 0 ? in.usual_height : 48;
  const double ratio = static_cast<double>(line.width) / line.height;
  const int natural = std::clamp(static_cast<int>(std::ceil(in.height * ratio)), 1, 16384);
  // Short lines are padded to the width that training used.
  const int row = in.width ? in.width : std::max(natural, 320);
  OAR_ASSIGN(vision::Image small, vision::resize(line, std::min(natural, row), in.height));
  return NetworkImage{std::move(small), row};
}

Result<std::vector<vision::TextBox>> boxes_of(const Tensor& map, int image_width, int image_height,
                                              const vision::TextBoxOptions& options) {
  const Shape& s = map.shape();
  if (s.rank() < 2) return invalid_argument(cat("the detector's output ", s.to_string(), " is no map"));
  const int64_t height = s[s.rank() - 2], width = s[s.rank() - 1];
  if (map.numel() != height * width || height > vision::kMaxSide || width > vision::kMaxSide) {
    return invalid_argument(cat("the detector's output ", s.to_string(), " is not one map of probabilities"));
  }
  return vision::text_boxes(map.values<float>(), static_cast<int>(width), static_cast<int>(height),
                            image_width, image_height, options);
}

Result<bool> is_upside_down(const Tensor& p) {
  if (p.numel() != 2)
    return invalid_argument(cat("the classifier's output ", p.shape().to_string(), " is not two classes"));
  return p.values<float>()[1] > 0.9f;
}

Result<vision::ReadText> text_of(const Tensor& p, const std::vector<std::string>& dictionary) {
  if (p.shape().rank() != 3 || p.shape()[0] != 1) {
    return invalid_argument(
        cat("the recognizer's output ", p.shape().to_string(), " is not [1, steps, classes]"));
  }
  OAR_ASSIGN(const auto alphabet, vision::ctc_alphabet(dictionary, p.shape()[2]));
  return vision::ctc_decode(p.values<float>(), alphabet);
}

Result<std::unique_ptr<TextReader>> TextReader::open(const TextReaderOptions& options) {
  std::unique_ptr<TextReader> r(new TextReader(options));
  PredictorOptions model;
  model.threads = options.threads;
  model.resources.pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = options.threads});
  if (!options.detector.empty()) {
    OAR_ASSIGN(r->detector_, Predictor::open(options.detector, model));
    OAR_RETURN_IF_ERROR(image_input(*r->detector_, options.detector).status());
  }
  OAR_ASSIGN(r->recognizer_, Predictor::open(options.recognizer, model));
  OAR_RETURN_IF_ERROR(image_input(*r->recognizer_, options.recognizer).status());
  if (!options.classifier.empty()) {
    OAR_ASSIGN(r->classifier_, Predictor::open(options.classifier, model));
    OAR_RETURN_IF_ERROR(image_input(*r->classifier_, options.classifier).status());
  }
  OAR_ASSIGN(const std::string dictionary, read_dictionary_of(options));
  r->lines_ = vision::read_dictionary(dictionary);
  return r;
}

Result<std::string> read_dictionary_of(const TextReaderOptions& options) {
  const std::string path =
      options.dictionary.empty() ? file_beside(options.recognizer, "dict.txt") : options.dictionary;
  auto text = read_small_file(path, kMostDictionary);
  if (text.ok()) return text;
  if (options.dictionary.empty()) {
    if (options.recognizer.ends_with(".onnx")) {
      OAR_ASSIGN(const ImportedModel model, import_model(options.recognizer));
      for (const auto& [key, value] : model.metadata)
        if (key == "character" && !value.empty()) return value;
    }
    if (const auto yaml = read_small_file(file_beside(options.recognizer, "inference.yml"), kMostDictionary);
        yaml.ok()) {
      if (std::string found = dictionary_in_config(*yaml); !found.empty()) return found;
    }
  }
  return Status(text.status().code(), cat(text.status().message(),
                                          "; name the recognizer's dictionary with --dict, or put it there"));
}

std::string dictionary_in_config(std::string_view yaml) {
  std::string out;
  bool within = false;
  while (!yaml.empty()) {
    const size_t end = std::min(yaml.find('\n'), yaml.size());
    std::string_view line = yaml.substr(0, end);
    yaml.remove_prefix(std::min(end + 1, yaml.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const std::string_view text = trimmed(line);
    if (!within) {
      within = text == "character_dict:";
      continue;
    }
    if (!text.starts_with("-")) break;
    // A space alone would be trimmed away; files have it in quotes.
    out += yaml_scalar(trimmed(text.substr(1)));
    out += '\n';
  }
  return out;
}

Result<std::vector<vision::TextBox>> TextReader::detect(const vision::Image& image) const {
  OAR_ASSIGN(const ImageInput in, image_input(*detector_, options_.detector));
  OAR_ASSIGN(const NetworkImage small, detector_image(image, in, options_.side_limit));
  OAR_ASSIGN(const Tensor map, run_on_image(*detector_, small, kDetectorPixels));
  return boxes_of(map, image.width, image.height, options_.boxes);
}

Result<vision::ReadText> TextReader::recognize(const vision::Image& line) const {
  OAR_ASSIGN(const ImageInput in, image_input(*recognizer_, options_.recognizer));
  OAR_ASSIGN(const NetworkImage small, recognizer_image(line, in));
  OAR_ASSIGN(const Tensor p, run_on_image(*recognizer_, small, kLinePixels));
  return text_of(p, lines_);
}

Result<bool> TextReader::upside_down(const vision::Image& line) const {
  OAR_ASSIGN(const ImageInput in, image_input(*classifier_, options_.classifier));
  OAR_ASSIGN(const NetworkImage small, classifier_image(line, in));
  OAR_ASSIGN(const Tensor p, run_on_image(*classifier_, small, kLinePixels));
  return is_upside_down(p);
}

Result<std::vector<TextLine>> TextReader::read(const vision::Image& image) const {
  std::vector<TextLine> lines;
  std::vector<vision::TextBox> boxes;
  if (detector_) {
    OAR_ASSIGN(boxes, detect(image));
  } else {
    const auto w = static_cast<float>(image.width), h = static_cast<float>(image.height);
    boxes.push_back({{{{0, 0}, {w, 0}, {w, h}, {0, h}}}, 1});
  }
  for (const vision::TextBox& box : boxes) {
    vision::Image line = image;
    if (detector_) { OAR_ASSIGN(line, vision::crop_quad(image, box.corners)); }
    if (classifier_) {
      OAR_ASSIGN(const bool turn, upside_down(line));
      if (turn) line = vision::rotate_180(line);
    }
    OAR_ASSIGN(vision::ReadText read, recognize(line));
    if (read.text.empty() || read.confidence < options_.min_confidence) continue;
    lines.push_back({box.corners, box.score, std::move(read)});
  }
  return lines;
}

}  // namespace oar::cli
