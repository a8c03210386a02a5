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
  std::string dictionary;  // empty: dict.txt beside the recognizer
  int side_limit = 960;    // of the image the detector sees
  float min_confidence = 0.5f;
  vision::TextBoxOptions boxes;
  int threads = 0;
};

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
// Runs the model on one image of exactly width x height (plus zero columns up to `row`); its first output in
// f32.
Result<Tensor> run_on_image(const Predictor& model, const vision::Image& image,
                            const vision::Normalization& how, int row);

}  // namespace oar::cli
