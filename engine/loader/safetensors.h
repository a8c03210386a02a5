// safetensors: an 8-byte little-endian header length, a JSON header naming each tensor's dtype, shape and
// byte range, then the bytes. https://github.com/huggingface/safetensors#format Untrusted input: the header
// is parsed as a stream of events that accepts this one structure only. So memory stays proportional to the
// tensors named. Every number is checked against the file before a tensor is made.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "engine/base/log.h"
#include "engine/base/status.h"
#include "engine/loader/load_options.h"
#include "engine/tensor/tensor.h"

namespace oar {

using TensorMap = std::map<std::string, Tensor, std::less<>>;

struct Safetensors {
  TensorMap tensors;                                         // views of the file, or aligned copies
  std::map<std::string, std::string, std::less<>> metadata;  // "__metadata__"
};

// `file` holds the whole file; tensors share its owner. `name` is used in messages. Tensors that do not lie
// as their element type needs are copied. DATA_LOSS for a damaged file, UNIMPLEMENTED for a dtype we do not
// have.
Result<Safetensors> parse_safetensors(const Buffer& file, const std::string& name);

// One file on disk.
Result<Safetensors> open_safetensors(const std::string& path, const LoadOptions& options = {},
                                     const Progress& progress = {});

// A model split over several files: `index_path` is a model.safetensors.index.json whose weight_map names,
// for each tensor, a file in the same folder (as file_of_model() has it). Tensors a shard holds beyond those
// listed are left out.
Result<TensorMap> open_sharded_safetensors(const std::string& index_path, const LoadOptions& options = {},
                                           const Progress& progress = {});

}  // namespace oar
