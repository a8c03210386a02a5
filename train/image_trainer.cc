#include "train/image_trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/base/format.h"
#include "engine/export/export.h"
#include "engine/runtime/content_hash.h"

namespace oar::train {
namespace {

json::array numbers(const std::vector<float>& values) {
  json::array out;
  for (const float v : values) out.emplace_back(v);
  return out;
}

}  // namespace

Result<std::unique_ptr<ImageTrainer>> ImageTrainer::create(const TrainerOptions& options, const Logger& log) {
  auto out = std::unique_ptr<ImageTrainer>(new ImageTrainer());
  out->options_ = options;
  if (out->options_.rate == 0) out->options_.rate = 1e-3;
  ThreadPoolOptions pool;
  pool.threads = options.threads_each();
  OAR_ASSIGN(out->backend_, make_backend("", std::make_shared<ThreadPool>(pool), best_isa(), log));
  OAR_RETURN_IF_ERROR(out->load());
  OAR_RETURN_IF_ERROR(out->plan());
  return out;
}

Status ImageTrainer::load() {
  ImageOptions& o = options_.images;
  if (!options_.graph.full)
    return unimplemented("--lora: a network over images is trained whole; give --full");
  OAR_ASSIGN(model_, import_model(options_.model));
  ContentHash hash;
  for (size_t v = 0; v < model_.graph->num_values(); ++v)
    if (const Value& value = model_.graph->value(static_cast<ValueId>(v)); value.kind == ValueKind::kConstant)
      hash.add(value.constant);
  model_hash_ = hash.hex();
  const std::string& name = options_.model;
  if (model_.inputs.size() != 1 || model_.outputs.size() != 1)
    return unimplemented(cat(name, " has ", model_.inputs.size(), " inputs and ", model_.outputs.size(),
                             " outputs; expected one of images and one of scores"));
  const IoSpec& in = model_.inputs[0];
  const bool images = in.ranked && in.dims.size() == 4 && (in.dims[1].value == 1 || in.dims[1].value == 3);
  if (!images || !in.typed || in.dtype != DType::kF32)
    return unimplemented(
        cat(name, " takes ", in.to_string(), "; expected f32[batch, 1 or 3, height, width]"));
  // Sides.
  form_.channels = static_cast<int>(in.dims[1].value);
  const auto side = [&](const IoDim& d) -> int64_t {
    if (d.value >= 0) return d.value;
    return o.size > 0 ? o.size : d.usual;
  };
  const int64_t height = side(in.dims[2]), width = side(in.dims[3]);
  if (height < 1 || width < 1 || height > vision::kMaxSide || width > vision::kMaxSide)
    return invalid_argument(cat(name, " takes ", in.to_string(), ", whose sides are open; give --size"));
  if (o.size > 0 && (height != o.size || width != o.size))
    return invalid_argument(cat("--size ", o.size, ": the network's images are ", width, " x ", height));
  form_.height = static_cast<int>(height), form_.width = static_cast<int>(width);
  form_.bgr = o.bgr, form_.stretch = o.stretch;
  const int64_t fixed = in.dims[0].value;
  if (o.batch == 0) o.batch = fixed > 0 ? fixed : 32;
  if (fixed > 0 && o.batch != fixed)
    return invalid_argument(
        cat("--batch ", o.batch, ": the network takes ", fixed, " at a time; use --accumulate"));
  // Values.
  const auto c = static_cast<size_t>(form_.channels);
  form_.mean = !o.mean.empty() ? o.mean
               : c == 3        ? std::vector<float>{0.485f, 0.456f, 0.406f}
                               : std::vector<float>{0};
  form_.std = !o.std.empty() ? o.std
              : c == 3       ? std::vector<float>{0.229f, 0.224f, 0.225f}
                             : std::vector<float>{1};
  if (form_.mean.size() != c || form_.std.size() != c)
    return invalid_argument(cat("--mean and --std need a number for each of the network's ", c, " channels"));
  if (form_.bgr && c == 1) return invalid_argument("--bgr: the network's images have one channel");
  // Images.
  if (options_.data.empty()) {
    evaluates_ = options_.hold_out > 0 || !options_.held_out.empty();
    return ok_status();
  }
  OAR_ASSIGN(data_, ImageSet::open(options_.data, "--data", o));
  if (!options_.held_out.empty()) {
    OAR_ASSIGN(held_out_, ImageSet::open(options_.held_out, "--eval", o));
    if (held_out_.classes() != data_.classes())
      return invalid_argument(cat("--eval ", options_.held_out[0], " has other classes than --data"));
  } else if (options_.hold_out > 0) {
    OAR_ASSIGN(const Split split, draw_held_out(options_.hold_out, data_.size(), options_.seed, unit()));
    held_out_ = data_.subset(split.held_out);
    data_ = data_.subset(split.rest);
  }
  data_hash_ = data_.hash();
  evaluates_ = held_out_.size() > 0;
  if (evaluates_) held_out_hash_ = held_out_.hash();
  if (options_.schedule.steps == 0) {
    const double each = static_cast<double>(o.batch * options_.accumulate * options_.ranks());
    options_.schedule.steps = std::max<int64_t>(
        1, static_cast<int64_t>(std::ceil(options_.epochs * static_cast<double>(data_.size()) / each)));
  }
  return options_.schedule.check();
}

Status ImageTrainer::size_up() {
  const Shape shape{options_.images.batch, form_.channels, form_.height, form_.width};
  OAR_ASSIGN(graphs_, build_image_graphs(model_, shape, options_.graph.freeze, options_.update_in_step()));
  if (data_.classes().size() > static_cast<size_t>(graphs_.classes))
    return invalid_argument(cat("--data has ", data_.classes().size(), " classes, the network scores ",
                                graphs_.classes, "; give it as many outputs"));
  for (const ImageGraphs::Average& a : graphs_.averages) {
    const Tensor from = graphs_.network.value(a.constant).constant;
    OAR_ASSIGN(Tensor value, Tensor::zeros(from.shape(), Format::f32()));
    std::memcpy(value.mutable_data(), from.data(), from.bytes());
    statistics_.push_back({a.name, a.momentum, std::move(value)});
  }
  OAR_ASSIGN(Tensor pixels, Tensor::zeros(shape, Format::f32()));
  OAR_ASSIGN(Datum targets, datum_of(std::vector<int32_t>(static_cast<size_t>(shape[0]))));
  OAR_ASSIGN(Datum weight, datum_of(0));
  const std::vector<Datum> first{Datum(std::move(pixels)), std::move(targets), std::move(weight)};
  OAR_RETURN_IF_ERROR(
      prepare(graphs_.step, evaluates_ ? graphs_.loss : nullptr, graphs_.parameters, first, first));
  return ok_status();
}

// The largest half, quarter, ... of a micro-batch that fits, with as many more of them.
std::string ImageTrainer::what_fits() const {
  const int64_t batch = options_.images.batch;
  for (int64_t part = 2; part <= batch && model_.inputs[0].dims[0].value < 0; part *= 2) {
    ImageTrainer other;
    other.options_ = options_, other.options_.images.batch = batch / part;
    other.model_ = model_, other.form_ = form_;
    other.backend_ = backend_, other.evaluates_ = evaluates_;
    if (!other.size_up().ok() || other.memory_.to_get() > free_memory()) continue;
    return cat("--batch ", batch / part, " --accumulate ", options_.accumulate * part, " would fit");
  }
  return "no micro-batch that the network takes would fit; a smaller network takes less";
}

Status ImageTrainer::plan() {
  OAR_RETURN_IF_ERROR(size_up());
  if (data_.size() == 0) return ok_status();
  OAR_RETURN_IF_ERROR(check_memory([&] { return what_fits(); }));
  std::vector<Tensor> values;
  for (const ValueId v : graphs_.constants) {
    const Tensor& from = graphs_.network.value(v).constant;
    OAR_ASSIGN(Tensor value, Tensor::zeros(from.shape(), Format::f32()));
    if (from.bytes() > 0) std::memcpy(value.mutable_data(), from.data(), from.bytes());
    values.push_back(std::move(value));
  }
  return begin(std::move(values));
}

std::vector<std::string> ImageTrainer::notes() const {
  std::vector<std::string> out;
  if (!data_.classes().empty()) out.push_back(class_list(data_.classes()));
  if (static_cast<size_t>(graphs_.classes) > data_.classes().size())
    out.push_back(cat("the network scores ", graphs_.classes, " classes; ",
                      graphs_.classes - static_cast<int64_t>(data_.classes().size()), " have no images"));
  if (!statistics_.empty())
    out.push_back(cat(statistics_.size() / 2, " batch norms take their numbers from each micro-batch of ",
                      options_.images.batch));
  std::vector<std::string> doubles;
  for (const Node& n : graphs_.step->nodes())
    for (const ValueId v : n.outputs)
      if (!n.op->effect && v != kNoValue && graphs_.step->value(v).type.known &&
          graphs_.step->value(v).type.format == Format::of(DType::kF64))
        doubles.push_back(n.name.empty() ? n.op->name : n.name);
  if (!doubles.empty())
    out.push_back(
        cat(doubles.size(), " results of a step are f64, by loops without kernels: ", name_list(doubles)));
  return out;
}

std::string ImageTrainer::size() const {
  return cat(data_.size(), " images", has_held_out() ? cat(", ", held_out_.size(), " held out") : "", ", ",
             steps(), " steps of ", options_.accumulate * options_.ranks(), " x ", options_.images.batch,
             " images of ", form_.width, " x ", form_.height);
}

const std::vector<uint32_t>& ImageTrainer::order(int64_t epoch) {
  for (const auto& [known, list] : orders_)
    if (known == epoch) return list;
  if (orders_.size() >= 2) orders_.erase(orders_.begin());
  return orders_.emplace_back(epoch, order_of(options_.seed, epoch, data_.size())).second;
}

std::vector<size_t> ImageTrainer::images(Position at) {
  std::vector<size_t> out;
  const auto n = static_cast<int64_t>(data_.size());
  for (int64_t k = at.batch * options_.images.batch; k < (at.batch + 1) * options_.images.batch; ++k)
    out.push_back(order(k / n)[static_cast<size_t>(k % n)]);
  return out;
}

Result<std::vector<Datum>> ImageTrainer::inputs(const ImageSet& set, const std::vector<size_t>& images,
                                                float weight) {
  const int64_t batch = options_.images.batch, each = form_.numel();
  OAR_ASSIGN(Tensor pixels, Tensor::zeros({batch, form_.channels, form_.height, form_.width}, Format::f32()));
  float* const to = pixels.mutable_values<float>().data();
  std::vector<Status> read(images.size());
  backend_->host_pool().parallel_for(static_cast<int64_t>(images.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k)
      read[static_cast<size_t>(k)] = set.read(images[static_cast<size_t>(k)], form_, to + k * each);
  });
  std::vector<int32_t> targets(static_cast<size_t>(batch), -1);
  for (size_t k = 0; k < images.size(); ++k) {
    OAR_RETURN_IF_ERROR(read[k]);
    targets[k] = set.label(images[k]);
  }
  OAR_ASSIGN(Datum labels, datum_of(targets));
  OAR_ASSIGN(Datum scale, datum_of(weight));
  return std::vector<Datum>{Datum(std::move(pixels)), std::move(labels), std::move(scale)};
}

Result<std::vector<Datum>> ImageTrainer::inputs(Position at, float weight) {
  return inputs(data_, images(at), weight);
}

Result<HeldOutReport> ImageTrainer::evaluate() {
  if (!has_held_out()) return Status(StatusCode::kFailedPrecondition, "there is no held-out data");
  HeldOutReport out;
  int64_t hits = 0;
  const auto batch = static_cast<size_t>(options_.images.batch), n = held_out_.size();
  for (size_t first = 0; first < n; first += batch) {
    std::vector<size_t> images(std::min(batch, n - first));
    std::iota(images.begin(), images.end(), first);
    OAR_ASSIGN(std::vector<Datum> given, inputs(held_out_, images, 1));
    OAR_ASSIGN(const auto results, loss_runner_->run(given));
    if (!std::isfinite(results[0].tensor.values<float>()[0]))
      return not_finite(*loss_runner_, std::move(given), done(), held_out_.names(images), true);
    out.loss += results[0].tensor.values<float>()[0];
    const auto scores = results[1].tensor.values<float>();
    const auto classes = static_cast<size_t>(graphs_.classes);
    for (size_t k = 0; k < images.size(); ++k) {
      const float* const row = scores.data() + k * classes;
      hits += std::max_element(row, row + classes) - row == held_out_.label(images[k]) ? 1 : 0;
    }
  }
  out.loss /= static_cast<double>(n);
  out.accuracy = static_cast<double>(hits) / static_cast<double>(n);
  return out;
}

json::object ImageTrainer::described() const {
  json::array freeze;
  for (const std::string& f : options_.graph.freeze) freeze.emplace_back(f);
  return {{"model", options_.model},
          {"model's tensors", model_hash_},
          {"data", data_hash_},
          {"eval", held_out_hash_},
          {"batch", options_.images.batch},
          {"image", json::array{form_.channels, form_.height, form_.width}},
          {"mean", numbers(form_.mean)},
          {"std", numbers(form_.std)},
          {"bgr", form_.bgr},
          {"stretch", form_.stretch},
          {"freeze", freeze}};
}

Status ImageTrainer::write_result(const std::string& path) const {
  ImportedModel trained = model_;
  Graph network = graphs_.network;
  for (size_t k = 0; k < graphs_.constants.size(); ++k)
    network.value(graphs_.constants[k]).constant = final_values()[k];
  for (size_t k = 0; k < graphs_.averages.size(); ++k)
    network.value(graphs_.averages[k].constant).constant = statistics_[k].value;
  trained.graph = std::make_shared<Graph>(std::move(network));
  json::array classes;
  for (const std::string& c : data_.classes()) classes.emplace_back(c);
  for (const auto& [key, value] : {std::pair<std::string, json::value>("classes", std::move(classes)),
                                   {"mean", numbers(form_.mean)},
                                   {"std", numbers(form_.std)}}) {
    std::erase_if(trained.metadata, [&, &name = key](const auto& m) { return m.first == name; });
    trained.metadata.emplace_back(key, json::serialize(value));
  }
  return export_onnx(trained, path);
}

}  // namespace oar::train
