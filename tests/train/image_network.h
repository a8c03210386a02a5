// A ResNet of three stages with one block each, as an ONNX file, and images for it: the same as
// tests/golden/generate_image_training.py makes of it with PyTorch.
#pragma once

#include <cmath>

#include "engine/base/json.h"
#include "engine/export/export.h"
#include "engine/tensor/mapped_file.h"
#include "tests/train/training_fixture.h"
#include "train/image_trainer.h"

namespace oar_test {

struct ImageRun {
  oar::json::object golden;
  std::string folder;
  oar::train::TrainerOptions options;

  double number(const char* key) const { return golden.at(key).to_number<double>(); }
  int64_t whole(const char* key) const { return golden.at(key).as_int64(); }

  // `ending`: what stands behind the scores: "", "Softmax".
  explicit ImageRun(const std::string& name, const std::string& ending = {}) {
    using namespace oar;
    const std::string path = source_path("tests/golden/training/images/resnet8.json");
    golden = parse_json(read_small_file(path, 1 << 20).value(), path).value().as_object();
    folder = temp_dir() + "/images-" + name;
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    const int64_t images = whole("images"), classes = whole("classes"), side = whole("side");
    for (int64_t k = 0; k < images; ++k) {
      const std::string file = cat(folder, "/data/c", k % classes, k < 10 ? "/0" : "/", k, ".png");
      std::filesystem::create_directories(std::filesystem::path(file).parent_path());
      std::ofstream(file) << "decoded by name";
    }
    options.model = folder + "/net.onnx";
    write_network(options.model, ending == "Softmax");
    options.data = {folder + "/data"};
    options.graph.full = true;
    options.images.batch = images;
    options.images.read = [side, data = folder + "/data/"](const std::string& path) -> Result<vision::Image> {
      OAR_ASSIGN(vision::Image image, vision::make_image(static_cast<int>(side), static_cast<int>(side)));
      // (v + 1) 128 of the numbers that the name gives: the top byte of each.
      const int64_t dims[] = {side, side, 3};
      const auto values = tiny_weights(path.substr(data.size()), dims, 0);
      for (size_t k = 0; k < values.size(); ++k)
        image.rgb[k] = static_cast<uint8_t>(std::floor((values[k] + 1) * 128));
      return image;
    };
    options.rate = number("rate");
    options.optimizer.decay = number("decay");
    options.clip = number("clip");
    options.schedule = {train::Decay::kConstant, 0, 300, 0};
    options.threads = 1;
  }

  std::unique_ptr<oar::train::ImageTrainer> trainer() const {
    auto t = oar::train::ImageTrainer::create(options, {});
    INFO((t.ok() ? std::string() : t.status().message()));
    REQUIRE(t.ok());
    return std::move(*t);
  }

  static oar::IoSpec io(const char* name, std::vector<oar::IoDim> dims) {
    oar::IoSpec s;
    s.name = name, s.typed = s.ranked = true, s.dims = std::move(dims);
    return s;
  }

  void write_network(const std::string& path, bool softmax) const {
    using namespace oar;
    using Ints = std::vector<int64_t>;
    const auto seed = static_cast<uint64_t>(whole("seed"));
    const int64_t side = whole("side");
    ImportedModel model;
    model.graph = std::make_shared<Graph>();
    model.inputs.push_back(io("image", {{-1, "n"}, {3, ""}, {side, ""}, {side, ""}}));
    model.outputs.push_back(io("scores", {{-1, "n"}, {whole("classes"), ""}}));
    const Val image{add_graph_input(*model.graph, model.inputs[0])};
    OpWriter w(*model.graph);
    const auto tensor = [&](const std::string& name, Ints dims) {
      std::vector<float> v = tiny_weights(name, dims, seed);
      if (name.ends_with("running_var"))
        for (float& x : v) x = std::abs(x) + 0.5f;
      return w.constant(f32(Shape(dims), v), name);
    };
    const auto conv = [&](Val x, const std::string& name, int64_t from, int64_t to, int64_t stride) {
      return w.op("conv", {x, tensor(name + ".weight", {to, from, 3, 3})},
                  {{"pads", Ints{1, 1, 1, 1}}, {"strides", Ints{stride, stride}}});
    };
    const auto norm = [&](Val x, const std::string& name, int64_t n) {
      std::vector<Val> in{x};
      for (const char* part : {".weight", ".bias", ".running_mean", ".running_var"})
        in.push_back(tensor(name + part, {n}));
      return w.op("batch_norm", std::move(in), {{"epsilon", 1e-5}, {"momentum", 0.9}});
    };
    int64_t width = golden.at("widths").as_array()[0].as_int64();
    Val x = w.op("relu", {norm(conv(image, "conv1", 3, width, 1), "bn1", width)});
    for (int stage = 1; stage <= 3; ++stage) {
      const std::string name = cat("layer", stage, ".0");
      const int64_t to = golden.at("widths").as_array()[static_cast<size_t>(stage - 1)].as_int64();
      Val y = w.op("relu", {norm(conv(x, name + ".conv1", width, to, stage > 1 ? 2 : 1), name + ".bn1", to)});
      y = norm(conv(y, name + ".conv2", to, to, 1), name + ".bn2", to);
      if (stage > 1) {
        x = w.op("slice", {x, w.ints({0, 0}), w.ints({1 << 20, 1 << 20}), w.ints({2, 3}), w.ints({2, 2})});
        const int64_t more = (to - width) / 2;
        x = w.op("pad", {x, w.ints({0, more, 0, 0, 0, more, 0, 0}), {}, {}});
      }
      x = w.op("relu", {w.op("add", {y, x})});
      width = to;
    }
    x = w.op("reshape", {w.op("global_average_pool", {x}), w.ints({0, -1})});
    x = w.op("linear",
             {x,
              {},
              tensor("linear.weight", {whole("classes"), width}),
              tensor("linear.bias", {whole("classes")})},
             {{"matrix", int64_t{1}}});
    if (softmax) x = w.op("softmax", {x}, {{"axis", int64_t{-1}}});
    model.graph->add_output("scores", x.id);
    REQUIRE(w.status().ok());
    const Status written = export_onnx(model, path);
    INFO(written.message());
    REQUIRE(written.ok());
  }
};

}  // namespace oar_test
