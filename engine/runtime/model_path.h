// Where a MODEL argument points: a path, `demo` (the embedded default model), or the name of a model that the
// Hugging Face tools have already downloaded. Nothing is ever fetched.
#pragma once

#include <string>

#include "engine/base/status.h"

namespace oar {

struct ResolvedModel {
  std::string path;  // a folder or file for load_checkpoint()
  std::string name;  // what to call it: "demo", "Llama-3.2-1B", "meta-llama/Llama-3.2-1B"
};

// In this order:
//   an existing file or folder;
//   "demo": $OAR_DEMO, the files that the program carries (embedded_files.h), ../share/oar/demo beside the
//   program or the shared library, configs/demo of the source tree it was built from; "org/name":
//   <hub>/models--org--name/snapshots/<revision of refs/main>, where <hub> is `cache_dir`, else
//   $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub.
// NOT_FOUND says where it looked.
Result<ResolvedModel> resolve_model(const std::string& model, const std::string& cache_dir = {});

// The path alone.
Result<std::string> resolve_model_path(const std::string& model);

}  // namespace oar
