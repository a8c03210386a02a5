// The models that `oar serve` opens, and how they share memory.
#pragma once

#include <memory>
#include <string>

#include "clients/cli/serve_options.h"
#include "clients/cli/signals.h"
#include "server/repository/repository.h"

namespace oar::cli {

// What MODEL holds. `name`: what it is called as a language model.
FoundModels find_served(const std::string& path, const std::string& given_name, const std::string& name);

// An option that none of the models takes is a mistake, and one that is not seen otherwise. Models of other
// kinds may still come into a folder whose models are loaded on demand.
Status check_options(const ServeOptions& o, const FoundModels& found);

// `facts`: of the command line. `o` and `signals` outlive the catalog, which opens models while it serves.
Result<std::shared_ptr<api::ModelCatalog>> open_models(const ServeOptions& o,
                                                       const LanguageModelOptions& facts, FoundModels found,
                                                       SignalWatcher& signals);

}  // namespace oar::cli
