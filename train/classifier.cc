#include "train/classifier.h"

#include <cmath>
#include <set>
#include <utility>

#include "engine/base/format.h"
#include "engine/base/random.h"

namespace oar::train {
namespace {

Result<Tensor> drawn(const Shape& shape, double deviation, uint64_t seed) {
  OAR_ASSIGN(Tensor out, Tensor::zeros(shape, Format::f32()));
  uint64_t k = 0;
  for (float& v : out.mutable_values<float>()) {  // Box and Muller's way
    const double radius = std::sqrt(-2 * std::log(1 - uniform(seed, 2 * k)));
    v = static_cast<float>(deviation * radius * std::cos(2 * M_PI * uniform(seed, 2 * k + 1)));
    ++k;
  }
  return out;
}

Result<Tensor> filled(const Shape& shape, float value) {
  OAR_ASSIGN(Tensor out, Tensor::zeros(shape, Format::f32()));
  for (float& v : out.mutable_values<float>()) v = value;
  return out;
}

const Tensor* find(const Checkpoint& c, const std::string& name) {
  const auto it = c.tensors.find(name);
  return it == c.tensors.end() ? nullptr : &it->second;
}

}  // namespace

Result<std::vector<std::string>> classes_of(const Checkpoint& checkpoint, const EncoderConfig& config,
                                            EncoderHead head) {
  std::vector<std::string> out;
  if (named_head(checkpoint.config) != head) return out;
  const EncoderHeadTensors names = head_tensors(checkpoint, config, head);
  const Tensor *const w = find(checkpoint, names.last + ".weight"), *const b = find(checkpoint,
                                                                                    names.last + ".bias");
  if (w == nullptr || b == nullptr || w->shape().rank() != 2) return out;
  for (const auto& [name, shape] : names.before) {
    const Tensor* const t = find(checkpoint, name);
    if (t == nullptr || !(t->shape() == shape)) return out;
  }
  const json::value* const type = checkpoint.config.if_contains("problem_type");
  if (type != nullptr && !type->is_null() && *type != "single_label_classification")
    return unimplemented(cat("config.json: 'problem_type' is ", json::serialize(*type),
                             "; only single_label_classification is trained: name classes with --labels, and "
                             "the model gets a new head"));
  const int64_t n = w->shape()[0];
  if (n < 2)
    return unimplemented(
        "the model's head gives one score; name classes with --labels, and it gets a new head");
  const json::value* const map = checkpoint.config.if_contains("id2label");
  for (int64_t k = 0; k < n; ++k) {
    const json::value* const name =
        map != nullptr && map->is_object() ? map->get_object().if_contains(cat(k)) : nullptr;
    out.push_back(name != nullptr && name->is_string() ? std::string(name->get_string()) : cat("LABEL_", k));
  }
  if (std::set<std::string>(out.begin(), out.end()).size() != out.size())
    return invalid_argument("config.json: 'id2label' has a name twice; name the classes with --labels");
  return out;
}

Status give_head(Checkpoint& checkpoint, const EncoderConfig& config, EncoderHead head,
                 const std::vector<std::string>& classes, uint64_t seed) {
  const EncoderPrefix prefix = encoder_prefix(checkpoint, config);
  const TensorMap old = std::exchange(checkpoint.tensors, {});
  for (const auto& [name, t] : old)
    if (!prefix.present || name.starts_with(prefix.name))
      checkpoint.tensors[(prefix.present ? "" : prefix.name) + name] = t;
  // A pooler, which labels of tokens do not read.
  if (head == EncoderHead::kTokens)
    for (const auto& [name, shape] : head_tensors(checkpoint, config, EncoderHead::kSequence).before)
      checkpoint.tensors.erase(name);
  const EncoderHeadTensors names = head_tensors(checkpoint, config, head);
  const json::value* const range = checkpoint.config.if_contains("initializer_range");
  const double deviation = range != nullptr && range->is_number() ? range->to_number<double>() : 0.02;
  if (!(deviation > 0 && deviation < 10))
    return invalid_argument("config.json: 'initializer_range' is not between 0 and 10");
  const auto n = static_cast<int64_t>(classes.size());
  uint64_t drawn_before = 0;
  const auto give = [&](const std::string& name, const Shape& shape, bool keep) -> Status {
    ++drawn_before;
    Tensor& to = checkpoint.tensors[name];
    if (const auto it = old.find(name); it != old.end()) to = it->second;
    if (keep && to.defined() && to.shape() == shape) return ok_status();
    if (shape.rank() == 2) {
      OAR_ASSIGN(to, drawn(shape, deviation, seed + drawn_before * 0x9E3779B97F4A7C15u));
    } else {
      OAR_ASSIGN(to, filled(shape, name.ends_with(".weight") ? 1 : 0));
    }
    return ok_status();
  };
  for (const auto& [name, shape] : names.before) OAR_RETURN_IF_ERROR(give(name, shape, true));
  OAR_RETURN_IF_ERROR(give(names.last + ".weight", {n, config.width}, false));
  OAR_RETURN_IF_ERROR(give(names.last + ".bias", {n}, false));
  json::object by_id, by_label;
  for (size_t k = 0; k < classes.size(); ++k) {
    by_id[cat(k)] = classes[k];
    by_label[classes[k]] = k;
  }
  json::object& c = checkpoint.config;
  c["architectures"] = json::array{json::value(names.model_class)};
  c["id2label"] = std::move(by_id), c["label2id"] = std::move(by_label), c["num_labels"] = n;
  if (head == EncoderHead::kSequence) c["problem_type"] = "single_label_classification";
  else c.erase("problem_type");
  return ok_status();
}

}  // namespace oar::train
