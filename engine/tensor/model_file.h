// Files that a model names: external data of ONNX, shards of an index, parts of a GGUF, parameters of Paddle.
// A model is from somewhere, and its words could name any file of this machine.
#pragma once

#include <string>

#include "engine/base/status.h"

namespace oar {

// Where the file really lies that a model calls `named`, relative to `model`: a folder, or a file and then
// its folder. With links followed it must lie below that folder, or below that of the model's real file (the
// snapshots and blobs of the Hugging Face cache). Any other is INVALID_ARGUMENT, a missing one NOT_FOUND.
Result<std::string> file_of_model(const std::string& model, const std::string& named);

}  // namespace oar
