#include "clients/cli/ocr_steps.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "clients/cli/image_file.h"
#include "engine/base/format.h"
#include "engine/base/nearest.h"
#include "engine/tensor/element.h"
#include "engine/tensor/mapped_file.h"

namespace oar::cli {
namespace {

using Parameters = RepositoryOptions::Parameters;
using Values = std::vector<Datum>;

// ---- values of steps ----

// Steps' outputs are not checked by whoever passes them on.
Result<vision::Image> image_of(const Datum& d) {
  if (!d.is_tensor() || d.tensor.format().dtype() != DType::kU8 || d.tensor.shape().rank() != 3 ||
      d.tensor.shape()[2] != 3)
    return invalid_argument(cat("an image is UINT8 [height, width, 3], got ", d.to_string()), "image");
  const Shape& s = d.tensor.shape();
  if (s[0] > vision::kMaxSide || s[1] > vision::kMaxSide)
    return invalid_argument(
        cat("the image is ", s[1], " x ", s[0], " pixels; sides of 1 to ", vision::kMaxSide, " are read"),
        "image");
  OAR_ASSIGN(vision::Image image, vision::make_image(static_cast<int>(s[1]), static_cast<int>(s[0])));
  std::memcpy(image.rgb.data(), d.tensor.data(), image.rgb.size());
  return image;
}

// The pixels stay where they are.
Result<Datum> value_of(vision::Image image) {
  const auto kept = std::make_shared<const vision::Image>(std::move(image));
  OAR_ASSIGN(Tensor t, share_memory(kept->rgb.data(), kept->rgb.size(), {kept->height, kept->width, 3},
                                    DType::kU8, kept));
  return Datum(std::move(t));
}

Result<Tensor> floats_of(const Datum& d) {
  if (!d.is_tensor() || !dtype_is_float(d.tensor.format().dtype()))
    return invalid_argument(cat("floats are expected, got ", d.to_string()));
  return to_f32(d.tensor);
}

Result<Datum> floats(const Shape& shape, const std::vector<float>& values) {
  OAR_ASSIGN(Tensor t, Tensor::allocate(shape, Format::f32()));
  std::ranges::copy(values, t.mutable_values<float>().begin());
  return Datum(std::move(t));
}

Result<Datum> texts(const std::vector<std::string>& values) {
  OAR_ASSIGN(Tensor t, allocate_elements({static_cast<int64_t>(values.size())}, DType::kString,
                                         uint64_t{1} << 30, false));
  std::ranges::copy(values, mutable_elements<std::string>(t));
  return Datum(std::move(t));
}

IoSpec tensor(const char* name, DType dtype, std::vector<int64_t> dims) {
  IoSpec s;
  s.name = name;
  s.dtype = dtype;
  s.typed = s.ranked = true;
  for (const int64_t d : dims) s.dims.push_back({d, "", -1});
  return s;
}
IoSpec any_shape(const char* name, DType dtype) {
  IoSpec s = tensor(name, dtype, {});
  s.ranked = false;
  return s;
}
IoSpec list(IoSpec s) {
  s.kind = IoSpec::Kind::kSequence;
  return s;
}
IoSpec image(const char* name) { return tensor(name, DType::kU8, {-1, -1, 3}); }

// ---- a step ----

struct Step {
  std::string name;
  std::vector<IoSpec> inputs, outputs;
  std::function<Result<Values>(const Values& inputs)> run;
};

class StepRunner final : public TensorRunner {
 public:
  explicit StepRunner(std::shared_ptr<const Step> step) : step_(std::move(step)) {}
  std::unique_ptr<TensorRunner> another() const override { return std::make_unique<StepRunner>(step_); }
  const std::string& format() const override { return step_->name; }
  const std::vector<IoSpec>& inputs() const override { return step_->inputs; }
  const std::vector<IoSpec>& outputs() const override { return step_->outputs; }
  bool rows_are_independent() const override { return false; }
  Result<Values> run(Values inputs) const override { return step_->run(inputs); }

 private:
  std::shared_ptr<const Step> step_;
};

// The parameters of a step's config; what is left over is refused.
class Reading {
 public:
  Reading(std::string step, const Parameters& given) : step_(std::move(step)), given_(given) {}

  template <class T>
  T number(const char* name, T least, T most, T otherwise) {
    const std::string* text = find(name);
    if (!text) return otherwise;
    T value{};
    const auto r = std::from_chars(text->data(), text->data() + text->size(), value);
    if (r.ec == std::errc() && r.ptr == text->data() + text->size() && value >= least && value <= most)
      return value;
    wrong(name, cat("a number in [", least, ", ", most, "]"), *text);
    return otherwise;
  }
  std::string text(const char* name, const std::string& otherwise) {
    const std::string* given = find(name);
    return given ? *given : otherwise;
  }
  DType float_type() {
    const std::string* text = find("data_type");
    if (!text || *text == "TYPE_FP32") return DType::kF32;
    if (*text == "TYPE_FP16") return DType::kF16;
    if (*text == "TYPE_BF16") return DType::kBF16;
    wrong("data_type", "TYPE_FP32, TYPE_FP16 or TYPE_BF16", *text);
    return DType::kF32;
  }
  ImageInput size() {
    ImageInput in;
    in.height = number("height", 0, vision::kMaxSide, 0);
    in.width = number("width", 0, vision::kMaxSide, 0);
    return in;
  }
  Status finish() {
    for (const auto& [name, value] : given_) {
      if (std::ranges::find(known_, name) != known_.end()) continue;
      const std::string_view near = nearest_name(name, known_);
      wrong_ = invalid_argument(cat("config: ", step_, " has no parameter '", name, "'",
                                    near.empty() ? "" : cat("; did you mean '", near, "'?")),
                                "parameters");
    }
    return wrong_;
  }

 private:
  const std::string* find(const char* name) {
    known_.emplace_back(name);
    const auto it = given_.find(name);
    return it == given_.end() ? nullptr : &it->second;
  }
  void wrong(const char* name, const std::string& wanted, const std::string& got) {
    wrong_ = invalid_argument(
        cat("config: the parameter '", name, "' of ", step_, " must be ", wanted, ", got '", got, "'"),
        "parameters");
  }
  const std::string step_;
  const Parameters& given_;
  std::vector<std::string_view> known_;
  Status wrong_;
};

using Make = Result<Step> (*)(Reading& parameters, const std::string& folder);

// ---- the steps ----

Result<Step> decode(Reading&, const std::string&) {
  return Step{
      "", {tensor("encoded", DType::kString, {1})}, {image("image")}, [](const Values& in) -> Result<Values> {
        const std::string& bytes = elements<std::string>(in[0].tensor)[0];
        OAR_ASSIGN(vision::Image decoded, decode_image(bytes, "encoded"));
        OAR_ASSIGN(Datum out, value_of(std::move(decoded)));
        return Values{std::move(out)};
      }};
}

// Of an image to a network's input.
template <class Resize>
Step network_input(const char* from, DType dtype, const vision::Normalization& how, Resize resize) {
  return Step{"",
              {image(from)},
              {tensor("x", dtype, {-1, 3, -1, -1})},
              [dtype, how, resize](const Values& in) -> Result<Values> {
                OAR_ASSIGN(const vision::Image given, image_of(in[0]));
                OAR_ASSIGN(const NetworkImage small, resize(given));
                OAR_ASSIGN(Tensor x, image_tensor(small, how, dtype));
                return Values{Datum(std::move(x))};
              }};
}

Result<Step> detector_input(Reading& p, const std::string&) {
  const int side = p.number("side", 32, 8192, TextReaderOptions().side_limit);
  return network_input("image", p.float_type(), kDetectorPixels,
                       [in = p.size(), side](const vision::Image& i) { return detector_image(i, in, side); });
}

Result<Step> classifier_input(Reading& p, const std::string&) {
  return network_input("line", p.float_type(), kLinePixels,
                       [in = p.size()](const vision::Image& i) { return classifier_image(i, in); });
}

Result<Step> recognizer_input(Reading& p, const std::string&) {
  return network_input("line", p.float_type(), kLinePixels,
                       [in = p.size()](const vision::Image& i) { return recognizer_image(i, in); });
}

Result<Step> boxes(Reading& p, const std::string&) {
  vision::TextBoxOptions o;
  o.box_threshold = p.number("box_threshold", 0.0f, 1.0f, o.box_threshold);
  o.unclip = p.number("unclip", 0.0f, 10.0f, o.unclip);
  return Step{"",
              {any_shape("map", p.float_type()), image("image")},
              {tensor("boxes", DType::kF32, {-1, 4, 2}), tensor("box_scores", DType::kF32, {-1})},
              [o](const Values& in) -> Result<Values> {
                OAR_ASSIGN(const Tensor map, floats_of(in[0]));
                const Shape& size = in[1].tensor.shape();
                if (size[0] > vision::kMaxSide || size[1] > vision::kMaxSide || size.numel() == 0)
                  return image_of(in[1]).status();
                OAR_ASSIGN(const auto found,
                           boxes_of(map, static_cast<int>(size[1]), static_cast<int>(size[0]), o));
                std::vector<float> corners, scores;
                for (const vision::TextBox& box : found) {
                  for (const vision::Point& c : box.corners) corners.insert(corners.end(), {c.x, c.y});
                  scores.push_back(box.score);
                }
                const auto n = static_cast<int64_t>(found.size());
                OAR_ASSIGN(Datum quads, floats({n, 4, 2}, corners));
                OAR_ASSIGN(Datum of_boxes, floats({n}, scores));
                return Values{std::move(quads), std::move(of_boxes)};
              }};
}

Result<Step> crops(Reading&, const std::string&) {
  return Step{"",
              {image("image"), tensor("boxes", DType::kF32, {-1, 4, 2})},
              {list(image("lines"))},
              [](const Values& in) -> Result<Values> {
                OAR_ASSIGN(const vision::Image whole, image_of(in[0]));
                const std::span<const float> c = in[1].tensor.values<float>();
                Values lines;
                for (size_t at = 0; at < c.size(); at += 8) {
                  vision::Quad box;
                  for (size_t k = 0; k < 4; ++k) box[k] = {c[at + 2 * k], c[at + 2 * k + 1]};
                  OAR_ASSIGN(vision::Image line, vision::crop_quad(whole, box));
                  OAR_ASSIGN(Datum value, value_of(std::move(line)));
                  lines.push_back(std::move(value));
                }
                return Values{Datum::sequence(std::move(lines))};
              }};
}

Result<Step> turn(Reading& p, const std::string&) {
  return Step{"",
              {image("line"), any_shape("probabilities", p.float_type())},
              {image("upright")},
              [](const Values& in) -> Result<Values> {
                OAR_ASSIGN(const Tensor probabilities, floats_of(in[1]));
                OAR_ASSIGN(const bool turned, is_upside_down(probabilities));
                if (!turned) return Values{in[0]};
                OAR_ASSIGN(const vision::Image line, image_of(in[0]));
                OAR_ASSIGN(Datum out, value_of(vision::rotate_180(line)));
                return Values{std::move(out)};
              }};
}

Result<Step> text(Reading& p, const std::string& folder) {
  const std::string file = p.text("dictionary", "dict.txt");
  if (!is_model_name(file))
    return invalid_argument(cat("config: the parameter 'dictionary' of ocr_text must be a file beside its "
                                "config.pbtxt, got '",
                                file, "'"),
                            "parameters");
  OAR_ASSIGN(const std::string characters,
             read_small_file((std::filesystem::path(folder) / file).string(), uint64_t{16} << 20));
  return Step{"",
              {any_shape("probabilities", p.float_type())},
              {tensor("text", DType::kString, {1}), tensor("score", DType::kF32, {1})},
              [lines = vision::read_dictionary(characters)](const Values& in) -> Result<Values> {
                OAR_ASSIGN(const Tensor probabilities, floats_of(in[0]));
                OAR_ASSIGN(const vision::ReadText read, text_of(probabilities, lines));
                OAR_ASSIGN(Datum words, texts({read.text}));
                OAR_ASSIGN(Datum score, floats({1}, {read.confidence}));
                return Values{std::move(words), std::move(score)};
              }};
}

Result<Step> lines(Reading& p, const std::string&) {
  const float least = p.number("min_confidence", 0.0f, 1.0f, TextReaderOptions().min_confidence);
  const IoSpec quads = tensor("boxes", DType::kF32, {-1, 4, 2}),
               scores = tensor("box_scores", DType::kF32, {-1});
  return Step{
      "",
      {quads, scores, list(tensor("text", DType::kString, {1})), list(tensor("score", DType::kF32, {1}))},
      {quads, scores, tensor("texts", DType::kString, {-1}), tensor("scores", DType::kF32, {-1})},
      [least](const Values& in) -> Result<Values> {
        const auto n = static_cast<size_t>(in[0].tensor.shape()[0]);
        if (static_cast<size_t>(in[1].tensor.numel()) != n || in[2].items->size() != n ||
            in[3].items->size() != n)
          return invalid_argument(cat("there are ", n, " boxes, ", in[1].tensor.numel(), " box_scores, ",
                                      in[2].items->size(), " texts and ", in[3].items->size(),
                                      " scores; they belong together one by one"));
        for (size_t k = 0; k < 2 * n; ++k) {
          const Datum& item = (*in[2 + k % 2].items)[k / 2];
          const DType wanted = k % 2 == 0 ? DType::kString : DType::kF32;
          if (!item.is_tensor() || item.tensor.format().dtype() != wanted || item.tensor.numel() != 1)
            return invalid_argument(cat(k % 2 == 0 ? "a text" : "a score", " is one ",
                                        k % 2 == 0 ? "BYTES" : "FP32", ", got ", item.to_string()));
        }
        const std::span<const float> corners = in[0].tensor.values<float>(),
                                     found = in[1].tensor.values<float>();
        std::vector<float> kept, kept_found, confidence;
        std::vector<std::string> words;
        for (size_t k = 0; k < n; ++k) {
          const std::string& word = elements<std::string>((*in[2].items)[k].tensor)[0];
          const float score = (*in[3].items)[k].tensor.values<float>()[0];
          if (word.empty() || score < least) continue;
          kept.insert(kept.end(), corners.begin() + static_cast<std::ptrdiff_t>(8 * k),
                      corners.begin() + static_cast<std::ptrdiff_t>(8 * k + 8));
          kept_found.push_back(found[k]);
          words.push_back(word);
          confidence.push_back(score);
        }
        const auto rows = static_cast<int64_t>(words.size());
        OAR_ASSIGN(Datum a, floats({rows, 4, 2}, kept));
        OAR_ASSIGN(Datum b, floats({rows}, kept_found));
        OAR_ASSIGN(Datum c, texts(words));
        OAR_ASSIGN(Datum d, floats({rows}, confidence));
        return Values{std::move(a), std::move(b), std::move(c), std::move(d)};
      }};
}

constexpr std::pair<const char*, Make> kSteps[] = {{"ocr_decode", decode},
                                                   {"ocr_detector_input", detector_input},
                                                   {"ocr_boxes", boxes},
                                                   {"ocr_crops", crops},
                                                   {"ocr_classifier_input", classifier_input},
                                                   {"ocr_turn", turn},
                                                   {"ocr_recognizer_input", recognizer_input},
                                                   {"ocr_text", text},
                                                   {"ocr_lines", lines}};

}  // namespace

std::map<std::string, RepositoryOptions::MakeStep> ocr_steps() {
  std::map<std::string, RepositoryOptions::MakeStep> out;
  for (const auto& [name, make] : kSteps) {
    out[name] = [name = std::string(name), make = make](
                    const Parameters& parameters,
                    const std::string& folder) -> Result<std::unique_ptr<TensorRunner>> {
      Reading reading(name, parameters);
      OAR_ASSIGN(Step step, make(reading, folder));
      OAR_RETURN_IF_ERROR(reading.finish());
      step.name = name;
      return std::unique_ptr<TensorRunner>(
          std::make_unique<StepRunner>(std::make_shared<const Step>(std::move(step))));
    };
  }
  return out;
}

}  // namespace oar::cli
