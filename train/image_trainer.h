// ImageTrainer: a network from an ONNX file, images with classes and an optimizer: the Learner (learner.h) of
// images. A micro-batch is `batch` images; epochs follow each other without a gap, each in an order of its
// own. Out comes the same network as an ONNX file, for inference. Classes beyond the network's outputs are
// refused; so are networks of several inputs or outputs.
#pragma once

#include "engine/base/log.h"
#include "train/image_graph.h"
#include "train/trainer.h"

namespace oar::train {

class ImageTrainer : public Learner {
 public:
  // `rate` 0: 1e-3. Options of texts (samples, weights, lora) are not read: who takes them from users refuses
  // them. RESOURCE_EXHAUSTED before anything large is allocated when memory is short: says what would fit.
  static Result<std::unique_ptr<ImageTrainer>> create(const TrainerOptions& options, const Logger& log);

  const TrainerOptions& options() const override { return options_; }
  bool has_held_out() const override { return evaluates_; }
  const char* unit() const override { return "images"; }
  std::vector<std::string> notes() const override;
  std::string size() const override;
  Result<HeldOutReport> evaluate() override;
  const ImageForm& form() const { return form_; }
  const ImageSet& data() const { return data_; }
  const ImageSet& held_out() const { return held_out_; }
  const std::vector<Statistic>& statistics() const { return statistics_; }
  // `path` ends in .onnx. The file's metadata say classes, mean and std.
  Status write_result(const std::string& path) const override;

 private:
  ImageTrainer() = default;
  Status load();
  Status size_up();  // graphs, and what they take
  Status plan();
  std::string what_fits() const;
  Result<std::vector<Datum>> inputs(const ImageSet& set, const std::vector<size_t>& images, float weight);
  int64_t batches(int64_t) override { return int64_t{1} << 62; }  // in one endless epoch
  std::vector<size_t> images(Position at);
  const std::vector<uint32_t>& order(int64_t epoch);
  Counts counts(Position) override { return {options_.images.batch, options_.images.batch}; }
  Result<std::vector<Datum>> inputs(Position at, float weight) override;
  std::string samples(Position at) override { return data_.names(images(at)); }
  json::object described() const override;

  TrainerOptions options_;
  ImportedModel model_;
  ImageGraphs graphs_;
  ImageForm form_;
  ImageSet data_, held_out_;
  std::string data_hash_, held_out_hash_, model_hash_;
  bool evaluates_ = false;  // there is held-out data
  // Of the epochs that a batch may reach into.
  std::vector<std::pair<int64_t, std::vector<uint32_t>>> orders_;
};

}  // namespace oar::train
