#include <filesystem>
#include <fstream>
#include <optional>

#include "clients/cli/ocr_steps.h"
#include "engine/base/format.h"

namespace oar::cli {
namespace {

namespace fs = std::filesystem;

// What the steps around a model must know of it.
struct Network {
  std::string input, output;
  std::string data_type, output_type;
  ImageInput size;
};

Status failed(const fs::path& path, const std::error_code& ec) {
  return unavailable(cat("cannot write ", path.string(), ": ", ec.message()));
}

Status write(const fs::path& path, const std::string& text) {
  std::error_code ec;
  fs::create_directories(path.parent_path(), ec);
  if (ec) return failed(path.parent_path(), ec);
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return unavailable(cat("cannot write ", path.string()));
  return ok_status();
}

// The files of a model into the version folder `to`: an ONNX file, or what is beside a Paddle program.
Status copy_model(const std::string& from, const fs::path& to) {
  std::error_code ec;
  fs::create_directories(to, ec);
  if (ec) return failed(to, ec);
  const auto copy = [&](const fs::path& file, const fs::path& as) -> Status {
    fs::copy_file(file, to / as, fs::copy_options::overwrite_existing, ec);
    return ec ? failed(to / as, ec) : ok_status();
  };
  if (fs::path(from).extension() == ".onnx") return copy(from, "model.onnx");
  const fs::path folder = fs::is_directory(from, ec) ? fs::path(from) : fs::path(from).parent_path();
  for (const auto& entry : fs::directory_iterator(folder, ec))
    if (entry.is_regular_file() && entry.path().filename() != "dict.txt")
      OAR_RETURN_IF_ERROR(copy(entry.path(), entry.path().filename()));
  return ec ? failed(folder, ec) : ok_status();
}

std::string type_name(DType dtype) {
  return dtype == DType::kF16 ? "TYPE_FP16" : dtype == DType::kBF16 ? "TYPE_BF16" : "TYPE_FP32";
}

Result<Network> read_network(const std::string& path) {
  PredictorOptions options;
  options.threads = 1;
  OAR_ASSIGN(const std::unique_ptr<Predictor> model, Predictor::open(path, options));
  Network out;
  OAR_ASSIGN(out.size, image_input(*model, path));
  out.data_type = type_name(model->inputs()[0].dtype);
  out.output_type = type_name(model->outputs()[0].dtype);
  out.input = model->inputs()[0].name;
  out.output = model->outputs()[0].name;
  return out;
}

std::string proto_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string parameter(const std::string& name, const std::string& value) {
  return cat("parameters { key: ", proto_string(name), " value: { string_value: ", proto_string(value),
             " } }\n");
}
std::string sizes(const Network& n, int usual_height) {
  std::string out = n.data_type == "TYPE_FP32" ? "" : parameter("data_type", n.data_type);
  const int height = n.size.height > 0 ? n.size.height : usual_height;
  if (height > 0) out += parameter("height", cat(height));
  if (n.size.width > 0) out += parameter("width", cat(n.size.width));
  return out;
}
std::string type_of(const Network& n) {
  return n.output_type == "TYPE_FP32" ? "" : parameter("data_type", n.output_type);
}

using Map = std::vector<std::pair<std::string, std::string>>;
std::string step(const std::string& model, const Map& inputs, const Map& outputs) {
  std::string out = cat("  step {\n    model_name: ", proto_string(model), "\n");
  const auto add = [&](const char* kind, const Map& map) {
    for (const auto& [own, tensor] : map)
      out += cat("    ", kind, " { key: ", proto_string(own), " value: ", proto_string(tensor), " }\n");
  };
  add("input_map", inputs);
  add("output_map", outputs);
  return out + "  }\n";
}

const char* kAnswers =
    "output { name: \"boxes\" data_type: TYPE_FP32 dims: [ -1, 4, 2 ] }\n"
    "output { name: \"texts\" data_type: TYPE_STRING dims: [ -1 ] }\n"
    "output { name: \"scores\" data_type: TYPE_FP32 dims: [ -1 ] }\n"
    "output { name: \"box_scores\" data_type: TYPE_FP32 dims: [ -1 ] }\n";

std::string ensemble_of(const Network& detector, const Network& recognizer, const Network* classifier) {
  std::string steps = step("ocr_detector_input", {{"image", "image"}}, {{"x", "small"}}) +
                      step("ocr_detector", {{detector.input, "small"}}, {{detector.output, "map"}}) +
                      step("ocr_boxes", {{"map", "map"}, {"image", "image"}},
                           {{"boxes", "all_boxes"}, {"box_scores", "all_box_scores"}}) +
                      step("ocr_crops", {{"image", "image"}, {"boxes", "all_boxes"}}, {{"lines", "lines"}});
  const char* line = "lines";
  if (classifier != nullptr) {
    steps += step("ocr_classifier_input", {{"line", "lines"}}, {{"x", "directions"}}) +
             step("ocr_classifier", {{classifier->input, "directions"}}, {{classifier->output, "turned"}}) +
             step("ocr_turn", {{"line", "lines"}, {"probabilities", "turned"}}, {{"upright", "upright"}});
    line = "upright";
  }
  steps +=
      step("ocr_recognizer_input", {{"line", line}}, {{"x", "rows"}}) +
      step("ocr_recognizer", {{recognizer.input, "rows"}}, {{recognizer.output, "characters"}}) +
      step("ocr_text", {{"probabilities", "characters"}}, {{"text", "text"}, {"score", "score"}}) +
      step("ocr_lines",
           {{"boxes", "all_boxes"}, {"box_scores", "all_box_scores"}, {"text", "text"}, {"score", "score"}},
           {{"boxes", "boxes"}, {"box_scores", "box_scores"}, {"texts", "texts"}, {"scores", "scores"}});
  return cat("platform: \"ensemble\"\n",
             "input { name: \"image\" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }  # RGB\n", kAnswers,
             "ensemble_scheduling {\n", steps, "}\n");
}

std::string ensemble_of_files() {
  return cat(
      "platform: \"ensemble\"\n", "input { name: \"encoded\" data_type: TYPE_STRING dims: [ 1 ] }\n",
      kAnswers, "ensemble_scheduling {\n", step("ocr_decode", {{"encoded", "encoded"}}, {{"image", "image"}}),
      step("ocr", {{"image", "image"}},
           {{"boxes", "boxes"}, {"texts", "texts"}, {"scores", "scores"}, {"box_scores", "box_scores"}}),
      "}\n");
}

}  // namespace

Status write_ocr_repository(const std::string& folder, const TextReaderOptions& options) {
  const fs::path root(folder);
  std::error_code ec;
  if (fs::exists(root, ec) && !fs::is_empty(root, ec))
    return {StatusCode::kAlreadyExists, cat(folder, " is there and not empty; name a new folder"), "DIR"};
  OAR_ASSIGN(const Network detector, read_network(options.detector));
  OAR_ASSIGN(const Network recognizer, read_network(options.recognizer));
  std::optional<Network> classifier;
  if (!options.classifier.empty()) { OAR_ASSIGN(classifier, read_network(options.classifier)); }
  OAR_ASSIGN(const std::string dictionary, read_dictionary_of(options));

  OAR_RETURN_IF_ERROR(copy_model(options.detector, root / "ocr_detector/1"));
  OAR_RETURN_IF_ERROR(copy_model(options.recognizer, root / "ocr_recognizer/1"));
  if (classifier) OAR_RETURN_IF_ERROR(copy_model(options.classifier, root / "ocr_classifier/1"));
  const auto config = [&](const std::string& name, const std::string& text) {
    return write(root / name / "config.pbtxt", text);
  };
  const auto built_in = [&](const std::string& name, const std::string& parameters) {
    return config(name, cat("backend: ", proto_string(name), "\n", parameters));
  };
  OAR_RETURN_IF_ERROR(built_in("ocr_decode", ""));
  OAR_RETURN_IF_ERROR(
      built_in("ocr_detector_input", parameter("side", cat(options.side_limit)) + sizes(detector, 0)));
  OAR_RETURN_IF_ERROR(built_in("ocr_boxes", parameter("box_threshold", cat(options.boxes.box_threshold)) +
                                                parameter("unclip", cat(options.boxes.unclip)) +
                                                type_of(detector)));
  OAR_RETURN_IF_ERROR(built_in("ocr_crops", ""));
  if (classifier) {
    OAR_RETURN_IF_ERROR(built_in("ocr_classifier_input", sizes(*classifier, 48)));
    OAR_RETURN_IF_ERROR(built_in("ocr_turn", type_of(*classifier)));
  }
  OAR_RETURN_IF_ERROR(built_in("ocr_recognizer_input", sizes(recognizer, recognizer.size.usual_height)));
  OAR_RETURN_IF_ERROR(built_in("ocr_text", type_of(recognizer)));
  OAR_RETURN_IF_ERROR(write(root / "ocr_text/dict.txt", dictionary));
  OAR_RETURN_IF_ERROR(built_in("ocr_lines", parameter("min_confidence", cat(options.min_confidence))));
  OAR_RETURN_IF_ERROR(config("ocr_file", ensemble_of_files()));
  return config("ocr", ensemble_of(detector, recognizer, classifier ? &*classifier : nullptr));
}

}  // namespace oar::cli
