// The parameters of a model repository's load, alike over HTTP and gRPC: a model of the server's own folder,
// or an adapter (LoRA) of one from a folder that the caller names.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace oar::api {

class ModelCatalog;

// Of adapters, in bytes.
inline constexpr size_t kMaxAdapterName = 256, kMaxAdapterPath = 4096;

struct RepositoryLoad {
  std::string config;                    // JSON in place of the model's own; empty: as it lies there
  std::optional<std::string> lora_path;  // an adapter
  std::optional<std::string> base_model_name;
  bool dependents = false;  // of an unload: an ensemble's steps go, too
};

// One parameter; `text` and `flag` are null where its value is no string and no truth value. UNIMPLEMENTED
// for one that is not offered. An unload (`loads` false) has unload_dependents alone.
Status read_parameter(std::string_view name, const std::string* text, const bool* flag, bool loads,
                      RepositoryLoad& out);

// Loads what was asked for. INVALID_ARGUMENT for parameters that do not go together; as the catalog
// otherwise.
Status load_as_asked(ModelCatalog& catalog, const std::string& name, const RepositoryLoad& asked);

}  // namespace oar::api
