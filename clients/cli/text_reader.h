// TextReader: a detector, a recognizer and, if wanted, a classifier of upside-down lines as one function from
// an image to its lines of text. The models are PP-OCR's, in Paddle or ONNX form; sizes come from what they
// declare.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/predictor.h"
#include "engine/vision/ctc.h"
#include "engine/vision/text_boxes.h"

namespace oar::cli {

struct TextReaderOptions {
  std::string detector;  // empty: each image is one line
  std::string recognizer;
  std::string classifier;  // empty: lines are upright
  std::string dictionary;  // empty: as read_dictionary_of() finds it
  int side_limit = 960;    // of the image the detector sees
  float min_confidence = 0.5f;
  vision::TextBoxOptions boxes;
  int threads = 0;
};

// The recognizer's characters, one per line: the file that is named, or dict.txt beside the recognizer, or
// what its files say: `character` of an ONNX file's metadata, `character_dict` of inference.yml.
Result<std::string> read_dictionary_of(const TextReaderOptions& options);
// `character_dict` of a Paddle model's inference.yml, one character per line; empty where it has none.
std::string dictionary_in_config(std::string_view yaml);

struct TextLine {
  vision::Quad box;
  float box_score = 0;
  vision::ReadText read;
};

// Threads: read() by many at once.
class TextReader {
 public:
  static Result<std::unique_ptr<TextReader>> open(const TextReaderOptions& options);
  // Lines in reading order, those below min_confidence left out.
  Result<std::vector<TextLine>> read(const vision::Image& image) const;

 private:
  explicit TextReader(TextReaderOptions options) : options_(std::move(options)) {}
  Result<std::vector<vision::TextBox>> detect(const vision::Image& image) const;
  Result<vision::ReadText> recognize(const vision::Image& line) const;
  Result<bool> upside_down(const vision::Image& line) const;

  TextReaderOptions options_;
  std::unique_ptr<Predictor> detector_, recognizer_, classifier_;
  std::vector<std::string> lines_;  // of the dictionary
};

// The one image input of a model: the height and width it wants, 0 where any will do, and those it was made
// for, 0 where it does not say. An error when the model takes something else.
struct ImageInput {
  int height = 0, width = 0;
  int usual_height = 0, usual_width = 0;
};
Result<ImageInput> image_input(const Predictor& model, const std::string& name);

// ---- what happens around the networks, also as the steps of a served ensemble (ocr_steps.h) ----

// An image resized for a network, which sees zero columns up to `row`.
struct NetworkImage {
  vision::Image image;
  int row = 0;
};
// `side_limit`: of the longer side; sides without a demand of the model become multiples of 32.
Result<NetworkImage> detector_image(const vision::Image& image, ImageInput in, int side_limit);
Result<NetworkImage> classifier_image(const vision::Image& line, ImageInput in);
Result<NetworkImage> recognizer_image(const vision::Image& line, ImageInput in);
// What PP-OCR's detectors, and its recognizers and classifiers, were trained with.
extern const vision::Normalization kDetectorPixels, kLinePixels;
// [1, 3, height, row], in f32 or as a model was exported in, f16 say.
Result<Tensor> image_tensor(const NetworkImage& image, const vision::Normalization& how, DType dtype);
// From what the networks answer, in f32.
Result<std::vector<vision::TextBox>> boxes_of(const Tensor& map, int image_width, int image_height,
                                              const vision::TextBoxOptions& options);
Result<bool> is_upside_down(const Tensor& probabilities);
Result<vision::ReadText> text_of(const Tensor& probabilities, const std::vector<std::string>& dictionary);

// Runs the model on one image; its first output in f32.
Result<Tensor> run_on_image(const Predictor& model, const NetworkImage& image,
                            const vision::Normalization& how);

}  // namespace oar::cli
