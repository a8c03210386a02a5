// Quantized checkpoints in the Hugging Face layout: config.json's quantization_config names a method, and
// each quantized module stores its weight in parts ("...q_proj.qweight", ".scales", ".qzeros"). What comes
// out is the one tensor "...q_proj.weight" in one of our storage formats, decoding to the method's own
// numbers bit for bit; so no model file, graph or kernel knows that methods exist.
//
// A weight is repacked once, from the mapped file into memory of its own, several at a time: beside the
// result, a worker has one tensor's scales and some rows in memory. A weight that no format of ours holds
// exactly is kept decoded, in the type of its scales, and a notice says so. That is activation order, groups
// that are no multiple of 32, scales outside f16. Activation scales are dropped: activations are quantized by
// what computes, or not at all.
//
// Stacked experts in mxfp4 (gpt-oss) are checked and stay in their parts.
//
// To add a method: a file quant_<method>.cc with a QuantReader, and its line in kMethods of
// quantization_config.cc.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/loader/safetensors.h"

namespace oar {

// One module of the checkpoint ("model.layers.0.mlp.up_proj") and its tensors.
class QuantModule {
 public:
  QuantModule(std::string_view name, const TensorMap& tensors) : name_(name), tensors_(tensors) {}

  const std::string& name() const { return name_; }
  // Null when there is no such part.
  const Tensor* find(std::string_view part) const;
  // DATA_LOSS naming the tensor when there is no such part.
  Result<const Tensor*> require(std::string_view part) const;
  // The same, and a matrix of 32-bit words, which packed codes come in.
  Result<const Tensor*> require_words(std::string_view part) const;
  // "tensor 'model.layers.0.mlp.up_proj.scales' is f16 [4, 8]", the beginning of a message about it.
  std::string describe(std::string_view part) const;

 private:
  std::string name_;
  const TensorMap& tensors_;
};

class QuantReader {
 public:
  virtual ~QuantReader() = default;
  // The parts, besides weight and bias, a quantized module may have; all are gone from the checkpoint
  // afterwards.
  virtual std::span<const std::string_view> parts() const = 0;
  // The weight (N, K) of a module that has at least one of parts(). A sentence appended to `notice` is shown
  // once, with the number of modules it was said of. DATA_LOSS for tensors that contradict each other or the
  // config, UNIMPLEMENTED for what we do not read.
  virtual Result<Tensor> weight(const QuantModule& module, std::string* notice) const = 0;
};

// `config` is the quantization_config; messages call it that.
Result<std::unique_ptr<QuantReader>> open_gptq(const json::object& config);
Result<std::unique_ptr<QuantReader>> open_awq(const json::object& config);
Result<std::unique_ptr<QuantReader>> open_fp8(const json::object& config);
Result<std::unique_ptr<QuantReader>> open_compressed_tensors(const json::object& config);

// Applies config.json's quantization_config, if there is one, to the tensors. Sentences for the user are
// appended to `notices`. INVALID_ARGUMENT and UNIMPLEMENTED speak of the config, DATA_LOSS of tensors.
Status apply_quantization_config(const json::object& config, TensorMap& tensors,
                                 std::vector<std::string>* notices);

// Keys of a quantization_config, with messages: absent or null gives `fallback`; another type is an error.
Result<int64_t> quant_int(const json::object& config, std::string_view key, int64_t fallback);
Result<bool> quant_bool(const json::object& config, std::string_view key, bool fallback);
Result<std::string> quant_string(const json::object& config, std::string_view key, std::string_view fallback);

}  // namespace oar
